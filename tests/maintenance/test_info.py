"""Info: the parameters and the extent of a queue."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import SMALL, Clock, until

from pagequeue import Queue, errors
from pagequeue import format as fmt
from pagequeue.multiprocessing import JoinableQueue
from pagequeue.store import store
from pagequeue.tasks import TaskStore

SECOND = 10**9


def test_info_of_an_empty_queue(tmp_path: Path) -> None:
    """A new queue has one page, no message and no times."""
    with Queue(tmp_path / "q", page_bytes=SMALL, prefix="ev", clock=Clock(7 * SECOND)) as queue:
        info = queue.info()
    assert (info.directory, info.prefix) == (str(tmp_path / "q"), "ev")
    assert info.format_version == fmt.FORMAT_VERSION
    assert info.created == datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
    assert (info.page_bytes, info.page_count, info.head_page, info.tail_page) == (SMALL, 1, 1, 1)
    assert (info.head_sequence, info.tail_sequence, info.durable_sequence) == (0, 0, 0)
    assert (info.message_count, info.used_bytes) == (0, fmt.PAGE_HEADER_BYTES)
    assert info.head_time is None
    assert info.tail_time is None
    assert not info.sync_failed


def test_info_counts_messages_pages_and_times(tmp_path: Path) -> None:
    """Counts are what was sent; times are those of the first and the last message."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(0)) as queue:
        with queue.producer() as producer:
            for i in range(25):
                producer.send(b"." * 984, timestamp=(100 + i) * SECOND)
            durable = producer.flush()
            producer.send(b"", timestamp=200 * SECOND)
        info = queue.info()
    assert (info.head_sequence, info.tail_sequence, info.message_count) == (0, 26, 26)
    assert info.durable_sequence == durable == 25
    assert (info.page_count, info.tail_page) == (7, 7)
    assert info.head_time == datetime(1970, 1, 1, 0, 1, 40, tzinfo=UTC)
    assert info.tail_time == datetime(1970, 1, 1, 0, 3, 20, tzinfo=UTC)


def test_used_bytes_are_headers_and_frames(tmp_path: Path) -> None:
    """What is used grows by exactly one frame with each message, whatever the pages."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        expected = fmt.PAGE_HEADER_BYTES
        for i in range(60):
            producer.send(b"." * (i * 13 % 700))
            expected += fmt.frame_bytes(i * 13 % 700)
            info = queue.info()
            assert info.used_bytes == expected + (info.page_count - 1) * fmt.PAGE_HEADER_BYTES


def test_file_bytes_are_those_of_this_queue_on_disk(tmp_path: Path) -> None:
    """All files with the prefix count by their blocks; another queue's do not."""
    with (
        Queue(tmp_path / "q", page_bytes=16 * SMALL) as queue,
        Queue(tmp_path / "q", page_bytes=SMALL, prefix="other") as other,
    ):
        with queue.producer() as producer:
            producer.send(b"a")
            producer.rotate()
        names = [path for path in Path(queue.directory).iterdir() if path.match("queue-*")]
        # Again, because a file system may allocate and free blocks some time later.
        until(lambda: queue.info().file_bytes == sum(path.stat().st_blocks * 512 for path in names))
        assert queue.info().file_bytes >= 2 * 16 * SMALL
        assert other.info().file_bytes < 16 * SMALL


@pytest.mark.parametrize("kind", ["journal", "staged", "drop-in"])
def test_file_bytes_are_those_of_directories_of_the_queue_too(tmp_path: Path, kind: str) -> None:
    """Snapshots, staged pages and large objects are as much on the disk as pages are."""
    with contextlib.ExitStack() as held:
        if kind == "journal":
            tasks = held.enter_context(TaskStore(tmp_path))
            tasks.insert("mail", {"to": "x" * 5000})
            tasks.compact()
            prefix = "queue"
        elif kind == "staged":
            queue = held.enter_context(Queue(tmp_path, page_bytes=SMALL))
            file = held.enter_context(queue.producer()).open()
            held.callback(file.discard)
            file.write(bytes(2 << 20))
            prefix = "queue"
        else:
            objects = JoinableQueue(directory=tmp_path, page_bytes=SMALL)
            held.callback(objects.close)
            objects.put(bytes(1 << 20))
            prefix = "items"
        reader = held.enter_context(Queue(tmp_path, prefix=prefix, read_only=True))
        found = [
            path for path in tmp_path.rglob("*") if path.is_file() and path.name != "queue.lock"
        ]

        def on_disk() -> int:
            return sum(path.stat().st_blocks * 512 for path in found)

        assert any(path.parent != tmp_path and path.stat().st_blocks for path in found)
        until(lambda: reader.info().file_bytes == on_disk())


def test_info_is_the_same_for_a_reader_and_after_reopening(tmp_path: Path) -> None:
    """Info is derived from the files, not from what this process did."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"." * 900] * 4)
        queue.producer().send_many([b"." * 900] * 2)
        before = queue.info()
        with Queue(tmp_path / "q", read_only=True) as reading:
            assert reading.info() == before
    with Queue(tmp_path / "q", create=False) as queue:
        assert queue.info() == before


def test_info_is_immutable(tmp_path: Path) -> None:
    """It is a picture of one time."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        info = queue.info()
        with pytest.raises(dataclasses.FrozenInstanceError):
            info.message_count = 5  # type: ignore[misc]
        producer.send(b"a")
        assert (info.message_count, queue.info().message_count) == (0, 1)


def test_invalid_fields_are_a_typed_error(tmp_path: Path) -> None:
    """A write meta that is overwritten while it is open ends in an error that names the file."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send(b"message")
        with (tmp_path / "q" / "queue-writeMeta").open("r+b") as file:
            file.write(b"\xff" * fmt.WRITE_META.itemsize)
        with pytest.raises(errors.CorruptMeta, match="invalid Tail") as caught:
            queue.info()
    assert caught.value.path == str(tmp_path / "q" / "queue-writeMeta")
    assert caught.value.reason == "tail"


def test_info_again_maps_no_page_that_did_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics ask often, and a queue can have many pages; what changes is seen all the same."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        for _ in range(400):
            producer.send(bytes(900))
        first = queue.info()
        assert first.page_count == 100
        mapped: list[int] = []
        real = store.open_page

        def open_page(folder: Any, prefix: str, meta: Any, number: int, pool: Any) -> Any:  # noqa: ANN401
            mapped.append(number)
            return real(folder, prefix, meta, number, pool)

        monkeypatch.setattr(store, "open_page", open_page)
        assert queue.info() == first
        assert len(set(mapped)) < 20  # by bisection, of the first and the last message
        for _ in range(8):
            producer.send(bytes(900))
        del mapped[:]
        more = queue.info()
        assert more.used_bytes == (
            408 * fmt.frame_bytes(900) + more.page_count * fmt.PAGE_HEADER_BYTES
        )
        assert len(set(mapped)) < 20
        (tmp_path / "q" / fmt.page_name("queue", 4)).unlink()
        with pytest.raises(errors.MissingPage):
            queue.info()


def test_info_counts_pages_that_are_compressed_meanwhile(tmp_path: Path) -> None:
    """A page whose file became smaller is checked again."""
    pytest.importorskip("zstandard")
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, Queue(tmp_path / "q") as other:
        with queue.producer() as producer:
            for _ in range(40):
                producer.send(bytes(900))
        before = queue.info()
        assert other.compress().pages == before.page_count - 1
        after = queue.info()
    assert after.compressed_page_count == before.page_count - 1
    assert after.used_bytes == before.used_bytes
