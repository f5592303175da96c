"""The accounting of each queue, when all processes of a round have ended.

The recorder takes the rest; then its ledger has every message that the queue ever had. It is
compared with what the senders were told (`traffic.Proof`), with what can still be read, with
what was shipped, and with what the named consumer, the group, the command line and the flow saw.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from pagequeue import NothingReceived, Queue, QueueFull
from pagequeue import format as fmt
from pagequeue.store.clock import BOUND_NS
from pagequeue.util.timestamps import to_datetime
from stress.combined import flows
from stress.combined.files import PAGE
from stress.combined.ground import (
    ACKED,
    ACKING,
    DOWN,
    FULL_SECONDS,
    READER,
    RECEIVED,
    REJECTED,
    REJECTING,
    SHELL,
    Ground,
    Spec,
    crew_of,
    element,
    is_poison,
    operation,
)
from stress.combined.operations import READER_MARK, Opening, Over, checksum, ship_paths
from stress.combined.worker import HangGuard, record_one
from stress.history import Kept, Sent, messages_in
from stress.traffic import HEADER, Proof, sound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Message
    from pagequeue.group.group import Group

TOLD_MAX: Final = 4
SEARCH: Final = ("scan_at", "scan_from", "first", "outstanding")
REST_SECONDS: Final = 150.0
"""What is left is due within a minute: a dead letter that a process without descriptors could not
write is tried again then."""


def place_of(queue: Queue, name: str) -> int:
    """Return up to which message a named consumer has acknowledged."""
    place = next(each.next_sequence for each in queue.consumers() if each.name == name)
    assert place is not None, "its file is damaged"
    return place


class Judge:
    """Judges one queue."""

    def __init__(
        self, ground: Ground, spec: Spec, again: Callable[[], None] = lambda: None
    ) -> None:
        self.ground = ground
        self.spec = spec
        self.again = again
        self.told = 0
        self.all: list[Kept] = []

    def wrong(self, text: str) -> None:
        """Report a violation, a few times at most."""
        self.told += 1
        if self.told <= TOLD_MAX:
            history = self.ground.short_history(self.spec.number)
            self.ground.errors.say(f"judge, queue {self.spec.number}: {text}\n{history}")

    def run(self) -> None:
        """Run all checks."""
        spec = self.spec
        with Queue(spec.directory, prefix=spec.prefix, create=False) as queue:
            opening = Opening(self.ground, spec, queue, read_only=False)
            if spec.is_flow:
                self.flow(opening)
            else:
                record_one(opening)
                self.all = list(messages_in(self.ground.ledgers[spec.number]))
                self.sent()
                self.still_there(queue)
                self.reader(queue)
                self.crew(queue)
                self.clocked(queue)
                self.shipped()
                self.shell(queue)
            with contextlib.suppress(*((QueueFull,) if spec.ring else ())):
                queue.rotate(timeout=FULL_SECONDS)  # a ring has room if its readers have all
            report = queue.verify()
            for problem in report.problems[:TOLD_MAX]:
                self.wrong(f"verify: {problem}")
            last = queue._store.tail.page_number
        self.files(last)

    # --- what was sent ----------------------------------------------------------------------------

    def sent(self) -> None:
        """Every acknowledged send is there once and in order; no other message is there."""
        number = self.spec.number
        births = self.ground.births[number].events()
        records = self.ground.sent[number].events()
        records += self.by_commands({uid for uid, count in births if count})
        last: dict[int, tuple[int, int]] = {}
        for uid, op, count, first, _ in records:
            before = last.get(uid, (-1, -1))
            if op <= before[0] or (count and first <= before[1]):
                self.wrong(f"sender {uid}: operation {op} got {first}, after {before}")
            last[uid] = op, max(first, before[1]) if count else before[1]
        proof = Proof(operation, [uid for uid, _ in births], records)
        proof.run(cast("Iterator[Message]", iter(self.all)))
        for text in proof.violations:
            self.wrong(text)

    def by_commands(self, uids: set[int]) -> list[Sent]:
        """Return records for what command lines sent; one that ended well sent all it was given."""
        found: dict[int, list[int]] = {uid: [] for uid in uids}
        for message in self.all:
            uid = sound(message.payload)
            if uid in found:
                found[uid].append(message.sequence)
        for uid, count in self.ground.ended[self.spec.number].events():
            if len(found[uid]) != count:
                self.wrong(f"a command sent {count} messages, and {len(found[uid])} are there")
        return [
            Sent(uid, place, 1, sequence)
            for uid, sequences in found.items()
            for place, sequence in enumerate(sequences)
        ]

    # --- what can be read -------------------------------------------------------------------------

    def still_there(self, queue: Queue) -> None:
        """What the queue still has is what it had."""
        if len(self.all) != queue.tail_sequence:
            self.wrong(f"{len(self.all)} were recorded of {queue.tail_sequence}")
        self.compare(queue, "the queue")

    def shipped(self) -> None:
        """What was shipped is what the queue had."""
        for path in ship_paths(self.ground, self.spec):
            if os.path.exists(os.path.join(path, f"{self.spec.prefix}-allMeta")):
                with Queue(path, prefix=self.spec.prefix, read_only=True) as queue:
                    self.compare(queue, "what was shipped")

    def compare(self, queue: Queue, what: str) -> None:
        """Compare all that a queue has with the ledger."""
        expected = queue.head_sequence
        for message in queue.replay():
            if message.sequence != expected:
                return self.wrong(f"{what}: {message.sequence} comes where {expected} should")
            if expected < len(self.all) and message.payload != self.all[expected].payload:
                return self.wrong(f"{what}: message {expected} is another one than was received")
            expected += 1
        if expected != queue.tail_sequence:
            self.wrong(f"{what}: ends with {expected} of {queue.tail_sequence}")
        return None

    def clocked(self, queue: Queue) -> None:
        """The clock was wrong for moments only: nothing is old, removed, or of another time."""
        if not self.spec.is_clocked:
            return
        head = queue.head_sequence
        if head:
            self.wrong(f"{head} messages were removed for their age, and are seconds old")
        begun, now = queue.info().created.timestamp() * 1e9 - BOUND_NS, time.time_ns() + BOUND_NS
        wrong = [ns for ns in queue.times()[1].tolist() if not begun <= ns <= now]
        if wrong:
            self.wrong(f"{len(wrong)} messages have times like {to_datetime(wrong[0])}")
        found = len(list(queue.replay(since=timedelta(hours=1))))
        if found != len(queue):
            self.wrong(f"since an hour ago there are {found} of {len(queue)} messages")

    def reader(self, queue: Queue) -> None:
        """The named consumer skipped no message, and starts at or after its mark."""
        number = self.spec.number
        place = place_of(queue, READER)
        self.covered(place, self.ground.marked(number, READER_MARK), "the consumer")

    def covered(self, place: int, marked: int, who: str) -> None:
        """Check that all before a place was received, as it was sent."""
        if place < marked:
            self.wrong(f"{who} is at {place}, and {marked} were acknowledged")
        seen: dict[int, int] = {}
        for sequence, check, _ in self.ground.read[self.spec.number].events():
            if seen.setdefault(sequence, check) != check:
                self.wrong(f"{who} got {sequence} twice, and not the same")
            if sequence < len(self.all) and checksum(self.all[sequence].payload) != check:
                self.wrong(f"{who} got another message {sequence} than was sent")
        missed = [sequence for sequence in range(place) if sequence not in seen]
        if missed:
            self.wrong(f"{who} is at {place}, and never got {len(missed)}: {missed[:5]}")

    def crew(self, queue: Queue) -> None:
        """Every message is acknowledged once by the group, or claimed by the one that drains it."""
        did: dict[int, Counter[int]] = {
            state: Counter() for state in (RECEIVED, ACKING, ACKED, REJECTING, REJECTED)
        }
        for sequence, _, state in self.ground.worked[self.spec.number].events():
            did[state][sequence] += 1
        ended = did[ACKED] + did[REJECTED]
        rest = []
        deadline = time.monotonic() + REST_SECONDS
        with crew_of(queue) as group:
            while group.lag and time.monotonic() < deadline:
                self.again()
                with contextlib.suppress(NothingReceived):
                    for claim in group.claim_many(100, timeout=0.05):
                        if is_poison(claim.message.payload):
                            claim.nack(0)
                            continue
                        rest.append(claim.message.sequence)
                        claim.ack()
            if group.lag:
                self.wrong(f"the group waits after {REST_SECONDS:g} s: {_state(group)}")
            letters = list(group.dead_letters())
        dead = {letter.sequence for letter in letters}
        poison = {one.sequence for one in self.all if is_poison(one.payload)}
        for text, sequences in {
            "acknowledged or rejected twice": {one for one, count in ended.items() if count > 1},
            "given out after it was acknowledged or rejected": ended.keys() & set(rest),
            "rejected, and no dead letter": did[REJECTED].keys() - dead,
            "a dead letter that nobody rejected": dead - did[REJECTING].keys() - poison,
            "acknowledged, though it always fails": poison & did[ACKING].keys(),
            "a dead letter with other bytes": {
                letter.sequence
                for letter in letters
                if letter.payload != self.all[letter.sequence].payload
            },
            "never given out": (
                set(range(queue.tail_sequence)) - did[ACKING].keys() - dead - set(rest)
            ),
        }.items():
            if sequences:
                found = sorted(sequences)[:5]
                self.wrong(f"the group: {len(sequences)} {text}: {found}")

    def shell(self, queue: Queue) -> None:
        """The command line's reader read every message before the place of its consumer."""
        if all(each.name != SHELL for each in queue.consumers()):
            return
        shown = set(self.ground.shown[self.spec.number].events())
        place = place_of(queue, SHELL)
        missed = [
            message.sequence
            for message in self.all[:place]
            if HEADER.unpack_from(message.payload)[:3] not in shown
        ]
        if missed:
            self.wrong(f"a command's consumer is at {place}, and never showed {missed[:5]}")

    # --- a flow -----------------------------------------------------------------------------------

    def flow(self, opening: Opening) -> None:
        """Take the rest of the flow; then every element was stored once and came out."""
        queue = opening.got
        with contextlib.suppress(Over):
            flows.drain(opening)
        place = place_of(queue, DOWN)
        if place != queue.tail_sequence:
            self.wrong(f"the flow ends with {place} of {queue.tail_sequence} acknowledged")
        marked = self.ground.marked(self.spec.number, flows.DOWN_MARK)
        self.covered(place, marked, "the flow")
        for message in queue.replay():
            if message.payload != element(message.sequence):
                self.wrong(f"message {message.sequence} is another element")
                break

    # --- files ------------------------------------------------------------------------------------

    def files(self, last: int) -> None:
        """No file of a page that the queue does not have, and none that was left half made."""
        for name in sorted(os.listdir(self.spec.directory)):
            if not re.fullmatch(re.escape(self.spec.prefix) + r"[-.].*", name):
                continue
            page = PAGE.search(name)
            if page and int(page[1]) > last + 1:
                self.wrong(f"{name} is a file of no page; {last} is active")
            if "temporary" in name or name.endswith(".tmp"):
                self.wrong(f"{name} was left")


def _state(group: Group) -> str:
    """Return what a group's table has of messages that are not acknowledged."""
    file = group._group_file
    rows = file.records()
    size = fmt.GROUP_META.itemsize
    meta = np.frombuffer(file.region.read(0, size), fmt.GROUP_META)[0]
    words = {name: int(meta[name]) for name in SEARCH}
    return f"{rows[rows['word'] & 3 != 0].tolist()[:3]}, {words} at {time.monotonic_ns()}"


def judge(ground: Ground, _slot: int, _uid: int) -> None:
    """Judge all queues of a round."""
    guard = HangGuard(ground)
    for spec in ground.specs:
        guard.again()
        Judge(ground, spec, guard.again).run()
    guard.close()
