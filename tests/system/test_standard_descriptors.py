"""No file of a queue gets the number of a standard stream, which a later print would write to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import warm

from pagequeue import Queue, verify_queue

if TYPE_CHECKING:
    from pathlib import Path

USE = """
import os, sys
from pagequeue import Queue, Retention
directory = sys.argv[1]
for number in (0, 1, 2):
    os.close(number)
retention = Retention(max_bytes=1 << 16)
with Queue(directory, page_bytes=4096, sync="always", retention=retention) as queue:
    producer = queue.producer()
    consumer = queue.consumer("c")
    group = queue.group("g")
    for number in range(100):
        producer.send(b"x" * 500)
        consumer.receive(0)
        group.claim(0).ack()
        consumer.ack()
    group.flush()
    queue.trim()
    for number in ("0", "1", "2"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith(directory):
            os._exit(3)
    for number in (1, 2):
        try:
            os.write(number, b"printed into a page" * 100)
        except OSError:
            pass
"""


def test_no_file_of_a_queue_is_a_standard_stream(tmp_path: Path) -> None:
    """What is printed to a closed stdout is written nowhere."""
    done = warm.run([sys.executable, "-c", USE, str(tmp_path / "q")], check=False)
    assert done.returncode == 0
    assert verify_queue(tmp_path / "q").ok
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert {message.payload for message in queue.replay()} == {b"x" * 500}
