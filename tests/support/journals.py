"""Journals for tests: machines, and what other processes do with a journal."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warm

from pagequeue.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = str(Path(__file__).resolve().parent)
ROOT = str(Path(__file__).resolve().parents[2])
PAGE = 1 << 16
COUNT_SECONDS_MAX = 100.0


class Accounts:
    """Balances that no entry may make negative; a transfer names both accounts.

    An entry is `[account, amount]` or `[from, to, amount]`; `"poison"` is refused half-way.
    """

    version = 1

    def initial(self) -> dict[str, int]:
        """Return no accounts."""
        return {}

    def apply(self, state: dict[str, int], entry: Any, timestamp_ns: int) -> None:  # noqa: ANN401 - JSON
        """Change the balances in place."""
        assert timestamp_ns > 0
        if entry == "poison":
            state["half"] = 1
            raise ValueError("poisoned")
        *source, target, amount = entry
        for name in source:
            state[name] -= amount
            assert state[name] >= 0
        state[target] = state.get(target, 0) + amount

    def dump(self, state: dict[str, int]) -> Iterable[bytes]:
        """Return a chunk for each account."""
        for name in sorted(state):
            yield json.dumps([name, state[name]]).encode()

    def load(self, chunks: Iterable[bytes], version: int) -> dict[str, int]:
        """Return the balances."""
        assert version <= self.version
        return dict(json.loads(chunk) for chunk in chunks)


class Log:
    """The entries themselves, with their times: a state that tells how it came to be."""

    version = 1

    def initial(self) -> list[Any]:
        """Return no entries."""
        return []

    def apply(self, state: list[Any], entry: Any, timestamp_ns: int) -> list[Any]:  # noqa: ANN401 - JSON
        """Return another list."""
        return [*state, [entry, timestamp_ns]]

    def dump(self, state: list[Any]) -> Iterable[bytes]:
        """Return a chunk for each entry."""
        return [json.dumps(one).encode() for one in state]

    def load(self, chunks: Iterable[bytes], version: int) -> list[Any]:
        """Return the entries."""
        assert version <= self.version
        return [json.loads(chunk) for chunk in chunks]


class Counts:
    """How often each process counted: its entries are names, and so are the keys."""

    version = 1

    def initial(self) -> dict[str, int]:
        """Return no counts."""
        return {}

    def apply(self, state: dict[str, int], entry: list[Any], timestamp_ns: int) -> None:
        """Count one; the number must be the next."""
        assert timestamp_ns > 0
        name, number = entry
        assert state.get(name, 0) == number
        state[name] = number + 1

    def dump(self, state: dict[str, int]) -> Iterable[bytes]:
        """Return one chunk."""
        yield json.dumps(state, sort_keys=True).encode()

    def load(self, chunks: Iterable[bytes], version: int) -> dict[str, int]:
        """Return the counts."""
        assert version <= self.version
        state: dict[str, int] = json.loads(b"".join(chunks))
        return state


def begin(name: str, *args: object) -> warm.Popen:
    """Run a function of this module in a process of its own; the arguments travel as JSON."""
    code = (
        f"import json, sys; sys.path[:0] = {[HERE, ROOT]!r}; import journals; "
        f"journals.{name}(*json.loads(sys.argv[1]))"
    )
    command = [sys.executable, "-W", "error", "-c", code, json.dumps(args, default=str)]
    return warm.Popen(command, stdout=warm.PIPE, stderr=warm.PIPE, text=True)


def count(directory: str, name: str, last: str, goal: int, pause: float) -> None:
    """Count until the process `last` has counted so often; `decide` takes `pause` seconds.

    Those that take no time compact now and then. Prints how often it counted.
    """
    done = 0
    with Journal(directory, Counts(), create=False) as journal:

        def decide(state: dict[str, int]) -> list[object]:
            time.sleep(pause)
            return [name, state.get(name, 0)]

        deadline = time.monotonic() + COUNT_SECONDS_MAX
        while journal.read(dict).get(last, 0) < goal and time.monotonic() < deadline:
            journal.update(decide)
            done += 1
            if not pause and done % 50 == 0:
                journal.compact()
        print(done, flush=True)


def count_for_ever(directory: str, name: str, acked: str, compact_every: int) -> None:
    """Count until killed; a file has how often it surely did."""
    with (
        Journal(directory, Counts(), create=False, snapshots=1) as journal,
        open(acked, "r+b", buffering=0) as file,
    ):
        print("ready", flush=True)
        done = 0
        while True:
            assert journal.update(lambda state: [name, state.get(name, 0)]) is not None
            done += 1
            os.pwrite(file.fileno(), done.to_bytes(8, "little"), 0)
            if done % compact_every == 0:
                journal.compact()
