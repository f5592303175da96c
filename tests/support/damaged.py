"""Directories of queues as power cuts and damage leave them, chosen by seed."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from support import Clock

from pagequeue import Queue, _core
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Producer

PAGE_BYTES = 4096
MARK_AT = field_of(fmt.WRITE_META, "durable_sequence")
WORDS_AT = field_of(fmt.WRITE_META, "lock_boot")
NO_MARK = (0, 0)


class Made(NamedTuple):
    """The files of a queue, and the places that a flush could have raised the mark to."""

    files: dict[str, bytes]
    marks: list[tuple[int, int]]


def _noise(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(count)


def _messages(producer: Producer) -> None:
    for number in range(5):
        producer.send(_noise(number, 600))


def _batch(producer: Producer) -> None:
    producer.send_many([_noise(number, 150) for number in range(6)])


def _commit(producer: Producer) -> None:
    producer.send_many([_noise(number, 900) for number in range(9)])


def _large(producer: Producer) -> None:
    producer.send(_noise(1, 9_500))


def _mixed(producer: Producer) -> None:
    producer.send_many([_noise(1, 900), _noise(2, 7_000), *(_noise(n, 900) for n in range(5))])


STEPS: dict[str, list[Callable[[Producer], object]]] = {
    "messages": [_messages, _messages, _batch, _messages],
    "commit": [_messages, _commit, _messages],
    "large": [_messages, _large, _messages],
    "large at the end": [_batch, _large],
    "mixed": [_batch, _mixed, _batch],
    "one after the other": [_commit, _large, _commit],
}


def made(directory: Path, name: str) -> Made:
    """Make one of the queues, and note each place between its sends."""
    marks = []
    with Queue(directory, page_bytes=PAGE_BYTES, clock=Clock(step=1)) as queue:
        with queue.producer() as producer:
            for step in STEPS[name]:
                step(producer)
                info = queue.info()
                marks.append((info.tail_sequence, info.tail_page))
        queue.rotate()
        info = queue.info()
        marks.append((info.tail_sequence, info.tail_page))
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    return Made(files, marks)


# --- damage ---------------------------------------------------------------------------------------


def _zeros(data: bytes, rng: random.Random) -> bytes:
    unit = rng.choice((64, 512, 4096))
    begin = rng.randrange(0, len(data), unit)
    return data[:begin] + bytes(min(unit, len(data) - begin)) + data[begin + unit :]


def _tail_zeros(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(0, len(data), 64)
    return data[:begin] + bytes(len(data) - begin)


def _flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _no_header(data: bytes, _: random.Random) -> bytes:
    return bytes(fmt.PAGE_HEADER_BYTES) + data[fmt.PAGE_HEADER_BYTES :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice((0, 10, 64, 2048, len(data) - 1))]


def _header(data: bytes, rng: random.Random) -> bytes:
    """Change the header, and correct its checksum."""
    header = np.frombuffer(data, fmt.PAGE_HEADER, 1).copy()
    change = rng.choice(("first", "unset", "staged", "number", "flags", "id", "floor"))
    if change == "first":
        header["first_sequence"] = max(0, int(header["first_sequence"][0]) + rng.choice((-1, 1)))
    elif change == "unset":
        header["first_sequence"] = fmt.UNSET_SEQUENCE
    elif change == "staged":
        header["queue_id"] = fmt.staged_id(bytes(header["queue_id"][0]))
    elif change == "id":
        header["queue_id"] = b"another queue..."
    elif change == "number":
        header["page_number"] += 1
    elif change == "flags":
        header["flags"] ^= 1
    else:
        header["floor_timestamp"] += 1 << 40
    header["checksum"] = 0
    header["checksum"] = _core.crc32c(header.tobytes())
    return header.tobytes() + data[fmt.PAGE_HEADER_BYTES :]


def _noise_at(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(0, len(data), 8)
    return (data[:at] + rng.randbytes(24) + data[at + 24 :])[: len(data)]


CHANGES = (_zeros, _zeros, _tail_zeros, _flip, _no_header, _cut, _header, _header, _noise_at)


def damage(queue: Made, directory: Path, seed: int) -> list[str]:
    """Write the files, damaged, into a new directory; return what was done."""
    rng = random.Random(seed)
    files = dict(queue.files)
    mark = rng.choice([*queue.marks, NO_MARK])
    done = [f"mark {mark}"]
    write = bytearray(files[fmt.write_meta_name("queue")])
    write[MARK_AT : MARK_AT + 16] = np.array(mark, "<u8").tobytes()
    write[WORDS_AT : WORDS_AT + 32] = bytes(32)  # of another boot
    files[fmt.write_meta_name("queue")] = bytes(write)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        pages = sorted(name for name in files if name.endswith(".page"))
        name = rng.choice(pages)
        how = rng.random()
        if how < 0.1 and len(pages) > 1:
            del files[name]
            done.append(f"removed {name}")
        elif how < 0.15:
            files[name] = files[other := rng.choice(pages)]
            done.append(f"{name} as {other}")
        elif files[name]:
            change = rng.choice(CHANGES)
            if change is _header and len(files[name]) < fmt.PAGE_HEADER_BYTES:
                continue
            files[name] = change(files[name], rng)
            done.append(f"{change.__name__} {name}")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return done
