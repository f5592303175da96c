"""Repair of pages: names, sizes, headers and end-of-page markers that their frames prove."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.compressed_format import inflated, is_compressed, repaired_fronts
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import PageHeader, first_bytes, parse_header
from pagequeue.page.page import BAD, PROOF, Scan, private_page, scan_region
from pagequeue.system.directory import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory

END_WORD = fmt.END_OF_PAGE | fmt.FRAME_HEADER_BYTES
PROVABLE = {"wrong magic", "wrong checksum", "no format", "first sequence"}
"""Reasons of damage to a header that the page's frames can prove."""


class End(NamedTuple):
    """The end of a sealed page: the sequence that follows it, and its last timestamp."""

    sequence: int
    timestamp: int


class PageRepair:
    """Repairs the pages of a queue; the caller has it exclusively.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: what was fixed at creation.
        did: called with a sentence for each action.
        did_inside: the same, for one that changes no page that an inspection looks into.
        inspect: returns the current state of the files.

    Attributes:
        lost_flag: whether the header of a page that is not flushed was written again. Whether its
            commit continues in the next page, which recovery after a power cut has to know, was
            lost with the old one: the queue has to be flushed.
    """

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        meta: AllMeta,
        did: Callable[[str], None],
        did_inside: Callable[[str], None],
        inspect: Callable[[], Inspection],
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        self.meta = meta
        self.did = did
        self.did_inside = did_inside
        self.inspect = inspect
        self.found: Inspection = inspect()
        self.lost_flag: bool = False
        self._scans: dict[int, Scan] = {}  # of pages that were not changed since

    def run(self) -> None:
        """Repair what is provable; leave the rest unchanged."""
        for step in self._steps():
            self.found = self.inspect()
            for number in self.found.numbers:
                if number >= self.found.head_page:
                    try:
                        step(number)
                    except (errors.DamageError, errors.UpgradeError, errors.UnsafePath):
                        continue  # verify reports it as remaining

    def _steps(self) -> Iterator[Callable[[int], None]]:
        yield self._front
        yield self._unlink
        yield self._rename
        yield self._resize
        yield self._header
        yield self._end_mark
        yield self._zero_past_tail

    def _is_spare(self, number: int) -> bool:
        """Whether a page is only prepared: it has no messages."""
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
        """Restore the front of a compressed page from the copy at its end, or the other way."""
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
        repaired = repaired_fronts(data, path)
        if repaired is not None:
            self.folder.make(name, repaired, size_bytes=len(repaired), maker="again", synced=True)
            self.did(f"wrote the head of {name}, which is compressed, again from its copy")

    # --- names ------------------------------------------------------------------------------------

    def _unlink(self, number: int) -> None:
        """Replace a page that will be written to with a copy, if its file has a second name."""
        name = fmt.page_name(self.prefix, number)
        status = self.folder.status(name)
        if status is None or status.st_nlink == 1 or not stat.S_ISREG(status.st_mode):
            return
        if self._is_spare(number):
            self.folder.remove(name)
            self.did(f"removed {name}, which was prepared and has another name as well")
        elif number == self._active():
            self._replace(number, read_all(self.folder, name, self.meta.page_bytes))
            self.did(f"copied {name}, which has another name as well")

    def _active(self) -> int:
        """Return the number of the page that is written to."""
        written = self.found.written
        if written is not None and written.is_trusted:
            return written.tail.page_number
        return max((n for n in self.found.numbers if not self._is_spare(n)), default=0)

    def _rename(self, number: int) -> None:
        """Rename a page to the number in its header, if no other page has that name."""
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
        # Dies after it: the same page, under its own name.
        self.folder.rename(name, right)
        self.did(f"renamed {name} to {right}, the number in its header")

    # --- sizes ------------------------------------------------------------------------------------

    def _resize(self, number: int) -> None:
        """Truncate a page that is too long; extend one that is too short, if it lost no message."""
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
            self.did(f"removed {name}, a prepared page that did not have {wanted} bytes")
            return
        if size < wanted and not self._is_whole(number, read_all(self.folder, name, size)):
            return
        self._replace(number, read_all(self.folder, name, min(size, wanted)))
        self.did(f"gave {name} its {wanted} bytes again, it had {size}")

    def _is_whole(self, number: int, data: bytes) -> bool:
        """Whether a page that was cut short still has all its messages."""
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
        """Rewrite a page's header, if its first frame proves its first sequence."""
        name = fmt.page_name(self.prefix, number)
        if self._is_spare(number) and self._end_of(number - 1) is None:
            return
        page = map_page(self.folder, name, self.meta)
        reason = self._wrong_header(number, page)
        if reason is None:
            header = self.found.header(number)
            if header.first_sequence is not None:
                self._scans[number] = scan_region(page, None, header, header.first_sequence, None)
            return
        before = self._end_of(number - 1)
        if self._is_made_again(number, before):
            return
        if (empty := self._empty_from(number, page, before)) is not None:
            made = PageHeader(
                number, self.meta.queue_id, empty.sequence, empty.timestamp, self.meta.created
            )
            self._replace(number, made.encode())
            self.did(f"wrote the header of {name} again, which has no message yet ({reason})")
            return
        first = before.sequence if before else self._proved_first(number, page)
        if first is not None and _core.peek(page, fmt.PAGE_HEADER_BYTES, first)[0] not in PROOF:
            first = self._proved_first(number, page, before.sequence if before else 0)
        if first is None:
            return
        found, timestamp, _, _ = _core.peek(page, fmt.PAGE_HEADER_BYTES, first)
        if found not in PROOF:
            return
        floor = min(before.timestamp, timestamp) if before else timestamp
        made = PageHeader(number, self.meta.queue_id, first, floor, self.meta.created)
        data = self._plain(name)
        self._replace(number, made.encode() + data[fmt.PAGE_HEADER_BYTES :])
        self._scans[number] = scan_region(page, None, made, first, None)
        self.lost_flag = self.lost_flag or number >= self._durable_page()
        is_inside = before is not None and self.found.first_sequence(number + 1) is not None
        did = self.did_inside if is_inside else self.did
        did(f"wrote the header of {name} again ({reason})")

    def _durable_page(self) -> int:
        """Return the page of the durable mark; 0 if that is unknown."""
        written = self.found.written
        return 0 if written is None else written.durable_page

    def _is_made_again(self, number: int, before: End | None) -> bool:
        """Whether recovery makes a page without a header again, because a power cut tore it.

        Its frames could be some of a bulk commit, and the flag that tells is lost with the header.
        """
        written = self.found.written
        return (
            before is not None
            and written is not None
            and not written.is_trusted
            and 0 < written.durable_page < number
            and before.sequence >= self.found.durable_sequence
        )

    def _empty_from(self, number: int, page: _core.Region, before: End | None) -> End | None:
        """Return where an empty active page begins, if all sources agree; else None.

        The sources are the end-of-page marker before it and, for the first page, the read meta.
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
        """Return what is wrong with a page's header, None if it is valid or not repairable."""
        try:
            header = self.found.header(number)
        except errors.CorruptPage as error:
            return error.reason if error.reason in PROVABLE else None
        if header.first_sequence is None:
            return "no first sequence"
        state, timestamp, _, _ = _core.peek(page, fmt.PAGE_HEADER_BYTES, header.first_sequence)
        if state == _core.READ_BAD_CHECKSUM:
            return "its frames prove another first sequence"
        if state != _core.READ_FRAME:
            return None
        before = self._end_of(number - 1)
        floor = header.floor_timestamp
        if not 0 <= floor <= timestamp or (before and floor < before.timestamp <= timestamp):
            return "invalid timestamp"
        return None

    def _proved_first(self, number: int, page: _core.Region, lowest: int = 0) -> int | None:
        """Return the sequence of a page's first frame, from its checksum alone.

        It is at least `lowest`: a frame with a lower sequence belongs to another page.
        """
        found = self.found
        if number == found.head_page and found.head_sequence is not None:
            head = found.head_sequence
            if _core.peek(page, fmt.PAGE_HEADER_BYTES, head)[0] in PROOF:
                return head
        return found.first_by_frames(number, page, lowest)

    def _scan(self, number: int) -> Scan | None:
        if number not in self.found.numbers:
            return None
        if number not in self._scans:
            header = self.found.header(number)
            if header.first_sequence is None:
                return None
            page = map_page(self.folder, fmt.page_name(self.prefix, number), self.meta)
            self._scans[number] = scan_region(page, None, header, header.first_sequence, None)
        return self._scans[number]

    def _end_of(self, number: int) -> End | None:
        """Return where a page ends, None unless it has an end-of-page marker."""
        try:
            scanned = self._scan(number)
        except errors.PageQueueError:
            return None
        if scanned is None or scanned.stopped != _core.READ_END:
            return None
        return End(scanned.sequence, scanned.timestamp)

    def _replace(self, number: int, data: bytes) -> None:
        """Replace a page with a new file of these bytes, padded with zeros.

        Dies or power is cut in between: the old file. A failed sync leaves the old file too, so
        that a retry starts from data that is on the disk.
        """
        name, size = fmt.page_name(self.prefix, number), self.meta.page_bytes
        self._scans.pop(number, None)
        self.folder.make(name, data, size_bytes=size, maker="again", synced=True)

    # --- end-of-page markers ----------------------------------------------------------------------

    def _end_mark(self, number: int) -> None:
        """Rewrite an end-of-page marker, where all messages before the next page are present."""
        following = self.found.first_sequence(number + 1)
        if following is None or self._is_spare(number + 1):
            return
        scan = self._scan(number)
        if scan is None:
            return
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
        rest = data[scan.position + fmt.FRAME_HEADER_BYTES :]
        self._replace(number, data[: scan.position] + mark.tobytes() + rest)
        self.did(f"wrote the end-of-page marker of {name} again")

    # --- past the tail ----------------------------------------------------------------------------

    def _zero_past_tail(self, number: int) -> None:
        """Zero invalid bytes after the tail: no producer can append past them."""
        written = self.found.written
        if written is None or not written.is_trusted or number != written.tail.page_number:
            return
        scan = self._scan(number)
        if scan is None:
            return
        is_half = scan.whole_sequence < scan.sequence
        if (scan.stopped in BAD or is_half) and scan.whole_sequence >= written.tail.sequence:
            name = fmt.page_name(self.prefix, number)
            data = read_all(self.folder, name, self.meta.page_bytes)
            self._replace(number, data[: scan.whole_position])
            self.did(f"zeroed the bytes after message {scan.whole_sequence - 1} in {name}")
