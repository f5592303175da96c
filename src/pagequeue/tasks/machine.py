"""The state machine of a task store: entries of its journal, and what each makes of the state.

An entry is a list: the time of its transaction in ns since 1970, by its author's clock, and in ns
of the even clock that the state counts by; then operations, each a list that begins with its code:

| code | operation | effect |
| --- | --- | --- |
| 0 | queue, payload, at, priority, key | inserts a task with the next id; at None: at once |
| 1 | id, version, until, worker | claims it until then |
| 2 | id, version | removes it: its work is done |
| 3 | id, version | removes it |
| 4 | id, version, queue, payload, at, priority | changes what is not None; at releases it |
| 5 | id, version | none: the transaction depends on this version |
| 6 | id, version, at, reason | gives a claimed one back, to be claimed from then on |
| 7 | id, version, until | extends a claim |
| 8 | id, version, reason | makes it dead |
| 9 | codec | names the codec of payloads |
| 10 | boot | counts by another even clock |
| 11 | id, version | gives a claimed one back at once, which nobody got: that claim does not count |

A time `at` below 0 is a delay: so many ns from then on, and -1 at once. Delays and leases are
measured by the even clock, so that they last as long as they say however the other one is set.

An entry takes effect as a whole. `plan.py` writes entries for the state that they will be applied
to, and the journal appends them only to that state; so an operation whose version is not that of
its task is damage, and `apply` raises before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop
from typing import TYPE_CHECKING, Any, Final

from pagequeue.tasks.state import (
    CLAIMED,
    DELETED,
    DIED,
    DONE,
    GONE,
    INSERTED,
    NACKED,
    TOTALS,
    Record,
    State,
)
from pagequeue.util.optional import library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INSERT, CLAIM, FINISH, DELETE, CHANGE, DEPEND, NACK, EXTEND, BURY, CODEC, BOOT, UNDO = range(12)
AT_ONCE: Final = -1
"""As the time of a task: when the transaction is."""
CHUNK_BYTES: Final = 64 * 1024
"""Payloads in one message of a snapshot, unless a single one is larger."""
FIELDS: Final[tuple[tuple[type, ...], ...]] = (
    (int,),
    (int,),
    (str,),
    (bytes,),
    (int,),
    (int,),
    (int,),
    (str, type(None)),
    (str, type(None)),
    (bool,),
    (int,),
    (str, type(None)),
    (int, type(None)),
)
"""The types of what `Record` takes."""
TEXT: Final = (str, type(None))

Entry = Sequence[Any]


class InvalidEntry(ValueError):
    """An entry that no transaction of a task store wrote for this state."""


class TaskMachine:
    """A deterministic machine whose state is the tasks of a store."""

    version = 1

    def initial(self) -> State:
        """Return a store without tasks."""
        return State()

    def apply(self, state: State, entry: Entry, timestamp_ns: int) -> None:
        """Apply an entry to a state, in place.

        Args:
            state: that the entry was written for.
            entry: a list, as the module describes it.
            timestamp_ns: of the journal; not used, because entries have their author's time.

        Raises:
            InvalidEntry: the entry does not fit the state, which is unchanged.
        """
        _check(state, entry)
        if len(entry) == 3:  # in line, because every process does this for all entries of others
            operation = entry[2]
            _EFFECTS[operation[0]](state, entry, operation)
            state.last = entry[0], entry[1]
        else:
            self.apply_own(state, entry, timestamp_ns)

    def apply_own(self, state: State, entry: Entry, timestamp_ns: int) -> None:
        """Apply an entry that `plan.py` wrote for this very state, so that no check can fail.

        Args:
            state: as for `apply`.
            entry: as for `apply`.
            timestamp_ns: as for `apply`.
        """
        del timestamp_ns
        if len(entry) == 3:  # every process applies every entry: without the loop it is faster
            operation = entry[2]
            _EFFECTS[operation[0]](state, entry, operation)
        else:
            effects = _EFFECTS
            for operation in entry[2:]:
                effects[operation[0]](state, entry, operation)
        state.last = entry[0], entry[1]

    def dump(self, state: State) -> Iterator[bytes]:
        """Yield a state in chunks; equal states yield equal chunks."""
        encode = _msgpack().encode
        head = [state.next_id, state.codec, state.totals, len(state.tasks), state.boot]
        yield encode([*head, *state.last])
        rows: list[list[object]] = []
        size = 0
        for record in state.tasks.values():
            if rows and size + len(record.payload) > CHUNK_BYTES:
                yield encode(rows)
                rows, size = [], 0
            rows.append(record.fields())
            size += len(record.payload) + 128
        if rows:
            yield encode(rows)

    def load(self, chunks: Iterable[bytes], version: int) -> State:
        """Return the state that `dump` wrote.

        Raises:
            InvalidEntry: another program wrote it, or another version.
        """
        if version != self.version:
            raise InvalidEntry(
                f"a state of version {version}; this library knows version {self.version}"
            )
        decode = _msgpack().decode
        state, rows = State(), iter(chunks)
        try:
            head = decode(next(rows))
            state.next_id, state.codec, state.totals, count, state.boot, *last = head
            wall, elapsed = last
            state.last = wall, elapsed
            state.enter(_record(fields) for chunk in rows for fields in decode(chunk))
        except (StopIteration, TypeError, ValueError) as error:
            raise InvalidEntry(f"not a state of a task store: {error}") from error
        _check_loaded(state, count)
        return state


def _msgpack() -> Any:  # noqa: ANN401 - it need not be installed
    return library("msgspec.msgpack", "codecs", "task stores")


# --- checks ---------------------------------------------------------------------------------------


_LISTS: Final = frozenset((list, tuple))


def _check(state: State, entry: Entry) -> None:
    """Raise unless all operations of an entry fit a state, and no two are about one task."""
    if type(entry) not in _LISTS or len(entry) < 3 or {type(entry[0]), type(entry[1])} != {int}:
        raise InvalidEntry("not a list of two times and operations")
    try:
        if len(entry) == 3:
            operation = entry[2]
            if type(operation) not in _LISTS or type(operation[0]) is not int:
                raise InvalidEntry("not an operation")
            _CHECKS[operation[0]](state, operation)
            return
        seen: set[int | str] = set()
        for operation in entry[2:]:
            if type(operation) not in _LISTS or type(operation[0]) is not int:
                raise InvalidEntry("not an operation")
            subject = _CHECKS[operation[0]](state, operation)
            if subject is not None:
                if subject in seen:
                    raise InvalidEntry(f"two operations are about {subject!r}")
                seen.add(subject)
    except (TypeError, LookupError, ValueError) as error:  # ValueError: another number of fields
        if isinstance(error, InvalidEntry):
            raise
        raise InvalidEntry("an operation is unknown, or has other fields") from error


# Each returns the task or the key that an operation is about, and raises unless it fits a state.
# `type(x) is` and not `isinstance`: a bool is no number here. Written out, because every process
# runs them for every entry of another.


def _check_insert(state: State, operation: Sequence[Any]) -> str | None:
    _, queue, payload, at, priority, key = operation
    if (
        type(queue) is not str
        or type(payload) is not bytes
        or type(priority) is not int
        or (at is not None and type(at) is not int)
    ):
        raise _unknown()
    if key is None:
        return None
    if type(key) is not str:
        raise _unknown()
    if key in state.keys:
        raise InvalidEntry(f"key {key!r} is in use")
    return key


def _check_claim(state: State, operation: Sequence[Any]) -> int:
    _, number, _, until, worker = operation
    if type(until) is not int or type(worker) is not str:
        raise _unknown()
    if _current(state, operation).is_dead:
        raise InvalidEntry(f"task {number} is dead")
    return number  # type: ignore[no-any-return]


def _check_removal(state: State, operation: Sequence[Any]) -> int:
    if len(operation) != 3:
        raise _unknown()
    return _current(state, operation).id


def _check_undo(state: State, operation: Sequence[Any]) -> int:
    if len(operation) != 3:
        raise _unknown()
    return _claimed(state, operation)


def _check_change(state: State, operation: Sequence[Any]) -> int:
    _, _, _, queue, payload, at, priority = operation
    if (
        type(queue) not in _TEXT
        or type(payload) not in _BYTES
        or type(at) not in _WHOLE
        or type(priority) not in _WHOLE
    ):
        raise _unknown()
    record = _current(state, operation)
    if queue is not None and at is None:
        raise InvalidEntry(f"task {record.id} is moved without a time")
    return record.id


def _check_nack(state: State, operation: Sequence[Any]) -> int:
    if len(operation) != 5 or type(operation[3]) is not int or type(operation[4]) not in _TEXT:
        raise _unknown()
    return _claimed(state, operation)


def _check_extend(state: State, operation: Sequence[Any]) -> int:
    if len(operation) != 4 or type(operation[3]) is not int:
        raise _unknown()
    return _claimed(state, operation)


def _check_bury(state: State, operation: Sequence[Any]) -> int:
    if len(operation) != 4 or type(operation[3]) is not str:
        raise _unknown()
    record = _current(state, operation)
    if record.is_dead:
        raise InvalidEntry(f"task {record.id} is dead")
    return record.id


def _check_codec(state: State, operation: Sequence[Any]) -> None:
    if len(operation) != 2 or type(operation[1]) is not str:
        raise _unknown()
    if state.codec is not None:
        raise InvalidEntry("a second codec")


def _check_boot(state: State, operation: Sequence[Any]) -> None:
    if len(operation) != 2 or type(operation[1]) is not bytes:
        raise _unknown()
    if operation[1] == state.boot:
        raise InvalidEntry("it counts by this clock already")


def _current(state: State, operation: Sequence[Any]) -> Record:
    """Return the task of an operation, which has the version that it names."""
    number, version = operation[1], operation[2]
    if type(number) is not int or type(version) is not int:
        raise _unknown()
    record = state.tasks.get(number)
    if record is None or record.version != version:
        raise InvalidEntry(f"task {number} is not of version {version}")
    return record


def _claimed(state: State, operation: Sequence[Any]) -> int:
    record = _current(state, operation)
    if record.worker is None:
        raise InvalidEntry(f"task {record.id} is not claimed")
    return record.id


def _unknown() -> InvalidEntry:
    return InvalidEntry("an operation is unknown, or has fields of other types")


_TEXT: Final = frozenset(TEXT)
_BYTES: Final = frozenset((bytes, type(None)))
_WHOLE: Final = frozenset((int, type(None)))
_CHECKS: Final[dict[int, Callable[[State, Sequence[Any]], int | str | None]]] = {
    INSERT: _check_insert,
    CLAIM: _check_claim,
    FINISH: _check_removal,
    DELETE: _check_removal,
    CHANGE: _check_change,
    DEPEND: _check_removal,
    NACK: _check_nack,
    EXTEND: _check_extend,
    BURY: _check_bury,
    CODEC: _check_codec,
    BOOT: _check_boot,
    UNDO: _check_undo,
}


# --- effects --------------------------------------------------------------------------------------


# Each takes the state, the entry, of which only the times are used, and the operation, which was
# checked.


def _when(entry: Entry, at: int | None) -> tuple[int, int | None]:
    """Return the fields `at` and `due` of a task for the time in an operation."""
    if at is None or at == AT_ONCE:
        return entry[0], 0
    if at < 0:
        return entry[0] - at, entry[1] - at
    return at, None


def _delayed(entry: Entry, at: int) -> int:
    """Return `due` for what is so long after an entry."""
    delay = at - entry[0]
    return entry[1] + delay if delay > 0 else 0


def _insert(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, queue, payload, at, priority, key = operation
    number = state.next_id
    at, due = _when(entry, at)
    record = Record(
        number,
        1,
        queue,
        payload,
        at,
        priority,
        0,
        None,
        None,
        False,
        entry[0],
        key,
        due,
    )
    state.next_id = number + 1
    state.tasks[number] = record
    if key is not None:
        state.keys[key] = number
    lane = state.lanes.get(queue) or state.lane(queue)
    lane.size += 1
    lane.push(record)
    state.totals[INSERTED] += 1


def _claim(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, number, version, until, worker = operation
    record = state.tasks[number]
    record.version = version + 1
    record.at = until
    record.due = _delayed(entry, until)
    record.worker = worker
    record.deliveries += 1
    lane = state.lanes[record.queue]
    if (ready := lane.ready) and ready[0][4] is record:  # mostly: what is claimed is the first
        heappop(ready)
    lane.push(record)
    state.totals[CLAIMED] += 1


def _remove(total: int, state: State, entry: Entry, operation: Sequence[Any]) -> None:
    record = state.tasks.pop(operation[1])
    record.version = GONE
    if record.key is not None:
        del state.keys[record.key]
    lane = state.lanes[record.queue]
    lane.size -= 1
    lane.dead -= record.is_dead
    if (waiting := lane.waiting) and waiting[0][3] is record:  # often: a claim that ended well
        heappop(waiting)
    else:
        lane.first((entry[0], entry[1]))
    state.totals[total] += 1


def _change(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, number, version, queue, payload, at, priority = operation
    record = state.tasks[number]
    lane = state.lanes[record.queue]
    record.version = version + 1
    if payload is not None:
        record.payload = payload
    if priority is not None:
        record.priority = priority
    if queue is not None and queue != record.queue:
        lane.size -= 1
        lane.dead -= record.is_dead
        lane = state.lane(queue)
        lane.size += 1
        lane.dead += record.is_dead
        record.queue = queue
    if at is not None:
        lane.dead -= record.is_dead
        record.at, record.due = _when(entry, at)
        record.worker = record.reason = None
        record.deliveries = 0
        record.is_dead = False
    if not record.is_dead:
        lane.push(record)


def _depend(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    del state, entry, operation


def _nack(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, number, version, at, reason = operation
    record = state.tasks[number]
    record.version = version + 1
    record.at = at
    record.due = _delayed(entry, at)
    record.worker = None
    record.reason = reason
    state.lanes[record.queue].push(record)
    state.totals[NACKED] += 1


def _undo(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, number, version = operation
    record = state.tasks[number]
    record.version = version + 1
    record.at, record.due = entry[0], 0
    record.worker = None
    record.deliveries -= 1
    state.lanes[record.queue].push(record)
    state.totals[CLAIMED] -= 1


def _extend(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, number, version, until = operation
    record = state.tasks[number]
    record.version = version + 1
    record.at = until
    record.due = _delayed(entry, until)
    state.lanes[record.queue].push(record)


def _bury(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    _, number, version, reason = operation
    record = state.tasks[number]
    record.version = version + 1
    record.worker = None
    record.reason = reason
    record.is_dead = True
    lane = state.lanes[record.queue]
    lane.dead += 1
    lane.first((entry[0], entry[1]))
    state.totals[DIED] += 1


def _codec(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    del entry
    state.codec = operation[1]


def _boot(state: State, entry: Entry, operation: Sequence[Any]) -> None:
    state.begin_boot(operation[1], (entry[0], entry[1]))


_EFFECTS: Final[dict[int, Callable[[State, Entry, Sequence[Any]], None]]] = {
    INSERT: _insert,
    CLAIM: _claim,
    FINISH: partial(_remove, DONE),
    DELETE: partial(_remove, DELETED),
    CHANGE: _change,
    DEPEND: _depend,
    NACK: _nack,
    EXTEND: _extend,
    BURY: _bury,
    CODEC: _codec,
    BOOT: _boot,
    UNDO: _undo,
}


# --- snapshots ------------------------------------------------------------------------------------


def _record(fields: Sequence[Any]) -> Record:
    if [type(value) in kinds for value, kinds in zip(fields, FIELDS, strict=True)].count(False):
        raise TypeError("a task has a field of another type")
    return Record(*fields)


def _check_loaded(state: State, count: object) -> None:
    if (
        type(state.next_id) is not int
        or type(state.codec) not in TEXT
        or type(state.boot) is not bytes
        or {type(time) for time in state.last} != {int}
        or len(state.totals) != len(TOTALS)
        or any(type(total) is not int for total in state.totals)
    ):
        raise InvalidEntry("not a state of a task store")
    if count != len(state.tasks):
        raise InvalidEntry(f"a state of {count} tasks has {len(state.tasks)}")
