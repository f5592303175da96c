"""Bad input: a typed error that names path and remedy, and no message lost or half written."""

from __future__ import annotations

import array
import contextlib
import math
import pickle
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import SMALL, files, payloads

from pagequeue import (
    CorruptMeta,
    InvalidOption,
    MessageTooLarge,
    NaiveDatetime,
    PageQueueError,
    Queue,
    Retention,
)
from stress.tampering import overwrite

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
def changes_no_message(queue: Queue) -> Iterator[None]:
    """Check that no message and no byte is added or removed, and that sending works afterwards."""
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
    ids=lambda payload: type(payload).__name__,
)
def test_buffer_that_is_not_contiguous_bytes_is_a_type_error(queue: Queue, payload: Any) -> None:  # noqa: ANN401
    """I8: such a payload is refused, and inside a batch it takes the whole batch with it."""
    with changes_no_message(queue), queue.producer() as producer:
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
def test_batch_that_is_not_iterable_is_a_type_error(queue: Queue, items: Any) -> None:  # noqa: ANN401
    """I8: a batch is an iterable of payloads; bytes themselves are none."""
    with changes_no_message(queue), queue.producer() as producer, pytest.raises(TypeError):
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
def test_invalid_timestamp_is_refused(queue: Queue, timestamp: Any, kind: Any) -> None:  # noqa: ANN401
    """I1: a timestamp is an int of ns from 0 on."""
    with changes_no_message(queue), queue.producer() as producer, pytest.raises(kind):
        producer.send(b"x", timestamp=timestamp)


def test_call_of_wrong_form_is_a_type_error(queue: Queue) -> None:
    """No argument is guessed."""
    with changes_no_message(queue), queue.producer() as producer:
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


def test_message_too_large_names_sizes_and_remedy(tmp_path: Path) -> None:
    """A batch that `max_bytes` can never hold writes no byte, and no page is rolled for it."""
    retention = Retention(max_bytes=4 * SMALL)
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, retention=retention) as queue,
        queue.producer() as producer,
    ):
        for call in (
            lambda: producer.send(bytes(5 * SMALL)),
            lambda: producer.send_many([bytes(SMALL // 2)] * 10),
        ):
            with pytest.raises(MessageTooLarge, match="raise max_bytes, or send") as caught:
                call()
            assert caught.value.size_bytes == 5 * SMALL
            assert caught.value.limit_bytes == 4 * SMALL
        assert producer.send(b"next") == 0
        assert queue.info().page_count == 1


@pytest.mark.parametrize("timeout", [-1, -0.001, NAN, -math.inf])
def test_invalid_flush_timeout_is_a_value_error(queue: Queue, timeout: float) -> None:
    """A negative or undefined wait is refused, whether there is anything to flush or not."""
    with changes_no_message(queue), queue.producer() as producer:
        with pytest.raises(ValueError, match="timeout"):
            producer.flush(timeout)
        assert queue.durable_sequence == 0
    with queue.producer() as producer:
        producer.flush()
        with pytest.raises(ValueError, match="timeout"):
            producer.flush(timeout)


# --- receiving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-1, -0.001, NAN, -math.inf, "1", b"", [1]])
def test_invalid_timeout_is_refused(queue: Queue, timeout: Any) -> None:  # noqa: ANN401
    """A wait is seconds from 0 on, or None; the consumer has not moved."""
    consumer = queue.consumer()
    for call in (
        lambda: consumer.receive(timeout),
        lambda: consumer.receive(timeout=timeout),
        lambda: consumer.receive_many(5, timeout),
    ):
        with pytest.raises(
            (ValueError, TypeError), match=r"timeout is .*0 or more|timeout must be a number"
        ):
            call()
    assert payloads(consumer.receive_many()) == [b"a", b"b"]


@pytest.mark.parametrize("limit", [0, -1, (1 << 20) + 1, 1 << 70, 1.5, "5", None])
def test_invalid_limit_is_refused(queue: Queue, limit: Any) -> None:  # noqa: ANN401
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
def test_invalid_time_is_refused(queue: Queue, moment: Any, kind: Any) -> None:  # noqa: ANN401
    """No time is guessed: a naive datetime is ambiguous."""
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
def test_invalid_sequence_is_refused(queue: Queue, sequence: Any) -> None:  # noqa: ANN401
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
def test_invalid_count_of_last_is_refused(queue: Queue, count: Any) -> None:  # noqa: ANN401
    """The last messages are counted from 0 on."""
    with pytest.raises((InvalidOption, TypeError)):
        queue.last(count)


# --- errors --------------------------------------------------------------------------------------


def some_errors(directory: Path) -> list[PageQueueError]:
    """Return errors as they are really raised."""
    (directory / "file").write_bytes(b"")
    caught: list[PageQueueError] = []
    limit = Retention(max_bytes=2 * SMALL)
    with Queue(directory / "q", page_bytes=SMALL, lock_timeout=0.1, retention=limit) as queue:
        queue.producer().send(b"a")
        for call in (
            lambda: Queue(directory / "file"),
            lambda: Queue("/proc/missing"),
            lambda: Queue(directory / "q", page_bytes=2 * SMALL),
            lambda: Queue(directory / "none", create=False),
            lambda: queue.consumer(sequence=5),
            lambda: queue.consumer(latest=True).receive(0),
            lambda: queue.producer().send(bytes(3 * SMALL)),
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
    """Only a failing disk or a stray write can do that; the file and the remedy are named."""
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send(b"a")
        overwrite(tmp_path / "q" / "queue-writeMeta", 128, b"\xff" * 64)
        with pytest.raises(CorruptMeta, match="repair"):
            producer.send(b"b")
        assert [m.payload for m in queue.replay()] == [b"a"]
