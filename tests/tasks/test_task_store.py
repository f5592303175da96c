"""Task stores: what each call does, alone and while others do theirs."""

from __future__ import annotations

import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import warm
from support import LONG, until, until_asleep

from pagequeue import Conflict, Queue, errors
from pagequeue.tasks import NewTask, TaskStore, state
from pagequeue.tasks.machine import BOOT
from pagequeue.util.retry import BACKOFF
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 1 << 16


class Clock:
    """A clock that does not advance until it is set."""

    def __init__(self) -> None:
        self.now = 1_000 * NS_PER_S

    def __call__(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * NS_PER_S)


@pytest.fixture
def clock() -> Clock:
    """A clock of the test's own."""
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Callable[..., TaskStore]:
    """Opens the store of the test once more, with that clock."""

    def open_it(**options: Any) -> TaskStore:  # noqa: ANN401 - of TaskStore
        options = {"clock": clock, "page_bytes": PAGE} | options
        return TaskStore(tmp_path / "store", **options)

    return open_it


def test_task_is_inserted_claimed_and_finished(opened: Callable[..., TaskStore]) -> None:
    """The whole life of a task, with its versions."""
    with opened(worker="ann") as store:
        task = store.insert("mail", {"to": ["ben"]})
        assert (task.id, task.version, task.value, task.status(task.at)) == (
            1,
            1,
            {"to": ["ben"]},
            "ready",
        )
        claim = store.claim("mail", lease=10.0)
        assert (claim.id, claim.value, claim.deliveries) == (1, {"to": ["ben"]}, 1)
        assert claim.task == store.get(1)
        assert (claim.task.version, claim.task.worker) == (2, "ann")
        with pytest.raises(TimeoutError, match="no task to claim in 'mail'"):
            store.claim("mail", timeout=0)
        claim.ack()
        assert store.get(1) is None
        assert store.tasks() == []
        with pytest.raises(errors.UsageError, match="already acknowledged"):
            claim.ack()
        assert store.stats().totals == {
            "inserted": 1,
            "claimed": 1,
            "done": 1,
            "nacked": 0,
            "deleted": 0,
            "died": 0,
        }


def test_text_and_numbers_of_other_types_are_stored_as_plain_ones(
    opened: Callable[..., TaskStore],
) -> None:
    """The store that writes them has in its state what all others read."""

    class Name(StrEnum):
        A = "a"
        K = "k"

    with opened(worker=Name.K) as store, opened() as other:
        task = store.insert(Name.A, 1, priority=True, key=Name.K)
        assert (task.queue, task.priority, task.key) == ("a", 1, "k")
        store.modify(change={(True, task.version): {"priority": True, "queue": Name.A}})
        claim = store.claim(Name.A, timeout=0)
        claim.nack(reason=Name.K)
        store.insert(Name.A, 2, priority=True)
        assert other.tasks() == store.tasks()
        for task in store:
            assert all(type(field) in {int, str, bytes, bool, type(None)} for field in task)
            assert type(task.priority) is int
        store.compact()
        assert store.journal.verify().ok


def test_worker_whose_claim_was_taken_over_cannot_commit(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """Its acknowledgement, its successors and all else are refused together."""
    with opened() as slow, opened() as other:
        slow.insert("a", 1)
        late = slow.claim("a", lease=10.0)
        clock.pass_by(11)
        mine = other.claim("a", lease=10.0)
        assert mine.deliveries == 2
        before = other.tasks()
        for call in (
            lambda: late.ack(insert=[NewTask("b", "twice")]),
            late.nack,
            lambda: late.extend(5),
            lambda: late.save(2),
        ):
            with pytest.raises(errors.Stale, match="task 1 has version 3, not 2") as raised:
                call()
            assert raised.value.conflicts == (Conflict(1, 2, 3),)
            assert other.tasks() == before
        mine.ack(insert=[NewTask("b", "once")])
        with pytest.raises(errors.Stale, match="not in the store any more"):
            late.ack(insert=[NewTask("b", "twice")])
        assert [task.value for task in slow.tasks("b")] == ["once"]


def test_claim_whose_lease_ended_is_good_until_another_worker_has_it(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """The version decides, and not the time."""
    with opened() as store:
        store.insert("a", 1)
        claim = store.claim("a", lease=10.0)
        clock.pass_by(1000)
        claim.ack()
        assert store.tasks() == []


def test_claims_come_by_priority_then_by_time_over_all_queues(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """Earliest due first, whatever the queue and the order of insertion."""
    with opened() as store:
        store.insert("a", "third", at=clock.now - 1)
        store.insert("b", "second", at=clock.now - 2)
        store.insert("c", "other queue", at=clock.now - 9)
        store.insert("b", "later", at=timedelta(seconds=5))
        store.insert("a", "first", priority=1)
        store.insert("a", "last", priority=-1, at=clock.now - 5)
        found = [claim.value for claim in store.claim_many(["a", "b"], 10)]
        assert found == ["first", "second", "third", "last"]
        clock.pass_by(5)
        assert store.claim(("b", "a"), timeout=0).value == "later"


def test_time_of_a_task_is_given_as_everywhere(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """An int of ns, an aware datetime, or a timedelta from now."""
    with opened() as store:
        assert store.insert("a", 1, at=17).at == 17
        assert store.insert("a", 1, at=datetime(1970, 1, 2, tzinfo=UTC)).at == 86400 * NS_PER_S
        assert store.insert("a", 1, at=timedelta(seconds=3)).at == clock.now + 3 * NS_PER_S
        with pytest.raises(errors.NaiveDatetime):
            store.insert("a", 1, at=datetime(1970, 1, 2))  # noqa: DTZ001 - that is what is wrong


def test_returned_task_is_redelivered_after_its_delay(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """With its reason, and until it was delivered too often."""
    with opened(max_deliveries=2) as store:
        store.insert("a", 1)
        store.claim("a").nack(delay=5.0, reason="remote is down")
        (task,) = store.tasks()
        assert (task.reason, task.worker, task.status(clock.now)) == (
            "remote is down",
            None,
            "waiting",
        )
        with pytest.raises(TimeoutError):
            store.claim("a", timeout=0)
        clock.pass_by(5)
        claim = store.claim("a", timeout=0)
        assert claim.deliveries == 2
        claim.nack(reason="remote is gone")
        (dead,) = store.tasks(status="dead")
        assert (dead.reason, dead.is_dead) == ("remote is gone", True)
        with pytest.raises(TimeoutError):
            store.claim("a", timeout=0)
        store.modify(change={dead.ref: {"at": timedelta(0)}})
        claim = store.claim("a", timeout=0)
        assert (claim.deliveries, claim.task.reason) == (1, None)


def test_task_whose_workers_die_too_often_becomes_dead(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """The first claim over the limit marks it as dead, and continues with the next task."""
    with opened(max_deliveries=1) as store:
        store.insert("a", "deadly")
        store.claim("a", lease=1.0)
        clock.pass_by(2)
        store.insert("a", "harmless")
        assert store.claim("a", timeout=0).value == "harmless"
        (dead,) = store.tasks("a", status="dead")
        assert (dead.value, dead.reason) == ("deadly", "was kept until its lease ended")
        clock.pass_by(100)
        with pytest.raises(TimeoutError):
            store.claim("a", timeout=0)
        assert len(store.tasks(status="dead")) == 2


def test_transaction_is_done_as_a_whole(opened: Callable[..., TaskStore]) -> None:
    """Insert, change, delete and depend in one entry; and none of it when a version is old."""
    with opened() as store:
        one, two, three = (store.insert("a", name) for name in ("one", "two", "three"))
        before = store.journal.sequence
        done = store.modify(
            insert=[NewTask("b", "four", priority=3)],
            change={one.ref: {"value": "uno", "priority": 7}},
            delete=[two.ref],
            depend=[three.ref],
        )
        assert store.journal.sequence == before + 1
        assert [task.value for task in (*done.inserted, *done.changed)] == ["four", "uno"]
        assert [task.value for task in store] == ["uno", "three", "four"]
        assert (done.changed[0].version, done.changed[0].priority) == (2, 7)
        everything = store.tasks()
        with pytest.raises(errors.Stale) as raised:
            store.modify(
                insert=[NewTask("b", "five")],
                change={one.ref: {"value": "eins"}},
                delete=[two.ref, done.inserted[0].ref],
                depend=[(99, 1)],
            )
        assert raised.value.conflicts == (
            Conflict(2, 1, None),
            Conflict(99, 1, None),
            Conflict(1, 1, 2),
        )
        assert "2 more conflicts" in str(raised.value)
        assert store.tasks() == everything
        assert store.journal.sequence == before + 1
        assert store.modify() == ((), ())
        assert store.journal.sequence == before + 1


def test_dependency_that_changed_refuses_the_transaction(opened: Callable[..., TaskStore]) -> None:
    """Also one that is claimed: that is another version."""
    with opened() as store:
        gate = store.insert("gate", "open")
        store.modify(insert=[NewTask("a", 1)], depend=[gate.ref])
        store.claim("gate")
        with pytest.raises(errors.Stale):
            store.modify(insert=[NewTask("a", 2)], depend=[gate.ref])
        assert [task.value for task in store.tasks("a")] == [1]


def test_claim_saves_progress_and_is_extended(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """Each is a new version, which the claim knows."""
    with opened() as store, opened() as other:
        store.insert("a", {"step": 0})
        claim = store.claim("a", lease=10.0)
        claim.save({"step": 1})
        claim.extend(100.0)
        assert claim.task == store.get(claim.id)
        clock.pass_by(50)
        with pytest.raises(TimeoutError):
            other.claim("a", timeout=0)
        clock.pass_by(51)
        again = other.claim("a", timeout=0)
        assert again.value == {"step": 1}
        again.ack()


def test_task_that_is_moved_is_released(opened: Callable[..., TaskStore]) -> None:
    """A claimed task moves on to another queue by a change alone."""
    with opened() as store:
        store.insert("a", 1)
        claim = store.claim("a")
        (moved,) = store.modify(change={claim.task.ref: {"queue": "b"}}).changed
        assert (moved.queue, moved.worker, moved.deliveries) == ("b", None, 0)
        assert store.claim("b", timeout=0).value == 1
        with pytest.raises(errors.Stale):
            claim.ack()


def test_key_is_unique_while_its_task_is_there(opened: Callable[..., TaskStore]) -> None:
    """An insertion that may be repeated takes effect once."""
    with opened() as store:
        store.insert("a", 1, key="daily")
        with pytest.raises(errors.Stale, match="key 'daily' is in use by task 1") as raised:
            store.insert("b", 2, key="daily")
        assert raised.value.conflicts == (Conflict(1, None, 1, "daily"),)
        store.claim("a").ack()
        assert store.insert("a", 3, key="daily").id == 2


def test_closing_returns_its_claims(opened: Callable[..., TaskStore], clock: Clock) -> None:
    """By the back-off, and not when the leases end; what another worker took over stays there."""
    with opened() as other:
        with opened() as store:
            store.insert("a", 1)
            store.insert("a", 2)
            store.claim("a", lease=1000.0)
            lost = store.claim("a", lease=1000.0)
            store.modify(change={lost.task.ref: {"value": 3}})
        with pytest.raises(errors.ClosedError):
            lost.ack()
        with pytest.raises(TimeoutError):
            other.claim("a", timeout=0)
        clock.pass_by(BACKOFF[0])
        assert other.claim("a", timeout=0).value == 1
        with pytest.raises(TimeoutError):
            other.claim("a", timeout=0)


def test_store_is_the_same_after_reopening_and_compaction(
    opened: Callable[..., TaskStore],
) -> None:
    """From the log, from a snapshot, and from a snapshot with entries after it."""
    with opened() as store:
        for number in range(200):
            store.insert("abc"[number % 3], number, priority=number % 2, key=str(number))
        for claim in store.claim_many("a", 20, lease=5.0):
            claim.ack(insert=[NewTask("d", "x" * 500)])
        expected = store.tasks()
    with opened() as store:
        assert store.tasks() == expected
        assert store.compact().sequence == store.journal.sequence
        assert store.compact().sequence == store.journal.sequence
        store.insert("d", "later")
        store.compact()
        store.insert("d", "last")
        expected, stats = store.tasks(), store.stats()
    with opened(read_only=True) as reader, opened() as store:
        assert reader.tasks() == store.tasks() == expected
        assert store.stats() == stats
        assert store.journal.verify().ok
        assert len(store.claim_many(["b", "c"], 200)) == 133
        with pytest.raises(errors.Stale):
            store.insert("a", 0, key="199")


def test_state_of_an_earlier_time(opened: Callable[..., TaskStore], clock: Clock) -> None:
    """The journal has all transactions."""
    with opened() as store:
        store.insert("a", 1)
        clock.pass_by(10)
        store.claim("a").ack()
        clock.pass_by(10)
        assert store.tasks() == []
        (task,) = store.tasks(moment=clock.now - 15 * NS_PER_S)
        assert (task.value, task.status(clock.now)) == (1, "ready")


def test_statistics_count_each_queue(opened: Callable[..., TaskStore], clock: Clock) -> None:
    """By what their tasks are now."""
    with opened() as store:
        store.insert("a", 1)
        clock.pass_by(1)
        store.insert("a", 2)
        store.insert("b", 3, at=timedelta(seconds=9))
        store.claim("a", lease=3.0)
        stats = store.stats()
        assert stats.tasks == 3
        assert stats.queues["a"].claimed == stats.queues["a"].ready == 1
        assert stats.queues["a"].oldest_ready == clock.now
        assert (stats.queues["b"].waiting, stats.queues["b"].oldest_ready) == (1, None)
        clock.pass_by(3)
        assert store.stats().queues["a"].ready == 2


@pytest.mark.parametrize(
    ("codec", "value"), [("json", [1, None]), ("msgpack", b"\x00"), ("utf-8", "ü"), ("bytes", b"b")]
)
def test_values_survive_the_codec(
    opened: Callable[..., TaskStore], codec: str, value: object
) -> None:
    """The store knows its codec; another one is refused."""
    with opened(codec=codec) as store:
        store.insert("a", value)
    with opened() as store:
        assert store.codec == codec
        assert store.claim("a").value == value
    with pytest.raises(errors.CodecMismatch, match=r", not .*leave codec out"):
        opened(codec="bytes" if codec != "bytes" else "json")


def test_value_is_larger_than_a_page(opened: Callable[..., TaskStore]) -> None:
    """In the log, and in a snapshot."""
    value = "x" * (5 * PAGE)
    with opened() as store, opened() as other:
        store.insert("a", value)
        assert other.tasks()[0].value == value
        store.compact()
        store.compact()
    with opened() as store:
        assert store.claim("a").value == value
        assert store.journal.verify().ok


def test_values_are_the_callers(opened: Callable[..., TaskStore]) -> None:
    """Changing what was given or returned changes no task."""
    with opened() as store:
        value = {"list": [1]}
        store.insert("a", value)
        value["list"].append(2)
        claim = store.claim("a")
        claim.value["list"].append(3)
        assert claim.value == {"list": [1]}
        assert store.tasks()[0].value == {"list": [1]}


WRONG: list[tuple[Callable[[TaskStore], object], type[Exception]]] = [
    (lambda store: store.insert("a", {1, 2}.__iter__), errors.NotEncodable),
    (lambda store: store.insert(5, 1), TypeError),  # type: ignore[arg-type]
    (lambda store: store.insert("a", 1, priority="high"), TypeError),  # type: ignore[arg-type]
    (lambda store: store.insert("a", 1, priority=1.5), TypeError),  # type: ignore[arg-type]
    (lambda store: store.insert("a", 1, key=7), TypeError),  # type: ignore[arg-type]
    (lambda store: store.insert("a", 1, at="now"), TypeError),  # type: ignore[arg-type]
    (lambda store: store.modify(delete=[5]), TypeError),  # type: ignore[list-item]
    (lambda store: store.modify(delete=[(1, "1")]), TypeError),  # type: ignore[list-item]
    (lambda store: store.modify(delete=[(1, 1)], depend=[(1, 1)]), errors.InvalidOption),
    (lambda store: store.modify(change={(1, 1): {"id": 5}}), errors.InvalidOption),
    (
        lambda store: store.modify(insert=[NewTask("a", 1, key="k"), NewTask("a", 1, key="k")]),
        errors.InvalidOption,
    ),
    (lambda store: store.modify(change={(1, 1): {"id": 5, 6: 7}}), errors.InvalidOption),  # type: ignore[dict-item]
    (lambda store: store.modify(change={(1, 1): [("priority", 5)]}), errors.InvalidType),  # type: ignore[dict-item]
    (lambda store: store.modify(change=[(1, 1)]), errors.InvalidType),  # type: ignore[arg-type]
    (lambda store: store.modify(insert=[("mail",)]), errors.InvalidType),  # type: ignore[list-item]
    (lambda store: store.modify(insert=[dict.fromkeys("abcde")]), errors.InvalidType),  # type: ignore[list-item]
    (lambda store: store.modify(insert=NewTask("a", 1)), errors.InvalidType),  # type: ignore[arg-type]
    (lambda store: store.modify(insert=5), errors.InvalidType),  # type: ignore[arg-type]
    (lambda store: store.modify(depend=5), errors.InvalidType),  # type: ignore[arg-type]
    (lambda store: store.modify(delete=np.array([[9, 1], [8, 1]])), errors.Stale),
    (lambda store: store.finish(None), errors.InvalidType),  # type: ignore[arg-type]
    (lambda store: store.claim([], timeout=0), errors.InvalidOption),
    (lambda store: store.claim([1], timeout=0), TypeError),  # type: ignore[list-item]
    (lambda store: store.claim("a", lease=0, timeout=0), errors.InvalidOption),
    (lambda store: store.claim("a", lease=float("nan"), timeout=0), errors.InvalidOption),
    (lambda store: store.claim("a", lease=float("inf"), timeout=0), errors.InvalidOption),
    (lambda store: store.claim("a", timeout=-1), ValueError),
    (lambda store: store.claim_many("a", 0), errors.InvalidOption),
    (lambda store: store.claim("full").nack(delay=-1), errors.InvalidOption),
    (lambda store: store.claim("full").nack(reason=5), TypeError),  # type: ignore[arg-type]
    (lambda store: store.claim("full").extend(0), errors.InvalidOption),
    (lambda store: store.tasks(status="done"), errors.InvalidOption),  # type: ignore[arg-type]
    (lambda store: store.get("1"), TypeError),  # type: ignore[arg-type]
]


@pytest.mark.quick_each(3)
@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_arguments_are_refused_and_no_entry_is_written(
    opened: Callable[..., TaskStore],
    call: Callable[[TaskStore], object],
    error: type[Exception],
) -> None:
    """By an error that names the argument."""
    with opened() as store:
        store.insert("full", 1)
        with pytest.raises(error):
            call(store)
        (task,) = store.tasks()
        assert task.queue == "full"


def test_wrong_options_are_refused(opened: Callable[..., TaskStore], tmp_path: Path) -> None:
    """Before anything is made."""
    for options in ({"codec": "pickle"}, {"max_deliveries": 0}):
        with pytest.raises(errors.InvalidOption):
            opened(**options)
    with pytest.raises(TypeError):
        opened(worker=5)
    assert not (tmp_path / "store").exists()
    with pytest.raises(errors.QueueNotFound):
        opened(create=False, page_bytes=None)


def test_queue_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    """A queue of messages is not taken for a journal."""
    with Queue(tmp_path / "queue", page_bytes=PAGE) as queue, queue.producer() as producer:
        producer.send(b"hello")
    with pytest.raises(errors.PageQueueError):
        TaskStore(tmp_path / "queue")


def test_read_only_store_shows_tasks_and_appends_no_entry(opened: Callable[..., TaskStore]) -> None:
    """And it follows what others do."""
    with opened() as store, opened(read_only=True) as reader:
        store.insert("a", 1)
        assert [task.value for task in reader.tasks()] == [1]
        for call in (lambda: reader.insert("a", 2), lambda: reader.claim("a", timeout=0)):
            with pytest.raises(errors.ReadOnlyQueue):
                call()


def test_claim_waits_for_a_task_of_another_process_without_polling(tmp_path: Path) -> None:
    """It sleeps, costs no processor time, and is woken by the insertion."""
    with TaskStore(tmp_path / "store", page_bytes=PAGE) as store:
        code = (
            "import sys, time; from pagequeue.tasks import TaskStore\n"
            "store = TaskStore(sys.argv[1]); print('up', flush=True); sys.stdin.readline()\n"
            "store.insert('other', 1); store.insert('a', 'from another process')"
        )
        with warm.Popen(
            [sys.executable, "-c", code, str(tmp_path / "store")],
            stdin=warm.PIPE,
            stdout=warm.PIPE,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            threading.Timer(0.5, lambda: (child.stdin.write("\n"), child.stdin.flush())).start()
            before = time.thread_time()
            assert store.claim("a", timeout=60.0).value == "from another process"
            assert time.thread_time() - before < 0.2
        assert child.returncode == 0


def test_claim_waits_for_the_time_of_a_scheduled_task(tmp_path: Path) -> None:
    """Not for an entry: none comes."""
    with TaskStore(tmp_path / "store", page_bytes=PAGE) as store:
        began = time.monotonic()
        store.insert("a", 1, at=timedelta(seconds=0.4))
        claim = store.claim("a", timeout=60.0)
        assert time.monotonic() - began >= 0.39
        store.insert("b", 1)
        with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
            store.claim(["a"], timeout=0.1)
        claim.ack()


def test_threads_share_a_store(tmp_path: Path) -> None:
    """Each task is done once, and each has its successor once."""
    with TaskStore(tmp_path / "store", page_bytes=PAGE) as store:
        store.modify(insert=[NewTask("a", number) for number in range(300)])

        def work() -> None:
            while True:
                try:
                    claim = store.claim("a", timeout=0)
                except TimeoutError:
                    return
                claim.ack(insert=[NewTask("b", claim.value)])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(task.value for task in store.tasks()) == list(range(300))
        assert store.stats().totals["claimed"] == 300
        assert store.journal.verify().ok


def test_waiting_threads_are_woken_by_another_thread(tmp_path: Path) -> None:
    """An entry that another thread of the process applied is not missed."""
    with TaskStore(tmp_path / "store", page_bytes=PAGE) as store:
        found: list[Any] = []

        def work() -> None:
            found.append(store.claim("a", timeout=60.0).value)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            until_asleep(thread)
        for number in range(3):
            store.insert("a", number)
            store.tasks()
        for thread in threads:
            thread.join(30)
        assert sorted(found) == [0, 1, 2]


def test_store_that_is_closed_refuses_everything(opened: Callable[..., TaskStore]) -> None:
    """And closing again has no effect."""
    store = opened()
    store.insert("a", 1)
    claim = store.claim("a")
    store.close()
    store.close()
    with pytest.raises(errors.ClosedError):
        store.insert("a", 1)
    with pytest.raises(errors.ClosedError):
        store.tasks()
    with pytest.raises(errors.UsageError):
        claim.ack()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_task_is_found_after_a_claim_that_was_interrupted(
    opened: Callable[..., TaskStore],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    """Between taking a scheduled task from one heap and entering it in the other."""

    def interrupted(*_: object) -> None:
        raise kind

    with opened() as store:
        store.insert("mail", 1, at=timedelta(seconds=5))
        clock.pass_by(10)
        with monkeypatch.context() as patch:
            patch.setattr(state, "heappush", interrupted)
            with pytest.raises(kind):
                store.claim("mail", timeout=0)
        assert store.claim("mail", timeout=0).value == 1


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one queue", "two queues"])
def test_many_are_claimed_in_order_whatever_the_share_that_is_taken(
    opened: Callable[..., TaskStore], clock: Clock, count: int, names: list[str]
) -> None:
    """By priority, then since when they can be claimed; those left come next, in order too."""
    with opened(max_deliveries=2) as store:
        wanted: list[tuple[int, Any, int]] = []
        for number in range(100):
            task = NewTask(
                names[number % len(names)],
                number,
                priority=number * 7 % 5,
                at=clock.now - number * 13 % 10,
            )
            wanted.append((-task.priority, task.at, number))
            store.modify(insert=[task])
        found: list[int] = []
        while len(found) < 100:
            claims = store.claim_many(names, count, timeout=0)
            found += [claim.value for claim in claims]
        assert found == [value for *_, value in sorted(wanted)]


def test_claims_that_are_made_while_the_store_closes_are_given_back(tmp_path: Path) -> None:
    """Closing waits for a claim that another thread is making; later ones are refused."""
    is_claiming, may_go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []
    with TaskStore(tmp_path) as watcher:
        watcher.modify(insert=[NewTask("work", number) for number in range(3)])
        clock_of = threading.local()

        def clock() -> int:
            if getattr(clock_of, "waits", False):  # inside of the claim
                is_claiming.set()
                assert may_go_on.wait(LONG)
            return time.time_ns()

        store = TaskStore(tmp_path, clock=clock)

        def claim() -> None:
            clock_of.waits = True
            store.claim("work", lease=3600.0, timeout=0)
            clock_of.waits = False
            try:
                while True:
                    store.claim("work", lease=3600.0, timeout=0)
            except errors.ClosedError as error:
                outcome.append(error)

        thread = threading.Thread(target=claim)
        thread.start()
        assert is_claiming.wait(LONG)
        closing = threading.Thread(target=store.close)
        closing.start()
        until(lambda: store._claiming._is_closing)
        assert closing.is_alive()
        may_go_on.set()
        closing.join(LONG)
        thread.join(LONG)
        assert len(outcome) == 1
        assert watcher.tasks("work", status="claimed") == []
        assert {task.deliveries for task in watcher.tasks("work")} == {0, 1}


# --- clocks that are set --------------------------------------------------------------------------


def shifted(seconds: float) -> Callable[[], int]:
    """Return a clock that runs, and is wrong by so much."""
    return lambda: time.time_ns() + int(seconds * NS_PER_S)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("wrong", [7200.0, -7200.0])
def test_corrected_clock_neither_delays_tasks_nor_holds_leases(
    tmp_path: Path, wrong: float, *, is_loaded: bool
) -> None:
    """The same rule from the log and from a snapshot: what lasts so long lasts so long."""
    with TaskStore(tmp_path / "s", clock=shifted(wrong)) as store:
        for queue, at in (("once", None), ("soon", timedelta(milliseconds=1)), ("held", None)):
            store.insert(queue, queue, at=at)
        later = store.insert("later", "later", at=timedelta(hours=1))
        store.claim("held", lease=0.01).detach()
        kept = store.insert("kept", "kept")
        store.claim("kept", lease=3600.0).detach()
        if is_loaded:
            store.compact()
    with TaskStore(tmp_path / "s") as store:
        for queue in ("once", "soon", "held"):
            assert store.claim(queue, timeout=warm.WAIT_SECONDS).value == queue
        for task, status in ((later, "waiting"), (kept, "claimed")):
            (found,) = store.tasks(task.queue, status=status)
            assert found.id == task.id
            assert 3500 < (found.at - store._now()[0]) / NS_PER_S <= 3600
        figures = store.stats().queues
        assert (figures["later"].waiting, figures["kept"].claimed) == (1, 1)


def test_clock_that_is_corrected_under_an_open_store_holds_nothing(tmp_path: Path) -> None:
    """A lease that was begun by the wrong clock, and one that is extended by the right one."""
    off = 7200 * NS_PER_S
    with TaskStore(tmp_path / "s", clock=lambda: time.time_ns() + off) as store:
        for queue in ("a", "b"):
            store.insert(queue, queue)
        store.claim("a", lease=0.01).detach()
        claim = store.claim("b", lease=60.0)
        off = 0
        claim.extend(0.01)
        claim.detach()
        for queue in ("a", "b"):
            assert store.claim(queue, timeout=warm.WAIT_SECONDS).value == queue


def test_after_another_boot_nothing_waits_longer_than_it_was_to(tmp_path: Path) -> None:
    """How long the machine was off is known by a clock that can be wrong."""
    with TaskStore(tmp_path / "s", clock=shifted(7200.0)) as store:
        store.insert("once", "once")
        store.insert("soon", "soon", at=timedelta(hours=1))
        store.journal.update(lambda _: [*store._now(), [BOOT, b"another boot"]])
        assert store.claim("once", timeout=0).value == "once"
        with TaskStore(tmp_path / "s", read_only=True) as reader:
            assert reader.journal.state.boot == store._boot
    with TaskStore(tmp_path / "s") as store:
        store.journal.update(lambda _: [*store._now(), [BOOT, b"another boot"]])
        with TaskStore(tmp_path / "s", read_only=True) as reader:
            assert [task.value for task in reader.tasks("soon", status="waiting")] == ["soon"]
        store.insert("x", "x")
        (task,) = store.tasks("soon", status="waiting")
        assert 3500 < (task.at - store._now()[0]) / NS_PER_S <= 3600


def test_schedule_that_names_a_time_goes_by_the_clock(
    opened: Callable[..., TaskStore], clock: Clock
) -> None:
    """And a time in the past is at once."""
    with opened() as store:
        store.insert("past", "past", at=datetime(1960, 1, 1, tzinfo=UTC))
        task = store.insert("named", "named", at=clock.now + 5 * NS_PER_S)
        assert store.claim("past", timeout=0).value == "past"
        with pytest.raises(TimeoutError):
            store.claim("named", timeout=0)
        store.modify(change={task.ref: {"at": timedelta(0)}})
        assert store.claim("named", timeout=0).value == "named"
