"""Random damage of a queue's directory: bits, blocks, lengths, files and fields.

Numbers in headers are replaced by ones that programs stumble over, and the checksum of the record
is usually corrected afterwards, so that the damage passes that check.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from stress.corpus.shapes import PAGE_BYTES

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

BLOCKS = (8, 16, 64, 512)
ODD = (
    *(0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 4080, 4095, 4096, 4097, 1 << 20),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
GROWTH_MAX = 1 << 20


def mutate(directory: Path, rng: random.Random) -> list[str]:
    """Do a few damages; return them, one sentence each."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        files = regular(directory)
        if not files:
            break
        path = rng.choice(files)
        change = rng.choice(CHANGES)
        done.append(f"{change.__name__} {path.name}: {change(path, rng)}")
    return done


def regular(directory: Path) -> list[Path]:
    """Return the regular files of a directory, without links."""
    files = (path for path in directory.iterdir() if path.is_file() and not path.is_symlink())
    return sorted(files)


def flip_bits(path: Path, rng: random.Random) -> object:
    """Change some bits, near each other or anywhere."""
    data = bytearray(path.read_bytes())
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 2, 8)))] if data else []
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return places


def fill_block(path: Path, rng: random.Random) -> object:
    """Make a block zeros, ones or noise."""
    data = bytearray(path.read_bytes())
    size = rng.choice(BLOCKS)
    start = rng.randrange(len(data) // 8 + 1) * 8
    data[start : start + size] = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
    path.write_bytes(data)
    return start, size


def resize(path: Path, rng: random.Random) -> object:
    """Cut the file, or make it longer."""
    size = path.stat().st_size
    new = rng.choice((0, 1, size - 1, size + 1, size * 2, rng.randrange(size + 1), GROWTH_MAX))
    os.truncate(path, max(0, new))
    return new


def swap_files(path: Path, rng: random.Random) -> object:
    """Let the file and another one change their bytes."""
    other = rng.choice(regular(path.parent))
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)
    return other.name


def copy_file(path: Path, rng: random.Random) -> object:
    """Copy the file over another one, or to a new number."""
    others = regular(path.parent)
    number = rng.choice((0, 1, 2, 5, 6, fmt.PAGE_NUMBER_MAX))
    target = rng.choice((rng.choice(others), path.parent / fmt.page_name("queue", number)))
    if target != path and (target in others or not os.path.lexists(target)):
        shutil.copyfile(path, target)
    return target.name


def remove(path: Path, rng: random.Random) -> object:
    """Remove the file; sometimes replace it by another kind of object."""
    path.unlink()
    kind = rng.choice(("removal", "removal", "pipe", "directory", "link"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.parent.parent / "outside" / "file")
    return kind


def splice(path: Path, rng: random.Random) -> object:
    """Move a block inside of the file, or take one of another file."""
    source = rng.choice(regular(path.parent))
    taken, data = source.read_bytes(), bytearray(path.read_bytes())
    size = rng.choice(BLOCKS)
    start, to = (rng.randrange(len(part) // 8 + 1) * 8 for part in (taken, data))
    block = taken[start : start + size]
    data[to : to + len(block)] = block
    path.write_bytes(data)
    return source.name, start, to, size


def set_field(path: Path, rng: random.Random) -> object:
    """Put an odd number into a field of the first record, and correct the checksum."""
    dtype = dtype_of(path.name)
    data = path.read_bytes()
    if dtype is None or len(data) < dtype.itemsize:
        return "no record"
    assert dtype.names is not None
    record = np.frombuffer(data, dtype, 1).copy()
    fields = [name for name in dtype.names if dtype[name].kind != "V" and name != "checksum"]
    name = rng.choice(fields)
    value = rng.choice((*ODD, rng.getrandbits(64), int(record[name][0]) + rng.choice((-1, 1))))
    width = dtype[name].itemsize
    raw = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    record[name] = np.frombuffer(raw, dtype[name])[0]
    if rng.random() < 0.8:
        sign(record, dtype, data[dtype.itemsize :])
    path.write_bytes(record.tobytes() + data[dtype.itemsize :])
    return name, value


def set_frame(path: Path, rng: random.Random) -> object:
    """Put an odd number into a frame's header, with the checksum for that if it can be."""
    data = bytearray(path.read_bytes())
    if not path.name.endswith(".page") or len(data) != PAGE_BYTES:
        return "no page"
    header = np.frombuffer(data, fmt.PAGE_HEADER, 1)[0]
    first, queue_id = int(header["first_sequence"]), header["queue_id"].tobytes()
    position, ordinal, stop = fmt.PAGE_HEADER_BYTES, 0, rng.randrange(40)
    while True:
        frame = np.frombuffer(data, fmt.FRAME, 1, position)[0]
        length = int(frame["length"]) & fmt.LENGTH_MASK
        end = position + -(-length // 8) * 8
        if ordinal == stop or length < fmt.FRAME_HEADER_BYTES or end > PAGE_BYTES - 16:
            break
        position, ordinal = end, ordinal + 1
    word, timestamp = int(frame["length"]), int(frame["timestamp"])
    if rng.random() < 0.6:
        word = rng.choice((*ODD, word ^ fmt.MORE_OF_BATCH, word ^ fmt.END_OF_PAGE, word + 8))
        word &= 0xFFFFFFFF
    else:
        timestamp = rng.choice((*ODD, timestamp + rng.choice((-(10**9), 10**9))))
        timestamp = (timestamp + 2**63) % 2**64 - 2**63
    length = word & fmt.LENGTH_MASK
    if word & fmt.END_OF_PAGE or not fmt.FRAME_HEADER_BYTES <= length <= PAGE_BYTES - position:
        length = fmt.FRAME_HEADER_BYTES
    payload = bytes(data[position + fmt.FRAME_HEADER_BYTES : position + length])
    checksum = _core.frame_checksum(queue_id, payload, timestamp, (first + ordinal) % 2**64, word)
    head = word.to_bytes(4, "little") + checksum.to_bytes(4, "little")
    data[position : position + 16] = head + timestamp.to_bytes(8, "little", signed=True)
    path.write_bytes(data)
    return position, word, timestamp


def dtype_of(name: str) -> np.dtype[np.void] | None:
    """Return the record at the beginning of a file."""
    records = {"allMeta": fmt.ALL_META, "readMeta": fmt.READ_META, "writeMeta": fmt.WRITE_META}
    records["page"] = fmt.PAGE_HEADER
    return next((dtype for end, dtype in records.items() if name.endswith(end)), None)


def sign(record: np.ndarray, dtype: np.dtype[np.void], rest: bytes) -> None:
    """Give a record the checksum that it needs."""
    if dtype in {fmt.PAGE_HEADER, fmt.ALL_META}:
        record["checksum"] = 0
        options = b""
        if dtype is fmt.ALL_META:
            options = rest[: int(record["options_bytes"][0])]
        record["checksum"] = _core.crc32c(record.tobytes() + options)
    else:
        version = int(record["version"][0]).to_bytes(4, "little")
        identity = record["magic"][0].tobytes() + version + record["queue_id"][0].tobytes()
        record["checksum"] = _core.crc32c(identity)


CHANGES: tuple[Callable[[Path, random.Random], object], ...] = (
    *(flip_bits, fill_block, resize, swap_files, copy_file, remove, splice),
    *(set_field, set_field, set_field, set_field, set_frame, set_frame),
)
