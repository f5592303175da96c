"""Cycles through the C types: the garbage collector frees unreachable ones."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support import SMALL

from pagequeue import Group, Queue, _core

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Holder:
    """Has a clock, and whatever it holds."""

    def __init__(self) -> None:
        self.held: Any = None
        self.queue: Queue | None = None

    def now(self, *_: object) -> int:
        """Return the time in ns."""
        return time.time_ns()


def _queue(path: Path, holder: Holder) -> object:
    holder.queue = Queue(path, page_bytes=SMALL, clock=holder.now)
    return holder.queue


def _producer(path: Path, holder: Holder) -> object:
    holder.queue = Queue(path, page_bytes=SMALL, clock=holder.now)
    producer = holder.queue.producer()
    producer.send(b"a")
    return producer


def _consumer(path: Path, holder: Holder) -> object:
    _producer(path, holder)
    assert holder.queue is not None
    consumer = holder.queue.consumer()
    consumer._decoder = holder.now
    return consumer


def _group(path: Path, holder: Holder) -> object:
    _producer(path, holder)
    assert holder.queue is not None
    return holder.queue.group("g")


def _claim(path: Path, holder: Holder) -> object:
    group = _group(path, holder)
    assert isinstance(group, Group)
    return group.claim(0)


def _region(path: Path, holder: Holder) -> object:
    path.write_bytes(bytes(SMALL))
    with path.open("rb") as file:
        region = _core.Region(file.fileno(), SMALL, False)
    region.filler = region.on_lost = holder.now  # type: ignore[assignment]
    return region


def _descriptor(_: Path, holder: Holder) -> object:
    return _core.Descriptor(-1, holder.now)  # type: ignore[arg-type]


MAKERS = [_queue, _producer, _consumer, _group, _claim, _region, _descriptor]


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_cycle_through_a_handle_is_collected(
    tmp_path: Path, make: Callable[[Path, Holder], object], *, is_closed: bool
) -> None:
    """An object that holds a handle which calls it back is freed once it is unreachable."""
    holder = Holder()
    holder.held = make(tmp_path / "q", holder)
    if is_closed and holder.queue is not None:
        holder.queue.close()
    there = weakref.ref(holder)
    del holder
    gc.collect()
    assert there() is None


FIELDS = [
    (_producer, {"Region": 3, "QueueClock": 1}),  # write meta, page, index
    (_consumer, {"Region": 2, "method": 1}),  # write meta, page; decoder
    (_group, {"Region": 2, "QueueClock": 1}),  # write meta, its file
    (_claim, {"Group": 1, "Message": 1}),
    (_region, {"method": 2}),  # what it calls when it is lost, what fills it
    (_descriptor, {"method": 1}),
]


@pytest.mark.parametrize(("make", "kinds"), FIELDS)
def test_collector_finds_each_field_of_a_handle(
    tmp_path: Path, make: Callable[[Path, Holder], object], kinds: dict[str, int]
) -> None:
    """A field that is not visited would keep its cycle for good; nor may a visit's end be lost.

    `gc.get_referrers` ends a visit at the field that it looks for.
    """
    holder = Holder()
    gc.freeze()  # so that only what is made here is looked at
    try:
        holder.held = make(tmp_path / "q", holder)
        visited = gc.get_referents(holder.held)
        assert Counter(kinds) <= Counter(type(field).__name__ for field in visited)
        fields = [field for field in visited if gc.is_tracked(field)]
        assert type(holder.held) in fields
        found = [field for field in fields if holder.held in gc.get_referrers(field)]
        assert len(found) == len(fields)
    finally:
        gc.unfreeze()
        if holder.queue is not None:
            holder.queue.close()


def test_ctrl_c_while_a_group_releases_its_lock_is_raised_and_closing_again_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception out of a signal handler is not swallowed."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        group = queue.group("g")
        real, calls = Group._close_lock, []

        def interrupted(self: Group) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            real(self)

        monkeypatch.setattr(Group, "_close_lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.close()
        group.close()
        assert len(calls) == 2
        assert not queue.consumers()[0].is_open
