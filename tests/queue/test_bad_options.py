"""Bad options, paths, formats and permissions at opening: a typed error, and no file created."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import SMALL, files, finish, open_as_other_user, start

from pagequeue import (
    InvalidOption,
    NewerFormat,
    NotADirectory,
    PageSizeMismatch,
    Queue,
    QueueNotFound,
    Retention,
    UnsafePath,
    merge,
)
from pagequeue import format as fmt
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAN = math.nan


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of two messages."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"a", b"b"])
        yield queue


@pytest.mark.parametrize(
    "options",
    [
        *({"page_bytes": value} for value in (0, -4096, 1, 4095, 6000, (1 << 30) + 4096, 1 << 70)),
        *({"prefix": value} for value in ("", "a/b", "..", "-a", "a b", "a\n", "ä", "a" * 101)),
        *({"lock_timeout": value} for value in (-1, -0.1, NAN, -math.inf)),
    ],
    ids=repr,
)
def test_invalid_option_is_refused_before_a_file_is_created(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The error names the path, the value and the valid ones; no file or directory is created."""
    with pytest.raises(InvalidOption, match=rf"{tmp_path}/q: .*{next(iter(options))}.*(use|give)"):
        Queue(tmp_path / "q", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"page_bytes": "4096"},
        {"page_bytes": 4096.0},
        {"prefix": None},
        {"prefix": b"q"},
        {"lock_timeout": "1"},
        {"lock_timeout": None},
        {"file_mode": "600"},
        {"compress_level": 3.0},
        {"full_timeout": "1"},
        {"compress_after": "1"},
        {"sync": 1.5},
    ],
    ids=repr,
)
def test_option_of_a_wrong_type_is_a_type_error_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """A queue is never left half made by a mistake in the call; the option is named."""
    with pytest.raises(TypeError, match=next(iter(options))):
        Queue(tmp_path / "q", **options)
    assert list(tmp_path.iterdir()) == []


class Whole:
    """An integer by `__index__` alone."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("whole", [np.int64, np.uint64, Whole])
def test_integers_of_other_classes_are_integers(
    tmp_path: Path, whole: Callable[[int], Any]
) -> None:
    """Every option that is a number takes NumPy's integers, and whatever has `__index__`."""
    with Queue(
        tmp_path / "q",
        page_bytes=whole(SMALL),
        sync=whole(2),
        lock_timeout=whole(5),
        file_mode=whole(0o640),
        retention=Retention(max_bytes=whole(1 << 20)),
        full_timeout=whole(5),
        compress_after=whole(1),
        compress_level=whole(3),
    ) as queue:
        assert queue.page_bytes == SMALL
        producer = queue.producer()
        assert producer.send(b"a", timestamp=whole(1)) == 0
        assert producer.send_many([b"b", b"c"], timestamps=[whole(2), whole(3)]) == range(1, 3)
        assert producer.flush(whole(5)) == 3
        consumer = queue.consumer("c", sequence=whole(1))
        assert consumer.receive(timeout=whole(1)).payload == b"b"
        consumer.ack(whole(1))
        assert consumer.receive_many(whole(1), timeout=whole(1)).payloads == [b"c"]
        assert [m.payload for m in queue.replay(since=whole(2), until=whole(3))] == [b"b"]
        assert len(list(queue.replay(speed=whole(1000)))) == 3
        assert [len(batch) for batch in queue.batches(limit_count=whole(2))] == [2, 1]
        assert queue.last(whole(2)).payloads == [b"b", b"c"]
        group = queue.group("g", lease=whole(9), max_deliveries=whole(2), capacity=whole(100))
        assert len(group.claim_many(whole(3), timeout=whole(1))) == 3
        merged = merge([queue], patience=whole(1)).receive_many(whole(2), timeout=whole(1))
        assert merged.payloads == [b"a", b"b"]
        asyncio.run(awaited(queue, whole))
    with Queue(tmp_path / "q", page_bytes=whole(SMALL)):
        pass


async def awaited(queue: Queue, whole: Callable[[int], Any]) -> None:
    """Wait for so many seconds, on an event loop."""
    assert await queue.producer().flush_async(whole(5)) == 3
    consumer = queue.consumer()
    assert (await consumer.receive_async(timeout=whole(1))).payload == b"a"
    assert len(await consumer.receive_many_async(whole(1), timeout=whole(1))) == 1


@pytest.mark.parametrize("timeout", ["1", [], object()])
def test_timeout_that_is_not_a_number_is_named(queue: Queue, timeout: object) -> None:
    """On event loops and for syncs too."""
    with pytest.raises(TypeError, match="timeout must be a number, not"):
        queue.producer().flush(timeout)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout must be a number, not"):
        asyncio.run(queue.consumer().receive_async(timeout=timeout))  # type: ignore[arg-type]


@pytest.mark.parametrize("read_only", [False, True])
def test_page_size_of_another_queue_is_refused(queue: Queue, *, read_only: bool) -> None:
    """The error names the stored size, whether the queue is open elsewhere or not."""
    pattern = f"{queue.directory}: .*pages of {SMALL} bytes, not {2 * SMALL}: leave page_bytes out"
    for _ in range(2):
        before = files(queue.directory)
        with pytest.raises(PageSizeMismatch, match=pattern) as caught:
            Queue(queue.directory, page_bytes=2 * SMALL, read_only=read_only)
        assert caught.value.page_bytes == SMALL
        assert files(queue.directory) == before
        queue.close()


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_queue_that_is_not_there_is_not_made(tmp_path: Path, options: dict[str, bool]) -> None:
    """`create=False` finds or fails, in a directory that is missing, empty or another's."""
    Queue(tmp_path / "q", prefix="other", page_bytes=SMALL).close()
    before = files(tmp_path / "q")
    (tmp_path / "empty").mkdir()
    for name in ("q", "empty", "missing"):
        with pytest.raises(QueueNotFound, match=f"{tmp_path}/{name}: no queue.*create the queue"):
            Queue(tmp_path / name, **options)  # type: ignore[arg-type]
    assert files(tmp_path / "q") == before
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "missing").exists()


def test_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    """A file, a file as parent, a symbolic link whether it leads anywhere or not, a pipe."""
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, kind in {
        "file": NotADirectory,
        "file/q": NotADirectory,
        "file/a/b": NotADirectory,
        "link": UnsafePath,
        "dangling": UnsafePath,
    }.items():
        for options in ({}, {"create": False}, {"read_only": True}):
            with pytest.raises(kind, match=f"{tmp_path}/{name}: .*: (choose|give) "):
                Queue(tmp_path / name, **options)  # type: ignore[arg-type]
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert list((tmp_path / "real").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def open_and_use(directory: str) -> None:
    """Touch every kind of file."""
    with Queue(directory) as queue:
        queue.producer()
        list(queue.replay())


@pytest.mark.parametrize("suffix", ["allMeta", "writeMeta", "readMeta", "0000000001.page"])
@pytest.mark.parametrize("scan", [False, True])
def test_queue_of_a_newer_format_is_refused(queue: Queue, suffix: str, *, scan: bool) -> None:
    """Each type of file holds its version, the error names it, and the file is unchanged."""
    queue.close()
    if scan:
        pretend_power_cut(queue.directory)
    path = Path(queue.directory) / f"queue-{suffix}"
    overwrite(path, 8, (fmt.FORMAT_VERSION + 1).to_bytes(4, "little"))
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match=f"{path}: .*upgrade pagequeue") as caught:
        open_and_use(queue.directory)
    assert caught.value.version == fmt.FORMAT_VERSION + 1
    assert path.read_bytes() == before


def test_permissions_that_do_not_suffice_are_a_typed_error_that_names_the_path() -> None:
    """Another user gets PermissionError for what is closed to it, and reads what is open to it."""
    results = json.loads(finish(start(open_as_other_user.__name__)))
    if not results:
        pytest.skip("only root can become another user")
    assert len(results["denied"]) == 6
    for name, (kind, text, number) in results["denied"].items():
        assert kind == "AccessDenied", (name, text)
        assert number in {1, 13}
        assert text.startswith("/")
        assert "change owner or permissions" in text
    assert results["read"] == ["a"]


def test_time_between_syncs_has_a_limit(tmp_path: Path) -> None:
    """A thread cannot wait 270,000 years: that is an error at once, and no file is created."""
    with pytest.raises(InvalidOption, match="200 years at most"):
        Queue(tmp_path / "q", sync=timedelta(days=99_999_999))
    assert not (tmp_path / "q").exists()
