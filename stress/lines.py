"""Dying at the executed Python lines of making, sending, rolling, publishing and recovering.

Each scenario begins with the copy of a queue that was made once. The copy alone is already what a
power cut or a copied directory is to the library: its lock state is another file's, so the opener
recovers. What the power cut took is taken from the copy.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress.history import Log, Sent
from stress.steps import (
    BATCH,
    LARGE,
    MIXED,
    PAGE_BYTES,
    PUBLISH,
    ROTATE,
    SINGLE,
    Scene,
    op_of,
    uid_of,
)
from stress.tampering import overwrite
from stress.traced import At, Victim

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.types import Sync

PLACES_FILE: Final = "places"
TEMPLATE_UID = uid_of(MIXED, 1)
TEMPLATE_OPS = 60
FLUSH_AFTER = 20
SENDS = 14


@dataclass(frozen=True)
class Scenario:
    """What the victim does, and with which queue.

    Attributes:
        name: for people.
        kind: of the victim's traffic.
        cut: what the power cut took, done to the copy; None: the copy was recovered before.
        fresh: there is no queue yet.
        durable: each of its sends is flushed, with a survivor that flushes at the same time.
        plays: so many victims' traffic, each different: few operations do not reach all lines.
    """

    name: str
    kind: int
    cut: Callable[[Path], None] | None = None
    fresh: bool = False
    durable: bool = False
    plays: int = 1

    @property
    def recovers(self) -> bool:
        """Whether the victim is the first to open the queue after a power cut."""
        return self.cut is not None


def _nothing(_path: Path) -> None:
    """Only the lock state is another file's."""


def _pages(path: Path) -> list[Path]:
    return sorted(path.glob("queue-*.page"))


def _tear_last(path: Path) -> None:
    overwrite(_pages(path)[-1], 64 + 8, b"torn")


def _tear_middle(path: Path) -> None:
    """Damage a frame in the last page but one: the pages after it must be removed."""
    overwrite(_pages(path)[-2], 64 + 8, b"torn")


def _lose_last_page(path: Path) -> None:
    last = _pages(path)[-1]
    last.unlink()
    last.with_suffix(".idx").unlink()


def _lose_write_meta(path: Path) -> None:
    (path / "queue-writeMeta").unlink()


def _lose_header_and_index(path: Path) -> None:
    last = _pages(path)[-1]
    overwrite(last, 0, bytes(64))
    last.with_suffix(".idx").unlink()


def _leave_temporaries(path: Path) -> None:
    (path / "queue-0000000099.page.tmp-1").write_bytes(b"half")
    (path / "queue-readMeta.tmp-2").write_bytes(b"half")
    (path / "queue-readMeta").unlink()


SCENARIOS = (
    Scenario("create", SINGLE, fresh=True),
    Scenario("send and roll", SINGLE),
    Scenario("send batches and roll", BATCH),
    Scenario("rotate", ROTATE),
    Scenario("publish", PUBLISH, plays=4),
    Scenario("send large messages", LARGE, plays=8),
    Scenario("send durably and roll", SINGLE, durable=True),
    Scenario("recover a copy", SINGLE, _nothing),
    Scenario("recover a torn last page", BATCH, _tear_last),
    Scenario("recover a page torn in the middle", SINGLE, _tear_middle),
    Scenario("recover a lost page", SINGLE, _lose_last_page),
    Scenario("recover without write meta", SINGLE, _lose_write_meta),
    Scenario("recover a lost header and index", SINGLE, _lose_header_and_index),
    Scenario("recover among temporaries", SINGLE, _leave_temporaries),
)


class Template:
    """A queue of some pages, flushed in the middle, and what its producer was told.

    Args:
        directory: where it is made.
        ops: operations in all.
        flush_after: flushed after this one.
    """

    def __init__(
        self, directory: Path, ops: int = TEMPLATE_OPS, flush_after: int = FLUSH_AFTER
    ) -> None:
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        self.path = directory / "template"
        log = Log(directory / "template-acked", Sent)
        with Queue(self.path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
            for number in range(ops):
                first, count = op_of(TEMPLATE_UID, number).run(producer)
                log.put(Sent(TEMPLATE_UID, number, count, first))
                if number == flush_after:
                    self.durable = producer.flush()
        self.records = log.events()
        log.close()

    def place(self, scene: Scene, scenario: Scenario) -> None:
        """Put a copy where the scene wants its queue."""
        if scenario.fresh:
            return
        shutil.copytree(self.path, scene.path)
        scene.uids.append(TEMPLATE_UID)
        for record in self.records:
            scene.acked.put(record)
        if scenario.cut is not None:
            scenario.cut(Path(scene.path))
        else:
            from pagequeue import Queue  # noqa: PLC0415

            Queue(scene.path).close()

    def end_sequence(self, scene: Scene, scenario: Scenario) -> int | None:
        """Return where an undisturbed recovery ends; None if it may not cut off any message.

        Raises:
            AssertionError: it cuts off what was on stable storage.
        """
        if not scenario.recovers:
            return None
        from pagequeue import Queue  # noqa: PLC0415

        self.place(scene, scenario)
        with Queue(scene.path) as queue:
            end = queue.tail_sequence
        assert end >= self.durable, f"{scenario.name}: cut at {end}, durable was {self.durable}"
        return end


def act(scene: Scene, scenario: Scenario, uid: int, at: At | None) -> None:
    """Be the victim: open and send, dying there; None: live, and write down all places."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    victim = Victim(at, scene.directory / PLACES_FILE, scene.path)
    sync: Sync = "always" if scenario.durable else "none"
    with Queue(scene.path, page_bytes=PAGE_BYTES, sync=sync) as queue, queue.producer() as producer:
        few = scenario.recovers or scenario.fresh or scenario.kind in {PUBLISH, LARGE}
        for number in range(2 if few else SENDS):
            scene.send(producer, uid, number)
    victim.end()
