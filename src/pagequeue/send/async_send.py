"""Sending from event loops: a thread does what would block, the loop's thread does the rest.

The loop's own thread sends, because that takes less time than a hop to another thread. If the send
has to create a page, wait for room, flush, or write again after a failed sync, the producer raises
`Deferred`: a thread of the loop's pool does that, once for all coroutines that wait for it, and
then the loop's thread tries again. So each message is sent without a suspension, and a coroutine
that is cancelled earlier has not sent anything.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pagequeue import _core, errors
from pagequeue.columns.inputs import is_columnar
from pagequeue.wait.coroutine import TURN_SECONDS, check_timeout, let_others_run
from pagequeue.wait.shared_jobs import JobCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

    from pagequeue.store.store import Store
    from pagequeue.wait.shared_jobs import SharedJob

Sent = TypeVar("Sent")
Many: TypeAlias = "Iterable[Buffer] | Any"
"""An iterable of payloads, or arrays and tables, or what a codec takes."""
Times: TypeAlias = "Iterable[int] | Any"
MAY_BLOCK: Final = {_core.EVENT_FULL, _core.EVENT_FAILED}


class Deferred(Exception):
    """What has to be done before a send can continue, and may block.

    Attributes:
        event: of the core.
        page_number: of the page that was active for the producer.
    """

    def __init__(self, event: int, page_number: int) -> None:
        self.event = event
        self.page_number = page_number


class DeferredEvents:
    """What threads that may not block defer while they are inside a producer.

    Attributes:
        sync_up_to: these threads, each with the sequence up to which it has to flush later.
        rested_at: when a sending coroutine last yielded to others, by the monotonic clock.
    """

    __slots__ = ("rested_at", "sync_up_to")

    def __init__(self) -> None:
        self.sync_up_to: dict[int, int] = {}
        self.rested_at = 0.0

    def defers(self, event: int, value: int, page_number: int) -> bool:
        """Whether an event of the core is deferred until after the send.

        Raises:
            Deferred: the event must be resolved before the message can be sent.
        """
        if not self.sync_up_to or (me := threading.get_ident()) not in self.sync_up_to:
            return False
        if event in MAY_BLOCK:
            raise Deferred(event, page_number)
        if event != _core.EVENT_SYNC:
            return False
        self.sync_up_to[me] = value
        return True


class AwaitedSends:
    """The part of `Producer` that belongs to asyncio."""

    __slots__ = ()

    if TYPE_CHECKING:
        _store: Store
        _deferred: DeferredEvents

        def send(self, payload: Buffer, /, *, timestamp: int | None = None) -> int:
            """Send one message."""

        def send_many(self, payloads: Many, *, timestamps: Times | None = None) -> range:
            """Send a batch."""

        def _roll_from(self, number: int, deadline: float, check: Callable[[], None]) -> None: ...
        def _check_open(self) -> None: ...
        def _check_whole(self) -> None: ...
        def _sent_already(self) -> AbstractContextManager[None]: ...

    async def send_async(self, payload: Buffer, *, timestamp: int | None = None) -> int:
        """Send as `send` does, and let the event loop run while waiting for room and for syncs.

        A task that is cancelled while it waits for room has not sent the message. If it is
        cancelled while it waits for a sync, which only happens with another `sync` than "none", the
        message is sent and visible, but may not be on stable storage.

        Args:
            payload: as for `send`.
            timestamp: as for `send`, ns since 1970, UTC.

        Returns:
            the sequence of the message.

        Raises:
            QueueFull, MessageTooLarge, NotDurable, SyncFailed, ClosedError: as for `send`.

        Example:
            >>> await producer.send_async(b"one")
            0

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I1, I3 and I4.
        return await self._sent(lambda: self.send(payload, timestamp=timestamp))

    async def send_many_async(self, payloads: Many, *, timestamps: Times | None = None) -> range:
        """Send as `send_many` does, and let the event loop run while waiting for room and syncs.

        If the task is cancelled: as for `send_async`; the batch is sent as a whole or not at all.

        Args:
            payloads: as for `send_many`.
            timestamps: as for `send_many`, shape (n,).

        Returns:
            the sequences of the messages, consecutive.

        Raises:
            QueueFull, MessageTooLarge, NotDurable, SyncFailed, ClosedError: as for `send_many`.

        Example:
            >>> await producer.send_many_async([b"one", b"two"])
            range(0, 2)

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I2 and I8.
        fixed = payloads if is_columnar(payloads) else list(payloads)  # tried more than once
        if timestamps is not None and not is_columnar(timestamps):
            timestamps = list(timestamps)
        return await self._sent(lambda: self.send_many(fixed, timestamps=timestamps))

    async def flush_async(self, timeout: float | None = None) -> int:
        """Flush as `flush` does, and let the event loop run meanwhile.

        Coroutines that flush at the same time share their syncs. If the task is cancelled, the
        sent messages may or may not reach stable storage.

        Args:
            timeout: seconds to wait; None waits for ever.

        Returns:
            the durable sequence: every message below it is on stable storage.

        Raises:
            FlushTimeout: the messages did not reach stable storage in time.
            SyncFailed, ClosedError, ForkedError: as for `flush`.

        Example:
            >>> await producer.flush_async(timeout=10.0)
            1

        Source: FORMAT.md, "Flushing".
        """
        # Keeps I5.
        timeout = check_timeout(timeout)
        self._check_open()
        await self._flushed(self._store.tail.sequence, timeout)
        self._check_whole()
        return self._store.write_meta.durable_sequence

    async def _sent(self, attempt: Callable[[], Sent]) -> Sent:
        """Send in the loop's own thread; let another thread do what was deferred."""
        now = time.monotonic()
        if now - self._deferred.rested_at > TURN_SECONDS:
            await let_others_run()
            self._deferred.rested_at = time.monotonic()
        deadline: float | None = None
        while True:
            deferred: Deferred | None = None
            me = threading.get_ident()
            self._deferred.sync_up_to[me] = 0
            try:
                sent = attempt()
            except Deferred as error:
                deferred = error
            finally:
                sync_up_to = self._deferred.sync_up_to.pop(me)
            if deferred is None:
                break
            if deferred.event == _core.EVENT_FULL and deadline is None:
                deadline = self._store.roller.deadline()
            with contextlib.suppress(JobCancelled):  # by tasks that waited before this one
                await self._resolved(deferred, math.inf if deadline is None else deadline)
        if sync_up_to:
            with self._sent_already():
                await self._flushed(sync_up_to, None)
                self._check_whole()
        return sent

    async def _resolved(self, deferred: Deferred, deadline: float) -> None:
        """Let a thread do what a send deferred.

        Raises:
            QueueFull: the queue has no room, and the deadline of this send has passed.
        """
        jobs = self._store.jobs
        if deferred.event != _core.EVENT_FULL:
            deadline = math.inf
        if (left := deadline - time.monotonic()) > 0:
            # One job for all tasks, whose deadlines differ: so the job itself has none.
            what = (id(self), deferred.event, deferred.page_number)
            job = jobs.run(what, partial(self._resolve, deferred, math.inf))
            if await job.wait(None if left == math.inf else left):
                return
        await jobs.run(object(), partial(self._resolve, deferred, deadline)).wait()

    def _resolve(self, deferred: Deferred, deadline: float, job: SharedJob) -> None:
        """Do what a send deferred, until no task waits for it any more; called by a thread."""

        def check() -> None:
            self._check_open()
            job.check()

        if deferred.event == _core.EVENT_FULL:
            self._roll_from(deferred.page_number, deadline, check)
        else:
            self._store.flusher.resume()

    async def _flushed(self, end_sequence: int, timeout: float | None) -> None:
        """Wait until all messages before a sequence are on stable storage."""
        store = self._store
        flusher, meta = store.flusher, store.write_meta
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while meta.is_failed or meta.durable_sequence < end_sequence:
            # A flush that is running may have begun before our messages were sent: another follows.
            job = store.jobs.run("flush", lambda _: flusher.flush(None))
            left = None if timeout is None else max(0.0, deadline - time.monotonic())
            if not await job.wait(left):
                raise errors.FlushTimeout(
                    f"not on stable storage within {timeout} s",
                    path=store.folder.path,
                    remedy="call again",
                )
