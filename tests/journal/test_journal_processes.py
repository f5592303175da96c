"""Processes share a journal: none starves, none disturbs another by dying, all have one state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from journals import COUNT_SECONDS_MAX, PAGE, Counts, begin, count, count_for_ever
from support import SOON, until

from pagequeue.journal import Journal
from pagequeue.journal import turn as turns
from pagequeue.journal.turn import TURN_NS_MAX
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    import random
    import subprocess
    from pathlib import Path

GOAL = 20
WAIT_SECONDS = 0.05


def counted(processes: list[subprocess.Popen[str]]) -> list[int]:
    """Wait for processes that count; return how often each did."""
    found = []
    for process in processes:
        out, err = process.communicate(timeout=2 * COUNT_SECONDS_MAX)
        assert process.returncode == 0, err
        found.append(int(out))
    return found


def test_no_process_starves_though_its_decide_is_slow(tmp_path: Path) -> None:
    """Three decide at once, one takes 20 ms, in which each of the others could append hundreds."""
    Journal(tmp_path, Counts(), page_bytes=PAGE).close()
    names = [f"fast{i}" for i in range(3)]
    with Journal(tmp_path, Counts(), read_only=True) as journal:
        fast = [begin(count.__name__, tmp_path, name, "slow", GOAL, 0) for name in names]
        until(lambda: all(name in journal.read(dict) for name in names))
        slow = begin(count.__name__, tmp_path, "slow", "slow", GOAL, 0.02)
        until(lambda: "slow" in journal.read(dict))
        before = journal.read(dict)
        done, *others = counted([slow, *fast])
        assert done == GOAL
        more = [number - before[name] for number, name in zip(others, names, strict=True)]
        assert min(more) > 3 * GOAL  # they are not held up all the time
        assert journal.read(dict) == {"slow": done, **dict(zip(names, others, strict=True))}
        assert journal.verify().ok


def test_process_that_dies_with_the_turn_delays_others_only_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel releases the lock, and the time in the file, of any value, expires soon."""
    with Journal(tmp_path, Counts(), page_bytes=PAGE) as journal:
        turn = journal._turn
        assert turn is not None
        for value in (2**64 - 1, time.monotonic_ns() + TURN_NS_MAX // 2):
            turn._region.store(0, value)
            begun = time.monotonic()
            journal.update(lambda state: ["a", state.get("a", 0)])
            assert time.monotonic() - begun < SOON
        # However long that is, no update waits beyond its own timeout, and then it succeeds.
        monkeypatch.setattr(turns, "TURN_NS_MAX", 1000 * TURN_NS_MAX)
        turn._region.store(0, time.monotonic_ns() + 500 * TURN_NS_MAX)
        begun = time.monotonic()
        assert journal.update(lambda state: ["a", state["a"]], timeout=WAIT_SECONDS) is not None
        assert WAIT_SECONDS <= time.monotonic() - begun < SOON


@pytest.mark.parametrize("cut", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_processes_killed_while_counting_and_compacting_lose_no_entry(
    tmp_path: Path, chance: random.Random, *, cut: bool
) -> None:
    """I21, I22: what an update returned for is counted once; the state is one, from every start."""
    Journal(tmp_path / "j", Counts(), page_bytes=4096).close()
    surely: dict[str, int] = {}
    with Journal(tmp_path / "j", Counts(), read_only=True) as follower:
        for round_ in range(5):
            victims = []
            for i in range(2):
                name = f"v{round_}.{i}"
                acked = tmp_path / name
                acked.write_bytes(bytes(8))
                every = chance.choice([3, 20])
                victim = begin(count_for_ever.__name__, tmp_path / "j", name, acked, every)
                victims.append((name, acked, victim))
            for _, _, victim in victims:
                assert victim.stdout is not None
                assert victim.stdout.readline() == "ready\n", victim.communicate()[1]
            time.sleep(chance.random() * 0.3)
            for name, acked, victim in victims:
                victim.kill()
                victim.communicate()
                surely[name] = int.from_bytes(acked.read_bytes(), "little")
            follower.catch_up()
            if cut and not round_ % 2:
                # Published entries are in the files: a cut that loses no byte, and all is scanned.
                follower.close()
                pretend_power_cut(tmp_path / "j")
                for path in (tmp_path / "j" / "queue-journal").glob("snapshot-*"):
                    pretend_power_cut(path)
                follower = Journal(tmp_path / "j", Counts(), read_only=True)  # noqa: PLW2901
            with Journal(tmp_path / "j", Counts(), compact_on_open=False) as journal:
                for name, number in surely.items():
                    assert journal.state.get(name, 0) in {number, number + 1}
                assert journal.read(dict) == follower.read(dict)
                assert journal.verify().ok
                surely = {name: journal.state.get(name, 0) for name in surely}
    with Journal(tmp_path / "j", Counts()) as journal:
        assert journal.compact().sequence == sum(surely.values())


def test_followers_keep_up_with_compaction(tmp_path: Path) -> None:
    """While a process appends and compacts all the time."""
    Journal(tmp_path / "j", Counts(), page_bytes=4096, snapshots=1).close()
    acked = tmp_path / "acked"
    acked.write_bytes(bytes(8))
    writer = begin(count_for_ever.__name__, tmp_path / "j", "w", acked, 7)
    seen: list[int] = []
    with Journal(tmp_path / "j", Counts(), read_only=True) as follower:

        def follow() -> bool:
            seen.append(follower.read(lambda state: state.get("w", 0)))
            return len(set(seen)) > 10 and seen[-1] > 150

        try:
            until(follow)
        finally:
            writer.kill()
            writer.communicate()
        surely = int.from_bytes(acked.read_bytes(), "little")
        assert follower.read(dict)["w"] in {surely, surely + 1}
        with Journal(tmp_path / "j", Counts(), create=False) as journal:
            assert journal.read(dict) == follower.read(dict)
    assert seen == sorted(seen)
