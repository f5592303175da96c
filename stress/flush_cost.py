"""What a flush writes to the disk, from the second page on, by the kernel's own count.

The kernel counts a folio of the page cache whole when a byte of it changes, and a flush writes it
whole. So a page whose memory was made in large folios makes small flushes write a multiple of what
was sent: in each page. The kernel's own writing in between, on a busy machine, adds to some pages;
so the least counts. `FAST_BYTES_PER_S` is set so that the producer counts as fast on any machine:
only fast ones have the next page filled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pagequeue import Queue
from pagequeue.queue.queue import internals
from pagequeue.send import queue_end as sending

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS = Path("/proc/self/io")
PAGE_BYTES = 1 << 20
PAYLOAD = bytes(100)
BLOCK_COUNT = 100
"""Messages of a flush, 12 KB of frames."""
LIMIT_BYTES = 40 << 10
PROBE_BYTES = 1 << 20


def written_bytes() -> int:
    """Return what this process has caused to be written to disks so far; 0: it is not known."""
    try:
        lines = COUNTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def is_counted(directory: Path) -> bool:
    """Whether the kernel counts what is written here: not in memory, and not everywhere else."""
    before, path = written_bytes(), directory / "probe"
    path.write_bytes(bytes(PROBE_BYTES))
    path.unlink()
    return before > 0 and written_bytes() - before >= PROBE_BYTES


def bytes_per_flush(directory: Path, pages: int = 3) -> Iterator[float]:
    """Send and flush block by block; yield the mean for each page from the second on."""
    fast = sending.FAST_BYTES_PER_S
    setattr(sending, "FAST_BYTES_PER_S", -1)  # noqa: B010  mypy forbids it in plain words
    try:
        with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
            number, before, flushes = 1, 0, 0
            while number <= pages:
                producer.send_many([PAYLOAD] * BLOCK_COUNT)
                producer.flush()
                flushes += 1
                active = internals(queue).store.tail.page_number
                if active != number:
                    now = written_bytes()
                    if number > 1:
                        yield (now - before) / flushes
                    number, before, flushes = active, now, 0
    finally:
        setattr(sending, "FAST_BYTES_PER_S", fast)  # noqa: B010


def judge_flushes(directory: Path) -> tuple[str, list[str]]:
    """Return what flushes write here, in a sentence, and what is wrong with that."""
    if not is_counted(directory):
        return "not counted here", []
    found = list(bytes_per_flush(directory / f"flushes-{os.getpid()}"))
    text = " and ".join(f"{one / 1024:.0f}" for one in found) + " KiB"
    if min(found) <= LIMIT_BYTES:
        return text, []
    return text, [f"a flush of 12 KiB writes {text}, more than {LIMIT_BYTES >> 10} KiB"]
