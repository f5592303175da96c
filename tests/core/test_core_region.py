"""Region: one mapped file; bounds, alignment, writing rights, life of its views."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pagequeue import _core

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE = 8192
OUTSIDE = [(SIZE, 1), (SIZE + 1, 0), (0, SIZE + 1), (SIZE - 1, 2), (2**64 - 1, 1), (1, 2**64 - 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two OS pages."""
    made = tmp_path / "file"
    made.write_bytes(bytes(range(256)) * (SIZE // 256))
    return made


def mapped(path: Path, *, writable: bool, size: int = SIZE) -> _core.Region:
    """Map a file; its descriptor is closed at once."""
    fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        return _core.Region(fd, size, writable)
    finally:
        os.close(fd)


def test_region_reads_and_writes_the_file(path: Path) -> None:
    """The map is shared with the file and outlives the descriptor."""
    region = mapped(path, writable=True)
    assert len(region) == SIZE
    assert region.writable
    assert region.read(250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
    region.write(SIZE - 3, b"end")
    region.store(8, 2**64 - 2)
    region.store_half(20, 2**32 - 3)
    data = path.read_bytes()
    assert data[-3:] == b"end"
    assert data[8:16] == (2**64 - 2).to_bytes(8, "little")
    assert data[20:24] == (2**32 - 3).to_bytes(4, "little")
    assert (region.load(8), region.load_half(20)) == (2**64 - 2, 2**32 - 3)
    region.sync(0, SIZE)
    region.sync(100, 7)
    region.populate(0, SIZE)


@pytest.mark.parametrize(("at", "size"), OUTSIDE)
@pytest.mark.parametrize("name", ["read", "populate", "sync"])
def test_ranges_outside_are_refused(path: Path, name: str, at: int, size: int) -> None:
    """I9: no operation of the core touches memory outside of the map."""
    region = mapped(path, writable=True)
    with pytest.raises(IndexError, match="not in a region of 8192"):
        getattr(region, name)(at, size)


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.write(SIZE, b"x"),
        lambda r: r.write(SIZE - 1, b"xy"),
        lambda r: r.write(2**64 - 1, b"xy"),
        lambda r: r.load(SIZE),
        lambda r: r.load(SIZE - 4),
        lambda r: r.load(4),
        lambda r: r.load(2**64 - 8),
        lambda r: r.store(SIZE, 1),
        lambda r: r.store(12, 1),
        lambda r: r.load_half(SIZE),
        lambda r: r.load_half(2),
        lambda r: r.store_half(SIZE - 2, 1),
        lambda r: r.zero(SIZE + 1),
    ],
)
def test_fields_outside_or_unaligned_are_refused(
    path: Path, call: Callable[[_core.Region], object]
) -> None:
    """I9: shared fields are whole and aligned, so that no other process sees half of one."""
    region = mapped(path, writable=True)
    before = path.read_bytes()
    with pytest.raises(IndexError):
        call(region)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.write(0, b"x"),
        lambda r: r.store(0, 1),
        lambda r: r.store_half(0, 1),
        lambda r: r.zero(0),
        lambda r: r.sync(0, SIZE),
    ],
)
def test_read_only_region_is_never_written(
    path: Path, call: Callable[[_core.Region], object]
) -> None:
    """I9: an error instead of a fault."""
    region = mapped(path, writable=False)
    assert not region.writable
    with pytest.raises(ValueError, match="read-only"):
        call(region)
    region.populate(0, SIZE)


def test_zero_changes_only_bytes_that_are_not_zero(path: Path) -> None:
    """I5: zero bytes are not written, and the result is the number of bytes changed."""
    region = mapped(path, writable=True)
    assert region.zero(4096 + 100) == 4096 - 100
    assert region.zero(4096 + 100) == 0
    assert region.zero(SIZE) == 0
    assert path.read_bytes()[4096 : 4096 + 100] == bytes(range(100))
    assert region.zero(0) == SIZE
    assert path.read_bytes() == bytes(SIZE)


def test_view_is_read_only_and_keeps_the_map(path: Path) -> None:
    """A view pins its page: the map stays while the view exists."""
    region = mapped(path, writable=True)
    view = memoryview(region)
    column = np.frombuffer(region, "<u1")
    assert view.readonly
    assert not column.flags.writeable
    with pytest.raises(TypeError):
        view[0] = 1
    del region
    gc.collect()
    assert bytes(view[:4]) == bytes([0, 1, 2, 3])
    assert int(column[255]) == 255


@pytest.mark.parametrize("size", [0, 2**30 + 1, 2**63])
def test_invalid_sizes_are_refused(path: Path, size: int) -> None:
    """A page is at most 1 GiB."""
    with pytest.raises(ValueError, match="a region has 1 to"):
        mapped(path, writable=False, size=size)


def test_descriptor_that_mmap_refuses_is_the_systems_error(tmp_path: Path) -> None:
    """The layers above make it a typed error."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.Region(1 << 20, 4096, False)
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match=r"\["):
        _core.Region(fd, 4096, False)
    os.close(fd)


def test_region_without_a_file_is_private_memory() -> None:
    """Salvage and readers without room for a file use it."""
    one, other = _core.Region(-1, 4096, True), _core.Region(-1, 4096, True)
    one.write(8, b"one")
    assert one.read(8, 3) == b"one"
    assert other.read(0, 4096) == bytes(4096)


def test_region_too_small_for_its_use_is_refused(path: Path) -> None:
    """I9: every function of the core checks the size of the maps it is given."""
    small = mapped(path, writable=True, size=256)
    meta = mapped(path, writable=True)
    read_only = mapped(path, writable=False)
    for region in (small, meta, read_only):
        region.queue_id = bytes(16)
    for call in (
        lambda: _core.tail(small),
        lambda: _core.set_tail(small, (1, 64, 0, 0, 0)),
        lambda: _core.set_tail(read_only, (1, 64, 0, 0, 0)),
        lambda: _core.reset_lock(read_only),
        lambda: _core.wake(read_only),
        lambda: _core.Writer(read_only, -1, False, 1.0, None, 0),
        lambda: _core.Reader(small, False, False),
        lambda: _core.Reader(meta, False, False)._enter(small, 1, 64, 0),
        lambda: _core.Reader(meta, False, False)._enter(meta, 1, SIZE - 8, 0),
        lambda: _core.Reader(meta, False, False)._enter(meta, 1, 65, 0),
        lambda: _core.Writer(meta, -1, False, 1.0, None, 0)._attach(small, meta, 1, 0, 0, 0, 0),
        lambda: _core.Writer(meta, -1, False, 1.0, None, 0)._attach(read_only, meta, 1, 0, 0, 0, 0),
        lambda: _core.Writer(meta, -1, False, 1.0, None, 0)._attach(meta, read_only, 1, 0, 0, 0, 0),
    ):
        with pytest.raises(ValueError, match=r"bytes or more|position"):
            call()


def test_page_of_no_queue_is_refused(path: Path) -> None:
    """I2: without the queue's id no frame's checksum can be computed or compared."""
    page, meta = mapped(path, writable=True), mapped(path, writable=True)
    for call in (
        lambda: _core.Reader(meta, False, False)._enter(page, 1, 64, 0),
        lambda: _core.Writer(meta, -1, False, 1.0, None, 0)._attach(page, meta, 1, 0, 0, 0, 0),
        lambda: _core.scan(page, None, 0, 64, 0, 1, 0, 0),
    ):
        with pytest.raises(ValueError, match="of no queue: set its queue_id"):
            call()


def test_tail_fields_are_read_back_as_set(path: Path) -> None:
    """I3: even and odd pages have separate fields."""
    path.write_bytes(bytes(SIZE))
    meta = mapped(path, writable=True)
    for tail in ((1, 64, 0, 0, 0), (2, 4096, 77, 2**62, 2**63 - 1), (3, 72, 1, 5, -1)):
        _core.set_tail(meta, tail)
        assert _core.tail(meta) == tail


def test_prefaulting_happens_once_and_changes_no_byte(tmp_path: Path) -> None:
    """I9: a range outside the map is refused; pages already faulted are skipped."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    with path.open("rb") as file:
        region = _core.Region(file.fileno(), 16384, False)
    for at, length in [(0, 4096), (0, 4096), (100, 9000), (16384, 0), (8192, 8192)]:
        region.ahead(at, length)
    with pytest.raises(IndexError):
        region.ahead(8192, 8193)
    assert region.read(0, 16384) == path.read_bytes()
