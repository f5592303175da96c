"""What the write meta says in a survey: where writing stands, what is durable, what failed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem
from pagequeue.meta.all_and_read_meta import field_of
from pagequeue.meta.write_meta import WriteMeta

if TYPE_CHECKING:
    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.meta.write_meta import Tail

TAIL_POSITION: Final = field_of(fmt.WRITE_META, "page_number")


@dataclass
class Written:
    """What the write meta says, if it can be.

    Attributes:
        tail: where writing stands.
        durable_sequence: the durable mark.
        durable_page: the page that it stands in; 0 = no mark was ever set.
        failed_errno: the failure latch.
        is_trusted: whether the words can be trusted; otherwise the frames say where the end is.
    """

    tail: Tail
    durable_sequence: int
    durable_page: int
    failed_errno: int
    is_trusted: bool


def look_at_words(found: Inspection, meta: AllMeta) -> None:
    """Read the write meta; note what in it cannot be, and the failure latch."""
    try:
        write = WriteMeta(found.folder, found.prefix, meta.queue_id, writable=False)
    except errors.PageQueueError as error:
        found.wrong(error)
        return
    # The mark before the tail, which only grows: others may send and flush in between.
    durable_sequence, durable_page = write.durable_sequence, write.durable_page
    tail = write.tail
    written = Written(tail, durable_sequence, durable_page, write.failed_errno, write.is_settled)
    write.close()
    path = found.folder.full(fmt.write_meta_name(found.prefix))
    if not written.is_trusted:
        if not _can_be_durable(found, meta, written):
            mark = written.durable_sequence
            cannot = f"says that all below message {mark} is durable, and there cannot be so many"
            found.problems.append(Problem(path, WriteMeta.DURABLE_SEQUENCE, None, cannot))
            return
        found.written = written
        _look_at_latch(found, written)
        return
    reason = None
    if not tail.can_be((found.head_page, found.head_sequence or 0), meta.page_bytes):
        reason = f"says that writing stands at {tail}, which cannot be"
    elif written.durable_sequence > tail.sequence:
        reason = (
            f"says that all below message {written.durable_sequence} is durable, "
            f"and message {tail.sequence} is not sent yet"
        )
    if reason is not None:
        found.problems.append(Problem(path, TAIL_POSITION, None, reason))
        return
    found.written = written
    _look_at_latch(found, written)


def _can_be_durable(found: Inspection, meta: AllMeta, written: Written) -> bool:
    """Whether there can be a message at a mark that nothing else proves.

    Pages can be missing, so what counts is how many there were by the words beside the mark, which
    stand in the same sector.
    """
    begun = (
        number for number in reversed(found.numbers) if found.first_sequence(number) is not None
    )
    number = next(begun, found.head_page)
    first = found.first_sequence(number) or found.head_sequence or 0
    last = max(number, written.tail.page_number)
    return (
        written.durable_page <= last
        and written.durable_sequence <= first + (last + 1 - number) * meta.index_capacity
    )


def _look_at_latch(found: Inspection, written: Written) -> None:
    if written.failed_errno:
        path = found.folder.full(fmt.write_meta_name(found.prefix))
        reason = (
            f"a sync failed ({os.strerror(written.failed_errno)}): what was sent from here on "
            "may not be on stable storage"
        )
        sequence = written.durable_sequence
        found.problems.append(Problem(path, WriteMeta.FAILED_ERRNO, sequence, reason))
