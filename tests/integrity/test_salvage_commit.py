"""Salvage of messages that were sent at once, in several pages: all of them or none (I19)."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from torn_pages import page, payloads, zero

from pagequeue import Queue, salvage_queue
from pagequeue import format as fmt
from pagequeue.cli import main
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pagequeue import Loss, Repeat

PAGE_BYTES = 4096
BEFORE, AFTER = [b"before 1", b"before 2"], [b"after 1", b"after 2"]
SENT = [random.Random(i).randbytes(900) for i in range(20)]
LARGE = random.Random(77).randbytes(2 * PAGE_BYTES)
FIRST = len(BEFORE)
END = FIRST + len(SENT)


def made(path: Path, sent: list[bytes], *after: bytes, is_flushed: bool = False) -> None:
    """Make a queue with durable messages, a send of several pages, and others; cut the power."""
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many(BEFORE)
        producer.flush()
        producer.send_many(sent)
        if is_flushed:
            producer.flush()
        for payload in after:
            producer.send(payload)
    assert pretend_power_cut(path)


def read(path: Path) -> list[bytes]:
    """Return all payloads."""
    with Queue(path, read_only=True) as queue:
        return payloads(queue)


def sequences(noted: Sequence[Loss | Repeat]) -> list[int]:
    """Return all that are named."""
    ends = [(some.first_sequence, (some.last_sequence or 0) + 1) for some in noted]
    return [sequence for end in ends for sequence in range(*end)]


@pytest.mark.parametrize("torn", [bytes(16), b"\xa5" * 24])
@pytest.mark.parametrize("number", [2, 3, 4, 6])
def test_nothing_is_copied_of_a_send_that_is_not_whole(
    tmp_path: Path, number: int, torn: bytes
) -> None:
    """As opening keeps none of them; the others are named, and copied when that is asked for."""
    made(tmp_path / "q", SENT)
    overwrite(page(tmp_path / "q", number), fmt.PAGE_HEADER_BYTES, torn)
    report = salvage_queue(tmp_path / "q", tmp_path / "salvaged")
    assert read(tmp_path / "salvaged") == BEFORE == read(tmp_path / "q")
    assert report.messages_copied == len(BEFORE)
    named = sequences(report.left_out)
    lost = sequences(report.lost)
    assert named
    assert set(named) | set(lost) >= set(range(FIRST, max(named) + 1))
    assert all("keep_partial" in some.reason for some in report.left_out)
    report = salvage_queue(tmp_path / "q", tmp_path / "all", keep_partial=True)
    assert read(tmp_path / "all") == BEFORE + [SENT[n - FIRST] for n in named]
    assert report.left_out == []


def test_messages_after_a_send_that_is_not_whole_are_copied(tmp_path: Path) -> None:
    """They were sent by themselves."""
    made(tmp_path / "q", SENT, *AFTER)
    zero(page(tmp_path / "q", 3), 2000, 64)
    report = salvage_queue(tmp_path / "q", tmp_path / "salvaged")
    assert read(tmp_path / "salvaged") == BEFORE + AFTER
    assert report.left_out[-1].last_sequence == END - 1


@pytest.mark.parametrize("lost", ["missing", "header", "page"])
def test_rest_of_a_send_without_its_first_page_is_left_out(tmp_path: Path, lost: str) -> None:
    """Whether it had messages of the same send, only the page before tells."""
    made(tmp_path / "q", SENT)
    if lost == "missing":
        page(tmp_path / "q", 2).unlink()
    else:
        zero(page(tmp_path / "q", 2), 0, PAGE_BYTES if lost == "page" else fmt.PAGE_HEADER_BYTES)
    report = salvage_queue(tmp_path / "q", tmp_path / "salvaged")
    assert read(tmp_path / "salvaged") == BEFORE
    assert report.left_out[-1].last_sequence == END - 1


@pytest.mark.parametrize("sent", [SENT, [*SENT[:5], LARGE, *SENT[5:]], [*SENT[:5], LARGE]])
@pytest.mark.parametrize("is_index_lost", [False, True])
def test_whole_send_is_copied(tmp_path: Path, sent: list[bytes], *, is_index_lost: bool) -> None:
    """Nothing is left out where nothing is missing."""
    made(tmp_path / "q", sent, *AFTER)
    for index in (tmp_path / "q").glob("*.idx"):
        if is_index_lost:
            index.unlink()
    report = salvage_queue(tmp_path / "q", tmp_path / "salvaged")
    assert (report.ok, report.left_out) == (True, [])
    assert read(tmp_path / "salvaged") == BEFORE + sent + AFTER


def test_what_was_flushed_is_copied_whatever_it_was_sent_with(tmp_path: Path) -> None:
    """What the durable mark proves is never left out: the send was whole when it was flushed."""
    made(tmp_path / "q", SENT, *AFTER, is_flushed=True)
    zero(page(tmp_path / "q", 3), 2000, 64)
    report = salvage_queue(tmp_path / "q", tmp_path / "salvaged")
    assert report.left_out == []
    assert report.messages_copied == len(BEFORE + SENT + AFTER) - 1


def test_the_command_names_what_it_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its option copies that as well."""
    made(tmp_path / "q", SENT)
    zero(page(tmp_path / "q", 4), fmt.PAGE_HEADER_BYTES, 16)
    call = ["salvage", str(tmp_path / "q"), "--to"]
    main([*call, str(tmp_path / "one")])
    assert "left out: messages 2 to " in capfd.readouterr().out
    main([*call, str(tmp_path / "two"), "--keep-partial", "--json"])
    report = json.loads(capfd.readouterr().out)
    assert report["left_out"] == []
    assert report["messages_copied"] > len(BEFORE)
