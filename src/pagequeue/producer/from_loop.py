"""Sending from event loops: a thread does what would block, the loop's thread does the rest.

The loop's own thread sends, because that takes less time than a hop to another thread. If the send
has to create a page, flush, or write again after a failed sync, the producer raises `Deferred`: a
thread does that, once for all coroutines that wait for it, and then the loop's thread tries again.
So each message is sent without a suspension, and a coroutine that is cancelled earlier has not sent
anything.
"""
# ruff: noqa: SLF001 - these functions are the producer's, in a module of their own

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pagequeue import _core, errors
from pagequeue.send.refusals import starved
from pagequeue.send.with_room import LOSSES_MIN, with_room
from pagequeue.wait.coroutine import Turns, check_timeout, let_others_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pagequeue.store.store import Store
    from pagequeue.wait.shared_jobs import SharedJob

Sent = TypeVar("Sent")
FULL: Final = "_on_full"
STARVED: Final = "_on_starved"
LOST: Final = {FULL: 1, STARVED: LOSSES_MIN}
"""How many pages a call has lost, by event."""
LARGE: Final = ""
"""In place of an event: the messages take several pages, and all of sending them may block."""


class Deferred(Exception):
    """What has to be done before a send can continue, and may block.

    Attributes:
        event: the method for an event of the core.
        value: of the event.
        page_number: of the page that was active for the producer.
    """

    def __init__(self, event: str, value: int, page_number: int) -> None:
        self.event = event
        self.value = value
        self.page_number = page_number


class DeferredEvents:
    """What calls that must not block leave to do.

    Attributes:
        sync_up_to: by thread: the sequence up to which its last call has to be flushed.
        turns: of the coroutines that send.
        checks: threads that send for a task; each function raises if that was cancelled.
    """

    __slots__ = ("checks", "sync_up_to", "turns")

    def __init__(self) -> None:
        self.checks: dict[int, Callable[[], None]] = {}
        self.sync_up_to: dict[int, int] = {}
        self.turns: Turns = Turns()

    def defer(self, event: str, value: int, page_number: int) -> None:
        """Note a flush that is due: the message is sent.

        Raises:
            Deferred: the event must be resolved before the message can be sent.
        """
        if event != "_on_sync":
            raise Deferred(event, value, page_number)
        self.sync_up_to[threading.get_ident()] = value

    def check(self) -> None:
        """Raise JobCancelled if this thread sends for a task that was cancelled."""
        check = self.checks.get(threading.get_ident())
        if check is not None:
            check()


class Sending(Protocol):
    """What these functions use of a producer."""

    @property
    def _store(self) -> Store: ...
    @property
    def _deferred(self) -> DeferredEvents: ...
    def _roll_from(self, number: int, deadline: float, check: Callable[[], None]) -> object: ...
    def _on_unreserved(self, frames_bytes: int) -> None: ...
    def _check_open(self) -> None: ...
    def _check_whole(self) -> None: ...
    def _sent_already(self) -> AbstractContextManager[None]: ...


async def send_from_loop(
    producer: Sending, attempt: Callable[[Any], Sent], timeout: float | None
) -> Sent:
    """Send in the loop's own thread; let another thread do what was deferred.

    Args:
        producer: that sends.
        attempt: sends with a timeout; with `NEVER_BLOCK` for one, it may raise `Deferred`.
        timeout: seconds to wait for room; None: the queue's `full_timeout`.
    """
    timeout = check_timeout(timeout)
    state = producer._deferred
    await state.turns.take()
    began, deadline, losses = 0.0, math.inf, 0
    while True:
        try:
            result = attempt(_core.NEVER_BLOCK)
            break
        except Deferred as error:
            deferred = error
        if deferred.event == LARGE:
            return await with_room(
                producer._store,
                timeout,
                partial(_send_in_thread, producer, attempt),
                line="pages",
                check=producer._check_open,
            )
        if deferred.event in LOST:
            now = time.monotonic()
            if losses == 0:
                began, deadline = now, producer._store.limits.deadline(timeout)
            losses += LOST[deferred.event]
            if losses > LOSSES_MIN and now > deadline:
                raise starved(producer._store.folder.path, now - began)
            if deferred.event == STARVED:
                await let_others_run()
                continue
        what = (id(producer), deferred.event, deferred.value, deferred.page_number)
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        await with_room(
            producer._store,
            left,
            partial(_resolve, producer, deferred),
            line="page",
            check=producer._check_open,
            key=what,
        )
    sync_up_to = state.sync_up_to.pop(threading.get_ident(), 0) if state.sync_up_to else 0
    if sync_up_to:
        with producer._sent_already():
            await await_durable(producer, sync_up_to, None)
            producer._check_whole()
    return result


def _send_in_thread(
    producer: Sending,
    attempt: Callable[[float | None], Sent],
    job: SharedJob[Sent],
    timeout: float | None,
) -> Sent:
    """Send in a thread, where all of it may block."""
    checks, me = producer._deferred.checks, threading.get_ident()
    checks[me] = job.check
    try:
        return attempt(timeout)
    finally:
        del checks[me]


def _resolve(
    producer: Sending, deferred: Deferred, job: SharedJob[None], timeout: float | None
) -> None:
    """Do what a send deferred, until no task waits for it any more; called by a thread."""

    def check() -> None:
        producer._check_open()
        job.check()

    if deferred.event == FULL:
        deadline = producer._store.limits.deadline(timeout)
        producer._roll_from(deferred.page_number, deadline, check)
    elif deferred.event == "_on_unreserved":
        producer._on_unreserved(deferred.value)
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
