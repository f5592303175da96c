"""Trimming many pages at once: what is done under the preparation lock does not grow with them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest
from support import SMALL

from pagequeue import Queue, Retention
from pagequeue.maintenance import trim_plan, trimmer
from pagequeue.meta.cursor import CursorMeta
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.system.file_lock import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CALLS = ("open", "stat", "unlink", "rename", "listdir", "fsync", "fdatasync")


def filled(path: Path, pages: int, names: int = 3) -> None:
    """Make a queue of so many pages with some consumers that have acknowledged all of it."""
    with Queue(path, page_bytes=SMALL) as queue:
        with queue.producer() as producer:
            for _ in range(pages):
                producer.send(bytes(3900))
        for number in range(names):
            queue.consumer(f"c{number}", latest=True).close()


@contextlib.contextmanager
def counting_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Count calls of the system inside the block: all, and those under a lock."""
    total, held = dict.fromkeys(CALLS, 0), dict.fromkeys(CALLS, 0)
    depth = [0]
    real = FileLock.exclusive

    @contextlib.contextmanager
    def exclusive(self: FileLock, *args: Any) -> Iterator[None]:  # noqa: ANN401 - as it is called
        with real(self, *args):
            depth[0] += 1
            try:
                yield
            finally:
                depth[0] -= 1

    def counting(name: str) -> Any:  # noqa: ANN401 - any function of the system
        call = getattr(os, name)

        def instead(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            total[name] += 1
            held[name] += depth[0] > 0
            return call(*args, **options)

        return instead

    with monkeypatch.context() as patched:
        patched.setattr(FileLock, "exclusive", exclusive)
        for name in CALLS:
            patched.setattr(os, name, counting(name))
        yield total, held


def counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, int], dict[str, int]]:
    """Trim all but ten pages; return which calls of the system that took, and under the lock."""
    with Queue(path, retention=Retention(max_bytes=10 * SMALL)) as queue:
        with counting_calls(monkeypatch) as (total, held):
            report = queue.trim()
        assert report.pages == report.messages > 0
        assert queue.verify().ok
    return total, held


def test_lock_is_held_for_the_same_few_calls_however_many_pages_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2 alone: no listing, no file opened, no sync and no removal."""
    for pages in (50, 200):
        filled(tmp_path / str(pages), pages)
    few, few_held = counted(tmp_path / "50", monkeypatch)
    many, many_held = counted(tmp_path / "200", monkeypatch)
    assert many_held == few_held
    assert many_held["listdir"] == many_held["open"] == 0
    assert many_held["fsync"] == many_held["fdatasync"] == many_held["unlink"] == 0
    assert many["fsync"] == few["fsync"] == 1
    assert many["fdatasync"] == few["fdatasync"] == 3 + 1  # the cursors, and the head
    assert many["listdir"] == few["listdir"]
    assert many["unlink"] == few["unlink"] + 2 * 150
    assert many["stat"] <= few["stat"] + 4 * 150 + 60


@pytest.mark.parametrize("flow", [False, True])
def test_trimming_after_each_roll_costs_the_same_however_many_pages_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flow: bool
) -> None:
    """A full queue rolls in constant time: no listing, and no check of each page."""
    monkeypatch.setattr(trim_plan, "LIST_SECONDS", float("inf"))
    calls = {}
    for pages in (33, 133):
        path = tmp_path / str(pages)
        filled(path, pages, names=1)
        keep = Retention(max_bytes=(pages + 2) * SMALL)
        with Queue(path, retention=keep) as queue, queue.producer() as producer:
            queue._store.background.end()  # by hand
            if flow:
                with queue.consumer("c0") as consumer:
                    consumer._begin_flow()
            for _ in range(4):  # as many pages as there may be, and the first removal
                producer.send(bytes(3900))
                queue.trim()
            queue.consumer("c0").seek(latest=True)
            producer.send(bytes(3900))
            with counting_calls(monkeypatch) as (total, _):
                assert queue.trim().pages == 1
            calls[pages] = total
            assert queue.verify().ok
    few, many = calls.values()
    assert many["stat"] <= few["stat"] + 8
    assert many["open"] <= few["open"] + 8  # headers, by bisection
    assert few["listdir"] == many["listdir"] == 0
    few.update(stat=0, open=0)
    many.update(stat=0, open=0)
    assert many == few


def test_opening_a_group_lists_no_directory_under_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Senders do not wait for a listing of all pages when a worker starts."""
    filled(tmp_path / "q", 10)
    with Queue(tmp_path / "q") as queue:
        for _ in range(2):
            with counting_calls(monkeypatch) as (_, held):
                queue.group("workers").close()
            assert held["listdir"] == 0
            assert held["stat"] > 0


def test_consumer_whose_creator_died_does_not_fall_behind_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: its file got its name, and the word stayed odd."""
    filled(tmp_path / "q", 30, names=1)
    with Queue(tmp_path / "q", retention=Retention(max_bytes=5 * SMALL)) as queue:
        store = queue._store
        real, calls = trimmer.Trimmer._move_head, []

        def move(*args: Any, **options: Any) -> bool:  # noqa: ANN401
            if not calls:
                store.read_meta.region.store_half(ReadMeta.CONSUMERS_MADE, 2**32 - 1)
                CursorMeta.make(
                    store.folder,
                    store.prefix,
                    store.meta.queue_id,
                    "new",
                    next_sequence=4,
                    created=1,
                )
            calls.append(1)
            return real(*args, **options)

        monkeypatch.setattr(trimmer.Trimmer, "_move_head", move)
        report = queue.trim()
        assert len(calls) == 2
        assert queue.head_sequence == report.messages == 4
        assert report.held_by == ("new",)
        assert store.read_meta.made(ReadMeta.CONSUMERS_MADE) == 0


def test_pages_that_another_process_compresses_free_space_at_once(tmp_path: Path) -> None:
    """Sizes are asked for again when a page was compressed, by whomever."""
    pytest.importorskip("zstandard")
    filled(tmp_path / "q", 20, names=0)
    with (
        Queue(tmp_path / "q", retention=Retention(max_bytes=22 * SMALL)) as queue,
        queue.producer() as producer,
        Queue(tmp_path / "q") as other,
    ):
        queue._store.background.end()  # by hand
        producer.send(bytes(3900))
        producer.send(bytes(3900))
        assert queue.trim().pages == 1
        assert other.compress().pages > 10
        for _ in range(5):
            producer.send(bytes(3900))
        assert queue.trim().pages == 0


@pytest.mark.parametrize("pages", [20, 21])
def test_head_moves_in_one_step_or_two(tmp_path: Path, pages: int) -> None:
    """I12: each step is by an odd number of pages, so that the word in use is never written."""
    filled(tmp_path / str(pages), pages)
    with Queue(tmp_path / str(pages), retention=Retention(max_bytes=5 * SMALL)) as queue:
        meta, moves = queue._store.read_meta, []
        real = meta.advance

        def advance(first: int, number: int | None = None) -> None:
            before = queue._store.read_meta.head_page
            assert number is not None
            moves.append(number - before)
            real(first, number)

        meta.advance = advance  # type: ignore[method-assign]
        queue.trim()
        assert all(move % 2 == 1 for move in moves)
        assert len(moves) <= 2
        assert queue.head_sequence == queue._store.page(meta.head_page).first_sequence


@pytest.mark.parametrize("case", ["made", "sought", "back and forth"])
def test_consumer_that_seeks_back_meanwhile_keeps_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """I11: between planning and the lock it was made, or sought an earlier message."""
    path = tmp_path / case
    filled(path, 30, names=1)
    with Queue(path, retention=Retention(max_bytes=5 * SMALL)) as queue, Queue(path) as other:
        real = trimmer.Trimmer._move_head
        calls = []

        def move(*args: Any, **options: Any) -> bool:  # noqa: ANN401
            if not calls:
                if case == "made":
                    other.consumer("new", sequence=4).close()
                else:
                    with other.consumer("c0") as consumer:
                        consumer.seek(sequence=4)
                        if case == "back and forth":
                            consumer.seek(latest=True)
                            consumer.seek(sequence=4)
            calls.append(1)
            return real(*args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(trimmer.Trimmer, "_move_head", move)
            report = queue.trim()
        assert len(calls) == 2
        assert queue.head_sequence == report.messages == 4
        assert report.held_by == (("new",) if case == "made" else ("c0",))


def test_cursor_that_was_synced_and_moved_back_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: what is on the disk allows the head, also when a consumer went back and forth."""
    filled(tmp_path / "q", 30, names=1)
    with (
        Queue(tmp_path / "q", retention=Retention(max_bytes=5 * SMALL)) as queue,
        Queue(tmp_path / "q") as other,
    ):
        synced: list[int] = []
        real_sync, real_move = trimmer.sync_cursor, trimmer.Trimmer._move_head

        def sync(*args: Any) -> None:  # noqa: ANN401
            synced.append(1)
            real_sync(*args)

        def move(*args: Any, **options: Any) -> bool:  # noqa: ANN401
            if len(synced) == 1:
                with other.consumer("c0") as consumer:
                    consumer.seek(sequence=4)
                    consumer.seek(latest=True)
            return real_move(*args, **options)

        monkeypatch.setattr(trimmer, "sync_cursor", sync)
        monkeypatch.setattr(trimmer.Trimmer, "_move_head", move)
        assert queue.trim().pages > 20
        assert len(synced) == 2


def test_two_that_trim_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: the plan of one is void when the other one was faster."""
    filled(tmp_path / "q", 30)
    keep = Retention(max_bytes=5 * SMALL)
    with Queue(tmp_path / "q", retention=keep) as queue, Queue(tmp_path / "q", retention=keep) as b:
        real = trimmer.Trimmer._move_head
        done = []

        def move(*args: Any, **options: Any) -> bool:  # noqa: ANN401
            if not done:
                done.append(0)
                done[0] = b.trim().pages
            return real(*args, **options)

        monkeypatch.setattr(trimmer.Trimmer, "_move_head", move)
        assert queue.trim().pages == 0
        assert done[0] > 20
        assert queue.verify().ok


@pytest.mark.parametrize("what", ["trim", "compress"])
def test_new_head_that_is_removed_or_compressed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """T1 is done without the lock: others can trim further, or compress the page, before it."""
    if what == "compress":
        pytest.importorskip("zstandard")
    filled(tmp_path / "q", 30)
    with (
        Queue(tmp_path / "q", retention=Retention(max_bytes=9 * SMALL)) as queue,
        Queue(tmp_path / "q", retention=Retention(max_bytes=4 * SMALL)) as other,
    ):
        real, done = trimmer.sync_header, []

        def sync(*args: Any, **more: Any) -> int:  # noqa: ANN401
            if not done:
                done.append(1)
                if what == "trim":
                    other.trim()
                else:
                    other.compress()
            return real(*args, **more)

        monkeypatch.setattr(trimmer, "sync_header", sync)
        queue.trim()
        assert queue.head_sequence >= 20
        assert queue.verify().ok
