"""Claiming from event loops.

New and returned messages wake waiters through the notifier. Ended leases and delays do not: the
group computes when the next one is due. Dead owners are found by polling, as often as a blocking
claim polls, and only while messages are claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeVar

from pagequeue import errors
from pagequeue.wait.coroutine import TakesTurns, check_timeout, first

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue._core import Claim
    from pagequeue.store.store import Store

Found = TypeVar("Found")
POLL_SECONDS: Final = 0.05
"""Interval of the checks for dead owners; as in `python/group_claiming.c`."""
FULL_SECONDS: Final = 0.002
"""Interval while the group is at its capacity: an acknowledgement does not wake waiters."""
SOON_SECONDS: Final = 0.001
"""Shortest interval between two attempts, also with a clock that does not advance."""


class AwaitedClaims(TakesTurns):
    """The part of `Group` that belongs to asyncio."""

    __slots__ = ()

    if TYPE_CHECKING:
        _store: Store

        @property
        def _closed(self) -> bool: ...
        @property
        def outstanding(self) -> int:
            """Messages that are claimed, or await redelivery."""

        def _wake_in(self) -> float | None: ...
        def _next(self) -> tuple[int, int, int]: ...
        def claim(self, timeout: float | None = None) -> Claim:
            """Claim one message."""

        def claim_many(self, limit_count: int, timeout: float | None = None) -> list[Claim]:
            """Claim several."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim:
        return await self.claim_async()

    async def claim_async(self, timeout: float | None = None) -> Claim:
        """Claim as `claim` does, and let the event loop run meanwhile.

        `async for claim in group` does this repeatedly. Any number of coroutines may claim from one
        group. A cancelled call has claimed no message.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            As for `claim`.

        Example:
            >>> claim = await group.claim_async(timeout=1.0)
            >>> claim.payload
            b'a'
        """
        return await self._claimed(lambda: self.claim(0), timeout)  # I7: no waiter misses a message

    async def claim_many_async(self, limit_count: int, timeout: float | None = None) -> list[Claim]:
        """Claim as `claim_many` does, and let the event loop run meanwhile.

        Args:
            limit_count: most to claim, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Raises:
            As for `claim_many`.

        Example:
            >>> [claim.payload for claim in await group.claim_many_async(2)]
            [b'a', b'b']
        """
        return await self._claimed(lambda: self.claim_many(limit_count, 0), timeout)

    async def _claimed(self, claim: Callable[[], Found], timeout: float | None) -> Found:
        """Claim as soon as a message is available, with a call that never blocks."""
        last: errors.NothingReceived | None = None

        def attempt() -> Found | None:
            nonlocal last
            try:
                return claim()
            except errors.NothingReceived as error:
                last = error
                return None

        def next_due() -> float | None:
            if isinstance(last, errors.TooManyClaims):
                return FULL_SECONDS
            wake_in = self._wake_in()
            if self.outstanding == 0:
                return wake_in
            return max(
                SOON_SECONDS, POLL_SECONDS if wake_in is None else min(wake_in, POLL_SECONDS)
            )

        timeout = check_timeout(timeout)
        await self._take_turns()
        found = attempt()
        if found is not None:
            return found
        found = await first(
            self._store.notifier,
            attempt,
            maybe_ready=self._is_near,
            next_due=next_due,
            timeout=timeout,
        )
        self._rest()
        if found is not None:
            return found
        if isinstance(last, errors.TooManyClaims):
            raise last
        raise errors.NothingReceived(
            f"no message to claim within {timeout:g} s",
            path=self._store.folder.path,
            remedy="call again",
        )

    def _is_near(self) -> bool:
        """Whether a claim may succeed; called by the notifier's thread."""
        return self._closed or self.outstanding > 0 or self._has_new()

    def _has_new(self) -> bool:
        """Whether a message was published and not claimed yet."""
        return self._next()[0] < self._store.tail.sequence
