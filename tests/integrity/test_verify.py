"""Verify: every byte that the format defines, compared with its definition."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from plugin import MESSAGES, Disk
from support import SMALL, files, flip

from pagequeue import Problem, Queue, Retention, errors, verify_queue
from pagequeue import format as fmt
from pagequeue.integrity import verify as verify_room
from pagequeue.integrity.problem import problem_of
from pagequeue.maintenance import consumers
from pagequeue.meta.all_meta import read_all_meta
from pagequeue.meta.commit_record import Record
from pagequeue.meta.cursor import CursorMeta
from pagequeue.meta.ledger import publishing_name, write_record
from pagequeue.meta.write_meta import Tail, WriteMeta
from pagequeue.page.fragments import WRONG_BLOCK
from pagequeue.system.directory import Directory
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Iterator

EACH = 976  # four messages a page
FRAME = fmt.frame_bytes(EACH)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of three pages: 4, 4 and 2 messages."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        with queue.producer() as producer:
            for i in range(10):
                producer.send(bytes([i]) * EACH)
        yield queue


def file(queue: Queue, number: int, kind: str = "page") -> Path:
    """Return the path of a page or an index."""
    name = fmt.page_name if kind == "page" else fmt.index_name
    return Path(queue.directory) / name("queue", number)


def first(queue: Queue) -> Problem:
    """Return the first problem that there is."""
    report = queue.verify()
    assert not report.ok
    return report.problems[0]


def test_good_queue_has_no_problem(queue: Queue) -> None:
    """Every page and message is counted."""
    report = queue.verify()
    assert report.ok
    assert report.problems == []
    assert (report.pages_checked, report.messages_checked) == (3, 10)


def test_empty_queue_has_no_problem(tmp_path: Path) -> None:
    """An empty queue has no problem."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        assert queue.verify().ok


def test_progress_runs_from_zero_to_all_pages(queue: Queue) -> None:
    """The caller can show how far it is."""
    steps: list[tuple[int, int]] = []
    queue.verify(lambda done, total: steps.append((done, total)))
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("inside", [4, 8, 16, 16 + EACH - 1])
def test_changed_byte_of_a_frame_is_found_where_it_is(
    queue: Queue, number: int, ordinal: int, inside: int
) -> None:
    """I2: checksum, timestamp and every payload byte are covered, in sealed and active pages."""
    position = fmt.PAGE_HEADER_BYTES + ordinal * FRAME
    flip(file(queue, number), position + inside)
    problem = first(queue)
    assert problem.file == str(file(queue, number))
    assert (problem.position, problem.sequence) == (position, 4 * (number - 1) + ordinal)
    assert problem.reason in {"its checksum is wrong", "it is older than the frame before it"}


@pytest.mark.parametrize("ordinal", [0, 2, 3])
def test_damaged_message_of_the_last_batch_is_named_itself(tmp_path: Path, ordinal: int) -> None:
    """The tail proves that the whole batch was sent, so its valid part is not a loss."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"." * 84] * 4)
        position = fmt.PAGE_HEADER_BYTES + ordinal * fmt.frame_bytes(84)
        flip(file(queue, 1), position + 20)
        assert (first(queue).position, first(queue).sequence) == (position, ordinal)


@pytest.mark.parametrize("name", ["queue.lock", "queue-writeMeta", "queue-readMeta"])
def test_file_with_a_second_name_is_found(tmp_path: Path, name: str) -> None:
    """No process can open such a queue for writing, so it must not pass for a sound one."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send(b"message")
    (tmp_path / name).hardlink_to(tmp_path / "q" / name)
    (problem,) = verify_queue(tmp_path / "q").problems
    assert problem.file == str(tmp_path / "q" / name)
    assert "another name" in problem.reason
    with pytest.raises(errors.UnsafePath):
        Queue(tmp_path / "q").close()


@pytest.mark.parametrize("word", [0, 5, 0x3FFFFFFF, 0x80000010, 0x40000010 + EACH, 0xFFFFFFFF])
def test_changed_length_is_found(queue: Queue, word: int) -> None:
    """I2, I9: whatever the commit word is, the walk remains in the page and reports where."""
    position = fmt.PAGE_HEADER_BYTES + FRAME
    overwrite(file(queue, 1), position, word.to_bytes(4, "little"))
    problem = first(queue)
    assert (problem.file, problem.position) == (str(file(queue, 1)), position)
    assert problem.sequence == 1


def test_changed_end_of_page_marker_is_found(queue: Queue) -> None:
    """The mark at the end of a sealed page has a checksum too."""
    position = fmt.PAGE_HEADER_BYTES + 4 * FRAME
    flip(file(queue, 2), position + 4)
    problem = first(queue)
    assert (problem.file, problem.position) == (str(file(queue, 2)), position)


@pytest.mark.parametrize("position", [0, 8, 12, 16, 24, 40, 48, 56])
def test_changed_page_header_is_found(tmp_path: Path, position: int) -> None:
    """Every field of a page's header is checked."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send(b"." * EACH)
        queue.rotate()
        queue.producer().send(b"." * EACH)
    with Queue(tmp_path / "q") as queue:
        flip(file(queue, 1), position)
        assert first(queue).file == str(file(queue, 1))


@pytest.mark.parametrize("number", [1, 2])
def test_missing_page_is_found(queue: Queue, number: int) -> None:
    """A page that is not there is one problem, and the rest is checked all the same."""
    with Queue(queue.directory, read_only=True) as reading:
        file(queue, number).rename(file(queue, number).with_suffix(".gone"))
        report = reading.verify()
    assert str(file(queue, number)) in {problem.file for problem in report.problems}
    assert (report.pages_checked, report.messages_checked) == (2, 6)


@pytest.mark.parametrize("damage", ["frame", "header", "missing"])
def test_one_damaged_page_is_one_problem(queue: Queue, damage: str) -> None:
    """A page that is whole is not blamed for what is wrong with the one before it."""
    with Queue(queue.directory, read_only=True) as reading:
        if damage == "missing":
            file(queue, 1).rename(file(queue, 1).with_suffix(".gone"))
        else:
            flip(file(queue, 1), 40 if damage == "header" else fmt.PAGE_HEADER_BYTES + 20)
        assert [p.file for p in reading.verify().problems] == [str(file(queue, 1))]


def test_page_of_another_size_is_found(queue: Queue) -> None:
    """A page that was cut short is reported, not read past its end."""
    with Queue(queue.directory, read_only=True) as reading:
        with file(queue, 1).open("r+b") as opened:
            opened.truncate(1000)
        problem = next(p for p in reading.verify().problems if p.file == str(file(queue, 1)))
        assert problem.reason == "wrong size"
        with file(queue, 1).open("r+b") as opened:
            opened.truncate(SMALL)


def test_wrong_index_is_found_and_named_as_index(queue: Queue) -> None:
    """I6: records that differ from the frames are counted; they are no damage to any message."""
    overwrite(file(queue, 1, "index"), 12, b"\1" * 24)
    problem = first(queue)
    assert problem.file == str(file(queue, 1, "index"))
    assert problem.reason == "index: differs from the frames in 2 records"
    assert queue.verify().messages_checked == 10


def test_missing_index_is_found_and_put_back_by_its_use(queue: Queue) -> None:
    """I6: an index is derived; a seek makes it again, and then all is well."""
    with Queue(queue.directory) as other:
        file(queue, 1, "index").unlink()
        assert first(other).file == str(file(queue, 1, "index"))
        assert other.consumer(sequence=2).receive(0).payload == bytes([2]) * EACH
        assert other.verify().ok


def test_an_old_write_meta_costs_no_listing_for_each_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of pages after its tail does not change how often the directory is listed."""
    looks = {}
    inspect = verify_room.inspect
    for count in (5, 40):
        path = tmp_path / str(count)
        with Queue(path, page_bytes=SMALL) as queue:
            producer = queue.producer()
            producer.send(b"first")
            old = (path / "queue-writeMeta").read_bytes()
            for _ in range(count):
                producer.send(bytes(SMALL // 2))
            overwrite(path / "queue-writeMeta", 0, old)
            watched = Mock(wraps=inspect)
            monkeypatch.setattr(verify_room, "inspect", watched)
            assert len(verify_queue(path).problems) >= count - 2
        looks[count] = watched.call_count
    assert looks[40] == looks[5]


def test_all_problems_are_reported_in_order_of_pages(queue: Queue) -> None:
    """One bad page does not hide the next."""
    for number in (3, 1, 2):
        flip(file(queue, number), fmt.PAGE_HEADER_BYTES + 20)
    found = dict.fromkeys(
        p.file for p in queue.verify().problems if p.reason == "its checksum is wrong"
    )
    assert list(found) == [str(file(queue, n)) for n in (1, 2, 3)]


def test_verify_changes_no_file(queue: Queue) -> None:
    """Looking at a queue, good or bad, leaves every byte as it is."""
    flip(file(queue, 1), fmt.PAGE_HEADER_BYTES + 20)
    file(queue, 2, "index").unlink()
    before = files(queue.directory)
    assert len({problem.file for problem in queue.verify().problems}) >= 2
    assert files(queue.directory) == before


def test_reader_without_write_permission_can_verify(queue: Queue) -> None:
    """Verify needs to read only."""
    with Queue(queue.directory, read_only=True) as reading:
        assert reading.verify().messages_checked == 10
        assert reading.verify().ok


@pytest.mark.slow
def test_verify_runs_while_others_write(queue: Queue) -> None:
    """I1, I2: the active page is checked up to the tail at that time."""
    stop = threading.Event()

    def write() -> None:
        with Queue(queue.directory) as other, other.producer() as producer:
            for count in range(1500):
                if stop.is_set():
                    break
                producer.send(b"." * (count % 500))
                producer.send_many([b"x" * (count % 90)] * 5)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(15):
            time.sleep(0.005)
            report = queue.verify()
            assert report.ok, report.problems
    finally:
        stop.set()
        thread.join()


def test_sending_and_flushing_meanwhile_is_not_a_problem(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The durable mark is read before the tail: read after it, it can be ahead of that tail."""
    honest = WriteMeta.tail
    read = honest.fget
    assert read is not None

    def sent_meanwhile(meta: WriteMeta) -> Tail:
        tail: Tail = read(meta)
        monkeypatch.setattr(WriteMeta, "tail", honest)
        with queue.producer() as producer:
            producer.send(b"meanwhile")
            producer.flush()
        return tail

    monkeypatch.setattr(WriteMeta, "tail", property(sent_meanwhile, honest.fset))
    assert verify_queue(queue.directory).problems == []
    assert WriteMeta.tail is honest, "no message was sent meanwhile"


def test_verify_reports_files_that_it_could_not_read(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system refuses a file once, at any point, verify does not report success."""
    disk.send(*MESSAGES, flush=True)
    really, left = Directory.open, 0

    def refused(folder: Directory, name: str, **options: Any) -> int:  # noqa: ANN401
        nonlocal left
        left -= 1
        if left == 0:
            raise errors.SystemLimit("refused", path=folder.full(name))
        return really(folder, name, **options)

    monkeypatch.setattr(Directory, "open", refused)
    assert verify_queue(disk.directory).ok
    opened = -left
    assert opened > 10
    for nth in range(1, opened + 1):
        left = nth
        with pytest.raises(errors.SystemLimit):
            verify_queue(disk.directory)


@pytest.mark.parametrize("where", ["inspect", "map_page", "map_file", "read_publishing"])
def test_queue_that_is_closed_meanwhile_is_not_damaged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """An error of the handle is not a problem of the files, whenever it is closed."""
    real = getattr(verify_room, where)

    def closing(*given: object, **named: object) -> object:
        queue.close()
        return real(*given, **named)

    monkeypatch.setattr(verify_room, where, closing)
    with pytest.raises(errors.ClosedError):
        queue.verify()


@pytest.mark.parametrize("error", [errors.ClosedError, errors.ForkedError])
def test_error_of_the_handle_is_not_a_problem_of_the_files(
    error: type[errors.PageQueueError],
) -> None:
    """It is raised, where all others are noted and the rest is checked."""
    with pytest.raises(error):
        problem_of(error("this queue is closed", path="/queue"))


def test_group_is_not_damaged_because_the_queue_was_closed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of a list of consumers."""
    queue.group("crew").close()
    real = consumers._group_state

    def closing(*given: Any) -> Any:  # noqa: ANN401  those of the function
        queue.close()
        return real(*given)

    monkeypatch.setattr(consumers, "_group_state", closing)
    with pytest.raises(errors.ClosedError):
        queue.consumers()


@pytest.fixture
def led(tmp_path: Path) -> Iterator[tuple[Path, Tail, Tail]]:
    """Return a queue that ends in a large message, and its tails before and after that one."""
    with Queue(tmp_path / "led", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"small")
        before = queue._store.tail
        producer.send(bytes(3 * SMALL))
        yield tmp_path / "led", before, queue._store.tail


@pytest.mark.parametrize("head_page", [6, 7, 9, 10])
def test_large_message_that_is_retired_in_part_meanwhile_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head_page: int
) -> None:
    """Retention moves the head into it, or behind it, before verify opens its first page."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        for size in [1000] * 12 + [20_000] + [1000] * 30:
            producer.send(bytes(size))
        assert [page.number for page in queue.pages() if page.first_sequence == 12] == [5]
        pages = queue.pages()[-1].number
    real = verify_room.map_page
    retention = Retention(max_bytes=(pages + 2 - head_page) * SMALL)

    def late(folder: Directory, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if name == fmt.page_name("queue", 5):
            with Queue(tmp_path / "q", retention=retention) as other:
                other.trim()
                assert other._store.read_meta.head_page == head_page
        return real(folder, name, *arguments, **named)

    monkeypatch.setattr(verify_room, "map_page", late)
    assert verify_queue(tmp_path / "q").problems == []


@pytest.mark.parametrize("number", [6, 7])
def test_missing_begin_of_a_large_message_is_found(tmp_path: Path, number: int) -> None:
    """Where retention did not take it, its other fragments are of no message."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        for size in [1000] * 12 + [20_000] + [1000] * 30:
            producer.send(bytes(size))
    for page in range(5, number):
        (tmp_path / "q" / fmt.page_name("queue", page)).unlink()
    reasons = [problem.reason for problem in verify_queue(tmp_path / "q").problems]
    assert reasons == [
        "missing" if number == 6 else "2 pages are missing, from this one on",
        "a fragment of another message",
    ]


def test_commit_without_its_last_step_is_no_problem(led: tuple[Path, Tail, Tail]) -> None:
    """Its publisher died between M7 and M8: its messages are published, the tail is not moved."""
    path, before, after = led
    pages = range(before.page_number + 1, after.page_number + 1)
    with opened(path) as write:
        write.tail = before
    record = Record(pages.start, before.sequence, 0, after, None, {})
    with directory(path) as folder:
        write_record(folder, publishing_name("queue"), record.as_json())

    report = verify_queue(path)

    assert report.ok, report.problems
    assert (report.pages_checked, report.messages_checked) == (after.page_number - 1, 2)


def test_damage_behind_a_commit_without_its_last_step_is_found(
    led: tuple[Path, Tail, Tail],
) -> None:
    """The pages that it published are checked, though the tail is before them."""
    path, before, after = led
    with opened(path) as write:
        write.tail = before
    page = path / fmt.page_name("queue", after.page_number - 1)
    overwrite(page, fmt.PAGE_HEADER_BYTES + 200, b"damage")

    assert WRONG_BLOCK in [problem.reason for problem in verify_queue(path).problems]


def test_tail_in_the_last_page_of_fragments_is_no_problem(led: tuple[Path, Tail, Tail]) -> None:
    """Recovery leaves it there where the next page has no message: the next producer rolls."""
    path, _, after = led
    number, position = after.page_number - 1, fmt.PAGE_HEADER_BYTES
    with opened(path) as write:
        write.tail = Tail(number, position, 0, after.first_sequence, after.last_timestamp)

    report = verify_queue(path)

    assert report.ok, report.problems
    assert (report.pages_checked, report.messages_checked) == (number, 2)


def directory(path: Path) -> contextlib.closing[Directory]:
    """Open the directory of a queue."""
    return contextlib.closing(Directory(str(path), create=False))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[WriteMeta]:
    """Open the write meta of a queue, to put the tail where a dead producer left it."""
    with directory(path) as folder:
        queue_id = read_all_meta(folder, "queue").queue_id
        with contextlib.closing(WriteMeta(folder, "queue", queue_id, writable=True)) as meta:
            yield meta


@pytest.mark.parametrize("sent", ["message", "batch", "pages"])
@pytest.mark.parametrize("who", ["consumer", "group"])
def test_cursor_ahead_of_a_tail_that_is_not_advanced_yet_is_no_problem(
    tmp_path: Path, sent: str, who: str
) -> None:
    """I3: what a dead producer had published can be acknowledged before the tail counts it."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send_many([b"a", b"b"])
        before = queue._store.tail
        producer.send_many(
            [b"c" * (900 if sent == "pages" else 20)] * (1 if sent == "message" else 12)
        )
        after = queue._store.tail
        acknowledge_all(queue, who)
        queue._store.write_meta.tail = before
        if sent == "pages":
            record = Record(before.page_number + 1, before.sequence, 0, after, None, {})
            write_record(queue._store.folder, publishing_name("queue"), record.as_json())

        assert queue.verify().problems == []

        if who == "consumer":  # one more than there is
            name = Path(queue.directory) / fmt.cursor_name("queue", "one")
            overwrite(name, CursorMeta.NEXT, (after.sequence + 1).to_bytes(8, "little"))
            assert first(queue).file == str(name)


def acknowledge_all(queue: Queue, who: str) -> None:
    """Acknowledge all messages by a consumer or a group."""
    count = queue.tail_sequence
    if who == "consumer":
        with queue.consumer("one") as consumer:
            while consumer.sequence < count:
                consumer.receive_many(count)
            consumer.ack()
        return
    with queue.group("one") as group:
        while group.lag:
            for claim in group.claim_many(count, timeout=0):
                claim.ack()
