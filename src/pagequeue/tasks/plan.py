"""Transactions: what a caller asks for becomes an entry for one state, or a refusal.

The functions read a state and change no task. A journal appends their entry only if the state is
still the one that they read, so what they checked holds when the entry takes effect.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pagequeue.errors import Conflict, InvalidOption, Stale
from pagequeue.tasks.machine import (
    AT_ONCE,
    BURY,
    CHANGE,
    CLAIM,
    DELETE,
    DEPEND,
    EXTEND,
    FINISH,
    INSERT,
    NACK,
    UNDO,
)
from pagequeue.tasks.task import Modified, Task, task_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from pagequeue.tasks.state import Lane, Moment, Ready, Record, State
    from pagequeue.util.retry import Retry

LEASE_ENDED: Final = "was kept until its lease ended"
GIVEN_BACK: Final = "was given back"
SORTED_SHARE: Final = 8
"""A heap is sorted when it has at most so many entries for each one that is taken."""

Ref = tuple[int, int]
_TASK: Final = tuple.__new__
"""Makes a Task of a tuple with its fields, in a third of the time that `Task(...)` takes."""


class Insertion(NamedTuple):
    """A task to insert, with its payload encoded and its time as operations have it."""

    queue: str
    payload: bytes
    at: int | None
    priority: int
    key: str | None


class Change(NamedTuple):
    """What to change in a task; None: as it is."""

    queue: str | None = None
    payload: bytes | None = None
    at: int | None = None
    priority: int | None = None


class Transaction(NamedTuple):
    """All that is to happen at once.

    Attributes:
        insert: new tasks.
        change: by id and version.
        delete: ids and versions.
        depend: ids and versions that must be current, and stay as they are.
        finish: ids and versions whose work is done.
    """

    insert: Sequence[Insertion] = ()
    change: Sequence[tuple[Ref, Change]] = ()
    delete: Sequence[Ref] = ()
    depend: Sequence[Ref] = ()
    finish: Sequence[Ref] = ()


def check(wanted: Transaction) -> None:
    """Raise InvalidOption if a transaction names a task, or a key, twice."""
    if sum(map(len, wanted)) < 2:
        return
    numbers = [number for number, _ in (*wanted.finish, *wanted.delete, *wanted.depend)]
    numbers += [number for (number, _), _ in wanted.change]
    keys = [new.key for new in wanted.insert if new.key is not None]
    _refuse_twice("task", numbers)
    _refuse_twice("key", keys)


def _refuse_twice(what: str, names: Sequence[Hashable]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidOption(
            f"{what} {twice!r} is there twice in one transaction", remedy="name each once"
        )


def modify(state: State, now: Moment, wanted: Transaction, path: str) -> tuple[list[Any], Modified]:
    """Return the entry of a transaction, and what it writes.

    Args:
        state: to write for.
        now: by both clocks.
        wanted: what is to happen.
        path: of the store, for the error.

    Raises:
        Stale: a version is not current, or a key is in use.
    """
    entry: list[Any] = [*now]
    entry += [(FINISH, number, version) for number, version in wanted.finish]
    entry += [[DELETE, *ref] for ref in wanted.delete]
    entry += [[DEPEND, *ref] for ref in wanted.depend]
    _check_versions(state, wanted, path)
    codec = state.codec or ""
    changed: list[Task] = []
    for ref, change in wanted.change:
        at = AT_ONCE if change.queue is not None and change.at is None else change.at
        entry.append([CHANGE, *ref, change.queue, change.payload, at, change.priority])
        when = None if at is None else _when(now, at)
        changed.append(_changed(task_of(state.tasks[ref[0]], codec, now), change, when))
    inserted: list[Task] = []
    for number, new in enumerate(wanted.insert, state.next_id):
        queue, payload, at, priority, key = new
        entry.append((INSERT, queue, payload, at, priority, key))
        inserted.append(
            _TASK(
                Task,
                (
                    number,
                    1,
                    queue,
                    payload,
                    _when(now, at),
                    priority,
                    0,
                    None,
                    None,
                    False,
                    now[0],
                    key,
                    codec,
                ),
            )
        )
    return entry, Modified(tuple(inserted), tuple(changed))


# The same for one task, in a third of the time: most transactions are these.


def insert_one(
    state: State, now: Moment, queue: str, payload: bytes, at: int | None, priority: int
) -> tuple[list[Any], Task]:
    """Return the entry that inserts one task without a key, and the task."""
    task = _TASK(
        Task,
        (
            state.next_id,
            1,
            queue,
            payload,
            _when(now, at),
            priority,
            0,
            None,
            None,
            False,
            now[0],
            None,
            state.codec or "",
        ),
    )
    return [*now, (INSERT, queue, payload, at, priority, None)], task


def _when(now: Moment, at: int | None) -> int:
    """Return from when a task can be claimed, by the time in its operation."""
    if at is None or at == AT_ONCE:
        return now[0]
    return now[0] - at if at < 0 else at


def finish_one(state: State, now: Moment, number: int, version: int, path: str) -> list[Any]:
    """Return the entry that removes one task whose work is done.

    Raises:
        Stale: the version is not current.
    """
    record = state.tasks.get(number)
    if record is None or record.version != version:
        raise stale(path, conflicts(state, [(number, version)]))
    return [*now, (FINISH, number, version)]


def _check_versions(state: State, wanted: Transaction, path: str) -> None:
    tasks = state.tasks
    conflicts: list[Conflict] = []
    for refs in (wanted.finish, wanted.delete, wanted.depend, [ref for ref, _ in wanted.change]):
        for number, version in refs:
            record = tasks.get(number)
            if record is None or record.version != version:
                actual = None if record is None else record.version
                conflicts.append(Conflict(number, version, actual))
    conflicts += [
        Conflict(number, None, tasks[number].version, key)
        for _, _, _, _, key in wanted.insert
        if key is not None and (number := state.keys.get(key, 0))
    ]
    if conflicts:
        raise stale(path, conflicts)


def _conflict(state: State, ref: Ref) -> Conflict | None:
    number, version = ref
    record = state.tasks.get(number)
    if record is None:
        return Conflict(number, version, None)
    return None if record.version == version else Conflict(number, version, record.version)


def stale(path: str, conflicts: Sequence[Conflict]) -> Stale:
    """Return the error for versions that are not current."""
    first = conflicts[0]
    if first.key is not None:
        text = f"key {first.key!r} is in use by task {first.id}"
    elif first.actual_version is None:
        text = f"task {first.id} is not in the store any more"
    else:
        text = f"task {first.id} has version {first.actual_version}, not {first.version}"
    more = f", and {len(conflicts) - 1} more conflicts" if len(conflicts) > 1 else ""
    return Stale(
        f"nothing was written: {text}{more}",
        path=path,
        remedy="read the tasks again and decide anew; a lost claim is another worker's",
        conflicts=tuple(conflicts),
    )


def _claimed(record: Record, until: int, worker: str, codec: str) -> Task:
    return _TASK(
        Task,
        (
            record.id,
            record.version + 1,
            record.queue,
            record.payload,
            until,
            record.priority,
            record.deliveries + 1,
            worker,
            record.reason,
            False,
            record.created,
            record.key,
            codec,
        ),
    )


def _changed(task: Task, change: Change, at: int | None) -> Task:
    """Return a task as a change makes it."""
    task = task._replace(
        version=task.version + 1,
        queue=task.queue if change.queue is None else change.queue,
        payload=task.payload if change.payload is None else change.payload,
        priority=task.priority if change.priority is None else change.priority,
    )
    if at is None:
        return task
    return task._replace(at=at, worker=None, reason=None, deliveries=0, is_dead=False)


# --- claims ---------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What to claim: names of task queues, most tasks, and the lease of each."""

    queues: Sequence[str]
    limit_count: int
    lease_ns: int


class Claims(NamedTuple):
    """Claims, as an entry; or when to try again.

    Attributes:
        entry: None: there is nothing to claim, to bury, or to let wait.
        tasks: as they are when they are claimed.
        seconds_left: if none is claimed: until the next one can be; None: none waits.
    """

    entry: list[Any] | None
    tasks: list[Task]
    seconds_left: float | None


def claim(
    state: State,
    now: Moment,
    queues: Sequence[str],
    *,
    lease_ns: int,
    worker: str,
    retry: Retry,
    limit_count: int = 1,
) -> Claims:
    """Return the entry that claims the next tasks: by priority, then the one that is due longest.

    A task whose lease ended waits first, as after a `nack`. Its worker died or hung, and the next
    one may do so too: it is claimed alone, so that no other task counts that as its delivery.

    Args:
        state: to write for.
        now: by both clocks.
        queues: names of task queues.
        lease_ns: of each claim.
        worker: its name.
        retry: what becomes of tasks whose deliveries failed.
        limit_count: most tasks to claim.
    """
    until, codec = now[0] + lease_ns, state.codec or ""
    names = queues if len(queues) == 1 else dict.fromkeys(queues)
    lanes = [lane for name in names if (lane := state.lanes.get(name)) is not None]
    entry: list[Any] = [*now]
    tasks: list[Task] = []
    for ready in _in_order(lanes, now, limit_count):
        record = ready[4]
        if retry.is_spent(record.deliveries):
            entry.append([BURY, record.id, record.version, reason_of(record)])
            continue
        if wait := _backoff_left(record, now, retry):
            entry.append([NACK, record.id, record.version, now[0] + wait, LEASE_ENDED])
            continue
        is_alone = reason_of(record) == LEASE_ENDED
        if is_alone and tasks:
            break
        entry.append((CLAIM, record.id, record.version, until, worker))
        tasks.append(_claimed(record, until, worker, codec))
        if is_alone or len(tasks) == limit_count:
            break
    if tasks:
        return Claims(entry, tasks, None)
    left = [seconds for lane in lanes if (seconds := lane.seconds_left(now)) is not None]
    return Claims(entry if len(entry) > 2 else None, [], min(left, default=None))


def _backoff_left(record: Record, now: Moment, retry: Retry) -> int:
    """Return how long a task is to wait whose lease ended, in ns; 0 for all others."""
    if record.worker is None or not record.due:
        return 0
    delay = retry.delay_ns(record.id, record.deliveries)
    return max(0, record.due + delay - now[1])


def claim_one(
    state: State,
    now: Moment,
    queues: Sequence[str],
    *,
    lease_ns: int,
    worker: str,
    retry: Retry,
) -> tuple[list[Any], Task] | None:
    """Return the entry that claims the next task, and the task; None: `claim` has to find out.

    The same as `claim` for one task that did not fail, in less time.
    """
    found: Ready | None = None
    for name in queues:
        lane = state.lanes.get(name)
        if lane is not None:
            ready = lane.first(now)
            if ready is not None and (found is None or ready < found):
                found = ready
    if found is None:
        return None
    record, until = found[4], now[0] + lease_ns
    if record.worker is not None or retry.is_spent(record.deliveries):
        return None
    task = _claimed(record, until, worker, state.codec or "")
    return [*now, (CLAIM, record.id, record.version, until, worker)], task


def _in_order(lanes: list[Lane], now: Moment, count: int) -> Iterator[Ready]:
    """Yield the entries of tasks that can be claimed, in the order in which they are.

    Args:
        lanes: of the tasks; they are as they were when the iterator is closed.
        now: by both clocks.
        count: so many will do, mostly.
    """
    if len(lanes) == 1 and lanes[0].first(now) is not None:
        ready = lanes[0].ready
        if len(ready) <= SORTED_SHARE * count:  # a sorted list is a heap, too
            ready.sort()
            yield from [entry for entry in ready if entry[4].version == entry[3]]
            return
    passed: list[tuple[Lane, Ready]] = []
    try:
        while (found := _first(lanes, now)) is not None:
            yield found[1]
            passed.append((found[0], heappop(found[0].ready)))
    finally:  # the state stays as it is until the entry takes effect
        for lane, entry in passed:
            heappush(lane.ready, entry)


def _first(lanes: list[Lane], now: Moment) -> tuple[Lane, Ready] | None:
    best: tuple[Lane, Ready] | None = None
    for lane in lanes:
        ready = lane.first(now)
        if ready is not None and (best is None or ready < best[1]):
            best = lane, ready
    return best


def reason_of(record: Record) -> str:
    """Return why a task that was claimed too often is not done."""
    if record.worker is not None:
        return LEASE_ENDED
    return record.reason or GIVEN_BACK


def nack(
    state: State,
    now: Moment,
    refs: Sequence[Ref],
    *,
    delay_ns: int | None,
    reason: str | None,
    retry: Retry,
) -> list[Any]:
    """Return the entry that gives claimed tasks back; those claimed too often become dead.

    The versions must be current; see `conflicts`. They wait for a given time, or as long as the
    rule says.
    """
    entry: list[Any] = [*now]
    for number, version in refs:
        deliveries = state.tasks[number].deliveries
        if retry.is_spent(deliveries):
            entry.append([BURY, number, version, reason or GIVEN_BACK])
        else:
            waits = retry.delay_ns(number, deliveries) if delay_ns is None else delay_ns
            entry.append([NACK, number, version, now[0] + waits, reason])
    return entry


def undo(now: Moment, refs: Sequence[Ref]) -> list[Any]:
    """Return the entry that gives claims back that nobody got; the versions must be current."""
    return [*now, *[[UNDO, *ref] for ref in refs]]


def extend(now: Moment, ref: Ref, until: int) -> list[Any]:
    """Return the entry that extends a claim."""
    return [*now, [EXTEND, *ref, until]]


def conflicts(state: State, refs: Sequence[Ref]) -> list[Conflict]:
    """Return the conflicts of ids and versions with a state."""
    return [conflict for ref in refs if (conflict := _conflict(state, ref)) is not None]
