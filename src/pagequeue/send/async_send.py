"""Sending from event loops: a thread does what would block, the loop's thread does the rest.

The loop's own thread sends, because that takes less time than a hop to another thread. If the send
has to create a page, wait for room, flush, or write again after a failed sync, the producer raises
`Deferred`: a thread of the loop's pool does that, once for all coroutines that wait for it, and
then the loop's thread tries again. So each message is sent without a suspension, and a coroutine
that is cancelled earlier has not sent anything.
"""
# ruff: noqa: SLF001 - these functions are the producer's, in a module of their own

from __future__ import annotations

import contextlib
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from pagequeue import _core, errors
from pagequeue.wait.coroutine import Turns, check_timeout
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
LOSSES_MIN: Final = 16
"""As the core's: a call loses so many pages to other senders whatever its timeout."""
LARGE: Final = -1
"""In place of an event: the messages take several pages, and all of sending them may block."""
MAY_BLOCK: Final = {_core.EVENT_FULL, _core.EVENT_FAILED, _core.EVENT_UNRESERVED}


def starved(path: str, seconds: float) -> errors.QueueFull:
    """Return the error for a sender whose timeout is over, and who always lost the next page."""
    return errors.QueueFull(
        f"other senders filled or sealed each page first, for {seconds:.3g} s, so the message was "
        "not sent",
        path=path,
        held_by=(),
        remedy="send again, with a longer timeout or larger pages",
    )


class Deferred(Exception):
    """What has to be done before a send can continue, and may block.

    Attributes:
        event: of the core.
        value: of the event.
        page_number: of the page that was active for the producer.
    """

    def __init__(self, event: int, value: int, page_number: int) -> None:
        self.event = event
        self.value = value
        self.page_number = page_number


class DeferredEvents:
    """What threads that may not block defer while they are inside a producer.

    Attributes:
        sync_up_to: these threads, each with the sequence up to which it has to flush later.
        turns: of the coroutines that send.
        checks: threads that send for a task; each function raises if that was cancelled.
    """

    __slots__ = ("checks", "sync_up_to", "turns")

    def __init__(self) -> None:
        self.checks: dict[int, Callable[[], None]] = {}
        self.sync_up_to: dict[int, int] = {}
        self.turns: Turns = Turns()

    def defers(self, event: int, value: int, page_number: int) -> bool:
        """Whether an event of the core is deferred until after the send.

        Raises:
            Deferred: the event must be resolved before the message can be sent.
        """
        if not self.sync_up_to or (me := threading.get_ident()) not in self.sync_up_to:
            return False
        if event in MAY_BLOCK:
            raise Deferred(event, value, page_number)
        if event != _core.EVENT_SYNC:
            return False
        self.sync_up_to[me] = value
        return True

    def check(self) -> None:
        """Raise JobCancelled if this thread sends for a task that was cancelled."""
        check = self.checks.get(threading.get_ident())
        if check is not None:
            check()

    def check_may_block(self, page_number: int) -> None:
        """Raise Deferred if this thread may not block."""
        if self.sync_up_to and threading.get_ident() in self.sync_up_to:
            raise Deferred(LARGE, 0, page_number)


class Sending(Protocol):
    """What these functions use of a producer."""

    @property
    def _store(self) -> Store: ...
    @property
    def _deferred(self) -> DeferredEvents: ...
    def _roll_from(self, number: int, deadline: float, check: Callable[[], None]) -> object: ...
    def _reserve_blocks(self, frames_bytes: int) -> None: ...
    def _check_open(self) -> None: ...
    def _check_whole(self) -> None: ...
    def _sent_already(self) -> AbstractContextManager[None]: ...


async def send_from_loop(
    producer: Sending, attempt: Callable[[], Sent], timeout: float | None
) -> Sent:
    """Send in the loop's own thread; let another thread do what was deferred.

    Args:
        producer: that sends.
        attempt: sends, or raises `Deferred`.
        timeout: seconds to wait for room; None: the queue's `full_timeout`.
    """
    timeout = check_timeout(timeout)
    state = producer._deferred
    await state.turns.take()
    began, deadline, losses = 0.0, math.inf, 0
    while True:
        deferred: Deferred | None = None
        me = threading.get_ident()
        state.sync_up_to[me] = 0
        try:
            result = attempt()
        except Deferred as error:
            deferred = error
        finally:
            sync_up_to = state.sync_up_to.pop(me)
        if deferred is None:
            break
        if deferred.event == LARGE:
            return await _send_elsewhere(producer, attempt)
        if deferred.event == _core.EVENT_FULL:
            losses += 1
            now = time.monotonic()
            if losses == 1:
                began, deadline = now, producer._store.roller.deadline(timeout)
            elif losses > LOSSES_MIN and now > deadline:
                raise starved(producer._store.folder.path, now - began)
        with contextlib.suppress(JobCancelled):  # by tasks that waited before this one
            await _resolved(producer, deferred, deadline)
    if sync_up_to:
        with producer._sent_already():
            await await_durable(producer, sync_up_to, None)
            producer._check_whole()
    return result


async def _send_elsewhere(producer: Sending, attempt: Callable[[], Sent]) -> Sent:
    """Send in a thread of the loop's pool, where all of it may block."""
    results: list[Sent] = []
    checks = producer._deferred.checks

    def send(job: SharedJob) -> None:
        me = threading.get_ident()
        checks[me] = job.check
        try:
            results.append(attempt())
        finally:
            del checks[me]

    await producer._store.jobs.run(object(), send).wait()
    return results[0]


async def _resolved(producer: Sending, deferred: Deferred, deadline: float) -> None:
    """Let a thread do what a send deferred.

    Raises:
        QueueFull: the queue has no room, and the deadline of this send has passed.
    """
    jobs = producer._store.jobs
    if deferred.event != _core.EVENT_FULL:
        deadline = math.inf
    if (left := deadline - time.monotonic()) > 0:
        # One job for all tasks, whose deadlines differ: so the job itself has none.
        what = (id(producer), deferred.event, deferred.value, deferred.page_number)
        job = jobs.run(what, partial(_resolve, producer, deferred, math.inf))
        if await job.wait(None if left == math.inf else left):
            return
    await jobs.run(object(), partial(_resolve, producer, deferred, deadline)).wait()


def _resolve(producer: Sending, deferred: Deferred, deadline: float, job: SharedJob) -> None:
    """Do what a send deferred, until no task waits for it any more; called by a thread."""

    def check() -> None:
        producer._check_open()
        job.check()

    if deferred.event == _core.EVENT_FULL:
        producer._roll_from(deferred.page_number, deadline, check)
    elif deferred.event == _core.EVENT_UNRESERVED:
        producer._reserve_blocks(deferred.value)
    else:
        producer._store.flusher.resume()


async def await_durable(producer: Sending, end_sequence: int, timeout: float | None) -> None:
    """Wait until all messages before a sequence are on stable storage."""
    store = producer._store
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
