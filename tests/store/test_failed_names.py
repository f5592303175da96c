"""A directory whose sync failed once: the names that it dropped are never taken for durable."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from publishing_steps import LARGE_COUNT, PAGE_BYTES, SMALL_COUNT, Rows
from support import LONG, SMALL, flip, settle, until

from pagequeue import Queue, SyncFailed, SystemLimit, repair_queue
from pagequeue import format as fmt
from pagequeue.bulk import publisher
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.meta.ledger import publishing_name, sending_name
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.send.queue_end import QueueEnd
from pagequeue.store import pending_commit
from pagequeue.system.directory import Directory
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LEDGER = ("queue-sending", "queue-publish")
"""Records, and the entries that they become: they are renamed, and never changed."""
PAYLOAD = b"x" * 400
FILLS_A_PAGE = 9
"""Messages of that payload in a page of SMALL bytes."""


class Names:
    """Which names a directory has on the disk, if a sync that fails drops what it was to write.

    The next sync leaves those changes out. It writes a name only if that was changed again: also
    one that was made and removed in between.

    Attributes:
        failures: how many syncs of the directory fail from now on.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.failures = 0
        self._disk = self._seen = self._now()
        self._removed: set[str] = set()
        self._ledger: dict[str, bytes] = {}
        fsync, unlink = os.fsync, os.unlink

        def sync(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}") != str(path):
                fsync(fd)
                return
            self.failures -= 1
            self._synced(written=self.failures < 0)
            self.failures = max(self.failures, 0)

        def remove(name: str, *, dir_fd: int | None = None) -> None:
            unlink(name, dir_fd=dir_fd)
            self._removed.add(name)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "unlink", remove)

    def _now(self) -> dict[str, int]:
        return {entry.name: entry.inode() for entry in os.scandir(self.path) if entry.is_file()}

    def _synced(self, *, written: bool) -> None:
        now, seen = self._now(), self._seen
        changed = {name for name in {*now, *seen} if now.get(name) != seen.get(name)}
        changed |= self._removed
        self._seen, self._removed = now, set()
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        kept = {name: inode for name, inode in self._disk.items() if name not in changed}
        self._disk = kept | {name: now[name] for name in changed if name in now}
        for name in changed & now.keys():
            if name.startswith(LEDGER):
                self._ledger[name] = (self.path / name).read_bytes()

    def cut(self, target: Path) -> None:
        """Make a directory of the files whose names are on the disk, with all of their bytes."""
        target.mkdir(mode=0o700)
        live = {inode: name for name, inode in self._now().items()}
        for name, inode in self._disk.items():
            if name in self._ledger:  # its inode can be another file's by now
                (target / name).write_bytes(self._ledger[name])
            elif inode in live:
                shutil.copy(self.path / live[inode], target / name)
            else:
                (target / name).write_bytes(b"")
        boot = target / fmt.write_meta_name("queue")
        for position, size in (
            (WriteMeta.LOCK_KEY, WriteMeta.LOCK_KEY_BYTES),
            (WriteMeta.FAILED_BOOT, 16),
        ):
            overwrite(boot, position, b"\x55" * size)


def pages(path: Path) -> list[str]:
    """Return the names of the page files."""
    return sorted(entry.name for entry in path.iterdir() if entry.name.endswith(".page"))


ASKING: dict[str, Callable[[Queue], object]] = {
    "flush": lambda queue: queue.producer().flush(),
    "consumer": lambda queue: queue.consumer("new"),
    "group": lambda queue: queue.group("new"),
    "remove": lambda queue: queue.remove_consumer("old"),
}


@pytest.mark.parametrize("policy", ["stop", "seal"])
@pytest.mark.parametrize("asking", list(ASKING))
def test_failed_sync_of_the_directory_latches_the_queue_for_every_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, asking: str
) -> None:
    """I5: it can have dropped the names of pages, and the next one succeeds without them."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL, on_sync_failure=policy) as queue:
        queue.consumer("old").close()
        names = Names(path, monkeypatch)
        for _ in range(2 * FILLS_A_PAGE):
            queue.producer().send(PAYLOAD)
        names.failures = 1
        told = None
        try:
            ASKING[asking](queue)
        except (SyncFailed, SystemLimit) as error:
            told = error
        assert names.failures == 0
        assert (told is None) == (policy == "seal" and asking == "flush")
        if policy == "stop":
            with pytest.raises(SyncFailed):
                queue.producer().flush()
        else:
            queue.producer().send(b"after it")
            queue.producer().flush()
        durable = queue.durable_sequence
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    with Queue(tmp_path / "cut", create=False) as queue:
        assert len(list(queue.replay())) >= durable


def test_page_prepared_before_the_failed_sync_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, S1: its name is dropped; the next page written to is created after the failure."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL, on_sync_failure="seal") as queue:
        names = Names(path, monkeypatch)
        producer = queue.producer()
        for _ in range(FILLS_A_PAGE - 1):
            producer.send(PAYLOAD)
        producer._store.roller.prepare(2, reach=0, filled_bytes=0, frame_bytes=1.0)
        until(lambda: len(pages(path)) == 2)
        settle(queue)  # it syncs the name
        names.failures = 1
        with pytest.raises(SystemLimit):
            queue.consumer("x")
        producer.send(b"in a new page")
        assert producer.flush() == FILLS_A_PAGE
        assert queue._store.tail.page_number == 3
        assert queue.verify().ok
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    with Queue(tmp_path / "cut", create=False) as queue:
        assert len(list(queue.replay())) == FILLS_A_PAGE
        assert queue.verify().ok


def test_rolled_back_pages_do_not_reappear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I19: the sync after their removal failed, so the next one must include it."""
    path = tmp_path / "q"

    def killed(*_: object) -> None:
        names.failures = 1
        raise KeyboardInterrupt

    with Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue:
        producer = queue.producer()
        producer.send(b"first")
        producer.flush()
        names = Names(path, monkeypatch)
        with monkeypatch.context() as patch, BulkPublisher(queue._store) as ledger:
            patch.setattr(QueueEnd, "_commit_pages", killed)
            with pytest.raises(KeyboardInterrupt):
                ledger.publish("w", 0, Rows("x", LARGE_COUNT))
        assert queue.stats().sync_failed
        names.cut(tmp_path / "before")
        assert len(pages(tmp_path / "before")) > 3, "else no page could reappear"
        producer.send(b"second")
        assert producer.flush() == 2
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    assert pages(tmp_path / "cut") == pages(path)
    with Queue(tmp_path / "cut", create=False) as queue:
        assert [message.payload for message in queue.replay()] == [b"first", b"second"]


def sync_beside_one_that_fails(
    names: Names,
    other: Queue,
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[], None] = lambda: None,
) -> Callable[[Directory], None]:
    """Return a sync of the directory before which, once, that of another process fails."""
    sync = Directory.sync

    def fails_beside(self: Directory) -> None:
        if self.path == str(names.path):
            monkeypatch.setattr(Directory, "sync", sync)
            names.failures = 1
            with pytest.raises(SyncFailed):
                other._store.flusher.sync_names()
            then()
        sync(self)

    return fails_beside


@pytest.mark.parametrize("is_killed", [False, True])
def test_rolled_back_pages_do_not_reappear_after_the_failed_sync_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """I19: it drops their removal, and the sync that follows succeeds without that."""
    path = tmp_path / "q"

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    def roll_back(*args: Any) -> None:  # noqa: ANN401
        if not is_killed:
            monkeypatch.setattr(Directory, "sync", fails_beside)
            pending_commit.roll_back(*args)

    with (
        Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue,
        Queue(path) as other,
        queue.producer() as producer,
    ):
        producer.send(b"first")
        producer.flush()
        names = Names(path, monkeypatch)
        fails_beside = sync_beside_one_that_fails(names, other, monkeypatch)
        with monkeypatch.context() as patch, BulkPublisher(queue._store) as ledger:
            patch.setattr(QueueEnd, "_commit_pages", ends)
            patch.setattr(publisher, "roll_back", roll_back)
            with pytest.raises(KeyboardInterrupt):
                ledger.publish("w", 0, Rows("x", LARGE_COUNT))
        if is_killed:
            monkeypatch.setattr(Directory, "sync", fails_beside)
        producer.send(b"second")
        assert producer.flush() == 2
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    assert pages(tmp_path / "cut") == pages(path)


def publish_with_a_failed_rename(
    ledger: BulkPublisher, count: int, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publish the first piece of "w"; the sync after its record's rename to the entry fails."""
    rename = Directory.rename

    def fails(self: Directory, name: str, to: str) -> None:
        rename(self, name, to)
        names.failures = 1

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "rename", fails)
        ledger.publish("w", 0, Rows("a", count))
    assert names.failures == 0, "else no sync has failed"


@pytest.mark.parametrize("counts", [(LARGE_COUNT, SMALL_COUNT), (SMALL_COUNT, LARGE_COUNT)])
def test_record_that_a_power_cut_brings_back_forgets_no_later_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int]
) -> None:
    """I19: the sync of the record's new name failed, and the entry has later pieces by then."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue:
        names = Names(path, monkeypatch)
        with BulkPublisher(queue._store) as ledger:
            publish_with_a_failed_rename(ledger, counts[0], names, monkeypatch)
            ledger.publish("w", 1, Rows("b", counts[1]))
            done = [ledger.done("w", piece) for piece in range(2)]
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    there = {entry.name for entry in (tmp_path / "cut").iterdir()}
    assert there & {publishing_name("queue"), sending_name("queue")}, "the record came back"
    with (
        Queue(tmp_path / "cut", create=False) as queue,
        BulkPublisher(queue._store) as ledger,
    ):
        assert queue.tail_sequence == sum(counts)
        assert [ledger.done("w", piece) for piece in range(2)] == done


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_entry_whose_name_a_failed_sync_dropped_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """I19: the record is not, because another writer's took its name."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue:
        names = Names(path, monkeypatch)
        with BulkPublisher(queue._store) as ledger:
            publish_with_a_failed_rename(ledger, count, names, monkeypatch)
            ledger.publish("v", 0, Rows("b", count))
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    with (
        Queue(tmp_path / "cut", create=False) as queue,
        BulkPublisher(queue._store) as ledger,
    ):
        assert queue.tail_sequence == 2 * count
        assert ledger.done("w", 0) == range(count)


def test_record_of_a_batch_that_the_failed_sync_of_another_process_dropped_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I19: the sync of the record succeeds without its name, and the other process continues."""
    path = tmp_path / "q"

    def continues() -> None:
        thread = threading.Thread(target=other._store.flusher.resume)
        thread.start()
        thread.join(LONG)
        assert not other.stats().sync_failed

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    with (
        Queue(path, page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue,
        Queue(path, on_sync_failure="seal") as other,
        queue.producer() as producer,
    ):
        names = Names(path, monkeypatch)
        fails_beside = sync_beside_one_that_fails(names, other, monkeypatch, continues)
        with monkeypatch.context() as patch, BulkPublisher(queue._store) as ledger:
            patch.setattr(Directory, "sync", fails_beside)
            patch.setattr(BulkPublisher, "_enter", ends)
            with pytest.raises(KeyboardInterrupt):
                ledger.publish("w", 0, Rows("a", SMALL_COUNT))
        assert producer.flush() == SMALL_COUNT
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    with Queue(tmp_path / "cut", create=False) as queue, BulkPublisher(queue._store) as ledger:
        assert queue.tail_sequence == SMALL_COUNT
        assert ledger.done("w", 0) == range(SMALL_COUNT)


def test_entry_is_not_replaced_by_what_continuing_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write entries only under the preparation lock."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, on_sync_failure="seal") as queue:
        store = queue._store
        with BulkPublisher(store) as ledger:
            ledger.publish("w", 0, Rows("a", SMALL_COUNT))
        make, enter = Directory.make, BulkPublisher._enter
        is_sent, is_read = threading.Event(), threading.Event()

        def publish() -> None:
            with BulkPublisher(store) as ledger:
                ledger.publish("w", 1, Rows("b", SMALL_COUNT))

        def enter_late(self: BulkPublisher, *names: str) -> None:
            is_sent.set()
            is_read.wait(LONG)
            enter(self, *names)

        def make_late(self: Directory, name: str, *args: Any, **options: Any) -> object:  # noqa: ANN401
            if options.get("maker") and name.startswith("queue-published."):
                is_read.set()
                thread.join(0.3)
            return make(self, name, *args, **options)

        monkeypatch.setattr(BulkPublisher, "_enter", enter_late)
        monkeypatch.setattr(Directory, "make", make_late)
        thread = threading.Thread(target=publish)
        thread.start()
        assert is_sent.wait(LONG)
        store.write_meta.latch(errno.EIO, 1)
        with queue.producer() as producer:
            producer.send(b"after it")
        assert is_read.is_set()
        thread.join()
        with BulkPublisher(store) as ledger:
            assert ledger.done("w", 0) is not None
            assert ledger.done("w", 1) is not None


def test_repair_after_a_recovery_whose_sync_failed_renews_every_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: meta files and cursors get new names, and pages that recovery removed stay away."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL) as queue:
        producer = queue.producer()
        producer.send(PAYLOAD)
        producer.flush()
        queue.consumer("mine").close()
        for _ in range(3 * FILLS_A_PAGE):
            producer.send(PAYLOAD)
    later = pages(path)[1:]
    flip(path / fmt.page_name("queue", 1), 3 * SMALL // 4)
    pretend_power_cut(path)
    (path / fmt.read_meta_name("queue")).unlink()
    names = Names(path, monkeypatch)
    names.failures = 1
    with pytest.raises(SyncFailed):
        Queue(path)
    assert not set(later) & set(pages(path))
    assert repair_queue(path).ok
    names.cut(tmp_path / "cut")
    monkeypatch.undo()
    assert not set(later) & set(pages(tmp_path / "cut"))
    lasting = {entry.name for entry in path.iterdir() if ".lock" not in entry.name}
    assert lasting == {e.name for e in (tmp_path / "cut").iterdir() if ".lock" not in e.name}
    with Queue(tmp_path / "cut", create=False) as queue:
        assert [info.name for info in queue.consumers()] == ["mine"]


def test_directory_whose_name_could_not_be_synced_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next opener creates it again: a later sync does not restore a dropped name."""
    names = Names(tmp_path, monkeypatch)
    names.failures = 1
    with pytest.raises(SystemLimit):
        Queue(tmp_path / "q")
    assert not (tmp_path / "q").exists()
    Queue(tmp_path / "q").close()
