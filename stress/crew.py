"""The processes of a round: forked into slots, killed, stopped for a while, and started again.

The campaign's own process forks them and has no queue open. The campaign chooses the processes and
the times, and checks what must hold afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from stress import children
from stress.roles import PRODUCER, STOPPED_SECONDS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

DRAIN_SECONDS = 60.0

Slot = tuple[str, int]


class HasErrors(Protocol):
    """The shared state of a round's processes; here only the file for their errors."""

    errors: children.ErrorFile


Ground = TypeVar("Ground", bound=HasErrors)


class Crew(Generic[Ground]):
    """One process for each slot, and their killer.

    Attributes:
        slots: kind and place of each process.
        pids: of those that run.
        uids: of all producers that ever ran.
        stopped: the one that is stopped, and until when.
        counts: of kills; more are the campaign's.
        violations: what went wrong, one sentence each.
    """

    def __init__(
        self,
        ground: Ground,
        rng: random.Random,
        slots: Mapping[str, int],
        roles: Mapping[str, Callable[[Ground, int, int], None]],
    ) -> None:
        self.ground = ground
        self.rng = rng
        self.roles = roles
        self.slots: list[Slot] = [(kind, i) for kind, n in slots.items() for i in range(n)]
        self.uids: list[int] = []
        self.pids: dict[Slot, int] = {}
        self.stopped: tuple[Slot, float] | None = None
        self.counts = {"kills": 0, "kills of all": 0}
        self.violations: list[str] = []

    @property
    def cases(self) -> int:
        """Processes that were killed."""
        return self.counts["kills"]

    def start(self, slot: Slot) -> None:
        """Start a process in a slot."""
        kind, place = slot
        uid = self.rng.getrandbits(63)
        if kind == PRODUCER:
            self.uids.append(uid)
        role = self.roles[kind]
        self.pids[slot] = children.fork(
            lambda: role(self.ground, place, uid), self.ground.errors, f"{kind} {place} ({uid})"
        )

    def kill(self, slots: Sequence[Slot]) -> None:
        """Kill the processes of slots, one right after the other; they must have been alive."""
        pids = [self.pids.pop(slot) for slot in slots]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for slot, pid in zip(slots, pids, strict=True):
            if not children.was_killed(os.waitpid(pid, 0)[1]):
                self.violations.append(f"{slot[0]} {slot[1]} had exited unasked")
        self.counts["kills"] += len(slots)
        if self.stopped is not None and self.stopped[0] in slots:
            self.stopped = None

    def start_again(self, slots: Sequence[Slot]) -> None:
        """Kill the processes of slots, and start others in their places."""
        self.kill(slots)
        for slot in slots:
            self.start(slot)

    def kill_all(self) -> None:
        """Kill the processes of all slots, in any order."""
        self.kill(self.rng.sample(self.slots, len(self.slots)))
        self.counts["kills of all"] += 1

    def stop(self, slot: Slot) -> None:
        """Stop a process for a while."""
        os.kill(self.pids[slot], signal.SIGSTOP)
        self.stopped = slot, time.monotonic() + STOPPED_SECONDS

    def go_on(self, now: float) -> None:
        """Let a stopped process continue when its time has come."""
        if self.stopped is not None and now >= self.stopped[1]:
            os.kill(self.pids[self.stopped[0]], signal.SIGCONT)
            self.stopped = None

    def leave(self, slot: Slot) -> None:
        """Wait for a process to exit without being killed; not if something is wrong already.

        What it waits for may never come then, and each of the others would be waited for as long.
        """
        if self.violations or self.ground.errors.said():
            children.kill(self.pids.pop(slot))
            return
        if children.ended(self.pids[slot], DRAIN_SECONDS) is None:
            self.violations.append(f"{slot[0]} {slot[1]} hangs for {DRAIN_SECONDS:g} s")
            children.kill(self.pids[slot])
        del self.pids[slot]
