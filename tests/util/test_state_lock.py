"""StateLock: one thread at a time has the state, whatever a signal handler raises, and when."""

from __future__ import annotations

import gc
import sys
import threading
import time
from itertools import count
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from journals import PAGE, Accounts
from support import until

from pagequeue import LockTimeout
from pagequeue.journal import Journal
from pagequeue.util import state_lock
from pagequeue.util.state_lock import HOLDER, IDLE_SLICES, SLICE_SECONDS, StateLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

SECONDS = 30.0
POINTS_MAX = 60
"""Points of one call that are tried; of a call with more, so many evenly spread ones."""


FINALIZERS = ("__del__", "_remove", "remove")
"""Of objects, and of what the library `weakref` refers to."""


class Interruption(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal[dict[str, int]]]:
    """Return a journal of accounts."""
    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE, lock_timeout=2 * SECONDS) as journal:
        journal.update(lambda _: ["ann", 1])
        yield journal


def interrupted(do: Callable[[], object], point: int) -> bool:
    """Raise where Python would run a signal handler for the nth time in a call; whether it did.

    That is when a function of Python begins, and when one in C returns.
    """
    left = [point]

    def profile(frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - of sys.setprofile
        if event in {"call", "c_return"}:
            left[0] -= 1
            if left[0] <= 0 and not is_finalizer(frame):
                raise Interruption

    gc.disable()  # what other packages let the collector call would print what is raised in it
    try:
        sys.setprofile(profile)
        do()
    except Interruption:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def is_finalizer(frame: FrameType | None) -> bool:
    """Whether what is raised here is printed and goes nowhere."""
    while frame is not None and frame.f_code.co_name not in FINALIZERS:
        frame = frame.f_back
    return frame is not None


def points(do: Callable[[], object]) -> int:
    """Return how many points a call has."""
    found = 0

    def profile(_: Any, event: str, __: Any) -> None:  # noqa: ANN401 - the same
        nonlocal found
        found += event in {"call", "c_return"}

    sys.setprofile(profile)
    do()
    sys.setprofile(None)
    return found


def in_thread(do: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
    """Return what a call in another thread does; it may take `SECONDS`."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(do()))
    thread.start()
    thread.join(SECONDS)
    return found[0]


CALLS: dict[str, Callable[[Journal[dict[str, int]]], object]] = {
    "update": lambda journal: journal.update(lambda _: ["ben", 1]),
    "read": lambda journal: journal.read(dict),
    "catch_up": lambda journal: journal.catch_up(),
    "verify": lambda journal: journal.verify(),
    "compact": lambda journal: (journal.update(lambda _: ["ben", 1]), journal.compact()),
}


# What is raised between opening a file and its `with` leaves the file to its finalizer.
@pytest.mark.filterwarnings("ignore:.*<_io:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.quick_each(3)
@pytest.mark.parametrize("name", CALLS)
def test_exception_at_any_point_leaves_the_state_to_all_threads(
    journal: Journal[dict[str, int]], name: str
) -> None:
    """No later call waits for the one that was interrupted, and all see the same state."""
    call = CALLS[name]
    total = points(lambda: call(journal))
    step = max(1, total // POINTS_MAX)
    times = 0
    for point in range(1, total + step, step):
        times += interrupted(lambda: call(journal), point)
        sequence = in_thread(lambda: journal.update(lambda _: ["cid", 1]))
        assert journal.catch_up() == sequence + 1
    assert times >= min(total, POINTS_MAX) // 2
    assert journal.verify().ok
    assert sum(journal.state.values()) == journal.sequence


def test_exception_while_a_thread_waits_leaves_the_state_to_the_others(
    journal: Journal[dict[str, int]],
) -> None:
    """At whatever point of waiting: the next one waits for slices, and not for `lock_timeout`."""

    def hold(begun: threading.Event, end: threading.Event) -> None:
        """Keep the state until another thread has waited for it, or does so no more."""
        begun.set()
        while not journal._lock.waiting and not end.is_set():
            time.sleep(0.0005)
        end.wait(0.002)

    for point in count(1):
        begun, end = threading.Event(), threading.Event()
        holder = threading.Thread(target=lambda b=begun, e=end: journal.read(lambda _: hold(b, e)))
        holder.start()
        assert begun.wait(SECONDS)
        was_interrupted = interrupted(lambda: journal.update(lambda _: ["ben", 1]), point)
        end.set()
        assert in_thread(lambda: journal.update(lambda _: ["cid", 1])) is not None
        holder.join(SECONDS)
        if not was_interrupted:
            break
    assert point > 30


def test_one_that_left_the_line_without_a_word_costs_some_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if it was interrupted before it could leave."""
    lock, slices = StateLock(), []
    dead: Any = type(lock.waiting)  # any object that never takes its turn
    lock.waiting.append(dead)

    class Place:
        """What is never woken."""

        def get(self, timeout: float) -> None:
            slices.append(timeout)
            raise Empty

    monkeypatch.setattr("queue.SimpleQueue", Place)
    me = [threading.get_ident()]
    assert lock.wait(me, SECONDS)
    assert slices == [SLICE_SECONDS] * IDLE_SLICES
    assert lock.holder[HOLDER] is me
    assert not lock.waiting


def test_threads_have_the_lock_in_the_order_in_which_they_came() -> None:
    """Also if its holder wants it again at once."""
    lock = StateLock()
    order: list[int] = []
    first = [threading.get_ident()]
    assert lock.wait(first, SECONDS)

    def run(number: int) -> None:
        me = [threading.get_ident()]
        assert lock.wait(me, SECONDS)
        order.append(number)
        del lock.holder[HOLDER]
        lock.wake()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=run, args=(number,)))
        threads[-1].start()
        until(lambda wanted=number + 1: len(lock.waiting) == wanted)
    del lock.holder[HOLDER]
    lock.wake()
    run(5)
    for thread in threads:
        thread.join(SECONDS)
    assert order == list(range(6))


def test_one_thread_that_hangs_is_an_error_and_many_quick_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is for each holder, and not for the whole line; time passes as is said here."""
    now = [0.0]
    monkeypatch.setattr(state_lock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    begun, end = threading.Event(), threading.Event()

    def be_quick(_: dict[str, int]) -> None:
        now[0] += 0.6
        time.sleep(2 * SLICE_SECONDS)  # so that the others check the time

    def hang(_: dict[str, int]) -> None:
        begun.set()
        end.wait(SECONDS)

    def pass_time() -> None:
        until(lambda: journal._lock.waiting)
        now[0] += 1.1

    with Journal(tmp_path / "j", Accounts(), page_bytes=PAGE, lock_timeout=1.0) as journal:
        gate = threading.Event()
        deciding = (lambda _: gate.wait(SECONDS), *[be_quick] * 12)
        threads = [threading.Thread(target=journal.read, args=(one,)) for one in deciding]
        for thread in threads:
            thread.start()
            until(lambda: journal._lock.holder)  # the first one has it, until all others wait
        until(lambda: len(journal._lock.waiting) == 12)
        gate.set()
        journal.update(lambda _: ["ann", 1])
        for thread in threads:
            thread.join(SECONDS)
        assert now[0] > 7.0
        threads = [threading.Thread(target=journal.read, args=(hang,))]
        threads[0].start()
        assert begun.wait(SECONDS)
        threads.append(threading.Thread(target=pass_time))
        threads[1].start()
        with pytest.raises(LockTimeout, match="another thread used this journal"):
            journal.update(lambda _: ["ann", 1])
        end.set()
        for thread in threads:
            thread.join(SECONDS)


def test_waiter_that_is_just_handed_the_lock_keeps_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one's slice can end after the lock was released and before this one has taken it."""
    lock = StateLock()
    place: SimpleQueue[None] = SimpleQueue()
    lock.waiting.append(place)  # of another thread, to which the lock was just released
    taken = [0]
    kept: list[bool] = []

    def begin() -> None:
        """The other thread runs a moment later."""
        kept.append(lock.waiting[0] is place)
        lock.holder[HOLDER] = taken
        lock.waiting.remove(place)

    def end() -> None:
        del lock.holder[HOLDER]

    steps = iter([*[lambda: None] * (IDLE_SLICES - 1), begin, end])

    class Place:
        """What a slice of the wait ends with."""

        def get(self, timeout: float) -> None:
            assert timeout == SLICE_SECONDS
            next(steps)()
            raise Empty

    monkeypatch.setattr("queue.SimpleQueue", Place)
    me = [threading.get_ident()]
    assert lock.wait(me, SECONDS)
    assert kept == [True]
    assert lock.holder[HOLDER] is me
