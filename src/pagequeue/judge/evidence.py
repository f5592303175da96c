"""What the files of a queue say whose shared words cannot be trusted; nothing is written.

The small files state a promise: where the queue begins, and up to which message it was on stable
storage. The page files are read when the judge asks for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.commit_record import read_publishing
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import decode_header
from pagequeue.page.page import WRONG_SIZE

if TYPE_CHECKING:
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.commit_record import Record
    from pagequeue.meta.read_meta import ReadMeta
    from pagequeue.meta.write_meta import WriteMeta
    from pagequeue.system.directory import Directory

KEPT: Final = 4
"""So many pages stay mapped: those that the judge looks at twice come one after the other."""


class Promise(NamedTuple):
    """What the small files state.

    Attributes:
        head: the first readable page, and its first sequence.
        mark: the page of the durable mark, and its sequence; page 0: it is lost.
        pending: the record of a bulk commit; None: there is none that is readable.
    """

    head: tuple[int, int]
    mark: tuple[int, int]
    pending: Record | None = None


class PageFile(NamedTuple):
    """One page file.

    Attributes:
        number: of the page.
        state: one of the core's FILE_ codes.
        region: the file as a page; None: it is missing, or has another size.
        error: why it cannot be read as a page; None: it can.
    """

    number: int
    state: int
    region: _core.Region | None
    error: errors.PageQueueError | None


class Evidence:
    """The files of a queue.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: of the queue.
        promise: what the small files state.
        numbers: of the page files, ascending.
    """

    def __init__(
        self, folder: Directory, prefix: str, meta: AllMeta, promise: Promise, numbers: list[int]
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        self.meta = meta
        self.promise = promise
        self.numbers = numbers
        self._kept: OrderedDict[tuple[int, bool], PageFile] = OrderedDict()

    def path(self, number: int) -> str:
        """Return the path of a page."""
        return self.folder.full(fmt.page_name(self.prefix, number))

    def page(self, number: int, *, frames: bool) -> PageFile:
        """Return a page file; without `frames`, only the header of a compressed one is there."""
        kept = self._kept.get((number, True)) or self._kept.get((number, frames))
        if kept is None:
            kept = self._kept[number, frames] = self._read(number, frames=frames)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept

    def _read(self, number: int, *, frames: bool) -> PageFile:
        name = fmt.page_name(self.prefix, number)
        try:
            region = map_page(self.folder, name, self.meta, filled=frames)
        except errors.QueueNotFound as error:
            return PageFile(number, _core.FILE_MISSING, None, error)
        except errors.DamageError as error:
            is_plain = error.reason == WRONG_SIZE
            return PageFile(
                number, _core.FILE_PLAIN if is_plain else _core.FILE_BROKEN, None, error
            )
        is_plain = region.filler is None
        state = _core.FILE_PLAIN if is_plain else _core.FILE_COMPRESSED
        return PageFile(number, state, region, None)

    def following(self, number: int, *, frames: bool) -> PageFile:
        """Return the first page file with this number or a higher one; else a missing one."""
        place = bisect_left(self.numbers, number)
        if place == len(self.numbers):
            return PageFile(number, _core.FILE_MISSING, None, None)
        return self.page(self.numbers[place], frames=frames)

    def error_of(self, number: int) -> errors.PageQueueError:
        """Return the error for a page file whose header is not that of the page."""
        file = self.page(number, frames=False)
        if file.region is None:
            file = self.page(number, frames=True)
        if file.error is not None or file.region is None:
            return file.error or errors.QueueNotFound("removed meanwhile", path=self.path(number))
        try:
            data = file.region.read(0, fmt.PAGE_HEADER_BYTES)
            decode_header(data, self.meta.queue_id, number, self.path(number))
        except errors.PageQueueError as error:
            return error
        return errors.CorruptPage(
            "its header changed while it was read",
            path=self.path(number),
            position=0,
            reason="changed",
            remedy="open the queue again",
        )


def promise_of(folder: Directory, prefix: str, read: ReadMeta, write: WriteMeta) -> Promise:
    """Return what the small files state."""
    try:
        pending = read_publishing(folder, prefix)
    except errors.CorruptMeta:  # of a commit that was not synced
        pending = None
    return Promise(read.head, (write.durable_page, write.durable_sequence), pending)
