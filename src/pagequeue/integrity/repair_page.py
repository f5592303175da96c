"""Repairing pages: names, sizes, headers and end marks that their frames prove."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.compressed_format import inflated, is_compressed, mended_fronts
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import PageHeader, first_bytes, parse_header
from pagequeue.page.page import BAD, PROOF, Scan, private_page, scan_region
from pagequeue.system.directory import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.system.directory import Directory

END_WORD = fmt.END_OF_PAGE | fmt.FRAME_HEADER_BYTES
MENDABLE = {"wrong magic", "wrong checksum", "no format", "first sequence"}
"""What can be wrong with a header that its frames prove."""
BEFORE_FRAMES = fmt.PAGE_HEADER_BYTES - fmt.FRAME_ALIGN_BYTES


class End(NamedTuple):
    """Where a sealed page ends: the sequence that follows it, and its last timestamp."""

    sequence: int
    timestamp: int


class PageRepair:
    """Repairs the pages of a queue; the caller has it alone.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: what was fixed at creation.
        did: is told of each thing that was mended.
        look: returns what stands there now.
    """

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        meta: AllMeta,
        did: Callable[[str], None],
        look: Callable[[], Inspection],
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        self.meta = meta
        self.did = did
        self.look = look
        self.found = look()

    def run(self) -> None:
        """Mend what can be mended; what cannot stays as it is."""
        for mend in self._menders():
            self.found = self.look()
            for number in self.found.numbers:
                if number >= self.found.head_page:
                    try:
                        mend(number)
                    except (errors.DamageError, errors.UpgradeError, errors.UnsafePath):
                        continue  # it stays in what verify finds

    def _menders(self) -> Iterator[Callable[[int], None]]:
        yield self._front
        yield self._unlink
        yield self._rename
        yield self._resize
        yield self._header
        yield self._end_mark
        yield self._behind_tail

    def _is_spare(self, number: int) -> bool:
        """Whether a page is only made ready: nothing in it counts."""
        written = self.found.written
        if written is not None and written.is_trusted:
            return number > written.tail.page_number
        return number == self.found.numbers[-1] and self.found.first_sequence(number) is None

    # --- compressed pages -------------------------------------------------------------------------

    def _is_compressed(self, name: str) -> bool:
        return is_compressed(first_bytes(self.folder, name))

    def _plain(self, name: str) -> bytes:
        """Return a page's bytes, inflated."""
        data = read_all(self.folder, name, self.meta.page_bytes)
        return inflated(data, self.folder.full(name)) if is_compressed(data) else data

    def _front(self, number: int) -> None:
        """Write the front of a compressed page again, from the one at its end, or the other way."""
        name = fmt.page_name(self.prefix, number)
        path = self.folder.full(name)
        status = self.folder.status(name)
        if (
            status is None
            or not stat.S_ISREG(status.st_mode)
            or (status.st_size == self.meta.page_bytes and not self._is_compressed(name))
        ):
            return
        data = read_all(self.folder, name, min(status.st_size, self.meta.page_bytes))
        mended = mended_fronts(data, path)
        if mended is not None:
            self.folder.make(name, mended, size_bytes=len(mended), maker="again", synced=True)
            self.did(f"wrote the head of {name}, which is compressed, again from its copy")

    # --- names ------------------------------------------------------------------------------------

    def _unlink(self, number: int) -> None:
        """Give a page that will be written to a file that has no other name."""
        name = fmt.page_name(self.prefix, number)
        status = self.folder.status(name)
        if status is None or status.st_nlink == 1 or not stat.S_ISREG(status.st_mode):
            return
        if self._is_spare(number):
            self.folder.remove(name)
            self.did(f"removed {name}, which was made ready and has another name as well")
        elif number == self._active():
            self._replace(name, read_all(self.folder, name, self.meta.page_bytes))
            self.did(f"copied {name}, which has another name as well")

    def _active(self) -> int:
        """Return the number of the page that is written to."""
        written = self.found.written
        if written is not None and written.is_trusted:
            return written.tail.page_number
        return max((n for n in self.found.numbers if not self._is_spare(n)), default=0)

    def _rename(self, number: int) -> None:
        """Give a page the name of its number, if no other has it."""
        name = fmt.page_name(self.prefix, number)
        header = parse_header(first_bytes(self.folder, name), self.folder.full(name))
        right = fmt.page_name(self.prefix, header.page_number)
        if (
            header.page_number == number
            or header.queue_id != self.meta.queue_id
            or not fmt.FIRST_PAGE <= header.page_number <= fmt.PAGE_NUMBER_MAX
            or self.folder.exists(right)
        ):
            return
        # Dies behind it: the same page, under its own name.
        self.folder.rename(name, right)
        self.did(f"renamed {name} to {right}, which it says it is")

    # --- sizes ------------------------------------------------------------------------------------

    def _resize(self, number: int) -> None:
        """Cut off what is too much, and fill up what is too little, if no message is there."""
        name = fmt.page_name(self.prefix, number)
        wanted = self.meta.page_bytes
        status = self.folder.status(name)
        if status is None or status.st_size == wanted:
            return
        if stat.S_ISREG(status.st_mode) and self._is_compressed(name):
            return
        size = status.st_size
        if self._is_spare(number):
            self.folder.remove(name)
            self.did(f"removed {name}, which was to come next and is no page of {wanted} bytes")
            return
        if size < wanted and not self._is_whole(number, read_all(self.folder, name, size)):
            return
        self._replace(name, read_all(self.folder, name, min(size, wanted)))
        self.did(f"gave {name} its {wanted} bytes again, it had {size}")

    def _is_whole(self, number: int, data: bytes) -> bool:
        """Whether a page that was cut short still has all of its messages."""
        header = self.found.header(number)
        first = header.first_sequence
        if first is None:
            return False
        region = private_page(data, self.meta)
        scan = scan_region(region, None, header, first, None)
        if scan.stopped == _core.READ_END:
            return scan.position + fmt.FRAME_HEADER_BYTES <= len(data)
        written = self.found.written
        if number != self.found.numbers[-1] and not self._is_spare(number + 1):
            return False
        if written is None or scan.stopped != _core.READ_NOTHING:
            return False
        if written.is_trusted:
            return scan.whole_sequence >= written.tail.sequence
        return written.durable_page > 0 and scan.whole_sequence >= self.found.durable_sequence

    # --- headers ----------------------------------------------------------------------------------

    def _header(self, number: int) -> None:
        """Write a page's header again, if its first frame proves which sequence it has."""
        name = fmt.page_name(self.prefix, number)
        if self._is_spare(number) and self._end_of(number - 1) is None:
            return
        page = map_page(self.folder, name, self.meta)
        reason = self._wrong_header(number, page)
        if reason is None:
            return
        before = self._end_of(number - 1)
        if (empty := self._empty_from(number, page, before)) is not None:
            made = PageHeader(
                number, self.meta.queue_id, empty.sequence, empty.timestamp, self.meta.created
            )
            self._replace(name, made.encode())
            self.did(f"wrote the header of {name} again, which has no message yet ({reason})")
            return
        first = before.sequence if before else self._proved_first(number, page)
        if first is not None and _core.look(page, fmt.PAGE_HEADER_BYTES, first)[0] not in PROOF:
            first = self._proved_first(number, page, before.sequence if before else 0)
        if first is None:
            return
        found, timestamp, _, _ = _core.look(page, fmt.PAGE_HEADER_BYTES, first)
        if found not in PROOF:
            return
        floor = min(before.timestamp, timestamp) if before else timestamp
        made = PageHeader(number, self.meta.queue_id, first, floor, self.meta.created)
        data = self._plain(name)
        self._replace(name, made.encode() + data[fmt.PAGE_HEADER_BYTES :])
        self.did(f"wrote the header of {name} again ({reason})")

    def _empty_from(self, number: int, page: _core.Region, before: End | None) -> End | None:
        """Return where an empty active page begins, if all that says it agrees; else None.

        The end-of-page marker before it says it, and, in the first page, the read meta.
        """
        found, written = self.found, self.found.written
        if number != found.numbers[-1] and not self._is_spare(number + 1):
            return None
        if any(page.read(fmt.PAGE_HEADER_BYTES, self.meta.page_bytes - fmt.PAGE_HEADER_BYTES)):
            return None
        trusted = written is not None and written.is_trusted
        if before is None and number == found.head_page and trusted and written is not None:
            before = End(found.head_sequence or 0, written.tail.last_timestamp)
        if before is None or (
            number == found.head_page and found.head_sequence not in {None, before.sequence}
        ):
            return None
        if written is None:
            return before
        agrees = written.durable_sequence <= before.sequence
        if trusted and number >= written.tail.page_number:
            tail = written.tail
            agrees = tail.sequence == before.sequence and (
                tail.page_number < number or tail.count == 0
            )
        return before if agrees else None

    def _wrong_header(self, number: int, page: _core.Region) -> str | None:
        """Return what is wrong with a page's header, None when nothing is, or nothing to mend."""
        try:
            header = self.found.header(number)
        except errors.CorruptPage as error:
            return error.reason if error.reason in MENDABLE else None
        if header.first_sequence is None:
            return "no first sequence"
        stands, timestamp, _, _ = _core.look(page, fmt.PAGE_HEADER_BYTES, header.first_sequence)
        if stands == _core.READ_BAD_CHECKSUM:
            return "its frames prove another first sequence"
        if stands != _core.READ_FRAME:
            return None
        before = self._end_of(number - 1)
        floor = header.floor_timestamp
        if not 0 <= floor <= timestamp or (before and floor < before.timestamp <= timestamp):
            return "its time cannot be"
        return None

    def _proved_first(self, number: int, page: _core.Region, lowest: int = 0) -> int | None:
        """Return the sequence of a page's first frame, from its checksum alone.

        It is not below `lowest`: such a frame is another page's.
        """
        found = self.found
        if number == found.head_page and found.head_sequence is not None:
            head = found.head_sequence
            if _core.look(page, fmt.PAGE_HEADER_BYTES, head)[0] in PROOF:
                return head
        known = [found.first_sequence(n) for n in found.numbers if n < number]
        low = max((first for first in known if first is not None), default=0)
        low = max(low, lowest)
        following = found.first_sequence(number + 1)
        high = fmt.SEQUENCE_MAX if following is None else max(following, low)
        first = _core.resync(
            page, None, low, BEFORE_FRAMES, low, high, fmt.TIMESTAMP_MIN, fmt.TIMESTAMP_MAX
        )
        return first[1] if first is not None and first[0] == fmt.PAGE_HEADER_BYTES else None

    def _scan(self, number: int) -> tuple[_core.Region, Scan] | None:
        if number not in self.found.numbers:
            return None
        header = self.found.header(number)
        if header.first_sequence is None:
            return None
        name = fmt.page_name(self.prefix, number)
        page = map_page(self.folder, name, self.meta)
        return page, scan_region(page, None, header, header.first_sequence, None)

    def _end_of(self, number: int) -> End | None:
        """Return where the page before ends, if it says so."""
        try:
            scanned = self._scan(number)
        except errors.PageQueueError:
            return None
        if scanned is None or scanned[1].stopped != _core.READ_END:
            return None
        return End(scanned[1].sequence, scanned[1].timestamp)

    def _replace(self, name: str, data: bytes) -> None:
        """Put a new file with these bytes, filled up with zeros, in a page's place.

        Dies or cut in between: the old file. A sync that fails leaves it too, so that trying again
        begins with what is really there.
        """
        size = self.meta.page_bytes
        self.folder.make(name, data, size_bytes=size, maker="again", synced=True)

    # --- end marks --------------------------------------------------------------------------------

    def _end_mark(self, number: int) -> None:
        """Write the end mark again, where all messages before the next page are there."""
        following = self.found.first_sequence(number + 1)
        if following is None or self._is_spare(number + 1):
            return
        scanned = self._scan(number)
        if scanned is None:
            return
        scan = scanned[1]
        if scan.stopped == _core.READ_END or scan.sequence != following:
            return
        name = fmt.page_name(self.prefix, number)
        data = self._plain(name)
        mark = np.zeros(1, fmt.FRAME)
        mark["length"] = END_WORD
        mark["checksum"] = _core.frame_checksum(
            self.meta.queue_id, b"", scan.timestamp, scan.sequence, END_WORD
        )
        mark["timestamp"] = scan.timestamp
        behind = data[scan.position + fmt.FRAME_HEADER_BYTES :]
        self._replace(name, data[: scan.position] + mark.tobytes() + behind)
        self.did(f"wrote the end mark of {name} again")

    # --- behind the tail --------------------------------------------------------------------------

    def _behind_tail(self, number: int) -> None:
        """Zero what stands behind the tail and is no message: nobody can send past it."""
        written = self.found.written
        if written is None or not written.is_trusted or number != written.tail.page_number:
            return
        scanned = self._scan(number)
        if scanned is None:
            return
        scan = scanned[1]
        is_half = scan.whole_sequence < scan.sequence
        if (scan.stopped in BAD or is_half) and scan.whole_sequence >= written.tail.sequence:
            name = fmt.page_name(self.prefix, number)
            data = read_all(self.folder, name, self.meta.page_bytes)
            self._replace(name, data[: scan.whole_position])
            self.did(f"zeroed what stood behind message {scan.whole_sequence - 1} in {name}")
