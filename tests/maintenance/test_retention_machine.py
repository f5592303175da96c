"""Named consumers and retention against a list and a dict, whatever is done, in whatever order.

The list holds what was sent, the dict what each consumer received and acknowledged.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import SMALL, Clock
from tiers import examples

from pagequeue import InvalidOption, NamedConsumer, NothingReceived, Queue, QueueFull, Retention
from pagequeue.meta.cursor import CursorMeta
from stress.tampering import overwrite, pretend_power_cut

PAGES = 4
POLICIES = [
    Retention(max_bytes=PAGES * SMALL),
    Retention(max_bytes=PAGES * SMALL, drop_acknowledged=True),
]
name = st.sampled_from("ab")


@dataclass
class Known:
    """A consumer of the model."""

    acked: int
    next: int
    handle: NamedConsumer | None


class RetentionMachine(RuleBasedStateMachine):
    """Every rule does one thing to the queue and to the model, and compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="pagequeue-kept-")
        self.sent: list[bytes] = []
        self.known: dict[str, Known] = {}

    @initialize(policy=st.sampled_from(POLICIES))
    def create(self, policy: Retention) -> None:
        self.policy = policy
        self.open()

    def open(self) -> None:
        """Open the queue."""
        self.queue = Queue(
            self.directory, page_bytes=SMALL, clock=Clock(10**18), retention=self.policy
        )
        self.producer = self.queue.producer()

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.directory)

    @rule(size=st.integers(0, 1400), count=st.integers(1, 4))
    def send(self, size: int, count: int) -> None:
        """Sending is refused only when every page exists and a consumer lags."""
        for _ in range(count):
            item = b"%d:" % len(self.sent) + b"." * size
            try:
                sequence = self.producer.send(item)
            except QueueFull as full:
                self.check_full(full)
                return
            assert sequence == len(self.sent)
            self.sent.append(item)

    def check_full(self, full: QueueFull) -> None:
        """Every page is there, and those who keep the oldest are named."""
        assert self.queue.info().page_count == PAGES
        first = self.queue._store.first_sequence(self.queue.info().head_page + 1)
        behind = sorted(who for who, known in self.known.items() if known.acked < first)
        assert list(full.held_by) == behind != []

    @rule(who=name)
    def open_consumer(self, who: str) -> None:
        """A new one begins at the head, a known one after its last acknowledgement."""
        known = self.known.get(who)
        if known is not None and known.handle is not None:
            return
        handle = self.queue.consumer(who)
        assert isinstance(handle, NamedConsumer)
        if known is None:
            known = self.known[who] = Known(handle.sequence, handle.sequence, None)
        known.handle, known.next = handle, known.acked
        assert handle.sequence == handle.acknowledged == known.acked

    @rule(who=name)
    def close_consumer(self, who: str) -> None:
        known = self.known.get(who)
        if known is not None and known.handle is not None:
            known.handle.close()
            known.handle = None

    @rule(who=name, count=st.integers(1, 9))
    def receive(self, who: str, count: int) -> None:
        """Every message that is kept for a consumer is present."""
        known = self.known.get(who)
        if known is None or known.handle is None:
            return
        for _ in range(count):
            if known.next == len(self.sent):
                with pytest.raises(NothingReceived):
                    known.handle.receive(0)
                return
            message = known.handle.receive(0)
            assert (message.sequence, message.payload) == (known.next, self.sent[known.next])
            known.next += 1

    @rule(who=name, back=st.integers(-1, 5))
    def ack(self, who: str, back: int) -> None:
        known = self.known.get(who)
        if known is None or known.handle is None:
            return
        sequence = known.next - 1 - back
        if back < 0 or sequence < 0:
            with pytest.raises(InvalidOption):
                known.handle.ack(sequence)
        else:
            known.handle.ack(sequence)
            known.acked = max(known.acked, sequence + 1)
        assert known.handle.acknowledged == known.acked

    @rule(who=name, share=st.floats(0, 1))
    def seek(self, who: str, share: float) -> None:
        known = self.known.get(who)
        if known is None or known.handle is None:
            return
        head = self.queue.head_sequence
        known.handle.seek(sequence=head + int(share * (len(self.sent) - head)))
        known.acked = known.next = known.handle.sequence

    @rule(who=name)
    def remove(self, who: str) -> None:
        known = self.known.get(who)
        if known is not None and known.handle is None:
            self.queue.remove_consumer(who)
            del self.known[who]

    @rule()
    def rotate(self) -> None:
        try:
            self.queue.rotate()
        except QueueFull:
            assert self.queue.info().page_count == PAGES

    def _close(self) -> None:
        self.queue.close()
        for known in self.known.values():
            known.handle = None

    @rule()
    def reopen(self) -> None:
        self._close()
        self.open()

    @precondition(lambda self: self.known)
    @rule(ahead=st.integers(0, 50), older=st.booleans())
    def cut_power(self, ahead: int, *, older: bool) -> None:
        """All messages reached the disk; one cursor is older there, or ahead of the tail."""
        who = min(self.known)
        known = self.known[who]
        self.producer.flush()
        head = self.queue.head_sequence
        self._close()
        place = head if older else len(self.sent) + ahead
        path = Path(self.directory) / f"queue-readMeta.{who}"
        overwrite(path, CursorMeta.NEXT, place.to_bytes(8, "little"))
        pretend_power_cut(self.directory)
        self.open()
        known.acked = min(place, len(self.sent))

    @invariant()
    def no_page_kept_for_a_consumer_is_removed(self) -> None:
        """I11, I12. Trimmed here, so that no background trim runs meanwhile."""
        before = self.queue.head_sequence
        report = self.queue.trim()
        assert self.queue.head_sequence >= before + report.messages
        assert self.queue.trim().pages == 0
        head = self.queue.head_sequence
        assert all(known.acked >= head for known in self.known.values())
        if self.policy.drop_acknowledged and self.known:
            second = min(page.end_sequence for page in self.queue.pages())
            is_last = second == len(self.sent) and len(self.queue.pages()) == 1
            assert is_last or min(known.acked for known in self.known.values()) < second
        assert self.queue.tail_sequence == len(self.sent)
        found = [(m.sequence, m.payload) for m in self.queue.replay(sequence=head)]
        assert found == list(enumerate(self.sent))[head:]
        places = {c.name: c.next_sequence for c in self.queue.consumers()}
        assert places == {who: known.acked for who, known in self.known.items()}
        assert len(list(Path(self.directory).glob("*.page"))) <= PAGES


RetentionMachine.TestCase.settings = settings(
    max_examples=examples(25),
    stateful_step_count=30,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
class TestRetentionAgainstModel(RetentionMachine.TestCase):  # type: ignore[misc,name-defined]
    """I11, I12: unacknowledged messages are kept, and files never exceed the limit."""
