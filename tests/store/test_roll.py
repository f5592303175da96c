"""Rolling to the next page: prepared ahead, completed by the next process if interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
import sys
from typing import TYPE_CHECKING

import pytest
import support
import warm
from plugin import PAGE_NUMBER_AT, Disk, frames_of

from pagequeue import CorruptPage, Queue, errors, repair_queue
from pagequeue import format as fmt
from pagequeue.producer.producer import Producer
from pagequeue.store.opening import Opening
from pagequeue.store.policy import Unlimited
from pagequeue.store.store import Store
from pagequeue.util.timestamps import system_clock

if TYPE_CHECKING:
    from pathlib import Path

TAIL_EVEN_AT = 200
FULL = b"x" * 1000  # three fit into a page


def numbers(disk: Disk) -> list[int]:
    """Return the numbers of the existing pages."""
    return sorted(int(path.name[6:16]) for path in disk.directory.glob("*.page"))


def test_messages_continue_over_pages_without_gap(disk: Disk) -> None:
    """I1: the next page begins with the sequence that follows."""
    with disk.open() as queue, queue.producer() as producer:
        assert [producer.send(FULL) for _ in range(10)] == list(range(10))
        assert [m.sequence for m in queue.replay()] == list(range(10))
        assert queue.info().page_count == 4
    firsts = [struct.unpack_from("<Q", disk.page(n).read_bytes(), 40)[0] for n in (1, 2, 3, 4)]
    assert firsts == [0, 3, 6, 9]


def test_end_of_page_marker_is_published_only_when_the_next_page_exists(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: while the next page cannot be created, readers wait at the end of this one."""
    with disk.open() as queue, queue.producer() as producer, queue.consumer() as consumer:

        def fail(*_: object, **__: object) -> None:
            raise errors.DiskFull("no room: make room")

        for _ in range(3):
            producer.send(FULL)
        monkeypatch.setattr(queue._store.roller, "next_page", fail)
        for _ in range(2):
            with pytest.raises(errors.DiskFull):
                producer.send(FULL)
            assert [frame.word >> 31 for frame in disk.frames(1)] == [0, 0, 0]
        assert [m.sequence for m in consumer.receive_many()] == [0, 1, 2]
        assert consumer.poll() is None
        monkeypatch.undo()
        assert producer.send(FULL) == 3
        assert consumer.receive(timeout=60).sequence == 3
    assert numbers(disk) == [1, 2]


def test_page_is_there_with_all_its_blocks_before_it_is_rolled_into(disk: Disk) -> None:
    """I10: a full disk shows as an error and never as a fault."""
    disk.page_bytes = 65536
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        queue.rotate()
        for path in (disk.page(1), disk.page(2), disk.index(1), disk.index(2)):
            assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_rotating_seals_a_page_but_never_an_empty_one(disk: Disk) -> None:
    """I1: no message is lost or doubled by a roll in between."""
    with disk.open() as queue, queue.producer() as producer:
        queue.rotate()
        queue.rotate()
        assert numbers(disk) == [1]
        producer.send(b"a")
        queue.rotate()
        queue.rotate()
        assert numbers(disk) == [1, 2]
        producer.send(b"b")
        assert [m.payload for m in queue.replay()] == [b"a", b"b"]


def test_two_producers_roll_once(disk: Disk) -> None:
    """I10: the second producer continues in the page that exists."""
    with disk.open() as one, disk.open() as two:
        with one.producer() as first, two.producer() as second:
            sent = [p.send(FULL) for _ in range(5) for p in (first, second)]
        assert sent == list(range(10))
        assert len(list(one.replay())) == 10
        assert numbers(disk) == [1, 2, 3, 4]


def test_page_is_full_when_its_index_is(disk: Disk) -> None:
    """I6: every frame has a record."""
    with disk.open() as queue, queue.producer() as producer:
        for _ in range(300):
            producer.send(b"")
        assert [len(frames_of(disk.page(n).read_bytes())) - 1 for n in (1, 2)] == [128, 128]
        assert queue.info().page_count == 3
        assert queue.verify().ok


@pytest.mark.parametrize("killed_after", ["R1", "R2", "R3", "mark torn"])
def test_roll_of_a_killed_producer_is_completed_by_the_next(disk: Disk, killed_after: str) -> None:
    """I3, I10: every step can be done again."""
    with disk.open() as queue, queue.producer() as producer:
        for _ in range(3):
            producer.send(FULL)
        before = disk.path("writeMeta").read_bytes()
        queue.rotate()
    mark = disk.frames(1)[3].position
    disk.poke(disk.path("writeMeta"), PAGE_NUMBER_AT, struct.pack("<Q", 1))  # R4 was not done
    if killed_after != "R3":
        length = 4 if killed_after == "mark torn" else 16
        disk.poke(disk.page(1), mark, bytes(length))
    if killed_after == "R1":
        disk.poke(disk.path("writeMeta"), TAIL_EVEN_AT, before[TAIL_EVEN_AT : TAIL_EVEN_AT + 16])
    with disk.open() as queue:
        assert len(queue) == 3
        with queue.producer() as producer:
            assert producer.send(FULL) == 3
        assert [m.sequence for m in queue.replay()] == [0, 1, 2, 3]
        assert queue.verify().ok
    assert numbers(disk) == [1, 2]
    assert [frame.payload for frame in disk.frames(2)] == [FULL]


def test_header_that_readers_may_have_seen_is_not_written_again(disk: Disk) -> None:
    """I10: finishing a roll leaves a right header as it is."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        queue.rotate()
    disk.poke(disk.path("writeMeta"), PAGE_NUMBER_AT, struct.pack("<Q", 1))
    header = disk.page(2).read_bytes()[:64]
    disk.send(b"y")
    assert disk.page(2).read_bytes()[:64] == header


@pytest.mark.parametrize("left", ["short", "garbage"])
def test_partially_created_next_page_is_created_again(disk: Disk, left: str) -> None:
    """I10: no end-of-page marker leads to it yet, so no message is lost."""
    disk.send(b"x")
    data = {"short": b"half", "garbage": b"\xaa" * 4096}
    disk.page(2).write_bytes(data[left])
    disk.directory.joinpath("queue-0000000002.page.tmp-next").write_bytes(b"half")
    disk.directory.joinpath("queue-0000000002.idx.tmp-next").write_bytes(b"half")
    with disk.open() as queue, queue.producer() as producer:
        queue.rotate()
        producer.send(b"y")
        assert [m.payload for m in queue.replay()] == [b"x", b"y"]
    assert list(disk.directory.glob("*.tmp-*")) == []


def test_damage_at_the_tail_is_an_error_and_seals_no_page(disk: Disk) -> None:
    """I2: bytes that are neither a frame nor zeros are never skipped."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        disk.poke(disk.page(1), 88, b"\x18\0\0\0bad!")
        for call in (lambda: producer.send(b"y"), queue.rotate):
            with pytest.raises(errors.CorruptFrame) as caught:
                call()
            assert (caught.value.position, caught.value.sequence) == (88, 1)
        assert [m.payload for m in queue.replay()] == [b"x"]


def test_no_page_number_left_is_a_typed_error(disk: Disk) -> None:
    """The names have ten digits and no more."""
    with disk.open() as queue, pytest.raises(errors.SequencesExhausted):
        queue._store.roller.next_page(fmt.PAGE_NUMBER_MAX + 1)


def test_prepared_page_is_the_one_that_is_rolled_into(disk: Disk) -> None:
    """I10: what was made in the background is used, and made once."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        roller = queue._store.roller
        roller.prepare(2, reach=4096, filled_bytes=0, frame_bytes=24.0)
        roller.prepare(2, reach=4096, filled_bytes=0, frame_bytes=24.0)
        page = roller.next_page(2)
        inode = disk.page(2).stat().st_ino
        assert struct.unpack_from("<Q", disk.page(2).read_bytes(), 40)[0] == fmt.UNSET_SEQUENCE
        queue.rotate()
        producer.send(b"y")
        assert page.region.read(80, 1) == b"y"
        assert disk.page(2).stat().st_ino == inode
    assert numbers(disk) == [1, 2]


def test_prepared_page_is_empty_and_survives_a_clean_close(disk: Disk) -> None:
    """I10: a page that is only made ready is not part of the queue."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        queue._store.roller.next_page(2)
    with disk.open() as queue:
        assert queue.info().page_count == 1
        assert [m.payload for m in queue.replay()] == [b"x"]
        assert queue.verify().ok


LIMITED = """
import resource, sys
from pagequeue import Queue, DiskFull
with Queue(sys.argv[1]) as queue, queue.producer() as producer:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        while True:
            producer.send(b"x" * 20000)
    except DiskFull as error:
        print(error.errno, queue.tail_sequence)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(producer.send(b"again"))
"""


def test_limit_on_file_sizes_is_disk_full_and_can_be_raised(disk: Disk, tmp_path: Path) -> None:
    """I10: the error is typed, no message is lost, and sending works again."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    disk.page_bytes = 65536
    disk.send(b"x")
    result = warm.run(
        [sys.executable, "-c", LIMITED, str(disk.directory)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.stdout.split() == [str(errno.EFBIG), "4", "4"], result.stderr
    assert len(disk.payloads()) == 5
    assert [name for name in os.listdir(disk.directory) if ".tmp-" in name] == []


@pytest.mark.parametrize("copied", [True, False])
def test_page_with_messages_under_the_next_name_is_never_rolled_into(
    tmp_path: Path, *, copied: bool
) -> None:
    """I10: the producer gets an error, and no byte of that page is overwritten."""
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        for number in range(9):
            producer.send(bytes([65 + number]) * 1300)
    directory = tmp_path / "q"
    taken, following = (directory / fmt.page_name("queue", n) for n in (2, 4))
    following.unlink(missing_ok=True)
    data = taken.read_bytes()
    following.write_bytes(data)
    if not copied:
        taken.unlink()
    with Queue(directory) as queue:
        assert any(str(following) == p.file for p in queue.verify().problems)
        with pytest.raises(CorruptPage, match="messages"):
            queue.rotate()
    assert following.read_bytes() == data
    if not copied:
        assert any("renamed" in action for action in repair_queue(directory).actions)
        with Queue(directory) as queue:
            assert [m.payload[:1] for m in queue.replay()][:9] == [
                bytes([65 + n]) for n in range(9)
            ]


def made_ready(producer: Producer[bytes], number: int) -> None:
    """Wait until the core has a page for its next roll."""
    roller = producer._store.roller
    roller.prepare(number, reach=4096, filled_bytes=0, frame_bytes=24.0)
    support.until(lambda: roller.made(number) is not None)
    producer._make_ready(number)
    ready = producer._ready_page
    assert ready is not None
    assert ready.number == number


class Noting(Unlimited):
    """Notes what page was active when it was told of a roll."""

    def __init__(self) -> None:
        self.pages: list[int] = []

    def rolled(self, store: Store) -> None:
        self.pages.append(store.tail.page_number)


def test_roll_into_a_page_that_is_ready_calls_no_python(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender continues; what follows a roll is done by the thread in the background."""
    policy = Noting()
    disk.open().close()
    opening = Opening(
        str(disk.directory),
        "queue",
        create=False,
        read_only=False,
        page_bytes=None,
        lock_timeout=60.0,
        clock=system_clock,
    )
    with contextlib.closing(Store(opening, policy)) as store, Producer(store) as producer:

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("the sender rolls by itself")

        monkeypatch.setattr(type(producer), "_roll_from", refuse)
        for number in (2, 3):
            made_ready(producer, number)
            while producer._page_number == number - 1:
                producer.send(FULL)
            support.until(lambda wanted=number: policy.pages[-1:] == [wanted])
            page = producer._page
            assert page is not None
            assert page.number == number
            assert number - 1 not in store.roller._pages
        assert producer.send(FULL) == 7
    with disk.open() as queue:
        assert [message.sequence for message in queue.replay()] == list(range(8))


@pytest.mark.parametrize("gone", ["lock", "page", "rolled", "rotated"])
def test_roll_into_a_page_that_is_ready_only_where_nothing_changed(disk: Disk, gone: str) -> None:
    """The core leaves all else to Python: a replaced lock, a truncated page, others' rolls."""
    with disk.open() as queue, disk.open() as other, queue.producer() as producer:
        made_ready(producer, 2)
        for _ in range(3):
            producer.send(FULL)
        if gone == "lock":
            (disk.directory / "queue.lock").unlink()
            with pytest.raises(errors.LockReplaced):
                producer.send(FULL)
            return
        if gone == "page":
            os.truncate(disk.page(2), 0)
        elif gone == "rolled":
            with other.producer() as second:
                assert second.send(FULL) == 3
        else:
            producer.rotate()
        assert producer.send(FULL) == (4 if gone == "rolled" else 3)
        assert producer._page_number == 2
        assert [m.sequence for m in queue.replay()] == list(range(producer.send(b"y")))
    assert numbers(disk)[:2] == [1, 2]


def test_closed_producer_releases_the_page_that_is_ready(disk: Disk) -> None:
    """Else its map would live as long as the handle."""
    with disk.open() as queue:
        producer = queue.producer()
        made_ready(producer, 2)
        producer.close()
        assert not producer._make_ready(2)
        assert producer._ready_page is None
        with pytest.raises(errors.ClosedError):
            producer.send(b"x")
