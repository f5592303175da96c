"""Runs every part of the compiled core through Python, for a build under sanitizers.

Run by `stress/tests/test_sanitized.py` with `PAGEQUEUE_STRESS_CORE` naming the build.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from stress import variant

variant.bootstrap()

from pagequeue import PageQueueError, Queue, _core  # noqa: E402  the core is chosen above
from stress.smoke_groups import exercise_groups  # noqa: E402  the same

if TYPE_CHECKING:
    from pagequeue import Producer

PAGE_BYTES = 16 << 10
MESSAGES = 1500
THREADS = 3
HOSTILE_ROUNDS = 60


def exercise(path: Path) -> None:
    """Send and receive in every way, over many pages."""
    rng = random.Random(1)
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        consumer = queue.consumer()
        sent = [rng.randbytes(rng.randrange(900)) for _ in range(MESSAGES)]
        for i in range(0, MESSAGES, 5):
            producer.send(sent[i])
            producer.send(bytearray(sent[i + 1]))
            producer.send_many([sent[i + 2], memoryview(sent[i + 3]), sent[i + 4]])
        assert [message.payload for message in queue.replay()] == sent
        assert [p for batch in queue.batches(limit_count=7) for p in batch.payloads] == sent
        got = [consumer.receive(timeout=1).payload for _ in range(100)]
        while len(got) < MESSAGES:
            got += consumer.receive_many(50, timeout=1).payloads
        assert got == sent
        assert consumer.poll() is None
        with contextlib.suppress(TimeoutError):
            consumer.receive_many(5, timeout=0.01)
        misuse(producer)
        middle = queue.last(MESSAGES // 2)[0]
        found = next(queue.replay(since=middle.timestamp))
        assert found.timestamp == middle.timestamp
        assert queue.replay(sequence=middle.sequence).sequence == middle.sequence
        assert len(list(queue.replay(since=timedelta(hours=1)))) == MESSAGES
        large = [rng.randbytes(size) for size in (PAGE_BYTES, 5, 40 * PAGE_BYTES)]
        assert producer.send_many(large) == range(MESSAGES, MESSAGES + 3)
        assert [consumer.receive(timeout=1).payload for _ in large] == large
        with producer.open() as file:
            file.write(large[2])
            file.write(large[2])
        with consumer.receive(timeout=1).open() as file:
            file.seek(len(large[2]))
            assert file.read() == large[2]
        queue.rotate()
        producer.flush()
        assert queue.verify().ok
        str(queue.info())
    with Queue(path, read_only=True) as queue:
        assert len(list(queue.replay())) == MESSAGES + 4


def misuse(producer: Producer) -> None:
    """Every refused call is refused without harm."""
    for payload in ("text", 3, None, memoryview(b"abcd")[::2]):
        with contextlib.suppress(TypeError, ValueError):
            producer.send(payload)
    for payloads in ([b"a", 1], 5):
        with contextlib.suppress(TypeError, ValueError):
            producer.send_many(payloads)
    with contextlib.suppress(ValueError):
        producer.send(b"", timestamp=1)


def share(path: Path) -> None:
    """Threads share a producer; a consumer that is closed during use ends cleanly."""
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        before = queue.tail_sequence
        consumer = queue.consumer(latest=True)

        def send() -> None:
            for i in range(200):
                producer.send(b"%d" % i * (i % 90))
                if i % 50 == 0:
                    producer.send(bytes(11000))

        threads = [threading.Thread(target=send) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        wanted = THREADS * 204
        for _ in range(wanted):
            consumer.receive(timeout=20)
        for thread in threads:
            thread.join()
        assert queue.tail_sequence == before + wanted

        waits = threading.Event()

        def wait() -> None:
            with contextlib.suppress(PageQueueError):
                waits.set()
                consumer.receive(timeout=20)

        waiter = threading.Thread(target=wait)
        waiter.start()
        waits.wait()
        consumer.close()
        waiter.join()


def damage(path: Path, rng: random.Random) -> None:
    """Overwrite fields of a page and of its index, as damage or an attacker would."""
    for name, step, count in (("page", 8, 6), ("idx", 12, 3)):
        files = sorted(path.glob(f"*.{name}"))
        file = rng.choice(files)
        with file.open("r+b") as opened:
            for _ in range(rng.randrange(1, count)):
                opened.seek(rng.randrange(64 // step, file.stat().st_size // step) * step)
                word = rng.choice([2**32 - 1, 2**31, 2**30, 17, 1, PAGE_BYTES, rng.getrandbits(32)])
                opened.write(word.to_bytes(4, "little"))


def endure(base: Path) -> None:
    """Read queues of hostile bytes: typed errors or messages are the only results."""
    rng = random.Random(2)
    for i in range(HOSTILE_ROUNDS):
        path = base / f"hostile-{i}"
        with Queue(path, page_bytes=4096) as queue, queue.producer() as producer:
            for _ in range(60):
                producer.send(rng.randbytes(rng.randrange(200)))
            consumer = queue.consumer()
            damage(path, rng)
            for read in (
                lambda q=queue: list(q.replay()),
                lambda q=queue: list(q.batches()),
                lambda q=queue: list(q.replay(since=timedelta(seconds=rng.random() / 100))),
                lambda q=queue: list(q.replay(sequence=rng.randrange(60))),
                lambda q=queue: q.last(10),
                lambda c=consumer: [c.receive_many(9, timeout=0) for _ in range(9)],
                lambda q=queue: q.verify(),
                lambda p=producer: [p.send(b"more" * 30) for _ in range(60)],
            ):
                with contextlib.suppress(PageQueueError):
                    read()
        for read_only in (True, False):
            with contextlib.suppress(PageQueueError), Queue(path, read_only=read_only) as queue:
                list(queue.replay())


def main() -> None:
    """Run all of it."""
    wanted = os.environ.get(variant.CORE_VARIABLE)
    assert wanted is None or os.path.samefile(wanted, _core.__file__)
    logging.getLogger("pagequeue").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="pagequeue-smoke-") as directory:
        exercise(Path(directory) / "queue")
        share(Path(directory) / "queue")
        endure(Path(directory))
        exercise_groups(Path(directory) / "groups")
    gc.collect()
    print("smoke: all passed")


if __name__ == "__main__":
    main()
