"""A large message that was not synced, and a power cut: it is kept whole, or not at all.

Under `sync="none"` the fragments of a single large message are not put on stable storage before it
is visible, so a power cut can take any part of them. Recovery checks what the durable mark does not
cover, and reads nothing of what it covers.
"""

from __future__ import annotations

import importlib.util
import os
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torn_pages import page, payloads, zero

from pagequeue import CorruptFrame, Queue, Retention, SyncFailed, _core
from pagequeue import format as fmt
from pagequeue.bulk import staged_fragments
from pagequeue.integrity.verify import verify_queue
from pagequeue.maintenance.trimmer import sync_header
from pagequeue.meta.ledger import publishing_name
from pagequeue.page import fragments
from pagequeue.queue.queue import internals
from pagequeue.system import directory
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE_BYTES = 1 << 14
BIG = random.Random(1).randbytes(3 * PAGE_BYTES + 77)
FIRST, LAST = 2, 5
"""The pages with fragments of the large message; message 1."""


def made(directory: Path, *, flushed: bool, payload: bytes = BIG) -> None:
    """Make a queue with a durable message and a large one, and cut the power."""
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"small")
        producer.flush()
        producer.send(payload)
        assert queue.info().tail_sequence == 2
        if flushed:
            producer.flush()
        if payload != BIG:
            queue.compress()
    assert pretend_power_cut(directory)


TORN: dict[str, Callable[[Path], object]] = {
    "a block of the first fragment": lambda path: zero(page(path, FIRST), PAGE_BYTES - 4096, 4096),
    "a block of the last fragment": lambda path: zero(page(path, LAST), 200, 100),
    "the mark of a fragment": lambda path: zero(page(path, 3), fmt.PAGE_HEADER_BYTES, 16),
    "the header of a page": lambda path: zero(page(path, 4), 0, fmt.PAGE_HEADER_BYTES),
    "a page": lambda path: page(path, 4).unlink(),
    "the size of a page": lambda path: os.truncate(page(path, LAST), 4096),
    "the head": lambda path: zero(page(path, FIRST), fmt.PAGE_HEADER_BYTES, 16),
    "all but the head": lambda path: [page(path, number).unlink() for number in range(3, 7)],
}


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("tear", TORN.values(), ids=TORN)
def test_torn_message_after_the_mark_is_dropped_whole(
    tmp_path: Path, tear: Callable[[Path], object]
) -> None:
    """I23: no byte of it is delivered; the queue ends before it, and goes on from there."""
    path = tmp_path / "q"
    made(path, flushed=False)
    tear(path)
    report = verify_queue(path)
    assert report.awaits_recovery
    assert report.problems == []
    with Queue(path, read_only=True) as queue:
        assert payloads(queue) == [b"small"]
    with Queue(path) as queue, queue.producer() as producer:
        assert payloads(queue) == [b"small"]
        assert queue.verify().problems == []
        assert producer.send(BIG[::-1]) == 1
        assert producer.send(b"after") == 2
    assert pretend_power_cut(path)
    with Queue(path) as queue:
        assert payloads(queue) == [b"small", BIG[::-1], b"after"]
        assert queue.verify().problems == []


def test_torn_message_whose_first_page_is_compressed_is_dropped(tmp_path: Path) -> None:
    """I16, I23: a compressed page is on stable storage, and the fragments after it need not be."""
    path = tmp_path / "q"
    made(path, flushed=False, payload=b"the same words again, " * 2_300)
    assert page(path, FIRST).stat().st_size < PAGE_BYTES // 2
    page(path, LAST).unlink()
    with Queue(path, read_only=True) as queue:
        assert payloads(queue) == [b"small"]
    with Queue(path) as queue, queue.producer() as producer:
        assert payloads(queue) == [b"small"]
        assert producer.send(BIG) == 1
        assert queue.verify().problems == []


def test_whole_message_after_the_mark_is_kept(tmp_path: Path) -> None:
    """I23: recovery keeps what it finds whole, and what follows it."""
    path = tmp_path / "q"
    made(path, flushed=False)
    with Queue(path, read_only=True) as queue:
        assert payloads(queue) == [b"small", BIG]
    with Queue(path) as queue, queue.producer() as producer:
        assert payloads(queue) == [b"small", BIG]
        assert producer.send(b"after") == 2
        assert queue.verify().problems == []


def test_message_below_the_mark_is_not_read_by_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the mark says that it is whole, so damage is an error of its reader, and of no opener."""
    path = tmp_path / "q"
    made(path, flushed=True)
    zero(page(path, LAST), 200, 100)

    def refused(*given: object) -> None:
        del given
        raise AssertionError("a payload was read")

    for read_only in (True, False):
        assert pretend_power_cut(path)
        with monkeypatch.context() as patch:
            patch.setattr(fragments._core, "copy_checked", refused)
            queue = Queue(path, read_only=read_only)
            assert queue.info().tail_sequence == 2
        with queue, pytest.raises(CorruptFrame):
            payloads(queue)
    assert [problem.sequence for problem in verify_queue(path).problems] == [1]


def test_torn_record_of_a_commit_is_removed(tmp_path: Path) -> None:
    """M5: under no sync its record can be empty after a cut; it is no damage then."""
    path = tmp_path / "q"
    made(path, flushed=False)
    (path / publishing_name("queue")).touch()
    assert verify_queue(path).problems == []
    with Queue(path) as queue:
        assert payloads(queue) == [b"small", BIG]
        assert queue.verify().problems == []
    assert not (path / publishing_name("queue")).exists()


@pytest.mark.parametrize("how", ["send", "open", "batch", "always"])
def test_what_nobody_flushes_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """M1 to M5: recovery keeps all of it or none; who waits for its sync does so before M3."""
    calls: list[str] = []

    def counted(name: str) -> Callable[[int], object]:
        real = getattr(os, name)

        def call(*given: int) -> object:
            calls.append(name)
            return real(*given)

        return call

    path = tmp_path / "q"
    sync = "always" if how == "always" else "none"
    with Queue(path, page_bytes=PAGE_BYTES, sync=sync) as queue, queue.producer() as producer:
        producer.send(b"small")
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(staged_fragments.os, name, counted(name))
        if how == "open":
            with producer.open() as file:
                file.write(BIG)
        elif how == "batch":
            producer.send_many([BIG, b"another"])
        else:
            producer.send(BIG)
        assert bool(calls) == (how == "always")
        assert payloads(queue)[1] == BIG


def test_temporary_queue_of_staged_pages_is_never_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1: nobody reads it after a power cut; its pages are synced with their place in the queue."""
    synced: list[str] = []

    def path_of(fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def noted(real: Callable[[int], object]) -> Callable[[int], object]:
        def call(fd: int) -> object:
            synced.append(path_of(fd))
            return real(fd)

        return call

    def make(folder: int, *given: Any) -> _core.Region:  # noqa: ANN401 - of Region.make
        if given[9]:
            synced.append(f"{path_of(folder)}/{given[1]}")
        return _core.Region.make(folder, *given)

    path = tmp_path / "q"
    with Queue(path, page_bytes=PAGE_BYTES, sync="always") as queue, queue.producer() as producer:
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, noted(getattr(os, name)))
        made_by = SimpleNamespace(Region=SimpleNamespace(make=make), identity=_core.identity)
        monkeypatch.setattr(directory, "_core", made_by)
        producer.send_many([b"x" * 1000] * 30)
        assert queue.tail_sequence == 30
    assert str(tmp_path / "q" / publishing_name("queue")) in synced
    staged = {path.rpartition("/")[2] for path in synced if "/queue-staged/" in path}
    assert all(name.startswith("empty-") for name in staged), staged


def test_fragment_that_a_failed_sync_lost_is_never_synced_again(tmp_path: Path) -> None:
    """S2: what is written to new files is checked first, the blocks of fragments too."""
    path = tmp_path / "q"
    how = {"page_bytes": PAGE_BYTES, "on_sync_failure": "seal"}
    with Queue(path, **how) as queue, queue.producer() as producer:
        producer.send(b"small")
        producer.flush()
        producer.send(BIG)
        zero(page(path, LAST), 200, 100)
        internals(queue).store.write_meta.latch(5, FIRST)
        with pytest.raises(SyncFailed):
            producer.flush()


def with_torn_rest(path: Path) -> Path:
    """Make a queue whose head page has the damaged rest of a retired message."""
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(BIG)
        producer.send(b"small")
    with Queue(path, retention=Retention(max_bytes=4 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue._store.head
    assert head[0] < LAST
    assert head[1] == 1
    zero(page(path, head[0]), 4096, 4096)
    return path


def test_torn_rest_of_a_retired_message_is_no_damage(tmp_path: Path) -> None:
    """Its other pages are gone, so nobody reads it; T1 syncs the head page's beginning."""
    path = with_torn_rest(tmp_path / "q")
    assert pretend_power_cut(path)
    assert verify_queue(path).problems == []
    with Queue(path) as queue:
        assert payloads(queue) == [b"small"]
        assert queue.verify().problems == []
        if importlib.util.find_spec("zstandard"):
            queue.compress()
        queue.ship(tmp_path / "replica")
    with Queue(tmp_path / "replica", read_only=True) as replica:
        assert replica.verify().problems == []


def test_rest_of_a_retired_message_that_a_failed_sync_lost_keeps_no_queue_latched(
    tmp_path: Path,
) -> None:
    """S2: it is written to a new file as it is, and the queue continues."""
    path = with_torn_rest(tmp_path / "q")
    with Queue(path, on_sync_failure="seal") as queue, queue.producer() as producer:
        internals(queue).store.write_meta.latch(5, FIRST)
        producer.flush()
        producer.send(b"more")
        producer.flush()
        assert payloads(queue) == [b"small", b"more"]
        assert queue.verify().problems == []


def test_retention_syncs_a_large_message_for_a_flow(tmp_path: Path) -> None:
    """T1: a flow needs the first message of the head page, and the pages that it goes on in."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"small")
        producer.send(BIG)
        store = internals(queue).store
        assert sync_header(store, FIRST, whole=False) == FIRST
        assert sync_header(store, FIRST, whole=True) == LAST
        producer.flush()
        assert sync_header(store, FIRST, whole=True) == FIRST
