"""State shared by the processes of a round: the queues and their uses, the logs, the history.

All records are appended by single `write` calls, which no SIGKILL undoes: each process records
what it did, and the judge compares that with the queues after all processes have ended.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pagequeue import Queue, QueueNotFound, QueueReplaced, Retention
from pagequeue import format as fmt
from stress import children
from stress.history import Log, Sent
from stress.roles import RUNNING, SYNCS
from stress.traffic import HEADER, LARGE_STREAMED, Op, Shape, sound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagequeue import Message
    from pagequeue.group.group import Group

LARGE_SHARE: Final = 0.5
LOCK_SECONDS: Final = 10.0
"""No process is stopped, so a wait for a lock that takes longer is a violation."""
FULL_SECONDS: Final = 0.3
PAGE_BYTES: Final = 4096
CLOCK_SHARE: Final = 0.2
"""Of the openings of queues that are not clocked, which others have open with the system's."""
CLOCK_AT: Final = 1
"""The place of the clock's state in the words: which of `SHIFTS` it shows."""
MOVED_ID: Final = slice(32, 48)
"""The place of the id of the queue whose directory moves."""
DAY_NS: Final = 86_400 * 10**9
SHIFTS: Final = (0, 30 * DAY_NS, -30 * DAY_NS, DAY_NS // 12, 400 * DAY_NS)
"""How far the clock can be off for a moment, in ns; mostly it is right."""
RECORDER, READER, CREW, SHELL, DOWN = "recorder", "reader", "crew", "shell", "down"

KINDS: Final = (
    "scene",
    "open",
    "open read-only",
    "close",
    "close twice at once",
    "drop",
    "collect garbage",
    "fork",
    "spawn",
    "kill",
    "send",
    "send_many",
    "send a file",
    "discard a file",
    "message file",
    "send at",
    "publish",
    "flush",
    "rotate",
    "trim",
    "trim many pages",
    "compress",
    "ship",
    "flow",
    "flow of a coroutine",
    "group claim",
    "group nack",
    "group reject",
    "group poison",
    "consumer receive",
    "unnamed consumer",
    "replay",
    "batches",
    "merge",
    "inspect",
    "verify",
    "coroutine sends",
    "coroutine receives",
    "coroutine claims",
    "cancel",
    "signal handler",
    "handler closes",
    "file under a signal",
    "few descriptors",
    "bystander",
    "set clock",
    "move",
    "vanish",
    "job that fails",
    "command sends",
    "command receives",
    "command with a closed pipe",
    "command inspects",
    "record",
)
"""Each must happen in a run; the history holds places in this tuple."""
COMMANDS: Final = tuple(kind for kind in KINDS if kind.startswith("command"))
NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
DONE, REFUSED, CLOSED, WRONG = range(4)
OUTCOMES: Final = ("done", "refused", "closed", "WRONG")
RECEIVED, ACKING, ACKED, REJECTING, REJECTED = range(5)
NO_QUEUE: Final = 255


class Ended(NamedTuple):
    """An operation that has ended."""

    at: int  # ns of the monotonic clock
    process: int
    thread: int
    kind: int  # its place in KINDS
    queue: int
    outcome: int


class Given(NamedTuple):
    """A sender, and how many messages a command line was given to send; 0: it is not one."""

    uid: int
    messages: int


class Handled(NamedTuple):
    """A message that was received, or that was or is about to be acknowledged or rejected."""

    sequence: int
    checksum: int  # CRC-32 of the payload, if it was received
    state: int


class Shown(NamedTuple):
    """A message that a command line printed: whose it is, and which."""

    uid: int
    number: int
    place: int


class Sized(Shape):
    """Operations whose payloads all carry the id of their sender."""

    def _size(self, seed: bytes, place: int, limit: int) -> int:
        return max(HEADER.size, super()._size(seed, place, limit))


class Large(Shape):
    """Operations that take most of a page each, so that nearly every one of them rolls."""

    def _size(self, seed: bytes, place: int, limit: int) -> int:
        return max(HEADER.size, limit - seed[2 + place])


FILE: Final = 4
"""The bit of the id of a sender that writes files."""
COMMAND: Final = Sized(
    payload_bytes_max=3000, batch_bytes_max=3000, batch_parts=50, rotate_parts=0, row_parts=64
)
SMALL: Final = replace(
    COMMAND, publish_parts=8, publish_count_max=9, large_parts=12, large_bytes=9000
)
FILES: Final = replace(COMMAND, large_parts=256, large_bytes=9000, large_ways=(LARGE_STREAMED,))
LARGE: Final = Large(payload_bytes_max=3900, batch_bytes_max=3000, batch_parts=30, rotate_parts=0)


def operation(uid: int, number: int) -> Op:
    """Return operation `number` of sender `uid`; a command line sends single messages."""
    if uid & FILE:
        return FILES.op(uid, number)
    if uid & 2:
        return Op(COMMAND.op(uid, number).payloads[:1])
    return (LARGE if uid & 1 else SMALL).op(uid, number)


@dataclass(frozen=True)
class Spec:
    """One queue of a round.

    Attributes:
        number: its place.
        directory: its own, or shared with another queue.
        prefix: of its files.
        page_bytes: size of its pages.
        retention: of those openings that have one; None: the queue is never trimmed.
        compresses: whether its pages are compressed.
        is_flow: whether all that is sent to it comes from a flow.
        ring: its size, if it is a ring.
        is_clocked: whether all its processes have the clock that jumps; nothing in it is old.
        is_moved: whether its directory moves, and another queue has its place meanwhile.
    """

    number: int
    directory: str
    prefix: str
    page_bytes: int
    retention: Retention | None = None
    compresses: bool = False
    is_flow: bool = False
    ring: int | None = None
    is_clocked: bool = False
    is_moved: bool = False

    @property
    def drops(self) -> bool:
        """Whether pages that no named consumer or group needs can go."""
        return self.retention is not None or self.ring is not None

    def uid(self, rng: random.Random, *, command: bool = False) -> int:
        """Return a new sender's id, from which its queue can be derived."""
        is_large = rng.random() < LARGE_SHARE
        return rng.getrandbits(48) << 12 | self.number << 4 | command << 1 | is_large


def specs(base: str, rng: random.Random) -> list[Spec]:
    """Return the queues of a round: two share a directory, two are trimmed, a ring, a flow's.

    From one nothing is trimmed, though by a clock that jumps all of it is old now and then.
    """
    other = rng.choice(("other", "q", "queue2"))
    bounded = Retention(
        max_bytes=rng.choice((4, 8, 20)) * PAGE_BYTES, drop_acknowledged=rng.random() < 0.5
    )
    aged = Retention(max_age=timedelta(microseconds=rng.choice((1, 2_000, 50_000))))
    ring = rng.choice((4, 8, 20)) * fmt.files_bytes(PAGE_BYTES)
    return [
        Spec(0, f"{base}/shared", "queue", PAGE_BYTES),
        Spec(1, f"{base}/shared", other, 2 * PAGE_BYTES, compresses=True),
        Spec(2, f"{base}/bounded", "queue", PAGE_BYTES, bounded),
        Spec(3, f"{base}/aged", "queue", PAGE_BYTES, aged, compresses=True),
        Spec(4, f"{base}/ring", "queue", PAGE_BYTES, ring=ring),
        Spec(
            5,
            f"{base}/clocked",
            "queue",
            PAGE_BYTES,
            Retention(max_age=timedelta(days=1), keep_unacked=False),
            is_clocked=True,
        ),
        Spec(6, f"{base}/moved", "queue", PAGE_BYTES, is_moved=True),
        Spec(7, f"{base}/flow", "queue", PAGE_BYTES, aged, is_flow=True),
    ]


class Elsewhere(Exception):
    """The directory that moves is not at its path: no queue is there, or another one."""


class Ground:
    """What all processes of a round share."""

    def __init__(self, base: str, bystander: str, seed: int) -> None:
        self.base = base
        self.bystander = bystander
        self.seed = seed
        self.specs = specs(base, random.Random(seed))
        self.handler_rng = random.Random(seed)
        directory = Path(base)
        self.errors = children.ErrorFile(directory / "errors")
        with (directory / "words").open("a+b") as file:  # the first page: the phase
            file.truncate(mmap.PAGESIZE)
            self.phase = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.history = Log(directory / "history", Ended)
        count = range(len(self.specs))
        self.sent = [Log(directory / f"sent-{i}", Sent) for i in count]
        self.births = [Log(directory / f"births-{i}", Given) for i in count]
        self.ended = [Log(directory / f"ended-{i}", Given) for i in count]
        self.read = [Log(directory / f"read-{i}", Handled) for i in count]
        self.worked = [Log(directory / f"worked-{i}", Handled) for i in count]
        self.shown = [Log(directory / f"shown-{i}", Shown) for i in count]
        self.ledgers = [directory / f"ledger-{i}" for i in count]

    def close(self) -> None:
        """Close all descriptors."""
        for logs in (self.sent, self.births, self.ended, self.read, self.worked, self.shown):
            for log in logs:
                log.close()
        self.history.close()
        self.errors.close()
        self.phase.close()

    @property
    def is_running(self) -> bool:
        """Whether processes continue."""
        return self.phase[0] == RUNNING

    def clock(self) -> int:
        """Return what a clock shows that somebody sets, ahead or back, and sets right again."""
        return time.time_ns() + SHIFTS[self.phase[CLOCK_AT]]

    def note(self, kind: str, queue: int = NO_QUEUE, outcome: int = DONE) -> None:
        """Append to the history."""
        who = os.getpid(), threading.get_ident() >> 6 & 0xFFFFFFFF
        self.history.put(Ended(time.monotonic_ns(), *who, NUMBERS[kind], queue, outcome))

    def wrong(self, kind: str, queue: int, text: str) -> None:
        """Append a violation, with what the other threads and processes did just before."""
        self.note(kind, queue, WRONG)
        self.errors.say(f"{kind}, queue {queue}: {text}\n{self.short_history(queue)}")

    def short_history(self, queue: int, count: int = 12) -> str:
        """Return the last operations on a queue, and on the queues open at the same time."""
        events = self.history.events()[-400:]
        mine = [one for one in events if one.queue == queue][-count:]
        others = [one for one in events if one.process == os.getpid()][-count:]
        return "".join(
            f"    {one.at / 1e9:.6f} process {one.process} "
            f"{KINDS[one.kind]}, queue {one.queue}: {OUTCOMES[one.outcome]}\n"
            for one in sorted({*mine, *others})
        )

    def counts(self) -> dict[str, int]:
        """Return how often each kind of operation was done, and how often an error ended it."""
        done = Counter(one.kind for one in self.history.events())
        return {kind: done[number] for kind, number in NUMBERS.items()}

    def count_of(self, process: int) -> int:
        """Return how many operations of a process have ended."""
        return sum(one.process == process for one in self.history.events())

    # --- marks: the highest place that a consumer is known to have acknowledged -------------------

    def mark(self, queue: int, place: int, sequence: int) -> None:
        """Record that all messages below a sequence were acknowledged, after that was done."""
        at = 64 + 8 * (queue * 8 + place)
        if sequence > self.marked(queue, place):
            self.phase[at : at + 8] = sequence.to_bytes(8, "little")

    def marked(self, queue: int, place: int) -> int:
        """Return that sequence."""
        at = 64 + 8 * (queue * 8 + place)
        return int.from_bytes(self.phase[at : at + 8], "little")

    # --- openings ---------------------------------------------------------------------------------

    def open(self, spec: Spec, rng: random.Random, *, read_only: bool = False) -> Queue:
        """Open a queue with options at random.

        Raises:
            Elsewhere: its directory is another place now.
        """
        if not spec.is_moved:
            return self._open(spec, rng, read_only=read_only)
        try:
            queue = self._open(spec, rng, read_only=read_only, create=False)
        except (QueueNotFound, QueueReplaced):
            raise Elsewhere from None
        if queue._store.meta.queue_id != self.phase[MOVED_ID]:
            queue.close()
            raise Elsewhere
        return queue

    def _open(
        self, spec: Spec, rng: random.Random, *, read_only: bool, create: bool = True
    ) -> Queue:
        options: dict[str, Any] = {"prefix": spec.prefix, "lock_timeout": LOCK_SECONDS}
        if spec.is_clocked or rng.random() < CLOCK_SHARE:
            options["clock"] = self.clock
        if read_only:
            return Queue(spec.directory, read_only=True, **options)
        options["create"] = create
        if spec.ring is not None:  # which others are told by the queue itself
            if rng.random() < 0.5:
                options["ring"] = spec.ring
            return Queue(spec.directory, full_timeout=FULL_SECONDS, **options)
        if spec.retention is not None and rng.random() < 0.8:
            options["retention"] = spec.retention
            options["on_full"] = rng.choice(("block", "block", "raise"))
            options["full_timeout"] = FULL_SECONDS
        if spec.compresses and rng.random() < 0.3:
            options["compress_after"] = rng.choice((1, 3))
        sync = rng.choice(SYNCS) if rng.random() < 0.5 else "none"
        return Queue(spec.directory, page_bytes=spec.page_bytes, sync=sync, **options)

    def create(self) -> None:
        """Make all queues, and put foreign files into their directories."""
        for spec in self.specs:
            rng = random.Random(spec.number)
            with Queue(
                spec.directory,
                prefix=spec.prefix,
                page_bytes=spec.page_bytes,
                ring=spec.ring,
                clock=self.clock if spec.is_clocked else None,
            ) as queue:
                if spec.is_moved:
                    self.phase[MOVED_ID] = queue._store.meta.queue_id
                while spec.is_clocked and not queue._store.write_meta.clock_ahead:
                    queue._store.clock()  # until it is known to run
                for name in (RECORDER, READER) if not spec.is_flow else ():
                    queue.consumer(name).close()
                if not spec.is_flow:
                    queue.group(CREW, capacity=256).close()
            for name in STRANGERS:
                path = Path(spec.directory, name)
                if not path.exists():
                    path.write_bytes(rng.randbytes(rng.randrange(1, 9000)))


POISON_SHARE: Final = 16
"""One of so many messages fails in every worker, and becomes a dead letter."""


def is_poison(payload: bytes) -> bool:
    """Whether a message fails in every worker; its bytes decide, so all agree."""
    return zlib.crc32(payload) % POISON_SHARE == 0


def crew_of(queue: Queue) -> Group:
    """Open the group, which tries again soon."""
    return queue.group(CREW, backoff=(0.001, 0.02))


FILL: Final = bytes(range(256)) * 8


def element(number: int) -> bytes:
    """Return an element of a flow: its number, and a filling that follows from it."""
    return number.to_bytes(8, "little") + FILL[: number * 2654435761 % 1500]


STRANGERS: Final = ("notes.txt", "0000000001.page", "qqueue-0000000001.page", "backup.idx")


def check_sound(message: Message, spec: Spec) -> str:
    """Return what is wrong with a single message; empty if it is whole and of this queue."""
    if spec.is_flow:
        whole = message.payload == element(message.sequence)
        return "" if whole else f"message {message.sequence} is {message.payload[:8]!r}"
    found = sound(message.payload)
    if found is None:
        return f"message {message.sequence} is not whole: {message.payload[:48]!r}"
    if found >> 4 & 0xFF != spec.number:
        return f"message {message.sequence} was sent to queue {found >> 4 & 0xFF}"
    return ""


def strangers(specs_: Sequence[Spec]) -> list[str]:
    """Return the paths of the foreign files, which belong to no queue."""
    return [os.path.join(d, n) for d in sorted({s.directory for s in specs_}) for n in STRANGERS]
