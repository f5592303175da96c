"""Task stores in event loops: claims wait in the loop; a cancelled one leaves nothing claimed."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from loops import until, waiting

from pagequeue import errors
from pagequeue.tasks import Modified, NewTask, TaskStore
from pagequeue.tasks.async_claim import ThreadedClaim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pagequeue.tasks import TaskClaim

LEASE = 1_000.0
"""Longer than any test: a claim that is left over would not come back."""
WAIT = 30.0
"""Seconds that nothing here takes: what does not happen until then does not happen."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    """Open a store."""
    with TaskStore(tmp_path / "s", worker="ann") as store:
        yield store


def test_coroutines_do_what_threads_do(store: TaskStore) -> None:
    """Each call has an async form with the same results and the same errors."""

    async def run() -> None:
        task = await store.insert_async("a", {"n": 1}, priority=3, key="k")
        assert (task.id, task.priority, task.key) == (1, 3, "k")
        with pytest.raises(errors.Stale, match="key 'k' is in use"):
            await store.insert_async("a", 2, key="k")
        modified = await store.modify_async(
            insert=[NewTask("b", 2)], change={task.ref: {"value": {"n": 5}}}
        )
        assert (modified.inserted[0].id, modified.changed[0].value) == (2, {"n": 5})
        claim = await store.claim_async(["a", "b"], LEASE, 0)
        assert (claim.id, claim.value, claim.deliveries) == (1, {"n": 5}, 1)
        await claim.extend_async(2 * LEASE)
        await claim.save_async({"n": 6})
        assert claim.task == store.get(1)
        await claim.nack_async(0.0, reason="again")
        with pytest.raises(errors.UsageError, match="already acknowledged"):
            await claim.ack_async()
        claims = await store.claim_many_async(["a", "b"], 5, LEASE)
        assert [(one.id, one.deliveries, one.task.reason) for one in claims] == [
            (1, 2, "again"),
            (2, 1, None),
        ]
        done = await claims[0].ack_async(insert=[NewTask("c", 3)])
        assert done.inserted[0].queue == "c"
        await store.finish_async([claims[1].task.ref])
        with pytest.raises(errors.Stale, match="not in the store any more"):
            await claims[1].ack_async()
        assert [task.id for task in store] == [3]
        assert await store.tasks_async("c", status="ready") == [await store.get_async(3)]
        assert await store.tasks_async(moment=timedelta(days=1)) == []
        assert await store.stats_async() == store.stats()
        assert await store.flush_async() == store.flush() == store.journal.sequence
        assert (await store.compact_async()).sequence == store.journal.sequence

    asyncio.run(run())


def test_ack_of_nothing_else_makes_no_transaction(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either form the one that finishes a single task does, which takes a third of the time."""

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(store, "_transaction", refuse)

    async def run() -> None:
        for _ in range(2):
            store.insert("a", 1)
        assert store.claim("a").ack() == Modified()
        assert await (await store.claim_async("a")).ack_async() == Modified()

    asyncio.run(run())
    assert store.stats().totals["done"] == 2


def test_claim_waits_without_polling(store: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps until an entry is appended, and the loop runs meanwhile."""
    attempts: list[object] = []
    genuine = ThreadedClaim.run

    async def counted(self: ThreadedClaim) -> Any:  # noqa: ANN401 - what `run` returns
        attempts.append(self)
        return await genuine(self)

    monkeypatch.setattr(ThreadedClaim, "run", counted)

    async def run() -> None:
        claiming = asyncio.create_task(store.claim_async("a", LEASE, WAIT))
        await until(lambda: waiting(store.journal.queue) == 1)
        await store.insert_async("b", 0)  # not what it waits for
        await store.insert_async("a", 1)
        claim = await claiming
        assert claim.value == 1
        assert len(attempts) <= 4  # the first, one for each entry, one for a stop of the machine
        await claim.ack_async()

    asyncio.run(run())


def test_claim_of_a_scheduled_task_wakes_when_it_is_due(store: TaskStore) -> None:
    """Nothing is appended then, so the claim must know the time."""

    async def run() -> None:
        await store.insert_async("a", 1, at=timedelta(seconds=0.2))
        claim = await store.claim_async("a", LEASE, WAIT)
        assert claim.value == 1

    asyncio.run(run())


def test_claim_that_finds_nothing_in_time_says_so(store: TaskStore) -> None:
    """As the blocking one."""

    async def run() -> None:
        for timeout in (0, 0.01):
            with pytest.raises(errors.NothingReceived, match="no task to claim in 'a', 'b'"):
                await store.claim_async(["a", "b"], timeout=timeout)
        with pytest.raises(errors.InvalidOption, match="limit_count"):
            await store.claim_many_async("a", 0)

    asyncio.run(run())


def test_claim_cancelled_while_the_thread_claims_is_given_back(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread finds that nobody waits."""
    genuine = store._attempt
    begun, go_on = threading.Event(), threading.Event()

    def slow(wanted: Any) -> Any:  # noqa: ANN401 - what the store takes and returns
        monkeypatch.setattr(store, "_attempt", genuine)
        begun.set()
        assert go_on.wait(WAIT)
        return genuine(wanted)

    async def run() -> None:
        await store.insert_async("a", 1)
        monkeypatch.setattr(store, "_attempt", slow)
        waiting = asyncio.create_task(store.claim_async("a", LEASE))
        assert await asyncio.to_thread(begun.wait, WAIT)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        # Appended to after each of the two steps, so this sees the second.
        assert store.journal.wait(WAIT, after=3)
        claim = store.claim("a", LEASE, WAIT)
        assert claim.deliveries == 1  # nobody got the other one

    asyncio.run(run())
    assert (store.stats().totals["nacked"], store.stats().totals["claimed"]) == (0, 1)


def test_claim_cancelled_before_the_coroutine_has_it_is_given_back(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was done, and the loop learns of the cancellation first."""
    tasks: list[asyncio.Task[TaskClaim]] = []
    genuine = ThreadedClaim._attempt

    def cancelling(self: ThreadedClaim) -> Any:  # noqa: ANN401 - what it returns
        found = genuine(self)
        if tasks:
            tasks[0].get_loop().call_soon_threadsafe(tasks.pop().cancel)
        return found

    monkeypatch.setattr(ThreadedClaim, "_attempt", cancelling)

    async def run() -> None:
        await store.insert_async("a", 1)
        waiting = asyncio.create_task(store.claim_async("a", LEASE))
        tasks.append(waiting)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await store.claim_async("a", LEASE, WAIT)).deliveries == 1

    asyncio.run(run())
    assert (store.stats().totals["nacked"], store.stats().totals["claimed"]) == (0, 1)
