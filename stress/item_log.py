"""What processes that put and get objects write down, and the proof from it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

PUTTING, PUT, GOT, ENDING, DONE, DYING = range(6)
VIOLATIONS_MAX = 20


class Did(NamedTuple):
    """What a process did with an object, or was about to do."""

    kind: int
    process: int
    item: int = 0


@dataclass
class Judge:
    """Reads a log in its order and reports every violation.

    Attributes:
        joinable: whether what was got must be done, or is got for good.
        violations: one sentence for each.
        dead: how many processes were killed.
    """

    joinable: bool
    violations: list[str] = field(default_factory=list)
    dead: int = 0
    _gone: set[int] = field(default_factory=set)
    _holders: dict[int, int] = field(default_factory=dict)  # item to the last that got it
    _ending: set[int] = field(default_factory=set)  # items whose task_done was begun
    _done: set[int] = field(default_factory=set)
    _got: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def run(self, records: Sequence[Did]) -> None:
        """Judge all of it; the queue was empty in the end."""
        put: set[int] = set()
        for kind, process, item in records:
            if kind == PUT:
                put.add(item)
            elif kind == GOT:
                self._judge_got(process, item)
            elif kind == ENDING:
                self._ending.add(item)
            elif kind == DONE:
                self._done.add(item)
            elif kind == DYING:
                self._gone.add(process)
                self.dead += 1
        tried = {item for kind, _, item in records if kind == PUTTING}
        self._say(set(self._got) - tried, "got, and never put")
        if self.joinable:
            self._say(put - self._ending, "put, and no worker ever finished it")
        elif len(put - set(self._got)) > self.dead:
            lost = len(put - set(self._got))
            self.violations.append(f"{lost} objects are gone, and {self.dead} processes only")

    def _judge_got(self, process: int, item: int) -> None:
        self._got[item] += 1
        if not self.joinable:
            if self._got[item] > 1:
                self.violations.append(f"object {item} was got twice")
            return
        holder = self._holders.get(item)
        if item in self._done:
            self.violations.append(f"object {item} was got again after its task_done")
        elif holder is not None and holder not in self._gone:
            self.violations.append(f"object {item} was got by {process} while {holder} had it")
        self._holders[item] = process

    def _say(self, items: set[int], what: str) -> None:
        self.violations += [f"object {item}: {what}" for item in sorted(items)[:VIOLATIONS_MAX]]
