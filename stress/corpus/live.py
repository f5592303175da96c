"""Damage that is done while the queue is open: under a reader, a read-only one, and a writer.

Each has the queue open and has used it when the damage is done, and continues afterwards. No signal
may end it, even if files that it has mapped are truncated or removed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pagequeue import errors
from pagequeue import format as fmt
from stress.corpus import sandbox
from stress.corpus.case import CASE_SECONDS_MAX
from stress.corpus.interfaces import SENT, described, digest, opened, row_of, tried
from stress.corpus.judge import snapshot
from stress.corpus.victim import LOCK, READ_META, WRITE_META, Victim

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stress.corpus.shapes import Original

PAGES_MIN = 3
LIVE_INTERFACES = ("reader", "read_only_reader", "writer")
ROUNDS = 3
WAIT_SECONDS = 0.05
Seen = dict[str, Any]


@dataclass(frozen=True)
class LiveOutcome:
    """How it must end: all as sent, one of these errors, or either.

    Attributes:
        kinds: names of the errors' classes, separated by bars; empty when it must continue.
        reason: a part of the error's text.
        may_work: whether it may continue as well, with messages that were sent.
    """

    kinds: str = ""
    reason: str = ""
    may_work: bool = False

    def __str__(self) -> str:
        if not self.kinds:
            return "continues"
        error = " or ".join(f"`{kind}`" for kind in self.kinds.split("|"))
        error += f": {self.reason}" if self.reason else ""
        return f"continues, or {error}" if self.may_work else error


@dataclass(frozen=True)
class LiveDamage:
    """A damage done while the queue is open; an outcome for each of `LIVE_INTERFACES`."""

    name: str
    what: str
    do: Callable[[Victim], None]
    reader: LiveOutcome
    read_only_reader: LiveOutcome
    writer: LiveOutcome


ON = LiveOutcome()
TRUNCATED = LiveOutcome("CorruptPage", "truncated")
SHORT = LiveOutcome("CorruptPage")
META = LiveOutcome("CorruptMeta", "truncated", may_work=True)
TYPED = LiveOutcome(
    "|".join(sorted(name for name in dir(errors) if name[0].isupper())), may_work=True
)


def _replace(victim: Victim, name: str) -> None:
    """Put a copy of a file in its place, by rename."""
    temporary = victim.path("copy")
    shutil.copyfile(victim.path(name), temporary)
    temporary.rename(victim.path(name))


def _noise(victim: Victim, name: str) -> None:
    """Overwrite a file with noise, in place."""
    victim.poke(name, 0, victim.rng.randbytes(victim.path(name).stat().st_size))


def _everything(victim: Victim) -> None:
    """Truncate every file to 0 bytes."""
    for path in victim.directory.iterdir():
        os.truncate(path, 0)


def _sealed(victim: Victim) -> str:
    return victim.page(victim.head)


def _active(victim: Victim) -> str:
    return victim.page(victim.field(WRITE_META, fmt.WRITE_META, "page_number"))


def _lines() -> list[LiveDamage]:
    cut = "is cut to 0 bytes"
    half = fmt.WRITE_META_FILE_BYTES // 2
    return [
        LiveDamage(
            "sealed page cut",
            f"the page that the reader is in {cut}",
            lambda v: v.resize(_sealed(v), 0),
            TRUNCATED,
            TRUNCATED,
            TYPED,
        ),
        LiveDamage(
            "active page cut",
            f"the page that is written to {cut}",
            lambda v: v.resize(_active(v), 0),
            SHORT,
            SHORT,
            TRUNCATED,
        ),
        LiveDamage(
            "index of the active page cut",
            f"the active page's index {cut}",
            lambda v: v.resize(v.index(v.active), 0),
            TYPED,
            ON,
            TYPED,
        ),
        LiveDamage(
            "writeMeta cut",
            f"the writeMeta {cut}",
            lambda v: v.resize(WRITE_META, 0),
            META,
            META,
            META,
        ),
        LiveDamage(
            "readMeta cut",
            f"the readMeta {cut}",
            lambda v: v.resize(READ_META, 0),
            META,
            META,
            META,
        ),
        LiveDamage(
            "everything cut",
            f"every file {cut}",
            _everything,
            TYPED,
            TYPED,
            LiveOutcome("CorruptPage|CorruptMeta", "truncated"),
        ),
        LiveDamage(
            "sealed page removed",
            "the page that the reader is in is removed",
            lambda v: v.remove(_sealed(v)),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "active page removed",
            "the page that is written to is removed",
            lambda v: v.remove(_active(v)),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "active page replaced",
            "a copy takes the place of the page that is written to",
            lambda v: _replace(v, _active(v)),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "active page of noise",
            "the page that is written to is overwritten with noise",
            lambda v: _noise(v, _active(v)),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "sealed page of noise",
            "the page that the reader is in becomes noise",
            lambda v: _noise(v, _sealed(v)),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "writeMeta of noise",
            "the writeMeta is overwritten with noise",
            lambda v: _noise(v, WRITE_META),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "writeMeta of zeros",
            "half of the writeMeta is zeroed",
            lambda v: v.poke(WRITE_META, 0, bytes(half)),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "writeMeta of ones",
            "all bits of half of the writeMeta are set",
            lambda v: v.poke(WRITE_META, 0, b"\xff" * half),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "readMeta of noise",
            "the readMeta is overwritten with noise",
            lambda v: _noise(v, READ_META),
            TYPED,
            TYPED,
            TYPED,
        ),
        LiveDamage(
            "lock file replaced",
            "another lock file takes the place of the queue's",
            lambda v: _replace(v, LOCK),
            TYPED,
            ON,
            TYPED,
        ),
        LiveDamage(
            "directory removed",
            "the directory is removed with all that is in it",
            lambda v: shutil.rmtree(v.directory),
            TYPED,
            TYPED,
            TYPED,
        ),
    ]


NAMED = (replace(damage, name=f"while open: {damage.name}") for damage in _lines())
LIVE = {damage.name: damage for damage in NAMED}


# --- in the child ---------------------------------------------------------------------------------


def _reads(victim: Victim, damage: LiveDamage, *, read_only: bool) -> Seen:
    rows: list[Any] = []
    with opened(victim, read_only=read_only) as queue:
        consumer = queue.consumer()
        rows.append(row_of(consumer.receive(WAIT_SECONDS)))
        damage.do(victim)
        seen: Seen = {}
        try:
            for _ in range(ROUNDS):
                while (message := consumer.poll()) is not None:
                    rows.append(row_of(message))
        except errors.PageQueueError as error:
            seen["error"] = described(error)
        replayed, again = tried(queue.replay)
        seen |= {"rows": rows, "replayed": replayed, "error": seen.get("error") or again}
        tried(lambda: queue.last(3))
        tried(lambda: queue.replay(since=victim.original.places[-1].timestamp))
        for look in (queue.verify, queue.info):
            with contextlib.suppress(errors.PageQueueError):
                look()
    return seen


def _writes(victim: Victim, damage: LiveDamage) -> Seen:
    seen: Seen = {"rows": [], "replayed": [], "error": None}
    with opened(victim) as queue, queue.producer() as producer:
        producer.send(SENT[0])
        damage.do(victim)
        try:
            for _ in range(ROUNDS):
                for payload in SENT:
                    producer.send(payload)
                producer.flush(1.0)
            queue.rotate()
        except errors.PageQueueError as error:
            seen["error"] = described(error)
        seen["replayed"], _ = tried(queue.replay)
        tried(lambda: [producer.send(SENT[0]), producer.flush(1.0)][:0])
    return seen


def _run(victim: Victim, damage: LiveDamage, interface: str) -> Seen:
    if interface == "writer":
        return _writes(victim, damage)
    return _reads(victim, damage, read_only=interface == "read_only_reader")


# --- in the parent --------------------------------------------------------------------------------


def run_live(
    damage: LiveDamage, original: Original, other: Original, base: Path, seed: int
) -> dict[str, list[str]]:
    """Return the disagreements of each interface; `base` is made and removed."""
    found = {}
    for interface in LIVE_INTERFACES:
        base.mkdir(mode=0o700)
        try:
            victim = Victim(original, other, base, random.Random(f"{seed} {damage.name}"))
            outside = snapshot(victim.outside)
            try:
                seen = sandbox.call(
                    lambda interface=interface, victim=victim: _run(victim, damage, interface),  # type: ignore[misc]
                    CASE_SECONDS_MAX,
                )
                found[interface] = _disagreements(getattr(damage, interface), original, seen)
            except sandbox.Crashed as error:
                found[interface] = [f"crashed: {error}"]
            if snapshot(victim.outside) != outside:
                found[interface].append("a file outside of the directory was changed")
        finally:
            shutil.rmtree(base, ignore_errors=True)
    return found


def _disagreements(wanted: LiveOutcome, original: Original, seen: Seen) -> list[str]:
    sent = {row_of(place) for place in original.places}
    own = {digest(payload) for payload in SENT}
    rows = [tuple(row) for row in (*seen["rows"], *seen["replayed"])]
    wrong = [
        f"message {row[0]} was never sent like that"
        for row in rows
        if row not in sent and row[2] not in own
    ]
    error = seen["error"]
    if error is None:
        if wanted.kinds and not wanted.may_work:
            wrong.append(f"{wanted} was expected, it continued")
    elif error["kind"] not in wanted.kinds.split("|") or wanted.reason not in error["text"]:
        wrong.append(f"{wanted} was expected: {error['kind']}: {error['text']}")
    return wrong[:3]
