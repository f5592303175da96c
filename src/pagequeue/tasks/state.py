"""The tasks of a store in memory, with what finds the next one.

A lane is a queue of tasks. Each of its tasks that is not dead has one valid entry in one of three
heaps: `ready`, in the order in which tasks are claimed; `scheduled`, in the order of the times from
which they can be claimed, for a time that a user named; `waiting`, in that order too, but by a
clock that runs evenly, for what is to be so much later: claims, whose leases end then, and delays.
An entry is valid while its version is that of its task, so a change only pushes a new entry.
Entries that became invalid are popped when they are the first, and filtered out when a heap has
doubled: each costs a constant number of steps.

Heaps are derived from the tasks and are in no snapshot. Moving an entry to `ready` changes no task,
so a process may do it by its own clocks. In which heap a task is depends on the task alone, so that
it is the same whether a process applied the entries or loaded a snapshot.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEAP_MIN: Final = 64
"""Entries in a heap before invalid ones are filtered out."""
EMPTY_LANES_MAX: Final = 1024
"""Lanes without a task that are kept, because most are used again."""
GONE: Final = 0
"""The version of a task that was removed; no task begins with it."""


class Record:
    """One task, as its last transaction left it.

    Attributes:
        id: never used again in its store.
        version: 1 at first; each transaction that changes the task adds 1.
        queue: the task queue that it is in.
        payload: encoded.
        at: ns since 1970, from which it can be claimed; of a claimed one: when its lease ends.
        due: the same in ns of the state's even clock; 0: at once. None: `at` counts.
        priority: a higher one is claimed first.
        deliveries: claims so far.
        worker: that claimed it last, None when nobody has since it was given back.
        reason: of the last `nack`, or why it is dead.
        is_dead: it is not delivered any more.
        created: ns since 1970.
        key: unique among the tasks of the store, or None.
    """

    __slots__ = (
        "at",
        "created",
        "deliveries",
        "due",
        "id",
        "is_dead",
        "key",
        "payload",
        "priority",
        "queue",
        "reason",
        "version",
        "worker",
    )

    def __init__(
        self,
        id: int,  # noqa: A002 - the public name
        version: int,
        queue: str,
        payload: bytes,
        at: int,
        priority: int,
        deliveries: int,
        worker: str | None,
        reason: str | None,
        is_dead: bool,
        created: int,
        key: str | None,
        due: int | None,
    ) -> None:
        self.id: int = id
        self.version: int = version
        self.queue: str = queue
        self.payload: bytes = payload
        self.at: int = at
        self.priority: int = priority
        self.deliveries: int = deliveries
        self.worker: str | None = worker
        self.reason: str | None = reason
        self.is_dead: bool = is_dead
        self.created: int = created
        self.key: str | None = key
        self.due: int | None = due

    def fields(self) -> list[object]:
        """Return what `Record` takes."""
        return [
            self.id,
            self.version,
            self.queue,
            self.payload,
            self.at,
            self.priority,
            self.deliveries,
            self.worker,
            self.reason,
            self.is_dead,
            self.created,
            self.key,
            self.due,
        ]


Ready = tuple[int, int, int, int, Record]
"""Negated priority, time, id, version, task."""
Later = tuple[int, int, int, Record]
"""Time, id, version, task."""
Moment = tuple[int, int]
"""The same instant in ns since 1970, and in ns of the even clock."""


class Lane:
    """One task queue."""

    __slots__ = ("dead", "limits", "ready", "scheduled", "size", "waiting")

    def __init__(self) -> None:
        self.ready: list[Ready] = []
        self.scheduled: list[Later] = []
        self.waiting: list[Later] = []
        self.limits: list[int] = [HEAP_MIN] * 3
        self.size: int = 0
        self.dead: int = 0

    def push(self, record: Record) -> None:
        """Enter a task that is new here or has another version; not a dead one."""
        due, version = record.due, record.version
        if due == 0:
            ready = self.ready
            heappush(ready, (-record.priority, record.at, record.id, version, record))
            if len(ready) > self.limits[0]:
                _filter(ready, self.limits, 0)
        elif due is None:
            scheduled = self.scheduled
            heappush(scheduled, (record.at, record.id, version, record))
            if len(scheduled) > self.limits[1]:
                _filter(scheduled, self.limits, 1)
        else:
            waiting = self.waiting
            heappush(waiting, (due, record.id, version, record))
            if len(waiting) > self.limits[2]:
                _filter(waiting, self.limits, 2)

    def rebuild(self, records: Iterable[Record]) -> None:
        """Enter all tasks of this lane again."""
        self.ready.clear()
        self.scheduled.clear()
        self.waiting.clear()
        for record in records:
            self.push(record)

    def first(self, now: Moment) -> Ready | None:
        """Return the entry of the task that is claimed next; None: none can be claimed yet."""
        ready = self.ready
        if self.waiting:
            self._make_ready(self.waiting, now[1])
        if self.scheduled:
            self._make_ready(self.scheduled, now[0])
        while ready:
            entry = ready[0]
            if entry[4].version == entry[3]:
                return entry
            heappop(ready)
        return None

    def _make_ready(self, later: list[Later], now: int) -> None:
        while later:
            at, number, version, record = later[0]
            if record.version == version:
                if at > now:
                    return
                heappush(self.ready, (-record.priority, record.at, number, version, record))
            heappop(later)

    def seconds_left(self, now: Moment) -> float | None:
        """Return how long it is until the next task can be claimed; None: none waits.

        Valid after `first`, which removes invalid entries.
        """
        pairs = zip((self.scheduled, self.waiting), now, strict=True)
        left = [later[0][0] - time for later, time in pairs if later]
        return max(0, min(left)) / NS_PER_S if left else None


def _filter(heap: list[Any], limits: list[int], which: int) -> None:
    heap[:] = [entry for entry in heap if entry[-1].version == entry[-2]]
    heapify(heap)
    limits[which] = 2 * len(heap) + HEAP_MIN


class State:
    """All tasks of a store, and what it counted.

    Attributes:
        tasks: by id, oldest first.
        keys: ids by key.
        lanes: by name of the task queue; some can be empty.
        next_id: of the task that is inserted next.
        codec: of the payloads; None until the store was opened for writing.
        boot: which even clock `due` counts by: that of a boot of the host, or a user's.
        last: when the last entry was made.
        totals: since the store was made, by `TOTALS`.
    """

    __slots__ = ("boot", "codec", "keys", "lanes", "last", "next_id", "tasks", "totals")

    def __init__(self) -> None:
        self.tasks: dict[int, Record] = {}
        self.keys: dict[str, int] = {}
        self.lanes: dict[str, Lane] = {}
        self.next_id: int = 1
        self.codec: str | None = None
        self.boot: bytes = b""
        self.last: Moment = 0, 0
        self.totals: list[int] = [0] * len(TOTALS)

    def lane(self, queue: str) -> Lane:
        """Return a task queue, made if it does not exist."""
        lane = self.lanes.get(queue)
        if lane is None:
            if len(self.lanes) > EMPTY_LANES_MAX:
                self._drop_empty()
            lane = self.lanes[queue] = Lane()
        return lane

    def _drop_empty(self) -> None:
        empty = [name for name, lane in self.lanes.items() if not lane.size]
        if len(empty) > EMPTY_LANES_MAX:
            for name in empty:
                del self.lanes[name]

    def enter(self, records: Iterable[Record]) -> None:
        """Enter the tasks of a snapshot."""
        for record in records:
            self.tasks[record.id] = record
            if record.key is not None:
                self.keys[record.key] = record.id
            lane = self.lane(record.queue)
            lane.size += 1
            if record.is_dead:
                lane.dead += 1
            else:
                lane.push(record)

    def begin_boot(self, boot: bytes, now: Moment) -> None:
        """Count by another even clock from now on.

        How much time passed since the last entry is known by the clock on the wall only, which can
        be wrong: what was to wait for so long then waits no longer than that from now on.
        """
        wall, elapsed = now
        for record in self.tasks.values():
            if record.due:
                left = min(max(0, record.at - wall), max(0, record.due - self.last[1]))
                record.at, record.due = wall + left, elapsed + left if left else 0
        self.boot = boot
        lanes: dict[str, list[Record]] = {name: [] for name in self.lanes}
        for record in self.tasks.values():
            if not record.is_dead:
                lanes[record.queue].append(record)
        for name, records in lanes.items():
            self.lanes[name].rebuild(records)

    def moment(self, wall: int) -> Moment:
        """Return a time, and what it probably was by the even clock of this state."""
        return wall, self.last[1] + max(0, wall - self.last[0])

    def list(self, queue: str | None = None) -> Iterator[Record]:
        """Yield the tasks of one task queue, or all, oldest first."""
        for record in self.tasks.values():
            if queue is None or record.queue == queue:
                yield record


TOTALS: Final = ("inserted", "claimed", "done", "nacked", "deleted", "died")
INSERTED, CLAIMED, DONE, NACKED, DELETED, DIED = range(len(TOTALS))
