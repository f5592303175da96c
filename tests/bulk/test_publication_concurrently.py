"""Publishing concurrently with retention, latches, hostile records, links, slow publishers."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from publishing_steps import LARGE_COUNT, PAGE_BYTES, SMALL_COUNT, Rows, publish
from support import LONG

from pagequeue import Queue, Retention, errors, salvage_queue
from pagequeue import format as fmt
from pagequeue.bulk import publisher, staged_pages
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.bulk.staging_directory import staged_directory
from pagequeue.meta.ledger import (
    entry_of,
    published_name,
    publishing_name,
    read_record,
    sending_name,
    write_record,
)
from pagequeue.send.queue_end import QueueEnd
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.producer.producer import Producer
    from pagequeue.util.literals import SyncName

PAGE_SECONDS = 0.4


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of small pages, open for writing."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        yield queue


def payloads(queue: Queue) -> list[bytes]:
    """Return all payloads."""
    return [message.payload for message in queue.replay()]


def interrupted(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what a publisher leaves that is killed between the names and the mark."""
    with monkeypatch.context() as patch, BulkPublisher(queue._store) as ledger:
        patch.setattr(
            QueueEnd, "_commit_pages", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        patch.setattr(publisher, "roll_back", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            ledger.publish("dead", 0, Rows("dead", LARGE_COUNT))


# --- room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest", "block"])
def test_rows_that_never_fit_are_refused_and_no_page_is_dropped_for_them(
    tmp_path: Path, on_full: str
) -> None:
    """More pages than max_bytes allows are not published, and what is there stays."""
    limit = Retention(max_bytes=3 * PAGE_BYTES)
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=limit, on_full=on_full) as queue,
        queue.producer() as producer,
        BulkPublisher(queue._store) as ledger,
    ):
        producer.send(b"first")
        with pytest.raises(errors.MessageTooLarge, match="allows 3 in all"):
            ledger.publish("w", 0, Rows("x", 2 * LARGE_COUNT))
        assert ledger.done("w", 0) is None
        assert payloads(queue) == [b"first"]
        assert queue.verify().problems == []


BUSY: dict[str, dict[str, Any]] = {
    "ring": {"ring": 6 * PAGE_BYTES},
    "few pages": {"retention": Retention(max_bytes=3 * PAGE_BYTES), "on_full": "drop_oldest"},
    "any": {},
}


@pytest.mark.parametrize("kind", BUSY)
def test_batch_is_published_though_another_producer_is_faster_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The others wait for it then; it takes no page of its own, which a ring does not have."""
    real, threads = write_record, list[threading.Thread]()
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, **BUSY[kind]) as queue,
        queue.producer() as other,
    ):

        def overtake(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
            real(*arguments, **options)
            thread = threading.Thread(target=other.send, args=(b"faster",))
            thread.start()
            thread.join(LONG if len(threads) < publisher.TRIES else 0.1)  # then it has to wait
            threads.append(thread)

        monkeypatch.setattr(publisher, "write_record", overtake)
        sequences = queue.publish("writer", 7, [b"a", b"b", b"c"])
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert len(threads) == publisher.TRIES + 1
        found = {message.sequence: message.payload for message in queue.replay()}
        assert [found[sequence] for sequence in sequences] == [b"a", b"b", b"c"]
        assert queue.publish("writer", 7, [b"a", b"b", b"c"]) == sequences
        assert queue.verify().ok


def test_space_for_all_pages_is_freed_before_any_is_published(tmp_path: Path) -> None:
    """max_bytes holds also in the moment in which many pages appear."""
    limit = Retention(max_bytes=6 * PAGE_BYTES)
    counts = []

    def counted(queue: Queue) -> int:
        head = queue._store.read_meta.head_page
        return queue._store.tail.page_number - head + 1

    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=limit) as queue,
        queue.producer() as producer,
        BulkPublisher(queue._store) as ledger,
    ):
        for number in range(400):
            producer.send(b"%032d" % number)
        queue._store.background.end()
        for piece in range(3):
            ledger.publish("w", piece, Rows(f"p{piece}", LARGE_COUNT))
            counts.append(counted(queue))
        assert payloads(queue)[-LARGE_COUNT:] == Rows("p2", LARGE_COUNT).payloads
    assert max(counts) <= 6


def test_an_unacknowledged_page_refuses_a_publication(tmp_path: Path) -> None:
    """What a consumer needs is not dropped for what is published."""
    limit = Retention(max_bytes=5 * PAGE_BYTES, keep_unacked=True)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=limit) as queue:
        with queue.consumer("slow"), queue.producer() as producer:
            for number in range(300):
                producer.send(b"%032d" % number)
        before = payloads(queue)
        with BulkPublisher(queue._store) as ledger, pytest.raises(errors.QueueFull, match="'slow'"):
            ledger.publish("w", 0, Rows("x", LARGE_COUNT))
        assert payloads(queue) == before


# --- others ---------------------------------------------------------------------------------------


def test_waiting_for_a_publisher_that_makes_progress_does_not_time_out(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large publication takes longer than the lock's timeout: producers and publishers wait."""
    assert any(waits_for_a_slow_publication(queue, monkeypatch, piece) for piece in range(10))


def waits_for_a_slow_publication(queue: Queue, monkeypatch: pytest.MonkeyPatch, piece: int) -> bool:
    """Publish slowly, and wait for that; False: the machine was so busy that a page took longer."""
    real = staged_pages._FilledPage.assign
    begun = threading.Event()
    times: list[float] = []

    def slow(*args: Any, **options: bool) -> None:  # noqa: ANN401
        times.append(time.monotonic())
        begun.set()
        time.sleep(PAGE_SECONDS)
        real(*args, **options)

    failed: list[BaseException] = []

    def run() -> None:
        try:
            with Queue(queue.directory) as other, BulkPublisher(other._store) as ledger:
                ledger.publish("w", piece, Rows("x", 3 * LARGE_COUNT))
        except BaseException as error:  # noqa: BLE001 - of any type: it is reported below
            failed.append(error)

    thread = threading.Thread(target=run)
    with monkeypatch.context() as patch:
        patch.setattr(staged_pages._FilledPage, "assign", slow)
        patch.setattr(os, "sched_getaffinity", lambda _: {0})  # one page after the other
        thread.start()
        assert begun.wait(LONG)
        # Less than all pages take, and twice what one does.
        has_waited, timeout = True, 2 * PAGE_SECONDS
        try:
            with Queue(queue.directory, lock_timeout=timeout) as other:
                other.producer().send(b"after")
                with BulkPublisher(other._store) as ledger:
                    assert ledger.done("w", piece) is not None
        except errors.LockTimeout:
            has_waited = False
        times.append(time.monotonic())
        thread.join()
    assert failed == []
    if has_waited:
        expected = [*Rows("x", 3 * LARGE_COUNT).payloads, b"after"]
        assert payloads(queue)[-len(expected) :] == expected
    else:
        assert max(after - before for before, after in pairwise(times)) > 1.5 * PAGE_SECONDS
    return has_waited


def test_a_roll_between_the_check_and_sealing_is_not_an_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: another producer that has the next page mapped rolls into it meanwhile."""
    with Queue(queue.directory) as other, other.producer() as producer:
        producer.send(b"first")
        other._store.roller.next_page(2)
        real = queue._store.roller.take
        rolled: list[int] = []

        def take(number: int) -> bool:
            found = real(number)
            if found and not rolled:
                rolled.append(number)
                producer._seal()
            return found

        monkeypatch.setattr(queue._store.roller, "take", take)
        with BulkPublisher(queue._store) as ledger:
            assert ledger.publish("w", 0, Rows("x", LARGE_COUNT)) == range(1, LARGE_COUNT + 1)
    assert rolled
    assert queue.verify().problems == []


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_publishing_continues_after_a_failed_sync(tmp_path: Path, count: int) -> None:
    """With `on_sync_failure="seal"` the queue is written again first, without a lock on itself."""
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue,
        queue.producer() as producer,
    ):
        producer.send(b"first")
        queue._store.write_meta.latch(5, 1)
        with BulkPublisher(queue._store) as ledger:
            ledger.publish("w", 0, Rows("x", count))
        assert payloads(queue) == [b"first", *Rows("x", count).payloads]


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_no_row_is_published_in_a_latched_queue(queue: Queue, count: int) -> None:
    """A failed sync stops publishers as it stops producers."""
    with queue.producer() as producer:
        producer.send(b"first")
        queue._store.write_meta.latch(5, 1)
        with BulkPublisher(queue._store) as ledger, pytest.raises(errors.SyncFailed):
            ledger.publish("w", 0, Rows("x", count))
    assert payloads(queue) == [b"first"]


def test_a_sync_that_fails_before_the_marker_prevents_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core checks the latch again where it stores the marker."""
    real = QueueEnd._commit_pages

    def latched(self: Producer, *args: object) -> None:
        queue._store.write_meta.latch(5, 1)
        real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueEnd, "_commit_pages", latched)
    with BulkPublisher(queue._store) as ledger, pytest.raises(errors.SyncFailed):
        ledger.publish("w", 0, Rows("x", LARGE_COUNT))
    with BulkPublisher(queue._store) as ledger:
        assert ledger.done("w", 0) is None
    assert payloads(queue) == []
    assert not Path(queue._store.folder.full(fmt.page_name("queue", 2))).exists()


BIG = b"big" * PAGE_BYTES
BATCH = [*Rows("x", LARGE_COUNT).payloads, BIG, *Rows("y", LARGE_COUNT).payloads]


def sent_by_open(_queue: Queue, producer: Producer[bytes]) -> list[bytes]:
    """Send a large message through a file."""
    with producer.open() as file:
        file.write(BIG)
    return [BIG]


def sent_at_once(_queue: Queue, producer: Producer[bytes]) -> list[bytes]:
    """Send small messages and a large one as one batch."""
    producer.send_many(BATCH)
    return BATCH


def sent_alone(_queue: Queue, producer: Producer[bytes]) -> list[bytes]:
    """Send one large message."""
    producer.send(BIG)
    return [BIG]


def published(queue: Queue, count: int) -> list[bytes]:
    """Publish messages as a writer's piece of work."""
    rows = Rows("r", count)
    with BulkPublisher(queue._store) as ledger:
        sequences = ledger.publish("w", 0, rows)
        assert ledger.done("w", 0) == sequences
    assert len(sequences) == count
    return list(rows.payloads)


SENDING = {
    "open": sent_by_open,
    "batch": sent_at_once,
    "alone": sent_alone,
    "pages": lambda queue, _: published(queue, LARGE_COUNT),
    "one batch": lambda queue, _: published(queue, SMALL_COUNT),
}


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("sync", ["none", "always"])
@pytest.mark.parametrize("how", ["open", "batch", "alone", "pages"])
def test_commit_that_meets_a_failed_sync_of_another_sender_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: SyncName, how: str
) -> None:
    """Its pages were named already; they are staged again, for the place that they get then."""
    path = tmp_path / "q"
    with (
        Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal", sync=sync) as queue,
        queue.producer() as producer,
    ):
        real, between = QueueEnd._commit_pages, [b"%d in between" % i for i in range(2)]
        left = list(between)

        def meets(self: Producer[bytes], *args: object) -> None:
            if left:
                queue._store.write_meta.latch(5, 1)
            real(self, *args)  # type: ignore[arg-type]

        def resume() -> None:
            continue_()
            if left:
                producer.send(left.pop(0))

        producer.send(b"first")
        continue_ = queue._store.flusher.resume
        monkeypatch.setattr(QueueEnd, "_commit_pages", meets)
        monkeypatch.setattr(queue._store.flusher, "resume", resume)
        sent = SENDING[how](queue, producer)
        assert payloads(queue) == [b"first", *between, *sent]
        producer.send(b"last")
        assert queue.verify().problems == []
        assert not (path / publishing_name("queue")).exists()
    with Queue(path, create=False) as queue:
        assert payloads(queue) == [b"first", *between, *sent, b"last"]


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("how", SENDING)
def test_sender_continues_after_its_own_sync_of_names_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """With `on_sync_failure="seal"` each of them can fail once, and the sender is not told."""
    real, calls, nth = Directory.sync, 0, 0

    def fails_once(self: Directory) -> None:
        nonlocal calls
        if self.path == str(path):
            calls += 1
            if calls == nth:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(self)

    while calls >= nth:
        nth, calls = nth + 1, 0
        path = tmp_path / str(nth)
        with (
            Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal", sync="always") as queue,
            queue.producer() as producer,
        ):
            producer.send(b"first")
            with monkeypatch.context() as patch:
                patch.setattr(Directory, "sync", fails_once)
                sent = SENDING[how](queue, producer)
            assert payloads(queue) == [b"first", *sent]
            producer.send(b"last")
            assert queue.durable_sequence == len(sent) + 2
            assert queue.verify().problems == []
            assert not queue.stats().sync_failed
            assert not (path / publishing_name("queue")).exists()
    assert nth > 2, "one sync of names at least was failed"


@pytest.mark.parametrize("how", SENDING)
def test_index_of_a_page_that_was_not_made_is_not_taken_for_a_staged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its producer was killed before the page, and then the sync of the record's name failed."""
    path, real, left = tmp_path / "q", Directory.sync, [errno.EIO]

    def fails_once(self: Directory) -> None:
        if left and self.path == str(path):
            raise OSError(left[0], os.strerror(left.pop()))
        real(self)

    with (
        Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal", sync="always") as queue,
        queue.producer() as producer,
    ):
        producer.send(b"first")
        store = queue._store
        store.folder.make(fmt.index_name("queue", 2), b"", size_bytes=store.meta.index_bytes)
        monkeypatch.setattr(Directory, "sync", fails_once)
        sent = SENDING[how](queue, producer)
        assert not left
        assert payloads(queue) == [b"first", *sent]
        assert queue.verify().problems == []


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("how", ["small", "rotate", "async", *SENDING])
def test_sender_continues_after_the_sync_of_a_dead_publishers_names_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """With `on_sync_failure="seal"`: it finds the record, and removes the pages."""
    real, left = Directory.sync, [errno.EIO]

    def fails_once(self: Directory) -> None:
        if left and self.path == str(tmp_path / "q"):
            raise OSError(left[0], os.strerror(left.pop()))
        real(self)

    def sent(queue: Queue, producer: Producer[bytes]) -> list[bytes]:
        if how == "small":
            producer.send(b"second")
        elif how == "async":
            asyncio.run(producer.send_async(b"second"))
        elif how == "rotate":
            assert producer.rotate() is not None
            producer.send(b"second")
        else:
            return SENDING[how](queue, producer)
        return [b"second"]

    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue,
        queue.producer() as producer,
    ):
        producer.send(b"first")
        interrupted(queue, monkeypatch)
        assert (tmp_path / "q" / publishing_name("queue")).exists()
        with monkeypatch.context() as patch:
            patch.setattr(Directory, "sync", fails_once)
            rest = sent(queue, producer)
        assert not left
        assert payloads(queue) == [b"first", *rest]
        assert queue.verify().problems == []
        assert not (tmp_path / "q" / publishing_name("queue")).exists()


@pytest.mark.quick_each(3)
@pytest.mark.parametrize(
    ("number", "expected"), [(errno.EIO, errors.SystemLimit), (errno.ENOSPC, errors.DiskFull)]
)
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_staged_page_whose_sync_fails_stops_only_its_own_call(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, nth: int, number: int, expected: type[Exception]
) -> None:
    """No message was sent, and no page of the queue is in doubt: the same call works again."""
    real, calls = os.fdatasync, 0

    def fails_once(fd: int) -> None:
        nonlocal calls
        if "queue-staged" in os.readlink(f"/proc/self/fd/{fd}"):
            calls += 1
            if calls == nth:
                raise OSError(number, os.strerror(number))
        real(fd)

    sent = [*(b"%05d" % i * 40 for i in range(LARGE_COUNT)), b"x" * 3 * queue.page_bytes]
    with Queue(queue.directory, sync="always") as other, other.producer() as producer:
        producer.send(b"first")
        monkeypatch.setattr(os, "fdatasync", fails_once)
        caught = None
        try:
            producer.send_many(sent)
        except expected as error:
            caught = error
        assert (caught is not None) == (calls >= nth)
        assert calls
        if caught is not None:
            assert "queue-staged" in str(caught)
            assert payloads(queue) == [b"first"]
            assert producer.send_many(sent).start == 1
        producer.flush()
    assert payloads(queue) == [b"first", *sent]


def test_published_pages_need_not_be_mapped_to_be_published(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once pages are visible, no error asks to call again: the next producer attaches to them."""
    roller = queue._store.roller
    real = roller.page

    def refused(number: int) -> object:
        if number > 1:
            raise errors.SystemLimit("no memory", path=queue._store.folder.path)
        return real(number)

    monkeypatch.setattr(roller, "page", refused)
    with BulkPublisher(queue._store) as ledger:
        assert ledger.publish("w", 0, Rows("x", LARGE_COUNT)) == range(LARGE_COUNT)
    monkeypatch.undo()
    assert payloads(queue) == Rows("x", LARGE_COUNT).payloads
    with queue.producer() as producer:
        assert producer.send(b"next") == LARGE_COUNT


def test_unreadable_ledger_is_a_typed_error(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that the disk refuses to read names its file, and is not damage."""
    with BulkPublisher(queue._store) as ledger:
        ledger.publish("w", 0, Rows("x", SMALL_COUNT))

        def refused(*_: object, **__: object) -> object:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(os, "pread", refused)
        name = published_name("queue", entry_of("w"))
        with pytest.raises(errors.SystemLimit, match=name):
            ledger.done("w", 0)


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
@pytest.mark.parametrize("which", [1, 2])
def test_a_directory_whose_sync_fails_latches_the_queue(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, count: int, which: int
) -> None:
    """The next sync of it could report success, and names be missing after a cut."""
    with queue.producer() as producer, BulkPublisher(queue._store) as ledger:
        producer.send(b"first")
        real, left = Directory.sync, [which]

        def fails(folder: Directory) -> None:
            left[0] -= folder.path == queue._store.folder.path
            if left[0] == 0:
                raise OSError(errno.EIO, "Input/output error")
            real(folder)

        monkeypatch.setattr(Directory, "sync", fails)
        with pytest.raises(errors.SyncFailed):
            ledger.publish("w", 0, Rows("x", count))
        monkeypatch.undo()
        with pytest.raises(errors.SyncFailed):
            producer.send(b"more")
    published = payloads(queue)[1:]
    assert published in ([], Rows("x", count).payloads)


def test_times_that_are_too_early_seal_no_page(queue: Queue) -> None:
    """A job that is tried again and again does not use up the disk."""
    with queue.producer() as producer, BulkPublisher(queue._store) as ledger:
        producer.send(b"now")
        for _ in range(3):
            with pytest.raises(errors.TimestampOrder):
                ledger.publish("w", 0, Rows("x", LARGE_COUNT, 1000))
        producer.send(b"on")
        assert queue._store.tail.page_number == 1


# --- files of a dead publisher --------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_rolled_back_pages_are_durably_removed_before_the_next_page_is_linked(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    """A power cut that kept the next mark and brought the pages back would publish them."""
    with queue.producer() as producer:
        producer.send(b"first")
    interrupted(queue, monkeypatch)
    directory = Path(queue.directory)
    if alone:  # opening the queue resolves it
        queue.close()
    real, seen = Directory.sync, []

    def check(folder: Directory) -> None:
        waiting = {path.name for path in directory.glob("queue-0*")}
        seen.append((waiting, (directory / publishing_name("queue")).exists()))
        real(folder)

    monkeypatch.setattr(Directory, "sync", check)
    with Queue(directory) as again, again.producer() as producer:
        producer.send(b"next")
        stands = {fmt.page_name("queue", 1), fmt.index_name("queue", 1)}
        assert (stands, True) in seen  # the record goes last
        assert payloads(again) == [b"first", b"next"]


def test_rollback_that_is_not_durable_stops_all_producers(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removals are perhaps not on the disk: no mark is stored, and the record stays."""
    with queue.producer() as producer:
        producer.send(b"first")
        interrupted(queue, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(Directory, "sync", fails_with_eio)
            with pytest.raises(errors.SyncFailed):
                producer.send(b"next")
        with pytest.raises(errors.SyncFailed):
            producer.send(b"next")
        assert Path(queue._store.folder.full(publishing_name("queue"))).exists()
    assert payloads(queue) == [b"first"]
    assert queue.repair().ok
    assert publish(queue.directory, "x", 0, LARGE_COUNT) == range(1, LARGE_COUNT + 1)


def fails_with_eio(folder: Directory) -> None:
    """Fail as a disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO), folder.path)


def test_salvage_copies_only_staged_rows_that_were_committed(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I19: pages without a marker are unpublished, also where the record is damaged."""
    with queue.producer() as producer:
        producer.send(b"first")
    interrupted(queue, monkeypatch)
    report = salvage_queue(queue.directory, tmp_path / "one")
    assert (report.messages_copied, report.ok) == (1, True)
    assert len(report.notes) == 3
    path = Path(queue._store.folder.full(publishing_name("queue")))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert salvage_queue(queue.directory, tmp_path / "two").messages_copied == 1


def test_salvage_without_a_write_meta_skips_staged_rows(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record and the missing marker prove it where no tail does."""
    with queue.producer() as producer:
        producer.send(b"first")
    interrupted(queue, monkeypatch)
    queue.close()
    (Path(queue.directory) / "queue-writeMeta").unlink()
    assert salvage_queue(queue.directory, tmp_path / "one").messages_copied == 1
    with Queue(queue.directory) as again:  # which removes them
        assert payloads(again) == [b"first"]
        assert again.verify().problems == []


def test_repair_removes_pages_whose_record_is_damaged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be taken for another publisher's pages, and no producer could roll any more."""
    with queue.producer() as producer:
        producer.send(b"first")
    interrupted(queue, monkeypatch)
    path = Path(queue._store.folder.full(publishing_name("queue")))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert not queue.verify().ok
    assert queue.repair().ok
    assert publish(queue.directory, "x", 0, LARGE_COUNT) == range(1, LARGE_COUNT + 1)
    assert queue.verify().problems == []


def test_a_record_that_reappears_claims_no_page(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cut a given-up record can be there again, and others' pages have its numbers."""
    from stress.tampering import pretend_power_cut  # noqa: PLC0415 - used here only

    interrupted(queue, monkeypatch)
    name = publishing_name("queue")
    data = Path(queue._store.folder.full(name)).read_bytes()
    with queue.producer() as producer:
        for number in range(3 * LARGE_COUNT):
            producer.send(b"%032d" % number)
        producer.flush()
    queue.close()
    (Path(queue.directory) / name).write_bytes(data)
    pretend_power_cut(queue.directory)
    with Queue(queue.directory) as again:
        assert len(payloads(again)) == 3 * LARGE_COUNT
        with BulkPublisher(again._store) as ledger:
            assert ledger.done("dead", 0) is None
        assert again.verify().problems == []


def test_an_undecidable_batch_blocks_only_its_own_writer(tmp_path: Path) -> None:
    """Retention took what would tell whether a batch was sent: others publish all the same."""
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=Retention(max_age=None)) as queue,
        queue.producer() as producer,
    ):
        record = {
            "entry": entry_of("dead"),
            "writer": "dead",
            "done": [[0, 0, 1], [1, 1, 3]],
            "first_sequence": 1,
            "count": 2,
            "digest": 7,
        }
        write_record(queue._store.folder, sending_name("queue"), record)
        for number in range(LARGE_COUNT):
            producer.send(b"%032d" % number)
        store = queue._store
        store.read_meta.advance(store.first_sequence(2))
        with BulkPublisher(store) as ledger:
            assert ledger.publish("other", 0, Rows("x", 1)) is not None
            assert ledger.done("dead", 0) == range(1)
            with pytest.raises(errors.Expired, match="messages 1 to 2"):
                ledger.done("dead", 1)
            assert ledger.done("dead", 2) is None


# --- hostile files --------------------------------------------------------------------------------

GOOD_PUBLISHING = {
    "first_page": 2,
    "first_sequence": 0,
    "first_checksum": 1,
    "beyond": [4, 64, 0, 5, 0],
    "entry": "0" * 32,
    "writer": "w",
    "done": [[0, 0, 5]],
}
GOOD_SENDING = {
    "first_sequence": 0,
    "count": 1,
    "digest": 0,
    "entry": "0" * 32,
    "writer": "w",
    "done": [[0, 0, 1]],
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        (publishing_name, {"entry": "../../x"}),
        (publishing_name, {"entry": 7}),
        (publishing_name, {"first_page": 1}),
        (publishing_name, {"first_page": -2}),
        (publishing_name, {"first_page": True}),
        (publishing_name, {"beyond": [5, 64, 0, 5, 0]}),
        (publishing_name, {"beyond": [1 << 62, 64, 0, 5, 0]}),
        (publishing_name, {"beyond": [4, 64]}),
        (publishing_name, {"beyond": "4"}),
        (publishing_name, {"done": []}),
        (publishing_name, {"writer": None}),
        (sending_name, {"entry": "../../x"}),
        (sending_name, {"count": 1 << 60}),
        (sending_name, {"count": 0}),
        (sending_name, {"first_sequence": "0"}),
        (sending_name, {"done": [[1, 2]]}),
        (sending_name, {"done": [[0, 5, 2]]}),
    ],
)
def test_an_invalid_record_is_damage(
    queue: Queue, name: Callable[[str], str], change: dict[str, object]
) -> None:
    """Right checksums, wrong words: a typed error in no time, no name outside, gone by repair."""
    good = GOOD_PUBLISHING if name is publishing_name else GOOD_SENDING
    write_record(queue._store.folder, name("queue"), {**good, **change})
    with pytest.raises(errors.CorruptMeta, match="repair"), BulkPublisher(queue._store) as ledger:
        ledger.publish("w", 0, Rows("x", LARGE_COUNT))
    assert payloads(queue) == []
    if name is publishing_name:
        queue.repair()
        assert publish(queue.directory, "x", 0, 1) == range(1)


@pytest.mark.parametrize("text", ["[" * 50_000, "7", "[]", "null", '{"version": 1}'])
def test_an_entry_of_any_text_is_damage(queue: Queue, text: str) -> None:
    """Not a crash, and not a piece of work that was done."""
    from pagequeue import _core  # noqa: PLC0415 - used here only

    path = Path(queue._store.folder.full(published_name("queue", entry_of("w"))))
    path.write_bytes(f"{_core.crc32c(text.encode()):08x}{text}".encode())
    path.chmod(0o600)
    with BulkPublisher(queue._store) as ledger:
        with pytest.raises(errors.CorruptMeta):
            ledger.done("w", 0)
        assert ledger.publish("other", 0, Rows("x", 1)) == range(1)


def test_a_link_in_the_place_of_the_directory_is_not_followed(queue: Queue, tmp_path: Path) -> None:
    """No byte is written outside, and no file there is removed."""
    outside = tmp_path / "outside"
    (outside / "pages-mine").mkdir(parents=True)
    os.symlink(outside, Path(queue.directory) / "queue-staged")
    with pytest.raises(errors.UnsafePath):
        BulkPublisher(queue._store)
    with pytest.raises(errors.UnsafePath):
        staged_directory(queue.directory, "queue")
    assert [path.name for path in outside.iterdir()] == ["pages-mine"]


def test_a_replaced_lock_blocks_only_briefly(queue: Queue) -> None:
    """A process that locked a file without a name retries with the named one."""
    with BulkPublisher(queue._store) as ledger:
        os.unlink(os.path.join(ledger.path, "lock"))
        with BulkPublisher(queue._store) as second:
            assert second.publish("w", 0, Rows("x", LARGE_COUNT)) == range(LARGE_COUNT)
        assert ledger.publish("w", 0, Rows("x", LARGE_COUNT)) == range(LARGE_COUNT)
    entry = read_record(queue._store.folder, published_name("queue", entry_of("w")))
    assert entry is not None
    assert len(entry["done"]) == 1
