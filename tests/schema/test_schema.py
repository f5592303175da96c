"""What the messages of a queue hold: fixed at creation, and never unpickled unasked."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dtype_samples import RECORD

from pagequeue import (
    CodecMismatch,
    DtypeMismatch,
    InvalidOption,
    Message,
    MissingExtra,
    NotDecodable,
    NotEncodable,
    PickleRefused,
    Queue,
    RecordSize,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.meta.all_meta import AllMeta
from pagequeue.producer.producer import Producer
from pagequeue.schema import codec
from pagequeue.schema.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue.types import CodecName

VALUES = {
    "bytes": b"\x00\xff",
    "utf-8": "grüß dich",
    "json": {"a": [1, 2.5, None, "ü"]},
    "msgpack": {"a": [1, b"raw", True]},
    "pickle": {("tuple", 1): {3}},
}


def records(count: int) -> np.ndarray[Any, Any]:
    """Return records that differ."""
    rows = np.zeros(count, RECORD)
    rows["time"] = np.arange(count)
    rows["symbol"] = [b"S%d" % i for i in range(count)]
    rows["price"] = np.arange(count) / 2
    rows["sizes"][:, 1] = np.arange(count)
    return rows


# --- records --------------------------------------------------------------------------------------


def test_message_of_a_record_has_it_as_value(tmp_path: Path) -> None:
    """A read-only scalar of the dtype; the payload stays bytes."""
    rows = records(3)
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(rows)
        producer.send(rows[1])
        producer.send(rows[2].tobytes())
        found = list(queue.replay())
        assert [message.payload for message in found] == [
            row.tobytes() for row in (*rows, rows[1], rows[2])
        ]
        assert [message.value for message in found[:3]] == list(rows)
        with pytest.raises(ValueError, match="read-only"):
            found[0].value["price"] = 3.0
        assert pickle.loads(pickle.dumps(found[0])).value == rows[0]


def test_payload_that_is_not_a_record_is_not_sent(tmp_path: Path) -> None:
    """Every message has exactly the record's size."""
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        for payload in (b"", b"x", bytes(RECORD.itemsize + 1)):
            with pytest.raises(RecordSize) as caught:
                producer.send(payload)
            assert (caught.value.size_bytes, caught.value.record_bytes) == (
                len(payload),
                RECORD.itemsize,
            )
        with pytest.raises(RecordSize):
            producer.send_many([bytes(RECORD.itemsize), b"x"])
        same_size = np.zeros(1, np.dtype([("a", f"V{RECORD.itemsize}")]))
        for send in (producer.send, lambda row: producer.send_many([row])):
            with pytest.raises(DtypeMismatch, match="astype"):
                send(same_size[0])
        assert len(queue) == 0


def first_messages(queue: Queue) -> dict[str, Callable[[], Any]]:
    """Return every way to get the first message of a queue."""

    async def wait() -> Message:
        with queue.consumer() as consumer:
            return await consumer.receive_async(timeout=60)

    return {
        "replay": lambda: next(queue.replay()),
        "poll": lambda: queue.consumer().poll(),
        "receive": lambda: queue.consumer().receive(timeout=60),
        "receive_many": lambda: queue.consumer().receive_many(5, timeout=60)[0],
        "named": lambda: queue.consumer("name").receive(timeout=60),
        "claim": lambda: queue.group("claims").claim(timeout=60).message,
        "take": lambda: queue.group("takes").take(timeout=60),
        "last": lambda: queue.last(1)[0],
        "batches": lambda: next(iter(next(queue.batches()))),
        "asyncio": lambda: asyncio.run(wait()),
    }


@pytest.mark.parametrize("name", ["bytes", "utf-8", "json", "msgpack", "pickle"])
def test_every_way_to_receive_gives_the_same_value(tmp_path: Path, name: str) -> None:
    """With every kind of consumer, and in batches."""
    value = VALUES[name]
    with Queue(tmp_path, codec=name) as queue, queue.producer() as producer:
        producer.send(value)
        for way, first in first_messages(queue).items():
            message = first()
            assert message.value == value, way
            assert type(message.payload) is bytes


def test_every_way_to_receive_gives_the_same_record(tmp_path: Path) -> None:
    """The same for records."""
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(records(1))
        for way, first in first_messages(queue).items():
            assert first().value == records(1)[0], way


# --- codecs ---------------------------------------------------------------------------------------


def test_codec_is_kept_and_another_one_is_an_error(tmp_path: Path) -> None:
    """None uses the stored one."""
    Queue(tmp_path, codec="json").close()
    with Queue(tmp_path) as queue:
        assert queue.codec == queue.info().codec == "json"
        assert queue.dtype is None
    with pytest.raises(CodecMismatch, match=r"'json'.*'msgpack'") as caught:
        Queue(tmp_path, codec="msgpack")
    assert (caught.value.codec, isinstance(caught.value, ValueError)) == ("json", True)
    with pytest.raises(InvalidOption, match=r'codec is .*give "bytes", .* or '):
        Queue(tmp_path, codec="yaml")
    with pytest.raises(InvalidOption, match="one of the two"):
        Queue(tmp_path / "new", codec="json", dtype=RECORD)


def test_plain_queue_has_no_options(tmp_path: Path) -> None:
    """A queue of bytes has the files that it always had."""
    Queue(tmp_path, codec="bytes").close()
    data = (tmp_path / "queue-allMeta").read_bytes()
    assert len(data) == fmt.ALL_META.itemsize
    assert AllMeta.decode(data, "path").schema == Schema()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("json", object()),
        ("msgpack", object()),
        ("utf-8", b"bytes"),
        ("utf-8", "\ud800"),
        ("pickle", lambda: 0),
        ("arrow", 3),
    ],
)
def test_object_that_the_codec_cannot_encode_is_not_sent(
    tmp_path: Path, name: str, value: object
) -> None:
    """Neither as a single message nor in a batch."""
    if name == "arrow":
        pytest.importorskip("pyarrow")
    good: Any = {"arrow": None}.get(name, VALUES.get(name))
    with Queue(tmp_path, codec=name) as queue, queue.producer() as producer:
        for call in (lambda: producer.send(value), lambda: producer.send_many([good, value])):
            with pytest.raises(NotEncodable) as caught:
                call()
            assert isinstance(caught.value, TypeError)
            assert isinstance(caught.value, ValueError)
        assert len(queue) == 0


@pytest.mark.parametrize("name", ["json", "msgpack", "utf-8", "arrow", "pickle"])
def test_undecodable_payload_is_reported_with_its_sequence(tmp_path: Path, name: str) -> None:
    """The bytes are still available."""
    if name == "arrow":
        pytest.importorskip("pyarrow")
    with Queue(tmp_path, codec=name) as queue:
        with Producer(queue._store) as raw:
            raw.send_many([b"\xc1\xff", b"\xc1\xff"])
        message = list(queue.replay())[1]
        assert message.payload == b"\xc1\xff"
        with pytest.raises(NotDecodable, match="message 1") as caught:
            _ = message.value
        assert caught.value.sequence == 1
        assert caught.value.path == str(tmp_path)


def test_payloads_are_not_unpickled_without_consent(tmp_path: Path) -> None:
    """Opening a directory never executes the contents of its queue."""

    class Deadly:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("unpickled",)

    with Queue(tmp_path, codec="pickle") as queue, queue.producer() as producer:
        producer.send(Deadly())
    with Queue(tmp_path) as queue:
        assert queue.codec == "pickle"
        for way, first in first_messages(queue).items():
            message = first()
            assert b"unpickled" in message.payload
            with pytest.raises(PickleRefused, match="codec='pickle'"):
                pytest.fail(f"{way}: {message.value}")
            again = pickle.loads(pickle.dumps(message))
            with pytest.raises(PickleRefused):
                _ = again.value


def test_bytes_are_read_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is named when a value is wanted, or sent."""
    with Queue(tmp_path, codec="json") as queue, queue.producer() as producer:
        producer.send([1])
    monkeypatch.setattr(codec, "_known", {})
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with Queue(tmp_path) as queue, queue.producer() as producer:
        message = next(queue.replay())
        assert message.payload == b"[1]"
        with pytest.raises(MissingExtra, match=r"pip install .*\[codecs\]") as caught:
            _ = message.value
        assert caught.value.extra == "codecs"
        with pytest.raises(MissingExtra):
            producer.send([2])
        assert len(queue) == 1


@pytest.mark.parametrize("name", ["json", "msgpack", "arrow"])
def test_codec_without_its_library_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: CodecName
) -> None:
    """Nor does it open a queue that exists: the first message would fail."""
    if name == "arrow":
        pytest.importorskip("pyarrow")
    Queue(tmp_path / "old", codec=name).close()
    monkeypatch.setattr(codec, "_known", {})
    for module in ("msgspec", "pyarrow", "pyarrow.ipc"):
        monkeypatch.setitem(sys.modules, module, None)
    before = sorted(os.listdir("/proc/self/fd"))
    for directory in ("old", "new"):
        with pytest.raises(MissingExtra, match=r"pip install .*\[(codecs|arrow)\]"):
            Queue(tmp_path / directory, codec=name)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == ["old"]


def test_arrow_codec_has_a_table_in_each_message(tmp_path: Path) -> None:
    """Record batches and tables are sent; tables come."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1, 2, None], "b": ["x", "y", "z"]})
    with Queue(tmp_path, codec="arrow") as queue, queue.producer() as producer:
        producer.send(table)
        producer.send(table.to_batches()[0])
        producer.send_many([table, table.slice(1)])
        found = [message.value for message in queue.replay()]
    assert found == [table, table, table, table.slice(1)]


def test_values_go_through_asyncio_and_flows(tmp_path: Path) -> None:
    """Indirect senders encode values as well."""

    async def send() -> None:
        with queue.producer() as producer:
            await producer.send_async({"n": 1})
            await producer.send_many_async(iter([2, 3]), timestamps=iter([5 << 60, 5 << 60]))

    with Queue(tmp_path / "a", codec="json") as queue:
        asyncio.run(send())
        assert [message.value for message in queue.replay()] == [{"n": 1}, 2, 3]
    with Queue(tmp_path / "b", codec="json") as queue, queue.persist([[1], "two"], "f") as flow:
        assert [message.value for message in flow] == [[1], "two"]


# --- maintenance of a queue with a schema ---------------------------------------------------------


def test_verify_names_the_message_that_is_not_a_record(tmp_path: Path) -> None:
    """A message written without the library's checks is found, with or without an index."""
    rows = records(3)
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(rows)
        assert queue.verify().ok
        with Producer(queue._store) as raw:
            raw.send_many([b"short", rows[0].tobytes(), b""])
        producer.flush()
    for _ in range(2):
        problems = verify_queue(tmp_path).problems
        mine = [problem for problem in problems if "a record has" in problem.reason]
        assert [problem.sequence for problem in mine] == [3]
        assert mine[0].reason.startswith("5 bytes, a record has 32, and 1 message more")
        with Queue(tmp_path, read_only=True) as queue:
            assert queue._store.seek_sequence(3).position == mine[0].position
        (tmp_path / "queue-0000000001.idx").unlink(missing_ok=True)


def test_salvage_keeps_the_schema_and_every_timestamp(tmp_path: Path) -> None:
    """Also the times of a batch whose messages have different ones."""
    rows = records(5)
    with Queue(tmp_path / "old", dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(rows, timestamps=[1, 1, 2, 5, 9])
        producer.send_many(rows, timestamps=[9] * 5)
    report = salvage_queue(tmp_path / "old", tmp_path / "new")
    assert report.ok
    assert report.notes == []
    with Queue(tmp_path / "new") as queue:
        assert queue.dtype == RECORD
        batch = queue.last(10)
        assert batch.timestamps.tolist() == [1, 1, 2, 5, 9] + [9] * 5
        assert (batch.to_numpy() == np.concatenate([rows, rows])).all()


def test_repair_of_a_lost_meta_uses_the_schema_given(tmp_path: Path) -> None:
    """The pages do not hold it; the caller gives it, or messages are bytes."""
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(records(2))
    (tmp_path / "queue-allMeta").unlink()
    report = repair_queue(tmp_path, dtype=RECORD)
    assert "dtype" in " ".join(report.actions)
    with Queue(tmp_path) as queue:
        assert (queue.last(2).to_numpy() == records(2)).all()


def test_value_is_decoded_at_each_access(tmp_path: Path) -> None:
    """So no caller can change another's value."""
    with Queue(tmp_path, codec="json") as queue, queue.producer() as producer:
        producer.send({"a": []})
        message = next(queue.replay())
        message.value["a"].append(1)
        assert message.value == {"a": []}
        assert message.time.replace(tzinfo=UTC) <= datetime.now(UTC)
