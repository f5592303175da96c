"""Publishers that die at a step: run in their own process, which forks one for each step."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pagequeue import Queue, repair_queue, salvage_queue, verify_queue
from pagequeue import format as fmt
from pagequeue.bulk.chunk import chunk_of
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.send.queue_end import QueueEnd
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.bulk.chunk import Chunk

PAGE_BYTES = 4096
SMALL_COUNT = 20
LARGE_COUNT = 160
"""More than three pages of 4096 bytes hold."""
LIVE_PIECES = 8
"""Pieces of one live queue: it is read over and over, and more of them would show no more."""


class Rows:
    """Payloads to publish, and perhaps times; numbered, so that it shows whether all are there."""

    def __init__(self, label: str, count: int, first_time: int | None = None) -> None:
        self.payloads = [f"{label} {number:06d}".encode() for number in range(count)]
        self.count = count
        self.frame_bytes = sum(fmt.frame_bytes(len(payload)) for payload in self.payloads)
        self._first_time = first_time

    def chunks(self) -> Iterator[Chunk]:
        """Give them in parts."""
        for begin in range(0, self.count, 64):
            payloads = self.payloads[begin : begin + 64]
            times = None
            if self._first_time is not None:
                first = self._first_time + begin
                times = np.arange(first, first + len(payloads), dtype=np.int64)
            yield chunk_of(payloads, times)


class Steps:
    """Counts the calls that change files or shared fields; dies before or after the chosen one."""

    def __init__(self, deadly: int) -> None:
        self._deadly = deadly
        self._count = 0

    def _pass(self) -> None:
        self._count += 1
        if self._count == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str) -> None:  # noqa: ANN401 - a class or a module
        """Make each call of a function two steps."""
        real: Callable[..., object] = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> object:  # noqa: ANN401 - whatever it takes
            self._pass()
            result = real(*args, **options)
            self._pass()
            return result

        setattr(owner, name, counted)


def publish(directory: str, label: str, piece: int, count: int) -> range:
    """Publish rows once."""
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, BulkPublisher(queue._store) as ledger:
        return ledger.publish("steps", piece, Rows(label, count))


def die_at(directory: str, label: str, piece: int, count: int, step: int) -> bool:
    """Publish in a child that dies at a step; return whether there was such a step."""
    child = os.fork()
    if child == 0:
        steps = Steps(step)
        for owner, name in (
            (Directory, "make"),
            (Directory, "rename"),
            (Directory, "remove"),
            (Directory, "sync"),
            (os, "rename"),
            (QueueEnd, "_send_many"),
            (QueueEnd, "_freeze_page"),
            (QueueEnd, "_bulk_commit"),
        ):
            steps.watch(owner, name)
        publish(directory, label, piece, count)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def whole(payloads: list[bytes], label: str, count: int) -> bool:
    """Whether all rows are there, in order and once; False: none is. Anything else is an error."""
    found = [p for p in payloads if p.startswith(f"{label} ".encode())]
    assert found in ([], Rows(label, count).payloads), (label, len(found))
    at = [number for number, p in enumerate(payloads) if p.startswith(f"{label} ".encode())]
    assert at == list(range(at[0], at[0] + count)) if at else True
    return bool(at)


def read(directory: str) -> list[bytes]:
    """Return all payloads as a read-only reader sees them."""
    with Queue(directory, read_only=True) as queue:
        messages = list(queue.replay())
        assert [m.sequence for m in messages] == list(range(len(messages)))
        assert [m.timestamp for m in messages] == sorted(m.timestamp for m in messages)
        with queue.consumer() as consumer:  # goes by the frames, and not by the tail words
            polled = []
            while (message := consumer.poll()) is not None:
                polled.append(message.payload)
        payloads = [m.payload for m in messages]
        assert polled[: len(payloads)] == payloads
        return payloads if len(polled) == len(payloads) else polled


def salvaged(directory: str) -> list[bytes]:
    """Return what salvage copies from a closed queue."""
    with tempfile.TemporaryDirectory() as base:
        target = os.path.join(base, "target")
        report = salvage_queue(directory, target)
        assert report.ok, report
        return read(target)


def power_cut(directory: str) -> None:
    """Make the shared words those of another boot."""
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from stress.tampering import pretend_power_cut  # noqa: PLC0415 - found only now

    pretend_power_cut(directory)


def main(directory: str, kind: str, count: int) -> None:
    """Die at each step in turn, and check what others find; print how many steps there were."""
    piece = step = 0
    base = directory
    while True:
        step, piece = step + 1, piece + 1
        if kind != "live" or step % LIVE_PIECES == 1:
            directory = os.path.join(base, str(step))
            with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
                producer.send(b"first")
        label = f"piece{piece}"
        if kind == "live":
            with Queue(directory) as queue, queue.producer() as producer:
                dies = die_at(directory, label, piece, count, step)
                before = whole(read(directory), label, count)
                for number in range(120):  # rolls: the process that creates a page completes it
                    producer.send(b"live %06d %06d" % (step, number) + bytes(40))
                after = whole([m.payload for m in queue.replay()], label, count)
                assert queue.verify().problems == [], queue.verify().problems
        else:
            dies = die_at(directory, label, piece, count, step)
            if kind == "cut":
                power_cut(directory)
            before = whole(read(directory), label, count)
            assert whole(salvaged(directory), label, count) == before, (label, step)
            report = verify_queue(directory)
            assert report.problems == [], report.problems
            if kind == "repair":
                assert repair_queue(directory).ok
            with Queue(directory) as queue:
                after = whole([m.payload for m in queue.replay()], label, count)
        assert after == before, (label, step, before, after)
        publish(directory, label, piece, count)
        assert whole(read(directory), label, count)
        assert os.listdir(os.path.join(directory, "queue-staged")) == ["lock"]
        with Queue(directory) as queue:
            assert queue.verify().problems == [], queue.verify().problems
            with BulkPublisher(queue._store) as ledger:
                assert ledger.done("steps", piece) is not None
        if not dies:
            break
    print(step - 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
