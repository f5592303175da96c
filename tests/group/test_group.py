"""Groups: claims, leases, redeliveries, and what is refused; in one process, on a clock of ours."""

from __future__ import annotations

import ctypes
import mmap
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from group_support import Leases, groups_on, send
from support import SOON, until_asleep

import pagequeue
from pagequeue import NothingReceived, Queue, Retention, errors
from pagequeue import format as fmt
from pagequeue.group.group import Group
from pagequeue.meta.meta_file import field_of
from pagequeue.page.large_message import LargeMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def clock() -> Leases:
    """Return a clock of leases."""
    return Leases()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Give a queue with small pages."""
    with Queue(tmp_path / "q", page_bytes=4096) as opened:
        yield opened


@pytest.fixture
def group_of(queue: Queue, clock: Leases) -> Iterator[Callable[..., Group]]:
    """Give what opens a group on our clock."""
    with groups_on(queue, clock) as make:
        yield make


def test_messages_are_claimed_in_order_each_once(
    queue: Queue, group_of: Callable[..., Group]
) -> None:
    """I15: two handles never have the same message."""
    send(queue, 6, "m")
    one, two = group_of(), group_of()
    claims = [handle.claim(timeout=0) for handle in (one, two, one, two, two, one)]
    assert [claim.message.payload for claim in claims] == [f"m{n}".encode() for n in range(6)]
    assert [claim.deliveries for claim in claims] == [1] * 6
    with pytest.raises(TimeoutError):
        one.claim(timeout=0)


def test_acknowledged_message_is_never_redelivered(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """I14: acknowledged in any order, the floor is the first that is not."""
    send(queue, 4, "m")
    group = group_of()
    claims = group.claim_many(4, timeout=0)
    claims[2].ack()
    claims[0].ack()
    assert queue.consumers()[0].next_sequence == 1
    claims[1].ack()
    assert queue.consumers()[0].next_sequence == 3
    claims[3].ack()
    assert queue.consumers()[0].next_sequence == 4
    clock.pass_seconds(100)
    with pytest.raises(TimeoutError):
        group.claim(timeout=0)
    assert group.lag == 0


def test_claim_whose_lease_ended_is_delivered_again_and_its_ack_refused(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """I15: a late acknowledgement has no effect."""
    send(queue, 2, "m")
    group = group_of(lease=10)
    late = group.claim(timeout=0)
    clock.pass_seconds(10)
    with pytest.raises(errors.LeaseLost) as lost:
        late.ack()
    assert lost.value.sequence == 0
    again = group.claim(timeout=0)
    assert again.message == late.message
    assert again.deliveries == 2
    for call in (late.ack, late.nack, lambda: late.extend(5)):
        with pytest.raises(errors.LeaseLost):
            call()
    again.ack()
    assert group.claim(timeout=0).message.sequence == 1


def test_returned_messages_are_redelivered_first_and_in_order(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """Redeliveries come before new messages, those with lower sequences first."""
    send(queue, 6, "m")
    group = group_of()
    claims = group.claim_many(4, timeout=0)
    for claim in (claims[3], claims[1]):
        claim.nack()
    claims[2].nack(delay=5)
    assert [group.claim(timeout=0).message.sequence for _ in range(3)] == [1, 3, 4]
    clock.pass_seconds(5)
    assert [group.claim(timeout=0).message.sequence for _ in range(2)] == [2, 5]


def test_extended_claim_is_kept(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """`extend` counts from now, also to less than there was."""
    send(queue, 1, "m")
    group = group_of(lease=10)
    claim = group.claim(timeout=0)
    clock.pass_seconds(9)
    claim.extend(20)
    clock.pass_seconds(19)
    with pytest.raises(TimeoutError):
        group.claim(timeout=0)
    claim.extend(1)
    clock.pass_seconds(1)
    assert group.claim(timeout=0).deliveries == 2


def test_claim_is_acknowledged_or_returned_once(
    queue: Queue, group_of: Callable[..., Group]
) -> None:
    """A second acknowledgement of one claim is an error of the caller."""
    send(queue, 2, "m")
    group = group_of()
    claim = group.claim(timeout=0)
    claim.ack()
    with pytest.raises(errors.UsageError, match="already acknowledged"):
        claim.ack()
    claim = group.claim(timeout=0)
    claim.nack()
    with pytest.raises(errors.UsageError):
        claim.extend(1)


def test_taken_message_is_acknowledged_at_once(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """`take` leaves no message outstanding, new or redelivered."""
    send(queue, 3, "m")
    group = group_of()
    claim = group.claim(timeout=0)
    assert group.take(timeout=0).sequence == 1
    claim.nack()
    assert group.take(timeout=0).sequence == 0
    assert group.outstanding == 0
    assert queue.consumers()[0].next_sequence == 2
    clock.pass_seconds(100)
    assert group.take(timeout=0).sequence == 2


def test_messages_of_many_pages_are_claimed(queue: Queue, group_of: Callable[..., Group]) -> None:
    """I10: a group continues from page to page, and redelivers from earlier pages."""
    send(queue, 1000, "m")
    group = group_of(capacity=2000)
    claims = []
    while len(claims) < 1000:
        claims += group.claim_many(1000, timeout=0)
    assert [claim.message.sequence for claim in claims] == list(range(1000))
    for claim in claims[::7]:
        claim.nack()
    again = [group.claim(timeout=0).message for _ in claims[::7]]
    assert again == [claim.message for claim in claims[::7]]


def test_full_table_refuses_more_claims(queue: Queue, group_of: Callable[..., Group]) -> None:
    """The number of outstanding messages is limited, with a separate error."""
    send(queue, 5, "m")
    group = group_of(capacity=3)
    claims = group.claim_many(10, timeout=0)
    assert len(claims) == 3
    with pytest.raises(errors.TooManyClaims):
        group.claim(timeout=0.01)
    claims[1].ack()
    assert group.claim(timeout=0).message.sequence == 3


def test_closed_handle_returns_its_claims(queue: Queue, group_of: Callable[..., Group]) -> None:
    """What was claimed is delivered again at once, and the closed handle refuses."""
    send(queue, 2, "m")
    one, two = group_of(), group_of()
    claim = one.claim(timeout=0)
    one.close()
    again = two.claim(timeout=0)
    assert (again.message, again.deliveries) == (claim.message, 2)
    for call in (claim.ack, one.claim, one.flush):
        with pytest.raises(errors.ClosedError):
            call()


def test_waiting_claim_is_woken_by_a_message_and_by_a_nack(queue: Queue) -> None:
    """I7: a worker that sleeps has it within far less than its timeout."""
    group = queue.group("work")
    got: list[pagequeue.Claim] = []
    for action in ("send", "nack"):
        thread = threading.Thread(target=lambda: got.append(group.claim(timeout=2 * SOON)))
        thread.start()
        until_asleep(thread)
        if action == "send":
            send(queue, 1, "m")
        else:
            got[0].nack()
        thread.join(SOON)
        assert not thread.is_alive()
    assert [claim.deliveries for claim in got] == [1, 2]


def test_spent_message_goes_to_the_dead_letters(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """`max_deliveries`: with reason and count, and acknowledged here."""
    send(queue, 2, "m")
    group = group_of(max_deliveries=2, lease=10)
    group.claim(timeout=0).nack()
    group.claim(timeout=0)
    clock.pass_seconds(10)
    assert group.claim(timeout=0).message.sequence == 1
    (letter,) = group.dead_letters()
    assert (letter.sequence, letter.payload, letter.deliveries) == (0, b"m0", 2)
    assert letter.reason == "was kept until its lease ended"
    assert queue.consumers()[0].next_sequence == 1
    with Queue(queue.directory, prefix=group.dead_letter_prefix, read_only=True) as dead:
        (message,) = dead.replay()
    assert pagequeue.DeadLetter.decode(message) == letter


def test_group_resumes_in_a_later_opening(tmp_path: Path) -> None:
    """I14: acknowledgements persist, claimed messages are redelivered with their count."""
    with Queue(tmp_path) as queue:
        send(queue, 5, "m")
        group = queue.group("work", backoff=None)
        claims = group.claim_many(3, timeout=0)
        claims[1].ack()
        group.claim(timeout=0).nack(delay=3600)
    with Queue(tmp_path) as queue:
        group = queue.group("work")
        again = [group.claim(timeout=0) for _ in range(3)]
        assert [(claim.message.sequence, claim.deliveries) for claim in again] == [
            (0, 2),
            (2, 2),
            (4, 1),
        ]
        assert group.outstanding == 4
        assert not queue.verify().problems


def test_flushed_state_survives_another_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I14: after a reboot the last flush counts; messages acknowledged later are redelivered."""
    with Queue(tmp_path) as queue:
        send(queue, 6, "m")
        with queue.producer() as producer:
            producer.flush()
        group = queue.group("work")
        claims = group.claim_many(4, timeout=0)
        claims[1].ack()
        claims[3].ack(durable=True)
        claims[0].ack()
        group.claim(timeout=0).ack()
        file = tmp_path / "queue-readMeta.work"
        as_it_was = file.read_bytes()
    file.write_bytes(as_it_was)  # the system died before the group was closed
    other = tmp_path.parent / "boot_id"
    other.write_text("11111111-2222-3333-4444-555555555555\n")
    monkeypatch.setattr("pagequeue.meta.write_meta.BOOT_ID_PATH", str(other))
    with Queue(tmp_path) as queue:
        group = queue.group("work")
        again = [group.claim(timeout=0) for _ in range(3)]
        assert [(claim.message.sequence, claim.deliveries) for claim in again] == [
            (2, 2),
            (4, 1),
            (5, 1),
        ]
        assert not queue.verify().problems


@contextmanager
def group_lock_held(path: Path) -> Iterator[None]:
    """Hold the lock of a group's file, as another worker does in a call."""
    library = ctypes.CDLL(None)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        mutex = ctypes.c_char.from_buffer(shared, field_of(fmt.GROUP_META, "mutex"))
        assert library.pthread_mutex_lock(ctypes.byref(mutex)) == 0
        yield
        assert library.pthread_mutex_unlock(ctypes.byref(mutex)) == 0
        del mutex


def test_taken_message_is_read_from_the_page_it_was_taken_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a thread waits for the lock, another one maps the next page, whose trim follows."""
    retention = Retention(drop_acknowledged=True)
    with Queue(tmp_path / "q", page_bytes=4096, retention=retention) as queue:
        group = queue.group("workers")
        with queue.producer() as producer:
            producer.send(b"one")
            producer.send(b"two")
            queue.rotate()
            producer.send(b"three")
        assert group.take(0).payload == b"one"
        real = Group._find

        def late(of: Group, *arguments: int) -> object:
            queue.trim()
            return real(of, *arguments)

        monkeypatch.setattr(Group, "_find", late)
        taken: list[bytes] = []
        thread = threading.Thread(target=lambda: taken.append(group.take(SOON).payload))
        with group_lock_held(Path(group._group_file.path)):
            thread.start()
            until_asleep(thread)  # it waits for the lock, and has chosen its page
            group._enter(queue._store.page(2).ready(0), 2)
        thread.join()
        assert taken == [b"two"]
        assert group.take(0).payload == b"three"


@pytest.mark.parametrize("step", ["_large", "_find"])
def test_taken_message_is_read_before_retention_can_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A large one, and one that was given back: their pages are not mapped when they are taken."""
    retention = Retention(drop_acknowledged=True)
    with Queue(tmp_path / "q", page_bytes=4096, retention=retention) as queue:
        group = queue.group("workers")
        with queue.producer() as producer:
            producer.send(b"small")
            producer.send(bytes(20_000))
            queue.rotate()
            producer.send(b"last")
        claim = group.claim(0)
        if step == "_find":
            assert [len(group.take(0).payload) for _ in range(2)] == [20_000, 4]
        claim.nack(0)
        real = getattr(Group, step)

        def late(of: Group, *arguments: object) -> object:
            queue.trim()
            return real(of, *arguments)

        monkeypatch.setattr(Group, step, late)
        assert group.take(0).payload == b"small"
        if step == "_large":
            assert [len(group.take(0).payload) for _ in range(2)] == [20_000, 4]
        assert group.lag == 0
        with pytest.raises(NothingReceived):
            group.take(0)


@pytest.mark.parametrize("pages", [100, 300])
def test_taken_large_message_outlives_retention(tmp_path: Path, pages: int) -> None:
    """One of more pages than a message keeps mapped is read before it is acknowledged."""
    payload = bytes(range(256)) * 16 * pages
    retention = Retention(drop_acknowledged=True)
    with Queue(tmp_path / "q", page_bytes=4096, retention=retention) as queue:
        group = queue.group("workers")
        with queue.producer() as producer:
            producer.send_many([payload, b"the next one"])
        message = group.take(0)
        queue.rotate()
        queue.trim()
        assert queue.head_sequence > message.sequence
        assert message.payload == payload
        with message.open() as file:
            assert file.read(10) == payload[:10]
        assert group.take(0).payload == b"the next one"


def test_large_message_that_cannot_be_read_is_not_taken(
    queue: Queue, group_of: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given back, and delivered when there is memory."""
    with queue.producer() as producer:
        producer.send_many([bytes(4096 * 300), b"small"])
    group = group_of()

    def fail(message: LargeMessage) -> None:
        raise MemoryError(message)

    with monkeypatch.context() as patch:
        patch.setattr(LargeMessage, "load", fail)
        with pytest.raises(MemoryError):
            group.take(0)
    assert (group.lag, group.outstanding) == (2, 1)
    assert len(group.take(0).payload) == 4096 * 300
    assert group.take(0).payload == b"small"
