"""Journal: entries are appended only to the log that they were decided on, and applied in order."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pickle
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from journals import PAGE, Accounts, Counts, Log
from support import LONG, SOON, Clock, flip, until, until_asleep

from pagequeue import (
    AccessError,
    ClosedError,
    ConcurrentUse,
    CorruptFrame,
    CorruptMeta,
    DtypeMismatch,
    ForkedError,
    InvalidOption,
    JournalOnly,
    LockTimeout,
    NewerFormat,
    NotAJournal,
    NotEncodable,
    PageSizeMismatch,
    PoisonEntry,
    Queue,
    QueueNotFound,
    ReadOnlyQueue,
    Retention,
    UpdateTimeout,
    repair_queue,
    salvage_queue,
)
from pagequeue.cli import main
from pagequeue.journal import Journal, Machine
from pagequeue.journal.compaction import CompactionReport, Compactor
from pagequeue.multiprocessing import Queue as ObjectQueue
from pagequeue.tasks import TaskStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal[dict[str, int]]]:
    """Return a journal of accounts."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal:
        yield journal


def another_handle(journal: Journal[Any], **options: Any) -> Journal[Any]:  # noqa: ANN401 - of Journal
    """Open the same journal again."""
    return Journal(journal.queue.directory, journal._machine, create=False, **options)


# --- updating -------------------------------------------------------------------------------------


def test_update_appends_applies_and_returns_the_sequence(journal: Journal[dict[str, int]]) -> None:
    """One entry each; None appends no entry, and errors of `decide` are raised."""
    assert journal.update(lambda _: ["ann", 5]) == 0
    assert journal.update(lambda state: ["ann", "bob", state["ann"] - 1]) == 1
    assert journal.update(lambda _: None) is None
    with pytest.raises(KeyError):
        journal.update(lambda state: state["eve"])
    assert journal.state == {"ann": 1, "bob": 4}
    assert journal.sequence == journal.queue.tail_sequence == 2


def test_update_decides_on_what_others_appended(journal: Journal[dict[str, int]]) -> None:
    """The state is never older than the log that the entry is appended to."""
    with another_handle(journal) as other:
        assert journal.update(lambda _: ["ann", 5]) == 0
        assert other.update(lambda state: ["ann", state["ann"]]) == 1
        assert journal.update(lambda state: ["ann", state["ann"]]) == 2
        assert other.catch_up() == 3
        assert other.state == journal.state == {"ann": 20}


def test_update_decides_again_when_it_was_overtaken(journal: Journal[dict[str, int]]) -> None:
    """Compare and append: the entry that was decided on an older state is not in the log."""
    seen = []
    with another_handle(journal) as other:

        def decide(state: dict[str, int]) -> list[object]:
            seen.append(dict(state))
            if len(seen) < 3:
                other.update(lambda _: ["bob", 1])
            return ["ann", len(state)]

        assert journal.update(decide) == 2
    assert seen == [{}, {"bob": 1}, {"bob": 2}]
    assert journal.state == {"bob": 2, "ann": 1}


def test_large_entry_that_is_overtaken_is_decided_again(journal: Journal[dict[str, int]]) -> None:
    """It is appended by another way than one that fits into a page."""
    name = "x" * (2 * PAGE)
    seen = []
    with another_handle(journal) as other:

        def decide(state: dict[str, int]) -> list[object]:
            seen.append(len(state))
            if len(seen) < 3:
                other.update(lambda _: [f"bob {len(seen)}", 1])
            return [name, len(state)]

        assert journal.update(decide) == 2
    assert seen == [0, 1, 2]
    assert journal.state[name] == 2


def test_update_that_is_always_overtaken_ends_at_its_timeout(
    journal: Journal[dict[str, int]],
) -> None:
    """No entry was appended, and the update can be retried."""
    with another_handle(journal) as other:

        def decide(_: dict[str, int]) -> list[object]:
            other._attempt(lambda _: ["bob", 1])  # without regard for whose turn it is
            return ["ann", 1]

        with pytest.raises(UpdateTimeout, match="others appended first"):
            journal.update(decide, timeout=0.2)
    assert "ann" not in journal.read(dict)
    assert journal.update(lambda _: ["ann", 1], timeout=LONG) is not None


def test_durable_update_is_on_stable_storage(journal: Journal[dict[str, int]]) -> None:
    """`durable` flushes what `sync="none"` would not."""
    journal.update(lambda _: ["ann", 1])
    assert journal.queue.durable_sequence == 0
    journal.update(lambda _: ["ann", 1], durable=True)
    assert journal.queue.durable_sequence == 2


@pytest.mark.parametrize(("sync", "durable"), [("always", 5), (2, 4)])
def test_sync_flushes_as_it_does_for_a_queue(tmp_path: Path, sync: Any, durable: int) -> None:  # noqa: ANN401 - of Journal
    """Each entry, or every second one."""
    with Journal(tmp_path / "j", Accounts(), sync=sync, page_bytes=PAGE) as journal:
        for _ in range(5):
            journal.update(lambda _: ["ann", 1])
        assert journal.queue.durable_sequence == durable
    with Journal(tmp_path / "j", Accounts(), create=False) as journal:
        assert journal.queue.durable_sequence == 5  # closing flushes


def test_decide_cannot_use_the_journal(journal: Journal[dict[str, int]]) -> None:
    """It would see or change a state that misses its own entry."""
    for use in (
        lambda _: journal.update(lambda _: None),
        lambda _: journal.catch_up(),
        lambda _: journal.read(dict),
        lambda _: journal.compact(),
    ):
        with pytest.raises(ConcurrentUse, match="by a function that it called"):
            journal.update(use)
    assert journal.update(lambda _: ["ann", 1]) == 0


def test_read_excludes_other_threads(journal: Journal[dict[str, int]]) -> None:
    """While the function reads, no thread changes the state."""
    journal.update(lambda _: ["ann", 1])
    begun = threading.Event()
    thread = threading.Thread(
        target=lambda: (begun.wait(), journal.update(lambda _: ["ann", 1])), daemon=True
    )
    thread.start()

    def read_state(state: dict[str, int]) -> tuple[int, int]:
        before = state["ann"]
        begun.set()
        until_asleep(thread)  # it waits for the state
        return before, state["ann"]

    assert journal.read(read_state) == (1, 1)
    thread.join()
    assert journal.state == {"ann": 2}


def test_threads_share_a_journal_and_none_starves(tmp_path: Path) -> None:
    """Each counts in turn, also the one whose `decide` is slow."""
    with Journal(tmp_path / "j", Counts(), page_bytes=PAGE) as journal:

        def run(name: str, pause: float) -> None:
            while max(journal.read(dict).values(), default=0) < 100:
                journal.update(
                    lambda state: (time.sleep(pause), [name, state.get(name, 0)])[1], timeout=LONG
                )

        threads = [
            threading.Thread(target=run, args=(f"t{i}", 0.005 if i == 0 else 0)) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(journal.state) == 4
        assert min(journal.state.values()) >= 10
        assert journal.verify().ok


# --- following ------------------------------------------------------------------------------------


def test_wait_returns_when_an_entry_was_published(journal: Journal[dict[str, int]]) -> None:
    """By another handle; and at once for one that another thread applied already."""
    assert journal.wait(0) is False
    assert journal.wait(0.01) is False
    with another_handle(journal) as other:
        timer = threading.Timer(0.05, lambda: other.update(lambda _: ["ann", 1]))
        timer.start()
        assert journal.wait(LONG) is True
        timer.join()
    assert journal.state == {"ann": 1}
    assert journal.wait(0) is False
    assert journal.wait(LONG, after=0) is True
    assert journal.wait(0.01, after=1) is False


def test_wait_for_a_later_entry_sleeps_on(journal: Journal[dict[str, int]]) -> None:
    """Entries before the one that is waited for do not end the wait."""
    with another_handle(journal) as other:

        def send() -> None:
            for _ in range(4):
                time.sleep(0.005)
                other.update(lambda _: ["ann", 1])

        thread = threading.Thread(target=send)
        thread.start()
        assert journal.wait(LONG, after=3) is True
        assert journal.sequence == 4
        thread.join()


def test_follower_writes_no_byte(journal: Journal[dict[str, int]]) -> None:
    """A read-only journal follows, and refuses to append and to compact."""
    journal.update(lambda _: ["ann", 1])
    with another_handle(journal, read_only=True) as follower:
        assert follower.state == {"ann": 1}
        journal.update(lambda _: ["ann", 1])
        assert follower.wait(LONG)
        assert follower.state == {"ann": 2}
        for call in (lambda: follower.update(lambda _: ["ann", 1]), follower.compact):
            with pytest.raises(ReadOnlyQueue):
                call()


def test_coroutines_share_a_journal(tmp_path: Path) -> None:
    """They update in threads, and wait without one each."""

    async def run() -> None:
        with Journal(tmp_path / "j", Counts(), page_bytes=PAGE) as journal:

            async def count(name: str) -> None:
                for _ in range(20):
                    await journal.update_async(lambda state: [name, state.get(name, 0)])

            waiting = asyncio.create_task(journal.wait_async(LONG, after=59))
            assert await journal.wait_async(0) is False
            await asyncio.gather(*(count(f"c{i}") for i in range(3)))
            assert await waiting is True
            assert journal.state == {f"c{i}": 20 for i in range(3)}
            assert await journal.wait_async(0.01) is False
            assert await journal.update_async(lambda _: None) is None
            assert await journal.catch_up_async() == 60
            assert await journal.read_async(len) == 3
            assert await journal.at_async(timedelta(0)) == journal.state
            assert (await journal.verify_async()).ok

    asyncio.run(run())


def test_every_call_that_can_wait_has_an_async_form() -> None:
    """It takes what the other takes; opening, closing and looking at heads of files are short."""
    for kind, short in ((Journal, {"close", "snapshots"}), (TaskStore, {"close"})):
        calls = {
            name: inspect.signature(call)
            for name, call in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }
        forms = {name: form for name, form in calls.items() if not name.endswith("_async")}
        assert {name for name in forms if f"{name}_async" not in calls} == short
        for name in set(forms) - short:
            assert calls[f"{name}_async"].parameters == forms[name].parameters


def test_coroutine_compacts_and_the_loop_runs_meanwhile(tmp_path: Path) -> None:
    """A thread does it: the loop serves others while the machine dumps its state."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Accounts):
        def dump(self, state: dict[str, int]) -> Iterator[bytes]:
            begun.set()
            assert go_on.wait(60.0)
            return iter(list(super().dump(state)))

    async def run() -> None:
        with Journal(tmp_path / "j", Slow(), page_bytes=PAGE) as journal:
            journal.update(lambda _: ["ann", 1])
            compacting = asyncio.create_task(journal.compact_async())
            assert await asyncio.to_thread(begun.wait, 60.0)
            updating = asyncio.create_task(journal.update_async(lambda _: ["ann", 1]))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not compacting.done()
            assert not updating.done()
            go_on.set()
            assert (await compacting).sequence == 1
            assert await updating == 1
            assert [snapshot.sequence for snapshot in journal.snapshots()] == [1]
            with another_handle(journal, read_only=True) as follower, pytest.raises(ReadOnlyQueue):
                await follower.compact_async()

    asyncio.run(run())


@pytest.mark.parametrize("count", [9, 600], ids=["one by one", "in batches"])
def test_follower_stops_before_damage_and_goes_on_after_its_repair(
    tmp_path: Path, count: int
) -> None:
    """It applies no entry twice, however often it is asked meanwhile."""
    with (
        Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal,
        Journal(tmp_path / "j", Accounts(), read_only=True) as follower,
    ):
        for name in ["ann"] * (count - 3) + ["last"] * 3:
            journal.update(lambda _, name=name: [name, 1])
        page = tmp_path / "j" / "queue-0000000001.page"
        position = page.read_bytes().index(b"last")
        flip(page, position)
        for _ in range(2):
            with pytest.raises(CorruptFrame):
                follower.catch_up()
        flip(page, position)
        assert follower.catch_up() == count
        assert follower.state == journal.state == {"ann": count - 3, "last": 3}


class OwnWay(Accounts):
    """Applies its own entries by another method, which can be told to fail."""

    fails = False

    def apply_own(self, state: dict[str, int], entry: list[Any], timestamp_ns: int) -> None:
        """Apply an entry as `decide` returned it."""
        assert isinstance(entry, tuple)
        assert timestamp_ns > 0
        state["own"] = state.get("own", 0) + 1
        if self.fails:
            raise ValueError("cannot")
        self.apply(state, list(entry), timestamp_ns)
        del state["own"]


def test_own_entries_are_applied_by_the_method_for_them(tmp_path: Path) -> None:
    """As they were decided, without decoding; what fails there is tried once more by `apply`."""
    machine = OwnWay()
    with Journal(tmp_path / "j", machine, page_bytes=PAGE) as journal:
        assert journal.update(lambda _: ("ann", 5)) == 0
        with Journal(tmp_path / "j", Accounts()) as other:
            other.update(lambda _: ["bob", 1])
            assert journal.update(lambda state: ("ann", state["bob"])) == 2
            assert journal.state == other.read(dict) == {"ann": 6, "bob": 1}
            machine.fails = True
            with pytest.raises(PoisonEntry, match="refuses entry 3") as raised:
                journal.update(lambda _: ("ann", 1))
            assert raised.value.sequence == 3
            assert (journal.state, journal.sequence) == ({"ann": 6, "bob": 1}, 3)
            assert journal.catch_up() == 4
            assert journal.state == other.read(dict) == {"ann": 7, "bob": 1}
            other.compact()
            other.update(lambda _: ["bob", 1])
    machine.fails = False
    with Journal(tmp_path / "j", machine) as journal:
        assert journal.state == {"ann": 7, "bob": 2}
        assert journal.verify().ok


def test_own_entry_that_compaction_passed_is_in_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process compacted it before its writer read its time."""
    with (
        Journal(tmp_path / "j", OwnWay(), page_bytes=PAGE) as journal,
        Journal(tmp_path / "j", Accounts(), snapshots=1) as other,
    ):
        genuine = journal._send
        large = "x" * (PAGE * 3 // 5)
        journal.update(lambda _: ("y" * len(large), 1))

        def overtaken(payload: bytes, at: int) -> int:
            sequence = genuine(payload, at=at)
            monkeypatch.setattr(journal, "_send", genuine)
            for _ in range(3):
                other.update(lambda _: ["z" * len(large), 1])
            assert other.compact().pages > 0
            return sequence

        monkeypatch.setattr(journal, "_send", overtaken)
        assert journal.update(lambda _: (large, 5)) == 1  # the first one of its page
        assert journal.state[large] == 5
        assert journal.sequence == 5
        assert journal.read(dict) == other.read(dict)


def test_flush_puts_all_entries_on_stable_storage(journal: Journal[dict[str, int]]) -> None:
    """Those of other handles too; a follower and a closed journal cannot."""
    with another_handle(journal) as other:
        journal.update(lambda _: ["ann", 1])
        other.update(lambda _: ["ann", 1])
        assert journal.queue.durable_sequence < 2
        assert journal.flush() == 2
        assert journal.queue.durable_sequence == 2
        other.update(lambda _: ["ann", 1])
        assert asyncio.run(other.flush_async(timeout=60.0)) == 3
        assert journal.flush(timeout=60.0) == 3
    with another_handle(journal, read_only=True) as follower:
        with pytest.raises(ReadOnlyQueue, match="flush it"):
            follower.flush()
        with pytest.raises(ReadOnlyQueue):
            asyncio.run(follower.flush_async())
    with pytest.raises(ClosedError):
        other.flush()


def test_at_is_the_state_as_of_a_time(tmp_path: Path) -> None:
    """Every moment between two entries, and before the first."""
    clock = Clock(1000)
    with Journal(tmp_path / "j", Log(), page_bytes=PAGE, clock=clock) as journal:
        for i in range(10):
            clock.now = 1000 + 10 * i
            journal.update(lambda _, i=i: i)
        for moment in range(995, 1100):
            known = min(max(-1, (moment - 1000) // 10), 9)
            assert journal.at(moment) == [[i, 1000 + 10 * i] for i in range(known + 1)]
        assert journal.at(timedelta(days=1)) == []
        assert len(journal.state) == 10


# --- entries that the state refuses ---------------------------------------------------------------


def test_poison_stops_every_process_before_it(journal: Journal[dict[str, int]]) -> None:
    """The state is that before the entry, though the machine changed half of it in place."""
    journal.update(lambda _: ["ann", 1])
    with another_handle(journal) as other:
        with pytest.raises(PoisonEntry, match=r"refuses entry 1 \(ValueError: poisoned\)") as one:
            journal.update(lambda _: "poison")
        assert one.value.sequence == 1
        assert isinstance(one.value.__cause__, ValueError)
        for stopped in (journal, other):
            for _ in range(2):
                with pytest.raises(PoisonEntry):
                    stopped.catch_up()
                assert stopped.state == {"ann": 1}
                assert stopped.sequence == 1
    with pytest.raises(PoisonEntry), another_handle(journal):
        pass


def test_entry_that_a_signal_handler_interrupted_is_no_poison(tmp_path: Path) -> None:
    """Its error looks like the machine's: the entry is tried again, and refused for good after."""

    class Interrupted(Accounts):
        raises = 0
        calls = 0

        def apply(self, state: dict[str, int], entry: Any, timestamp_ns: int) -> None:  # noqa: ANN401 - JSON
            super().apply(state, entry, timestamp_ns)
            self.calls += 1
            if self.raises and len(state) == 3:
                self.raises -= 1
                raise TimeoutError("from a handler of SIGALRM")

    machine = Interrupted()
    with Journal(tmp_path / "j", machine, page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
        journal.update(lambda _: ["ben", 1])
        machine.raises = 1
        with pytest.raises(PoisonEntry):
            journal.update(lambda _: ["cid", 1])
        assert journal.state == {"ann": 1, "ben": 1}
        assert journal.catch_up() == 3
        assert journal.state == {"ann": 1, "ben": 1, "cid": 1}
    with Journal(tmp_path / "k", machine, page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
        journal.update(lambda _: ["ben", 1])
        machine.raises = 3
        for _ in range(3):
            with pytest.raises(PoisonEntry):
                journal.update(lambda _: ["cid", 1])
        begin = machine.calls
        with pytest.raises(PoisonEntry):  # twice is enough: the machine is not called again
            journal.catch_up()
        assert (machine.calls, machine.raises) == (begin, 1)


def test_poison_in_the_middle_of_many_stops_there(tmp_path: Path) -> None:
    """Also where entries are applied in batches, by a follower and by opening."""
    with Journal(tmp_path / "j", Log(), page_bytes=PAGE) as journal:
        follower = Journal(tmp_path / "j", Accounts(), read_only=True)
        for i in range(100):
            journal.update(lambda _, i=i: "poison" if i == 70 else ["ann", 1])
        with pytest.raises(PoisonEntry, match="entry 70"):
            follower.catch_up()
        assert (follower.sequence, follower.state) == (70, {"ann": 70})
        assert follower.at(0) == {}
        follower.close()


def test_interrupted_apply_is_not_seen(tmp_path: Path) -> None:
    """What Ctrl-C leaves half done is thrown away, and built again."""

    class Interrupted(Accounts):
        interrupts = True

        def apply(self, state: dict[str, int], entry: Any, timestamp_ns: int) -> None:  # noqa: ANN401 - JSON
            super().apply(state, entry, timestamp_ns)
            if self.interrupts and len(state) == 2:
                raise KeyboardInterrupt

    machine = Interrupted()
    with Journal(tmp_path / "j", machine, page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
        with pytest.raises(KeyboardInterrupt):
            journal.update(lambda _: ["bob", 1])
        machine.interrupts = False
        assert journal.catch_up() == 2
        assert journal.state == {"ann": 1, "bob": 1}
        journal.update(lambda _: ["bob", 1])
        assert journal.state == {"ann": 1, "bob": 2}


def test_entries_of_earlier_versions_are_upcast(tmp_path: Path) -> None:
    """A later machine applies what an earlier one wrote; an earlier one stops."""

    class Named(Accounts):
        version = 2

        def upcast(self, version: int, entry: Any) -> Any:  # noqa: ANN401 - JSON
            assert version == 1
            return {"account": entry[0], "amount": entry[1]}

        def apply(self, state: dict[str, int], entry: Any, timestamp_ns: int) -> None:  # noqa: ANN401 - JSON
            super().apply(state, [entry["account"], entry["amount"]], timestamp_ns)

    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
        with Journal(tmp_path / "j", Named()) as later:
            assert later.state == {"ann": 1}
            later.update(lambda _: {"account": "ann", "amount": 2})
            journal_before = dict(journal.state)
            for _ in range(2):
                with pytest.raises(NewerFormat, match="upgrade the program") as caught:
                    journal.catch_up()
            assert caught.value.version == 2
            assert (journal.state, journal.sequence) == (journal_before, 1)
            assert later.state == {"ann": 3}
            assert later.verify().ok


@pytest.mark.parametrize("codec", ["json", "msgpack", "bytes", "pickle"])
def test_codecs_of_entries(tmp_path: Path, codec: str) -> None:
    """Each entry comes to `apply` as the codec decodes it, in this process as in any other."""
    entry: Any = {"bytes": b"\0\xff", "pickle": ("a", {1})}.get(codec, {"a": [1, None]})
    for _ in range(2):
        with Journal(tmp_path / "j", Log(), codec=codec, page_bytes=PAGE) as journal:
            journal.update(lambda _: entry)
            assert [one for one, _ in journal.state] == [entry] * journal.sequence
    assert journal.sequence == 2


def test_refused_entries_are_not_appended(journal: Journal[dict[str, int]]) -> None:
    """What the codec cannot encode; an entry can be larger than a page."""
    with pytest.raises(NotEncodable, match="no entry was appended"):
        journal.update(lambda _: object())
    assert journal.update(lambda _: ["a" * (PAGE - 200), 1]) == 0
    assert journal.update(lambda _: ["a" * (3 * PAGE), 1]) == 1


# --- what a journal's queue refuses ---------------------------------------------------------------


def test_only_the_journal_appends_and_removes(journal: Journal[dict[str, int]]) -> None:
    """Producers, flows, object queues and retentions of others are refused; readers are not."""
    journal.update(lambda _: ["ann", 1])
    directory = journal.queue.directory
    with Queue(directory, create=False) as queue:
        assert queue.codec == "json"
        with pytest.raises(JournalOnly, match="call update"):
            queue.producer()
        with pytest.raises(JournalOnly):
            queue.persist([b"1"], "flow")
        assert [message.value for message in queue.replay()] == [[1, ["ann", 1]]]
        with queue.group("workers") as group:
            assert group.claim(timeout=0).message.sequence == 0
    with pytest.raises(JournalOnly, match="a journal has no retention"):
        Queue(directory, retention=Retention(max_age=timedelta(days=1)))
    with Journal(directory, Log(), codec="bytes", prefix="items", page_bytes=PAGE) as other:
        other.update(lambda _: b"1")
    with pytest.raises(JournalOnly):
        ObjectQueue(directory=directory).put(1)


def test_journal_needs_a_dedicated_queue(tmp_path: Path) -> None:
    """An ordinary queue is refused, and stays unchanged."""
    with Queue(tmp_path / "plain", codec="json"):
        pass
    before = sorted(path.name for path in (tmp_path / "plain").iterdir())
    with pytest.raises(NotAJournal, match="choose another directory"):
        Journal(tmp_path / "plain", Accounts())
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == before
    with Queue(tmp_path / "rows", dtype=[("a", "<i8")]):
        pass
    with pytest.raises((NotAJournal, DtypeMismatch)):
        Journal(tmp_path / "rows", Accounts())


def test_options_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    """A wrong one leaves no file."""

    class NoVersion(Accounts):
        version = -1

    for options, machine in (
        ({"codec": "utf-8"}, Accounts()),
        ({"snapshots": 0}, Accounts()),
        ({"page_bytes": 5}, Accounts()),
        ({}, NoVersion()),
    ):
        with pytest.raises(InvalidOption):
            Journal(tmp_path / "j", machine, **options)
    assert not (tmp_path / "j").exists()
    with pytest.raises(QueueNotFound):
        Journal(tmp_path / "j", Accounts(), create=False)
    with pytest.raises(QueueNotFound):
        Journal(tmp_path / "j", Accounts(), read_only=True)


def test_page_size_is_the_journals_own(tmp_path: Path) -> None:
    """4 MiB unless it is given; an existing journal keeps its own."""
    with Journal(tmp_path / "j", Accounts()) as journal:
        assert journal.queue.page_bytes == 4 << 20
    with Journal(tmp_path / "k", Accounts(), page_bytes=PAGE) as journal:
        assert journal.queue.page_bytes == PAGE
    with Journal(tmp_path / "k", Accounts()) as journal:
        assert journal.queue.page_bytes == PAGE
    with pytest.raises(PageSizeMismatch):
        Journal(tmp_path / "k", Accounts(), page_bytes=2 * PAGE)


def test_mark_survives_repair_of_a_lost_allmeta(tmp_path: Path) -> None:
    """Pages do not tell that they are a journal's; the journal's directory does."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
    (tmp_path / "j" / "queue-allMeta").unlink()
    assert repair_queue(tmp_path / "j", codec="json").ok
    with pytest.raises(JournalOnly), Queue(tmp_path / "j") as queue:
        queue.producer()
    with Journal(tmp_path / "j", Accounts()) as journal:
        assert journal.state == {"ann": 1}


def test_closed_journal_raises(tmp_path: Path) -> None:
    """Also twice, and in every call."""
    journal = Journal(tmp_path / "j", Accounts(), page_bytes=PAGE)
    assert "next entry 0" in repr(journal)
    journal.close()
    journal.close()
    assert "closed" in repr(journal)
    for call in (
        lambda: journal.update(lambda _: ["ann", 1]),
        journal.catch_up,
        journal.compact,
        journal.verify,
        lambda: journal.wait(0),
        lambda: journal.at(0),
    ):
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(TypeError, match="open it by its path"):
        pickle.dumps(journal)


def test_machine_is_a_protocol() -> None:
    """The machines of the tests are ones, for readers and type checkers."""
    machine: Machine[dict[str, int]] = Accounts()
    assert machine.initial() == {}


def test_bulk_publishers_and_commands_are_refused(
    journal: Journal[dict[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever way appends: all of them would append what no state was compared with."""
    journal.update(lambda _: ["ann", 1])
    directory = journal.queue.directory
    with Queue(directory, create=False) as queue:
        for payloads in ([b"1"], [b"1" * PAGE] * 3):
            with pytest.raises(JournalOnly):
                queue.publish("writer", 0, payloads)
    lines = tmp_path / "lines"
    lines.write_text('[1, ["ann", 5]]\n')
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"sequence": 0, "timestamp": 5, "payload": "[1,2]"}\n')
    assert main(["send", directory, "--file", str(lines)]) == 1
    assert "call update" in capsys.readouterr().err
    assert main(["import", directory, "--from", str(rows)]) == 1
    assert "call update" in capsys.readouterr().err
    assert journal.catch_up() == 1


def test_journal_of_a_fork_belongs_to_the_parent(journal: Journal[dict[str, int]]) -> None:
    """The child's calls are refused, also while a thread of the parent is inside."""
    journal.update(lambda _: ["ann", 1])
    held = threading.Event()
    done = threading.Event()
    thread = threading.Thread(target=lambda: journal.read(lambda _: (held.set(), done.wait())))
    thread.start()
    assert held.wait(LONG)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (journal.catch_up, lambda: journal.update(lambda _: ["ann", 1])):
                try:
                    call()
                except ForkedError:
                    code = 0
                else:
                    code = 2
                    break
            journal.close()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    done.set()
    thread.join()
    assert journal.update(lambda _: ["ann", 1]) == 1


def test_no_descriptor_is_leaked(tmp_path: Path) -> None:
    """Closed, dropped, or failed while it was opened."""

    class Refusing(Accounts):
        def initial(self) -> dict[str, int]:
            raise ZeroDivisionError

    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    Journal(tmp_path / "j", Accounts(), page_bytes=PAGE).close()
    before = opened()
    for _ in range(3):
        Journal(tmp_path / "j", Accounts()).close()
        journal = Journal(tmp_path / "j", Accounts())
        journal.update(lambda _: ["ann", 1])
        journal.compact()
        del journal
        with pytest.raises(ZeroDivisionError):
            Journal(tmp_path / "k", Refusing(), page_bytes=PAGE)
    until(lambda: opened() == before)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\xff" * 4096])
def test_damaged_turn_costs_only_fairness(tmp_path: Path, content: bytes) -> None:
    """Whatever is in that file, entries are appended."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
    (tmp_path / "j" / "queue-journal" / "turn").write_bytes(content)
    with Journal(tmp_path / "j", Accounts()) as journal, another_handle(journal) as other:
        tries = []

        def decide(_: dict[str, int]) -> list[object]:
            tries.append(1)
            if len(tries) < 6:
                other._attempt(lambda _: ["ann", 1])
            return ["ann", 1]

        assert journal.update(decide, timeout=SOON) == 6
        os.truncate(tmp_path / "j" / "queue-journal" / "turn", 0)
        with pytest.raises(CorruptMeta, match="open it again"):
            journal.update(lambda _: ["ann", 1])
    with Journal(tmp_path / "j", Accounts()) as journal:
        assert journal.update(lambda _: ["ann", 1]) == 7


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("queue-journal", "link"),
        ("queue-journal", "fifo"),
        ("queue-journal/turn", "link"),
        ("queue-journal/turn", "fifo"),
        ("queue-journal/turn", "directory"),
    ],
)
def test_strange_files_in_place_of_the_journals_are_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    """No link is followed, and no open waits for a writer."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal:
        journal.update(lambda _: ["ann", 1])
    path = tmp_path / "j" / name
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(AccessError, match=name):
        Journal(tmp_path / "j", Accounts())


def test_salvaged_journal_is_a_journal(tmp_path: Path) -> None:
    """Its entries can be applied again; snapshots, which name sequences, are not copied."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE) as journal:
        for _ in range(5):
            journal.update(lambda _: ["ann", 1])
        journal.compact()
    assert salvage_queue(tmp_path / "j", tmp_path / "k").messages_copied == 5
    with Journal(tmp_path / "k", Accounts()) as journal:
        assert journal.state == {"ann": 5}
        assert journal.update(lambda _: ["ann", 1]) == 5
    with pytest.raises(JournalOnly), Queue(tmp_path / "k") as queue:
        queue.producer()


def test_threads_wait_for_a_compaction_however_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for nothing else that hangs: that is an error."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE, lock_timeout=0.1) as journal:
        begun = threading.Event()

        class Slow(Accounts):
            def dump(self, state: dict[str, int]) -> Iterator[bytes]:
                begun.set()
                time.sleep(0.5)
                yield from super().dump(state)

        monkeypatch.setattr(journal._compactor, "_machine", Slow())
        thread = threading.Thread(target=journal.compact)
        thread.start()
        assert begun.wait(LONG)
        assert journal.update(lambda _: ["ann", 1]) == 0
        thread.join()
        begun.clear()
        go_on = threading.Event()
        thread = threading.Thread(
            target=lambda: journal.read(lambda _: (begun.set(), go_on.wait()))
        )
        thread.start()
        assert begun.wait(LONG)
        with pytest.raises(LockTimeout, match="another thread used this journal"):
            journal.update(lambda _: ["ann", 1])
        go_on.set()
        thread.join()


def test_compaction_that_another_one_has_passed_writes_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log begins after its state: killed in the middle, it would leave a useless snapshot."""
    with (
        Journal(tmp_path / "j", Log(), page_bytes=PAGE, snapshots=1) as journal,
        another_handle(journal, snapshots=1) as other,
    ):
        for number in range(40):
            journal.update(lambda _, number=number: f"{number}" + "." * 3000)  # type: ignore[misc]
        run = Compactor.run

        def late(compactor: Compactor, sequence: int, state: object) -> CompactionReport:
            if compactor is journal._compactor:
                for number in range(40):
                    other.update(lambda _, number=number: f"{number}" + "." * 3000)  # type: ignore[misc]
                assert other.compact().pages
            return run(compactor, sequence, state)

        monkeypatch.setattr(Compactor, "run", late)
        assert journal.compact().sequence is None
        assert journal._snapshots.sequences() == [80]
        assert journal.queue.head_sequence > 40
        assert journal.verify().ok
