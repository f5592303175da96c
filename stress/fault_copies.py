"""Scenes of the fault matrix in which much becomes visible at once: bulk commits and replicas.

A bulk commit is visible as a whole or not at all, its error reports which, and once it returned it
is durable, even without a later flush: the disk is saved at that moment. A replica of sealed pages
(`Queue.ship`) can be read at any time: it holds a prefix of what was sent, ends where one of its
manifests names, and what a call reported survives a power cut. Its consumer, for which retention
waits, is never past the end of what the replica has on its disk.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from stress.steps import LARGE, PUBLISH, PUBLISH_BATCH, ROTATE

if TYPE_CHECKING:
    from pathlib import Path

    from stress.faults import Stage
    from stress.faulty_disk import Disk

LARGE_NUMBER = 5
"""An operation of the first producer that is one message of several pages."""
NOTED_BYTES = 6000
"""So few that the manifest would be replaced between the pages of a large message."""
REPLICA, REPLICA_DISK, CONSUMER = "replica", "replica-disk", "shipper"


def publishing(stage: Stage) -> None:
    """Publish pieces of work of many pages and of one batch, each durable when it returns."""
    stage.open()
    stage.begin(PUBLISH)
    stage.send(2)  # a roll, and some pages
    stage.send_other(PUBLISH_BATCH, 1)


def shipping(stage: Stage) -> None:
    """Ship into a new directory, then what was sealed since."""
    _shipping(stage, None)


def shipping_for_consumer(stage: Stage) -> None:
    """The same, with a consumer for whom retention waits."""
    _shipping(stage, CONSUMER)


def _shipping(stage: Stage, consumer: str | None) -> None:
    from pagequeue.maintenance import ship  # noqa: PLC0415  the core is chosen by now

    vars(ship)["NOTED_BYTES"] = NOTED_BYTES
    stage.open()
    stage.send_other(LARGE, 1, first=LARGE_NUMBER)
    target = os.path.join(os.path.dirname(stage.path), REPLICA)
    disk = stage.also_model(target, stage.directory / REPLICA_DISK)
    stage.begin(ROTATE)
    _ship(stage, target, consumer)
    if consumer is None or stage.error is None:  # its place is judged before a second call moves it
        stage.send_other(ROTATE, 3)
        _ship(stage, target, consumer)
    stage.when_calm(lambda: _finish(stage, target, consumer, disk))


def _ship(stage: Stage, target: str, consumer: str | None) -> None:
    queue = stage.queue
    assert queue is not None
    report = stage.attempt("shipping", lambda: queue.ship(target, consumer=consumer))
    if report is not None:
        stage.played.shipped = report.end_sequence


def _next_sequence(stage: Stage, consumer: str) -> int:
    """Return from which message on retention waits for a consumer."""
    assert stage.queue is not None
    found = [info.next_sequence for info in stage.queue.consumers() if info.name == consumer]
    return next(filter(None, found), 0)


def _finish(stage: Stage, target: str, consumer: str | None, disk: Disk) -> None:
    """Check the result; then ship the rest, which must work unless a sync of the queue failed.

    The replica is compared with the queue when that is proved: here its pages can be in doubt.
    """
    from pagequeue import SyncFailed  # noqa: PLC0415  the core is chosen by now

    queue = stage.queue
    assert queue is not None
    promised = stage.played.shipped
    read_replica(target, promised, "the replica", stage.played.violations)
    # A failed sync of the replica's directory: no later one can tell what is on the disk.
    lost = stage.case.fails_syncs and promised
    kept = _cut(stage, disk, 0 if lost else promised, "before")
    if consumer is not None and not lost and _next_sequence(stage, consumer) > kept:
        stage.wrong(f"{_next_sequence(stage, consumer)} are shipped for its consumer, {kept} are")
    try:
        report = queue.ship(target, consumer=consumer)
    except SyncFailed:
        if not stage.played.latched:
            raise
        return
    stage.played.shipped = report.end_sequence
    _cut(stage, disk, 0 if stage.case.fails_syncs else report.end_sequence, "after")
    if consumer is not None and _next_sequence(stage, consumer) != report.end_sequence:
        stage.wrong(f"its consumer is not at {report.end_sequence}, to which all was shipped")
    strays = [name for name in os.listdir(target) if ".tmp-" in name]
    if strays:
        stage.wrong(f"left over in the replica: {strays}")


def _cut(stage: Stage, disk: Disk, promised: int, when: str) -> int:
    """Read what a power cut would leave of the replica; return how many messages it has."""
    image = str(stage.directory / f"replica-image-{when}")
    disk.cut(image, random.Random(0), newer=0.0)
    name = f"the replica on disk, {when}"
    return len(read_replica(image, promised, name, stage.played.violations))


def prove_replica(directory: Path, live: list[bytes], shipped: int, wrong: list[str]) -> None:
    """Compare each replica that this case left with what the queue holds."""
    found = [directory / "watched" / "deep" / REPLICA, *directory.glob("replica-image-*")]
    for path in found:
        least = shipped if path.name == REPLICA else 0
        payloads = read_replica(str(path), least, path.name, wrong)
        if payloads != live[: len(payloads)]:
            wrong.append(f"{path.name} is not the beginning of what was sent")


def read_replica(path: str, promised: int, name: str, wrong: list[str]) -> list[bytes]:
    """Return what a reader of a replica sees, and note what is wrong with it."""
    from pagequeue import PageQueueError, Queue, QueueNotFound  # noqa: PLC0415

    try:
        with Queue(path, read_only=True) as queue:
            wrong += [f"{name}: {problem}" for problem in queue.verify().problems]
            payloads = [message.payload for message in queue.replay()]
    except QueueNotFound:
        payloads = []
    except PageQueueError as error:
        wrong.append(f"{name} is unreadable: {error!r}")
        return []
    if len(payloads) < promised:
        wrong.append(f"{name} has {len(payloads)} messages, {promised} were reported")
    return payloads
