"""A scene of the fault matrix in which a group's messages are delivered again.

A call that fails is no fault of the message: it is given back, and the next claim can have it at
once (I15). The store has mapped none of the pages, because the queue has just been opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stress.fault_copies import LARGE_NUMBER
from stress.steps import LARGE

if TYPE_CHECKING:
    from pagequeue import Claim, Group
    from stress.faults import Stage

GROUP: Final = "workers"
MANY: Final = 64
TRIES_MORE: Final = 3
"""Claims that may fail before the scene gives up: each time that many more."""


def claiming_again(stage: Stage) -> None:
    """Claim all that a handle gave back when it was closed, a large message too; acknowledge it."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    stage.open()
    stage.send_other(LARGE, 1, first=LARGE_NUMBER)
    stage.close()
    with Queue(stage.path) as queue, queue.group(GROUP, max_deliveries=None, backoff=None) as group:
        while group.ready:
            group.claim_many(MANY, 0)
    stage.open()
    stage.begin()
    queue = stage.queue  # type: ignore[assignment]
    found = stage.attempt(
        "opening a group", lambda: queue.group(GROUP, max_deliveries=None, backoff=None)
    )
    count = queue.tail_sequence
    done: set[int] = set()
    unsure: set[int] = set()
    if found is not None:
        for _ in range(count + TRIES_MORE):
            _work(stage, found, done, unsure)
    stage.when_calm(lambda: _rest(stage, found, range(count), done, unsure))


def _work(stage: Stage, group: Group, done: set[int], unsure: set[int]) -> None:
    """Claim one message, check it, and acknowledge it."""
    claim = stage.attempt("claiming", lambda: _claimed(group))
    if claim is None:
        return
    sequence = claim.message.sequence
    if stage.expected[sequence : sequence + 1] not in ([], [claim.message.payload]):
        stage.wrong(f"claiming gives another message than was sent as {sequence}")
    stage.attempt("acknowledging", claim.ack)
    (done if stage.error is None else unsure).add(sequence)


def _claimed(group: Group) -> Claim | None:
    """Return a claim, or None if there is no message to claim now."""
    from pagequeue import NothingReceived  # noqa: PLC0415  the core is chosen by now

    try:
        return group.claim(timeout=0)
    except NothingReceived:
        return None


def _rest(
    stage: Stage, group: Group | None, all_of_it: range, done: set[int], unsure: set[int]
) -> None:
    """The fault is gone: all that was not acknowledged can be claimed at once, the rest never."""
    queue = stage.queue
    assert queue is not None
    if group is not None:
        group.close()  # gives back what an interrupted call had claimed
    with queue.group(GROUP, max_deliveries=None, backoff=None) as again:
        found = set()
        while (claim := _claimed(again)) is not None:
            found.add(claim.message.sequence)
    if found & done:
        stage.wrong(f"delivered again though acknowledged: {sorted(found & done)}")
    missing = set(all_of_it) - found - done - unsure
    if missing:
        stage.wrong(f"not delivered again though the fault is gone: {sorted(missing)}")
