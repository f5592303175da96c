"""Creating a queue: a creation that failed or was interrupted does not block the next one."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import pytest
import warm
from plugin import MESSAGES, Disk
from support import files

from pagequeue import (
    CorruptMeta,
    DiskFull,
    PageSizeMismatch,
    Queue,
    QueueNotFound,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue.store import opening
from pagequeue.system.directory import Directory
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pagequeue import _core
    from pagequeue.meta.all_meta import AllMeta

METAS = ["queue-allMeta", "queue-readMeta", "queue-writeMeta"]
LIMITED = """
import resource, sys
from pagequeue import DiskFull, Queue
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    Queue(sys.argv[1], page_bytes=1 << 20)
except DiskFull as error:
    print(error)
"""


class Killed(BaseException):
    """What happens instead of a step."""


def stop_at(
    patch: pytest.MonkeyPatch, name: str, error: BaseException, *, behind: bool = False
) -> None:
    """Make the creation of a file raise an error, before or after the file exists."""
    make = Directory.make

    def stopped(self: Directory, file: str, data: bytes, **rest: int) -> _core.Region:
        if file != name:
            return make(self, file, data, **rest)
        if behind:
            make(self, file, data, **rest)
        raise error

    patch.setattr(Directory, "make", stopped)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Patches that are undone before the queue is inspected."""
    with monkeypatch.context() as context:
        yield context


FIRST_FILES = [*METAS, "queue-0000000001.idx", "queue-0000000001.page"]


@pytest.mark.parametrize("name", FIRST_FILES)
def test_creation_on_a_full_disk_leaves_no_queue(
    disk: Disk, patch: pytest.MonkeyPatch, name: str
) -> None:
    """The leftovers are not a damaged queue, and do not fix the page size of the next one."""
    stop_at(patch, name, DiskFull("no room"))
    with pytest.raises(DiskFull):
        disk.open()
    patch.undo()
    assert set(files(disk.directory)) <= {"queue.lock"}
    for look in (verify_queue, repair_queue):
        with pytest.raises(QueueNotFound):
            look(disk.directory)
    with Queue(disk.directory, page_bytes=8192) as queue:
        assert queue.page_bytes == 8192


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("name", FIRST_FILES)
def test_interrupted_creation_is_completed(
    disk: Disk, patch: pytest.MonkeyPatch, name: str, behind: bool
) -> None:
    """Killed at any file: the next process creates the queue, with its own page size."""
    stop_at(patch, name, Killed(), behind=behind)
    with pytest.raises(Killed):
        disk.open()
    patch.undo()
    if name.endswith(".page") and behind:
        with pytest.raises(PageSizeMismatch):
            Queue(disk.directory, page_bytes=8192)
        disk.send(*MESSAGES)
    else:
        disk.page_bytes = 8192
        disk.send(*MESSAGES)
    assert disk.payloads() == MESSAGES
    assert verify_queue(disk.directory).ok


def test_queue_that_lost_its_pages_keeps_its_size(disk: Disk) -> None:
    """Only an unfinished creation is redone: messages were sent to this queue."""
    disk.send(*MESSAGES)
    for path in disk.directory.glob("*.page"):
        path.unlink()
    before = files(disk.directory)
    with pytest.raises(PageSizeMismatch):
        Queue(disk.directory, page_bytes=8192)
    assert files(disk.directory) == before


@pytest.mark.parametrize("name", METAS)
def test_missing_meta_is_damage_to_a_reader(disk: Disk, name: str) -> None:
    """There are pages, so the error is not "no queue"; it has the remedy."""
    disk.send(*MESSAGES)
    (disk.directory / name).unlink()
    before = files(disk.directory)
    with pytest.raises(CorruptMeta, match="repair") as caught:
        disk.open(read_only=True)
    assert (caught.value.path, caught.value.reason) == (str(disk.directory / name), "missing")
    assert files(disk.directory) == before
    assert repair_queue(disk.directory).ok
    assert disk.payloads(read_only=True) == MESSAGES


def test_directory_without_pages_and_meta_files_is_no_queue(disk: Disk) -> None:
    """Without pages and meta files there is no queue to repair."""
    disk.directory.mkdir()
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(QueueNotFound):
            disk.open(**options)


def test_reader_continues_when_repair_found_damage(disk: Disk) -> None:
    """A recreated write meta has no tail yet: the valid prefix is read all the same."""
    disk.send(*MESSAGES, flush=True)
    disk.tear(2, 1)
    disk.path("writeMeta").unlink()
    assert not repair_queue(disk.directory).ok
    assert disk.payloads(read_only=True) == MESSAGES[:4]


def test_limit_of_the_process_is_named(tmp_path: Path) -> None:
    """Room on the disk is no remedy for `ulimit -f`."""
    limit = 300_000
    result = warm.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "q"), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"raise the limit of {limit} bytes" in result.stdout
    assert "make room" not in result.stdout


def test_salvage_on_a_full_disk_leaves_its_target_usable(
    disk: Disk, patch: pytest.MonkeyPatch
) -> None:
    """The target can be used again when there is room, whatever failed there."""
    disk.send(*MESSAGES)
    target = disk.directory.with_name("target")
    stop_at(patch, "queue-0000000001.page", DiskFull("no room"))
    with pytest.raises(DiskFull):
        salvage_queue(disk.directory, target)
    patch.undo()
    assert salvage_queue(disk.directory, target).messages_copied == len(MESSAGES)


def test_lack_of_space_is_reported_by_its_cause(tmp_path: Path) -> None:
    """A quota, a limit and a full disk have different remedies."""
    said = {}
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with pytest.raises(DiskFull) as caught:
            raise_typed(OSError(number, os.strerror(number)), str(tmp_path), "making a file")
        said[number] = str(caught.value)
    assert "make room, then" in said[errno.ENOSPC]
    assert "quota" in said[errno.EDQUOT]
    assert "use another" in said[errno.EFBIG]


@pytest.mark.parametrize("gone", ["queue-writeMeta", "queue-readMeta"])
def test_power_cut_while_a_queue_is_created_leaves_no_damage(tmp_path: Path, gone: str) -> None:
    """I5: a page's name can be on disk before those of the metas; no message was sent by then."""
    Queue(tmp_path / "q", page_bytes=4096).close()
    (tmp_path / "q" / gone).unlink()
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "q", read_only=True)
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        assert producer.send(b"first") == 0
    (tmp_path / "q" / gone).unlink()
    with pytest.raises(CorruptMeta, match="though there are pages"):
        Queue(tmp_path / "q", read_only=True)


def test_creator_that_fails_does_not_stop_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another process removed between two checks, for lack of space, is missing."""
    Queue(tmp_path / "q").close()
    really, calls = opening.read_all_meta, 0

    def removed(folder: Directory, prefix: str) -> AllMeta:
        nonlocal calls
        calls += 1
        if calls == 1:
            for path in (tmp_path / "q").iterdir():
                path.unlink()
        return really(folder, prefix)

    monkeypatch.setattr(opening, "read_all_meta", removed)
    with Queue(tmp_path / "q") as queue:
        assert queue.producer().send(b"x") == 0
    calls = 0
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "q", create=False)
