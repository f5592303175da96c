"""The table of a group grows: with what is delayed, beside others, after kills and power cuts."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import resource
from typing import TYPE_CHECKING

import pytest
from group_support import send
from support import LONG, finish, ready, start

from pagequeue import Queue, errors
from pagequeue import format as fmt
from pagequeue.meta.group_table import GroupTable
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pagequeue.group.group import Group

COUNT = 100
FIRST = 4


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Give a queue of some messages, and a group whose table has four records at first."""
    with Queue(tmp_path / "q") as opened:
        send(opened, COUNT, "m")
        opened.group("work", capacity=FIRST).close()
        yield opened


def claimed(group: Group, count: int) -> list[int]:
    """Claim messages, and return their sequences."""
    return [group.claim(timeout=0).message.sequence for _ in range(count)]


def table_of(queue: Queue) -> GroupTable:
    """Return the group's file."""
    store = queue._store
    return GroupTable(store.folder, "queue", store.meta.queue_id, "work", writable=False)


def test_delayed_messages_make_the_table_larger(queue: Queue) -> None:
    """All are there, in order, with their deliveries, in this opening and the next one."""
    with queue.group("work", capacity=COUNT) as group:
        for number in range(COUNT):
            claim = group.claim(timeout=0)
            assert claim.message.sequence == number
            if number < 50:
                claim.ack()
            else:
                claim.nack(delay=3600.0)
        assert group.outstanding == 50
        file = table_of(queue)
        assert file.capacity == 64
        assert os.stat(file.path).st_size == file.size_bytes == fmt.group_bytes(FIRST, 4)
        assert queue.consumers()[0].group is not None
        assert queue.verify().ok
    directory = queue.directory
    queue.close()
    with Queue(directory) as again, again.group("work") as group:
        assert (group.outstanding, group.lag) == (50, 50)
        assert again.verify().ok


def test_handle_that_was_open_before_uses_the_new_records(queue: Queue) -> None:
    """It claims, acknowledges and gives back what is in parts that another handle made."""
    old = queue.group("work")
    with queue.group("work", capacity=COUNT) as group:
        kept = [group.claim(timeout=0) for _ in range(30)]
        assert claimed(old, 10) == list(range(30, 40))
        for claim in kept[10:]:
            claim.nack(0)
        again = [old.claim(timeout=0) for _ in range(20)]
        assert [claim.message.sequence for claim in again] == list(range(10, 30))
        for claim in again:
            claim.ack()
        assert group.outstanding == old.outstanding == 20
        for claim in kept[:10]:
            claim.ack()
        assert queue.consumers()[0].next_sequence == 30


def test_process_that_was_there_before_uses_the_new_records(queue: Queue) -> None:
    """Its map is as large as the file can become."""
    process = start("claim_when_told", queue.directory, "work", 20)
    assert ready(process) == "open"
    with queue.group("work", capacity=COUNT) as group:
        assert claimed(group, 50) == list(range(50))
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        assert finish(process) == " ".join(map(str, range(50, 70)))
        released = {group.claim(timeout=LONG).message.sequence for _ in range(50)}
        assert released == set(range(50, 100))


@pytest.mark.parametrize("is_flushed", [False, True])
def test_power_cut_takes_no_flushed_acknowledgement(queue: Queue, *, is_flushed: bool) -> None:
    """F1 to F4: the last synced snapshot counts, in whichever part it is."""
    with queue.group("work", capacity=COUNT) as group:
        claims = [group.claim(timeout=0) for _ in range(3)]
        claims[1].ack(durable=True)
        claims += [group.claim(timeout=0) for _ in range(40)]
        claims[20].ack(durable=is_flushed)
        path = group._group_file.path
        with open(path, "rb") as file:
            data = bytearray(file.read())
    directory = queue.directory
    queue.close()
    if not is_flushed:  # the disk has none of what came since
        data[116:120] = bytes(4)
        at = fmt.group_part_at(FIRST, 1)
        data[at:] = bytes(len(data) - at)
    data[80:112] = b"\x55" * 32
    with open(path, "wb") as file:
        file.write(data)
    pretend_power_cut(directory)
    with Queue(directory) as again, again.group("work", capacity=COUNT, backoff=None) as group:
        left = set(claimed(group, COUNT - 1 - is_flushed))
        assert left == set(range(COUNT)) - ({1, 20} if is_flushed else {1})
        assert again.verify().ok


def test_first_flush_of_a_larger_table_is_newer_than_an_earlier_closing(queue: Queue) -> None:
    """Both snapshots have the ordinal after that of the last flush."""
    with queue.group("work", capacity=COUNT) as group:
        claims = [group.claim(timeout=0) for _ in range(10)]
        claims[3].ack(durable=True)
        snapshot = group._group_file.last_snapshot()
    assert (snapshot.ordinal, snapshot.new_sequence) == (2, 10)
    assert [one.sequence for one in snapshot.waiting] == [0, 1, 2, *range(4, 10)]


def test_reader_that_mapped_the_table_before_sees_its_part_of_it(queue: Queue) -> None:
    """What reports on a group, and on its last flush, reads while workers double the table."""
    with queue.group("work", capacity=COUNT) as group:
        first = [group.claim(timeout=0) for _ in range(FIRST)]
        file = table_of(queue)
        assert claimed(group, 40) == list(range(FIRST, FIRST + 40))
        first[0].ack(durable=True)
        assert (file.capacity, len(file.records())) == (FIRST, FIRST)
        assert file.read_state(0)[0] == FIRST + 40
        assert file.last_snapshot().new_sequence <= FIRST
        assert table_of(queue).last_snapshot().new_sequence == FIRST + 40


def test_process_that_dies_before_it_uses_the_new_part_leaves_a_sound_queue(queue: Queue) -> None:
    """G1: verify does not take blocks that are being reserved for what somebody appended."""
    path = table_of(queue).path
    begin, end = fmt.group_bytes(FIRST), fmt.group_bytes(FIRST, 1)
    for size_bytes, is_sound in (begin + 4096, True), (end, True), (end + 4096, False):
        os.truncate(path, size_bytes)
        assert queue.verify().ok == is_sound
    with queue.group("work", capacity=COUNT) as group:
        assert claimed(group, COUNT) == list(range(COUNT))
        assert queue.verify().ok


def test_damaged_count_of_records_in_use_ends_no_claim_in_a_loop(queue: Queue) -> None:
    """The table is doubled, up to the limit; then the claim ends as its timeout says."""
    file = GroupTable(
        queue._store.folder, "queue", queue._store.meta.queue_id, "work", writable=True
    )
    with queue.group("work", capacity=3 * FIRST) as group:
        for number in range(4 * FIRST):
            file.region.store_half(GroupTable.OUTSTANDING, 0)
            assert group.claim(timeout=0).message.sequence == number
        file.region.store_half(GroupTable.OUTSTANDING, 0)
        with pytest.raises(TimeoutError):
            group.claim(timeout=0)


def claim_in_little_memory(directory: str) -> None:
    """Claim where the address space has no place for the whole table; print what is said."""
    with Queue(directory) as queue:
        gc.collect()  # maps that are in cycles
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        with queue.group("work", capacity=COUNT) as group:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
            seen = claimed(group, FIRST)
            with pytest.raises(errors.TooManyClaims, match=f"{FIRST} messages"):
                group.claim(timeout=0)
            with queue.group("work") as other:
                assert claimed(other, 1) == [FIRST]
            with pytest.raises(errors.SystemLimit, match="ulimit -v"):
                group.claim(timeout=0)
            assert seen == list(range(FIRST))


def test_process_with_a_limited_address_space_says_so(queue: Queue) -> None:
    """It leaves the table as it is, and refuses what another process doubled."""
    directory = queue.directory
    queue.close()
    process = multiprocessing.get_context("fork").Process(
        target=claim_in_little_memory, args=(directory,)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


def test_bytes_that_a_dead_process_appended_are_not_taken_for_records(queue: Queue) -> None:
    """G1: the part is made of zeros."""
    path = table_of(queue).path
    with open(path, "ab") as file:
        file.write(b"\xff" * 5000)
    with queue.group("work", capacity=COUNT) as group:
        assert claimed(group, COUNT) == list(range(COUNT))


def test_full_disk_leaves_the_table_as_it_is(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Claims are refused as at the limit, and the log says why."""
    with queue.group("work", capacity=COUNT) as group:

        def fail(*_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", fail)
            assert claimed(group, FIRST) == list(range(FIRST))
            for _ in range(3):
                with pytest.raises(errors.TooManyClaims, match=f"{FIRST} messages"):
                    group.claim(timeout=0)
        (record,) = caplog.records
        assert "making the group's table larger" in record.getMessage()
    with queue.group("work", backoff=None) as group:
        assert len(claimed(group, 10)) == 10


def test_damaged_growth_is_an_error(queue: Queue) -> None:
    """A number that no table has, or a part that the file has not."""
    path = table_of(queue).path
    for grown in (1, 21, 2**32 - 1):
        with open(path, "r+b") as file:
            file.seek(116)
            file.write(grown.to_bytes(4, "little"))
        with pytest.raises(errors.CorruptMeta):
            queue.group("work")
