"""Rings: bounded queues whose pages are trimmed without a sync and used again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import support
from tiers import slow_but

from pagequeue import (
    Expired,
    InvalidOption,
    MessageTooLarge,
    NamedConsumer,
    Queue,
    QueueFull,
    Retention,
    _core,
    errors,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.maintenance import room
from pagequeue.page.page import map_plain
from pagequeue.store import roll
from pagequeue.system.directory import Directory
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = 8192
PAGES = 4
RING = PAGES * fmt.files_bytes(PAGE)
OS_PAGE = 4096
QUICK_SEEDS = (0, 1, 2, 30, 38)
"""These execute every branch of the library that all forty do."""


def body(sequence: int) -> bytes:
    """Return the payload of a message, of a length of its own."""
    return sequence.to_bytes(8, "little") * (10 + sequence * 7 % 90)


def send(queue: Queue[Any], count: int) -> None:
    """Send the next messages."""
    with queue.producer() as producer:
        for _ in range(count):
            producer.send(body(queue.tail_sequence))


def files(directory: Path, ending: str = ".page") -> list[Path]:
    """Return the files of a kind, in order."""
    return sorted(directory.glob(f"*{ending}"))


# --- the option -----------------------------------------------------------------------------------


def test_ring_is_bounded_and_its_sender_waits(tmp_path: Path) -> None:
    """One word gives page size, limit and waiting, to every process that opens it."""
    with Queue(tmp_path, ring=RING) as queue, Queue(tmp_path) as receiver:
        assert queue.page_bytes == PAGE
        consumer = receiver.consumer("reader")
        sender = threading.Thread(target=send, args=(queue, 1000))
        sender.start()
        for sequence in range(1000):
            message = consumer.receive(60)
            assert message.payload == body(sequence)
            consumer.ack(message)
            assert len(support.at_once(tmp_path, "*.page")) <= PAGES
        sender.join()
        assert queue.verify().ok


def test_no_page_is_made_before_the_one_below_the_head_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes a page has the preparation lock: a ring never has a page too many."""
    genuine = Directory.remove
    was_free: list[bool] = []

    def try_lock(other: Queue[Any]) -> None:
        with other._store.roller.lock.attempt("looking") as free:
            was_free.append(free)

    with Queue(tmp_path, ring=RING) as queue, Queue(tmp_path) as other:

        def remove(folder: Directory, name: str) -> None:
            if name.endswith("1.page"):
                thread = threading.Thread(target=try_lock, args=(other,))
                thread.start()
                thread.join()
            genuine(folder, name)

        consumer, producer = queue.consumer("reader"), queue.producer()
        while queue._store.tail.page_number < PAGES:
            producer.send(bytes(PAGE // 2))
        consumer.ack(consumer.receive(0))
        monkeypatch.setattr(Directory, "remove", remove)
        producer.send(bytes(PAGE // 2), timeout=0)
        assert queue.head_sequence == 1
    assert was_free == [False]


@pytest.mark.parametrize("options", [{}, {"page_bytes": OS_PAGE}, {"page_bytes": 4 * OS_PAGE}])
@pytest.mark.parametrize("size", [0, 20, 3000])
def test_files_of_a_ring_take_no_more_than_it_says(
    tmp_path: Path, options: dict[str, int], size: int
) -> None:
    """Pages with their indexes, whatever the messages are; others take a block, or are told."""
    ring = 250_000
    with Queue(tmp_path, ring=ring, on_full="raise", **options) as queue:
        queue.consumer("slow")
        with queue.group("g", capacity=1000), queue.producer() as producer:
            with contextlib.suppress(QueueFull):
                while queue.tail_sequence < ring:
                    producer.send(bytes(size))
            assert queue.tail_sequence < ring
            taken = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
            assert 1000 * 112 <= taken.pop("queue-readMeta.g") < 1000 * 112 + 2 * OS_PAGE
            pages = [taken.pop(name) for name in list(taken) if "-0" in name]
            assert ring * 0.7 < sum(pages) <= ring
            assert max(taken.values()) <= OS_PAGE


def test_full_ring_raises_where_that_was_asked_for(tmp_path: Path) -> None:
    """Waiting is the default only; the timeout of the queue counts."""
    with Queue(tmp_path, ring=RING, on_full="raise") as queue:
        queue.consumer("slow")
        with pytest.raises(QueueFull, match="'slow'"):
            send(queue, 1000)
    with Queue(tmp_path, full_timeout=0.05) as queue, pytest.raises(QueueFull):
        send(queue, 1000)


def test_ring_without_named_consumers_drops_the_oldest(tmp_path: Path) -> None:
    """Nobody is waited for; what is retained is right."""
    with Queue(tmp_path, ring=RING) as queue:
        send(queue, 1000)
        head = queue.head_sequence
        assert 1000 - 16 > head > 800
        assert [m.payload for m in queue.replay()] == [body(n) for n in range(head, 1000)]


@pytest.mark.parametrize(
    ("size", "page_bytes"),
    [
        (64 << 20, 2978 << 12),
        (16 << 20, 744 << 12),
        (100_000, 16384),
        (22528, 4096),
        (1 << 34, 64 << 20),
    ],
)
def test_a_ring_has_four_pages_with_their_indexes(
    tmp_path: Path, size: int, page_bytes: int
) -> None:
    """At least an OS page, at most those of other queues."""
    with Queue(tmp_path, ring=size) as queue:
        assert queue.page_bytes == page_bytes


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ring": 22527}, InvalidOption),
        ({"ring": 0}, InvalidOption),
        ({"ring": True}, TypeError),
        ({"ring": "1"}, TypeError),
        ({"ring": 1.5}, TypeError),
        ({"ring": RING, "page_bytes": RING}, InvalidOption),
        ({"ring": RING, "retention": Retention()}, InvalidOption),
        (
            {"ring": RING, "retention": Retention(max_age=timedelta(1), max_idle=timedelta(1))},
            InvalidOption,
        ),
        ({"ring": RING, "sync": "always"}, InvalidOption),
        ({"ring": RING, "sync": timedelta(seconds=1)}, InvalidOption),
        ({"ring": RING, "on_full": "drop_oldest"}, InvalidOption),
        ({"ring": RING, "compress_after": 2}, InvalidOption),
    ],
)
def test_contradicting_options_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    """Nothing is made; an existing ring refuses them too, whether `ring` is given again or not."""
    with pytest.raises(error):
        Queue(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
    del options["ring"]
    if options and "page_bytes" not in options:
        Queue(tmp_path / "old", ring=RING).close()
        with pytest.raises(error):
            Queue(tmp_path / "old", **options)
        Queue(tmp_path / "old").close()


def test_other_size_and_other_queue_are_refused(tmp_path: Path) -> None:
    """What is fixed at creation is compared."""
    Queue(tmp_path, ring=RING).close()
    Queue(tmp_path, ring=RING).close()
    with pytest.raises(InvalidOption, match="a ring of 45056 bytes"):
        Queue(tmp_path, ring=2 * RING)
    Queue(tmp_path, prefix="plain").close()
    with pytest.raises(InvalidOption, match="no ring"):
        Queue(tmp_path, prefix="plain", ring=RING)


def test_trimming_a_ring_syncs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync would stop sender and receiver for milliseconds in each page."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        send(queue, 20)
        for name in ("fsync", "fdatasync", "sync"):
            monkeypatch.setattr(f"os.{name}", lambda *_: pytest.fail("a sync"))
        for _ in range(100):
            while consumer.poll() is not None:
                pass
            consumer.ack()
            send(queue, 15)
        assert queue.head_sequence > 1000


# --- a power cut ----------------------------------------------------------------------------------


def snapshot(queue: Queue[Any]) -> dict[str, tuple[int, bytes]]:
    """Return each file's inode number and content, when no page is being made."""
    support.settle(queue)
    return {
        path.name: (path.stat().st_ino, path.read_bytes())
        for path in Path(queue.directory).iterdir()
        if not path.name.endswith(".lock")
    }


def mixed(chance: random.Random, before: bytes, after: bytes) -> bytes:
    """Return a file of which each OS page is on the disk as it was, or as it is."""
    before = before.ljust(len(after), b"\0")
    share = chance.random()
    return b"".join(
        (after if chance.random() < share else before)[at : at + OS_PAGE]
        for at in range(0, len(after), OS_PAGE)
    )


def cut(
    chance: random.Random,
    directory: Path,
    synced: dict[str, tuple[int, bytes]],
    now: dict[str, tuple[int, bytes]],
) -> None:
    """Write a state that a power cut can leave between two moments; at the first all was synced.

    Every file has its old name or the new one, is there or not, and each of its OS pages is old or
    new; a file that was used again has the bytes of both uses.
    """
    old = {inode: (name, data) for name, (inode, data) in synced.items()}
    new = {inode: (name, data) for name, (inode, data) in now.items()}
    wanted: dict[str, bytes] = {}
    named = {inode: (name, inode in new) for inode, (name, _) in (old | new).items()}
    for inode in sorted(named, key=named.__getitem__):  # by name: a seed makes the same cut again
        was, is_ = old.get(inode), new.get(inode)
        if was is None:
            assert is_ is not None
            name, data = is_
            if chance.random() < 0.5:
                wanted.setdefault(name, mixed(chance, b"", data))
        elif is_ is None:
            if chance.random() < 0.5:
                wanted.setdefault(*was)
        else:
            name = chance.choice((was[0], is_[0]))
            wanted[name] = mixed(chance, was[1], is_[1])
    for name, data in wanted.items():
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("seed", slow_but(QUICK_SEEDS, range(40)))
def test_power_cut_leaves_a_ring_that_works(tmp_path: Path, seed: int) -> None:
    """What was flushed and not trimmed is there, what is read is right, and all goes on."""
    chance = random.Random(seed)
    live = tmp_path / "live"
    with Queue(live, ring=RING, full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        send(queue, chance.randrange(40))
        for _ in range(chance.randrange(30)):
            if consumer.sequence < queue.tail_sequence:
                consumer.receive_many(chance.randrange(1, 20))
            consumer.ack()
            if queue.tail_sequence - consumer.acknowledged < 20:
                send(queue, chance.randrange(20))
        flushed = queue.producer().flush()
        acknowledged = consumer.acknowledged
        synced = snapshot(queue)
        for _ in range(chance.randrange(60)):
            if consumer.sequence < queue.tail_sequence:
                consumer.receive_many(chance.randrange(1, 20))
            consumer.ack()
            if queue.tail_sequence - consumer.acknowledged < 20:
                send(queue, chance.randrange(20))
        head = queue.head_sequence
        now = snapshot(queue)
    for copy in range(8):
        directory = tmp_path / f"cut{copy}"
        directory.mkdir()
        cut(chance, directory, synced, now)
        with Queue(directory, full_timeout=60) as queue:
            assert queue.tail_sequence >= (flushed if head < flushed else 0)
            assert queue.head_sequence <= max(head, queue.tail_sequence)
            found = {message.sequence: message.payload for message in queue.replay()}
            assert found == {n: body(n) for n in range(queue.head_sequence, queue.tail_sequence)}
            consumer = queue.consumer("reader")
            first = consumer.sequence
            assert first >= min(acknowledged, queue.tail_sequence)
            assert queue.verify().ok
            received = []
            for count in [5] * 20 + [0]:
                while (message := consumer.poll()) is not None:
                    received.append(message.sequence)
                consumer.ack()
                send(queue, count)
            assert received == list(range(first, queue.tail_sequence))
        with Queue(directory) as queue:
            assert not queue.recovery.actions
        shutil.rmtree(directory)


def test_page_that_is_mapped_too_late_leaves_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is told to make a page ahead, and stops between page and index for a whole lap."""
    with Queue(tmp_path / "q", ring=RING, full_timeout=60) as queue:
        consumer, roller = queue.consumer("all"), queue._store.roller
        lap(queue, consumer, 20)
        number = queue._store.tail.page_number - 1
        roller._pages.pop(number, None)

        def late(*given: Any, **options: Any) -> object:  # noqa: ANN401 - of `map_plain`
            region = map_plain(*given, **options)
            monkeypatch.undo()
            lap(queue, consumer)
            return region

        monkeypatch.setattr(roll, "map_plain", late)
        with pytest.raises(errors.QueueNotFound):
            roller.next_page(number)
        assert number < queue._store.read_meta.head_page
        assert not (tmp_path / "q" / fmt.index_name("queue", number)).exists()
    with Queue(tmp_path / "q") as queue:
        assert not queue.recovery.actions


# --- pages that are used again --------------------------------------------------------------------


def lap(queue: Queue[Any], consumer: NamedConsumer, count: int = 100) -> None:
    """Send and acknowledge messages, more than the ring holds."""
    for _ in range(count):
        send(queue, 5)
        while (message := consumer.poll()) is not None:
            assert message.payload == body(message.sequence)
        consumer.ack()


def test_page_is_used_again_while_it_stays_mapped(tmp_path: Path) -> None:
    """I13: after the first lap no file is made; producers go on in the same memory."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue, queue.producer() as producer:
        consumer = queue.consumer("reader")
        inodes = []
        for _ in range(300):
            sequence = queue.tail_sequence
            producer.send(body(sequence))
            message = consumer.receive(60)
            assert message.payload == body(sequence)
            consumer.ack()
            inodes.append({path.stat().st_ino for path in files(tmp_path)})
        assert inodes[-1] == inodes[-100]
        assert len(files(tmp_path)) == len(files(tmp_path, ".idx")) == PAGES
        assert queue.verify().ok


@pytest.mark.parametrize("reader", ["named", "fan-out"])
def test_view_of_a_page_never_changes(tmp_path: Path, reader: str) -> None:
    """I13: a page of which somebody holds a view is not used again, whatever was acknowledged."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        name = "reader2" if reader == "named" else None
        other = queue.consumer(name, latest=True)
        queue.rotate()  # so that the three are in one page
        with queue.producer() as producer:
            first = producer.send_many([bytes([n]) * 64 for n in range(3)]).start
        array = other.receive_many(3).to_numpy(np.dtype("V64"))
        consumer.receive_many(3)
        consumer.ack()
        if isinstance(other, NamedConsumer):
            other.ack()
            other.close()
            queue.remove_consumer("reader2")
        lap(queue, consumer)
        assert queue.head_sequence > first + 100
        assert [array[n].tobytes() for n in range(3)] == [bytes([n]) * 64 for n in range(3)]
        assert array.base is not None  # a view, and no copy


def test_reader_that_is_passed_gets_expired(tmp_path: Path) -> None:
    """It finishes the page that it is in, then learns it; nothing of another page reaches it."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        behind = queue.consumer(latest=True)
        begin = queue.tail_sequence
        lap(queue, consumer)
        seen = 0
        with pytest.raises(Expired) as caught:  # noqa: PT012 - whichever poll it is
            while (message := behind.poll()) is not None:
                assert message.sequence == begin + seen
                assert message.payload == body(message.sequence)
                seen += 1
        assert caught.value.head_sequence == queue.head_sequence > begin
        assert seen < 30


def test_two_producers_take_turns(tmp_path: Path) -> None:
    """A page that another process has mapped for writing is not used again; a new one is made."""
    with (
        Queue(tmp_path, ring=RING, full_timeout=60) as queue,
        Queue(tmp_path, full_timeout=60) as second,
    ):
        consumer = queue.consumer("reader")
        for _ in range(30):
            for sender in (queue, second):
                lap(sender, consumer, 3)
        assert len(files(tmp_path)) <= PAGES
        assert queue.verify().ok


@pytest.mark.parametrize("at", ["before", "page renamed", "index renamed"])
def test_killed_while_a_page_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """X1 to X5: the next opener finds a ring without that page, and continues."""

    class Killed(BaseException):
        """As far as a process came."""

    def die(folder: Directory, *options: object) -> None:
        _, _, (page, index), (next_page, next_index), *_ = cast("Any", options)
        if at != "before":
            folder.rename(page, f"{next_page}.tmp-next")
        if at == "index renamed":
            folder.rename(index, next_index)
        raise Killed

    live = tmp_path / "live"
    with Queue(live, ring=RING, full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        with monkeypatch.context() as patch:
            patch.setattr(Directory, "renew", die)
            with pytest.raises(Killed):
                lap(queue, consumer)
        support.settle(queue)
        shutil.copytree(live, tmp_path / "copy")
        lap(queue, consumer)  # and so does a process that was open meanwhile
        assert queue.verify().ok
        assert not list(live.glob("*tmp*"))
    with Queue(tmp_path / "copy", full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        assert not list((tmp_path / "copy").glob("*tmp*"))
        lap(queue, consumer)
        assert queue.verify().ok


def test_ring_takes_what_fits_into_one_page(tmp_path: Path) -> None:
    """After a power cut it is one run of pages, which could begin inside of a large message."""
    with (
        Queue(tmp_path / "q", ring=1 << 20, page_bytes=1 << 17) as queue,
        queue.producer() as producer,
    ):
        large = bytes(1 << 18)
        with pytest.raises(MessageTooLarge, match="a ring takes what fits into one page"):
            producer.send(large)
        with pytest.raises(MessageTooLarge, match="a ring takes"):
            producer.send_many([bytes(1000)] * 200)
        with pytest.raises(MessageTooLarge, match="a ring takes"), producer.open() as message:
            message.write(large)
        with pytest.raises(MessageTooLarge, match="a ring takes"):
            queue.publish("writer", 0, [large])
        producer.send(b"small")
        assert len(queue) == 1
    assert not (tmp_path / "q" / "queue-staged").exists() or verify_queue(tmp_path / "q").ok


def test_power_cut_leaves_no_group_before_the_head(tmp_path: Path) -> None:
    """V5: the group file on the disk can be an older one than the head."""
    directory, old, cut = tmp_path / "q", tmp_path / "old", tmp_path / "cut"
    with Queue(directory, ring=RING) as queue, queue.producer() as producer:
        group, consumer = queue.group("workers"), queue.consumer("reader")

        def use(count: int) -> None:
            for _ in range(count):
                producer.send_many([bytes(300)] * 10)
                for claim in group.claim_many(100, timeout=60):
                    claim.ack()
                consumer.receive_many(100, timeout=60)
                consumer.ack()

        use(2)
        support.settle(queue)
        shutil.copytree(directory, old)
        use(20)
        producer.send_many([bytes(300)] * 10)
        support.settle(queue)
        shutil.copytree(directory, cut)
    for file in old.glob("*readMeta*"):
        shutil.copy(file, cut / file.name)
    with Queue(cut) as queue, queue.group("workers") as group:
        left = queue.tail_sequence - queue.head_sequence
        assert left >= 10
        assert [one.lag <= left for one in queue.consumers()] == [True, True]
        found: list[int] = []
        while len(found) < left:
            found += [claim.message.sequence for claim in group.claim_many(left, timeout=60)]
        assert found == list(range(queue.head_sequence, queue.tail_sequence))


# --- maps that readers keep -----------------------------------------------------------------------


def maps_of_pages(directory: Path) -> list[str]:
    """Return the maps that this process has of pages, those of removed files included."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return [line for line in lines if str(directory) in line and ".page" in line]


def test_reader_maps_each_file_of_a_ring_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first lap it opens no page; the maps go with the queue."""
    with (
        Queue(tmp_path, ring=RING, full_timeout=60) as queue,
        Queue(tmp_path) as receiver,
    ):
        consumer = receiver.consumer("reader")
        lap(queue, consumer)
        genuine = Directory.open

        def opened(folder: Directory, name: str, *, writable: bool) -> _core.Descriptor:
            assert not name.endswith(".page")
            return genuine(folder, name, writable=writable)

        monkeypatch.setattr(Directory, "open", opened)
        lap(queue, consumer)
        assert len(maps_of_pages(tmp_path)) > PAGES
    support.until(lambda: not maps_of_pages(tmp_path))


def test_reader_shares_the_lock_of_the_page_that_it_is_in_alone(tmp_path: Path) -> None:
    """I13: the lock, and not the map, is what keeps a page from being used again."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue:
        lap(queue, queue.consumer("reader"))
    with Queue(tmp_path) as queue:  # no producer has mapped a page
        consumer, seen = queue.consumer(), set[Path]()
        while (message := consumer.poll()) is not None:
            locked = [page for page in files(tmp_path) if support.is_locked(page)]
            assert len(locked) == 1
            seen.update(locked)
            assert message.payload == body(message.sequence)
        assert sorted(seen) == files(tmp_path)[: len(seen)]
        assert len(seen) > 3


def test_view_that_a_child_of_a_fork_has_keeps_the_page(tmp_path: Path) -> None:
    """I13: the child's view still shows its message when its parent reads on."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue, queue.producer() as producer:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        queue.rotate()
        producer.send_many([bytes([n]) * 64 for n in range(3)])
        batch = consumer.receive_many(3)
        array = batch.to_numpy(np.dtype("V64"))
        assert array.base is not None  # a view, and no copy
        begin, go = os.pipe()
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os.read(begin, 1)
            same = [array[n].tobytes() for n in range(3)] == [bytes([n]) * 64 for n in range(3)]
            os.write(tell, b"same" if same else b"other")
            os._exit(0)
        del array, batch
        consumer.ack()
        for _ in range(3):
            lap(queue, consumer)
        os.write(go, b"1")
        assert os.read(told, 10) == b"same"
        os.waitpid(child, 0)
        for fd in (begin, go, told, tell):
            os.close(fd)
        lap(queue, consumer)
        assert queue.verify().ok


def test_removed_files_of_a_ring_are_unmapped(tmp_path: Path) -> None:
    """Another producer makes new pages: the old ones are gone when the next is mapped."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as receiver:
        consumer = receiver.consumer("reader")
        for _ in range(5):
            with Queue(tmp_path, full_timeout=60) as queue:
                lap(queue, consumer, 10)
        support.until(lambda: len(maps_of_pages(tmp_path)) <= PAGES + 1)


def test_ring_of_many_pages_keeps_few_files_open(tmp_path: Path) -> None:
    """A file open for each page of 1,000 and more would be too many for most processes."""
    before = len(os.listdir("/proc/self/fd"))
    with (
        Queue(
            tmp_path, ring=300 * fmt.files_bytes(OS_PAGE), page_bytes=OS_PAGE, full_timeout=60
        ) as queue,
        queue.producer() as producer,
    ):
        consumer = queue.consumer("reader")
        for sequence in range(1200):
            producer.send(body(sequence)[:900].ljust(900, b"."))
            if sequence >= 800:
                message = consumer.receive(60)
                assert message.sequence == sequence - 800
                consumer.ack()
        assert len(files(tmp_path)) > 200
        assert len(os.listdir("/proc/self/fd")) < before + 50
        assert queue.verify().ok


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Queue]:
    """Return a ring whose pages are full, and that no producer of this process has mapped."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue:
        lap(queue, queue.consumer("reader"))
    with Queue(tmp_path) as queue:
        yield queue


def test_map_that_a_finalizer_borrows_meanwhile_is_lent_once(reading: Queue) -> None:
    """I13: making an object can run the collector; the lock would go with the first of two."""
    store, maps = reading._store, reading._store._ring_maps
    assert maps is not None
    name = fmt.page_name("queue", store.head[0])
    path = Path(reading.directory, name)
    for allocations in range(30):
        identity = store.folder.identity(name)
        assert identity is not None
        kept = maps._map(name, identity)
        found: list[_core.Region | None] = []

        def borrow(_phase: str, _info: object, kept: _core.Region = kept) -> None:
            gc.callbacks.remove(borrow)
            with store.folder.descriptor as folder:
                found.append(kept.lend(folder, name))  # noqa: B023 - called before the next turn

        before = gc.get_threshold()
        gc.collect(0)
        gc.callbacks.append(borrow)
        try:
            with store.folder.descriptor as folder:
                gc.set_threshold(allocations)
                found.append(kept.lend(folder, name))
        finally:
            gc.set_threshold(*before)
            if borrow in gc.callbacks:
                gc.callbacks.remove(borrow)
        assert None not in found
        del found[1:]
        assert support.is_locked(path)
        del found[:]
        assert not support.is_locked(path)


def test_cursors_of_removed_consumers_are_unmapped(tmp_path: Path) -> None:
    """A ring of which each reader has a name of its own keeps none of them mapped for ever."""

    def use(name: str) -> None:
        """Roll while a consumer of this name is there."""
        with queue.consumer(name, latest=True) as job:
            for _ in range(5):
                send(queue, 5)
                for one in (consumer, job):
                    while one.poll() is not None:
                        pass
                    one.ack()
        queue.remove_consumer(name)

    with Queue(tmp_path, ring=RING, full_timeout=60) as queue:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        for number in range(10):
            use(f"job{number}")
        queue.consumer("last").close()
        queue.remove_consumer("last")
        lap(queue, consumer)

        def jobs() -> list[str]:
            lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
            return [line for line in lines if f"{tmp_path}/" in line and "readMeta.job" in line]

        support.until(lambda: jobs() == [])


def test_cursor_of_a_newer_version_keeps_all_pages(tmp_path: Path) -> None:
    """As any that is not readable: the sender is told who holds them, and not that it is newer."""
    with Queue(tmp_path, ring=RING, on_full="raise") as queue:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        queue.consumer("newer", latest=True).close()
        overwrite(tmp_path / fmt.cursor_name("queue", "newer"), 8, (99).to_bytes(4, "little"))
        with pytest.raises(QueueFull, match="'newer'"):
            lap(queue, consumer)


def open_pages(directory: Path) -> list[str]:
    """Return the files of pages that this process has open, without those that only maps hold."""
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [target for target in targets if str(directory) in target and ".page" in target]


def test_child_of_a_fork_keeps_no_page_of_its_parent(tmp_path: Path) -> None:
    """Neither those to be used again nor those to be read again, but for the active page."""
    with Queue(tmp_path, ring=RING, full_timeout=60) as queue, queue.producer() as producer:
        consumer = queue.consumer("reader")
        lap(queue, consumer)
        support.settle(queue)
        assert len(maps_of_pages(tmp_path)) >= len(open_pages(tmp_path)) == 2 * PAGES
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 2
            try:
                code = max(len(open_pages(tmp_path)), len(maps_of_pages(tmp_path)))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) <= 2
        producer.send(body(queue.tail_sequence))
        lap(queue, consumer)
        assert queue.verify().ok


@pytest.mark.parametrize("way", ["read", "seek"])
def test_reader_without_a_descriptor_left_closes_the_files_that_it_keeps(
    reading: Queue, way: str
) -> None:
    """They are kept to be quick: reading comes first, and so do the indexes that a seek maps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    consumer, maps = reading.consumer(), reading._store._ring_maps
    assert maps is not None
    others, head = [], consumer.sequence
    message = consumer.receive(0)
    while len(maps._maps) < (2 if way == "read" else 4):
        message = consumer.receive(0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        with contextlib.suppress(OSError):
            while True:
                others.append(os.open(os.devnull, os.O_RDONLY))
        if way == "read":
            found = consumer.receive_many(1000).payloads
            while (rest := consumer.poll()) is not None:
                found.append(rest.payload)
            wanted = range(message.sequence + 1, reading.tail_sequence)
        else:
            wanted = range(head, message.sequence)
            found = []
            for sequence in wanted:
                consumer.seek(sequence=sequence)
                found.append(consumer.receive(0).payload)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in others:
            os.close(fd)
    assert found == [body(sequence) for sequence in wanted]


def test_pages_of_the_first_round_are_made_before_they_are_needed(tmp_path: Path) -> None:
    """Making one takes milliseconds; later ones are used again by the roll itself."""
    with (
        Queue(tmp_path / "q", ring=PAGES * fmt.files_bytes(1 << 20)) as queue,
        queue.producer() as producer,
    ):
        queue.consumer("all").close()
        roller, payload = queue._store.roller, bytes(64 << 10)
        assert 2 not in roller._pages
        for number in (2, 3, 4):
            # A thread that asked for a page late makes the one after it early, and no later one.
            assert number + 1 not in roller._pages
            while queue._store.tail.position <= queue.page_bytes // 4:
                producer.send(payload)

            def is_made(wanted: int = number) -> bool:
                """Send on: a late thread asks to be called again at a place that has passed."""
                if queue._store.tail.position < queue.page_bytes // 2:
                    producer.send(b"")
                return wanted in roller._pages

            support.until(is_made)
            assert queue._store.tail.page_number == number - 1
            made = roller._pages[number]
            while queue._store.tail.page_number < number:
                producer.send(payload)
            assert producer._page is made
        while queue._store.tail.position < queue.page_bytes // 2:
            producer.send(payload)
        assert not queue._store.policy.has_room(queue._store, 5)
        assert 5 not in roller._pages


# --- consumers that do not come back --------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that waits is reported soon."""
    monkeypatch.setattr(room, "WARN_SECONDS", 0.05)


def fill(send_one: Callable[[int], object]) -> QueueFull:
    """Send until the ring is full; return the error that says so."""
    try:
        for number in range(10_000):
            send_one(number)
    except QueueFull as error:
        return error
    raise AssertionError("it is never full")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("form", ["send", "send_async"])
def test_sender_that_waits_for_what_nobody_has_open_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """Once, with the names: a viewer that was killed, a group without a worker."""
    with Queue(tmp_path, ring=RING) as queue:
        queue.consumer("viewer").close()
        queue.group("workers").close()
        producer, reader = queue.producer(), queue.consumer("reader")

        def send_one(number: int) -> None:
            if form == "send":
                producer.send(body(number), timeout=0.5)
            else:
                asyncio.run(producer.send_async(body(number), timeout=0.5))

        fill(send_one)
        fill(send_one)
        reader.close()
    (text,) = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    assert "a sender waits for 'viewer', 'workers', which no process has open" in text


@pytest.mark.usefixtures("impatient")
def test_sender_that_waits_for_a_slow_consumer_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is open, and may go on."""
    with Queue(tmp_path, ring=RING) as queue, queue.consumer("viewer"):
        producer = queue.producer()
        fill(lambda number: producer.send(body(number), timeout=0.3))
    assert caplog.records == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_ring", [True, False], ids=["ring", "max_bytes"])
def test_sender_is_told_of_a_coroutine_that_was_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_ring: bool
) -> None:
    """The consumer that it had is closed with it, and keeps what it has not acknowledged."""
    options: dict[str, Any] = {"ring": RING} if is_ring else {"page_bytes": support.SMALL}
    if not is_ring:
        options |= {"retention": Retention(max_bytes=4 * support.SMALL), "on_full": "block"}
    with Queue(tmp_path, **options) as queue:
        producer = queue.producer()

        async def view(got: asyncio.Event) -> None:
            with queue.consumer("viewer") as viewer:
                async for _ in viewer:
                    got.set()

        async def run() -> None:
            got = asyncio.Event()
            viewing = asyncio.create_task(view(got))
            await producer.send_async(b"first")
            await got.wait()
            viewing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await viewing

        asyncio.run(run())
        told = fill(lambda number: producer.send(body(number), timeout=0.3))
    assert "by 'viewer', which no process has open, so the message" in str(told)
    assert "a sender waits for 'viewer', which no process has open" in caplog.text


@pytest.mark.parametrize("kind", ["consumer", "group"])
def test_full_queue_names_what_was_killed(tmp_path: Path, kind: str) -> None:
    """Where the sender gets an error at once, that says which of them no process has open."""
    retention = Retention(max_bytes=4 * support.SMALL)
    with Queue(tmp_path, page_bytes=support.SMALL, retention=retention, on_full="raise") as queue:
        with queue.consumer("reader"):
            process = support.start("open_and_hold", queue.directory, kind, "dead")
            assert support.ready(process) == "open"
            support.end(process)
            producer = queue.producer()
            told = fill(lambda number: producer.send(body(number)))
            assert "(no process has 'dead' open)" in str(told)
            assert told.held_by == ("dead", "reader")
        queue.remove_consumer("dead")
        queue.remove_consumer("reader")
        producer.send(body(0))


def test_consumer_that_was_silent_for_too_long_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`max_idle`, as in other queues; where it comes back it is behind retention."""
    now = [10**18]
    retention = Retention(max_idle=timedelta(minutes=5))
    with Queue(tmp_path, ring=RING, retention=retention, clock=lambda: now[0]) as queue:
        queue.consumer("viewer").close()
        producer = queue.producer()
        fill(lambda number: producer.send(body(number), timeout=0))
        now[0] += 301 * 10**9
        sent = queue.tail_sequence
        for number in range(sent, sent + 1000):
            producer.send(body(number), timeout=support.LONG)
        assert "'viewer' was silent for longer than" in caplog.text
        assert queue.head_sequence > 0
        with queue.consumer("viewer") as viewer, pytest.raises(Expired):
            viewer.receive(0)
