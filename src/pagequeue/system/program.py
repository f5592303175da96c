"""Set-up of the `pagequeue` command's process, from its first import on.

The package imports this module first; it has no effect in any other process.

- A standard descriptor that is closed at the start is opened on /dev/null: otherwise the next file,
  perhaps one of a queue, gets its number, and printed text is written into that file.
- Ctrl-C during imports ends the process at once with exit code 130: no queue is open yet, and a
  KeyboardInterrupt inside of an import can end as any other error.
- Ctrl-C later is a KeyboardInterrupt, also when it arrives in a finalizer, which would drop it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    _Handler = Callable[[int, FrameType | None], object] | signal.Handlers

EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT
NAMES: Final = frozenset({"pagequeue", "pagequeue.cli"})
closed: Final[set[int]] = set()
"""The standard descriptors that were closed when the process started."""


class _State:
    """Whether this process is the command, and whether Ctrl-C was pressed."""

    has_begun = False
    is_interrupted = False


def is_command() -> bool:
    """Whether this process was started as `pagequeue` or `python -m pagequeue`.

    While `-m` searches its module, which imports this package, `sys.argv[0]` is `-m`.
    """
    place = len(sys.orig_argv) - len(sys.argv)
    if not sys.argv or place < 1:
        return False
    given = sys.orig_argv[place]
    if sys.argv[0] == "-m":
        return given.removeprefix("-m") in NAMES
    return given == sys.argv[0] and os.path.basename(given) in NAMES


def begin() -> None:
    """Prepare the process; a second call has no effect."""
    if _State.has_begun:
        return
    _State.has_begun = True
    exit_on_interrupt()
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        # A name that is not UTF-8 is printed with escapes; inside JSON they are JSON's.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.unraisablehook = _unraisable


def end() -> None:
    """Ignore Ctrl-C from here on: the work is done, and the interpreter would print it."""
    _handle(signal.SIG_IGN)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed while a command ran."""
    return _State.is_interrupted


def exit_on_interrupt() -> None:
    """Make Ctrl-C end the process at once: modules are imported, and no queue is open."""
    _handle(_exit_at_once)


def raise_on_interrupt() -> None:
    """Make Ctrl-C a KeyboardInterrupt: a command runs."""
    _handle(_interrupt)


def _open_closed() -> None:
    """Open the standard descriptors that are closed, the lowest first."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            closed.add(fd)
            flags = os.O_RDONLY if fd == 0 else os.O_WRONLY
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            closed.add(fd)
            # Not the number: a file that was opened since the start may have it.
            stream = open(os.devnull, "r" if fd == 0 else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _handle(handler: _Handler) -> None:
    """Set what Ctrl-C does in a process that is the command, unless SIGINT is ignored there."""
    ours = (signal.default_int_handler, _exit_at_once, _interrupt)
    if _State.has_begun and signal.getsignal(signal.SIGINT) in ours:
        with contextlib.suppress(ValueError):  # in another thread than the main one
            signal.signal(signal.SIGINT, handler)


def _exit_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    _State.is_interrupted = True
    raise KeyboardInterrupt


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Raise a finalizer's KeyboardInterrupt again; suppress the errors that follow from it."""
    if isinstance(found.exc_value, KeyboardInterrupt):
        _thread.interrupt_main()
    elif not _State.is_interrupted:
        sys.__unraisablehook__(found)


if is_command():
    begin()
