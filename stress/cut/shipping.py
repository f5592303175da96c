"""Shipping under the recorder: a replica's directory is recorded, cut, read and shipped to again.

The queue stays whole: only the disk of the replica loses its power. Shippers send, seal and ship
in turn, and some die after a system call. What a call reported is guaranteed.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import children
from stress.cut.recording import SHIPPED, Recorder, Recording

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE_BYTES: Final = 4096
LIVES_MAX: Final = 5
PAGES_MAX: Final = 4
CALLS_MAX: Final = 60
DIES_SHARE: Final = 0.6
LARGE_SHARE: Final = 0.1
LARGE_BYTES: Final = 5 * PAGE_BYTES
NOTED_BYTES: Final = 6000
"""So few that a call replaces its manifest more than once."""
WAIT_SECONDS: Final = 60.0
WAITS_MAX: Final = 3
WORKS_SECONDS: Final = 0.2
"""One that used as much processor time meanwhile does not hang: it is recorded line by line."""


class Shipping:
    """One queue that was shipped to a directory which was recorded; close it when done."""

    def __init__(self, seed: int, recorder: Recorder, base: str) -> None:
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now
        from pagequeue.maintenance import ship  # noqa: PLC0415  the core is chosen by now

        vars(ship)["NOTED_BYTES"] = NOTED_BYTES
        self.seed = seed
        self.recorder = recorder
        self.directory = Path(tempfile.mkdtemp(prefix="pagequeue-ship-", dir=base))
        self.source = self.directory / "queue"
        self.target = self.directory / "replica"
        self.errors = children.ErrorFile(self.directory / "errors")
        Queue(self.source, page_bytes=PAGE_BYTES).close()
        self.number = 0

    def close(self) -> None:
        """Remove it."""
        self.errors.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def record(self) -> Recording:
        """Ship a few times; raise RuntimeError if a replica is wrong without a power cut."""
        rng = random.Random(self.seed)
        with self.recorder.recording(str(self.target)):
            for life in range(rng.randint(2, LIVES_MAX)):
                dies_at = rng.randint(1, CALLS_MAX) if rng.random() < DIES_SHARE else 0
                self._send(rng)
                pid = children.fork(
                    lambda dies_at=dies_at: self._ship(dies_at),  # type: ignore[misc]
                    self.errors,
                    f"shipper {life}",
                )
                if not _has_ended(pid):
                    children.kill(pid)
                    raise RuntimeError(f"a shipper hangs for {WAIT_SECONDS:g} s or more")
                if wrong := _wrong_to_readers(self.target, 0, self.payloads()):
                    raise RuntimeError(f"after shipper {life}: {'; '.join(wrong)}")
        if said := self.errors.said():
            raise RuntimeError("; ".join(said))
        return Recording(f"replica {self.seed}", self.seed, self.recorder.log(), b"")

    def _send(self, rng: random.Random) -> None:
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.source) as queue, queue.producer() as producer:
            for _ in range(rng.randint(1, PAGES_MAX)):
                for _ in range(rng.randint(1, 12)):
                    is_large = rng.random() < LARGE_SHARE
                    size = (
                        rng.randrange(PAGE_BYTES, LARGE_BYTES) if is_large else rng.randrange(400)
                    )
                    producer.send(b"%06d" % self.number + rng.randbytes(size))
                    self.number += 1
                queue.rotate()

    def _ship(self, dies_at: int) -> None:
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.source) as queue:
            self.recorder.die_at_call(dies_at)
            report = queue.ship(self.target)
            self.recorder.note(SHIPPED, report.end_sequence, report.pages)
            self.recorder.die_at_call(0)

    def payloads(self) -> list[bytes]:
        """Return all that was sent."""
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.source) as queue:
            return [message.payload for message in queue.replay()]

    def wrong_with(
        self, files: Mapping[str, bytes] | None, promised: int, sent: list[bytes]
    ) -> list[str]:
        """Return what is wrong with a state: it is read, shipped to again, and read again."""
        from pagequeue import Queue  # noqa: PLC0415

        place = self.directory / "cut"
        shutil.rmtree(place, ignore_errors=True)
        if files is not None:
            place.mkdir(0o700)
            for name, data in files.items():
                (place / name).write_bytes(data)
                (place / name).chmod(0o600)
        try:
            wrong = _wrong_to_readers(place, promised, sent)
            if not wrong:
                with Queue(self.source) as queue:
                    end = queue.ship(place).end_sequence
                wrong = [f"again: {text}" for text in _wrong_to_readers(place, end, sent)]
                if end != len(sent):
                    wrong.append(f"again: it ends with {end} of {len(sent)} messages")
        except Exception as error:  # noqa: BLE001  no power cut may cause any exception
            return [f"{type(error).__name__}: {error}"]
        return wrong


def _has_ended(pid: int) -> bool:
    """Wait for a shipper; return False if it waits for something itself, or takes far too long."""
    for _ in range(WAITS_MAX):
        before = _processor_seconds(pid)
        if children.ended(pid, WAIT_SECONDS) is not None:
            return True
        if _processor_seconds(pid) - before < WORKS_SECONDS:
            break
    return False


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wrong_to_readers(place: Path, promised: int, sent: list[bytes]) -> list[str]:
    from pagequeue import PageQueueError, Queue, QueueNotFound  # noqa: PLC0415

    found: list[bytes] = []
    try:
        with Queue(place, read_only=True) as queue:
            problems = queue.verify().problems
            found = [message.payload for message in queue.replay()]
            if problems or len(found) != len(queue):
                return [f"{len(found)} of {len(queue)} messages are read, problems: {problems}"]
    except QueueNotFound:
        pass
    except PageQueueError as error:
        return [f"{type(error).__name__}: {error}"]
    if len(found) < promised:
        return [f"{len(found)} messages are there, {promised} were reported"]
    return [] if found == sent[: len(found)] else ["it is not the beginning of what was sent"]
