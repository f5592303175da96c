"""Several messages that were sent at once and not flushed, after a power cut: all or none (I19).

The cut is done to the files: blocks become zeros, pages are shorter or missing, and the write meta
is another boot's. What survives a real cut at each step is the subject of the campaigns.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from torn_pages import page, payloads, zero

from pagequeue import CorruptFrame, Queue, Retention
from pagequeue import format as fmt
from pagequeue.integrity.repair import repair_queue
from pagequeue.integrity.verify import verify_queue
from pagequeue.maintenance import trimmer
from pagequeue.page.header import PageHeader, parse_header
from pagequeue.queue.queue import internals
from pagequeue.store import power_loss_recovery
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue.system.directory import Directory

PAGE_BYTES = 1 << 14
LARGE = random.Random(1).randbytes(2 * PAGE_BYTES + 77)
SMALL = [random.Random(i).randbytes(1000) for i in range(40)]
FIRST = 2
"""The page that the commit begins with; message 1."""
SENT: dict[str, list[bytes]] = {
    "small ones": SMALL,
    "a large one first": [LARGE, *SMALL[:20]],
    "a large one last": [*SMALL[:20], LARGE],
    "a large one between": [*SMALL[:20], LARGE, *SMALL[20:]],
    "one page, then a large one": [b"1", LARGE],
    "large ones only": [LARGE, LARGE[::-1]],
}


def header_of(directory: Path, number: int) -> PageHeader:
    """Return the header of a page."""
    path = page(directory, number)
    return parse_header(path.read_bytes()[: fmt.PAGE_HEADER_BYTES], str(path))


def made(directory: Path, sent: list[bytes], *after: bytes, is_cut: bool = True) -> list[int]:
    """Make a queue with a durable message and a commit, and cut the power if asked.

    Returns:
        the numbers of the pages that have something of the commit.
    """
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"durable")
        producer.flush()
        assert producer.send_many(sent).start == 1
        last = internals(queue).store.tail.page_number
        for payload in after:
            producer.send(payload)
    assert not is_cut or pretend_power_cut(directory)
    numbers = [FIRST]
    while header_of(directory, numbers[-1]).is_continued:
        numbers.append(numbers[-1] + 1)
    assert numbers[-1] <= last
    return numbers


def staged_again(path: Path) -> None:
    """Put the header there that the page had before the commit, which can be written back."""
    header = parse_header(path.read_bytes()[: fmt.PAGE_HEADER_BYTES], str(path))
    before = header._replace(queue_id=fmt.staged_id(header.queue_id), page_number=1, created=0)
    with path.open("r+b") as file:
        file.write(before._replace(is_continued=False).encode())


TORN: dict[str, Callable[[Path], object]] = {
    "header": lambda path: zero(path, 0, fmt.PAGE_HEADER_BYTES),
    "header, as it was staged": staged_again,
    "first frame": lambda path: zero(path, fmt.PAGE_HEADER_BYTES, 16),
    "first block": lambda path: zero(path, 0, 4096),
    "all but the first block": lambda path: zero(path, 4096, PAGE_BYTES - 4096),
    "size": lambda path: os.truncate(path, 4096),
    "content": lambda path: os.truncate(path, 0),
    "name": os.unlink,
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize(
    ("tear", "sent"),
    [
        *(pytest.param(TORN[name], SENT["a large one between"], id=name) for name in TORN),
        *(pytest.param(TORN["first frame"], SENT[name], id=name) for name in SENT),
    ],
)
def test_commit_that_is_torn_after_the_mark_is_dropped_whole(
    tmp_path: Path, tear: Callable[[Path], object], sent: list[bytes]
) -> None:
    """Whichever of its pages is torn; the queue ends before it, and goes on from there."""
    numbers = made(tmp_path / "whole", sent)
    assert len(numbers) > 1
    for place, number in enumerate(numbers):
        path = tmp_path / f"q{place}"
        assert made(path, sent, b"after" * 100) == numbers
        before = page(path, number).read_bytes()
        tear(page(path, number))
        if page(path, number).exists() and page(path, number).read_bytes() == before:
            continue  # nothing was there
        report = verify_queue(path)
        assert report.awaits_recovery
        assert report.problems == []
        with Queue(path, read_only=True) as queue:
            assert payloads(queue) == [b"durable"]
        with Queue(path) as queue, queue.producer() as producer:
            assert payloads(queue) == [b"durable"]
            assert queue.verify().problems == []
            mark = internals(queue).store.write_meta.durable_sequence
            assert producer.send(b"another") == 1
            assert producer.flush() == mark + 1
            internals(queue).store.write_meta.set_durable(mark, FIRST)
        assert pretend_power_cut(path)
        with Queue(path) as queue, queue.producer() as producer:
            assert payloads(queue) == [b"durable", b"another"]  # the mark need not be on the disk
            assert producer.send_many(sent[::-1]).start == 2
            assert producer.send(b"next") == len(sent) + 2
        assert pretend_power_cut(path)
        with Queue(path) as queue:
            assert payloads(queue) == [b"durable", b"another", *sent[::-1], b"next"]
            assert queue.verify().problems == []


def test_verify_reports_no_pages_that_recovery_removes(tmp_path: Path) -> None:
    """A cut can truncate several: those after the first one are after the tail."""
    path = tmp_path / "q"
    for number in made(path, SMALL, b"after"):
        os.truncate(page(path, number), number)
    assert verify_queue(path).problems == []
    with Queue(path) as queue:
        assert payloads(queue) == [b"durable"]


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
@pytest.mark.parametrize("torn", [False, True])
def test_whole_commit_after_the_mark_is_kept(
    tmp_path: Path, sent: list[bytes], *, torn: bool
) -> None:
    """Recovery keeps what it finds whole, also if what was sent after it is not."""
    path = tmp_path / "q"
    made(path, sent, b"after")
    if torn:
        last = max(path.glob("*.page"), key=lambda file: file.read_bytes().rfind(b"after"))
        zero(last, last.read_bytes().rfind(b"after"), 5)
    for index in path.glob("*.idx"):
        zero(index, 0, index.stat().st_size)
    (path / fmt.index_name("queue", FIRST)).unlink()
    assert verify_queue(path).problems == []  # recovery makes them again
    expected = [b"durable", *sent] + [b"after"] * (not torn)
    with Queue(path, read_only=True) as queue:
        assert payloads(queue) == expected
    with Queue(path) as queue, queue.producer() as producer:
        assert payloads(queue) == expected
        assert producer.send(b"next") == len(expected)
        assert queue.verify().problems == []


@pytest.mark.parametrize("sync", ["none", "always"])
def test_pages_of_a_commit_that_was_synced_say_nothing(tmp_path: Path, sync: str) -> None:
    """Its pages are on stable storage before it is visible, and recovery reads them once."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, sync=sync) as queue:
        with queue.producer() as producer:
            producer.send_many(SMALL)
            producer.send(LARGE)
        pages = range(1, internals(queue).store.tail.page_number + 1)
        continued = [header_of(tmp_path / "q", number).is_continued for number in pages]
        assert any(continued) == (sync == "none")
        assert not any(continued[-4:])  # of a single message, its head tells


def test_each_page_of_a_commit_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening reads a commit twice at most, however many pages it has."""
    path = tmp_path / "q"
    numbers = made(path, SMALL * 10)
    scanned = []
    real = power_loss_recovery.scan_region

    def noted(region: Any, index: Any, header: PageHeader, *rest: Any, **more: Any) -> object:  # noqa: ANN401 - of scan_region
        scanned.append(header.page_number)
        return real(region, index, header, *rest, **more)

    monkeypatch.setattr(power_loss_recovery, "scan_region", noted)
    with Queue(path) as queue:
        assert queue.recovery.scanned
    assert len(numbers) > 20
    assert max(scanned.count(number) for number in numbers) <= 3


@pytest.mark.parametrize("torn", [False, True])
def test_rest_of_a_commit_whose_first_pages_were_retired_is_kept_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, torn: bool
) -> None:
    """T1 puts it on stable storage with the new head; if a cut takes a part nevertheless, all."""
    path = tmp_path / "q"
    sent = SMALL * 3
    mapped: list[str] = []
    real = trimmer.map_plain

    def noted(folder: Directory, name: str, *rest: Any, **more: Any) -> object:  # noqa: ANN401 - of map_plain
        mapped.append(name)
        return real(folder, name, *rest, **more)

    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many(sent)
        monkeypatch.setattr(trimmer, "map_plain", noted)
        with Queue(path, retention=Retention(max_bytes=4 * PAGE_BYTES)) as other:
            assert other.trim().pages
            head = internals(other).store.head[0]
    last = head
    while header_of(path, last).is_continued:
        last += 1
    assert last > head
    assert set(mapped) >= {fmt.page_name("queue", number) for number in range(head, last + 1)}
    assert pretend_power_cut(path)
    if torn:
        zero(page(path, last), fmt.PAGE_HEADER_BYTES, 16)
    left = sent[header_of(path, head).first_sequence or 0 :]
    with Queue(path) as queue, queue.producer() as producer:
        assert payloads(queue) == ([] if torn else left)
        assert producer.send(b"next") == len(sent) - len(left) * torn
        assert queue.verify().problems == []


def test_page_that_a_commit_was_dropped_from_is_as_any_other(tmp_path: Path) -> None:
    """I5: what is flushed to it later is kept, though the mark on the disk is an older one."""
    path = tmp_path / "q"
    numbers = made(path, SMALL)
    zero(page(path, numbers[-1]), fmt.PAGE_HEADER_BYTES, 16)
    with Queue(path) as queue, queue.producer() as producer:
        assert not header_of(path, FIRST).is_continued
        mark = (path / fmt.write_meta_name("queue")).read_bytes()
        producer.send(b"flushed")
        producer.flush()
    (path / fmt.write_meta_name("queue")).write_bytes(mark)  # synced with a new page only
    assert pretend_power_cut(path)
    for read_only in (True, False):
        with Queue(path, read_only=read_only) as queue:
            assert payloads(queue) == [b"durable", b"flushed"]


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("sent", [SENT["small ones"], SENT["a large one first"]])
@pytest.mark.parametrize("tear", ["first frame", "size", "name"])
def test_repair_leaves_torn_headers_after_the_mark_to_recovery(
    tmp_path: Path, tear: str, sent: list[bytes]
) -> None:
    """A header that is made from the frames would not tell that they are some of a commit."""
    numbers = made(tmp_path / "whole", sent)
    for place in range(len(numbers) - 1):
        path = tmp_path / f"q{place}"
        made(path, sent)
        zero(page(path, numbers[place]), 0, fmt.PAGE_HEADER_BYTES)
        TORN[tear](page(path, numbers[-1]))
        assert repair_queue(path).ok
        with Queue(path) as queue:
            assert payloads(queue) == [b"durable"]


def test_repair_without_a_cut_flushes_the_commit_whose_flag_was_lost(tmp_path: Path) -> None:
    """Else a cut that tears one of its pages would leave the others."""
    path = tmp_path / "q"
    numbers = made(path, SMALL, is_cut=False)
    zero(page(path, numbers[1]), 0, fmt.PAGE_HEADER_BYTES)
    report = repair_queue(path)
    assert report.ok
    assert report.actions[-1] == "flushed all messages"
    assert repair_queue(path).actions == []
    with Queue(path) as queue:
        assert internals(queue).store.write_meta.durable_sequence == 1 + len(SMALL)
        assert payloads(queue) == [b"durable", *SMALL]


def test_header_of_the_page_that_has_the_mark_is_written_again(tmp_path: Path) -> None:
    """No commit that the mark is before can be in it, so that its frames are kept."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many(SMALL)
        queue.rotate()
        producer.flush()
        producer.send(b"after")
        last = internals(queue).store.tail.page_number
    assert pretend_power_cut(path)
    zero(page(path, last), 0, fmt.PAGE_HEADER_BYTES)
    with Queue(path) as queue:
        assert payloads(queue) == [*SMALL, b"after"]


@pytest.mark.parametrize("kind", ["small ones first", "large ones only"])
def test_retention_syncs_all_fragments_of_the_commit_that_its_head_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """T1: a cut that takes all that was not synced leaves the first message of the head page."""
    path = tmp_path / "q"
    large = random.Random(2).randbytes(3 * PAGE_BYTES - 2000)
    sent = [*SMALL, large] if kind == "small ones first" else [large, large[::-1]]
    synced: dict[str, set[int]] = {}

    class Noted:
        """A page whose syncs are noted."""

        def __init__(self, page: Any, name: str) -> None:  # noqa: ANN401 - a region
            self.page, self.blocks = page, synced.setdefault(name, set())

        def __len__(self) -> int:
            return len(self.page)

        def __getattr__(self, name: str) -> object:
            return getattr(self.page, name)

        def sync(self, begin: int, count: int) -> None:
            self.blocks.update(range(begin // 4096, -(-(begin + count) // 4096)))
            self.page.sync(begin, count)

    real = trimmer.map_plain
    real_end = trimmer.first_batch_end
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many(sent)
        monkeypatch.setattr(trimmer, "map_plain", lambda *a, **k: Noted(real(*a, **k), a[1]))
        monkeypatch.setattr(
            trimmer, "first_batch_end", lambda noted, first: real_end(noted.page, first)
        )
        with Queue(path, retention=Retention(max_bytes=5 * PAGE_BYTES)) as other:
            assert other.trim().pages
            head = internals(other).store.head
    assert pretend_power_cut(path)
    for file in path.glob("*.page"):
        for block in range(PAGE_BYTES // 4096):
            if block not in synced.get(file.name, ()):
                zero(file, block * 4096, 4096)
    with Queue(path) as queue:
        assert payloads(queue) == sent[head[1] :] != []


def test_commit_that_is_torn_is_left_for_salvage_where_the_mark_is_lost(tmp_path: Path) -> None:
    """All that its pages have counts as guaranteed then: opening is refused and changes nothing."""
    path = tmp_path / "q"
    numbers = made(path, SMALL)
    zero(page(path, numbers[-1]), fmt.PAGE_HEADER_BYTES, 16)
    (path / fmt.write_meta_name("queue")).unlink()
    before = [page(path, number).read_bytes() for number in numbers]
    with pytest.raises(CorruptFrame):
        Queue(path)
    assert [page(path, number).read_bytes() for number in numbers] == before
