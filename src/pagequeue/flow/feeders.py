"""Feeders: background workers that read an upstream iterator and append each element to the queue.

A feeder draws an element only after the one before it is stored, so it holds at most one; if
storing that one fails, it is in `unstored`. A feeder that is stopped stores the element that it
holds, unless the queue is full, and draws no more.
"""

from __future__ import annotations

import contextlib
import threading
import time
import types
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue.util.daemon_thread import daemon_thread, start

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

    from typing_extensions import Buffer

    from pagequeue.producer.producer import Producer
    from pagequeue.store.store import Store

STORING_SECONDS: Final = 0.1
"""If storing takes longer, the queue is full: a feeder that is stopped discards the element."""
STEP_SECONDS: Final = 0.005


class Feeder:
    """The common part of both feeders.

    Args:
        store: of the queue.
        producer: sends the elements.
        keeps: the consumer, kept alive until the feeder has ended, so that no other flow of its
            name starts while this one may still store an element.

    Attributes:
        stored: elements that this feeder has stored.
        unstored: the element that was drawn and not stored because of an error. After an error of
            the disk or a cancellation it may have been stored all the same.
        end_sequence: the tail when the upstream had ended; None until then.
        error: the error that ended the upstream or the storing; None if the upstream was exhausted.
    """

    def __init__(self, store: Store, producer: Producer, keeps: object) -> None:
        self._store = store
        self._producer = producer
        self._is_stopped = False
        self._keeps = keeps
        self.stored: int = 0
        self.unstored: list[Buffer] = []
        self.end_sequence: int | None = None
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Draw no more elements."""
        self._is_stopped = True

    def _count(self) -> None:
        """Count an element that was stored."""
        self.stored += 1

    def _failed(self, element: Buffer, error: BaseException) -> None:
        """Keep an element whose storing failed."""
        if isinstance(error, errors.NotDurable):  # it is stored, and visible
            self.stored += 1
        else:
            self.unstored.append(element)

    def _end(self, error: BaseException | None) -> None:
        """Set the end, and wake the waiters downstream."""
        self.error = error
        self._producer.close()
        end_sequence = 0
        with contextlib.suppress(errors.PageQueueError):  # the queue was closed meanwhile
            end_sequence = self._store.tail.sequence
        self.end_sequence = end_sequence
        with contextlib.suppress(errors.PageQueueError):
            self._store.write_meta.wake()


class ThreadFeeder(Feeder):
    """Draws from an iterator in a thread."""

    def __init__(
        self, store: Store, producer: Producer, keeps: object, source: Iterable[Buffer]
    ) -> None:
        super().__init__(store, producer, keeps)
        self._source = source
        self._storing_since: float | None = None
        self._thread = daemon_thread(self._run, "pagequeue-persist")
        start(self._thread, path=store.folder.path)

    def _run(self) -> None:
        error: BaseException | None = None
        iterator: Iterator[Buffer] | None = None
        try:
            iterator = iter(self._source)
            for element in iterator:
                self._store_one(element)
                if self._is_stopped:
                    break
        except BaseException as caught:  # noqa: BLE001 - whatever it is, it is raised downstream
            error = caught
        try:
            if isinstance(iterator, types.GeneratorType):
                iterator.close()  # so that its clean-up runs in this thread
        except BaseException as caught:  # noqa: BLE001 - the same
            error = error or caught
        del iterator
        self._end(error)

    def _store_one(self, element: Buffer) -> None:
        self._storing_since = time.monotonic()
        try:
            self._producer.send(element)
        except BaseException as error:
            self._failed(element, error)
            raise
        self._storing_since = None
        self._count()

    def close(self, timeout: float) -> None:
        """Stop, and wait a limited time for the upstream's pending element.

        Args:
            timeout: seconds to wait for the upstream.
        """
        self.stop()
        deadline = time.monotonic() + timeout
        while self._is_waited_for(deadline):
            self._thread.join(STEP_SECONDS)
        self._producer.close()

    async def aclose(self, timeout: float) -> None:
        """Close, and let the event loop run meanwhile."""
        import asyncio  # noqa: PLC0415 - see `receive.async_receive`

        self.stop()
        deadline = time.monotonic() + timeout
        try:
            while self._is_waited_for(deadline):  # noqa: ASYNC110 - a thread sets no such event
                await asyncio.sleep(STEP_SECONDS)
        finally:
            self._producer.close()

    def _is_waited_for(self, deadline: float) -> bool:
        """Whether closing waits for the thread, which holds an element or is about to."""
        now = time.monotonic()
        since = self._storing_since
        has_space = since is None or now - since <= STORING_SECONDS
        is_own = self._thread is threading.current_thread()
        return self._thread.is_alive() and not is_own and has_space and now < deadline


class TaskFeeder(Feeder):
    """Draws from an asynchronous iterator in a task of the running loop."""

    def __init__(
        self, store: Store, producer: Producer, keeps: object, source: AsyncIterable[Buffer]
    ) -> None:
        import asyncio  # noqa: PLC0415 - see `receive.async_receive`

        super().__init__(store, producer, keeps)
        self._source = source
        self._is_asking = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] = self._loop.create_task(
            self._run(), name="pagequeue-persist"
        )

    async def _run(self) -> None:
        import asyncio  # noqa: PLC0415 - see `receive.async_receive`

        error: BaseException | None = None
        iterator: AsyncIterator[Buffer] | None = None
        try:
            iterator = aiter(self._source)
            while not self._is_stopped:
                self._is_asking = True
                try:
                    element = await anext(iterator)
                except StopAsyncIteration:
                    break
                finally:
                    self._is_asking = False
                await self._store_one(element)
        except BaseException as caught:  # noqa: BLE001 - whatever it is, it is raised downstream
            error = caught
        if isinstance(error, asyncio.CancelledError):
            error = None if self._is_stopped else self._cancelled()
        try:
            if isinstance(iterator, types.AsyncGeneratorType):
                await iterator.aclose()
        except BaseException as caught:  # noqa: BLE001 - the same
            error = error or caught
        self._end(error)

    def _cancelled(self) -> errors.ClosedError:
        """Return the error for a task that was cancelled from outside."""
        return errors.ClosedError(
            "the task that draws from the upstream was cancelled",
            path=self._store.folder.path,
            remedy="persist it again",
        )

    async def _store_one(self, element: Buffer) -> None:
        try:
            await self._producer.send_async(element)
        except BaseException as error:
            self._failed(element, error)
            raise
        self._count()

    def stop(self) -> None:
        """Draw no more elements, and end; called by the loop's thread, or by one that ends it."""
        self._is_stopped = True
        if self._is_asking:
            with contextlib.suppress(RuntimeError):  # the loop and with it the task are closed
                self._loop.call_soon_threadsafe(self._task.cancel)
        else:  # which also ends a send that waits for space
            self._producer.close()

    async def aclose(self) -> None:
        """Stop and wait for the end."""
        import asyncio  # noqa: PLC0415 - see `receive.async_receive`

        self._is_stopped = True
        if self._is_asking:
            self._task.cancel()
        else:
            await asyncio.wait({self._task}, timeout=STORING_SECONDS)
            self._producer.close()
        await asyncio.wait({self._task})
