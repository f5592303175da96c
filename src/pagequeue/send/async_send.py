"""Sending from event loops: what would block is done in a thread, all the rest at once.

A send is done by the loop's own thread, because it takes less than a hop to another one. Where it
would have to make a page, wait for room, flush or write again after a failed sync, the producer
puts that off (`Deferred`): a thread of the loop's does it, for all who wait for the same, and then
the loop's own thread tries again. So what is sent is sent in one go, without a suspension: a
coroutine that is cancelled before has sent nothing.
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
    """What must be done before a send can go on, and can take long.

    Attributes:
        event: of the core.
        page_number: of the page that was active for the producer.
    """

    def __init__(self, event: int, page_number: int) -> None:
        self.event = event
        self.page_number = page_number


class DeferredEvents:
    """What threads that may not block put aside while they are inside a producer.

    Attributes:
        sync_up_to: these threads, each with the sequence up to which it has to flush later.
        rested_at: when a coroutine that sends let others run last.
    """

    __slots__ = ("rested_at", "sync_up_to")

    def __init__(self) -> None:
        self.sync_up_to: dict[int, int] = {}
        self.rested_at = 0.0

    def puts_off(self, event: int, value: int, page_number: int) -> bool:
        """Whether an event of the core is settled by being put off.

        Raises:
            PutOff: nothing was sent, and it cannot be before that event was settled.
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
        _aside: DeferredEvents

        def send(self, payload: Buffer, /, *, timestamp: int | None = None) -> int:
            """Send one message."""

        def send_many(self, payloads: Many, *, timestamps: Times | None = None) -> range:
            """Send a batch."""

        def _roll_from(self, number: int, check: Callable[[], None]) -> None: ...
        def _check_open(self) -> None: ...
        def _check_whole(self) -> None: ...
        def _sent_already(self) -> AbstractContextManager[None]: ...

    async def send_async(self, payload: Buffer, *, timestamp: int | None = None) -> int:
        """Send as `send` does; waiting for room and for syncs lets the event loop run.

        Cancelled while it waits for room: nothing was sent. Cancelled while it waits for a sync,
        which only a queue with another `sync` than "none" has: sent and visible, perhaps not on
        stable storage.

        Source: FORMAT.md, "Publishing"; keeps I1, I3, I4.
        """
        return await self._sent(lambda: self.send(payload, timestamp=timestamp))

    async def send_many_async(self, payloads: Many, *, timestamps: Times | None = None) -> range:
        """Send as `send_many` does; waiting for room and for syncs lets the event loop run.

        Cancelled: as for `send_async`, and the batch is sent as a whole or not at all.

        Source: FORMAT.md, "Publishing"; keeps I2, I8.
        """
        fixed = payloads if is_columnar(payloads) else list(payloads)  # tried more than once
        if timestamps is not None and not is_columnar(timestamps):
            timestamps = list(timestamps)
        return await self._sent(lambda: self.send_many(fixed, timestamps=timestamps))

    async def flush_async(self, timeout: float | None = None) -> int:
        """Flush as `flush` does, and let the event loop run meanwhile.

        Coroutines that flush at the same time share their syncs. Cancelled: what was sent stays
        sent, and may or may not reach stable storage.

        Args:
            timeout: seconds to wait; None waits for ever.

        Source: FORMAT.md, "Flushing"; keeps I5.
        """
        timeout = check_timeout(timeout)
        self._check_open()
        await self._flushed(self._store.tail.sequence, timeout)
        self._check_whole()
        return self._store.write_meta.durable_sequence

    async def _sent(self, attempt: Callable[[], Sent]) -> Sent:
        """Send by the loop's own thread; have done by another one what that needs."""
        now = time.monotonic()
        if now - self._aside.rested_at > TURN_SECONDS:
            await let_others_run()
            self._aside.rested_at = time.monotonic()
        while True:
            put_off: Deferred | None = None
            me = threading.get_ident()
            self._aside.sync_up_to[me] = 0
            try:
                sent = attempt()
            except Deferred as error:
                put_off = error
            finally:
                sync_up_to = self._aside.sync_up_to.pop(me)
            if put_off is None:
                break
            settle = partial(self._settle, put_off.event, put_off.page_number)
            what = (id(self), put_off.event, put_off.page_number)
            with contextlib.suppress(JobCancelled):  # by all who waited before this one came
                await self._store.jobs.run(what, settle).wait()
        if sync_up_to:
            with self._sent_already():
                await self._flushed(sync_up_to, None)
                self._check_whole()
        return sent

    def _settle(self, event: int, page_number: int, job: SharedJob) -> None:
        """Do what a send put off, unless nobody wants it any more; called by a thread."""

        def check() -> None:
            self._check_open()
            job.check()

        if event == _core.EVENT_FULL:
            self._roll_from(page_number, check)
        else:
            self._store.flusher.resume()

    async def _flushed(self, end_sequence: int, timeout: float | None) -> None:
        """Have all that is before a sequence on stable storage."""
        store = self._store
        flusher, meta = store.flusher, store.write_meta
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while meta.is_failed or meta.durable_sequence < end_sequence:
            # The one under way may have begun before our messages were sent: then another follows.
            job = store.jobs.run("flush", lambda _: flusher.flush(None))
            left = None if timeout is None else max(0.0, deadline - time.monotonic())
            if not await job.wait(left):
                raise errors.FlushTimeout(
                    f"not on stable storage within {timeout} s: call again",
                    path=store.folder.path,
                )
