"""Calls in progress that closing waits for, so that it can take back what they have done."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_SECONDS: Final = 0.001


class InProgress:
    """The calls of all threads. It takes no lock, so a signal handler may close in one of them."""

    def __init__(self) -> None:
        self._calls: dict[object, int] = {}
        self._is_closing = False

    @contextlib.contextmanager
    def call(self) -> Iterator[bool]:
        """Be in progress while the block runs; yield False if it was closed before."""
        token = object()
        try:
            self._calls[token] = threading.get_ident()  # before the flag is read
            yield not self._is_closing
        finally:
            self._calls.pop(token, None)

    def close(self, seconds: float) -> bool:
        """Refuse later calls, and wait for those of other threads; return whether all ended."""
        me, deadline = threading.get_ident(), time.monotonic() + seconds
        self._is_closing = True
        while any(thread != me for thread in list(self._calls.values())):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True
