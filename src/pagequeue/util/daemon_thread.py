"""Daemon threads whose start ends, also where the new thread would find no memory."""

from __future__ import annotations

import errno
import mmap
import resource
import threading
from typing import TYPE_CHECKING, Final

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Callable

NO_MEMORY: Final = {errno.ENOMEM, errno.EAGAIN}
STACK_BYTES: Final = 8 << 20
"""Of a thread, where the limit of the stack is infinite; the C library takes less then."""
FRAMES_BYTES: Final = 2 << 20
"""What its first frames take is less."""


def daemon_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Return a daemon thread, of whichever class threads have by now."""
    return threading.Thread(target=target, name=name, daemon=True)


def start(thread: threading.Thread, *, path: str | None = None) -> None:
    """Start a thread, or refuse it.

    `threading.Thread.start` waits until the new thread says that it runs. One whose first frame
    finds no memory, under RLIMIT_AS for example, ends before that, and `start` waits for ever. So
    what a thread needs is taken for a moment before.

    Args:
        thread: to start.
        path: of the queue that it works for, for the error.

    Raises:
        SystemLimit: the system gives no thread or no memory for one, or the interpreter is shutting
            down.
    """
    try:
        mmap.mmap(-1, stack_bytes() + FRAMES_BYTES).close()
        thread.start()
    except (RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_MEMORY:
            raise  # a signal handler's
        raise errors.SystemLimit(
            f"cannot start the thread {thread.name} ({str(error) or 'no memory'})",
            path=path,
            remedy="raise the limit of threads or of memory (`ulimit -u`, `ulimit -v`)",
        ) from error
    except KeyError as error:
        # A signal handler raised when the thread ran already: CPython takes it off a list which it
        # has left.
        if error.__context__ is None:
            raise
        raise error.__context__ from None


def stack_bytes() -> int:
    """Return how much the stack of a new thread takes."""
    limit = threading.stack_size() or resource.getrlimit(resource.RLIMIT_STACK)[0]
    return STACK_BYTES if limit == resource.RLIM_INFINITY else limit
