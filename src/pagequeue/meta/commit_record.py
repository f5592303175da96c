"""The record of a bulk commit, which its publisher writes before the pages get their names.

FORMAT.md, "Publishing pages", M5: `store/pending_commit.py` completes or rolls back what it tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pagequeue import format as fmt
from pagequeue.meta.ledger import (
    DROPPED,
    ENTRY,
    are_numbers,
    nonsense,
    publishing_name,
    read_record,
)
from pagequeue.meta.write_meta import Tail

if TYPE_CHECKING:
    from pagequeue.system.directory import Directory

TAIL_WORDS: Final = 5
NO_WORK: Final[dict[str, Any]] = {"writer": "", "done": []}
"""What the record of a commit has that belongs to no writer."""


class Record(NamedTuple):
    """The pages of a bulk commit.

    Attributes:
        first_page: the number of the first page.
        first_sequence: its first message.
        first_checksum: of that message's frame: it tells this page from a later one of its number,
            made after a rollback, if a power cut brings the record back.
        beyond: the tail after all of them.
        entry: name of its writer's entry; None: it has no writer that could repeat it.
        done: contents of the entry; renaming the record makes it the entry.
    """

    first_page: int
    first_sequence: int
    first_checksum: int
    beyond: Tail
    entry: str | None
    done: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the contents of its file."""
        beyond = self.beyond
        return {
            "first_page": self.first_page,
            "first_sequence": self.first_sequence,
            "first_checksum": self.first_checksum,
            "beyond": [
                beyond.page_number,
                beyond.position,
                beyond.count,
                beyond.first_sequence,
                beyond.last_timestamp,
            ],
            "entry": self.entry or "",
            **(self.done or NO_WORK),
        }

    @property
    def pages(self) -> range:
        """The numbers of the pages."""
        return range(self.first_page, self.beyond.page_number + 1)


def read_publishing(folder: Directory, prefix: str) -> Record | None:
    """Return the pending record, of a live or a dead publisher; None: no commit is pending.

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
        and (ENTRY.fullmatch(entry) if record["done"] else not entry)
    ):
        raise nonsense(folder.full(name), "no record of pages")
    done: dict[str, Any] = {word: record[word] for word in (*NO_WORK, DROPPED) if word in record}
    return Record(place[0], place[1], place[2], Tail(*beyond), entry or None, done)
