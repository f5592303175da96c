"""Payloads are bytes: buffers that hold addresses of this process are refused."""

from __future__ import annotations

import array
import asyncio
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import DtypeMismatch, NotEncodable, Queue
from pagequeue.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Producer


class Pointing(ctypes.Structure):
    """A structure with a pointer in it."""

    _fields_ = (("number", ctypes.c_int), ("pointer", ctypes.c_void_p))


class Plain(ctypes.Structure):
    """One without, whose fields have names like formats."""

    _fields_ = (("Pz", ctypes.c_int), ("O", ctypes.c_double))


MIXED = np.zeros(2, [("number", "i8"), ("object", "O"), ("time", "M8[ns]")])
ADDRESSES: dict[str, Any] = {
    "array": np.array([object()]),
    "array of no dimension": np.array(object()),
    "masked": np.ma.array([object()]),
    "records": np.zeros(2, [("x", [("object", "O", (2,))])]),
    "records with times": MIXED,
    "record": MIXED[0],
    "view": memoryview(np.array([object()])),
    "view of pointers": memoryview(bytes(16)).cast("P"),
    "pointer": ctypes.c_void_p(5),
    "pointers": (ctypes.c_void_p * 2)(),
    "pointer to one": ctypes.pointer(ctypes.c_int(3)),
    "structure": Pointing(),
    "structures": (Pointing * 2)(),
    "object": ctypes.py_object(object()),
    "text": ctypes.c_char_p(b"abc"),
    "wide text": ctypes.c_wchar_p("abc"),
    "function": ctypes.CFUNCTYPE(None)(lambda: None),
}
if hasattr(np.dtypes, "StringDType"):
    ADDRESSES["strings"] = np.array(["a" * 100, "b"], dtype=np.dtypes.StringDType())
BYTES: dict[str, Any] = {
    "integers": np.arange(3),
    "times": np.array([1], "M8[ns]"),
    "complex": np.array([1j]),
    "text": np.array(["abc"]),
    "named like formats": np.zeros(2, [("O", "i8"), ("P", "f4")]),
    "with times": np.zeros(2, [("O", "i8"), ("P", "f4"), ("t", "M8[s]")]),
    "big-endian": np.array([1], ">i4"),
    "scalar": np.int64(3),
    "nothing": np.zeros(0),
    "array": array.array("d", [1.0]),
    "bytearray": bytearray(b"abc"),
    "view": memoryview(b"abcdefgh").cast("d"),
    "structure": Plain(1, 2.0),
}


def write(producer: Producer, payload: Any) -> None:  # noqa: ANN401 - any buffer
    """Send an object as what is written to a file."""
    with producer.open() as file:
        file.write(payload)


def write_large(producer: Producer, payload: Any) -> None:  # noqa: ANN401 - the same
    """Do the same with a message that does not fit into a page."""
    with producer.open() as file:
        file.write(bytes(10000))
        file.write(payload)


def ways(producer: Producer) -> list[Callable[[Any], object]]:
    """Return every way to send one object."""
    return [
        producer.send,
        lambda payload: producer.send_many([b"before", payload]),
        lambda payload: producer.send_many(iter([payload])),
        lambda payload: asyncio.run(producer.send_async(payload)),
        lambda payload: asyncio.run(producer.send_many_async([payload])),
        lambda payload: write(producer, payload),
    ]


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_are_not_accepted_as_payload(tmp_path: Path, name: str) -> None:
    """They are useless to other processes, and would disclose this process's memory layout."""
    with Queue(tmp_path, page_bytes=4096) as queue, queue.producer() as producer:
        for send in (*ways(producer), lambda payload: write_large(producer, payload)):
            with pytest.raises(TypeError, match=r"holds addresses of .*nothing was sent"):
                send(ADDRESSES[name])
        assert not len(queue)


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_every_format_are_a_payload(tmp_path: Path, name: str) -> None:
    """Names of fields are no formats, and NumPy has none for its times."""
    payload = BYTES[name]
    told = payload.tobytes() if hasattr(payload, "tobytes") else bytes(payload)
    with Queue(tmp_path, page_bytes=4096) as queue, queue.producer() as producer:
        for send in ways(producer):
            send(payload)
            assert queue.last(1).payloads == [told]
        write_large(producer, payload)
        assert queue.last(1).payloads == [bytes(10000) + told]


def test_record_of_objects_is_refused(tmp_path: Path) -> None:
    """Its size alone may fit."""
    with Queue(tmp_path, page_bytes=4096, dtype=[("number", "i8")]) as queue:
        for payload in (np.array([object()]), np.zeros(1, [("number", "O")])):
            with pytest.raises((TypeError, DtypeMismatch)):
                queue.producer().send(payload)
            with pytest.raises((TypeError, DtypeMismatch)):
                queue.producer().send_many([payload])
        assert not len(queue)


def test_objects_that_are_bytes_are_payloads(tmp_path: Path) -> None:
    """An array of Python's bytes objects is an iterable of them."""
    with Queue(tmp_path, page_bytes=4096) as queue:
        queue.producer().send_many(np.array([b"a", b"bc"], object))
        assert queue.last(2).payloads == [b"a", b"bc"]


class Dumping:
    """A machine whose snapshots have one chunk."""

    version = 1

    def __init__(self, chunk: Any) -> None:  # noqa: ANN401 - any buffer
        self.chunk = chunk

    def initial(self) -> int:
        """Return the state."""
        return 0

    def apply(self, state: int, _entry: bytes, _timestamp_ns: int) -> int:
        """Count the entry."""
        return state + 1

    def dump(self, _state: int) -> list[Any]:
        """Return the chunk."""
        return [self.chunk]

    def load(self, _chunks: object, _version: int) -> int:
        """Return a state."""
        return 1


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_are_not_accepted_by_a_journal(tmp_path: Path, name: str) -> None:
    """Neither as an entry nor in a snapshot."""
    chunk = ADDRESSES[name]
    with Journal(tmp_path, Dumping(chunk), codec="bytes", page_bytes=4096) as journal:
        with pytest.raises(NotEncodable, match="holds addresses of"):
            journal.update(lambda _: chunk)
        assert not len(journal.queue)
        journal.update(lambda _: b"entry")
        with pytest.raises(TypeError, match="holds addresses of"):
            journal.compact()
