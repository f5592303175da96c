"""TaskClaim: a task that this worker has until its lease ends or it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue.tasks.task import Modified
from pagequeue.wait.off_loop import off_loop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pagequeue.tasks.plan import Ref
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
        self._check()
        modified = NOTHING_MODIFIED
        more = (insert, delete, depend)
        if change is None and all(type(one) is tuple and not one for one in more):
            self._store._finish_one(self.task, durable=durable)  # noqa: SLF001
        else:
            wanted = self._store._transaction(insert, change, delete, depend, [self.task.ref])  # noqa: SLF001
            modified = self._store._modify(wanted, durable=durable)  # noqa: SLF001
        self._settle()
        return modified

    ack_async = off_loop(ack)
    """Finish the task as `ack` does, in a thread, and let the event loop run meanwhile."""

    def nack(self, delay: float | None = None, *, reason: str | None = None) -> None:
        """Give the task back, to be claimed again.

        After `max_deliveries` claims it becomes dead instead.

        Args:
            delay: seconds until it can be claimed; None: by the `backoff` of the store.
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

    nack_async = off_loop(nack)
    """Give the task back as `nack` does, in a thread, and let the event loop run meanwhile."""

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

    extend_async = off_loop(extend)
    """Extend the lease as `extend` does, in a thread, and let the event loop run meanwhile."""

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
        self._check()
        change = {self.task.ref: {"value": value}}
        self.task = self._store.modify(change=change, durable=durable).changed[0]
        self._store._keep(self)  # noqa: SLF001

    save_async = off_loop(save)
    """Replace the value as `save` does, in a thread, and let the event loop run meanwhile."""

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
            with self._store._can_claim():  # noqa: SLF001 - a store that is closed gave it back
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
