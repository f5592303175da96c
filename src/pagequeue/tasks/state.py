"""The tasks of a store in memory, with what finds the next one.

A lane is a queue of tasks. Each of its tasks that is not dead has one valid entry in one of two
heaps: `ready`, in the order in which tasks are claimed, or `waiting`, in the order of the times
from which they can be claimed: scheduled tasks, delayed ones and claimed ones, whose lease ends
then. An entry is valid while its version is that of its task, so a change only pushes a new entry.
Entries that became invalid are popped when they are the first, and filtered out when a heap has
doubled: each costs a constant number of steps.

Heaps are derived from the tasks and are in no snapshot. Moving an entry from `waiting` to `ready`
changes no task, so a process may do it by its own clock.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

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
        ]


Ready = tuple[int, int, int, int, Record]
"""Negated priority, time, id, version, task."""
Waiting = tuple[int, int, int, Record]
"""Time, id, version, task."""


class Lane:
    """One task queue."""

    __slots__ = ("dead", "ready", "ready_limit", "size", "waiting", "waiting_limit")

    def __init__(self) -> None:
        self.ready: list[Ready] = []
        self.waiting: list[Waiting] = []
        self.ready_limit: int = HEAP_MIN
        self.waiting_limit: int = HEAP_MIN
        self.size: int = 0
        self.dead: int = 0

    def push(self, record: Record, now: int) -> None:
        """Enter a task that is new here or has another version; not a dead one."""
        if record.at <= now:
            heap = self.ready
            heappush(heap, (-record.priority, record.at, record.id, record.version, record))
            if len(heap) > self.ready_limit:
                self._filter_ready()
        else:
            waiting = self.waiting
            heappush(waiting, (record.at, record.id, record.version, record))
            if len(waiting) > self.waiting_limit:
                self._filter_waiting()

    def _filter_ready(self) -> None:
        self.ready[:] = [entry for entry in self.ready if entry[4].version == entry[3]]
        heapify(self.ready)
        self.ready_limit = 2 * len(self.ready) + HEAP_MIN

    def _filter_waiting(self) -> None:
        self.waiting[:] = [entry for entry in self.waiting if entry[3].version == entry[2]]
        heapify(self.waiting)
        self.waiting_limit = 2 * len(self.waiting) + HEAP_MIN

    def first(self, now: int) -> Ready | None:
        """Return the entry of the task that is claimed next; None: none can be claimed yet."""
        waiting, ready = self.waiting, self.ready
        while waiting:
            at, number, version, record = waiting[0]
            if record.version != version:
                heappop(waiting)
            elif at <= now:
                heappop(waiting)
                heappush(ready, (-record.priority, at, number, version, record))
            else:
                break
        while ready:
            entry = ready[0]
            if entry[4].version == entry[3]:
                return entry
            heappop(ready)
        return None

    def next_time(self) -> int | None:
        """Return when the next waiting task can be claimed, in ns since 1970; None: none waits.

        Valid after `first`, which removes invalid entries.
        """
        return self.waiting[0][0] if self.waiting else None


class State:
    """All tasks of a store, and what it counted.

    Attributes:
        tasks: by id, oldest first.
        keys: ids by key.
        lanes: by name of the task queue; some can be empty.
        next_id: of the task that is inserted next.
        codec: of the payloads; None until the store was opened for writing.
        totals: since the store was made, by `TOTALS`.
    """

    __slots__ = ("codec", "keys", "lanes", "next_id", "tasks", "totals")

    def __init__(self) -> None:
        self.tasks: dict[int, Record] = {}
        self.keys: dict[str, int] = {}
        self.lanes: dict[str, Lane] = {}
        self.next_id: int = 1
        self.codec: str | None = None
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
                lane.waiting.append((record.at, record.id, record.version, record))
        for lane in self.lanes.values():
            heapify(lane.waiting)
            lane.waiting_limit = 2 * len(lane.waiting) + HEAP_MIN

    def list(self, queue: str | None = None) -> Iterator[Record]:
        """Yield the tasks of one task queue, or all, oldest first."""
        for record in self.tasks.values():
            if queue is None or record.queue == queue:
                yield record


TOTALS: Final = ("inserted", "claimed", "done", "nacked", "deleted", "died")
INSERTED, CLAIMED, DONE, NACKED, DELETED, DIED = range(len(TOTALS))
