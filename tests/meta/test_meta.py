"""Meta files: identity checked at opening, words that only the core touches."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from typing import TYPE_CHECKING

import pytest
from plugin import Disk, slow_crc32c
from support import flip, within

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.all_meta import AllMeta, read_all_meta
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import Tail, WriteMeta
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue import Queue

META = AllMeta(queue_id=bytes(range(16)), created=5, page_bytes=8192, options={"a": [1, "b"]})
FILES = ["allMeta", "writeMeta", "readMeta"]
RECORD: dict[str, object] = {"names": ["a"], "formats": ["<i8"], "offsets": [0], "itemsize": 8}


def sealed(data: bytes) -> bytes:
    """Return an allMeta with its checksum made right."""
    return data[:12] + struct.pack("<I", slow_crc32c(data[:12] + bytes(4) + data[16:])) + data[16:]


@pytest.fixture
def folder(disk: Disk) -> Iterator[Directory]:
    """The directory of a queue with one message."""
    disk.send(b"x")
    made = Directory(str(disk.directory), create=False)
    yield made
    made.close()


def test_all_meta_is_read_back_as_written() -> None:
    """What was fixed at creation stays fixed."""
    assert AllMeta.decode(META.encode(), "p") == META
    assert META.index_capacity == 256
    assert META.index_bytes == 3072


def test_every_changed_byte_of_all_meta_is_noticed() -> None:
    """A damaged meta file is never used."""
    data = META.encode()
    for at in range(len(data)):
        for change in (1, 0x80):
            damaged = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            with pytest.raises((errors.CorruptMeta, errors.NewerFormat)) as caught:
                AllMeta.decode(damaged, "p")
            assert caught.value.path == "p"


def test_every_shortened_all_meta_is_noticed() -> None:
    """A file that was cut is damage, whatever is left of it."""
    data = META.encode()
    for size in range(len(data)):
        with pytest.raises(errors.CorruptMeta):
            AllMeta.decode(data[:size], "p")


@pytest.mark.parametrize("page_bytes", [0, 4095, 4097, 2**30 + 4096, 2**63])
def test_invalid_page_size_is_damage(page_bytes: int) -> None:
    """I9: no size from a file is used before it was checked."""
    data = bytearray(META.encode())
    struct.pack_into("<QQ", data, 40, page_bytes, page_bytes // 32)
    with pytest.raises(errors.CorruptMeta, match="page size"):
        AllMeta.decode(sealed(bytes(data)), "p")


@pytest.mark.parametrize("capacity", [0, 1, 257, 2**63])
def test_invalid_index_capacity_is_damage(capacity: int) -> None:
    """I9: the index has as many records as its page allows."""
    data = bytearray(META.encode())
    struct.pack_into("<Q", data, 48, capacity)
    with pytest.raises(errors.CorruptMeta):
        AllMeta.decode(sealed(bytes(data)), "p")


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[1]", b"7", b"[" * 60_000])
def test_options_that_are_not_a_json_object_are_damage(text: bytes) -> None:
    """A hostile file gives a typed error, for any contents of its options."""
    data = bytearray(AllMeta(queue_id=bytes(16), created=0, page_bytes=4096).encode())
    struct.pack_into("<I", data, 56, len(text))
    with pytest.raises(errors.CorruptMeta):
        AllMeta.decode(sealed(bytes(data) + text), "p")


@pytest.mark.parametrize(
    "options",
    [
        {"ring": 0},
        {"ring": -8192},
        {"ring": 2 * 4096 - 1},
        {"ring": True},
        {"ring": "16384"},
        {"ring": None},
        {"ring": 16384.0},
        {"journal": False},
        {"journal": 1},
        {"journal": True, "dtype": RECORD},
        {"dtype": RECORD, "codec": "json"},
        {"dtype": RECORD | {"formats": [["<i8", [0]]]}},
        {"dtype": RECORD | {"formats": [["<i8", []]]}},
        {"dtype": RECORD | {"itemsize": 4}},
    ],
    ids=str,
)
def test_options_that_no_queue_can_have_are_damage(disk: Disk, options: dict[str, object]) -> None:
    """With a valid checksum, so a program wrote them: retention and readers never see them."""
    disk.send(b"x")
    path = disk.path("allMeta")
    meta = AllMeta.decode(path.read_bytes(), "p")
    path.write_bytes(AllMeta(meta.queue_id, meta.created, meta.page_bytes, options).encode())
    before = disk.contents()
    for how in ({}, {"read_only": True}):
        with pytest.raises(errors.CorruptMeta, match="options are invalid") as caught:
            disk.open(**how)
        assert (caught.value.path, caught.value.reason) == (str(path), "options")
    assert disk.contents() == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("read_only", [False, True])
def test_file_of_a_newer_version_is_refused_and_unchanged(
    disk: Disk, name: str, read_only: bool
) -> None:
    """Only a version that knows the format touches a file."""
    disk.send(b"x")
    disk.poke(disk.path(name), 8, struct.pack("<I", fmt.FORMAT_VERSION + 1))
    before = disk.contents()
    with pytest.raises(errors.NewerFormat, match="upgrade pagequeue") as caught:
        disk.open(read_only=read_only)
    assert caught.value.version == fmt.FORMAT_VERSION + 1
    assert caught.value.path == str(disk.path(name))
    assert disk.contents() == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("at", "reason"), [(0, "wrong magic"), (12, "wrong checksum")])
def test_damaged_identity_is_refused_and_unchanged(
    disk: Disk, name: str, at: int, reason: str
) -> None:
    """A file that fails its check is never used or written."""
    disk.send(b"x")
    flip(disk.path(name), at)
    before = disk.contents()
    with pytest.raises(errors.CorruptMeta, match="repair the queue") as caught:
        disk.open()
    assert caught.value.reason == reason
    assert caught.value.path == str(disk.path(name))
    assert disk.contents() == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [0, 1, 63])
def test_shortened_file_is_refused_without_a_fault(disk: Disk, name: str, size: int) -> None:
    """I9: no file is mapped beyond its end."""
    disk.send(b"x")
    os.truncate(disk.path(name), size)
    for read_only in (True, False):
        with pytest.raises(errors.CorruptMeta) as caught:
            disk.open(read_only=read_only)
        assert caught.value.reason == "too short"


@pytest.mark.parametrize("name", ["writeMeta", "readMeta"])
def test_file_of_another_queue_is_refused(disk: Disk, tmp_path: Path, name: str) -> None:
    """Files of two queues are never mixed."""
    other = Disk(tmp_path / "other")
    other.send(b"y")
    disk.send(b"x")
    shutil.copy(other.path(name), disk.path(name))
    with pytest.raises(errors.CorruptMeta, match="belongs to another queue"):
        disk.open()


def test_missing_all_meta_never_starts_a_new_queue_over_pages(disk: Disk) -> None:
    """Pages without their allMeta are a damaged queue's data."""
    disk.send(b"x")
    disk.path("allMeta").unlink()
    before = disk.contents()
    for options in ({}, {"read_only": True}):
        with pytest.raises(errors.CorruptMeta, match="though there are pages"):
            disk.open(**options)
    assert disk.contents() == before


def test_other_page_size_is_an_error_that_names_the_stored_one(disk: Disk) -> None:
    """The page size is fixed at creation."""
    disk.send(b"x")
    disk.page_bytes = 8192
    for options in ({}, {"read_only": True}):
        with pytest.raises(errors.PageSizeMismatch) as caught:
            disk.open(**options)
        assert caught.value.page_bytes == 4096


def test_state_counts_as_recovered_only_in_this_boot_and_this_file(
    disk: Disk, folder: Directory
) -> None:
    """I5: after a power cut or in a copy the shared fields are not trusted."""
    identity = read_all_meta(folder, "queue").queue_id
    meta = WriteMeta(folder, "queue", identity, writable=True)
    assert meta.is_recovered
    assert meta.is_this_boot
    key = meta.region.read(64, 32)
    for at, this_boot in ((64, False), (80, False), (88, True)):
        meta.region.write(at, bytes([meta.region.read(at, 1)[0] ^ 1]))
        assert not meta.is_recovered
        assert meta.is_this_boot is this_boot
        meta.region.write(64, key)
    path = disk.path("writeMeta")
    copy = path.read_bytes()
    path.rename(path.with_name("aside"))  # so that its inode number stays taken
    path.write_bytes(copy)
    assert not WriteMeta(folder, "queue", identity, writable=False).is_recovered


def test_tail_is_read_back_as_set(folder: Directory) -> None:
    """I3: position and count of a page share one word."""
    meta = WriteMeta(folder, "queue", read_all_meta(folder, "queue").queue_id, writable=True)
    for tail in (Tail(1, 64, 0, 0, 0), Tail(8, 4000, 12, 99, 7)):
        meta.tail = tail
        assert meta.tail == tail
        assert meta.tail.sequence == tail.first_sequence + tail.count
    meta.set_durable(55, 3)
    assert (meta.durable_sequence, meta.durable_page) == (55, 3)
    meta.latch(5, 2)
    assert meta.failed_errno == 5
    meta.wake()
    meta.sync()


def test_read_meta_holds_the_head(folder: Directory) -> None:
    """I1: the head is a page and its first sequence."""
    identity = read_all_meta(folder, "queue").queue_id
    ReadMeta.make(folder, "queue", identity, head_page=4, head_sequence=77)
    meta = ReadMeta(folder, "queue", identity, writable=False)
    assert (meta.head_page, meta.head_sequence) == (4, 77)


def test_lock_of_another_library_is_refused_while_the_queue_is_open(disk: Disk) -> None:
    """A mutex whose layout is another one is never taken."""
    with disk.open() as queue:
        queue._store.write_meta.region.store_half(96, _core.LOCK_ABI ^ 0x100)
        with pytest.raises(errors.ForeignLock, match="use one C library"):
            disk.open()
        with disk.open(read_only=True) as reader:
            assert len(reader) == 0
    disk.send(b"x")  # the exclusive opener recreates the lock
    assert disk.payloads() == [b"x"]


@pytest.fixture
def _alarm() -> Iterator[None]:
    """A call that never ends fails instead of hanging."""
    with within(60):
        yield


@pytest.mark.quick_each(5)
@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("page_number", [0, 2, 2**40, 2**64 - 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda queue: list(queue.replay()),
        lambda queue: list(queue.replay(since=1)),
        lambda queue: list(queue.replay(sequence=0)),
        lambda queue: queue.last(1),
        lambda queue: queue.info(),
        lambda queue: queue.verify(),
    ],
    ids=["replay", "since", "sequence", "last", "info", "verify"],
)
def test_invalid_active_page_ends_in_bounded_time(
    disk: Disk, page_number: int, call: Callable[[Queue], object]
) -> None:
    """I9: a hostile field gives a result or a typed error, never an endless loop."""
    disk.send(b"x")
    disk.poke(disk.path("writeMeta"), 192, struct.pack("<Q", page_number))
    for read_only in (True, False):
        with contextlib.suppress(errors.PageQueueError), disk.open(read_only=read_only) as queue:
            call(queue)


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("tail", [0, 2**64 - 1, 65 << 32, 4096 << 32 | 1, 64 << 32 | 2**32 - 1])
def test_invalid_tail_word_is_a_typed_error(disk: Disk, tail: int) -> None:
    """I9: no position from a file leads a producer out of its page."""
    disk.send(b"x")
    disk.poke(disk.path("writeMeta"), 216, struct.pack("<Q", tail))
    frames = disk.page(1).read_bytes()[:88]
    for _ in range(2):
        with (
            contextlib.suppress(errors.PageQueueError),
            disk.open() as queue,
            queue.producer() as producer,
        ):
            producer.send(b"y")
    assert disk.page(1).read_bytes()[:88] == frames
    assert disk.page(1).stat().st_size == 4096
