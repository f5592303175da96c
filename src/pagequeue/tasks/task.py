"""What a task store takes and returns: tasks, new tasks, statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pagequeue.schema.codec import codec_of
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from pagequeue.tasks.state import Moment, Record
    from pagequeue.util.timestamps import TimeLike

TaskStatus = Literal["ready", "waiting", "claimed", "dead"]
STATUSES: Final[tuple[TaskStatus, ...]] = ("ready", "waiting", "claimed", "dead")


class Task(NamedTuple):
    """A task as it was after one transaction.

    Attributes:
        id: its number; never used again in its store.
        version: 1 at first; each transaction that changes the task adds 1.
        queue: the task queue that it is in.
        payload: the encoded value.
        at: ns since 1970 from which it can be claimed; of a claimed task the end of its lease.
        priority: a higher one is claimed first.
        deliveries: how often it was claimed.
        worker: the name of the store that has claimed it, or None.
        reason: of the last `nack`, or why the task is dead.
        is_dead: it is not delivered any more.
        created: ns since 1970.
        key: unique among the tasks of the store, or None.
        codec: of the payload.

    Example:
        >>> task = store.insert("resize", {"image": "1.png"})
        >>> task.id, task.version, task.value
        (1, 1, {'image': '1.png'})
    """

    id: int
    version: int
    queue: str
    payload: bytes
    at: int
    priority: int
    deliveries: int
    worker: str | None
    reason: str | None
    is_dead: bool
    created: int
    key: str | None
    codec: str

    @property
    def value(self) -> Any:  # noqa: ANN401 - any value of the codec
        """The decoded payload: a new object at each access.

        Example:
            >>> store.get(1).value
            {'to': 'ann'}
        """
        return codec_of(self.codec).decode(self.payload)

    @property
    def ref(self) -> tuple[int, int]:
        """Id and version: what `change`, `delete` and `depend` take.

        Example:
            >>> store.get(1).ref
            (1, 1)
        """
        return self.id, self.version

    def status(self, now: int) -> TaskStatus:
        """Return what the task is at a time, in ns since 1970.

        `"ready"`: it can be claimed, also when the lease of its last claim is over, after which the
        next worker may let it wait first; `"waiting"`: it is scheduled or delayed; `"claimed"`;
        `"dead"`.

        Args:
            now: the time, ns since 1970, UTC.

        Example:
            >>> store.get(1).status(time.time_ns())
            'ready'
        """
        if self.is_dead:
            return "dead"
        if self.at <= now:
            return "ready"
        return "waiting" if self.worker is None else "claimed"


def task_of(record: Record, codec: str, now: Moment) -> Task:
    """Return a task as it is now."""
    return Task(
        record.id,
        record.version,
        record.queue,
        record.payload,
        _at(record, now),
        record.priority,
        record.deliveries,
        record.worker,
        record.reason,
        record.is_dead,
        record.created,
        record.key,
        codec,
    )


def _at(record: Record, now: Moment) -> int:
    """Return from when a task can be claimed, as the clock shows it, which can have been set."""
    at, due = record.at, record.due
    wall, elapsed = now
    if due is None or record.is_dead:
        return at
    if due <= elapsed:
        return min(at, wall)
    shown = wall + due - elapsed
    return at if at > wall and abs(at - shown) < NS_PER_S else shown


class NewTask(NamedTuple):
    """A task to insert.

    Attributes:
        queue: the task queue, any text.
        value: what the codec of the store encodes; by default what JSON can express.
        at: claim it from then on: int ns since 1970, an aware datetime, or a timedelta from now.
            None: at once.
        priority: a higher one is claimed first.
        key: refuse the transaction while a task with this key is in the store.

    Example:
        >>> modified = store.modify(insert=[NewTask("resize", {"image": "1.png"}, priority=5)])
        >>> modified.inserted[0].priority
        5
    """

    queue: str
    value: Any
    at: TimeLike | None = None
    priority: int = 0
    key: str | None = None


class Modified(NamedTuple):
    """What a transaction wrote.

    Attributes:
        inserted: the new tasks, in the order in which they were given.
        changed: the changed tasks, with their new versions.

    Example:
        >>> modified = store.modify(insert=[NewTask("mail", {"to": "cid"})])
        >>> [task.id for task in modified.inserted]
        [3]
    """

    inserted: tuple[Task, ...] = ()
    changed: tuple[Task, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskQueueStats:
    """Figures of one task queue.

    Attributes:
        tasks: in it.
        ready: that can be claimed now.
        waiting: that are scheduled or delayed.
        claimed: that have a live claim.
        dead: that are not delivered any more.
        oldest_ready: since when the first ready task can be claimed, ns since 1970; None: none is
            ready.

    Example:
        >>> figures = store.stats().queues["mail"]
        >>> figures.tasks, figures.ready, figures.dead
        (2, 2, 0)
    """

    tasks: int
    ready: int
    waiting: int
    claimed: int
    dead: int
    oldest_ready: int | None


@dataclass(frozen=True, slots=True)
class TaskStats:
    """Figures of a task store.

    Attributes:
        queues: by name, of task queues that have tasks.
        tasks: in the store.
        totals: since the store was made: `inserted`, `claimed` (deliveries), `done`
            (acknowledged), `nacked`, `deleted`, `died`.
        sequence: entries in its journal so far.

    Example:
        >>> store.stats().totals["inserted"]
        2
    """

    queues: dict[str, TaskQueueStats]
    tasks: int
    totals: dict[str, int]
    sequence: int
