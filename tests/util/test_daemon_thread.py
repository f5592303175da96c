"""Threads that find no memory: starting them ends, and so does everything that needs them."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import support

from pagequeue import Queue, errors
from pagequeue.util import daemon_thread
from pagequeue.util.daemon_thread import DaemonThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new threads end before they say that they run, as without memory for their first frame.

    CPython's own threads do it too; what they would print is left out.
    """
    monkeypatch.setattr(threading.Thread, "_bootstrap", lambda _: None)


def test_thread_runs_and_ends() -> None:
    """And it is a daemon with a name."""
    ran = threading.Event()
    thread = DaemonThread(ran.set, "a name")
    thread.start()
    thread.join(60)
    assert ran.is_set()
    assert not thread.is_alive()
    assert (thread.name, thread.daemon) == ("a name", True)


@pytest.mark.usefixtures("_no_memory")
def test_start_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`threading.Thread.start` would wait for ever; this sees that the thread is gone."""
    monkeypatch.setattr(daemon_thread, "START_SECONDS", 2 * support.SOON)
    began = time.monotonic()
    with pytest.raises(errors.SystemLimit, match="memory is short"):
        DaemonThread(bool, "never").start()
    assert time.monotonic() - began < support.SOON
    assert "never" not in [thread.name for thread in threading.enumerate()]


def test_start_ends_where_what_the_thread_calls_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook for exceptions can keep it: then only time tells."""
    kept = []
    monkeypatch.setattr(threading.Thread, "_bootstrap", lambda thread: kept.append(thread.boot()))
    monkeypatch.setattr(daemon_thread, "START_SECONDS", 0.1)
    with pytest.raises(errors.SystemLimit, match="memory is short"):
        DaemonThread(bool, "never").start()
    assert kept[0] is not None


def test_slow_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not run yet has not ended."""
    bootstrap = threading.Thread._bootstrap  # type: ignore[attr-defined]

    def late(thread: threading.Thread) -> None:
        time.sleep(0.3)
        bootstrap(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap", late)
    ran = threading.Event()
    DaemonThread(ran.set, "late").start()
    assert ran.wait(60)


@pytest.mark.usefixtures("_no_memory")
def test_queue_needs_no_thread_to_send_receive_and_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are prepared and unmapped without the worker."""
    monkeypatch.setattr(daemon_thread, "START_SECONDS", 2 * support.SOON)
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
    with pytest.raises(errors.SystemLimit, match="memory is short"):
        Queue(tmp_path / "q", sync=timedelta(seconds=1))
    with Queue(tmp_path / "q") as queue, pytest.raises(errors.SystemLimit, match="memory is short"):
        queue.persist(iter([b"one"]), "flow")


def test_queue_that_was_refused_a_thread_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first opening left no lock and no map."""
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "_bootstrap", lambda _: None)
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

    real = vars(threading)["_start_new_thread"]
    thread = DaemonThread(lambda: None, "interrupted")

    def interrupt(bootstrap: Callable[[], None], arguments: tuple[()]) -> None:
        real(bootstrap, arguments)
        support.until(lambda: thread not in vars(threading)["_limbo"])
        raise Interrupted

    monkeypatch.setattr(threading, "_start_new_thread", interrupt)
    with pytest.raises(Interrupted):
        thread.start()
