"""Claiming from event loops: a group's work comes from new messages, and from old ones in time.

New messages, and those that are given back, ring the bell. That a lease ends or a delay is over
rings nothing: the group knows when the next of these is. That an owner died shows only when
somebody looks: as often as those do who wait blocking, and only while anything is claimed.
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
LOOK_SECONDS: Final = 0.05
"""Owners of claims are looked at so often; as in `python/group_claiming.c`."""
FULL_SECONDS: Final = 0.002
"""The same while there is no room for a claim: who acknowledges wakes nobody."""
SOON_SECONDS: Final = 0.001
"""A claim that has to wait looks no more often, also by a clock that stands still."""


class AwaitedClaims(TakesTurns):
    """The part of `Group` that belongs to asyncio."""

    __slots__ = ()

    if TYPE_CHECKING:
        _store: Store

        @property
        def _closed(self) -> bool: ...
        @property
        def outstanding(self) -> int:
            """Messages that are claimed, or wait to come again."""

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

        `async for claim in group` does the same again and again. Any number of coroutines may
        claim from one group. Cancelled: nothing was claimed.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            As for `claim`.

        Source: FORMAT.md, "Groups"; keeps I7.
        """
        return await self._claimed(lambda: self.claim(0), timeout)

    async def claim_many_async(self, limit_count: int, timeout: float | None = None) -> list[Claim]:
        """Claim as `claim_many` does, and let the event loop run meanwhile.

        Args:
            limit_count: most to claim, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Raises:
            As for `claim_many`.
        """
        return await self._claimed(lambda: self.claim_many(limit_count, 0), timeout)

    async def _claimed(self, claim: Callable[[], Found], timeout: float | None) -> Found:
        """Claim when there is something, by a call that never waits."""
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
                SOON_SECONDS, LOOK_SECONDS if wake_in is None else min(wake_in, LOOK_SECONDS)
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
            f"nothing to claim within {timeout:g} s: call again", path=self._store.folder.path
        )

    def _is_near(self) -> bool:
        """Whether something may be claimed, seen from the notifier's thread."""
        return self._closed or self.outstanding > 0 or self._has_new()

    def _has_new(self) -> bool:
        """Whether a message was published that nobody has claimed yet."""
        return self._next()[0] < self._store.tail.sequence
