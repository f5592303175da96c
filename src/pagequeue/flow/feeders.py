"""Pumps: they draw from an upstream in the background and store what it gives, one by one.

An element is drawn only when the one before it is stored, so at most one is in no queue and no
upstream's hands; if it cannot be stored, it stands in `unstored`. A pump that is stopped stores the
element that it holds, unless there is no room for it, and draws no other.
"""

from __future__ import annotations

import contextlib
import threading
import time
import types
from typing import TYPE_CHECKING, Final

from pagequeue import errors

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

    from typing_extensions import Buffer

    from pagequeue.send.producer import Producer
    from pagequeue.store.store import Store

STORING_SECONDS: Final = 0.1
"""An element that takes longer to be stored finds no room: a pump that is stopped gives it up."""
STEP_SECONDS: Final = 0.005


class Feeder:
    """What both kinds of pump have in common.

    Attributes:
        keeps: what must not go before the pump has ended: the consumer, so that no other flow of
            its name begins while this one may still store something.
        stored: elements that this pump has stored.
        unstored: the element that was drawn and could not be stored, if there is one. After an
            error of the disk or a cancellation it may have been stored all the same.
        end_sequence: everything stored when the upstream had ended is before it; None until then.
        error: what ended the upstream, or the storing; None if it simply ended.
    """

    def __init__(self, store: Store, producer: Producer) -> None:
        self._store = store
        self._producer = producer
        self._is_stopped = False
        self.keeps: object = None
        self.stored = 0
        self.unstored: list[Buffer] = []
        self.end_sequence: int | None = None
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Draw nothing more."""
        self._is_stopped = True

    def _failed(self, element: Buffer, error: BaseException) -> None:
        """Keep an element that an error kept from being stored."""
        if isinstance(error, errors.NotDurable):  # it is stored, and visible
            self.stored += 1
        else:
            self.unstored.append(element)

    def _end(self, error: BaseException | None) -> None:
        """Say that nothing more comes; whoever waits downstream looks again."""
        self.error = error
        self._producer.close()
        end_sequence = 0
        with contextlib.suppress(errors.PageQueueError):  # it was closed meanwhile
            end_sequence = self._store.tail.sequence
        self.end_sequence = end_sequence
        with contextlib.suppress(errors.PageQueueError):
            self._store.write_meta.wake()


class ThreadFeeder(Feeder):
    """Draws from an iterator in a thread."""

    def __init__(self, store: Store, producer: Producer, source: Iterable[Buffer]) -> None:
        super().__init__(store, producer)
        self._source = source
        self._storing_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="pagequeue-persist", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # none can be had, or the interpreter is ending
            raise errors.SystemLimit(
                f"no thread can be had to draw from the upstream ({error}): raise the limit",
                path=store.folder.path,
            ) from error

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
                iterator.close()  # its own clean-up belongs into this thread
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
        self.stored += 1

    def close(self, timeout: float) -> None:
        """Stop, wait for the upstream to give what it was asked for, then give up waiting.

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
        has_room = since is None or now - since <= STORING_SECONDS
        is_mine = self._thread is threading.current_thread()
        return self._thread.is_alive() and not is_mine and has_room and now < deadline


class TaskFeeder(Feeder):
    """Draws from an asynchronous iterator in a task of the running loop."""

    def __init__(self, store: Store, producer: Producer, source: AsyncIterable[Buffer]) -> None:
        import asyncio  # noqa: PLC0415 - see `receive.async_receive`

        super().__init__(store, producer)
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
        """Return the error for a task that somebody else has cancelled."""
        return errors.ClosedError(
            "the task that draws from the upstream was cancelled: persist it again",
            path=self._store.folder.path,
        )

    async def _store_one(self, element: Buffer) -> None:
        try:
            await self._producer.send_async(element)
        except BaseException as error:
            self._failed(element, error)
            raise
        self.stored += 1

    def stop(self) -> None:
        """Draw nothing more, and end; called by the loop's thread, or by one that ends it."""
        self._is_stopped = True
        if self._is_asking:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
                self._loop.call_soon_threadsafe(self._task.cancel)
        else:  # a send that waits for room ends with that
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
