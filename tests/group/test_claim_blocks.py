"""Claims as `with` blocks, groups as iterators, rejected messages, and what dead letters show."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from group_support import Leases, group_on, send

from pagequeue import Queue, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue import Claim
    from pagequeue.group.group import Group


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Give a queue with small pages and two messages."""
    with Queue(tmp_path / "q", page_bytes=4096) as opened:
        send(opened, 2, "m")
        yield opened


def reasons(group: Group) -> list[tuple[int, str, int]]:
    """Return sequence, reason and deliveries of the dead letters."""
    return [(one.sequence, one.reason, one.deliveries) for one in group.dead_letters()]


class BadTextError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError


# --- with -----------------------------------------------------------------------------------------


def test_block_acknowledges_at_its_end(queue: Queue) -> None:
    """Also one that the block settled itself, which is left as it is."""
    group = queue.group("work")
    with group.claim(0) as claim:
        assert claim.message.payload == b"m0"
        assert group.outstanding == 1
    assert group.outstanding == 0
    with pytest.raises(errors.UsageError):
        claim.ack()
    with group.claim(0) as claim:
        claim.nack(0)
    assert group.claim(0).deliveries == 2


def test_block_that_raises_gives_back_with_the_error(queue: Queue) -> None:
    """The error propagates; on the last delivery it is the dead letter's reason."""
    group = queue.group("work", max_deliveries=2, backoff=None)
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"), group.claim(0):
            raise ValueError("no number")
    assert reasons(group) == [(0, "ValueError: no number", 2)]
    assert group.claim(0).message.sequence == 1
    assert queue.consumers()[0].next_sequence == 1


def test_error_whose_text_fails_is_named(queue: Queue) -> None:
    """The error of the block propagates, not that of its text."""
    group = queue.group("work", max_deliveries=1)
    with pytest.raises(BadTextError), group.claim(0):
        raise BadTextError
    assert reasons(group) == [(0, "BadTextError", 1)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_stopped_worker_is_no_reason(queue: Queue, kind: type[BaseException]) -> None:
    """The message is given back at once, and is no dead letter of its own."""
    group = queue.group("work", max_deliveries=1)
    with pytest.raises(kind), group.claim(0):
        raise kind
    assert reasons(group) == []
    assert group.ready == 2


def test_lost_lease_is_an_error_of_the_block(queue: Queue) -> None:
    """I15: a block that took too long does not acknowledge what another worker may have."""
    clock = Leases()
    with group_on(queue, clock, lease=10, max_deliveries=5) as group:
        with pytest.raises(errors.LeaseLost), group.claim(0):
            clock.pass_seconds(10)
        again = group.claim(0)
        assert (again.message.sequence, again.deliveries) == (0, 2)
        clock.pass_seconds(10)
        with pytest.raises(KeyError) as raised, again:
            raise KeyError
        (note,) = raised.value.__notes__
        assert "message 0 was not given back" in note
        assert "lease ended" in note


def test_async_block_does_the_same(queue: Queue) -> None:
    """Acknowledged at its end; given back with the error, which a thread puts on the disk."""

    async def main() -> None:
        group = queue.group("work", max_deliveries=1)
        async with await group.claim_async(60) as claim:
            assert claim.message.payload == b"m0"
        assert (group.outstanding, group.ready) == (0, 1)
        with pytest.raises(ValueError, match="bad"):
            async with group.claim(0):
                raise ValueError("bad")
        assert reasons(group) == [(1, "ValueError: bad", 1)]
        with queue.producer() as producer:
            producer.send_many([b"two", b"three"])
        with pytest.raises(asyncio.CancelledError):
            async with group.claim(0):
                raise asyncio.CancelledError
        async with group.claim(0) as claim:  # the one that was cancelled is dead now
            claim.nack()
        assert [letter.reason for letter in group.dead_letters()] == [
            "ValueError: bad",
            "was given back",
        ]

    asyncio.run(main())


# --- for ------------------------------------------------------------------------------------------


def test_group_is_iterated_until_it_is_closed(queue: Queue) -> None:
    """As a consumer: it waits for the next one, and ends in ClosedError."""
    group = queue.group("work")
    seen: list[bytes] = []
    ended: list[BaseException] = []
    is_idle = threading.Event()

    def work() -> None:
        try:
            for claim in group:
                with claim:
                    seen.append(claim.message.payload)
                if len(seen) == 3:
                    is_idle.set()
        except errors.ClosedError as error:
            ended.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    send(queue, 1, "later ")
    assert is_idle.wait(30)
    queue.close()
    worker.join(30)
    assert not worker.is_alive()
    assert seen == [b"m0", b"m1", b"later 0"]
    assert len(ended) == 1


# --- reasons and rejected messages ----------------------------------------------------------------


def test_rejected_message_is_a_dead_letter_at_once(queue: Queue) -> None:
    """Also in a group without `max_deliveries`; it is acknowledged, and counted."""
    group = queue.group("work")
    claims = group.claim_many(2, 0)
    claims[0].reject("not a picture")
    claims[1].reject()
    assert reasons(group) == [(0, "not a picture", 1), (1, "was rejected", 1)]
    assert [letter.payload for letter in group.dead_letters()] == [b"m0", b"m1"]
    assert (group.lag, group.ready) == (0, 0)
    found = queue.consumers()[0].group
    assert found is not None
    assert found.dead_letters == 2
    for call in (claims[0].reject, claims[0].ack):
        with pytest.raises(errors.UsageError):
            call()
    assert group.requeue_dead_letters() == 2
    assert [claim.message.payload for claim in group.claim_many(2, 0)] == [b"m0", b"m1"]


def test_each_dead_letter_of_many_workers_is_counted(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I15: the count is raised under the group's lock, with the acknowledgement."""
    each, workers = 300, 4
    send(queue, each * workers - 2, "n")
    group = queue.group("work")
    monkeypatch.setattr(group._dead, "send", lambda *_: None)
    claims = [group.claim_many(each, 0) for _ in range(workers)]
    while (left := each * workers - sum(map(len, claims))) > 0:
        claims.append(group.claim_many(left, 0))
    flat = [claim for some in claims for claim in some]

    def reject(share: list[Claim]) -> None:
        for claim in share:
            claim.reject()

    threads = [threading.Thread(target=reject, args=(flat[n::workers],)) for n in range(workers)]
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(switch_seconds)
    found = queue.consumers()[0].group
    assert found is not None
    assert found.dead_letters == each * workers


def test_claim_that_is_not_live_rejects_nothing(queue: Queue) -> None:
    """I15: its message is another worker's, so no dead letter is sent."""
    clock = Leases()
    with group_on(queue, clock, lease=10, max_deliveries=1) as group:
        claim = group.claim(0)
        clock.pass_seconds(10)
        calls: list[Callable[[], None]] = [claim.reject, lambda: claim.nack(reason="late")]
        for call in calls:
            with pytest.raises(errors.LeaseLost):
                call()
        assert reasons(group) == []


def test_lease_that_ends_while_the_letter_is_written_is_an_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is redelivered, and can be a dead letter twice."""
    clock = Leases()
    with group_on(queue, clock, lease=10) as group:
        claim = group.claim(0)
        clock.pass_seconds(9)
        monkeypatch.setattr(group._dead, "send", lambda *_: clock.pass_seconds(10))
        with pytest.raises(errors.LeaseLost):
            claim.reject()
        assert group.claim(0).message.sequence == 0


def test_letter_that_cannot_be_written_leaves_the_claim(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is the caller's to know, and the message still its own."""
    group = queue.group("work")
    claim = group.claim(0)

    def fail(*_: object) -> None:
        raise errors.DiskFull("no space", path="x")

    with monkeypatch.context() as patched:
        patched.setattr(group._dead, "send", fail)
        with pytest.raises(errors.DiskFull):
            claim.reject("bad")
    claim.reject("bad")
    assert reasons(group) == [(0, "bad", 1)]


def test_reason_of_an_early_delivery_is_not_kept(queue: Queue) -> None:
    """A dead letter shows how its last delivery ended."""
    group = queue.group("work", max_deliveries=2, backoff=None)
    group.claim(0).nack(reason="first try")
    group.claim(0).nack(0.0)
    assert group.claim(0).message.sequence == 1
    assert reasons(group) == [(0, "was given back", 2)]


def test_long_and_unusual_reasons_are_kept_as_text(queue: Queue) -> None:
    """At most 1024 bytes, not in the middle of a character."""
    group = queue.group("work")
    group.claim(0).reject("x" + "\u00e4" * 1000)
    group.claim(0).reject("half \ud800 a pair")
    first, second = group.dead_letters()
    assert first.reason == "x" + "\u00e4" * 511
    assert second.reason == "half \\ud800 a pair"
    assert (first.payload, second.payload) == (b"m0", b"m1")


def test_wrong_arguments_change_nothing(queue: Queue) -> None:
    """They are TypeErrors that name what is taken."""
    claim = queue.group("work", max_deliveries=1).claim(0)
    calls: list[Callable[[], object]] = [
        lambda: claim.nack(reason=5),  # type: ignore[arg-type]
        lambda: claim.reject(ValueError("x")),  # type: ignore[arg-type]
        lambda: claim.nack(0.0, "why"),  # type: ignore[misc]
        lambda: claim.nack(0.0, delay=1.0),  # type: ignore[misc]
        lambda: claim.nack(why="x"),  # type: ignore[call-arg]
        lambda: claim.reject("x", reason="y"),  # type: ignore[misc]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    claim.ack()


# --- the count ------------------------------------------------------------------------------------


def test_ready_counts_what_can_be_claimed_now(queue: Queue) -> None:
    """New messages, returned ones and those whose lease ended; not claimed or delayed ones."""
    clock = Leases()
    send(queue, 3)
    with group_on(queue, clock, lease=10) as group:
        counts = [group.ready]
        claims = group.claim_many(3, 0)
        counts.append(group.ready)
        claims[0].nack()
        counts.append(group.ready)
        claims[1].nack(delay=60)
        counts.append(group.ready)
        clock.pass_seconds(10)  # the third one's lease
        counts.append(group.ready)
        clock.pass_seconds(50)
        counts.append(group.ready)
        assert counts == [5, 2, 3, 3, 4, 5]


def test_ready_is_in_the_statistics(queue: Queue) -> None:
    """Of each group, for any process that can read the queue."""
    group = queue.group("work")
    claims = group.claim_many(2, 0)
    send(queue, 3)
    claims[0].nack(0)
    found = queue.stats().consumers[0].group
    assert found is not None
    assert (found.ready, found.claimed, found.waiting) == (4, 1, 1)
