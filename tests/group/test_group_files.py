"""The files of groups: damaged, truncated, replaced, cut off, and passed by retention."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from group_support import send
from support import settle, within

from pagequeue import Queue, Retention, errors
from pagequeue import format as fmt
from pagequeue.meta.group_table import GroupTable, decode_snapshot
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pagequeue.group.group import Group

PAGE_BYTES = 4096
DONE_GOES = Retention(max_age=timedelta(microseconds=1))


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_file_is_an_error_and_keeps_pages(tmp_path: Path) -> None:
    """The group's position is lost: verify reports it, and no file is changed."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 500)
        queue.group("work").claim(timeout=0)
    path = tmp_path / "queue-readMeta.work"
    good = path.read_bytes()
    for damage in (
        good[:100],
        good[:4096],
        b"x" * len(good),
        good[:16] + b"y" * 16 + good[32:],
        good[:36] + b"\0\0\0\0" + good[40:],
        good[:36] + b"\xff\xff\xff\x7f" + good[40:],
    ):
        path.write_bytes(damage)
        with Queue(tmp_path) as queue:
            with pytest.raises((errors.CorruptMeta, errors.UsageError)):
                queue.group("work")
            assert queue.verify().problems
            assert queue.consumers()[0].problem
            assert queue.trim().pages == 0
    path.write_bytes(good)


def test_any_bytes_in_the_table_are_survived(tmp_path: Path) -> None:
    """I9: whatever links, slots and counts contain, only the file is touched, and no call hangs."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 200)
        queue.group("work", capacity=16).close()
    path = tmp_path / "queue-readMeta.work"
    for seed in range(30):
        noise = bytes((seed * 37 + at * at) % 256 for at in range(200, 290))
        with Queue(tmp_path) as queue:
            group = queue.group("work", lease=0.001)
            group.claim_many(5, timeout=60)
            with path.open("r+b") as file:
                file.seek(256 if seed % 2 else 4096 + 8 * (seed % 100))
                file.write(noise[: 32 if seed % 2 else 80])
            for _ in range(20):
                try:
                    group.claim(timeout=0).ack()
                except errors.PageQueueError:
                    continue
            queue.consumers()
        path.unlink()
        with Queue(tmp_path) as queue:
            queue.group("work", capacity=16).close()


def test_a_file_truncated_under_a_handle_is_an_error(tmp_path: Path) -> None:
    """I9: no SIGBUS, and no success that is nowhere."""
    with Queue(tmp_path) as queue:
        send(queue, 3)
        group = queue.group("work")
        claim = group.claim(timeout=0)
        os.truncate(tmp_path / "queue-readMeta.work", 0)
        for call in (claim.ack, lambda: group.claim(timeout=0), group.flush):
            with pytest.raises(errors.CorruptMeta):
                call()
        group.close()


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    """I15: two files would be two tables, and every message could be claimed twice."""
    with Queue(tmp_path) as queue:
        send(queue, 3)
        group = queue.group("work")
        group.claim(timeout=0)
        path = tmp_path / "queue-readMeta.work"
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(errors.LockReplaced):
            group._on_place()
        with pytest.raises(errors.ClosedError):
            group.claim(timeout=0)
        with pytest.raises(errors.CorruptMeta, match="put there"):
            queue.group("work")


def test_a_file_whose_creator_died_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dying between the file's name and its first use locks no process out."""
    with Queue(tmp_path) as queue:
        send(queue, 3)
        with monkeypatch.context() as patch:
            patch.setattr(GroupTable, "reset", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                queue.group("work", sequence=1)
        with pytest.raises(errors.UsageError, match="exists"):
            queue.group("work", sequence=1)
        assert queue.group("work").claim(timeout=0).message.sequence == 1


def test_a_failed_flush_raises_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged it is; and each flush writes all of it again, so that another try means it."""
    with Queue(tmp_path) as queue:
        send(queue, 2)
        group = queue.group("work")
        claim = group.claim(timeout=0)
        with monkeypatch.context() as patch:
            patch.setattr("pagequeue.system.file_lock.os.fdatasync", refuse)
            with pytest.raises(errors.SyncFailed):
                claim.ack(durable=True)
        assert group.outstanding == 0
        before = group._group_file.region.load(GroupTable.SNAPSHOT)
        group.flush()
        assert group._group_file.region.load(GroupTable.SNAPSHOT) == before + 1
        queue.producer().send(b"the queue itself is not latched")


def refuse(fd: int) -> None:
    """Fail as a disk does."""
    del fd
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_damaged_message_does_not_stop_the_workers(tmp_path: Path) -> None:
    """It is reported, retried later, and moved to the dead letters; others continue."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 3)
        page = tmp_path / "queue-0000000001.page"
        with page.open("r+b") as file:
            file.seek(fmt.PAGE_HEADER_BYTES + fmt.FRAME_HEADER_BYTES)
            file.write(b"?")
        group = queue.group("work", max_deliveries=1)
        with pytest.raises(errors.CorruptFrame) as told:
            group.claim(timeout=0)
        assert told.value.sequence == 0
        assert [group.claim(timeout=0).message.sequence for _ in range(2)] == [1, 2]
        with within(60):
            while not list(group.dead_letters()):
                with pytest.raises(TimeoutError):
                    group.claim(timeout=0.5)
        (letter,) = group.dead_letters()
        assert (letter.sequence, letter.payload, letter.reason) == (0, None, "could not be read")


@pytest.mark.parametrize("word", [0x3FFFFFFF, 7, 0], ids=["long", "short", "none"])
def test_damaged_head_of_the_next_message_keeps_none_back_that_came_again(
    tmp_path: Path, word: int
) -> None:
    """Where it ends is unknown, so new ones wait for a repair: the error says where, and how."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 6)
        group = queue.group("work", backoff=None)
        claims = [group.claim(timeout=0) for _ in range(3)]
        _, _, position = group._next()
        path = str(tmp_path / "queue-0000000001.page")
        overwrite(path, position, word.to_bytes(4, "little"))
        for claim in claims[:2]:
            claim.nack()
        assert group.claim(timeout=0).message.sequence == 0
        assert [claim.message.sequence for claim in group.claim_many(5, timeout=0)] == [1]
        for call in (group.claim, group.take, partial(group.claim_many, 5)):
            with pytest.raises(errors.CorruptFrame, match="repair or salvage") as told:
                call(timeout=0)
            assert (told.value.path, told.value.position) == (path, position)
            assert told.value.sequence == 3
        claims[2].nack()  # and while a worker is told so, what comes back is delivered
        with group.claim(timeout=0) as claim:
            assert claim.message.sequence == 2
        assert group.outstanding == 2


# --- power cuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errors.ClosedError, errors.SystemLimit, KeyboardInterrupt])
def test_a_claim_that_its_worker_cannot_read_is_redelivered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The queue was closed meanwhile, or a limit was reached: that is no delivery."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            producer.send_many([bytes(3000)])
            producer.send_many([bytes(3000)])
        one, other = queue.group("work"), queue.group("work")
        first, second = one.claim(timeout=0), one.claim(timeout=0)
        first.nack(0)  # its page is not the one that the worker has at hand

        def fail(*_: object) -> None:
            raise error("between claiming and reading")

        with monkeypatch.context() as patch:
            patch.setattr(type(one), "_find", fail)
            with pytest.raises(error):
                one.claim(timeout=0)
        again = other.claim(timeout=0)
        assert (again.message.sequence, again.deliveries) == (first.message.sequence, 2)
        second.ack()


def test_a_torn_snapshot_leaves_the_one_before(tmp_path: Path) -> None:
    """I14: two places, in turn; what was flushed is never written to."""
    with Queue(tmp_path) as queue:
        send(queue, 10)
        group = queue.group("work", capacity=16)
        for claim in group.claim_many(5, timeout=0):
            if claim.message.sequence != 0:
                claim.ack()
        group.flush()
        group.claim(timeout=0).ack()
        group.flush()
        ordinal = group._group_file.region.load(GroupTable.SNAPSHOT)
        path = tmp_path / "queue-readMeta.work"
        data = bytearray(path.read_bytes())  # before closing writes another one
    at = fmt.snapshot_at(16, ordinal)
    newest = decode_snapshot(bytes(data[at : at + fmt.snapshot_bytes(16)]))
    assert newest is not None
    assert newest.new_sequence == 6
    data[at + 20] ^= 1
    data[80:112] = b"\x55" * 32
    path.write_bytes(data)
    pretend_power_cut(tmp_path)
    with Queue(tmp_path) as queue:
        group = queue.group("work")
        again = [group.claim(timeout=0) for _ in range(2)]
        assert [(one.message.sequence, one.deliveries) for one in again] == [(0, 2), (5, 1)]


def test_closing_writes_a_snapshot_to_the_place_that_a_flush_does_not_need(tmp_path: Path) -> None:
    """F2, F4: torn by a power cut, whatever the number of closings, the last flush's is used."""
    file = tmp_path / "queue-readMeta.work"
    with Queue(tmp_path) as queue:
        send(queue, 10)
        group = queue.group("work", capacity=16, backoff=None)
        kept = [group.claim(timeout=0)]
        group.claim(timeout=0).ack()
        group.flush()
        flushed = group._group_file.region.load(GroupTable.SNAPSHOT)
        for _ in range(3):
            group.close()  # message 0 is given back each time, so the floor stays there
            group = queue.group("work", capacity=16, backoff=None)
            kept.append(group.claim(timeout=0))
            group.claim(timeout=0).ack()
        group.close()
        assert {claim.message.sequence for claim in kept} == {0}
    data = bytearray(file.read_bytes())
    size = fmt.snapshot_bytes(16)
    for ordinal, new_sequence in ((flushed, 2), (flushed + 1, 5)):
        at = fmt.snapshot_at(16, ordinal)
        found = decode_snapshot(bytes(data[at : at + size]))
        assert found is not None
        assert (found.ordinal, found.new_sequence) == (ordinal, new_sequence)
    for torn, following in ((False, 5), (True, 2)):
        if torn:
            data[fmt.snapshot_at(16, flushed + 1) + 20] ^= 1
        data[80:112] = b"\x55" * 32
        file.write_bytes(data)
        pretend_power_cut(tmp_path)
        with Queue(tmp_path) as queue:
            group = queue.group("work")
            again = [group.claim(timeout=0) for _ in range(2)]
            assert [claim.message.sequence for claim in again] == [0, following]


def test_a_group_ahead_of_the_tail_is_lowered(tmp_path: Path) -> None:
    """I11: sequences that the cut took are assigned again, and no worker skips them."""
    with Queue(tmp_path) as queue:
        send(queue, 4)
        group = queue.group("work", capacity=16, backoff=None)
        for claim in group.claim_many(4, timeout=0)[1:]:
            claim.ack()
        group.flush()
    other = tmp_path / "other"
    with Queue(other) as queue:
        send(queue, 2)
    # The queue has two messages only.
    with Queue(tmp_path) as queue:
        frame = fmt.frame_bytes(1)
    for name, size in (("page", frame), ("idx", fmt.INDEX_RECORD_BYTES)):
        start = fmt.PAGE_HEADER_BYTES if name == "page" else 0
        with (tmp_path / f"queue-0000000001.{name}").open("r+b") as file:
            file.seek(start + 2 * size)
            file.write(bytes(2 * size))
    path = tmp_path / "queue-readMeta.work"
    data = bytearray(path.read_bytes())
    data[80:112] = b"\x55" * 32
    path.write_bytes(data)
    pretend_power_cut(tmp_path)
    with Queue(tmp_path) as queue:
        assert queue.tail_sequence == 2
        send(queue, 1)
        group = queue.group("work")
        got = [group.claim(timeout=0).message.sequence for _ in range(2)]
        assert got == [0, 2]


# --- retention ------------------------------------------------------------------------------------


def test_retention_keeps_messages_that_a_group_has_not_acknowledged(tmp_path: Path) -> None:
    """I12: claimed is not acknowledged; one message in the first page keeps all pages."""
    keep = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=keep, on_full="drop_oldest") as queue:
        group = queue.group("work", on_expired="skip")
        send(queue, 150)
        first, *others = group.claim_many(100, timeout=0)
        for claim in others:
            claim.ack()
        assert queue.trim().held_by in {("work",), ()}
        assert queue.head_sequence == 0
        first.ack()
        send(queue, 600)
        head = queue.head_sequence
        assert head > 150
        group.close()  # it could finish the page that it has mapped
        group = queue.group("work", on_expired="skip")
        assert group.claim(timeout=0).message.sequence == head
        assert group.missed == head - 100


def test_a_group_behind_retention_raises_expired(tmp_path: Path) -> None:
    """`Expired` carries the head; a claimed message that is gone as well."""
    keep = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=keep, on_full="drop_oldest") as queue:
        group = queue.group("work")
        send(queue, 20)
        claim = group.claim(timeout=0)
        send(queue, 1000)
        settle(queue)  # no trim in the background moves the head from here on
        claim.nack(0)
        group.close()
        group = queue.group("work")
        for _ in range(2):
            with pytest.raises(errors.Expired) as passed:
                group.claim(timeout=0)
            assert passed.value.head_sequence == queue.head_sequence
        group.close()
        group = queue.group("work", on_expired="skip")
        assert group.claim(timeout=0).message.sequence >= queue.head_sequence
        assert group.missed > 0


def test_removed_message_is_missed_and_no_dead_letter(tmp_path: Path) -> None:
    """A message that was delivered too often, and is gone, is counted once, as what it is."""
    keep = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=keep, on_full="drop_oldest") as queue:
        with queue.group("work", backoff=None) as group:
            send(queue, 20)
            group.claim_many(5, timeout=0)  # its worker dies
        send(queue, 1000)
        with queue.group("work", max_deliveries=1, on_expired="skip") as group:
            head = queue.head_sequence
            assert group.claim(timeout=0).message.sequence == head
            assert group.missed == head
            assert list(group.dead_letters()) == []
            found = queue.consumers()[0].group
            assert found is not None
            assert found.dead_letters == 0


@pytest.fixture
def bounded() -> Iterator[None]:
    """A claim that never returns fails its test."""
    with within(60):
        yield


def finish_first_page(queue: Queue) -> Group:
    """Take all of the first page, none of the second, and return who did."""
    group = queue.group("work")
    send(queue, 3)
    for _ in range(3):
        group.take(timeout=0)
    queue.rotate()
    send(queue, 2, "next ")
    return group


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("on_expired", ["raise", "skip"])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_group_continues_after_a_removed_page(
    tmp_path: Path, on_expired: str, is_reopened: bool
) -> None:
    """I12: a page goes when all its messages are done, also before a worker followed its marker."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=DONE_GOES) as queue:
        group = finish_first_page(queue)
        assert group._next()[:2] == (3, 1)
        queue.trim()
        assert queue.head_sequence == 3
        if not is_reopened:
            with queue.group("work", on_expired=on_expired) as other:
                assert other.claim(timeout=0).message.payload == b"next 0"
                assert other.missed == 0
                assert [claim.message.sequence for claim in other.claim_many(9, timeout=0)] == [4]
            return
    with Queue(tmp_path) as queue, queue.group("work", on_expired=on_expired) as other:
        assert other.take(timeout=0).payload == b"next 0"
        assert other.claim(timeout=0).message.payload == b"next 1"
        assert other.missed == 0


@pytest.mark.usefixtures("bounded")
def test_damage_in_a_removed_page_does_not_stop_the_group(tmp_path: Path) -> None:
    """A worker that has a retired page mapped, without its marker, finds the next page."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:  # nothing trims in the background
        group = finish_first_page(queue)
        _, number, position = group._next()
        with (tmp_path / fmt.page_name("queue", number)).open("r+b") as page:
            page.seek(position)
            page.write(bytes(PAGE_BYTES - position))
        with Queue(tmp_path, retention=DONE_GOES) as other:
            other.trim()
        assert queue.head_sequence == 3
        assert group.take(timeout=0).payload == b"next 0"
        assert group.missed == 0


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("sequence", "error"), [(4, None), (5, errors.NothingReceived), (6, errors.SequenceOutOfRange)]
)
def test_an_invalid_place_is_resolved_again(
    tmp_path: Path, number: int, sequence: int, error: type[errors.PageQueueError] | None
) -> None:
    """I9: the table names a page that went, or none; the message is there, the next one, or not."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=DONE_GOES) as queue:
        group = finish_first_page(queue)
        queue.trim()
        assert group._place(sequence, number, fmt.PAGE_HEADER_BYTES, True)
        with queue.group("work") as other:
            if error is None:
                assert other.take(timeout=0).sequence == sequence
            else:
                with pytest.raises(error):
                    other.take(timeout=0)


@pytest.mark.usefixtures("bounded")
def test_a_group_waits_after_a_removed_page(tmp_path: Path) -> None:
    """The next page is empty too: a timeout is one, and new messages are claimed."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=DONE_GOES) as queue:
        group = finish_first_page(queue)
        for _ in range(2):
            group.take(timeout=0)
        queue.rotate()
        queue.trim()
        assert queue.head_sequence == 5
        with queue.group("work") as other:
            with pytest.raises(errors.NothingReceived):
                other.take(timeout=0.05)
            send(queue, 1)
            assert other.take(timeout=0).sequence == 5


def test_a_group_continues_in_pages_that_were_compressed(tmp_path: Path) -> None:
    """I16: redelivered messages come from compressed pages, new ones from others."""
    with Queue(tmp_path, page_bytes=65536) as queue:
        send(queue, 6000)
        group = queue.group("work")
        claims = group.claim_many(10, timeout=0)
        assert queue.compress().pages > 0
        for claim in claims:
            claim.nack(0)
        group.close()
        group = queue.group("work")
        for number in range(6000):
            claim = group.claim(timeout=0)
            assert claim.message.payload == f"{number}".encode()
            claim.ack()
        assert group.lag == 0
