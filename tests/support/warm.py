"""Python processes that are forked from one that has imported everything: 10 ms each, not 400.

`Popen` and `run` take what those of `subprocess` take, for commands that begin with
`sys.executable`. A server forks the process and waits for it, so it is no child of the caller. All
else is as in a fresh interpreter: `sys.argv` and `sys.path`, streams, signals, how it ends. A test
of the start or the end of an interpreter, or of what an import brings with it, uses `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WAIT_SECONDS = 60.0
HERE, _, ROOT, *_ = (str(path) for path in Path(__file__).resolve().parents)
AT_START = ("PYTHON", "LC_", "LANG")
"""How names of variables begin that an interpreter looks at when it starts."""
SHIM = """\
#!{python} -IS
import _signal, _socket, marshal, posix, sys
def is_open(fd):
    try:
        return bool(posix.fstat(fd))
    except OSError:
        return False
forwarded = [_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP]
_signal.pthread_sigmask(_signal.SIG_BLOCK, forwarded)
fds = [fd for fd in range(3) if is_open(fd)]
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
command = [{python!r}, *{before!r}, *sys.argv[1:]]
asked = marshal.dumps((command, posix.getcwdb(), posix.environ, fds, False, None))
rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
server.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else [])
server.sendall(asked)
for fd in fds:
    posix.close(fd)
pid = int.from_bytes(server.recv(4), "little")
for number in forwarded:
    _signal.signal(number, lambda number, _: posix.kill(pid, number))
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, forwarded)
code = posix.waitstatus_to_exitcode(int.from_bytes(server.recv(4), "little"))
if code < 0:
    if code != -_signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""
"""`python` or `pagequeue` for a shell: has the server fork, and ends as the fork ends."""


class _Server:
    """The server's process. It ends when this one does, however that is, and its children too."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="warm-")
        self.address = f"{self.directory}/socket"
        for name, before in (("python", []), ("pagequeue", ["-m", "pagequeue"])):
            shim = Path(self.directory, name)
            shim.write_text(SHIM.format(python=sys.executable, address=self.address, before=before))
            shim.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.address)
            listening.listen(100)
            fd = listening.fileno()
            code = f"import sys; sys.path += {[HERE, ROOT]!r}; import warm_server; warm_server.main"
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{code}({fd}, {self.directory!r})"],
                stdin=PIPE,
                stdout=DEVNULL,
                pass_fds=[fd],
            )
        atexit.register(self.stop)

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(WAIT_SECONDS)


_server = functools.cache(_Server)


def environment() -> dict[str, str]:
    """Return that of a shell, whose `python` and `pagequeue` are forked too."""
    return {**os.environ, "PATH": f"{_server().directory}{os.pathsep}{os.environ['PATH']}"}


class _Reader(threading.Thread):
    """Reads a stream to its end, and closes it; None is none."""

    def __init__(self, stream: IO[Any] | None) -> None:
        super().__init__(daemon=True)
        self.found: Any = None
        self._stream = stream
        self.start()

    def run(self) -> None:
        """Read."""
        if self._stream is not None:
            with self._stream:
                self.found = self._stream.read()


def _ends(
    given: int | IO[Any] | None, number: int, text: bool, theirs: contextlib.ExitStack
) -> tuple[IO[Any] | None, int]:
    """Return our file of a standard stream, if it is a pipe, and the process's descriptor."""
    if given is None:
        return None, number
    if given == DEVNULL:
        fd = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, fd)
        return None, fd
    if given != PIPE:
        return None, given if isinstance(given, int) else given.fileno()
    ends = os.pipe()
    mine, fd = ends if number else reversed(ends)
    theirs.callback(os.close, fd)
    return open(mine, ("r" if number else "w") + ("" if text else "b")), fd


class Popen:
    """A process of the server's; used as one of `subprocess`.

    Args:
        command: begins with `sys.executable`; its options can be `-W`, `-c`, `-m`.
        stdin: a descriptor, a file, PIPE, DEVNULL, or None for this process's own.
        stdout: the same.
        stderr: the same, or STDOUT.
        text: whether the pipes are of text.
        cwd: its directory.
        env: its environment, without a change of what an interpreter looks at when it starts.
        start_new_session: whether it leads a session.
        process_group: which one it enters; 0: one of its own.
        pass_fds: descriptors that it gets under their numbers.
    """

    def __init__(
        self,
        command: Sequence[Any],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        process_group: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.args = [os.fspath(word) for word in command]
        env = os.environ if env is None else env
        changed = {name for name, _ in {*env.items()} ^ {*os.environ.items()}}
        if self.args[0] != sys.executable or any(name.startswith(AT_START) for name in changed):
            raise ValueError("it needs an interpreter of its own: use subprocess")
        self.returncode: int | None = None
        self._taking = threading.Lock()
        self._readers: list[_Reader] = []
        asked = (
            self.args,
            os.fsencode(cwd or os.getcwd()),
            {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            [0, 1, 2, *pass_fds],
            start_new_session,
            process_group,
        )
        with socket.socket(socket.AF_UNIX) as connection, contextlib.ExitStack() as theirs:
            connection.connect(_server().address)
            self.stdin, given = _ends(stdin, 0, text, theirs)
            self.stdout, out = _ends(stdout, 1, text, theirs)
            self.stderr, err = (None, out) if stderr == STDOUT else _ends(stderr, 2, text, theirs)
            socket.send_fds(connection, [b"."], [given, out, err, *pass_fds])
            connection.sendall(marshal.dumps(asked))
            self.pid = int.from_bytes(connection.recv(4), "little")
            assert self.pid, "the server has ended"
            self._connection = connection.detach()
        weakref.finalize(self, os.close, self._connection)

    def _await(self, milliseconds: int | None) -> int | None:
        ended = select.poll()
        ended.register(self._connection, select.POLLIN)
        if self.returncode is None and ended.poll(milliseconds):
            with self._taking:
                if self.returncode is None:
                    status = os.read(self._connection, 4)
                    assert status, "the server has ended"
                    self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "little"))
        return self.returncode

    def poll(self) -> int | None:
        """Return how it ended, if it has."""
        return self._await(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends; return how.

        Raises:
            TimeoutExpired: it did not end in time.
        """
        code = self._await(None if timeout is None else max(0, round(timeout * 1000)))
        if code is None:
            raise TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: ANN401 - text or bytes
        """Write what is given, read all that comes, and wait until it ends.

        Raises:
            TimeoutExpired: it did not end in time; a second call goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            self._readers = [_Reader(stream) for stream in (self.stdout, self.stderr)]
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                if given is not None:
                    self.stdin.write(given)
        for reader in self._readers:
            reader.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0, deadline - time.monotonic()))
        out, err = (reader.found for reader in self._readers)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def run(
    command: Sequence[Any],
    *,
    input: Any = None,  # noqa: A002, ANN401 - as `subprocess` has it
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,  # noqa: ANN401 - of Popen
) -> CompletedProcess[Any]:
    """Run a process to its end; kill it if that does not come in time."""
    if capture_output:
        options |= {"stdout": PIPE, "stderr": PIPE}
    if input is not None:
        options["stdin"] = PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = CompletedProcess(process.args, process.wait(), out, err)
    if check:
        done.check_returncode()
    return done
