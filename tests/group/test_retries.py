"""Messages whose deliveries fail: they wait, others do not, and there is a limit."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from group_support import SECOND, Leases, groups_on, send
from hypothesis import given
from hypothesis import strategies as st
from support import SOON, until

from pagequeue import NothingReceived, Queue, errors
from pagequeue import format as fmt
from pagequeue.util.retry import BACKOFF, DELIVERIES_MAX, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue import Claim
    from pagequeue.group.group import Group
    from pagequeue.types import Backoff

RULE = Retry(None, *BACKOFF)
MINUTE = 60.0


@pytest.fixture
def clock() -> Leases:
    """Return a clock of leases."""
    return Leases()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Give a queue."""
    with Queue(tmp_path / "q", page_bytes=4096) as opened:
        yield opened


@pytest.fixture
def group_of(queue: Queue, clock: Leases) -> Iterator[Callable[..., Group]]:
    """Give what opens a group on our clock, with the defaults of retries."""
    defaults = {"max_deliveries": DELIVERIES_MAX, "backoff": BACKOFF, "capacity": None}
    with groups_on(queue, clock, **defaults) as make:
        yield make


def finish_all(group: Group) -> list[tuple[int, int]]:
    """Acknowledge all that can be claimed now; return sequences and deliveries."""
    found = []
    while True:
        try:
            with group.claim(0) as claim:
                found.append((claim.message.sequence, claim.deliveries))
        except NothingReceived:
            return found


def wait_for(group: Group, clock: Leases) -> tuple[Claim, float]:
    """Let time pass until a message can be claimed; return the claim, and the seconds."""
    began, step = clock.now, SECOND // 100
    while clock.now < began + 2000 * SECOND:
        try:
            return group.claim(0), (clock.now - began) / SECOND
        except NothingReceived:
            clock.now += step
            step += step // 100
    raise AssertionError("no message is delivered any more")


# --- the rule -------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**32 - 1), st.floats(0, 1e9), st.floats(0, 1e9))
def test_delay_doubles_up_to_its_bound_less_at_most_a_quarter(
    number: int, deliveries: int, first: float, more: float
) -> None:
    """No overflow, whatever is given."""
    most = min(first + more, 1e9)
    full = min(int(first * 1e9) * 2 ** min(deliveries - 1, 80), int(most * 1e9))
    assert full * 3 // 4 <= Retry(None, first, most).delay_ns(number, deliveries) <= full


def test_messages_that_failed_together_come_back_apart() -> None:
    """So one that kills its worker does not take the same others with it each time."""
    delays = {RULE.delay_ns(number, 8) // (SECOND // 100) for number in range(100)}
    assert len(delays) > 80


def test_message_that_always_fails_keeps_no_other_waiting(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """It is delivered 20 times, twice as late each time, and is a dead letter then."""
    send(queue, 10, "m")
    group = group_of()
    with pytest.raises(ValueError, match="bad"), group.claim(0):
        raise ValueError("bad")
    assert finish_all(group) == [(number, 1) for number in range(1, 10)]
    seconds = []
    for number in range(2, DELIVERIES_MAX + 1):
        claim, waited = wait_for(group, clock)
        assert (claim.message.sequence, claim.deliveries) == (0, number)
        seconds.append(waited)
        with pytest.raises(ValueError, match="bad"), claim:
            raise ValueError("bad")
    for number, waited in enumerate(seconds):
        full = min(0.1 * 2**number, 600.0)
        assert 0.74 * full < waited < 1.3 * full + 0.1
    assert sum(seconds) > 3600, "an hour without the backend costs no message"
    clock.pass_seconds(1e6)
    assert finish_all(group) == []
    assert [(one.sequence, one.reason) for one in group.dead_letters()] == [(0, "ValueError: bad")]


def test_caller_may_say_when(queue: Queue, group_of: Callable[..., Group], clock: Leases) -> None:
    """`nack(delay=)` is exact, 0 included; without a back-off 0 is the default."""
    send(queue, 2, "m")
    group = group_of()
    group.claim(0).nack(0)
    claim = group.claim(0)
    assert (claim.message.sequence, claim.deliveries) == (0, 2)
    claim.nack(delay=5.0)
    clock.pass_seconds(4.99)
    assert finish_all(group) == [(1, 1)]
    clock.pass_seconds(0.01)
    claim = group.claim(0)
    claim.nack(None)
    with pytest.raises(NothingReceived):
        group.claim(0)
    clock.pass_seconds(1)
    with group_of(backoff=None) as other:
        other.claim(0).nack()
        assert other.claim(0).deliveries == 5


@pytest.mark.parametrize("end", ["lease", "close", "death", "exit"])
def test_message_that_ends_its_worker_waits_too(
    queue: Queue, group_of: Callable[..., Group], clock: Leases, end: str
) -> None:
    """However a worker loses the message, others are delivered before it comes again."""
    send(queue, 3, "m")
    group, other = group_of(), group_of()
    claim = group.claim(0)
    assert claim.message.sequence == 0
    if end == "lease":
        clock.pass_seconds(30)
    elif end == "close":
        group.close()
    elif end == "death":
        group._owner_lock.close()  # as the kernel does
        assert other._release_dead_owners()
    else:
        with pytest.raises(SystemExit), claim:
            raise SystemExit
    assert other.ready == 2
    assert finish_all(other) == [(1, 1), (2, 1)]
    again, waited = wait_for(other, clock)
    assert (again.message.sequence, again.deliveries) == (0, 2)
    assert 0.07 < waited < 0.2


def test_worker_that_was_stopped_past_its_lease_cannot_acknowledge(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """I15: neither while the message waits, nor when another worker has it."""
    send(queue, 1, "m")
    group, other = group_of(), group_of()
    late = group.claim(0)
    clock.pass_seconds(30)
    with pytest.raises(errors.LeaseLost):
        late.ack()
    assert finish_all(other) == []  # it waits from here on
    with pytest.raises(errors.LeaseLost):
        late.ack()
    again, _ = wait_for(other, clock)
    for call in (late.ack, late.nack, late.reject):
        with pytest.raises(errors.LeaseLost):
            call()
    again.ack()


def test_only_one_delivery_is_dead_after_the_first(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """`max_deliveries=1`: what was given back, and what its worker died with; neither waits."""
    send(queue, 2, "m")
    group = group_of(max_deliveries=1)
    group.claim(0).nack()
    held = group_of(max_deliveries=1)
    assert held.claim(0).message.sequence == 1
    held.close()
    assert finish_all(group) == []
    found = [(one.sequence, one.reason) for one in group.dead_letters()]
    assert found == [(0, "was given back"), (1, "was claimed by a worker that died")]
    assert (group.lag, clock.now) == (0, 5 * SECOND)


def test_name_without_room_for_dead_letters_has_no_limit(queue: Queue) -> None:
    """By default; a limit that is asked for is refused."""
    name = "n" * 100
    with pytest.raises(errors.InvalidOption):
        queue.group(name, max_deliveries=3)
    queue.group(name).close()


@pytest.mark.parametrize("backoff", [1.0, (1.0,), (1.0, 2.0, 3.0), (2.0, 1.0), (-1.0, 1.0), "ab"])
def test_invalid_back_off_is_refused(queue: Queue, backoff: Backoff) -> None:
    """The error shows the form."""
    with pytest.raises((errors.InvalidOption, errors.InvalidType), match="two numbers"):
        queue.group("work", backoff=backoff)


# --- many at once ---------------------------------------------------------------------------------


def test_message_whose_worker_died_comes_without_others(
    queue: Queue, group_of: Callable[..., Group], clock: Leases
) -> None:
    """One that kills its worker counts no more deliveries of those that were claimed with it."""
    send(queue, 40, "m")
    deliveries: dict[int, int] = {}
    done = set()
    poison = 17
    for _ in range(DELIVERIES_MAX * 40):
        with group_of() as group:  # dies at the poison, as a process would
            try:
                claims = group.claim_many(100, 0)
            except NothingReceived:
                clock.pass_seconds(1)
                continue
            for claim in claims:
                sequence = claim.message.sequence
                deliveries[sequence] = claim.deliveries
                if sequence == poison:
                    break
                claim.ack()
                done.add(sequence)
        if len(done) == 39:
            break
    assert len(done) == 39
    assert {count for sequence, count in deliveries.items() if sequence != poison} <= {1, 2}


def test_one_damaged_message_among_many_costs_the_others_nothing(
    queue: Queue, group_of: Callable[..., Group], clock: Leases, tmp_path: Path
) -> None:
    """Those before it are delivered, those after it next, and they count one delivery."""
    send(queue, 30, "m")
    frame = fmt.frame_bytes(2)
    with (tmp_path / "q" / "queue-0000000001.page").open("r+b") as file:
        file.seek(fmt.PAGE_HEADER_BYTES + 5 * frame + fmt.FRAME_HEADER_BYTES)
        file.write(b"?")
    group = group_of()
    first, second = group.claim_many(100, 0), group.claim_many(100, 0)
    assert [claim.message.sequence for claim in first] == list(range(5))
    assert [claim.message.sequence for claim in second] == list(range(6, 30))
    assert {claim.deliveries for claim in first + second} == {1}
    for claim in first + second:
        claim.ack()
    clock.pass_seconds(0.1)
    for claim in (group.claim, group.take, lambda timeout: group.claim_many(10, timeout)):
        with pytest.raises(errors.CorruptFrame):
            claim(0)
        clock.pass_seconds(10)
    for _ in range(DELIVERIES_MAX):
        clock.pass_seconds(601)
        try:
            group.claim(0)
        except errors.CorruptFrame:
            continue
        except NothingReceived:
            break
    assert [(one.sequence, one.reason) for one in group.dead_letters()] == [
        (5, "could not be read")
    ]


def test_message_that_memory_does_not_hold_stops_no_other(
    queue: Queue,
    group_of: Callable[..., Group],
    clock: Leases,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its delivery failed; when there is memory again, it is delivered."""
    with queue.producer() as producer:
        producer.send(bytes(20_000))
        producer.send(b"small")
    group = group_of()

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(group), "_large", fail)
        with pytest.raises(MemoryError):
            group.claim(0)
        assert finish_all(group) == [(1, 1)]
    clock.pass_seconds(0.1)
    assert finish_all(group) == [(0, 2)]


# --- dead letters that cannot be written ----------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [errors.DiskFull("no space", path="x"), errors.AccessDenied("denied", path="x"), OSError(5)],
)
def test_dead_letters_that_cannot_be_written_stop_no_other(
    queue: Queue,
    group_of: Callable[..., Group],
    clock: Leases,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """The log says it, once a minute; the message stays, and is moved when that is possible."""
    send(queue, 4, "m")
    group = group_of(max_deliveries=1)
    for claim in group.claim_many(2, 0):
        claim.nack()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "pagequeue"):
        patch.setattr(group._dead, "send", fail)
        assert finish_all(group) == [(2, 1), (3, 1)]
        clock.pass_seconds(MINUTE)
        assert finish_all(group) == []
    (record,) = caplog.records
    assert "message 0 was delivered 1 times" in record.getMessage()
    assert group.lag == 2
    clock.pass_seconds(MINUTE)
    assert finish_all(group) == []
    assert [one.sequence for one in group.dead_letters()] == [0, 1]
    assert group.lag == 0


def test_closing_delays_no_dead_letter(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next worker moves it at once: that a handle was closed is no fault of the message.

    A thread closes the handle, and another one claims and moves the message meanwhile.
    """
    send(queue, 1)
    group, other = (queue.group("work", max_deliveries=1) for _ in range(2))
    group.claim(timeout=0)
    closer = threading.Thread(target=group.close)
    send_letter = group._dead.send

    def closed_meanwhile(*letter: Any) -> None:  # noqa: ANN401 - of `send`
        flushing.close()
        closer.join()
        send_letter(*letter)
        raise errors.ClosedError("this producer is closed", path="x")

    monkeypatch.setattr(group._dead, "send", closed_meanwhile)
    with contextlib.ExitStack() as flushing:
        flushing.enter_context(other._flush_lock.exclusive(1.0, "keeping another from closing"))
        closer.start()
        until(lambda: other.ready == 1)  # it was given back, and the handle is not closed yet
        with pytest.raises(errors.ClosedError, match="this group is closed"):
            group.claim(timeout=0)
    with pytest.raises(NothingReceived):
        other.claim(timeout=0)
    assert other.lag == 0


# --- processes ------------------------------------------------------------------------------------


def test_message_waits_by_its_group_when_no_process_was_left(tmp_path: Path) -> None:
    """The next opener is alone, and does not know the rule; its handle of the group does."""
    with Queue(tmp_path) as queue:
        send(queue, 1)
    for deliveries in range(1, 5):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                group = Queue(tmp_path).group("work", backoff=None)
                os._exit(9 if group.claim(0).deliveries == deliveries else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    with Queue(tmp_path) as queue, queue.group("work", backoff=(100.0, 100.0)) as group:
        assert (group.lag, group.ready) == (1, 0)
        with pytest.raises(NothingReceived):
            group.claim(0)


def test_message_that_kills_every_process_keeps_no_other_waiting(tmp_path: Path) -> None:
    """No process is left that could notice the death: the next opener does.

    On a busy machine it can be due again before the others are done: the next process waits longer.
    """
    with Queue(tmp_path) as queue:
        send(queue, 4)
    deaths, code = 0, 9
    while code == 9:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with Queue(tmp_path) as mine, mine.group("work") as group:
                    while True:
                        with group.claim(SOON) as claim:
                            if claim.message.sequence == 0:
                                os._exit(9)
                            if claim.message.sequence == 3:
                                break
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:  # else it would go on as the process that runs the tests
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        deaths += code == 9
    assert code == 0
    assert 0 < deaths < 20
    with Queue(tmp_path) as queue, queue.group("work") as group:
        assert group.lag == 1
        claim = group.claim(SOON)
        assert (claim.message.sequence, claim.deliveries) == (0, deaths + 1)
