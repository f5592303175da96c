"""The server of `warm`: forks processes that have imported everything, and tells how they ended."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pagequeue.system import program

if TYPE_CHECKING:
    from types import CodeType

PR_SET_PDEATHSIG = 1
LATER = ("spark", "arrow", "__main__")
"""Modules that are not imported ahead: they start threads, or the command."""
MORE = (
    *("asyncio", "concurrent.futures.thread", "encodings.ascii", "msgspec", "pwd"),
    *("journals", "no_memory", "publishing_steps", "support", "truncated"),
)
SEARCHED = sys.path[1:-2]
"""Where an interpreter finds modules: without the first place, and those of the tests."""
ENCODING, ERRORS = sys.stdout.encoding, sys.stdout.errors
ABOVE = 500
"""Where descriptors are while others take their numbers."""


class Request(NamedTuple):
    """A process to start, and the connection on which its number and its end are told."""

    command: list[str]
    directory: bytes
    environment: dict[bytes, bytes]
    numbers: list[int]
    """Those of its descriptors, in the order in which they came; it has no others."""
    is_session: bool
    group: int | None
    received: list[int]
    connection: socket.socket


def import_all() -> None:
    """Import what most processes of tests do, and whatever the package does later."""
    root = Path(program.__file__).parents[2]
    files = (path.relative_to(root).with_suffix("") for path in root.glob("pagequeue/**/*.py"))
    found = (".".join(path.parts).removesuffix(".__init__") for path in files)
    for name in (*found, *MORE):
        if not any(word in name for word in LATER):
            with contextlib.suppress(ModuleNotFoundError):  # an extra is not installed
                importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a module started a thread: {threads}"


def accept(listening: socket.socket) -> Request:
    """Return the next request."""
    connection, _ = listening.accept()
    _, received, _, _ = socket.recv_fds(connection, 1, 16)
    with connection.makefile("rb") as stream:
        return Request(*marshal.load(stream), received, connection)


def serve(listening: socket.socket, directory: str) -> Request:
    """Fork for each request; return it in the child. Exit when the standard input has ended."""
    poll, running = select.poll(), {}
    for fd in (0, listening.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                shutil.rmtree(directory, ignore_errors=True)
                os._exit(0)  # the children end with this process
            elif fd == listening.fileno():
                request = accept(listening)
                pid = os.fork()
                if pid == 0:
                    listening.close()
                    for pidfd, (_, connection) in running.items():
                        os.close(pidfd)
                        connection.close()
                    return request
                for mine in request.received:
                    os.close(mine)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, request.connection
                poll.register(pidfd, select.POLLIN)
            else:
                pid, connection = running.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                status = os.waitpid(pid, 0)[1]
                with connection, contextlib.suppress(BrokenPipeError):
                    connection.sendall(status.to_bytes(4, "little"))


def take(request: Request, parent: int) -> None:
    """Take over what the request gives: descriptors, group, directory, environment."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if request.is_session:
        os.setsid()
    elif request.group is not None:
        os.setpgid(0, request.group)
    request.connection.sendall(os.getpid().to_bytes(4, "little"))
    request.connection.close()
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE) for fd in request.received]
    os.closerange(0, ABOVE)
    for fd, number in zip(above, request.numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open_standard(number, name) if number in request.numbers else None
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # `random` does it by itself


def open_standard(number: int, name: str) -> io.TextIOWrapper:
    """Return a standard stream as an interpreter makes it."""
    mode = "rb" if number == 0 else "wb"
    binary = open(number, mode, closefd=False)  # noqa: SIM115 - it stays open
    binary.raw.name = f"<{name}>"
    text = io.TextIOWrapper(
        binary,
        encoding=ENCODING,
        errors="backslashreplace" if number == 2 else ERRORS,
        newline=None if number == 0 else "\n",
        line_buffering=binary.isatty(),
        write_through=number == 2,
    )
    text.mode = mode[0]
    return text


def program_of(command: list[str]) -> tuple[CodeType | str, dict[str, object]]:
    """Take over a command's options and words; return its program, and how its module begins.

    The program is the code, or the name of the module that `-m` runs.
    """
    rest = command[1:]
    while rest[0] == "-W":
        sys.warnoptions.append(rest[1])
        warnings.simplefilter(rest[1])
        rest = rest[2:]
    kind = rest.pop(0) if rest[0] in {"-c", "-m"} else "file"
    what, path = rest[0], os.path.abspath(rest[0])
    sys.orig_argv, sys.argv = command, [what if kind == "file" else kind, *rest[1:]]
    sys.path[:] = [{"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(path)), *SEARCHED]
    if program.is_command():
        program.begin()  # as when it imports the package
    if kind == "-m":
        return what, {}
    if kind == "-c":
        return compile(what, "<string>", "exec"), {}
    return compile(Path(what).read_bytes(), what, "exec"), {"__file__": path}


def run(command: list[str]) -> None:
    """Run a command's program, as the module `__main__`."""
    code, known = program_of(command)
    if isinstance(code, str):
        runpy.run_module(code, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(known, __builtins__=builtins)
    exec(code, main.__dict__)


def end(command: list[str]) -> NoReturn:
    """Run a command, and end as an interpreter does; but its modules are left as they are."""
    code = signalled = 0
    try:
        run(command)
    except SystemExit as error:
        if isinstance(error.code, int | None):
            code = error.code or 0
        else:
            code = 1
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - whatever it was
        code, signalled = 1, isinstance(error, KeyboardInterrupt)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    if signalled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def main(fd: int, directory: str) -> NoReturn:
    """Serve; in each child, be the command that was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the children
    server = os.getpid()
    import_all()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as listening:
        request = serve(listening, directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    take(request, server)
    end(request.command)
