"""Why a queue cannot be opened: what the judge refuses, as the error that names file and place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.page.header import REMEDY
from pagequeue.page.page import REASONS, missing_page

if TYPE_CHECKING:
    from pagequeue.judge.evidence import Evidence


class Refusal(NamedTuple):
    """What is missing or damaged that was guaranteed.

    Attributes:
        kind: one of the core's codes.
        page: number of the page.
        position: where its frames end.
        sequence: of the message there.
        below: all messages below it were on stable storage.
        stopped: one of the core's READ_ codes, for the bytes there.
    """

    kind: int
    page: int
    position: int
    sequence: int
    below: int
    stopped: int


def wrong_head(path: str, head: tuple[int, int], first: int) -> errors.CorruptMeta:
    """Return the error for a head whose page does not begin with its sequence."""
    number, sequence = head
    return errors.CorruptMeta(
        f"its head is message {sequence}, but reading begins in page {number} with {first}",
        path=path,
        position=ReadMeta.sequence_at(number),
        reason="head sequence",
        remedy="repair the queue, which recreates this file",
    )


def error_for(evidence: Evidence, refusal: Refusal) -> errors.PageQueueError:
    """Return the error for what the judge refused."""
    kind, number, sequence = refusal.kind, refusal.page, refusal.sequence
    path = evidence.path(number)
    head_path = evidence.folder.full(fmt.read_meta_name(evidence.prefix))
    if kind == _core.MISSING:
        return missing_page(path, number)
    if kind == _core.BAD_HEADER:
        return evidence.error_of(number)
    if kind == _core.BAD_HEAD:
        return wrong_head(head_path, evidence.promise.head, sequence)
    if kind == _core.NOT_BEGUN:
        # Only a page with messages was ever the first; taking it would hide those before it.
        return errors.CorruptMeta(
            f"its head is page {number}, which is only prepared, without messages",
            path=head_path,
            position=ReadMeta.HEAD_PAGE,
            reason="head page",
            remedy=REMEDY,
        )
    if kind == _core.BAD_FIRST:
        return errors.CorruptPage(
            f"does not begin with message {sequence}, with which the page before it ends",
            path=path,
            position=0,
            reason="wrong first sequence",
            remedy=REMEDY,
        )
    reason = REASONS[refusal.stopped]
    return errors.CorruptFrame(
        f"message {sequence} at position {refusal.position}: {reason}, though all below "
        f"{refusal.below} was on stable storage",
        path=path,
        position=refusal.position,
        sequence=sequence,
        reason=reason,
        remedy=REMEDY,
    )
