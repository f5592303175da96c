"""Full disks and limits: what the campaign measures with, and that it catches what is planted."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tools import EXT4, XFS

import pagequeue
from pagequeue import _core, errors
from pagequeue.system import directory as files_of_pagequeue
from stress import driver
from stress.campaign import Budget
from stress.disks import MIB, Disk, Unavailable
from stress.history import MemoryLog, Sent
from stress.squeeze import Squeeze, complaint, full, halves

if TYPE_CHECKING:
    from stress.campaign import Outcome

SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"
SPARED = {"FSIZE": 0, "NOFILE": 2, "AS": 64 << 20}
FULL = "stress.no_full_disk_harms_what_was_sent"


# --- bugs, planted by `driver.apply_patch` in the campaign's own process -------------------------


def reserve_nothing() -> None:
    """Make sparse files: on a full disk, storing into one is SIGBUS."""

    def make(
        self: files_of_pagequeue.Directory, name: str, data: bytes, *, size_bytes: int, **_: object
    ) -> _core.Region:
        with self.descriptor as directory:
            flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR
            fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            os.ftruncate(fd, size_bytes)
            os.pwrite(fd, data, 0)
            return _core.Region(fd, size_bytes, True)
        finally:
            os.close(fd)

    files_of_pagequeue.Directory.make = make


def leave_the_half() -> None:
    """Leave the temporary file of a making that failed."""
    make = files_of_pagequeue.Directory.make

    def half(
        self: files_of_pagequeue.Directory, name: str, data: bytes, **rest: int
    ) -> _core.Region:
        try:
            return make(self, name, data, **rest)
        except errors.DiskFull:
            with self.descriptor as directory:
                os.close(os.open(f"{name}.tmp-half", os.O_CREAT, 0o600, dir_fd=directory))
            raise

    files_of_pagequeue.Directory.make = half


def say_nothing_of_the_path() -> None:
    """Raise the system's own error where there is no room."""
    make = files_of_pagequeue.Directory.make

    def untyped(
        self: files_of_pagequeue.Directory, name: str, data: bytes, **rest: int
    ) -> _core.Region:
        try:
            return make(self, name, data, **rest)
        except errors.DiskFull as error:
            raise OSError(errno.ENOSPC, "No space left on device") from error

    files_of_pagequeue.Directory.make = untyped


def campaign_with(bug: str, budget: Budget) -> Outcome:
    """Run the campaign with one of the bugs above."""
    environment = {
        **os.environ,
        driver.PATCH_VARIABLE: f"{Path(__file__).stem}:{bug}",
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, SUPPORT))),
    }
    return driver.run_in(FULL, budget, environment)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("reserve_nothing", "left over|its checksum is wrong"),
        ("leave_the_half", "left over"),
        ("say_nothing_of_the_path", "not the error that was due"),
    ],
)
def test_planted_bug_is_caught_by_full_disks(bug: str, expected: str, tmp_path: Path) -> None:
    """A campaign that never fails would prove no property."""
    try:
        Disk("tmpfs", tmp_path / "probe").close()
    except Unavailable as error:
        pytest.skip(str(error))
    outcome = campaign_with(bug, Budget(240.0, None, 1))
    assert any(word in each for word in expected.split("|") for each in outcome.violations)


# --- what it measures with -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tmpfs", EXT4, XFS])
def test_full_disk_has_no_room_until_it_is_relieved(kind: str, tmp_path: Path) -> None:
    """What is spared is left, and not more than a little."""
    try:
        disk = Disk(kind, tmp_path / "disk", None if kind == "xfs" else 16 * MIB)
    except Unavailable as error:
        pytest.skip(str(error))
    with disk:
        fd = os.open(disk.path / "file", os.O_CREAT | os.O_RDWR)
        with full(disk.path), pytest.raises(OSError, match="No space"):
            os.posix_fallocate(fd, 0, MIB // 4)
        os.ftruncate(fd, 0)
        with full(disk.path, MIB):
            os.posix_fallocate(fd, 0, MIB // 2)
            with pytest.raises(OSError, match="No space"):
                os.posix_fallocate(fd, MIB // 2, 2 * MIB)
        os.posix_fallocate(fd, 0, 4 * MIB)
        os.close(fd)


@pytest.mark.parametrize("name", ["FSIZE", "NOFILE", "AS"])
def test_limit_is_given_back(name: str, tmp_path: Path) -> None:
    """Inside there is less than before, afterwards as much, even after an exception."""
    kind = getattr(resource, f"RLIMIT_{name}")
    before = resource.getrlimit(kind)
    inside = []

    def fail_inside() -> None:
        with Squeeze(name, SPARED[name], tmp_path).applied():
            inside.append(resource.getrlimit(kind))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert resource.getrlimit(kind) == before
    assert inside[0][1] == before[1]
    assert inside[0][0] != before[0]


def test_complaint_wants_type_path_number_and_remedy() -> None:
    """An error that leaves out one of them is no answer."""
    good = errors.DiskFull("no room: make room, then call again", path="/queue")
    assert "errno" in str(complaint(good))
    good.errno = errno.ENOSPC
    assert complaint(good) is None
    assert "not the error" in str(complaint(OSError(errno.ENOSPC, "No space left")))
    bare = errors.DiskFull("no room: make room, then call again")
    assert "names no path" in str(complaint(bare))
    mute = errors.DiskFull("no room", path="/queue")
    mute.errno = errno.ENOSPC
    assert "names no remedy" in str(complaint(mute))


def test_half_files_are_seen(tmp_path: Path) -> None:
    """Temporary, short, and sparse ones."""
    (tmp_path / "queue-0000000001.page").write_bytes(bytes(8192))
    assert halves(tmp_path, 8192) == []
    with (tmp_path / "queue-0000000002.page").open("wb") as file:
        file.truncate(8192)
    (tmp_path / "queue-0000000003.page").write_bytes(bytes(100))
    (tmp_path / "queue-0000000004.page.tmp-next").touch()
    assert [text.split(",")[0] for text in halves(tmp_path, 8192)] == [
        "queue-0000000002.page",
        "queue-0000000003.page",
        "queue-0000000004.page.tmp-next",
    ]
    (tmp_path / "queue-0000000001.page").write_bytes(b"")
    with (tmp_path / "queue-0000000001.page").open("wb") as file:
        file.truncate(8192)
    assert halves(tmp_path, 8192)[0] == "queue-0000000001.page, 0 of 8192 bytes"


def test_empty_pages_behind_a_large_message_may_be_sparse(tmp_path: Path) -> None:
    """Those are made sparse, and so is the large message itself."""
    with pagequeue.Queue(tmp_path / "q", page_bytes=8192) as queue:
        queue.producer().send(bytes(40_000))
        names = [page.name for page in (tmp_path / "q").glob("*.page")]
        last = max(names)
        assert halves(tmp_path / "q", 8192) == []
    with (tmp_path / "q" / last).open("r+b") as file:
        file.truncate(0)
        file.truncate(8192)
    assert halves(tmp_path / "q", 8192) == []


def test_memory_log_is_shared_with_a_child() -> None:
    """What a child put there before it was killed can be read."""
    log = MemoryLog(Sent)
    pid = os.fork()
    if pid == 0:
        log.put(Sent(1, 2, 3, 4, 5))
        log.put(Sent(6, 7, 8, 9, 10))
        os._exit(0)
    os.waitpid(pid, 0)
    assert log.events() == [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10)]
    log.close()
