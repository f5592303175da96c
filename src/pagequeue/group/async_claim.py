"""Claiming from event loops.

New and returned messages wake waiters through the notifier. Ended leases and delays do not: the
group computes when the next one is due. Dead owners are found by polling, as often as a blocking
claim polls, and only while messages are claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from pagequeue import errors
from pagequeue.wait.coroutine import check_timeout, first

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.store.store import Store
    from pagequeue.wait.coroutine import Turns

Found = TypeVar("Found")
POLL_SECONDS: Final = 0.05
"""Interval of the checks for dead owners; as in `python/group_claiming.c`."""
FULL_SECONDS: Final = 0.002
"""Interval while the group is at its capacity: an acknowledgement does not wake waiters."""
SOON_SECONDS: Final = 0.001
"""Shortest interval between two attempts, also with a clock that does not advance."""


async def claimed(
    store: Store,
    turns: Turns,
    claim: Callable[[], Found],
    maybe_ready: Callable[[], bool],
    next_due: Callable[[], float | None],
    timeout: float | None,
) -> Found:
    """Claim as soon as a message is available, with a call that never blocks.

    Args:
        store: of the queue.
        turns: of the group.
        claim: claims, or raises NothingReceived.
        maybe_ready: whether a claim may succeed, called from the notifier's thread.
        next_due: seconds until a claim may succeed without a publication; None: never.
        timeout: seconds to wait; None waits for ever, 0 never waits.

    Raises:
        NothingReceived: no message could be claimed in time. TooManyClaims: because of that.
    """
    last: errors.NothingReceived | None = None

    def attempt() -> Found | None:
        nonlocal last
        try:
            return claim()
        except errors.NothingReceived as error:
            last = error
            return None

    def due() -> float | None:
        return FULL_SECONDS if isinstance(last, errors.TooManyClaims) else next_due()

    timeout = check_timeout(timeout)
    await turns.take()
    found = attempt()
    if found is not None:
        return found
    found = await first(
        store.notifier, attempt, maybe_ready=maybe_ready, next_due=due, timeout=timeout
    )
    turns.rest()
    if found is not None:
        return found
    if isinstance(last, errors.TooManyClaims):
        raise last
    raise errors.NothingReceived(
        f"no message to claim within {timeout:g} s",
        path=store.folder.path,
        remedy="call again",
    )


def seconds_until(wake_in: float | None, outstanding: int) -> float | None:
    """Return after how many seconds to claim again without a publication; None: never.

    Args:
        wake_in: seconds until the next lease or delay ends; None: there is none.
        outstanding: messages that are claimed, or await redelivery.
    """
    if outstanding == 0:
        return wake_in
    return max(SOON_SECONDS, POLL_SECONDS if wake_in is None else min(wake_in, POLL_SECONDS))
