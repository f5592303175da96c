"""The operations during which a system call fails: one function per scene of the fault matrix.

A scene opens what it needs undisturbed, calls `stage.begin()`, and then makes its calls through the
stage, which judges how each of them ends.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress.fault_copies import publishing, shipping, shipping_for_consumer
from stress.fault_groups import claiming_again
from stress.lines import SCENARIOS
from stress.steps import BATCH, LARGE, MIXED, ROTATE, SINGLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.faults import Stage

LARGE_PAGE_BYTES = 256 << 10
INTERVAL = timedelta(milliseconds=8)
WAIT_SECONDS = 0.02


@dataclass(frozen=True)
class SceneKind:
    """One scene.

    Attributes:
        name: for people.
        play: makes the calls.
        cut: what a power cut took of the template, done before; None: it was closed normally.
        fresh: there is no queue yet.
        without_indexes: they were removed, and are rebuilt only where they are needed.
    """

    name: str
    play: Callable[[Stage], None]
    cut: Callable[[Path], None] | None = None
    fresh: bool = False
    without_indexes: bool = False


def _open_and_send(stage: Stage) -> None:
    stage.begin()
    stage.open()
    stage.send(2)
    stage.close()


def _singles(stage: Stage) -> None:
    stage.open()
    stage.begin(SINGLE)
    stage.send(14)


def _batches(stage: Stage) -> None:
    stage.open()
    stage.begin(BATCH)
    stage.send(6)


def _large_messages(stage: Stage) -> None:
    stage.open()
    stage.begin(LARGE)
    stage.send(5)


def _large(stage: Stage) -> None:
    """Pages so large that the next one is made in the background."""
    stage.open(page_bytes=LARGE_PAGE_BYTES)
    stage.begin(BATCH)
    for _ in range(6):
        stage.send(60)
        stage.flush()


def _flushing(**options: object) -> Callable[[Stage], None]:
    def play(stage: Stage) -> None:
        stage.open(**options)
        stage.begin(MIXED)
        for _ in range(4):
            stage.send(4)
            stage.flush()

    return play


def _always(stage: Stage) -> None:
    stage.open(sync="always")
    stage.begin(SINGLE)
    for _ in range(7):
        if stage.send(1):
            stage.claim_all()


def _every(stage: Stage) -> None:
    stage.open(sync=3)
    stage.begin(SINGLE)
    stage.send(9)
    stage.close()


def _timed(stage: Stage) -> None:
    stage.open(sync=INTERVAL)
    stage.begin(SINGLE)
    for _ in range(4):
        stage.send(2)
        time.sleep(INTERVAL.total_seconds())


def _read_all(stage: Stage) -> None:
    queue = stage.queue
    if queue is None:
        return
    stage.read(queue)
    consumer = stage.attempt("a new consumer", queue.consumer)
    if consumer is None:
        return
    for expected in stage.expected:
        message = stage.attempt("polling", consumer.poll)
        if message is None and stage.error is None:
            stage.wrong("poll returns None though there is a message")
        if message is not None and message.payload != expected:
            stage.wrong(f"message {message.sequence} is not what was sent")
        if message is None:
            break
    if consumer.lag == 0:
        stage.attempt("waiting", lambda: _wait(consumer.receive))
    stage.attempt("closing a consumer", consumer.close)


def _wait(receive: Callable[..., object]) -> None:
    from pagequeue import NothingReceived  # noqa: PLC0415  the core is chosen by now

    try:
        receive(timeout=WAIT_SECONDS)
    except NothingReceived:
        return


def _reading(stage: Stage) -> None:
    stage.open()
    stage.begin()
    _read_all(stage)


def _reading_only(stage: Stage) -> None:
    stage.begin()
    stage.open(read_only=True)
    _read_all(stage)
    stage.close()


def _seek(stage: Stage) -> None:
    queue = stage.queue
    if queue is None:
        return
    count = len(stage.expected)
    for sequence in (0, count // 3, count // 2, count - 1):
        found = stage.attempt("seeking", lambda at=sequence: queue.consumer(sequence=at).poll())  # type: ignore[misc]
        if found is not None and found.payload != stage.expected[sequence]:
            stage.wrong(f"seeking {sequence} gives another message")
        if found is not None:
            since = found.timestamp
            later = stage.attempt("seeking", lambda at=since: queue.consumer(since=at).poll())  # type: ignore[misc]
            if later is not None and (later.timestamp != since or later.sequence > sequence):
                stage.wrong(f"seeking the time of {sequence} gives {later.sequence}")


def _without_indexes(*, read_only: bool) -> Callable[[Stage], None]:
    def play(stage: Stage) -> None:
        if not read_only:
            stage.open()
        for path in sorted(Path(stage.path).glob("*.idx"))[:-1]:
            os.unlink(path)
        stage.begin()
        if read_only:
            stage.open(read_only=True)
        _seek(stage)
        stage.close()

    return play


def _rotate(stage: Stage) -> None:
    stage.open()
    stage.begin(ROTATE)
    stage.send(8)


def _verify(stage: Stage) -> None:
    stage.open()
    stage.begin()
    queue = stage.queue
    assert queue is not None
    report = stage.attempt("verifying", queue.verify)
    if report is not None and report.ok and stage.hides_a_file:
        stage.wrong("verify reports no problem, though it could not read all of the queue")
    stage.attempt("looking at it", queue.info)
    stage.attempt("the last ones", lambda: queue.last(3))


def _compress(stage: Stage) -> None:
    """Compress, while compressing again is possible; then send and read."""
    stage.open()
    stage.begin(ROTATE)
    queue = stage.queue
    assert queue is not None
    stage.attempt("compressing", queue.compress)
    stage.send(2)
    stage.attempt("compressing again", queue.compress)


def _reading_compressed(stage: Stage) -> None:
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    with Queue(stage.path) as queue:
        if queue.compress().pages == 0:
            stage.wrong("no page was compressed")
    stage.begin()
    stage.open(read_only=True)
    _read_all(stage)
    _seek(stage)
    stage.close()


def _closing(stage: Stage) -> None:
    stage.open(sync=1000)
    stage.send(12)
    tail = stage.tail()
    stage.begin()
    stage.close()
    if stage.error is None:
        stage.played.claims = max(stage.played.claims, tail)


def _repair(stage: Stage) -> None:
    """Repair a queue that lost its read meta, an index, a page's header and a page's end."""
    pages = sorted(Path(stage.path).glob("*.page"))
    (Path(stage.path) / "queue-readMeta").unlink()
    pages[1].with_suffix(".idx").unlink()
    with pages[2].open("r+b") as file:
        file.write(bytes(16))
    os.truncate(pages[3].with_suffix(".idx"), 100)
    stage.begin()
    stage.repair()


def _repair_latched(stage: Stage) -> None:
    """Repair a queue whose sync failed."""
    stage.model_disk()
    stage.fail_a_sync()
    stage.begin()
    stage.repair()


def _salvage(stage: Stage) -> None:
    from pagequeue import salvage_queue  # noqa: PLC0415  the core is chosen by now

    target = os.path.join(os.path.dirname(stage.path), "target")
    stage.begin()
    report = stage.attempt("salvaging", lambda: salvage_queue(stage.path, target))
    if report is not None and report.ok and report.messages_copied != len(stage.expected):
        stage.wrong(f"salvaged {report.messages_copied} messages, and reports no loss")
    stage.when_calm(lambda: _salvage_again(stage, target))


def _salvage_again(stage: Stage, first: str) -> None:
    """Salvage into another directory; what the first one holds is a beginning of it."""
    from pagequeue import Queue, salvage_queue  # noqa: PLC0415

    second = f"{first}-2"
    report = salvage_queue(stage.path, second)
    if not report.ok:
        stage.wrong(f"salvaging loses an intact message: {report}")
    with Queue(second) as queue:
        stage.compare("what was salvaged", [m.payload for m in queue.replay()])


SCENES: Final = (
    SceneKind("create", _open_and_send, fresh=True),
    SceneKind("open", _open_and_send),
    *(SceneKind(s.name, _open_and_send, s.cut) for s in SCENARIOS if s.recovers),
    SceneKind("send", _singles),
    SceneKind("send batches", _batches),
    SceneKind("send to large pages", _large, fresh=True),
    SceneKind("send large messages", _large_messages),
    SceneKind("flush", _flushing()),
    SceneKind("flush and seal", _flushing(on_sync_failure="seal")),
    SceneKind("sync always", _always),
    SceneKind("sync every 3", _every),
    SceneKind("sync in time", _timed),
    SceneKind("read", _reading),
    SceneKind("read only", _reading_only),
    SceneKind("seek without indexes", _without_indexes(read_only=False), without_indexes=True),
    SceneKind(
        "seek without indexes, read only", _without_indexes(read_only=True), without_indexes=True
    ),
    SceneKind("rotate", _rotate),
    SceneKind("verify", _verify),
    SceneKind("compress", _compress),
    SceneKind("read compressed", _reading_compressed),
    SceneKind("close", _closing),
    SceneKind("repair", _repair),
    SceneKind("repair after a failed sync", _repair_latched),
    SceneKind("salvage", _salvage),
    SceneKind("publish", publishing),
    SceneKind("claim again", claiming_again),
    SceneKind("ship", shipping),
    SceneKind("ship for a consumer", shipping_for_consumer),
)
