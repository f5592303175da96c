"""The queue against a list and a dict, with any operations in any order.

The list holds the messages sent, the dict the position of each consumer.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from support import SMALL, Clock, answer_commands, end, ready, start
from tiers import examples

from pagequeue import (
    Consumer,
    Message,
    NothingReceived,
    Overtaken,
    Queue,
    SequenceOutOfRange,
    TimestampOrder,
)
from pagequeue import format as fmt
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

LIMIT = fmt.payload_bytes_max(SMALL)
MICROSECOND = 1000
payload = st.one_of(
    st.binary(max_size=24),
    st.builds(
        lambda byte, count: byte * count, st.sampled_from([b"\0", b"x"]), st.integers(0, 900)
    ),
    st.integers(LIMIT - 9, LIMIT).map(lambda count: b"L" * count),
)
name = st.sampled_from("abc")
portion = st.floats(0, 1)
"""Chooses one of a number of things that is not known beforehand."""

helper: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def second_process() -> Iterator[None]:
    """Keep one other process, which opens, sends and closes for each line it gets."""
    helper.append(start(answer_commands.__name__))
    yield
    end(helper.pop())


class Place:
    """The position of a consumer of the model, and what it skips before its next message."""

    def __init__(self, handle: Consumer, sequence: int, since: int | None) -> None:
        self.handle = handle
        self.sequence = sequence
        self.since = since


class QueueMachine(RuleBasedStateMachine):
    """Every rule does one thing to the queue and to the model, and compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="pagequeue-model-")
        self.clock = Clock(1_700_000_000 * 10**9)
        self.sent: list[Message] = []
        self.places: dict[str, Place] = {}
        self.durable = 0

    @initialize()
    def create(self) -> None:
        self.queue = Queue(self.directory, page_bytes=SMALL, clock=self.clock)
        self.producer = self.queue.producer()

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.directory)

    # --- the model -----------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The last timestamp."""
        return self.sent[-1].timestamp if self.sent else 0

    def add(self, payloads: list[bytes], timestamp: int | None = None) -> range:
        """Send in the model; return the sequences."""
        moment = max(self.clock.now, self.last) if timestamp is None else timestamp
        first = len(self.sent)
        for i, item in enumerate(payloads, first):
            self.sent.append(Message(item, moment, i))
        return range(first, len(self.sent))

    def at_or_after(self, since: int) -> int:
        """Return the sequence of the first message that is not older."""
        return next((m.sequence for m in self.sent if m.timestamp >= since), len(self.sent))

    def time_near(self, share: float, shift: int) -> int:
        """Return a time near that of a message."""
        if not self.sent:
            return shift
        return self.sent[int(share * (len(self.sent) - 1))].timestamp + shift

    # --- sending -------------------------------------------------------------------------------

    @rule(step=st.integers(-(10**6), 10**6))
    def let_time_pass(self, step: int) -> None:
        self.clock.now += step * MICROSECOND

    @rule(item=payload)
    def send(self, item: bytes) -> None:
        assert self.producer.send(item) == self.add([item])[0]

    @rule(item=payload, ahead=st.integers(-3, 3))
    def send_at(self, item: bytes, ahead: int) -> None:
        timestamp = max(self.last + ahead, 0)
        if timestamp < self.last:
            with pytest.raises(TimestampOrder):
                self.producer.send(item, timestamp=timestamp)
        else:
            sequence = self.producer.send(item, timestamp=timestamp)
            assert sequence == self.add([item], timestamp)[0]

    @rule(items=st.lists(st.binary(max_size=300), max_size=9))
    def send_many(self, items: list[bytes]) -> None:
        assert self.producer.send_many(items) == self.add(items)

    @rule(items=st.lists(st.binary(max_size=300), max_size=4), shift=st.integers(-2, 2))
    def compare_and_append(self, items: list[bytes], shift: int) -> None:
        tail = len(self.sent)
        at = max(tail + shift, 0)
        sends = [lambda: self.producer.send_many(items, at=at)]
        if len(items) == 1:
            sends.append(lambda: range(sent := self.producer.send(items[0], at=at), sent + 1))
        for send in sends:
            if at == len(self.sent):
                assert send() == self.add(items)
            else:
                with pytest.raises(Overtaken) as raised:
                    send()
                assert raised.value.tail_sequence == len(self.sent)

    @rule(count=st.integers(120, 140))
    def send_many_small_ones(self, count: int) -> None:
        assert self.producer.send_many([b""] * count) == self.add([b""] * count)

    @rule(sizes=st.lists(st.sampled_from([0, 3000, SMALL, 3 * SMALL]), min_size=1, max_size=3))
    def send_large_ones(self, sizes: list[int]) -> None:
        items = [bytes([len(self.sent) & 255]) * size for size in sizes]
        assert self.producer.send_many(items) == self.add(items)

    @rule(item=st.binary(max_size=40))
    def send_from_another_process(self, item: bytes) -> None:
        stdin = helper[0].stdin
        assert stdin is not None
        stdin.write(json.dumps([self.directory, item.hex(), self.clock.now]) + "\n")
        stdin.flush()
        assert int(ready(helper[0])) == self.add([item])[0]

    @rule()
    def take_another_producer(self) -> None:
        self.producer = self.queue.producer()

    @rule()
    def rotate(self) -> None:
        self.queue.rotate()

    @rule()
    def flush(self) -> None:
        self.durable = self.producer.flush()
        assert self.durable == len(self.sent)

    # --- opening and closing -------------------------------------------------------------------

    @rule(power_cut=st.booleans())
    def reopen(self, *, power_cut: bool) -> None:
        self.queue.close()
        self.places.clear()
        if power_cut:
            pretend_power_cut(self.directory)
        self.queue = Queue(self.directory, create=False, clock=self.clock)
        assert self.queue.recovery.scanned == power_cut
        self.producer = self.queue.producer()
        if power_cut:
            self.durable = len(self.sent)

    # --- looking back --------------------------------------------------------------------------

    @rule(
        share=portion, shift=st.integers(-2, 2), length=st.integers(0, 10**7), batches=st.booleans()
    )
    def replay_a_span(self, share: float, shift: int, length: int, *, batches: bool) -> None:
        since = self.time_near(share, shift)
        until = since + length
        expected = [m for m in self.sent if since <= m.timestamp < until]
        if batches:
            found = self.queue.batches(since=since, until=until, limit_count=7)
            assert [m for batch in found for m in batch] == expected
        else:
            assert list(self.queue.replay(since=since, until=until)) == expected

    @rule(share=portion)
    def replay_from_a_sequence(self, share: float) -> None:
        first = int(share * len(self.sent))
        assert list(self.queue.replay(sequence=first)) == self.sent[first:]
        with pytest.raises(SequenceOutOfRange):
            self.queue.replay(sequence=len(self.sent) + 1)

    @rule(share=portion)
    def replay_since_long_ago(self, share: float) -> None:
        first = self.time_near(share, 0)
        aware = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=first // MICROSECOND)
        since = first // MICROSECOND * MICROSECOND
        expected = self.sent[self.at_or_after(since) :]
        assert list(self.queue.replay(since=aware)) == expected
        ago = timedelta(microseconds=(self.clock.now - since) // MICROSECOND)
        since = self.clock.now - ago // timedelta(microseconds=1) * MICROSECOND
        expected = self.sent[self.at_or_after(since) :]
        assert list(self.queue.replay(since=ago)) == expected

    @rule(count=st.integers(0, 200))
    def last_of_all(self, count: int) -> None:
        assert list(self.queue.last(count)) == self.sent[max(0, len(self.sent) - count) :]

    # --- consumers -----------------------------------------------------------------------------

    @rule(who=name)
    def consume_from_the_earliest(self, who: str) -> None:
        self.places[who] = Place(self.queue.consumer(), 0, None)

    @rule(who=name, share=portion, shift=st.integers(-2, 10**7))
    def consume_since(self, who: str, share: float, shift: int) -> None:
        since = self.time_near(share, shift)
        handle = self.queue.consumer(since=since)
        self.places[who] = Place(handle, self.at_or_after(since), since)

    @precondition(lambda self: self.places)
    @rule(who=name, share=portion, latest=st.booleans())
    def seek(self, who: str, share: float, *, latest: bool) -> None:
        place = self.places.get(who)
        if place is None:
            return
        place.sequence = len(self.sent) if latest else int(share * len(self.sent))
        place.since = None
        if latest:
            place.handle.seek(latest=True)
        else:
            place.handle.seek(sequence=place.sequence)
        assert place.handle.sequence == place.sequence

    def pass_over(self, place: Place) -> None:
        """Go on in the model over what is older than the consumer wants."""
        while (
            place.since is not None
            and place.sequence < len(self.sent)
            and self.sent[place.sequence].timestamp < place.since
        ):
            place.sequence += 1

    @precondition(lambda self: self.places)
    @rule(who=name, count=st.integers(1, 20))
    def poll(self, who: str, count: int) -> None:
        place = self.places.get(who)
        for _ in range(count if place else 0):
            assert place is not None
            self.pass_over(place)
            message = place.handle.poll()
            if place.sequence == len(self.sent):
                assert message is None
                break
            assert message == self.sent[place.sequence]
            place.sequence, place.since = place.sequence + 1, None

    @precondition(lambda self: self.places)
    @rule(who=name, limit=st.integers(1, 300))
    def receive_many(self, who: str, limit: int) -> None:
        place = self.places.get(who)
        if place is None:
            return
        self.pass_over(place)
        with contextlib.suppress(NothingReceived):
            batch = place.handle.receive_many(limit, timeout=0)
            assert 1 <= len(batch) <= limit
            assert list(batch) == self.sent[place.sequence : place.sequence + len(batch)]
            place.sequence, place.since = place.sequence + len(batch), None
            return
        assert place.sequence == len(self.sent)

    # --- what always holds ---------------------------------------------------------------------

    @invariant()
    def verify_finds_no_problem(self) -> None:
        report = self.queue.verify()
        assert report.ok, report.problems
        assert report.messages_checked == len(self.sent)

    @invariant()
    def tail_and_durable_mark_are_those_of_the_model(self) -> None:
        assert (self.queue.head_sequence, self.queue.tail_sequence) == (0, len(self.sent))
        assert self.queue.durable_sequence == self.durable
        assert len(self.queue) == len(self.sent)
        for place in self.places.values():
            assert place.handle.lag == len(self.sent) - place.handle.sequence

    @invariant()
    def no_temporary_file_is_left(self) -> None:
        assert not list(Path(self.directory).glob("*.tmp-*"))


QueueMachine.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
class TestQueueAgainstModel(QueueMachine.TestCase):  # type: ignore[misc,name-defined]
    """I1, I2, I5, I6, I8: the queue does what a list would do, and keeps its files right."""
