"""Groups against a model: claims, leases on a clock of ours, deaths, flushes and other boots."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from group_support import group_on
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiers import examples

from pagequeue import Queue, _core, errors
from pagequeue.meta.group_table import Waiting, decode_snapshot, encode_snapshot
from pagequeue.util.retry import Retry

if TYPE_CHECKING:
    from pagequeue import Claim
    from pagequeue.group.group import Group

SECOND = 1_000_000_000
CAPACITY = 6
LEASES = (3, 10)
MAX_DELIVERIES = (None, 3)
RETRIES = tuple(Retry(most, 1.0, 7.0) for most in MAX_DELIVERIES)


@dataclass
class Record:
    """A message that was claimed and is not acknowledged."""

    deliveries: int
    when: int  # its lease ends, or it is due
    claim: object = None  # the one that is live; None: it waits

    def copy(self) -> Record:
        """Return a separate one."""
        return Record(self.deliveries, self.when, self.claim)


@dataclass
class Model:
    """What a group is, in a few lines."""

    sent: int = 0
    new: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    dead: list[tuple[int, int]] = field(default_factory=list)

    @property
    def floor(self) -> int:
        """All below it is done."""
        return min(self.records, default=self.new)

    def fail(self, sequence: int, since: int, retry: Retry) -> None:
        """A delivery failed: the message waits by the rule of the handle that noticed."""
        record = self.records[sequence]
        wait = (
            0 if retry.is_spent(record.deliveries) else retry.delay_ns(sequence, record.deliveries)
        )
        record.when, record.claim = since + wait, None

    def claim(self, now: int, retry: Retry) -> tuple[int, int] | None:
        """Return sequence and delivery of what is claimed next."""
        for sequence in sorted(self.records):
            record = self.records[sequence]
            if record.claim is not None and record.when <= now:
                self.fail(sequence, record.when, retry)
            if record.when <= now:
                if retry.is_spent(record.deliveries):
                    self.dead.append((sequence, record.deliveries))
                    del self.records[sequence]
                    continue
                return sequence, record.deliveries + 1
        return (self.new, 1) if self.new < self.sent else None

    def snapshot(self, now: int) -> tuple[int, dict[int, Record]]:
        """Return the state that a flush keeps: claims are void, delays remain."""
        kept = {}
        for sequence, record in self.records.items():
            waits = record.claim is None and record.when > now
            kept[sequence] = Record(record.deliveries, record.when - now if waits else 0)
        return self.new, kept


def table_of(group: Group) -> list[Waiting]:
    """Return what a group's table has, in order."""
    data = encode_snapshot(1, *group._snapshot())
    snapshot = decode_snapshot(data)
    assert snapshot is not None
    return snapshot.waiting


class GroupMachine(RuleBasedStateMachine):
    """Two places for handles, with different leases and limits."""

    @initialize()
    def begin(self) -> None:
        """Make queue and group."""
        self.directory = Path(tempfile.mkdtemp(prefix="pagequeue-groups-"))
        self.boot = 0
        self.boot_id = self.directory / "boot_id"
        self.boot_id.write_text("00000000-0000-0000-0000-000000000000\n")
        self.patch = mock.patch("pagequeue.meta.write_meta.BOOT_ID_PATH", str(self.boot_id))
        self.patch.start()
        self.now = 0
        self.model = Model()
        self.held: list[tuple[int, int, Claim]] = []  # place, sequence, claim
        self.capacity = CAPACITY
        self.handles: list[Group | None] = [None, None]
        self.queue = Queue(self.directory / "q", page_bytes=4096)
        self.open_handle(0)
        self.note_flush()
        self.handle(0).flush()

    def note_flush(self) -> None:
        """Note what is on stable storage now."""
        self.flushed = self.model.snapshot(self.now)
        self.flushed_at = time.monotonic()

    def teardown(self) -> None:
        """Leave no file."""
        if hasattr(self, "directory"):
            self.close_all()
            self.patch.stop()
            shutil.rmtree(self.directory)

    def close_all(self) -> None:
        """Close the handles, which are not the queue's, and the queue."""
        for place in (0, 1):
            self.close(place)
        self.queue.close()

    def handle(self, place: int) -> Group:
        """Return the handle in a place, opened if need be."""
        group = self.handles[place]
        return self.open_handle(place) if group is None else group

    def open_handle(self, place: int) -> Group:
        """Open a handle."""
        group = self.handles[place] = group_on(
            self.queue,
            lambda: self.now,
            lease=LEASES[place],
            max_deliveries=MAX_DELIVERIES[place],
            backoff=RETRIES[place][1:],
            capacity=self.capacity,
        )
        return group

    def forget(self, place: int, noticed_by: int) -> None:
        """Whatever a handle held waits again."""
        for sequence, record in self.model.records.items():
            if record.claim is not None and self.place_of(record.claim) == place:
                self.model.fail(sequence, self.now, RETRIES[noticed_by])
        self.handles[place] = None

    def place_of(self, claim: object) -> int:
        """Return which handle made a claim."""
        return next(place for place, _, held in self.held if held is claim)

    # --- what is done -----------------------------------------------------------------------------

    @rule(count=st.integers(1, 30))
    def send(self, count: int) -> None:
        """Send messages, of sizes that fill pages now and then."""
        with self.queue.producer() as producer:
            for _ in range(count):
                producer.send(b"%d" % self.model.sent * 40)
                self.model.sent += 1

    def took(self, place: int, claim: Claim, expected: tuple[int, int] | None) -> None:
        """Compare a claim, and note it."""
        sequence = claim.message.sequence
        assert (sequence, claim.deliveries) == expected
        assert claim.message.payload == b"%d" % sequence * 40
        self.held.append((place, sequence, claim))
        self.model.records[sequence] = Record(
            claim.deliveries, self.now + LEASES[place] * SECOND, claim
        )
        self.model.new = max(self.model.new, sequence + 1)

    @rule(place=st.integers(0, 1))
    def claim(self, place: int) -> None:
        """Claim one."""
        group = self.handle(place)
        expected = self.model.claim(self.now, RETRIES[place])
        is_full = len(self.model.records) >= self.capacity
        if expected is None or (is_full and expected[1] == 1):
            with pytest.raises(errors.TooManyClaims if is_full else errors.NothingReceived):
                group.claim(timeout=0)
            return
        self.took(place, group.claim(timeout=0), expected)

    @rule(place=st.integers(0, 1), limit=st.integers(1, 8))
    def claim_many(self, place: int, limit: int) -> None:
        """Claim several: the same as one after the other, up to where a batch may end."""
        group = self.handle(place)
        try:
            claims = group.claim_many(limit, timeout=0)
        except TimeoutError:
            claims = []
        assert len(claims) <= limit
        for claim in claims:
            self.took(place, claim, self.model.claim(self.now, RETRIES[place]))
        # A batch can end with messages moved to the dead letters; only `dead_letters` shows them.
        for letter in list(group.dead_letters())[len(self.model.dead) :]:
            record = self.model.records.pop(letter.sequence)
            assert record.deliveries == letter.deliveries == MAX_DELIVERIES[place]
            assert record.when <= self.now
            self.model.dead.append((letter.sequence, letter.deliveries))
        if not claims:
            expected = self.model.claim(self.now, RETRIES[place])
            assert expected is None or (
                expected[1] == 1 and len(self.model.records) >= self.capacity
            )

    @rule(place=st.integers(0, 1))
    def take(self, place: int) -> None:
        """Take one for good."""
        group = self.handle(place)
        expected = self.model.claim(self.now, RETRIES[place])
        if expected is None:
            with pytest.raises(TimeoutError):
                group.take(timeout=0)
            return
        assert group.take(timeout=0).sequence == expected[0]
        self.model.records.pop(expected[0], None)
        self.model.new = max(self.model.new, expected[0] + 1)

    def live(self, at: int) -> tuple[int, Claim, Record | None]:
        """Return a claim that was made some time, and its record if it is live."""
        place, sequence, claim = self.held[at % len(self.held)]
        record = self.model.records.get(sequence)
        is_live = record is not None and record.claim is claim and record.when > self.now
        assert self.handles[place] is not None or not is_live
        return sequence, claim, record if is_live else None

    @precondition(lambda self: getattr(self, "held", None))
    @rule(at=st.integers(0, 1000), durable=st.booleans())
    def acknowledge(self, at: int, durable: bool) -> None:
        """Acknowledge a claim, live or not."""
        sequence, claim, record = self.live(at)
        if record is None:
            with pytest.raises((errors.LeaseLost, errors.UsageError)):
                claim.ack()
            return
        claim.ack(durable=durable)
        del self.model.records[sequence]
        if durable:
            self.note_flush()

    @precondition(lambda self: getattr(self, "held", None))
    @rule(at=st.integers(0, 1000), delay=st.none() | st.integers(0, 5))
    def give_back(self, at: int, delay: int | None) -> None:
        """Give a claim back, live or not."""
        place = self.held[at % len(self.held)][0]
        sequence, claim, record = self.live(at)
        if record is None:
            with pytest.raises((errors.LeaseLost, errors.UsageError)):
                claim.nack(delay)
            return
        claim.nack(delay=delay)
        if delay is None:
            self.model.fail(sequence, self.now, RETRIES[place])
        else:
            record.when, record.claim = self.now + delay * SECOND, None

    @precondition(lambda self: getattr(self, "held", None))
    @rule(at=st.integers(0, 1000), seconds=st.integers(0, 20))
    def extend(self, at: int, seconds: int) -> None:
        """Extend a claim, live or not."""
        _, claim, record = self.live(at)
        if record is None:
            with pytest.raises((errors.LeaseLost, errors.UsageError)):
                claim.extend(seconds)
            return
        claim.extend(seconds)
        record.when = self.now + seconds * SECOND

    @precondition(lambda self: all(self.handles))
    @rule(capacity=st.integers(3, 40))
    def limit(self, capacity: int) -> None:
        """Raise or lower the limit, so that the table grows under the handles that are open."""
        self.close(0)
        self.capacity = capacity
        self.open_handle(0)

    @rule(seconds=st.integers(1, 6))
    def pass_time(self, seconds: int) -> None:
        """Let time pass."""
        self.now += seconds * SECOND

    @rule(place=st.integers(0, 1))
    def close(self, place: int) -> None:
        """Close a handle: what it held waits, and the state is written, though not synced."""
        group = self.handles[place]
        if group is not None:
            group.close()
            self.forget(place, place)
            self.note_flush()

    @rule(place=st.integers(0, 1))
    def die(self, place: int) -> None:
        """Kill a handle's owner: the kernel releases its byte, and another handle checks owners."""
        group = self.handles[place]
        if group is None:
            return
        group._owner_lock.close()
        group._leave()
        group._flush_lock.close()
        self.handles[place] = None
        self.handle(1 - place)._release_dead_owners()
        self.forget(place, 1 - place)

    @rule(place=st.integers(0, 1))
    def flush(self, place: int) -> None:
        """Put the state on stable storage."""
        self.handle(place).flush()
        self.note_flush()

    @rule()
    def reopen(self) -> None:
        """Close everything and open it again, in the same boot."""
        path = self.queue.directory
        self.close_all()
        self.queue = Queue(path)
        self.handle(0)

    @rule()
    def reboot(self) -> None:
        """Close everything, and open it in another boot: what was flushed or closed counts."""
        path, floor = self.queue.directory, self.model.floor
        self.close_all()
        self.boot += 1
        self.boot_id.write_text(f"{self.boot:08x}-0000-0000-0000-000000000000\n")
        self.queue = Queue(path)
        self.now = _core.monotonic()
        new, records = self.flushed
        self.model.new = max(new, floor)
        self.model.records = {
            sequence: Record(record.deliveries, self.now + record.when if record.when else 0)
            for sequence, record in records.items()
            if sequence >= floor
        }
        flushed_at = self.flushed_at
        self.note_flush()
        self.open_handle(0)
        # Delays go by the system's clock meanwhile, and in the model whole seconds pass.
        assume(time.monotonic() - flushed_at < 0.9)

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        """I14: the floor, what is outstanding, and the dead letters are the model's."""
        if not hasattr(self, "queue"):
            return
        (info,) = self.queue.consumers()
        assert info.next_sequence == self.model.floor
        group = next((handle for handle in self.handles if handle is not None), None)
        if group is None:
            return
        found = [(one.sequence, one.deliveries) for one in table_of(group)]
        known = [(n, self.model.records[n].deliveries) for n in sorted(self.model.records)]
        assert found == known
        assert group.outstanding == len(found)
        assert group.lag == self.model.sent - self.model.new + len(self.model.records)
        letters = [(one.sequence, one.deliveries) for one in group.dead_letters()]
        assert letters == self.model.dead


GroupMachine.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)
TestGroupMachine = pytest.mark.slow(GroupMachine.TestCase)
