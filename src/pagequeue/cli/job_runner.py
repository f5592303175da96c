"""Running a command for each claimed message, one at a time.

At the first signal that ends this process the running command is left to finish, or gets the
signal, if it handles it; the second one is for the command in any case. The process waits for it,
and its message is settled by how it ended. Nothing can be done about SIGKILL here, so the commands
are in the process group of a guard, a shell that waits for the end of this process and then kills
that group. Without it the command would continue while another worker runs it for the same message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from pagequeue import LeaseLost
from pagequeue.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pagequeue import Claim

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
SPECIFIC: Final = (signal.SIGTERM, signal.SIGHUP)
"""The first of these is for a command that handles it. Shells handle SIGINT without being asked."""
GUARD: Final = ("sh", "-c", "trap '' TERM HUP INT QUIT TSTP; read line || kill -9 0")
"""Reads a line when this process ends as it should, and the end of the pipe when it is killed."""
GRACE_SECONDS: Final = 10.0
"""A command whose message is another worker's has so long to end."""


class JobRunner:
    """Runs one command at a time; a context manager.

    Args:
        words: the command.
        lease: of the claims, in seconds: they are extended while the command runs.

    Attributes:
        stopped_by: the signal by which this process was told to end; None: by none.

    Raises:
        CommandError: there is no shell.
    """

    def __init__(self, words: Sequence[str], lease: float) -> None:
        self._words = words
        self._lease = lease
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_announced = False
        self.stopped_by: int | None = None
        self._guard = _guard()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._handle(number, self._stop)
            self._handle(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):  # it was killed
            self._guard.communicate(b"\n")

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and `&` have it
            self._before[number] = signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """End after the running command."""
        del frame
        is_first, self.stopped_by = self.stopped_by is None, number
        if is_first:
            self._announce()
        else:
            self._tell(number)

    def _announce(self) -> None:
        """Let the command know that this process is to end, if it wants to."""
        process, number = self._process, self.stopped_by
        if process is None or number is None or self._is_announced:
            return
        self._is_announced = True
        if number in SPECIFIC and _handles(process.pid, number):
            process.send_signal(number)
        else:
            options.note(f"waiting for {self._words[0]} to end; a second signal is sent to it")

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stop as the terminal asks for, the command too: it is in another process group."""
        del frame
        self._tell(number)
        os.kill(os.getpid(), signal.SIGSTOP)  # it goes on here
        self._tell(signal.SIGCONT)

    def _tell(self, number: int) -> None:
        """Send a signal to the command, and to what it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._guard.pid, number)

    def run(self, claim: Claim) -> int | None:
        """Run the command with the payload on its stdin, and extend the lease meanwhile.

        Returns:
            its exit code; None: the lease ended, because this process was stopped. The command was
            told to end then.

        Raises:
            CommandError: the program does not exist.
        """
        if self._guard.poll() is not None:
            self._guard = _guard()
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own
                self._words, stdin=subprocess.PIPE, process_group=self._guard.pid
            )
        except OSError as error:
            raise options.CommandError(f"{self._words[0]}: {error.strerror or error}") from None
        self._process = process
        try:
            self._announce()  # of a signal that came after this run began
            return self._wait(process, claim)
        finally:
            self._process = None

    def _wait(self, process: subprocess.Popen[bytes], claim: Claim) -> int | None:
        data: bytes | None = claim.message.payload
        has_lost = False
        with process:
            while True:
                seconds = GRACE_SECONDS if has_lost else self._lease / 3
                try:
                    process.communicate(data, timeout=seconds)
                except subprocess.TimeoutExpired:
                    data = None  # it is being written
                    if has_lost:
                        self._tell(signal.SIGKILL)  # the guard too
                        continue
                    try:
                        claim.extend(self._lease)
                    except LeaseLost:
                        has_lost = True
                        self._tell(signal.SIGTERM)
                else:
                    return None if has_lost else process.returncode


def _guard() -> subprocess.Popen[bytes]:
    """Start the leader of the group of the commands.

    Raises:
        CommandError: there is no shell.
    """
    null = subprocess.DEVNULL
    try:
        return subprocess.Popen(  # noqa: S603 - our own words
            GUARD, stdin=subprocess.PIPE, stdout=null, stderr=null, process_group=0
        )
    except OSError as error:
        raise options.CommandError(f"sh: {error.strerror or error}") from None


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; True where the system does not tell."""
    try:
        with open(f"/proc/{pid}/status") as status:
            (caught,) = [line for line in status if line.startswith("SigCgt:")]
    except (OSError, ValueError):
        return True
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
