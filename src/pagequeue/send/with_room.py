"""Waiting for room on an event loop: a thread does what needs room, once there may be some.

Coroutines wait in a line, on their loop: the consumer that makes room may need the threads. Only
the first of a line waits in a thread, for a moment at a time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    from pagequeue.store.store import Store
    from pagequeue.wait.shared_jobs import SharedJob

Sent = TypeVar("Sent")
Many: TypeAlias = "Iterable[Buffer] | Any"
"""An iterable of payloads, or arrays and tables, or what a codec takes."""
Times: TypeAlias = "Iterable[int] | Any"
LOSSES_MIN: Final = 16
"""As the core's: a call loses so many pages to other senders whatever its timeout."""
ROOM_SECONDS: Final = 0.05
"""The longest wait for room in a thread, which only the first coroutine of a line makes."""


async def with_room(
    store: Store,
    timeout: float | None,
    attempt: Callable[[SharedJob[Sent], float | None], Sent],
    *,
    line: str,
    check: Callable[[], object],
    key: object = None,
) -> Sent:
    """Do in a thread what needs room in the queue; wait for that on the loop.

    Args:
        store: of the queue.
        timeout: seconds to wait for room; None: the queue's `full_timeout`.
        attempt: gets the seconds that it may wait for room itself.
        line: in which coroutines wait, so that they get room in their order.
        check: raises when it is not wanted any more.
        key: of what coroutines do together; None: this is done for itself.
    """
    key = key or object()
    if not store.limits.blocks:
        return await store.jobs.run(key, lambda job: attempt(job, timeout)).result()
    deadline, seconds = store.limits.deadline(timeout), 0.0

    def do(job: SharedJob[Sent]) -> Sent:
        return attempt(job, seconds)

    try:
        return await store.jobs.run(key, do).result()
    except errors.QueueFull as error:
        full = error
    with store.jobs.line(line) as place:
        while (left := deadline - time.monotonic()) > 0:
            seconds = min(ROOM_SECONDS, left)
            is_first = await place.wait(seconds)
            check()
            if is_first:
                try:
                    return await store.jobs.run(key, do).result()
                except errors.QueueFull as error:
                    full = error
    raise full
