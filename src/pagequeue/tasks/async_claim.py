"""Claiming for an event loop: a thread claims, and no claim is left over if nobody waits for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pagequeue.wait.off_loop import in_thread

if TYPE_CHECKING:
    from pagequeue.tasks.claim import TaskClaim
    from pagequeue.tasks.plan import Claims, Wanted
    from pagequeue.tasks.store import TaskStore


class ThreadedClaim:
    """One attempt to claim, in a thread.

    The coroutine can be cancelled while the thread claims, and even after that before it runs
    again. The lock decides which of the two is later; that one gives the claims back.

    Args:
        store: to claim from.
        wanted: what to claim.
    """

    def __init__(self, store: TaskStore, wanted: Wanted) -> None:
        self._store = store
        self._wanted = wanted
        self._lock = threading.Lock()
        self._claims: list[TaskClaim] = []
        self._is_abandoned = False

    async def run(self) -> tuple[Claims, int, list[TaskClaim]]:
        """Return what was found, the sequence of the state that it was found in, and the claims."""
        try:
            return await in_thread(self._attempt)
        except BaseException:
            with self._lock:
                self._is_abandoned = True
                claims, self._claims = self._claims, []
            if claims:  # in a thread again: this is the event loop's
                journal = self._store.journal
                jobs = journal._opened.store.jobs  # noqa: SLF001
                jobs.run(object(), lambda _: self._store._undo(claims))  # noqa: SLF001
            raise

    def _attempt(self) -> tuple[Claims, int, list[TaskClaim]]:
        found, sequence, claims = self._store._claim_some(self._wanted)  # noqa: SLF001
        with self._lock:
            if not self._is_abandoned:
                self._claims = claims
                return found, sequence, claims
        self._store._undo(claims)  # noqa: SLF001
        return found, sequence, []
