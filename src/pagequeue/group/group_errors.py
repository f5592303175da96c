"""What a group's handle raises for what the core could not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue.meta.all_and_read_meta import lost_meta

if TYPE_CHECKING:
    from pagequeue.meta.group_table import GroupTable

WORDS: Final[dict[int, tuple[type[errors.PageQueueError], str]]] = {
    _core.EVENT_SETTLED: (
        errors.UsageError,
        "this claim of message {value} was acknowledged or given back: once is enough",
    ),
    _core.EVENT_STALLED: (
        errors.LockTimeout,
        (
            "the group was locked by another process for {seconds:g} s: call again, "
            "and look for a stopped process that has it open"
        ),
    ),
    _core.EVENT_NO_LOCK: (
        errors.SystemLimit,
        "the group's lock cannot be taken (error {value}): see the system's log",
    ),
    _core.EVENT_FORKED: (
        errors.ForkedError,
        "this group belongs to the parent process: open the queue in the child",
    ),
    _core.EVENT_CLOSED: (errors.ClosedError, "this group is closed: open it again"),
}


def refusal(path: str, file: GroupTable, event: int, value: int) -> errors.PageQueueError:
    """Return the error for an event that nothing can be done about.

    Args:
        path: of the queue.
        file: of the group.
        event: one of the core's.
        value: that came with it.
    """
    if event == _core.EVENT_TIMEOUT:
        return _nothing(path, file, value)
    if event == _core.EVENT_LOST:
        return lost_meta(file.path, file.region.lost_at)
    if event == _core.EVENT_LEASE_LOST:
        return errors.LeaseLost(
            f"the claim of message {value} is not live any more: its lease ended or it was given "
            "to another; claim again, and extend claims that take long",
            path=path, sequence=value,
        )  # fmt: skip
    kind, text = WORDS[event]
    return kind(text.format(value=value, seconds=value / 1e9), path=path)


def _nothing(path: str, file: GroupTable, value: int) -> errors.NothingReceived:
    if file.region.load_half(file.OUTSTANDING) >= file.capacity:
        return errors.TooManyClaims(
            f"{file.capacity} messages are claimed or delayed, and there is no room for more: "
            "acknowledge some, or make the group with more capacity",
            path=file.path,
        )
    return errors.NothingReceived(
        f"nothing to claim within {value / 1e9:g} s: call again", path=path
    )
