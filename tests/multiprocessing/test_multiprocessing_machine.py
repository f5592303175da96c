"""The drop-in against a model: two handles that put, get, are done, and go, in any order."""

from __future__ import annotations

import gc
import shutil
import tempfile
from queue import Empty, Full

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiers import examples

from pagequeue.multiprocessing import JoinableQueue

PAGE_BYTES = 4096
HANDLES = (0, 1)
SIZES = st.sampled_from([0, 10, 1000, 3 * PAGE_BYTES])
"""The last one is more than a page holds."""


class DropIn(RuleBasedStateMachine):
    """A JoinableQueue with a directory, and what it must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.number = 0  # of objects put
        self.taken = 0  # the next that was never got
        self.back: set[int] = set()  # got, and come back
        self.held: dict[int, list[int]] = {handle: [] for handle in HANDLES}
        self.objects: dict[int, object] = {}

    @initialize(maxsize=st.sampled_from([0, 1, 3]))
    def begin(self, maxsize: int) -> None:
        """Choose how many may wait."""
        self.maxsize = maxsize
        self.handles = {handle: self.opened() for handle in HANDLES}

    def opened(self) -> JoinableQueue[object]:
        """Return a new handle."""
        return JoinableQueue(
            self.maxsize,
            directory=self.directory,
            page_bytes=PAGE_BYTES,
            unfinished_max=64,
            max_deliveries=None,
            backoff=None,
        )

    def waiting(self) -> list[int]:
        """Return the numbers of what can be got, those that came back first."""
        return sorted(self.back) + list(range(self.taken, self.number))

    @rule(handle=st.sampled_from(HANDLES), size_bytes=SIZES)
    def put(self, handle: int, size_bytes: int) -> None:
        """What is put is there, or there is no room."""
        obj = (self.number, bytes(size_bytes))
        if self.maxsize and self.number - self.taken >= self.maxsize:
            with pytest.raises(Full):
                self.handles[handle].put_nowait(obj)
        else:
            self.handles[handle].put_nowait(obj)
            self.objects[self.number] = obj
            self.number += 1

    @rule(handle=st.sampled_from(HANDLES))
    def get(self, handle: int) -> None:
        """The first that waits is got, those that came back before all others."""
        waiting = self.waiting()
        if not waiting:
            with pytest.raises(Empty):
                self.handles[handle].get_nowait()
            return
        assert self.handles[handle].get_nowait() == self.objects[waiting[0]]
        self.held[handle].append(waiting[0])
        self.back.discard(waiting[0])
        self.taken = max(self.taken, waiting[0] + 1)

    @rule(handle=st.sampled_from(HANDLES))
    def task_done(self, handle: int) -> None:
        """The first that this handle got is done."""
        if not self.held[handle]:
            with pytest.raises(ValueError, match="too many"):
                self.handles[handle].task_done()
            return
        self.handles[handle].task_done()
        del self.objects[self.held[handle].pop(0)]

    @rule(handle=st.sampled_from(HANDLES))
    def drop(self, handle: int) -> None:
        """What a handle that goes has not done comes back."""
        self.handles.pop(handle)._handle.end()
        gc.collect()
        self.back.update(self.held[handle])
        self.held[handle].clear()
        self.handles[handle] = self.opened()

    @invariant()
    def sizes_are_right(self) -> None:
        """Sizes, and whether `join` would return, are those of the model."""
        for queue in getattr(self, "handles", {}).values():
            assert queue.qsize() == len(self.waiting())
            assert queue.empty() == (not self.waiting())
            assert queue.full() == (0 < self.maxsize <= self.number - self.taken)
            items = queue._open()
            assert items.tail == self.number
            assert items.done == min(self.objects, default=self.number)

    def teardown(self) -> None:
        """Remove all files."""
        for queue in getattr(self, "handles", {}).values():
            queue._handle.end()
        shutil.rmtree(self.directory)


TestDropIn = pytest.mark.slow(DropIn.TestCase)
TestDropIn.settings = settings(
    max_examples=examples(30),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
