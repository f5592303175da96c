"""How coroutines wait for messages, without a thread for each, and without losing any.

The coroutine that returns a message takes it, without a suspension in between; a wakeup is only a
hint. So a coroutine that is cancelled, at any time, has not moved the consumer, and one that is
woken and finds no message waits again. `wait/coroutine.py` has the sleep, `wait/notifier.py` what
ends it.

asyncio itself is imported only when a coroutine waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue.wait.coroutine import Found, first

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.store.store import Store
    from pagequeue.wait.coroutine import Turns


async def await_first(
    store: Store,
    turns: Turns,
    attempt: Callable[[], Found | None],
    maybe_ready: Callable[[], bool],
    timeout: float | None,
) -> Found:
    """Wait until an attempt to receive returns something, and return that.

    Args:
        store: of the queue.
        turns: of the consumer.
        attempt: receives without waiting; None: no message was published.
        maybe_ready: whether an attempt may succeed, called from the notifier's thread.
        timeout: seconds to wait; None waits for ever, 0 never waits.

    Raises:
        NothingReceived: no message was published in time.
    """
    found = await first(store.notifier, attempt, maybe_ready=maybe_ready, timeout=timeout)
    turns.rest()
    if found is None:
        raise errors.NothingReceived(
            f"no message within {timeout:g} s",
            path=store.folder.path,
            remedy="call again",
        )
    return found
