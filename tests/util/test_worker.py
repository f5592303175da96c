"""The thread in the background: what is urgent comes first, and nothing waits for ever."""

from __future__ import annotations

import threading

import support

from pagequeue.util.worker import LATER_MAX, Background


def test_later_jobs_wait_for_the_others_but_not_when_they_are_many() -> None:
    """Each can hold a page, so a busy thread must do them as well."""
    background, free = Background(), threading.Event()
    done: list[str] = []
    background.submit(free.wait)
    background.submit_later(lambda: done.append("later"))
    for name in ("first", "second"):
        background.submit(lambda name=name: done.append(name))
    free.set()
    support.until(lambda: len(done) == 3)
    assert done == ["first", "second", "later"]
    free.clear()
    background.submit(free.wait)
    for _ in range(LATER_MAX + 1):
        background.submit_later(lambda: done.append("later"))
    background.submit(lambda: done.append("third"))
    free.set()
    support.until(lambda: "third" in done)
    assert done[3] == "later"
    background.end()
    background.await_end(10)


def test_later_jobs_are_done_before_the_thread_ends() -> None:
    """Such as giving back the blocks of the last page that was sealed."""
    background, free = Background(), threading.Event()
    done: list[str] = []
    background.submit(free.wait)
    background.submit_later(lambda: done.append("later"))
    background.end()
    free.set()
    background.await_end(10)
    assert done == ["later"]
    assert not background.submit_later(lambda: done.append("never"))
