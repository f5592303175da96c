"""The end of a process in whose threads calls are in progress, silent as the standard library's."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from support import LONG

from pagequeue.multiprocessing import Queue

if TYPE_CHECKING:
    from pathlib import Path

DAEMONS = """
import sys, threading, time
from pagequeue.multiprocessing import JoinableQueue, Queue, SimpleQueue

queue, joinable, simple, full = Queue(), JoinableQueue(), SimpleQueue(), Queue(1)
joinable.put(1)
full.put(1)
began = []

def call(do, *given):
    began.append(do)
    do(*given)

calls = [(queue.get,), (joinable.join,), (simple.get,), (full.put, 2), (lambda: again(queue),)]

def again(queue):
    while queue.empty():
        pass

for given in calls:
    threading.Thread(target=call, args=given, daemon=True).start()
while len(began) < len(calls):
    time.sleep(0.001)
time.sleep(0.05)  # most are inside by then; those that are not are as silent
"""


def test_daemon_threads_inside_a_call_print_nothing(tmp_path: Path) -> None:
    """They would only say that the queue is closed, which nobody can act on any more."""
    done = subprocess.run(
        [sys.executable, "-c", DAEMONS],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=True,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_thread_that_a_child_waits_for_goes_on_after_its_function() -> None:
    """A child runs its finalizers before it waits for its threads."""
    context = multiprocessing.get_context("fork")
    asked: Queue[int] = Queue()
    answers: Queue[int] = Queue()

    def answer() -> None:
        answers.put(asked.get() + 1)

    child = context.Process(target=lambda: threading.Thread(target=answer).start())
    child.start()
    asked.put(1)
    assert answers.get(timeout=LONG) == 2
    child.join(LONG)
    assert child.exitcode == 0
    asked.close()
    answers.close()
