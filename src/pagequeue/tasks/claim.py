"""TaskClaim: a task that this worker has until its lease ends or it is done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue.tasks.task import Modified

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pagequeue.tasks.plan import Ref, Transaction
    from pagequeue.tasks.store import TaskStore
    from pagequeue.tasks.task import NewTask, Task


NOTHING_MODIFIED: Final = Modified()


class TaskClaim:
    """A claimed task: this worker's until its lease ends and another worker claims it.

    `TaskStore.claim` returns it. Finish it with `ack`, or give it back with `nack`.

    Attributes:
        task: as it was claimed, extended or saved last.

    Example:
        >>> claim = store.claim("mail", timeout=1.0)
        >>> claim.value
        {'to': 'ann'}
        >>> modified = claim.ack()
    """

    __slots__ = ("_is_settled", "_store", "task")

    def __init__(self, store: TaskStore, task: Task) -> None:
        self._store = store
        self._is_settled = False
        self.task: Task = task

    def __repr__(self) -> str:
        return f"<TaskClaim of task {self.task.id} in {self.task.queue!r}>"

    @property
    def id(self) -> int:
        """The number of the task.

        Example:
            >>> claim.id
            1
        """
        return self.task.id

    @property
    def value(self) -> Any:  # noqa: ANN401 - any value of the codec
        """The decoded payload: a new object at each access.

        Example:
            >>> claim.value
            {'to': 'ann'}
        """
        return self.task.value

    @property
    def payload(self) -> bytes:
        """The encoded value.

        Example:
            >>> claim.payload
            b'{"to":"ann"}'
        """
        return self.task.payload

    @property
    def deliveries(self) -> int:
        """How often the task was claimed, this time included.

        Example:
            >>> claim.deliveries
            1
        """
        return self.task.deliveries

    def ack(
        self,
        *,
        insert: Iterable[NewTask] = (),
        change: Mapping[Ref, Mapping[str, Any]] | None = None,
        delete: Iterable[Ref] = (),
        depend: Iterable[Ref] = (),
        durable: bool = False,
    ) -> Modified:
        """Finish the task: remove it, and do the rest of a transaction in the same entry.

        Either all of it happens or nothing, so a task that another worker has claimed since then
        has no successor of this worker's.

        Args:
            insert: its successors.
            change: as for `TaskStore.modify`.
            delete: as for `TaskStore.modify`.
            depend: as for `TaskStore.modify`.
            durable: return when it is on stable storage.

        Raises:
            Stale: another worker claimed the task, it was changed, or another task of the
                transaction was. Nothing was written.
            UsageError: this claim was settled before.
            The others are those of `TaskStore.modify`.

        Example:
            >>> modified = claim.ack(insert=[NewTask("publish", claim.value)])
            >>> modified.inserted[0].queue
            'publish'
        """
        wanted = self._wanted(insert, change, delete, depend)
        return self._finish(wanted, durable=durable)

    async def ack_async(
        self,
        *,
        insert: Iterable[NewTask] = (),
        change: Mapping[Ref, Mapping[str, Any]] | None = None,
        delete: Iterable[Ref] = (),
        depend: Iterable[Ref] = (),
        durable: bool = False,
    ) -> Modified:
        """Finish the task as `ack` does, in a thread, and let the event loop run meanwhile.

        If the task of the loop is cancelled, all of it happens or nothing.

        Args:
            insert: as for `ack`.
            change: as for `ack`.
            delete: as for `ack`.
            depend: as for `ack`.
            durable: as for `ack`.

        Raises:
            Stale, UsageError: as for `ack`.

        Example:
            >>> modified = await claim.ack_async(insert=[NewTask("publish", claim.value)])
            >>> modified.inserted[0].queue
            'publish'
        """
        wanted = self._wanted(insert, change, delete, depend)
        return await self._store._in_thread(partial(self._finish, wanted, durable=durable))  # noqa: SLF001

    def _wanted(
        self,
        insert: Iterable[NewTask],
        change: Mapping[Ref, Mapping[str, Any]] | None,
        delete: Iterable[Ref],
        depend: Iterable[Ref],
    ) -> Transaction | None:
        """Return the transaction that finishes the task; None: it does nothing else."""
        if self._is_settled:
            raise self._settled()
        if not any((insert, change, delete, depend)):
            return None
        return self._store._transaction(insert, change, delete, depend, (self.task.ref,))  # noqa: SLF001

    def _finish(self, wanted: Transaction | None, *, durable: bool) -> Modified:
        """Do a transaction that finishes the task; None: one that does nothing else."""
        modified = NOTHING_MODIFIED
        if wanted is None:
            self._store._finish_one(self.task, durable=durable)  # noqa: SLF001
        else:
            modified = self._store._modify(wanted, durable=durable)  # noqa: SLF001
        self._settle()
        return modified

    def nack(self, delay: float = 0.0, *, reason: str | None = None) -> None:
        """Give the task back, to be claimed again.

        After `max_deliveries` claims it becomes dead instead.

        Args:
            delay: seconds until it can be claimed.
            reason: why, as `task.reason` shows it.

        Raises:
            Stale: another worker claimed the task, or it was changed; nothing was written.
            UsageError: this claim was settled before.

        Example:
            >>> claim.nack(delay=60.0, reason="the remote is down")
        """
        self._check()
        self._store._nack([self.task.ref], delay, reason)  # noqa: SLF001
        self._settle()

    async def nack_async(self, delay: float = 0.0, *, reason: str | None = None) -> None:
        """Give the task back as `nack` does, in a thread, and let the event loop run meanwhile.

        Args:
            delay: as for `nack`, in seconds.
            reason: as for `nack`.

        Raises:
            Stale, UsageError: as for `nack`.

        Example:
            >>> await claim.nack_async(delay=60.0, reason="the remote is down")
        """
        await self._store._in_thread(partial(self.nack, delay, reason=reason))  # noqa: SLF001

    def extend(self, seconds: float) -> None:
        """Let the lease end this many seconds from now.

        Args:
            seconds: from now, above 0.

        Raises:
            Stale: another worker claimed the task, or it was changed; nothing was written.
            UsageError: this claim was settled before.

        Example:
            >>> claim.extend(300.0)
        """
        self._check()
        self.task = self._store._extend(self.task, seconds)  # noqa: SLF001

    async def extend_async(self, seconds: float) -> None:
        """Extend the lease as `extend` does, in a thread, and let the event loop run meanwhile.

        Args:
            seconds: from now, above 0.

        Raises:
            Stale, UsageError: as for `extend`.

        Example:
            >>> await claim.extend_async(300.0)
        """
        await self._store._in_thread(partial(self.extend, seconds))  # noqa: SLF001

    def save(self, value: Any, *, durable: bool = False) -> None:  # noqa: ANN401 - the codec's
        """Replace the task's value and keep the claim: progress that its next worker sees.

        Args:
            value: what the codec of the store encodes.
            durable: return when it is on stable storage.

        Raises:
            Stale: another worker claimed the task, or it was changed; nothing was written.
            UsageError: this claim was settled before.
            NotEncodable: the codec cannot encode the value.

        Example:
            >>> claim.save({"image": "1.png", "uploaded_bytes": 4096})
        """
        self._save(self._changed(value), durable=durable)

    async def save_async(self, value: Any, *, durable: bool = False) -> None:  # noqa: ANN401 - the codec's
        """Replace the value as `save` does, in a thread, and let the event loop run meanwhile.

        Args:
            value: as for `save`.
            durable: as for `save`.

        Raises:
            Stale, UsageError, NotEncodable: as for `save`.

        Example:
            >>> await claim.save_async({"image": "1.png", "uploaded_bytes": 4096})
        """
        wanted = self._changed(value)
        await self._store._in_thread(partial(self._save, wanted, durable=durable))  # noqa: SLF001

    def _changed(self, value: Any) -> Transaction:  # noqa: ANN401 - the codec's
        self._check()
        return self._store._transaction((), {self.task.ref: {"value": value}}, (), (), ())  # noqa: SLF001

    def _save(self, wanted: Transaction, *, durable: bool) -> None:
        modified = self._store._modify(wanted, durable=durable)  # noqa: SLF001
        self.task = modified.changed[0]
        self._store._keep(self)  # noqa: SLF001

    def detach(self) -> None:
        """Keep the claim until its lease ends, also when the store is closed before.

        For another process, which finishes the task with `TaskStore.finish` or `modify`. The claim
        itself cannot be used any more.

        Raises:
            UsageError: this claim was settled before.

        Example:
            >>> claim.detach()
            >>> store.finish([claim.task.ref])
        """
        self._check()
        self._settle()

    def _check(self) -> None:
        if self._is_settled:
            raise self._settled()

    def _settled(self) -> errors.UsageError:
        return errors.UsageError(
            f"this claim of task {self.task.id} was already acknowledged or given back",
            path=self._store.directory,
            remedy="acknowledge or give back each claim once",
        )

    def _settle(self) -> None:
        self._is_settled = True
        self._store._forget(self)  # noqa: SLF001
