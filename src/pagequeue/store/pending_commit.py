"""Publishing many pages at once, and what is left of it when its publisher dies.

The pages are laid down elsewhere and get their final names behind the tail, where nobody looks;
the end-of-page mark in front of them makes all of them visible by one store (I19). Whoever makes
pages finds the record of a publisher that died, because both need the preparation lock: if the mark
stands he finishes it, if not he removes the pages. Steps M1 to M9 stand in FORMAT.md.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.ledger import (
    ENTRY,
    are_numbers,
    nonsense,
    published_name,
    publishing_name,
    read_record,
)
from pagequeue.meta.write_meta import Tail
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import CHECKSUM_AT, REMEDY, read_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import BAD, REASONS, Scan, map_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.meta.write_meta import WriteMeta
    from pagequeue.system.directory import Directory

    Leap = Callable[[_core.Region, bytes, Tail], None]
    Sync = Callable[[], None]


TAIL_WORDS: Final = 5


class Record(NamedTuple):
    """What is being published.

    Attributes:
        first_page: the number of the first page.
        first_sequence: its first message.
        first_checksum: of that message's frame: it tells this page from one that got its number
            when these were given up, if a power cut brings the record back.
        beyond: the tail behind all of them.
        entry: how the entry of its writer is called.
        done: what that says; the record becomes the entry by its new name.
    """

    first_page: int
    first_sequence: int
    first_checksum: int
    beyond: Tail
    entry: str
    done: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        beyond = self.beyond
        return {
            "first_page": self.first_page,
            "first_sequence": self.first_sequence,
            "first_checksum": self.first_checksum,
            "beyond": [
                beyond.page_number, beyond.position, beyond.count, beyond.first_sequence,
                beyond.last_timestamp,
            ],
            "entry": self.entry,
            **self.done,
        }  # fmt: skip

    @property
    def pages(self) -> range:
        """The numbers of the pages."""
        return range(self.first_page, self.beyond.page_number + 1)


def read_publishing(folder: Directory, prefix: str) -> Record | None:
    """Return what is being published, or was when its publisher died; None: nothing.

    Raises:
        CorruptMeta: the record is damaged.
    """
    name = publishing_name(prefix)
    record = read_record(folder, name)
    if record is None:
        return None
    entry: Any = record.get("entry")
    beyond: Any = record.get("beyond")
    place: list[Any] = [
        record.get(word) for word in ("first_page", "first_sequence", "first_checksum")
    ]
    if not (
        are_numbers(place)
        and are_numbers(beyond)
        and len(beyond) == TAIL_WORDS
        and fmt.FIRST_PAGE < place[0] <= beyond[0] <= fmt.PAGE_NUMBER_MAX
        and (beyond[0] - place[0]) % 2 == 0  # an odd number of pages
        and isinstance(entry, str)
        and ENTRY.fullmatch(entry)
        and record["done"]
    ):
        raise nonsense(folder.full(name), "no record of pages")
    done = {word: record[word] for word in ("writer", "done")}
    return Record(place[0], place[1], place[2], Tail(*beyond), entry, done)


def remove_pages(folder: Directory, prefix: str, pages: range, sync: Sync) -> None:
    """Remove pages that were not published, the newest first, for good: on stable storage.

    Whoever makes the next page marks the end of the one before it. A power cut that kept the mark
    and brought these names back would publish them after all.
    """
    for number in reversed(page_numbers(prefix, folder.names(), "idx")):
        if number in pages:
            folder.remove(fmt.page_name(prefix, number))
            folder.remove(fmt.index_name(prefix, number))
    sync()


def remove_again(folder: Directory, prefix: str, page_bytes: int, pages: range) -> None:
    """Remove the names of pages that memory does not show, and that the disk perhaps still has.

    A failed sync can have dropped their removal, and the next one then succeeds without it. A name
    that is made and removed again is a change that the next sync writes.
    """
    if len(pages) * page_bytes > folder.space_bytes:
        return  # nobody can have made so many
    there = set(folder.names())
    for number in reversed(pages):
        for name in (fmt.page_name(prefix, number), fmt.index_name(prefix, number)):
            if name not in there:
                folder.remove_again(name)


def roll_back(folder: Directory, prefix: str, record: Record, sync: Sync) -> None:
    """Undo what a publisher had begun; nobody saw any of it."""
    remove_pages(folder, prefix, record.pages, sync)
    # Dies here, or could not sync: the same again, so the record goes last.
    folder.remove(publishing_name(prefix))


def write_down(folder: Directory, prefix: str, record: Record) -> None:
    """Write the entry of what is published (M9), unless another one did.

    Dies before: the next one who looks does it. After a power cut without the entry's name the
    record is there again, and the same is done.
    """
    try:
        folder.rename(publishing_name(prefix), published_name(prefix, record.entry))
    except errors.QueueNotFound:
        return


def settle_publishing(
    folder: Directory, prefix: str, meta: AllMeta, write: WriteMeta, commit: Leap | None, sync: Sync
) -> None:
    """Finish or undo what a publisher left that died; the caller has the preparation lock.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: what was fixed at creation.
        write: where writing stands.
        commit: does M6 to M8; None: then what needs it is left to the next one.
        sync: puts names on stable storage.

    Raises:
        LockTimeout: it has to be finished, and `commit` is None.
        CorruptMeta: the record is damaged. CorruptFrame: the place of the mark is.
    """
    record = read_publishing(folder, prefix)
    if record is None:
        return
    tail = write.tail
    if tail.page_number < record.first_page:
        if not _is_marked(folder, prefix, meta, tail, record):
            if write.is_failed:  # perhaps by the sync of an earlier removal
                remove_again(folder, prefix, meta.page_bytes, record.pages)
            roll_back(folder, prefix, record, sync)
            return
        if commit is None:
            raise errors.LockTimeout(
                "pages of a publisher that died are to be finished first: send, which does it",
                path=folder.path,
            )
        name = fmt.page_name(prefix, record.first_page)
        page = map_plain(folder, name, meta, writable=False)
        commit(page, page.read(0, fmt.PAGE_HEADER_BYTES), record.beyond)
    write_down(folder, prefix, record)


def unpublished(folder: Directory, prefix: str, number: int, scan: Scan) -> range:
    """Return the pages that were to be published behind a page, if that has no mark.

    Args:
        folder: of the queue.
        prefix: of its file names.
        number: of the page.
        scan: of all that stands in it.
    """
    try:
        record = read_publishing(folder, prefix)
    except errors.CorruptMeta:
        return range(0)
    if record is None or (number, scan.stopped, scan.sequence) != (
        record.first_page - 1, _core.READ_NOTHING, record.first_sequence,
    ):  # fmt: skip
        return range(0)
    return record.pages


def settle_alone(
    folder: Directory,
    prefix: str,
    meta: AllMeta,
    tail: Tail,
    did: Callable[[str], None],
    sync: Sync,
) -> None:
    """The same for a recovery, which has set the tail by the frames and the marks already."""
    try:
        record = read_publishing(folder, prefix)
    except errors.CorruptMeta:
        # Its pages would pass for somebody's. The marks were followed: behind the tail is nothing
        # that was ever published.
        remove_pages(folder, prefix, _waiting(folder, prefix, meta, tail), sync)
        folder.remove(publishing_name(prefix))
        did(f"removed {publishing_name(prefix)}, which was damaged")
        return
    if record is None:
        return
    if tail.page_number >= record.first_page and not _is_another(folder, prefix, meta, record):
        write_down(folder, prefix, record)
        did("finished the publishing of pages whose publisher died")
    else:
        waiting = range(tail.page_number + 1, record.beyond.page_number + 1)
        remove_again(folder, prefix, meta.page_bytes, waiting)
        remove_pages(folder, prefix, waiting, sync)
        folder.remove(publishing_name(prefix))
        did("removed pages whose publisher died before it published them")


def _is_marked(folder: Directory, prefix: str, meta: AllMeta, tail: Tail, record: Record) -> bool:
    """Whether the mark in front of the pages stands."""
    if tail.page_number != record.first_page - 1:
        return False
    name = fmt.page_name(prefix, tail.page_number)
    page = map_plain(folder, name, meta, writable=False)
    scan = Scan(*_core.scan(
        page, None, tail.first_sequence, tail.position, tail.sequence, fmt.SEQUENCE_MAX, 0,
        _core.INDEX_NONE,
    ))  # fmt: skip
    if scan.stopped in BAD:  # it could have been the mark: nothing is removed
        raise errors.CorruptFrame(
            f"message {scan.sequence} at position {scan.position}: {REASONS[scan.stopped]}, where "
            f"a publisher died: {REMEDY}",
            path=folder.full(name), position=scan.position, sequence=scan.sequence,
            reason=REASONS[scan.stopped],
        )  # fmt: skip
    return scan.stopped == _core.READ_END and scan.sequence == record.first_sequence


def _is_another(folder: Directory, prefix: str, meta: AllMeta, record: Record) -> bool:
    """Whether the first page is not the one that was to be published: that one was given up.

    A power cut can bring the record back behind that. A page that is gone was retired, and the
    directory synced before.
    """
    try:
        page = map_page(folder, fmt.page_name(prefix, record.first_page), meta)
    except (errors.QueueNotFound, errors.DamageError):
        return False
    stands = page.load_half(fmt.PAGE_HEADER_BYTES + CHECKSUM_AT)
    return stands != record.first_checksum


def _waiting(folder: Directory, prefix: str, meta: AllMeta, tail: Tail) -> range:
    """Return the pages behind the tail that say that they are this queue's and have messages."""
    last = tail.page_number
    for number in page_numbers(prefix, folder.names()):
        if number > tail.page_number:
            with contextlib.suppress(errors.DamageError, errors.QueueNotFound):
                header = read_header(folder, prefix, meta.queue_id, number)
                if header.first_sequence is not None and header.first_sequence >= tail.sequence:
                    last = number
    return range(tail.page_number + 1, last + 1)
