"""Tasks whose deliveries fail: they wait, others do not, and there is a limit."""

from __future__ import annotations

import contextlib
import os
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import errors
from pagequeue.tasks import NewTask, TaskStore
from pagequeue.tasks.plan import GIVEN_BACK, LEASE_ENDED
from pagequeue.util.retry import BACKOFF, DELIVERIES_MAX, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support import Clock

    from pagequeue.tasks import TaskClaim

SECOND = 10**9
RULE = Retry(DELIVERIES_MAX, *BACKOFF)
LEASE = 5.0


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[TaskStore]:
    """Give a store with the defaults, whose clock the test sets, with a poison and three others."""
    with TaskStore(tmp_path / "s", clock=clock, page_bytes=1 << 16) as opened:
        names = ("poison", "one", "two", "three")
        opened.modify(insert=[NewTask("a", name) for name in names])
        yield opened


def later(clock: Clock, seconds: float) -> None:
    """Let time pass."""
    clock.now += int(seconds * SECOND)


def all_now(store: TaskStore, fail: Callable[[TaskClaim], object]) -> list[Any]:
    """Claim what can be claimed now, and finish all but the poison; return what was finished."""
    done = []
    while True:
        try:
            claim = store.claim("a", LEASE, timeout=0)
        except errors.NothingReceived:
            return done
        if claim.value == "poison":
            fail(claim)
        else:
            done.append(claim.value)
            claim.ack()


def test_task_that_always_fails_keeps_no_other_waiting(store: TaskStore, clock: Clock) -> None:
    """By default: it waits twice as long each time, and is dead after twenty deliveries."""
    assert all_now(store, lambda claim: claim.nack(reason="no")) == ["one", "two", "three"]
    waited = 0
    for deliveries in range(1, DELIVERIES_MAX):
        (task,) = store.tasks()
        assert (task.deliveries, task.status(clock.now)) == (deliveries, "waiting")
        delay = task.at - clock.now
        assert delay == RULE.delay_ns(task.id, deliveries) > 0
        store.insert("a", deliveries)
        assert all_now(store, lambda claim: claim.nack(reason="no")) == [deliveries]
        later(clock, delay / SECOND)
        assert all_now(store, lambda claim: claim.nack(reason="no")) == []
        waited += delay
    (task,) = store.tasks(status="dead")
    assert (task.deliveries, task.reason) == (DELIVERIES_MAX, "no")
    assert 3600 * SECOND < waited < 2 * 3600 * SECOND
    assert store.stats().queues["a"].dead == 1
    store.modify(change={task.ref: {"at": timedelta(0)}})
    assert store.claim("a", timeout=0).deliveries == 1


def test_task_that_kills_its_worker_ends_too(store: TaskStore, clock: Clock) -> None:
    """Nobody gives it back: the end of its lease does, and it waits from then on."""
    assert all_now(store, lambda _: None) == ["one", "two", "three"]
    for deliveries in range(1, DELIVERIES_MAX):
        (task,) = store.tasks()
        assert (task.deliveries, task.status(clock.now)) == (deliveries, "claimed")
        later(clock, LEASE)
        assert all_now(store, lambda _: None) == []
        (task,) = store.tasks()
        assert (task.status(clock.now), task.worker, task.reason) == ("waiting", None, LEASE_ENDED)
        assert task.at == clock.now + RULE.delay_ns(task.id, deliveries)
        later(clock, (task.at - clock.now) / SECOND)
        assert all_now(store, lambda _: None) == []
    later(clock, LEASE)
    assert all_now(store, lambda _: None) == []
    (task,) = store.tasks(status="dead")
    assert (task.deliveries, task.reason) == (DELIVERIES_MAX, LEASE_ENDED)


def test_wait_begins_when_the_lease_ends_not_when_that_is_noticed(
    store: TaskStore, clock: Clock
) -> None:
    """A worker that comes an hour later waits for nothing."""
    store.claim_many("a", 4, LEASE)
    later(clock, LEASE + BACKOFF[0])
    assert store.claim("a", timeout=0).deliveries == 2
    assert store.stats().totals["nacked"] == 0


def test_no_other_task_shares_the_fate_of_one_that_kills_its_worker(
    store: TaskStore, clock: Clock
) -> None:
    """All that died with it are claimed one by one: the others are done then."""
    assert len(store.claim_many("a", 4, LEASE)) == 4
    later(clock, LEASE + BACKOFF[0])
    store.modify(insert=[NewTask("a", "new", priority=1), NewTask("a", "late", priority=-1)])
    found = []
    for _ in range(5):
        (claim,) = store.claim_many("a", 10, LEASE, timeout=0)
        found.append(claim.value)
        if claim.value != "poison":
            claim.ack()
    assert found == ["new", "poison", "one", "two", "three"]
    for _ in range(DELIVERIES_MAX):
        later(clock, LEASE + BACKOFF[1])
        claims = store.claim_many("a", 10, LEASE, timeout=0)
        if claims[0].value == "late":
            break
        assert [claim.value for claim in claims] == ["poison"]
    assert [task.value for task in store.tasks(status="dead")] == ["poison"]
    assert store.tasks(status="claimed")[0].deliveries == 1


def test_rule_is_an_option(tmp_path: Path, clock: Clock) -> None:
    """Any number of deliveries, without waiting; or fewer, and longer."""
    with TaskStore(tmp_path, clock=clock, max_deliveries=None, backoff=None) as store:
        store.insert("a", 1)
        for number in range(100):
            claim = store.claim("a", LEASE, timeout=0)
            if number % 2:
                claim.nack()
            else:
                later(clock, LEASE)
        assert store.get(1).deliveries == 100  # type: ignore[union-attr]
    with TaskStore(tmp_path, clock=clock, max_deliveries=101, backoff=(60.0, 60.0)) as store:
        store.claim("a", timeout=0).nack()
        assert store.get(1).reason == GIVEN_BACK  # type: ignore[union-attr]
        store.insert("a", 2)
        store.claim("a", timeout=0).nack()
        wait = store.get(2).at - clock.now  # type: ignore[union-attr]
        assert 45 * SECOND <= wait <= 60 * SECOND
    for options in ({"max_deliveries": 0}, {"backoff": (2.0, 1.0)}, {"backoff": 1.0}):
        with pytest.raises((errors.InvalidOption, errors.InvalidType)):
            TaskStore(tmp_path, **options)  # type: ignore[arg-type]


def test_process_that_loads_a_snapshot_waits_as_one_that_replays(
    tmp_path: Path, store: TaskStore, clock: Clock
) -> None:
    """Who waits, and until when, is in the state."""
    claims = store.claim_many("a", 3, LEASE)
    claims[0].nack(reason="no")
    claims[1].nack(7.0)
    later(clock, LEASE)
    assert [claim.value for claim in store.claim_many("a", 9, timeout=0)] == ["three", "poison"]
    statuses = [task.status(clock.now) for task in store.tasks()]
    assert statuses == ["claimed", "waiting", "waiting", "claimed"]
    with TaskStore(tmp_path / "s", read_only=True, clock=clock) as other:
        assert other.tasks() == store.tasks()
        store.compact()
        with TaskStore(tmp_path / "s", read_only=True, clock=clock) as loaded:
            assert loaded.tasks() == other.tasks() == store.tasks()


def test_task_that_kills_every_process_leaves_the_others(tmp_path: Path) -> None:
    """As it is with real processes and clocks."""
    with TaskStore(tmp_path, page_bytes=1 << 16) as store:
        store.modify(insert=[NewTask("a", name) for name in ("poison", "one", "two")])
    codes: list[int] = []
    while 0 not in codes and len(codes) < 9:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with TaskStore(tmp_path, max_deliveries=3, backoff=(0.001, 0.001)) as mine:
                    while len(mine.tasks()) > len(mine.tasks(status="dead")):
                        with contextlib.suppress(errors.NothingReceived):
                            claim = mine.claim("a", 0.01, timeout=0.05)
                            if claim.value == "poison":
                                os._exit(9)
                            claim.ack()
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert codes == [9, 9, 9, 0]
    with TaskStore(tmp_path) as store:
        assert [(task.value, task.deliveries) for task in store.tasks(status="dead")] == [
            ("poison", 3)
        ]
