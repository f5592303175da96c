"""Stdout, and whether its reader has read what was written.

A write into a pipe succeeds once the kernel has buffered it, up to 64 KiB before anyone reads; the
kernel discards what the last reader leaves in the buffer. So a message counts as delivered when

- the buffer of a pipe or socket is empty: the reader has read the message;
- a file, a terminal or a device has accepted it.

What the reader does with it afterwards is unknown, so smaller writes put fewer messages at risk.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import stat
import sys
import termios
import time
from typing import IO, Final

STEP_COUNT: Final = 4096
"""Messages per write to a file, or to a pipe without acknowledgements."""
YIELD_COUNT: Final = 50
"""Number of `sched_yield` calls before the first sleep."""
SLEEP_SECONDS: Final = 20e-6
SLEEP_SECONDS_MAX: Final = 0.01


class Outlet:
    """Stdout, unbuffered."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._stream: IO[bytes] | None = None
        self._request: int | None = None
        self._is_socket = False
        self.step_count: int = STEP_COUNT
        """Messages to write before waiting for their delivery."""
        try:
            self._fd = sys.stdout.fileno()
        except io.UnsupportedOperation:  # a program called `main` with a stdout of its own
            self._stream = sys.stdout.buffer
            return
        mode = os.fstat(self._fd).st_mode
        self._left = bytearray(4)
        if stat.S_ISFIFO(mode):
            self._request = termios.FIONREAD
        elif stat.S_ISSOCK(mode):
            self._request = termios.TIOCOUTQ
            self._is_socket = True
        try:
            self._left_bytes()
        except OSError:  # a kind of socket without this ioctl
            self._request = None
        is_stream = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        if is_stream or os.isatty(self._fd):
            self.step_count = 1
        self._reader = select.poll()
        self._reader.register(self._fd, 0)  # POLLERR and POLLHUP come unasked

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: the last reader has closed it. OSError: the disk is full, or similar.
        """
        if self._stream is not None:
            self._stream.write(data)
            self._stream.flush()
            return
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # a process that shares the pipe set O_NONBLOCK
                room = select.poll()
                room.register(self._fd, select.POLLOUT)
                room.poll()
            except OSError as error:
                error.filename = "standard output"
                raise

    def wait_until_taken(self) -> None:
        """Wait until the reader has read everything written.

        Raises:
            BrokenPipeError: the last reader closed it before.
        """
        yield_count, sleep_seconds = 0, SLEEP_SECONDS
        while self._left_bytes():
            if yield_count < YIELD_COUNT:
                yield_count += 1
                os.sched_yield()
            elif self.is_abandoned():
                if self._left_bytes():  # else it was read since the last poll
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            else:
                time.sleep(sleep_seconds)
                sleep_seconds = min(2 * sleep_seconds, SLEEP_SECONDS_MAX)
        # What a closed socket had not read is no longer in its buffer: only a reader that is still
        # there after the buffer was empty has read it.
        if self._is_socket and self.is_abandoned():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def is_abandoned(self) -> bool:
        """Whether the last reader has closed the pipe."""
        return self._stream is None and bool(self._reader.poll(0))

    def _left_bytes(self) -> int:
        """Return the bytes written and not read; for a socket, non-zero if there are any."""
        if self._request is None:
            return 0
        fcntl.ioctl(self._fd, self._request, self._left)
        return int.from_bytes(self._left, sys.byteorder)
