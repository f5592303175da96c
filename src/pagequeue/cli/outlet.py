"""Stdout as the way to a reader: what was written, and whether its reader has taken it.

A write into a pipe succeeds when the kernel has room, up to 64 KiB before anybody reads. What the
last reader leaves there is gone. So a message counts as delivered when

- a pipe or a socket holds nothing of it any more: its reader has read it;
- a file, a terminal or a device has accepted it.

What a reader does with what it has read is unknown here: the less it is given at once, the less it
can lose.
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
"""Messages written at once where nothing can be lost, and in a pipe without acknowledgements."""
LOOKS_COUNT: Final = 50
"""So often the reader is given the processor before this process sleeps."""
NAP_SECONDS: Final = 20e-6
NAP_SECONDS_MAX: Final = 0.01


class Outlet:
    """Stdout, unbuffered."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._stream: IO[bytes] | None = None
        self._request: int | None = None
        self.step_count = STEP_COUNT
        """How many messages to write before their delivery is waited for."""
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
        try:
            self._left_bytes()
        except OSError:  # a kind of socket that does not tell
            self._request = None
        is_stream = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        if is_stream or os.isatty(self._fd):
            self.step_count = 1
        self._reader = select.poll()
        self._reader.register(self._fd, 0)  # POLLERR and POLLHUP come unasked

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: there is no reader any more. OSError: the disk is full, or the like.
        """
        if self._stream is not None:
            self._stream.write(data)
            self._stream.flush()
            return
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # whoever shares the pipe has made it so
                room = select.poll()
                room.register(self._fd, select.POLLOUT)
                room.poll()
            except OSError as error:
                error.filename = "standard output"
                raise

    def wait_until_taken(self) -> None:
        """Return when the reader has read all that was written.

        Raises:
            BrokenPipeError: the last reader ended before.
        """
        looks_count, nap = 0, NAP_SECONDS
        while self._left_bytes():
            if looks_count < LOOKS_COUNT:
                looks_count += 1
                os.sched_yield()
            elif self.is_abandoned():
                if self._left_bytes():  # else it was read since the last look
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            else:
                time.sleep(nap)
                nap = min(2 * nap, NAP_SECONDS_MAX)

    def is_abandoned(self) -> bool:
        """Whether there is no reader any more."""
        return self._stream is None and bool(self._reader.poll(0))

    def _left_bytes(self) -> int:
        """Return how much was written and not read; of a socket, whether there is any."""
        if self._request is None:
            return 0
        fcntl.ioctl(self._fd, self._request, self._left)
        return int.from_bytes(self._left, sys.byteorder)
