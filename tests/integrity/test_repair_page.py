"""Repair of single pages: second names, wrong sizes, and what is left because it lost messages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from plugin import MESSAGES, Disk

from pagequeue import errors, repair_queue

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096
FRAME_HEADER = 16


@pytest.fixture
def filled(disk: Disk) -> Disk:
    """Eight messages on three pages: 0 to 2, 3 to 5, 6 and 7; the first seven are flushed."""
    disk.send(*MESSAGES[:7], flush=True)
    disk.send(MESSAGES[7])
    return disk


def prepared(disk: Disk, data: bytes) -> Path:
    """Put a page after the last one, to which no message was sent yet."""
    page = disk.page(4)
    page.write_bytes(data)
    page.chmod(disk.page(3).stat().st_mode & 0o777)
    return page


def truncate(disk: Disk, number: int, ordinal: int, more: int = 0) -> None:
    """Cut a page off where one of its frames begins, or so many bytes later."""
    os.truncate(disk.page(number), disk.frames(number)[ordinal].position + more)


@pytest.mark.parametrize("is_cut", [False, True])
def test_active_page_with_a_second_name_is_copied(filled: Disk, *, is_cut: bool) -> None:
    """Else what is sent from now on would be in the other file too; after a power cut as well."""
    elsewhere = filled.directory.with_name("elsewhere")
    os.link(filled.page(3), elsewhere)
    before = elsewhere.read_bytes()
    if is_cut:
        filled.cut_power()
    with pytest.raises(errors.UnsafePath), filled.open() as queue:
        queue.producer().send(b"on")
    report = repair_queue(filled.directory)
    assert report.ok
    assert f"copied {filled.page(3).name}, which has another name as well" in report.actions
    filled.send(b"on")
    assert filled.payloads() == [*MESSAGES, b"on"]
    assert elsewhere.read_bytes() == before


def test_sealed_page_with_a_second_name_stays(filled: Disk) -> None:
    """Nothing is written to it any more, so a backup by hard links is no damage."""
    os.link(filled.page(1), filled.directory.with_name("elsewhere"))
    report = repair_queue(filled.directory)
    assert (report.ok, report.actions) == (True, [])
    assert filled.page(1).stat().st_nlink == 2


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 100, PAGE, 2 * PAGE])
def test_prepared_page_of_wrong_size_or_two_names_is_removed(
    filled: Disk, size_bytes: int, *, is_linked: bool
) -> None:
    """It has no message; the next roll makes a new one."""
    page = prepared(filled, bytes(size_bytes))
    elsewhere = filled.directory.with_name("elsewhere")
    if is_linked:
        os.link(page, elsewhere)
    report = repair_queue(filled.directory)
    assert report.ok
    is_wrong = is_linked or size_bytes != PAGE
    assert page.exists() != is_wrong
    assert any(page.name in action for action in report.actions) == is_wrong
    filled.send(*[b"y" * 1300] * 3)
    assert filled.payloads() == [*MESSAGES, *[b"y" * 1300] * 3]
    if is_linked:
        assert elsewhere.read_bytes() == bytes(size_bytes)


@pytest.mark.parametrize("is_cut", [False, True])
def test_short_page_that_lost_a_message_is_left_as_it_is(filled: Disk, *, is_cut: bool) -> None:
    """Zeros in place of a sent message would hide that it is lost, flushed or not."""
    truncate(filled, 1, 2)
    if is_cut:
        filled.cut_power(2)
    before = filled.page(1).read_bytes()
    report = repair_queue(filled.directory)
    assert not report.ok
    assert filled.page(1).read_bytes() == before
    assert any(str(problem.file) == str(filled.page(1)) for problem in report.remaining)


def test_short_last_page_that_has_all_messages_is_extended(filled: Disk) -> None:
    """Only zeros are gone; the write meta counts the messages."""
    last = filled.frames(3)[-1]
    truncate(filled, 3, -1, FRAME_HEADER + len(last.payload))
    assert repair_queue(filled.directory).ok
    assert filled.page(3).stat().st_size == PAGE
    assert filled.payloads() == MESSAGES


def test_short_last_page_without_a_write_meta_is_left(filled: Disk) -> None:
    """Then no file tells whether a message was in what is gone."""
    last = filled.frames(3)[-1]
    truncate(filled, 3, -1, FRAME_HEADER + len(last.payload))
    size = filled.page(3).stat().st_size
    filled.path("writeMeta").unlink()
    assert not repair_queue(filled.directory).ok
    assert filled.page(3).stat().st_size == size


@pytest.mark.parametrize("kept", [0, 1])
def test_last_page_cut_short_by_a_power_cut_needs_what_was_flushed(filled: Disk, kept: int) -> None:
    """I5: message 6 was flushed, message 7 was not, and may be lost."""
    truncate(filled, 3, kept)
    size = filled.page(3).stat().st_size
    filled.cut_power()
    report = repair_queue(filled.directory)
    assert report.ok == (kept == 1)
    assert filled.page(3).stat().st_size == (PAGE if kept == 1 else size)
    if kept == 1:
        assert filled.payloads() == MESSAGES[:7]


def test_short_page_whose_header_is_damaged_too_is_left(filled: Disk) -> None:
    """Without its first sequence nobody can tell which messages it has to have."""
    truncate(filled, 3, -1)
    filled.poke(filled.page(3), 0, bytes(64))
    size = filled.page(3).stat().st_size
    assert not repair_queue(filled.directory).ok
    assert filled.page(3).stat().st_size == size
