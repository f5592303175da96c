"""Recovery after a process was killed: the tail is updated to the frames in the pages.

Within one boot the shared state is right except for what a killed producer had begun: frames that
it had published and not yet counted, or a roll without its last step. Messages that the tail counts
and the page lacks are damage, never a torn tail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.write_meta import Tail
from pagequeue.page.header import REMEDY, PageHeader
from pagequeue.page.page import (
    BAD,
    REASONS,
    Scan,
    continues,
    index_to_rebuild,
    map_with_header,
    missing_page,
    scan_region,
    writable_index,
)
from pagequeue.util import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.write_meta import WriteMeta
    from pagequeue.system.directory import Directory

BATCH_OPEN = field_of(fmt.WRITE_META, "batch_open")
PAGE_START = fmt.PAGE_HEADER_BYTES


class CrashRecovery:
    """One such recovery; the caller has the queue locked exclusively."""

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        meta: AllMeta,
        write: WriteMeta,
        did: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._meta = meta
        self._write = write
        self._did = did
        self._walked_all = False

    def run(self) -> int:
        """Set the tail; return how many messages it did not count.

        Raises:
            MissingPage, CorruptPage: the active page is missing or damaged.
            CorruptFrame: a counted message is missing, or the bytes after the last one are damaged.
        """
        counted = self._write.tail
        number, header, scan = self._scan(counted)
        while scan.stopped == _core.READ_END:
            following = self._following(number + 1, scan.sequence)
            if following is None:
                break
            number, (header, scan) = number + 1, following
        self._refuse_damage(number, scan, counted)
        first = header.first_sequence or 0
        tail = Tail(
            number, scan.whole_position, scan.whole_sequence - first, first, scan.whole_timestamp
        )
        if tail != counted:
            self._write.tail = tail
        if scan.whole_sequence < scan.sequence:
            # Half of a batch, which was never sent: this page must not be written to again (I8).
            self._write.region.store(BATCH_OPEN, scan.whole_sequence + 1)
        recovered = tail.sequence - counted.sequence
        if recovered > 0:
            messages = text.counted(recovered, "message")
            self._did(f"recovered {messages} that a killed producer had published")
        elif tail != counted:
            self._did("set the tail words again from the frames")
        elif self._walked_all:
            self._did(f"wrote {fmt.index_name(self._prefix, number)} again from its page")
        return max(recovered, 0)

    def _map(self, number: int) -> tuple[_core.Region, PageHeader]:
        try:
            return map_with_header(self._folder, self._prefix, self._meta, number)
        except errors.QueueNotFound as error:
            path = self._folder.full(fmt.page_name(self._prefix, number))
            raise missing_page(path, number) from error

    def _scan(self, tail: Tail) -> tuple[int, PageHeader, Scan]:
        """Walk from the tail on; from the page's first frame, if the tail is not a frame's end."""
        page, header = self._map(tail.page_number)
        first = header.first_sequence
        floor = header.floor_timestamp
        if (
            first != tail.first_sequence
            and tail.count
            and (_core.peek(page, PAGE_START, tail.first_sequence)[0] == _core.READ_FRAME)
        ):
            raise errors.CorruptPage(
                f"its header states first message {first}, its frames begin with "
                f"{tail.first_sequence}",
                path=self._folder.full(fmt.page_name(self._prefix, tail.page_number)),
                position=0,
                reason="wrong first sequence",
                remedy=REMEDY,
            )
        # Its records have blocks: a producer reserves them before it writes frames.
        index = writable_index(
            self._folder, self._prefix, self._meta, tail.page_number, reserved=False
        )
        if first == tail.first_sequence:
            position = _core.locate(page, index, first, tail.count, tail.count)
            if tail.count and position == tail.position:
                last = _core.locate(page, index, first, tail.count, tail.count - 1)
                floor = -1 if last is None else _core.peek(page, last, tail.sequence - 1)[1]
            if position == tail.position and floor >= 0:
                found = _core.scan(
                    page,
                    index,
                    first,
                    position,
                    tail.sequence,
                    fmt.SEQUENCE_MAX,
                    floor,
                    _core.INDEX_WRITE,
                )
                return tail.page_number, header, Scan(*found)
        self._walked_all = True
        if first is None:
            return (
                tail.page_number,
                header,
                Scan(PAGE_START, 0, 0, PAGE_START, 0, 0, 0, _core.READ_NOTHING),
            )
        return (
            tail.page_number,
            header,
            scan_region(page, index, header, first, None, use=_core.INDEX_WRITE),
        )

    def _following(self, number: int, sequence: int) -> tuple[PageHeader, Scan] | None:
        """Walk the page after an end-of-page marker, if something is in it."""
        try:
            page, header = self._map(number)
        except errors.DamageError:
            return None  # it is only prepared: the next producer rolls into it
        if not continues(page, header, sequence):
            return None
        index = index_to_rebuild(self._folder, self._prefix, self._meta, number)
        return header, scan_region(page, index, header, sequence, None, use=_core.INDEX_WRITE)

    def _refuse_damage(self, number: int, scan: Scan, counted: Tail) -> None:
        if scan.whole_sequence >= counted.sequence and scan.stopped not in BAD:
            return
        reason = REASONS.get(scan.stopped, "unknown")
        raise errors.CorruptFrame(
            f"message {scan.sequence} at position {scan.position}: {reason}, though the write meta "
            f"counts messages up to {counted.sequence - 1}",
            path=self._folder.full(fmt.page_name(self._prefix, number)),
            position=scan.position,
            sequence=scan.sequence,
            reason=reason,
            remedy=REMEDY,
        )
