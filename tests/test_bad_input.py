"""Bad input: a typed error that names path and remedy, and nothing lost or half written."""

from __future__ import annotations

import array
import contextlib
import json
import math
import pickle
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import (
    SMALL,
    files,
    finish,
    open_as_nobody,
    overwrite,
    payloads,
    pretend_power_cut,
    start,
)

from pagequeue import (
    CorruptMeta,
    InvalidOption,
    MessageTooLarge,
    NaiveDatetime,
    NewerFormat,
    NotADirectory,
    PageQueueError,
    PageSizeMismatch,
    Queue,
    QueueNotFound,
    UnsafePath,
)
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

NAN = math.nan


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of two messages."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"a", b"b"])
        yield queue


@contextlib.contextmanager
def changes_nothing(queue: Queue) -> Iterator[None]:
    """Check that neither a message nor a byte comes or goes, and that sending goes on."""
    before = files(queue.directory)
    yield
    assert files(queue.directory) == before
    count = len(queue)
    assert queue.producer().send(b"next") == count
    assert payloads(queue.replay())[:2] == [b"a", b"b"]
    assert queue.verify().ok


# --- sending -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        *("text", 1, True, 1.5, None, [98], (b"a",), {b"a": b"b"}, object(), Path("a")),
        memoryview(b"abcdef")[::2],
        memoryview(b"abcdef")[::-1],
        np.arange(12).reshape(3, 4)[:, 1],
        np.asfortranarray(np.arange(12).reshape(3, 4)),
    ],
    ids=repr,
)
def test_what_is_not_contiguous_bytes_is_a_type_error(queue: Queue, payload: Any) -> None:  # noqa: ANN401
    """I8: such a payload is refused, and inside a batch it takes the whole batch with it."""
    with changes_nothing(queue), queue.producer() as producer:
        for call in (
            lambda: producer.send(payload),
            lambda: producer.send_many([b"x", bytearray(b"y"), payload, b"z"]),
            lambda: producer.send_many(iter([b"x", payload])),
        ):
            with pytest.raises(TypeError, match=r"bytes-like object.*not"):
                call()


@pytest.mark.parametrize(
    "items", ["text", b"bytes", 5, None, [b"a", [b"b"]], array.array("i", [1])]
)
def test_what_is_no_batch_is_a_type_error(queue: Queue, items: Any) -> None:  # noqa: ANN401
    """I8: a batch is an iterable of payloads; bytes themselves are none."""
    with changes_nothing(queue), queue.producer() as producer, pytest.raises(TypeError):
        producer.send_many(items)


@pytest.mark.parametrize(
    ("timestamp", "kind"),
    [
        (-1, ValueError),
        (-(2**63), ValueError),
        (2**63, (ValueError, OverflowError)),
        (1.5, TypeError),
        (NAN, TypeError),
        ("1", TypeError),
        (datetime.now(UTC), TypeError),
    ],
)
def test_timestamp_that_cannot_be_is_refused(queue: Queue, timestamp: Any, kind: Any) -> None:  # noqa: ANN401
    """I1: a timestamp is an int of ns from 0 on."""
    with changes_nothing(queue), queue.producer() as producer, pytest.raises(kind):
        producer.send(b"x", timestamp=timestamp)


def test_call_of_wrong_form_is_a_type_error(queue: Queue) -> None:
    """No argument is guessed."""
    with changes_nothing(queue), queue.producer() as producer:
        send: Any = producer.send
        for call in (
            send,
            lambda: send(b"a", 5),
            lambda: send(b"a", time=5),
            lambda: send(b"a", timestamp=None, other=1),
            lambda: send(payload=b"a"),
        ):
            with pytest.raises(TypeError):
                call()


def test_message_too_large_names_sizes_and_remedy(queue: Queue) -> None:
    """Nothing of a message that does not fit is written, and no page is rolled for it."""
    limit = fmt.payload_bytes_max(SMALL)
    with changes_nothing(queue), queue.producer() as producer:
        for size in (limit + 1, 1 << 20):
            pattern = f"{queue.directory}: .*{size} bytes.*{limit} bytes do: split it"
            with pytest.raises(MessageTooLarge, match=pattern) as caught:
                producer.send(bytes(size))
            assert (caught.value.size_bytes, caught.value.limit_bytes) == (size, limit)
        with pytest.raises(MessageTooLarge, match=f"{queue.directory}: .*send it in parts"):
            producer.send_many([bytes(1000)] * 5)


@pytest.mark.parametrize("timeout", [-1, -0.001, NAN, -math.inf])
def test_flush_timeout_that_cannot_be_is_a_value_error(queue: Queue, timeout: float) -> None:
    """A negative or undefined wait is refused, whether there is anything to flush or not."""
    with changes_nothing(queue), queue.producer() as producer:
        with pytest.raises(ValueError, match="timeout"):
            producer.flush(timeout)
        assert queue.durable_sequence == 0
    with queue.producer() as producer:
        producer.flush()
        with pytest.raises(ValueError, match="timeout"):
            producer.flush(timeout)


# --- receiving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-1, -0.001, NAN, -math.inf, "1", b"", [1]])
def test_timeout_that_cannot_be_is_refused(queue: Queue, timeout: Any) -> None:  # noqa: ANN401
    """A wait is seconds from 0 on, or None; the consumer has not moved."""
    consumer = queue.consumer()
    for call in (
        lambda: consumer.receive(timeout),
        lambda: consumer.receive(timeout=timeout),
        lambda: consumer.receive_many(5, timeout),
    ):
        with pytest.raises((ValueError, TypeError), match=r"0 or more|must be real"):
            call()
    assert payloads(consumer.receive_many()) == [b"a", b"b"]


@pytest.mark.parametrize("limit", [0, -1, (1 << 20) + 1, 1 << 70, 1.5, "5", None])
def test_limit_that_cannot_be_is_refused(queue: Queue, limit: Any) -> None:  # noqa: ANN401
    """A batch has 1 to 1,048,576 messages; the consumer has not moved."""
    consumer = queue.consumer()
    for call in (
        lambda: consumer.receive_many(limit, 0),
        lambda: list(queue.batches(limit_count=limit)),
    ):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            call()
    assert payloads(consumer.receive_many(1 << 20, 0)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        (datetime(2024, 1, 1), NaiveDatetime),  # noqa: DTZ001 - that is the mistake
        (date(2024, 1, 1), TypeError),
        (True, TypeError),
        (1.5, TypeError),
        ("2024-01-01", TypeError),
        (2**63, InvalidOption),
        (-(2**63), InvalidOption),
        (timedelta.max, InvalidOption),
        (timedelta.min, InvalidOption),
        (datetime.max.replace(tzinfo=UTC), InvalidOption),
        (datetime.min.replace(tzinfo=UTC), InvalidOption),
    ],
)
def test_moment_that_cannot_be_is_refused(queue: Queue, moment: Any, kind: Any) -> None:  # noqa: ANN401
    """No time is guessed: a naive datetime could mean any of many moments."""
    consumer = queue.consumer()
    for call in (
        lambda: queue.consumer(since=moment),
        lambda: consumer.seek(since=moment),
        lambda: queue.replay(since=moment),
        lambda: queue.replay(until=moment),
        lambda: queue.batches(until=moment),
    ):
        with pytest.raises(kind, match=r"since|until"):
            call()
    assert consumer.receive(0).payload == b"a"


@pytest.mark.parametrize("sequence", [3, -1, 1 << 70, -(1 << 70), 1.5, "0", b""])
def test_sequence_that_cannot_be_is_refused(queue: Queue, sequence: Any) -> None:  # noqa: ANN401
    """A sequence is an int from head to tail."""
    consumer = queue.consumer()
    for call in (
        lambda: queue.consumer(sequence=sequence),
        lambda: consumer.seek(sequence=sequence),
        lambda: queue.replay(sequence=sequence),
    ):
        with pytest.raises((PageQueueError, TypeError)):
            call()
    assert consumer.receive(0).payload == b"a"


@pytest.mark.parametrize("count", [-1, 1.5, "1", None])
def test_count_of_last_that_cannot_be_is_refused(queue: Queue, count: Any) -> None:  # noqa: ANN401
    """The last messages are counted from 0 on."""
    with pytest.raises((InvalidOption, TypeError)):
        queue.last(count)


# --- opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *({"page_bytes": value} for value in (0, -4096, 1, 4095, 6000, (1 << 30) + 4096, 1 << 70)),
        *({"prefix": value} for value in ("", "a/b", "..", "-a", "a b", "a\n", "ä", "a" * 101)),
        *({"lock_timeout": value} for value in (-1, -0.1, NAN, -math.inf)),
    ],
    ids=repr,
)
def test_option_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The error names the path, the value and what would do; no file and no directory appears."""
    with pytest.raises(InvalidOption, match=rf"{tmp_path}/q: .*{next(iter(options))}.*(use|give)"):
        Queue(tmp_path / "q", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [{"page_bytes": "4096"}, {"page_bytes": 4096.0}, {"prefix": None}, {"prefix": b"q"},
     {"lock_timeout": "1"}, {"lock_timeout": None}],
    ids=repr,
)  # fmt: skip
def test_option_of_a_wrong_type_is_a_type_error_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """A queue is never left half made by a mistake in the call."""
    with pytest.raises(TypeError):
        Queue(tmp_path / "q", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_page_size_of_another_queue_is_refused(queue: Queue, *, read_only: bool) -> None:
    """The error says what stands there, whether the queue is open elsewhere or not."""
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
        with pytest.raises(QueueNotFound, match=f"{tmp_path}/{name}: no queue.*made when opened"):
            Queue(tmp_path / name, **options)  # type: ignore[arg-type]
    assert files(tmp_path / "q") == before
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "missing").exists()


def test_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
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
    """Each kind of file says its version, the error too, and the file stays as it is."""
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
    results = json.loads(finish(start(open_as_nobody.__name__)))
    if not results:
        pytest.skip("only root can become somebody else")
    assert len(results["denied"]) == 6
    for name, (kind, text, number) in results["denied"].items():
        assert kind == "AccessDenied", (name, text)
        assert number in {1, 13}
        assert text.startswith("/")
        assert "change owner or permissions" in text
    assert results["read"] == ["a"]


# --- errors --------------------------------------------------------------------------------------


def some_errors(directory: Path) -> list[PageQueueError]:
    """Return errors as they are really raised."""
    (directory / "file").write_bytes(b"")
    caught: list[PageQueueError] = []
    with Queue(directory / "q", page_bytes=SMALL, lock_timeout=0.1) as queue:
        queue.producer().send(b"a")
        for call in (
            lambda: Queue(directory / "file"),
            lambda: Queue("/proc/nothing"),
            lambda: Queue(directory / "q", page_bytes=2 * SMALL),
            lambda: Queue(directory / "none", create=False),
            lambda: queue.consumer(sequence=5),
            lambda: queue.consumer(latest=True).receive(0),
            lambda: queue.producer().send(bytes(SMALL)),
            lambda: queue.producer().send(b"", timestamp=0),
            lambda: queue._store.page(9),
        ):
            with pytest.raises(PageQueueError) as raised:
                call()
            caught.append(raised.value)
        caught.append(queue._store.flusher.failed(5))
    return caught


def test_errors_survive_pickling_with_all_they_carry(tmp_path: Path) -> None:
    """An error crosses from a worker process whole: kind, text, path and numbers."""
    for error in some_errors(tmp_path):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.path, vars(again)) == (str(error), error.path, vars(error))
        if isinstance(error, OSError):
            assert (again.errno, again.strerror) == (error.errno, error.strerror)
            assert again.filename == error.filename


def test_lock_that_is_overwritten_while_open_is_a_typed_error(tmp_path: Path) -> None:
    """Nobody else does that, but a disk or a stray write can; the file and the remedy are named."""
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send(b"a")
        overwrite(tmp_path / "q" / "queue-writeMeta", 128, b"\xff" * 64)
        with pytest.raises(CorruptMeta, match="repair"):
            producer.send(b"b")
        assert [m.payload for m in queue.replay()] == [b"a"]
