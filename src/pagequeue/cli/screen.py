"""A terminal for a live view: alternate screen, single keys, and its former state afterwards.

Ctrl-C, SIGTERM and SIGTSTP are only noted and wake up `Screen.key`, so that none can interrupt
the restoration of the terminal; the view ends or is suspended at the next `key`. A second Ctrl-C
or SIGTERM interrupts a view that does not get there.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Final, Self

from rich.cells import set_cell_size
from rich.text import Text

from pagequeue.system import program
from pagequeue.util.console import output_console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

ENTER: Final = "\x1b[?1049h\x1b[?25l"
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_EXIT_CODES: Final = {
    signal.SIGINT: program.EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
}
_NAMED: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
}
_KEY: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_READ_BYTES: Final = 64


class Ended(Exception):
    """The user, a signal or the end of the keys ended the view.

    Attributes:
        exit_code: of the command.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Screen:
    """The terminal of stdout, and of the keys if stdin is a terminal; a context manager."""

    def __init__(self) -> None:
        self._console = output_console()
        self._keys_fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._settings: list[object] | None = None
        self._handlers: dict[int, object] = {}
        self._wake: tuple[int, int] | None = None
        self._pending: list[str] = []
        self._signal: int | None = None
        self._suspend = self._is_resized = self._is_leaving = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self._console.width, self._console.height

    def __enter__(self) -> Self:
        """Save the terminal's state, and change it."""
        try:
            self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGWINCH):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and `&` have it
                    self._handlers[number] = signal.signal(number, self._note)
            signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
            if self._keys_fd is not None:
                self._settings = termios.tcgetattr(self._keys_fd)
            self._change()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the terminal, also one that was changed in part."""
        self._is_leaving = True
        self._restore()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            if handler is not None:
                signal.signal(number, handler)  # type: ignore[arg-type]
        if self._wake is not None:
            for fd in self._wake:
                os.close(fd)

    def _change(self) -> None:
        if self._keys_fd is not None:
            tty.setcbreak(self._keys_fd)
        sys.stdout.write(ENTER)
        sys.stdout.flush()

    def _restore(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
        if self._settings is not None:
            assert self._keys_fd is not None
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._keys_fd, termios.TCSADRAIN, self._settings)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self._suspend = True
        elif number == signal.SIGWINCH:
            self._is_resized = True
        elif number in _EXIT_CODES:
            is_second, self._signal = self._signal is not None, number
            if is_second and not self._is_leaving:
                raise Ended(_EXIT_CODES[signal.Signals(number)])

    def _stop(self) -> None:
        """Stop this process, as Ctrl-Z does, with the terminal as it was."""
        self._suspend = False
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # it goes on here
        signal.signal(signal.SIGTSTP, self._note)
        self._change()

    def show(self, lines: Sequence[Text]) -> None:
        """Replace what is shown; lines that are too long are cut, those too many left out."""
        width, height = self.size
        frame = ["\x1b[H"]
        for number, line in enumerate(lines[:height]):
            cut = line.copy()
            cut.truncate(width, overflow="ellipsis")
            with self._console.capture() as capture:
                self._console.print(cut, end="", no_wrap=True, overflow="ignore", crop=False)
            frame.append(("\r\n" if number else "") + capture.get() + "\x1b[K")
        frame.append("\x1b[J")
        sys.stdout.write("".join(frame))
        sys.stdout.flush()

    def key(self, seconds: float) -> str | None:
        """Return the next key, or None after so many seconds or a change of the size.

        Raises:
            Ended: Ctrl-C was pressed, SIGTERM came, or the terminal has no more keys.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._signal is not None:
                raise Ended(_EXIT_CODES[signal.Signals(self._signal)])
            if self._suspend:
                self._stop()
                return None
            if self._is_resized:
                self._is_resized = False
                return None
            if self._pending:
                return self._pending.pop(0)
            assert self._wake is not None
            fds = [self._wake[0], *([] if self._keys_fd is None else [self._keys_fd])]
            ready = select.select(fds, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                return None
            if self._wake[0] in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], _READ_BYTES)
            elif self._keys_fd is not None:
                self._pending = self._read_keys(self._keys_fd)

    @staticmethod
    def _read_keys(fd: int) -> list[str]:
        data = os.read(fd, _READ_BYTES).decode(errors="replace")
        if not data:
            raise Ended(0)
        return [_NAMED.get(key, key) for key in _KEY.findall(data)]


def cell(text: str, width: int, *, right: bool = False) -> str:
    """Return a text in so many cells; one that is too long loses its begin, which differs least."""
    length = Text(text).cell_len
    if length <= width:
        return " " * (width - length) + text if right else text + " " * (width - length)
    while Text(text).cell_len > width - 1:
        text = text[1:]
    return set_cell_size(f"…{text}", width)
