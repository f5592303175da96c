"""Publishing many pages at once, and what is left of it when its publisher dies.

The pages are laid down elsewhere and get their final names behind the tail, where nobody looks;
the end-of-page mark in front of them makes all of them visible by one store (I19). Whoever makes
pages finds the record of a publisher that died, because both need the preparation lock: if the mark
stands he finishes it, if not he removes the pages. Steps M1 to M9 stand in FORMAT.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.ledger import published_name, publishing_name, read_record
from pagequeue.page import map_file
from pagequeue.words import Tail

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.files import Folder
    from pagequeue.meta import AllMeta
    from pagequeue.words import WriteMeta

    Leap = Callable[[_core.Region, bytes, Tail], None]


class Record(NamedTuple):
    """What is being published.

    Attributes:
        first_page: the number of the first page.
        first_sequence: its first message.
        beyond: the tail behind all of them.
        entry: how the entry of its writer is called.
        done: what that says; the record becomes the entry by its new name.
    """

    first_page: int
    first_sequence: int
    beyond: Tail
    entry: str
    done: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        beyond = self.beyond
        return {
            "first_page": self.first_page,
            "first_sequence": self.first_sequence,
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


def read_publishing(folder: Folder, prefix: str) -> Record | None:
    """Return what is being published, or was when its publisher died; None: nothing.

    Raises:
        CorruptMeta: the record is damaged.
    """
    record = read_record(folder, publishing_name(prefix))
    if record is None:
        return None
    return Record(
        record["first_page"], record["first_sequence"], Tail(*record["beyond"]),
        record["entry"], {name: record[name] for name in ("writer", "done")},
    )  # fmt: skip


def remove_pages(folder: Folder, prefix: str, pages: range) -> None:
    """Remove pages that were not published, the newest first."""
    for number in reversed(pages):
        folder.remove(fmt.page_name(prefix, number))
        folder.remove(fmt.index_name(prefix, number))


def give_up(folder: Folder, prefix: str, record: Record) -> None:
    """Undo what a publisher had begun; nobody saw any of it."""
    remove_pages(folder, prefix, record.pages)
    # Dies here: the same again.
    folder.remove(publishing_name(prefix))


def write_down(folder: Folder, prefix: str, record: Record) -> None:
    """Write the entry of what is published (M9), unless another one did.

    Dies before: the next one who looks does it. After a power cut without the entry's name the
    record is there again, and the same is done.
    """
    try:
        folder.rename(publishing_name(prefix), published_name(prefix, record.entry))
    except errors.QueueNotFound:
        return


def settle_publishing(
    folder: Folder, prefix: str, meta: AllMeta, write: WriteMeta, leap: Leap | None
) -> None:
    """Finish or undo what a publisher left that died; the caller has the preparation lock.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: what was fixed at creation.
        write: where writing stands.
        leap: does M6 to M8; None: then what needs it is left to the next one.

    Raises:
        LockTimeout: it has to be finished, and `leap` is None.
    """
    record = read_publishing(folder, prefix)
    if record is None:
        return
    tail = write.tail
    if tail.page_number < record.first_page:
        if not _is_marked(folder, prefix, meta, tail, record):
            give_up(folder, prefix, record)
            return
        if leap is None:
            raise errors.LockTimeout(
                "pages of a publisher that died are to be finished first: send, which does it",
                path=folder.path,
            )
        name = fmt.page_name(prefix, record.first_page)
        page = map_file(folder, name, meta.page_bytes, writable=False)
        leap(page, page.read(0, fmt.PAGE_HEADER_BYTES), record.beyond)
    write_down(folder, prefix, record)


def settle_alone(folder: Folder, prefix: str, tail: Tail, did: Callable[[str], None]) -> None:
    """The same for a recovery, which has set the tail by the frames and the marks already."""
    try:
        record = read_publishing(folder, prefix)
    except errors.CorruptMeta:
        folder.remove(publishing_name(prefix))
        did(f"removed {publishing_name(prefix)}, which was damaged")
        return
    if record is None:
        return
    if tail.page_number >= record.first_page:
        write_down(folder, prefix, record)
        did("finished the publishing of pages whose publisher died")
    else:
        give_up(folder, prefix, record)
        did("removed pages whose publisher died before it published them")


def _is_marked(folder: Folder, prefix: str, meta: AllMeta, tail: Tail, record: Record) -> bool:
    """Whether the mark in front of the pages stands."""
    if tail.page_number != record.first_page - 1:
        return False
    name = fmt.page_name(prefix, tail.page_number)
    page = map_file(folder, name, meta.page_bytes, writable=False)
    scan = _core.scan(
        page, None, tail.first_sequence, tail.position, tail.sequence, fmt.SEQUENCE_MAX, 0,
        _core.INDEX_NONE,
    )  # fmt: skip
    return scan[-1] == _core.READ_END and scan[1] == record.first_sequence
