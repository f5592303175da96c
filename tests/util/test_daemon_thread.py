"""Threads that find no memory: starting them ends, and so does everything that needs them."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import support

from pagequeue import Queue, errors
from pagequeue.util.daemon_thread import daemon_thread, stack_bytes, start

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse what a thread's stack takes, as under RLIMIT_AS."""

    class Short(mmap.mmap):
        def __new__(cls, number: int, length: int, *more: Any, **options: Any) -> mmap.mmap:  # type: ignore[misc]  # noqa: ANN401
            if number == -1 and length > stack_bytes():
                raise OSError(12, "Cannot allocate memory")
            return super().__new__(cls, number, length, *more, **options)

    monkeypatch.setattr(mmap, "mmap", Short)


def test_thread_runs_and_ends() -> None:
    """And it is a daemon with a name."""
    ran = threading.Event()
    thread = daemon_thread(ran.set, "a name")
    start(thread)
    thread.join(60)
    assert ran.is_set()
    assert not thread.is_alive()
    assert (thread.name, thread.daemon) == ("a name", True)


@pytest.mark.usefixtures("_no_memory")
def test_start_without_memory_is_refused() -> None:
    """`threading.Thread.start` would wait for ever; nothing is started."""
    with pytest.raises(errors.SystemLimit, match="Cannot allocate memory"):
        start(daemon_thread(bool, "never"))
    assert "never" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("extra", [0, 1, 8, 9, 10, 11, 64], ids=lambda extra: f"{extra} MiB")
def test_thread_under_a_limit_of_memory_is_refused_or_runs(extra: int) -> None:
    """Whatever the limit is, `start` ends; in a child, because limits stay."""
    child = os.fork()
    if child == 0:
        code = HANGS
        try:
            signal.alarm(60)
            code = start_with(extra << 20)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in {RUNS, REFUSED}


RUNS, REFUSED, HANGS = range(3)


def start_with(extra_bytes: int) -> int:
    """Start a thread where so much memory is left."""
    ran = threading.Event()
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_bytes, resource.RLIM_INFINITY))
    try:
        start(daemon_thread(ran.set, "a name"))
    except errors.SystemLimit:
        return REFUSED
    return RUNS if ran.wait(50) else HANGS


@pytest.mark.usefixtures("_no_memory")
def test_queue_needs_no_thread_to_send_receive_and_close(tmp_path: Path) -> None:
    """Pages are prepared and unmapped without the worker."""
    began = time.monotonic()
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
        with queue.producer() as producer:
            for _ in range(12):
                producer.send(bytes(30_000))
        assert sum(1 for _ in queue.replay()) == 12
    assert time.monotonic() - began < support.SOON


@pytest.mark.usefixtures("_no_memory")
def test_what_needs_a_thread_is_a_typed_error(tmp_path: Path) -> None:
    """A queue that flushes by time, and a flow: nothing stays open, and the next try succeeds."""
    with pytest.raises(errors.SystemLimit, match="cannot start the thread"):
        Queue(tmp_path / "q", sync=timedelta(seconds=1))
    with Queue(tmp_path / "q") as queue, pytest.raises(errors.SystemLimit, match="ulimit"):
        queue.persist(iter([b"one"]), "flow")


def refuse(_: threading.Thread) -> NoReturn:
    """Start none, as where the system has too many."""
    raise RuntimeError("can't start new thread")


def test_queue_that_was_refused_a_thread_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first opening left no lock and no map."""
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        with pytest.raises(errors.SystemLimit):
            Queue(tmp_path / "q", sync=timedelta(seconds=1))
    with Queue(tmp_path / "q", sync=timedelta(seconds=1)) as queue, queue.producer() as producer:
        producer.send(b"one")
        assert len(queue) == 1


def test_exception_of_a_handler_beside_a_thread_that_runs_is_raised_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython 3.11 raised KeyError: it looked for the thread where it was no more."""

    class Interrupted(Exception):
        pass

    begun = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        begun(thread)
        try:
            raise Interrupted
        finally:
            del {}[thread]  # what CPython does then

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(Interrupted):
        start(daemon_thread(bool, "interrupted"))
