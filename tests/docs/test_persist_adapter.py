"""The adapter of the guide "Migrate from persist-queue" keeps what the guide says of it."""

from __future__ import annotations

import json
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import warm
from support import LONG, until_asleep

from pagequeue import Queue as PageQueue
from pagequeue import errors, repair_queue

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
sys.path.insert(0, str(HOWTO / "persist-queue"))
from persist_adapter import Empty, Full, Queue, SQLiteAckQueue, SQLiteQueue  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

LINES_MAX = 214


def got(queue: Queue) -> list[Any]:
    """Get all items that are there."""
    return [queue.get(block=False) for _ in range(queue.qsize())]


@pytest.mark.parametrize("kind", [Queue, SQLiteQueue, SQLiteAckQueue])
def test_items_outlive_their_handle_in_order(kind: type[Any], tmp_path: Path) -> None:
    """Any object that pickle takes, also one larger than a page, and one that is false."""
    items = [0, None, "", b"x" * (5 << 20), {"a": [1]}]
    queue = kind(str(tmp_path))
    assert [queue.put(item) for item in items] == [1, 2, 3, 4, 5]
    del queue
    assert got(kind(str(tmp_path))) == items


def test_task_done_is_for_one_item(tmp_path: Path) -> None:
    """What was got and is not done is delivered again, before what was not got."""
    queue = Queue(str(tmp_path))
    for number in range(4):
        queue.put(number)
    assert [queue.get(), queue.get(), queue.get()] == [0, 1, 2]
    queue.task_done()
    del queue  # without a garbage collection
    queue = Queue(str(tmp_path))
    assert queue.qsize() == 3
    assert got(queue) == [1, 2, 3]


def test_autosave_finishes_an_item_when_it_is_got(tmp_path: Path) -> None:
    """And `join` still waits for `task_done`."""
    queue = Queue(str(tmp_path), autosave=True)
    queue.put("a")
    queue.put("b")
    assert queue.get() == "a"
    again = Queue(str(tmp_path), autosave=True)
    assert got(again) == ["b"]
    joined = threading.Thread(target=queue.join)
    joined.start()
    until_asleep(joined)
    queue.task_done()
    joined.join(LONG)
    assert not joined.is_alive()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


GET_AND_DIE = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import persist_adapter
kind, path, options = json.loads(sys.argv[2])
assert getattr(persist_adapter, kind)(path, **options).get(timeout=60) == "job"
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("kind", "options"), [(Queue, {}), (SQLiteQueue, {"auto_commit": False}), (SQLiteAckQueue, {})]
)
def test_item_of_a_killed_process_goes_to_another(
    kind: type[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """While that has the queue open all the time, which persist-queue cannot do."""
    queue = kind(str(tmp_path), **options)
    queue.put("job")
    travel = json.dumps([kind.__name__, str(tmp_path), options])
    done = warm.run([sys.executable, "-c", GET_AND_DIE, str(HOWTO / "persist-queue"), travel])
    assert done.returncode == -signal.SIGKILL
    assert queue.get(timeout=10) == "job"


class Raced(Queue):
    """Between its look for room and its sending another handle puts an item."""

    rival: Any = None

    def qsize(self) -> int:
        size: int = super().qsize()
        rival, self.rival = self.rival, None
        if rival is not None:
            rival.put("first")
        return size


def test_maxsize_holds_for_handles_that_do_not_know_of_each_other(tmp_path: Path) -> None:
    """Room is looked for and taken in one step."""
    queue, other = Raced(str(tmp_path), maxsize=1), Queue(str(tmp_path), maxsize=1)
    queue.rival = other
    with pytest.raises(Full):
        queue.put("second", block=False)
    assert queue.full()
    assert got(other) == ["first"]


def test_full_queue_waits_for_room(tmp_path: Path) -> None:
    """For as long as was said, and what another handle gets makes room."""
    queue, other = Queue(str(tmp_path), maxsize=2), Queue(str(tmp_path))
    queue.put(1)
    queue.put(2)
    with pytest.raises(Full):
        queue.put(3, timeout=0.02)
    waits = threading.Thread(target=queue.put, args=(3,))
    waits.start()
    assert other.get() == 1
    waits.join(10)
    assert not waits.is_alive()
    assert got(other) == [2, 3]


@pytest.mark.parametrize("call", [lambda q: q.put(1, timeout=-1), lambda q: q.get(timeout=-1)])
def test_negative_timeout_is_refused(call: Callable[[Any], None], tmp_path: Path) -> None:
    """As persist-queue does."""
    with pytest.raises(ValueError, match="non-negative"):
        call(Queue(str(tmp_path)))


def test_empty_queue_is_empty(tmp_path: Path) -> None:
    """At once, or after the time to wait."""
    queue = SQLiteQueue(str(tmp_path))
    for options in ({"block": False}, {"timeout": 0.01}):
        with pytest.raises(Empty):
            queue.get(**options)
    assert queue.empty()
    assert len(queue) == queue.size == queue.total == 0


def test_item_that_cannot_be_loaded_can_be_finished(tmp_path: Path) -> None:
    """Else it would be claimed as long as the process lives."""
    with PageQueue(tmp_path, prefix="default", page_bytes=4 << 20) as pages:
        pages.producer().send(b"no pickle")
    queue = Queue(str(tmp_path))
    with PageQueue(tmp_path, prefix="default") as pages:
        assert pages.tail_sequence == 1
    with pytest.raises(pickle.UnpicklingError):
        queue.get()
    queue.task_done()
    del queue
    assert Queue(str(tmp_path)).empty()


def test_without_auto_commit_task_done_finishes_all_that_was_got(tmp_path: Path) -> None:
    """And nothing that came later."""
    queue = SQLiteQueue(str(tmp_path), auto_commit=False)
    for number in range(5):
        queue.put(number)
    assert [queue.get(), queue.get()] == [0, 1]
    queue.task_done()
    assert queue.get() == 2
    del queue
    assert got(SQLiteQueue(str(tmp_path), auto_commit=False)) == [2, 3, 4]


def test_acknowledged_failed_and_returned_items_are_counted(tmp_path: Path) -> None:
    """By the item itself, by its id and by what `raw` gives."""
    queue = SQLiteAckQueue(str(tmp_path))
    for name in ("by item", "by id", "raw", "returned"):
        queue.put(name)
    item, _, raw, returned = queue.get(), queue.get(), queue.get(raw=True), queue.get()
    assert raw["data"] == "raw"
    assert raw["pqid"] == 3
    assert queue.unack_count() == queue.active_size() == 4
    assert queue.ack(item) == 1
    assert queue.ack(id=2) == 2
    assert queue.ack_failed(raw) == 3
    assert queue.nack(returned) == 4
    assert queue.ack("another") is None
    assert queue.ack(item) is None
    counts = queue.acked_count(), queue.ack_failed_count(), queue.ready_count(), len(queue)
    assert counts == (2, 1, 1, 1)
    assert queue.unack_count() == 0
    assert queue.get() == "returned"
    with PageQueue(tmp_path, prefix="default") as pages, pages.group("persist-queue") as group:
        letters = [(pickle.loads(letter.payload), letter.reason) for letter in group.dead_letters()]
    assert letters == [("raw", "ack_failed")]


def test_item_is_still_claimed_if_acknowledging_fails(tmp_path: Path) -> None:
    """Another call can try it again."""
    queue = SQLiteAckQueue(str(tmp_path))
    queue.put("a")
    item = queue.get()
    directory = tmp_path / "default.dead.persist-queue.lock"
    directory.mkdir()
    with pytest.raises(errors.PageQueueError):
        queue.ack_failed(item)
    directory.rmdir()
    assert queue.unack_count() == 1
    assert queue.ack_failed(item) == 1


def test_finished_pages_are_removed(tmp_path: Path) -> None:
    """So that the directory does not grow with what was done."""
    queue = SQLiteQueue(str(tmp_path), sync="none")
    for _ in range(3):
        queue.put(b"x" * (1 << 20))
        assert queue.get() == b"x" * (1 << 20)
        queue.shrink_disk_usage()
    assert len(list(tmp_path.glob("default-*.page"))) == 1
    assert queue.empty()


def test_memory_queue_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a directory while it is open."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    queue = SQLiteQueue(":memory:")
    queue.put("a")
    assert len(list(tmp_path.iterdir())) == 1
    assert queue.get() == "a"
    queue.close()
    assert list(tmp_path.iterdir()) == []


def test_garbage_behind_the_last_item_is_repaired_without_a_loss(tmp_path: Path) -> None:
    """persist-queue cuts it off without a word; here it is damage with a name and a place."""
    queue = Queue(str(tmp_path))
    for number in range(3):
        queue.put(number)
    with PageQueue(tmp_path, prefix="default", read_only=True) as pages:
        used = pages.info().used_bytes
    queue.close()
    page = tmp_path / "default-0000000001.page"
    with page.open("r+b") as file:
        file.seek(used)
        file.write(b"garbage!garbage!garbage!")
    with pytest.raises(errors.DamageError) as caught:
        Queue(str(tmp_path)).put("more")
    assert caught.value.path == str(page)
    assert repair_queue(tmp_path, prefix="default").ok
    assert got(Queue(str(tmp_path))) == [0, 1, 2]


def test_what_the_guide_says_is_missing_is_missing(tmp_path: Path) -> None:
    """So that a program that needs it fails at once, and not by another answer."""
    queue = SQLiteAckQueue(str(tmp_path))
    with pytest.raises(TypeError, match="id"):
        queue.get(id=1)
    for name in ("queue", "update", "clear_acked_data", "resume_unack_tasks"):
        assert not hasattr(queue, name)


def test_adapter_is_short() -> None:
    """It is there to be read."""
    text = (HOWTO / "persist-queue" / "persist_adapter.py").read_text()
    assert len(text.splitlines()) <= LINES_MAX
