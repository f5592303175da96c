"""TaskStore: tasks that processes share, changed by transactions."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pagequeue import _core, errors
from pagequeue.format import TIMESTAMP_MAX
from pagequeue.journal.journal import Journal
from pagequeue.queue.queue import internals
from pagequeue.schema.codec import codec_of
from pagequeue.store.clock import runs
from pagequeue.tasks import plan
from pagequeue.tasks.async_claim import ThreadedClaim
from pagequeue.tasks.claim import TaskClaim
from pagequeue.tasks.machine import AT_ONCE, BOOT, CODEC, TaskMachine
from pagequeue.tasks.plan import Change, Insertion, Transaction, Wanted
from pagequeue.tasks.state import TOTALS
from pagequeue.tasks.task import (
    STATUSES,
    Modified,
    NewTask,
    Task,
    TaskQueueStats,
    TaskStats,
    TaskStatus,
    task_of,
)
from pagequeue.util.arguments import (
    absolute_path,
    choice,
    number,
    shown,
    text,
    type_error,
    value_error,
    whole,
)
from pagequeue.util.closing import Closing
from pagequeue.util.in_progress import InProgress
from pagequeue.util.retry import BACKOFF, DELIVERIES_MAX, check_retry
from pagequeue.util.timestamps import NS_PER_S, to_ns
from pagequeue.wait.coroutine import check_timeout
from pagequeue.wait.off_loop import off_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.journal.compaction import CompactionReport
    from pagequeue.store.flush import Sync
    from pagequeue.store.store import Store
    from pagequeue.tasks.plan import Ref
    from pagequeue.tasks.state import Moment, State
    from pagequeue.util.literals import Backoff, CodecName, Trusted
    from pagequeue.util.timestamps import TimeLike

Found = TypeVar("Found")
CODECS: Final = ("json", "msgpack", "utf-8", "bytes")
LEASE_SECONDS: Final = 30.0
SECONDS_MAX: Final = 10.0 * 366 * 86400
PRIORITY_END: Final = 1 << 63
LIMIT_COUNT_MAX: Final = 1 << 16
WAIT_SECONDS_MAX: Final = 10.0
"""A clock that was set forward is noticed so late while a claim waits for a scheduled task."""
CHANGEABLE: Final = ("queue", "value", "at", "priority")
_INSERTION: Final = tuple.__new__
"""Makes an Insertion of a tuple with its fields, in a third of the time of `Insertion(...)`."""
MICROSECOND: Final = timedelta(microseconds=1)


class TaskStore(Closing):
    """Tasks in any number of task queues, shared by processes and changed by transactions.

    All changes of a transaction happen or none, in one order for all processes, and only if every
    task that it names has the version that it expects. So a worker whose lease ended and whose task
    another worker claimed cannot finish it, nor insert its successors. Each process that opens the
    store has all tasks in memory. Threads may share it; a forked child must open its own.

    For independent messages use a group (`Queue.group`), which is many times faster.

    Args:
        directory: as for `Queue`.
        codec: of the tasks' values: `"json"`, `"msgpack"`, `"utf-8"` or `"bytes"`; None: that of
            the store, and `"json"` for a new one.
        worker: the name under which this store claims tasks; None: the number of the process.
        max_deliveries: a task that was claimed so often and not finished becomes dead, and is
            delivered no more until it is changed with a time; None: no limit.
        backoff: how long a task waits that was given back, or whose lease ended, in seconds: after
            the first delivery, and at most; twice as long after each one, up to a quarter less.
            None: not at all.
        sync: as for `Queue`: which transactions a power cut may revert, always the latest ones.
        read_only: only look: write no byte.
        create: create the store if it does not exist; False makes that an error.
        snapshots: as for `Journal`.
        prefix: as for `Queue`.
        page_bytes: as for `Journal`.
        compact_on_open: as for `Journal`.
        lock_timeout: as for `Queue`.
        clock: returns the time that leases and schedules are measured by, ns since 1970; None: the
            system's. All processes must have the same.
        file_mode: as for `Queue`.
        trust: as for `Queue`.

    Attributes:
        journal: with the transactions; `journal.verify()` checks all of it.
        directory: of the store.
        codec: of the tasks' values.

    Raises:
        CodecMismatch: the store has another codec.
        MissingExtra: msgspec is not installed.
        The others are those of `Journal`.

    Example:
        >>> with TaskStore("images") as store:
        ...     task = store.insert("resize", {"image": "1.png"})
        ...     claim = store.claim("resize")
        ...     modified = claim.ack(insert=[NewTask("publish", claim.value)])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        codec: CodecName | None = None,
        worker: str | None = None,
        max_deliveries: int | None = DELIVERIES_MAX,
        backoff: Backoff = BACKOFF,
        sync: Sync = "none",
        read_only: bool = False,
        create: bool = True,
        snapshots: int = 2,
        prefix: str = "queue",
        page_bytes: int | None = None,
        compact_on_open: bool = True,
        lock_timeout: float = 10.0,
        clock: Callable[[], int] | None = None,
        file_mode: int = 0o600,
        trust: Trusted = (),
    ) -> None:
        path = absolute_path("directory", directory)
        if codec is not None:
            choice("codec", codec, CODECS, path=path)
        retry = check_retry(max_deliveries, backoff, path=path)
        if worker is not None:
            worker = text("worker", worker)
        self._retry = retry
        self._worker = worker or f"pid {os.getpid()}"
        self._claims: dict[int, TaskClaim] = {}
        self._claiming = InProgress()
        self._lock_timeout = lock_timeout
        self._machine = TaskMachine()
        self.journal: Journal[State] = Journal(
            directory,
            self._machine,
            codec="msgpack",
            sync=sync,
            snapshots=snapshots,
            read_only=read_only,
            create=create,
            prefix=prefix,
            page_bytes=page_bytes,
            compact_on_open=compact_on_open,
            lock_timeout=lock_timeout,
            clock=clock,
            file_mode=file_mode,
            trust=trust,
        )
        self.directory: str = self.journal.queue.directory
        try:
            self._now, self._boot = _clocks(internals(self.journal.queue).store, clock)
            self.codec: str = self._agree_on_codec(codec, read_only=read_only)
            self._encode = codec_of(self.codec).encode
        except BaseException:
            self.journal.close()
            raise

    def _agree_on_codec(self, codec: str | None, *, read_only: bool) -> str:
        def decide(state: State) -> list[Any] | None:
            return None if state.codec is not None else [*self._now(), [CODEC, codec or "json"]]

        if not read_only:
            self._update(decide)
        found = self.journal.state.codec or codec or "json"
        if codec not in {None, found}:
            raise errors.CodecMismatch(
                f"the store has codec {found!r}, not {codec!r}",
                path=self.directory,
                codec=found,
                remedy="leave codec out, or choose another directory or prefix",
            )
        if found not in CODECS:
            raise errors.NewerFormat(
                f"the store has codec {found!r}, which this version does not know",
                path=self.directory,
                version=self._machine.version,
                remedy="upgrade pagequeue",
            )
        return found

    def _update(
        self, decide: Callable[[State], list[Any] | None], *, durable: bool = False
    ) -> None:
        """Append the entry that a function decides on, in a state that counts by our even clock."""
        boot, is_other = self._boot, True

        def checked(state: State) -> list[Any] | None:
            nonlocal is_other
            is_other = state.boot != boot
            return [*self._now(), [BOOT, boot]] if is_other else decide(state)

        while is_other:
            self.journal.update(checked, durable=durable)

    def _moment(self, state: State) -> Moment:
        """Return now, for a state that is only looked at: it can count by another clock."""
        now = self._now()
        return now if state.boot == self._boot else state.moment(now[0])

    # --- transactions -----------------------------------------------------------------------------

    def insert(
        self,
        queue: str,
        value: Any,  # noqa: ANN401 - the codec's
        *,
        at: TimeLike | None = None,
        priority: int = 0,
        key: str | None = None,
        durable: bool = False,
    ) -> Task:
        """Insert a task.

        Args:
            queue: the task queue, any text.
            value: what the codec of the store encodes.
            at: claim it from then on: int ns since 1970, an aware datetime, or a timedelta from
                now. None: at once.
            priority: a higher one is claimed first.
            key: refuse it while a task with this key is in the store.
            durable: return when it is on stable storage.

        Raises:
            Stale: a task has this key; nothing was written.
            NotEncodable: the codec cannot encode the value.
            The others are those of `Journal.update`.

        Example:
            >>> store.insert("mail", {"to": "ann"}, at=timedelta(hours=1)).id
            1
        """
        new = self._insertion((queue, value, at, priority, key))
        if key is not None:
            return self._modify(Transaction((new,)), durable=durable).inserted[0]
        now, payload = self._now, new.payload
        task: Task | None = None

        def decide(state: State) -> list[Any]:
            nonlocal task
            entry, task = plan.insert_one(state, now(), new.queue, payload, new.at, new.priority)
            return entry

        self._update(decide, durable=durable)
        assert task is not None
        return task

    insert_async = off_loop(insert)
    """Insert a task as `insert` does, in a thread, and let the event loop run meanwhile."""

    def modify(
        self,
        *,
        insert: Iterable[NewTask] = (),
        change: Mapping[Ref, Mapping[str, Any]] | None = None,
        delete: Iterable[Ref] = (),
        depend: Iterable[Ref] = (),
        durable: bool = False,
    ) -> Modified:
        """Do all of this, or nothing: in one entry, which is never seen in part.

        Args:
            insert: new tasks.
            change: by `(id, version)` what to change: any of `queue`, `value`, `priority`, and
                `at`, which is as for `insert`. With `queue` or `at` the task is released: nobody
                has it claimed, it is not dead, and its deliveries are counted from 0. Else a claim
                stays as it is, but must be acknowledged with the new version.
            delete: `(id, version)` of tasks to remove.
            depend: `(id, version)` of tasks that must be as they were read, and stay so.
            durable: return when it is on stable storage.

        Returns:
            the inserted and the changed tasks. Without anything to do nothing is written.

        Raises:
            Stale: a version is not current or a key is in use; carries all `conflicts`.
            InvalidOption: a task is there twice, or something else is to be changed.
            NotEncodable: the codec cannot encode a value.
            MessageTooLarge: the transaction is larger than a message can be; nothing was written.
            The others are those of `Journal.update`.

        Example:
            >>> task = store.get(1)
            >>> modified = store.modify(
            ...     change={task.ref: {"value": {"to": "cid"}}}, depend=[store.get(2).ref]
            ... )
            >>> modified.changed[0].version
            2
        """
        return self._modify(self._transaction(insert, change, delete, depend, ()), durable=durable)

    modify_async = off_loop(modify)
    """Do all or nothing as `modify` does, in a thread, and let the event loop run meanwhile."""

    def finish(self, tasks: Iterable[Ref], *, durable: bool = False) -> None:
        """Remove tasks whose work is done, all of them or none; `TaskClaim.ack` does so with one.

        Args:
            tasks: `(id, version)` of each.
            durable: return when it is on stable storage.

        Raises:
            Stale: a version is not current; nothing was written.
            InvalidOption: a task is there twice.
            The others are those of `Journal.update`.

        Example:
            >>> store.finish([claim.task.ref for claim in claims])
        """
        self._modify(self._transaction((), None, (), (), tasks), durable=durable)

    finish_async = off_loop(finish)
    """Remove tasks as `finish` does, in a thread, and let the event loop run meanwhile."""

    def _finish_one(self, task: Task, *, durable: bool) -> None:
        """Remove a task whose work is done."""
        now, path = self._now, self.directory
        number, version = task.id, task.version
        self._update(
            lambda state: plan.finish_one(state, now(), number, version, path), durable=durable
        )

    def _transaction(
        self,
        insert: Iterable[NewTask],
        change: Mapping[Ref, Mapping[str, Any]] | None,
        delete: Iterable[Ref],
        depend: Iterable[Ref],
        finish: Iterable[Ref],
    ) -> Transaction:
        if change is not None and not isinstance(change, Mapping):
            raise type_error("change", change, "a dict of what to change, by (id, version)")
        wanted = Transaction(
            tuple([self._insertion(new) for new in _each("insert", insert, "NewTask objects")]),
            tuple([(_ref(ref), self._change(given)) for ref, given in (change or {}).items()]),
            _refs("delete", delete),
            _refs("depend", depend),
            _refs("tasks", finish),
        )
        plan.check(wanted)
        return wanted

    def _insertion(self, new: object) -> Insertion:
        if not isinstance(new, tuple) or len(new) != len(NewTask._fields):
            raise type_error("one of insert", new, "a NewTask")
        queue, value, at, priority, key = new
        return _INSERTION(
            Insertion,
            (
                queue if type(queue) is str and queue.isascii() else text("queue", queue),
                self._payload(value),
                None if at is None else self._time(at),
                _priority(priority),
                None if key is None else text("key", key),
            ),
        )

    def _change(self, given: Mapping[str, Any]) -> Change:
        if not isinstance(given, Mapping):
            raise type_error("a change", given, "a dict, as in {'priority': 5}")
        unknown = [name for name in given if name not in CHANGEABLE]
        if unknown:
            raise errors.InvalidOption(
                f"{shown(unknown[0])} of a task cannot be changed",
                path=self.directory,
                remedy=f"change {', '.join(CHANGEABLE)}",
            )
        return Change(
            text("queue", given["queue"]) if "queue" in given else None,
            self._payload(given["value"]) if "value" in given else None,
            self._time(given["at"]) if "at" in given else None,
            _priority(given["priority"]) if "priority" in given else None,
        )

    def _payload(self, value: Any) -> bytes:  # noqa: ANN401 - the codec's
        try:
            payload = self._encode(value)
            return payload if type(payload) is bytes else bytes(payload)
        except MemoryError:
            raise
        except Exception as error:
            raise errors.NotEncodable(
                f"codec {self.codec!r} cannot encode this {type(value).__name__} ({error}); "
                "nothing was written",
                path=self.directory,
                remedy="give a value that the codec supports",
            ) from error

    def _time(self, at: TimeLike) -> int:
        """Return a time as operations have it: below 0 it is so long from then on."""
        now = self._now()[0]
        if not isinstance(at, timedelta):
            return max(0, int(to_ns(at, lambda: now, name="at")))
        delay = at // MICROSECOND * 1000
        if delay > TIMESTAMP_MAX - now:
            raise value_error("at", at, "give a timedelta that ends before the year 2262")
        return -delay if delay > 0 else AT_ONCE

    def _modify(self, wanted: Transaction, *, durable: bool) -> Modified:
        modified = Modified()
        now, path = self._now, self.directory

        def decide(state: State) -> list[Any] | None:
            nonlocal modified
            entry, modified = plan.modify(state, now(), wanted, path)
            return entry if len(entry) > 2 else None

        self._update(decide, durable=durable)
        return modified

    # --- claims -----------------------------------------------------------------------------------

    def claim(
        self,
        queues: str | Iterable[str],
        lease: float = LEASE_SECONDS,
        timeout: float | None = None,
    ) -> TaskClaim:
        """Claim the next task of one or several task queues.

        That is the one with the highest priority; among these the one that could be claimed first.

        Args:
            queues: one name, or several.
            lease: seconds until another worker may claim the task.
            timeout: seconds to wait for a task; None waits for ever, 0 never waits.

        Raises:
            NothingReceived: a TimeoutError: no task could be claimed in time.
            InvalidOption: the lease is not a number of seconds above 0.
            The others are those of `Journal.update`.

        Example:
            >>> store.claim(["urgent", "mail"], lease=60.0).value
            {'to': 'ann'}
        """
        queues = _names(queues)
        timeout = check_timeout(timeout)
        claim = self._claim_one(queues, _nanoseconds("lease", lease, above=0))
        if claim is not None:
            return claim
        return self.claim_many(queues, 1, lease, timeout)[0]

    def _claim_one(self, queues: tuple[str, ...], lease_ns: int) -> TaskClaim | None:
        """Claim the next task, if there is one that can be claimed now."""
        now, worker, retry = self._now, self._worker, self._retry
        task: Task | None = None

        def decide(state: State) -> list[Any] | None:
            nonlocal task
            found = plan.claim_one(
                state, now(), queues, lease_ns=lease_ns, worker=worker, retry=retry
            )
            if found is None:
                task = None
                return None
            entry, task = found
            return entry

        with self._can_claim():
            self._update(decide)
            if task is None:
                return None
            claim = self._claims[task.id] = TaskClaim(self, task)
        return claim

    @contextlib.contextmanager
    def _can_claim(self) -> Iterator[None]:
        """Let closing wait until what the block claims is known, and is given back then.

        Raises:
            ClosedError: closing has begun.
        """
        with self._claiming.call() as is_open:
            if not is_open:
                raise errors.ClosedError(
                    "this task store is closed", path=self.directory, remedy="open it again"
                )
            yield

    def claim_many(
        self,
        queues: str | Iterable[str],
        limit_count: int,
        lease: float = LEASE_SECONDS,
        timeout: float | None = None,
    ) -> list[TaskClaim]:
        """Claim several tasks at once, in the order of `claim`.

        Args:
            queues: one name, or several.
            limit_count: most tasks to claim, 1 to 65_536.
            lease: seconds until another worker may claim each of them.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Returns:
            1 to `limit_count` claims.

        Raises:
            As for `claim`.

        Example:
            >>> [claim.value for claim in store.claim_many("mail", 10)]
            [{'to': 'ann'}, {'to': 'ben'}]
        """
        wanted = _wanted(queues, limit_count, lease)
        timeout = check_timeout(timeout)
        deadline = math.inf
        is_first = True
        while True:
            found, sequence, claims = self._claim_some(wanted)
            if claims:
                return claims
            if is_first and timeout is not None:
                deadline = time.monotonic() + timeout
            is_first = False
            left = self._seconds(found, wanted, timeout, deadline)
            if found.entry is None:  # else tasks became dead, or wait, and others may be next
                self.journal.wait(left, after=sequence)

    async def claim_async(
        self,
        queues: str | Iterable[str],
        lease: float = LEASE_SECONDS,
        timeout: float | None = None,
    ) -> TaskClaim:
        """Claim as `claim` does, and let the event loop run while it waits.

        If the task of the loop is cancelled, it has claimed nothing: what a thread claims for it
        is given back.

        Args:
            queues: as for `claim`.
            lease: as for `claim`.
            timeout: as for `claim`.

        Raises:
            NothingReceived: no task could be claimed in time.
            InvalidOption: as for `claim`.

        Example:
            >>> (await store.claim_async("mail", lease=60.0)).value
            {'to': 'ann'}
        """
        return (await self.claim_many_async(queues, 1, lease, timeout))[0]

    async def claim_many_async(
        self,
        queues: str | Iterable[str],
        limit_count: int,
        lease: float = LEASE_SECONDS,
        timeout: float | None = None,
    ) -> list[TaskClaim]:
        """Claim as `claim_many` does, and let the event loop run while it waits.

        If the task of the loop is cancelled, it has claimed nothing: what a thread claims for it
        is given back.

        Args:
            queues: as for `claim_many`.
            limit_count: as for `claim_many`.
            lease: as for `claim_many`.
            timeout: as for `claim_many`.

        Raises:
            NothingReceived: no task could be claimed in time.
            InvalidOption: as for `claim_many`.

        Example:
            >>> [claim.value for claim in await store.claim_many_async("mail", 10)]
            [{'to': 'ann'}, {'to': 'ben'}]
        """
        wanted = _wanted(queues, limit_count, lease)
        timeout = check_timeout(timeout)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            found, sequence, claims = await ThreadedClaim(self, wanted).run()
            if claims:
                return claims
            left = self._seconds(found, wanted, timeout, deadline)
            if found.entry is None:  # else tasks became dead, or wait, and others may be next
                await self.journal.wait_async(left, after=sequence)

    def _claim_some(self, wanted: Wanted) -> tuple[plan.Claims, int, list[TaskClaim]]:
        """Claim what there is; return it, the sequence of the state that has it, and claims."""
        with self._can_claim():
            found, sequence = self._attempt(wanted)
            claims = [TaskClaim(self, task) for task in found.tasks]
            self._claims.update([(claim.task.id, claim) for claim in claims])
        return found, sequence, claims

    def _seconds(
        self, found: plan.Claims, wanted: Wanted, timeout: float | None, deadline: float
    ) -> float:
        """Return how long to wait at most before the next attempt.

        Raises:
            NothingReceived: the deadline is over.
        """
        left = min(WAIT_SECONDS_MAX, deadline - time.monotonic())
        if left <= 0:
            which = ", ".join(map(repr, wanted.queues[:5]))
            raise errors.NothingReceived(
                f"no task to claim in {which} within {timeout or 0.0:g} s",
                path=self.directory,
                remedy="call again",
            )
        if found.seconds_left is not None:
            left = min(left, found.seconds_left)
        return left

    def _undo(self, claims: list[TaskClaim]) -> None:
        """Give back claims that nobody got; closing does that as well."""
        with contextlib.suppress(errors.PageQueueError), self._can_claim():  # else the leases end
            mine = [claim for claim in claims if not claim._is_settled]  # noqa: SLF001
            for claim in mine:
                claim._settle()  # noqa: SLF001
            if mine:
                self._give_back([claim.task.ref for claim in mine], counts=False)

    def _attempt(self, wanted: Wanted) -> tuple[plan.Claims, int]:
        """Claim what there is; return it, and the sequence of the state that it was claimed in."""
        found = plan.Claims(None, [], None)
        sequence = 0
        queues, limit_count, lease_ns = wanted
        now, worker, retry = self._now, self._worker, self._retry
        journal = self.journal

        def decide(state: State) -> list[Any] | None:
            nonlocal found, sequence
            sequence = journal.sequence
            found = plan.claim(
                state,
                now(),
                queues,
                lease_ns=lease_ns,
                worker=worker,
                retry=retry,
                limit_count=limit_count,
            )
            return found.entry

        self._update(decide)
        return found, sequence

    def _keep(self, claim: TaskClaim) -> TaskClaim:
        self._claims[claim.task.id] = claim
        return claim

    def _forget(self, claim: TaskClaim) -> None:
        if self._claims.get(claim.task.id) is claim:  # else this store claimed it again since
            del self._claims[claim.task.id]

    def _nack(self, refs: list[Ref], delay: float | None, reason: str | None) -> None:
        delay_ns = None if delay is None else _nanoseconds("delay", delay, above=-1)
        if reason is not None:
            reason = text("reason", reason)
        now, path, retry = self._now, self.directory, self._retry

        def decide(state: State) -> list[Any]:
            if conflicts := plan.conflicts(state, refs):
                raise plan.stale(path, conflicts)
            return plan.nack(state, now(), refs, delay_ns=delay_ns, reason=reason, retry=retry)

        self._update(decide)

    def _extend(self, task: Task, seconds: float) -> Task:
        span_ns = _nanoseconds("seconds", seconds, above=0)
        now, path, until = self._now, self.directory, 0

        def decide(state: State) -> list[Any]:
            nonlocal until
            if conflicts := plan.conflicts(state, [task.ref]):
                raise plan.stale(path, conflicts)
            moment = now()
            until = moment[0] + span_ns
            return plan.extend(moment, task.ref, until)

        self._update(decide)
        return task._replace(version=task.version + 1, at=until)

    # --- looking ----------------------------------------------------------------------------------

    def get(self, task_id: int) -> Task | None:
        """Return a task as it is now; None: it is not in the store, or not any more.

        Args:
            task_id: its number.

        Example:
            >>> store.get(1).queue
            'mail'
        """
        task_id = whole("task_id", task_id)
        codec = self.codec

        def look(state: State) -> Task | None:
            record = state.tasks.get(task_id)
            return None if record is None else task_of(record, codec, self._moment(state))

        return self.journal.read(look)

    get_async = off_loop(get)
    """Return a task as `get` does, in a thread, and let the event loop run meanwhile."""

    def tasks(
        self,
        queue: str | None = None,
        *,
        status: TaskStatus | None = None,
        moment: TimeLike | None = None,
    ) -> list[Task]:
        """Return tasks, oldest first.

        Args:
            queue: only those of this task queue.
            status: only those that are `"ready"`, `"waiting"`, `"claimed"` or `"dead"`.
            moment: as they were then; as for `Journal.at`. None: now.

        Raises:
            InvalidOption: the status is unknown.
            As for `Journal.at`, with `moment`.

        Example:
            >>> [task.id for task in store.tasks("mail", status="ready")]
            [1, 2]
        """
        if queue is not None:
            text("queue", queue)
        if status is not None:
            choice("status", status, STATUSES)
        codec = self.codec

        def look(state: State, now: Moment) -> list[Task]:
            tasks = (task_of(record, codec, now) for record in state.list(queue))
            return [task for task in tasks if status is None or task.status(now[0]) == status]

        if moment is None:
            return self.journal.read(lambda state: look(state, self._moment(state)))
        then = to_ns(moment, lambda: self._now()[0], name="moment")
        state = self.journal.at(then)
        return look(state, state.moment(then))

    tasks_async = off_loop(tasks)
    """Return tasks as `tasks` does, in a thread, and let the event loop run meanwhile."""

    def stats(self) -> TaskStats:
        """Return figures of all task queues, counted now.

        Example:
            >>> store.stats().queues["mail"].ready
            2
        """
        journal = self.journal
        return journal.read(lambda state: _stats(state, self._moment(state), journal.sequence))

    stats_async = off_loop(stats)
    """Return figures as `stats` does, in a thread, and let the event loop run meanwhile."""

    def __iter__(self) -> Iterator[Task]:
        """Iterate over all tasks as they are now, oldest first."""
        return iter(self.tasks())

    # --- upkeep -----------------------------------------------------------------------------------

    def compact(self) -> CompactionReport:
        """Replace the log by a snapshot of the tasks; as `Journal.compact`.

        Example:
            >>> store.compact().held_by
            ()
        """
        return self.journal.compact()

    compact_async = off_loop(compact)
    """Compact as `compact` does, in a thread, and let the event loop run meanwhile."""

    def flush(self, timeout: float | None = None) -> int:
        """Put all transactions so far on stable storage, as `Journal.flush`.

        Args:
            timeout: as for `Journal.flush`.

        Raises:
            FlushTimeout, SyncFailed: as for `Journal.flush`; the transactions are visible.

        Example:
            >>> store.flush() == store.journal.sequence
            True
        """
        return self.journal.flush(timeout)

    async def flush_async(self, timeout: float | None = None) -> int:
        """Flush as `flush` does, and let the event loop run meanwhile.

        Args:
            timeout: as for `Journal.flush`.

        Raises:
            FlushTimeout, SyncFailed: as for `Journal.flush`; the transactions are visible.

        Example:
            >>> await store.flush_async() == store.journal.sequence
            True
        """
        return await self.journal.flush_async(timeout)

    def close(self) -> None:
        """Give back all claims of this handle and close it; closing again has no effect.

        Example:
            >>> store.close()
        """
        self._claiming.close(self._lock_timeout)
        claims, self._claims = list(self._claims.values()), {}
        for claim in claims:
            claim._is_settled = True  # noqa: SLF001
        if claims:
            with contextlib.suppress(errors.PageQueueError):  # else their leases end
                self._give_back([claim.task.ref for claim in claims], counts=True)
        self.journal.close()

    def _give_back(self, refs: list[Ref], *, counts: bool) -> None:
        """Give claims back, which count as deliveries, or which nobody got."""
        now, retry = self._now, self._retry

        def decide(state: State) -> list[Any] | None:
            lost = {conflict.id for conflict in plan.conflicts(state, refs)}
            mine = [ref for ref in refs if ref[0] not in lost]
            if not mine:
                return None
            if not counts:
                return plan.undo(now(), mine)
            return plan.nack(state, now(), mine, delay_ns=None, reason=None, retry=retry)

        self._update(decide)

    def __repr__(self) -> str:
        return f"<TaskStore {self.directory!r} of {self.journal!r}>"


def _clocks(store: Store, given: Callable[[], int] | None) -> tuple[Callable[[], Moment], bytes]:
    """Return what tells the time by the clock and by an even one, and which even one that is.

    That is the time since the boot. A clock for tests, which does not run as time does, is both.
    """
    clock = store.clock
    if not store.is_clock_known or (given is not None and not runs(given)):
        return lambda: (now := clock(), now), b""
    boottime = _core.boottime
    return lambda: (clock(), boottime()), store.write_meta.boot


def _wanted(queues: str | Iterable[str], limit_count: int, lease: float) -> Wanted:
    """Return what a caller wants to claim.

    Raises:
        InvalidOption: the count or the lease is invalid.
    """
    limit_count = whole("limit_count", limit_count, 1, LIMIT_COUNT_MAX)
    return Wanted(_names(queues), limit_count, _nanoseconds("lease", lease, above=0))


def _names(queues: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(queues, str):
        return (text("queues", queues),)
    wanted = "the name of a task queue, or some names"
    if not isinstance(queues, Iterable):
        raise type_error("queues", queues, wanted)
    names = tuple(queues)
    if not names:
        raise value_error("queues", queues, "give the name of a task queue, or some names")
    return tuple(text("one of queues", name) for name in names)


def _ref(ref: Ref) -> Ref:
    try:
        task_id, version = ref
        if type(task_id) is int and type(version) is int:
            return task_id, version
    except (TypeError, ValueError):
        raise errors.InvalidType(
            f"a task is named by (id, version), not {shown(ref)}", remedy="give task.ref"
        ) from None
    return whole("id", _plain(task_id)), whole("version", _plain(version))


def _refs(name: str, given: Iterable[Ref]) -> tuple[Ref, ...]:
    return tuple([_ref(ref) for ref in _each(name, given, "(id, version) of tasks")])


def _each(name: str, given: Iterable[Found], wanted: str) -> Iterable[Found]:
    if not isinstance(given, Iterable):
        raise type_error(name, given, f"some {wanted}")
    return given


def _priority(priority: object) -> int:
    """Return a priority, in the 64 bits that MessagePack has."""
    if type(priority) is int and -PRIORITY_END <= priority < PRIORITY_END:  # mostly
        return priority
    remedy = "give an int of 64 bits"
    return whole("priority", _plain(priority), -PRIORITY_END, PRIORITY_END - 1, remedy=remedy)


def _plain(value: object) -> object:
    """Return a bool as the int that it is; the state has plain ints."""
    return int(value) if isinstance(value, bool) else value


def _nanoseconds(name: str, seconds: float, *, above: float) -> int:
    if type(seconds) is float and 0 < seconds <= SECONDS_MAX:  # mostly
        return math.ceil(seconds * NS_PER_S)
    remedy = "give seconds, at most ten years"
    value = number(name, seconds, remedy)
    if not above < value <= SECONDS_MAX or (above < 0 and value < 0):
        raise value_error(name, seconds, remedy)
    return math.ceil(value * NS_PER_S)


def _stats(state: State, now: Moment, sequence: int) -> TaskStats:
    counts: dict[str, dict[TaskStatus, int]] = {}
    oldest: dict[str, int] = {}
    for record in state.tasks.values():
        task = task_of(record, "", now)
        status = task.status(now[0])
        by_status = counts.setdefault(record.queue, dict.fromkeys(STATUSES, 0))
        by_status[status] += 1
        if status == "ready":
            oldest[record.queue] = min(task.at, oldest.get(record.queue, task.at))
    queues = {
        name: TaskQueueStats(
            sum(found.values()),
            found["ready"],
            found["waiting"],
            found["claimed"],
            found["dead"],
            oldest.get(name),
        )
        for name, found in sorted(counts.items())
    }
    totals = dict(zip(TOTALS, state.totals, strict=True))
    return TaskStats(queues, len(state.tasks), totals, sequence)
