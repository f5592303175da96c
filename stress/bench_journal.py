"""Measures journals and task stores: python -m stress.bench_journal [--quick] [CASE ...].

`--directory` names a place on the file system in question; the default is the temporary directory.
Each ratio is of figures of one run that were measured in turn. The peer of task stores is a table
of tasks in SQLite, by the standard library: WAL, an index in the order of claims, one statement for
each step. The exit code is 0 even when goals are missed, and 1 when a case failed to measure.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from pagequeue import Queue
from pagequeue.journal import Journal
from pagequeue.schema.codec import codec_of
from pagequeue.tasks import NewTask, TaskStore
from stress.bench.turns import in_turns, median_ratio, seconds_of
from stress.bench_consumers.case import Figure
from stress.bench_consumers.command import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from pagequeue.types import CodecName
    from stress.bench_consumers.case import Case

VALUE = {"image": "1.png", "size": [640, 480]}
LEASE = 30.0
ROUNDS, DURABLE_ROUNDS = 41, 7
"""Many short ones: what a busy machine disturbs is not the median of their ratios."""
CYCLES, DURABLE_CYCLES, SHARED_CYCLES = 200, 50, 1_000
AT_ONCE = 100
PROCESSES = 4
SHARED_SECONDS_MAX = 300.0
SENDS, SEND_ROUNDS, REPLAYED = 2_000, 201, 1_000_000
FAIR_SECONDS, SLOW_SECONDS = 5.0, 0.005
LIVE = 20
DEAD_SHARES = (1_000, 10_000, 100_000)
REOPENINGS = 101
CYCLE_GOAL, SHARED_GOAL, SEND_GOAL, REPLAY_GOAL, REOPEN_GOAL = 10.0, 5.0, 1.1, 1e6, 2.0
FAIR_GOAL = 0.5
"""Of a fair share: far from starving, on cores that other work shares unevenly."""
CLAIM = (
    "update task set due = ?, version = version + 1, worker = ? where id = (select id from task "
    "where queue = ? and due <= ? order by priority desc, due, id limit 1) "
    "returning id, version, value"
)


class Tasks(Protocol):
    """What is measured: tasks of one process."""

    def cycle(self) -> None:
        """Insert a task, claim it and finish it, each on its own."""

    def many(self) -> None:
        """Do so with `AT_ONCE` tasks, each step in one transaction."""

    def close(self) -> None:
        """Close it."""


class Ours:
    """A task store."""

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        self._store = TaskStore(directory, sync="always" if durable else "none")

    def cycle(self) -> None:
        """See `Tasks`."""
        store = self._store
        store.insert("a", VALUE)
        claim = store.claim("a", LEASE)
        assert claim.value == VALUE
        claim.ack()

    def many(self) -> None:
        """See `Tasks`."""
        store = self._store
        store.modify(insert=[NewTask("a", VALUE)] * AT_ONCE)
        claims = store.claim_many("a", AT_ONCE, LEASE)
        assert [claim.value for claim in claims] == [VALUE] * AT_ONCE
        store.finish([claim.task.ref for claim in claims])

    def close(self) -> None:
        """See `Tasks`."""
        self._store.close()


class Sqlite:
    """A table of tasks."""

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        directory.mkdir(exist_ok=True)
        codec = codec_of("json")  # the store's: what is compared is the storing
        self._encode, self._decode = codec.encode, codec.decode
        self._db = db = sqlite3.connect(directory / "tasks", isolation_level=None, timeout=60)
        db.execute("pragma journal_mode = wal")
        db.execute(f"pragma synchronous = {'full' if durable else 'off'}")
        db.execute(
            "create table if not exists task(id integer primary key, queue text, value blob, "
            "due integer, priority integer, version integer, worker text)"
        )
        db.execute("create index if not exists next on task(queue, priority desc, due, id)")

    def _insert(self) -> None:
        self._db.execute(
            "insert into task(queue, value, due, priority, version) values ('a', ?, ?, 0, 1)",
            (self._encode(VALUE), time.time_ns()),
        )

    def _claim(self) -> tuple[int, int]:
        row = None
        while row is None:  # another process's task can be later than this time
            now = time.time_ns()
            row = self._db.execute(CLAIM, (now + int(LEASE * 1e9), "w", "a", now)).fetchone()
        assert self._decode(row[2]) == VALUE
        return row[0], row[1]

    def _finish(self, ref: tuple[int, int]) -> None:
        found = self._db.execute("delete from task where id = ? and version = ?", ref)
        assert found.rowcount == 1

    def cycle(self) -> None:
        """See `Tasks`."""
        self._insert()
        self._finish(self._claim())

    def many(self) -> None:
        """See `Tasks`."""
        self._db.execute("begin immediate")
        for _ in range(AT_ONCE):
            self._insert()
        self._db.execute("commit")
        self._db.execute("begin immediate")
        refs = [self._claim() for _ in range(AT_ONCE)]
        self._db.execute("commit")
        self._db.execute("begin immediate")
        for ref in refs:
            self._finish(ref)
        self._db.execute("commit")

    def close(self) -> None:
        """See `Tasks`."""
        self._db.close()


def _compare(
    base: Path, name: str, goal: float, *, rounds: int, count: int, many: bool, durable: bool
) -> Figure:
    """Return how many times as fast as SQLite a store is, the two measured in turn."""
    ours = Ours(base / f"{name}-ours", durable=durable)
    theirs = Sqlite(base / f"{name}-theirs", durable=durable)

    def taken(tasks: Tasks) -> Callable[[int], float]:
        step = tasks.many if many else tasks.cycle

        def calls() -> None:
            for _ in range(count):
                step()

        return lambda _: seconds_of(calls) / count / (AT_ONCE if many else 1)

    found = in_turns({"ours": taken(ours), "theirs": taken(theirs)}, rounds)
    ours.close()
    theirs.close()
    return _ratio(name, goal, list(zip(found["ours"], found["theirs"], strict=True)))


def _ratio(name: str, goal: float, found: list[tuple[float, float]]) -> Figure:
    ours, theirs = (statistics.median(one) for one in zip(*found, strict=True))
    return Figure(
        f"{name}, times as fast as SQLite",
        median_ratio(found),
        "x",
        goal,
        details={"ours": f"{ours * 1e6:.1f} us a task", "SQLite": f"{theirs * 1e6:.1f} us a task"},
    )


def task_cycle(base: Path, *, quick: bool) -> list[Figure]:
    """Insert, claim and finish in one process."""
    rounds = 2 if quick else ROUNDS
    count = 20 if quick else CYCLES
    durable = 5 if quick else DURABLE_CYCLES
    common: dict[str, Any] = {"rounds": rounds}
    return [
        _compare(base, "one by one", CYCLE_GOAL, count=count, many=False, durable=False, **common),
        _compare(
            base,
            f"{AT_ONCE} at once",
            CYCLE_GOAL,
            count=max(1, count // AT_ONCE),
            many=True,
            durable=False,
            **common,
        ),
        _compare(
            base,
            "one by one, durable",
            CYCLE_GOAL,
            count=durable,
            many=False,
            durable=True,
            rounds=min(rounds, DURABLE_ROUNDS),
        ),
    ]


def _share(
    kind: type[Any], directory: Path, count: int, barrier: Barrier, *, durable: bool
) -> None:
    """Do so many cycles at the same time as others: any task may come."""
    tasks: Tasks = kind(directory, durable=durable)
    try:
        barrier.wait(SHARED_SECONDS_MAX)
        for _ in range(count):
            tasks.cycle()
        barrier.wait(SHARED_SECONDS_MAX)
    except BaseException:
        barrier.abort()  # the others would wait for this one
        raise
    tasks.close()


def _shared(kind: type[Any], directory: Path, count: int, *, durable: bool) -> float:
    """Return the seconds for each task of several processes together."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES + 1)
    kind(directory, durable=durable).close()
    workers = [
        context.Process(
            target=_share, args=(kind, directory, count, barrier), kwargs={"durable": durable}
        )
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    barrier.wait(SHARED_SECONDS_MAX)
    begin = time.perf_counter()
    barrier.wait(SHARED_SECONDS_MAX)
    seconds = time.perf_counter() - begin
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return seconds / (count * PROCESSES)


def four_processes(base: Path, *, quick: bool) -> list[Figure]:
    """Insert, claim and finish in four processes at once; each applies the entries of all.

    Durable, each step waits for a sync, which the processes share when they come together.
    """
    rounds = 1 if quick else 3
    figures = []
    for name, durable, cycles in (
        ("four processes", False, SHARED_CYCLES),
        ("four processes, durable", True, DURABLE_CYCLES),
    ):
        count = 20 if quick else cycles
        found = [
            tuple(
                _shared(kind, base / f"{name}-{kind.__name__}-{number}", count, durable=durable)
                for kind in (Ours, Sqlite)
            )
            for number in range(rounds)
        ]
        figures.append(_ratio(name, SHARED_GOAL, [(ours, theirs) for ours, theirs in found]))
    return figures


def send_at(base: Path, *, quick: bool) -> list[Figure]:
    """Send with a condition, to without, in processor time: 100 ns, which other work disturbs."""
    count, rounds = (1_000, 2) if quick else (SENDS, SEND_ROUNDS)
    payload = b"x" * 100
    with Queue(base / "queue", page_bytes=16 << 20) as queue, queue.producer() as producer:

        def plain(sequences: range) -> None:
            for _ in sequences:
                producer.send(payload)

        def on_condition(sequences: range) -> None:
            for sequence in sequences:
                producer.send(payload, at=sequence)

        def taken(send: Callable[[range], None]) -> Callable[[int], float]:
            def measured(_: int) -> float:
                tail = queue.tail_sequence
                begin = time.process_time()
                send(range(tail, tail + count))
                return (time.process_time() - begin) / count

            return measured

        found = in_turns({"send": taken(plain), "send(at=)": taken(on_condition)}, rounds)
    return [
        Figure(
            "send(at=) to send",
            median_ratio(list(zip(*found.values(), strict=True))),
            "x",
            SEND_GOAL,
            is_bound=True,
            details={name: f"{statistics.median(one) * 1e9:.0f} ns" for name, one in found.items()},
        )
    ]


class Count:
    """A machine that counts entries."""

    version = 1

    def initial(self) -> int:
        """Return 0."""
        return 0

    def apply(self, state: int, entry: Any, timestamp_ns: int) -> int:  # noqa: ANN401 - any entry
        """Return one more."""
        del entry, timestamp_ns
        return state + 1

    def dump(self, state: int) -> Iterable[bytes]:
        """Return the number."""
        return [str(state).encode()]

    def load(self, chunks: Iterable[bytes], version: int) -> int:
        """Return the number."""
        del version
        return int(b"".join(chunks))


def replay(base: Path, *, quick: bool) -> list[Figure]:
    """Open a journal without a snapshot: all entries are applied."""
    count = 10_000 if quick else REPLAYED
    figures = []
    kinds: list[tuple[CodecName, object]] = [
        ("bytes", b"x" * 100),
        ("msgpack", ["a", 5]),
        ("json", ["a", 5]),
    ]
    for codec, entry in kinds:
        directory = base / codec
        with Journal(directory, Count(), codec=codec, page_bytes=64 << 20) as journal:
            payload = journal._codec.encode(entry)
            for begin in range(0, count, 10_000):
                journal._producer.send_many([payload] * min(10_000, count - begin))
        rates, walls = [], []
        for _ in range(2 if quick else 3):
            begun, begun_processor = time.perf_counter(), time.process_time()
            with Journal(directory, Count(), codec=codec, read_only=True) as journal:
                rates.append(count / (time.process_time() - begun_processor))
                walls.append(count / (time.perf_counter() - begun))
                assert journal.state == count
        figures.append(
            Figure(
                f"replay, {codec}, in processor time",
                statistics.median(rates),
                "entries/s",
                REPLAY_GOAL,
                details={"by the wall's clock": f"{statistics.median(walls):,.0f}"},
            )
        )
    return figures


def reopening(base: Path, *, quick: bool) -> list[Figure]:
    """Open a task store after compaction: so many dead entries for each task that is left."""
    live, shares = (20, (10, 100)) if quick else (LIVE, DEAD_SHARES)
    directories: dict[str, Path] = {}
    for share in shares:
        directory = base / str(share)
        with TaskStore(directory) as store:
            store.modify(insert=[NewTask("live", VALUE) for _ in range(live)])
            _churn(store, live * share)
            store.compact()
            store.compact()
            text = f"{store.journal.sequence:,} entries, {live} tasks left"
        directories[text] = directory

    def taken(directory: Path) -> Callable[[int], float]:
        def opened() -> None:
            with TaskStore(directory) as store:
                assert len(store.tasks()) == live

        return lambda _: seconds_of(opened)

    found = in_turns(
        {text: taken(directory) for text, directory in directories.items()},
        3 if quick else REOPENINGS,
    )
    # Some ms each, which other processes can only lengthen.
    seconds = {text: min(each) for text, each in found.items()}
    times = list(seconds.values())
    return [
        Figure(
            "reopening, slowest to fastest",
            max(times) / min(times),
            "x",
            REOPEN_GOAL,
            is_bound=True,
            details={text: f"{one * 1e3:.2f} ms" for text, one in seconds.items()},
        )
    ]


def _churn(store: TaskStore, entries: int) -> None:
    """Write so many entries that leave no task, and compact now and then, as a user would."""
    task = store.insert("dead", 0)
    encode, send_many = store.journal._codec.encode, store.journal._producer.send_many
    written = 0
    while written < entries:
        versions = range(task.version + written, task.version + min(entries, written + 5_000))
        now = store._now()
        send_many(  # as `modify(change=...)` writes them, one entry each
            [encode([*now, [4, task.id, version, None, b"0", None, None]]) for version in versions]
        )
        written += len(versions)
        if written % 100_000 == 0:
            store.compact()
    current = store.get(task.id)
    assert current is not None
    store.modify(delete=[current.ref])


def _update(
    directory: Path, seconds: float, pause: float, barrier: Barrier, found: SimpleQueue[Any]
) -> None:
    """Update for a while, with a `decide` that sleeps; answer how often, and the longest time."""
    done, longest = 0, 0.0
    with Journal(directory, Count()) as journal:

        def decide(_: int) -> int:
            if pause:
                time.sleep(pause)
            return 0

        barrier.wait(SHARED_SECONDS_MAX)
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            journal.update(decide)
            longest = max(longest, time.monotonic() - begun)
            done += 1
    found.put((pause, done, longest))


def _updates(
    directory: Path, seconds: float, pauses: Sequence[float]
) -> list[tuple[float, int, float]]:
    """Return pause, updates and the longest one of processes at once, the slowest first."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(len(pauses)), context.SimpleQueue()
    Journal(directory, Count()).close()
    workers = [
        context.Process(target=_update, args=(directory, seconds, pause, barrier, found))
        for pause in pauses
    ]
    for worker in workers:
        worker.start()
    answers = [found.get() for _ in workers]
    for worker in workers:
        worker.join()
    return sorted(answers, key=lambda answer: (-answer[0], answer[1]))


def fairness(base: Path, *, quick: bool) -> list[Figure]:
    """Update from four processes at once: all alike, and one of them slow to decide.

    Fair is a quarter: of all updates; and, for the slow one, of those that it makes alone.
    """
    seconds = 0.3 if quick else FAIR_SECONDS
    alike = _updates(base / "alike", seconds, [0.0] * PROCESSES)
    mean = statistics.mean(done for _, done, _ in alike)
    (_, alone, _), *_ = _updates(base / "alone", seconds, [SLOW_SECONDS])
    (_, slow, longest), *others = _updates(
        base / "slow", seconds, [SLOW_SECONDS] + [0.0] * (PROCESSES - 1)
    )
    return [
        Figure(
            "of four alike, the one with the fewest updates, to a fair share",
            alike[0][1] / mean,
            "x",
            FAIR_GOAL,
            details={
                "updates": ", ".join(f"{done:,}" for _, done, _ in alike),
                "longest update": f"{max(one for _, _, one in alike) * 1e3:.0f} ms",
            },
        ),
        Figure(
            f"one whose decide takes {SLOW_SECONDS * 1e3:g} ms among three quick ones, to a fair "
            "share",
            PROCESSES * slow / alone,
            "x",
            FAIR_GOAL,
            details={
                "its updates; alone": f"{slow:,}; {alone:,}",
                "its longest update": f"{longest * 1e3:.0f} ms",
                "updates of the others": ", ".join(f"{done:,}" for _, done, _ in others),
            },
        ),
    ]


CASES: dict[str, Case] = {
    "task_cycle": task_cycle,
    "four_processes": four_processes,
    "fairness": fairness,
    "send_at": send_at,
    "replay": replay,
    "reopening": reopening,
}


if __name__ == "__main__":
    sys.exit(main("bench_journal", CASES))
