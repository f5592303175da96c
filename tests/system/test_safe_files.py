"""Safe files: for their owner only, durable with their directory, never reached by links."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safely import INDEX, LOCK, META, NOBODY, PAGE, WIDE, as_user, outcome

from pagequeue import Queue, errors
from pagequeue.system.directory import directory_mode, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plugin import Disk

WRITTEN = ["queue-writeMeta", "queue-readMeta", LOCK, PAGE, INDEX]
"""What an opener for writing opens for writing."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner needs root")


def mode_of(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Set the umask for the rest of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
@pytest.mark.parametrize(
    ("options", "files", "directory"),
    [
        ({}, 0o600, 0o700),
        ({"file_mode": 0o640}, 0o640, 0o750),
        ({"file_mode": 0o644}, 0o644, 0o755),
        ({"file_mode": 0o660}, 0o660, 0o770),
        ({"file_mode": 0o666}, 0o666, 0o1777),
    ],
)
def test_modes_are_as_requested_with_any_umask(
    disk: Disk,
    umask: Callable[[int], int],
    mask: int,
    options: dict[str, int],
    files: int,
    directory: int,
) -> None:
    """By default a queue is for its owner only; later pages are, too."""
    umask(mask)
    with disk.open(**options) as queue, queue.producer() as producer:
        for _ in range(8):
            producer.send(WIDE)
        queue.rotate()
        disk.index(2).unlink()
        assert [m.sequence for m in queue.replay(sequence=4)] == [4, 5, 6, 7]
    assert mode_of(disk.directory) == directory
    found = {path.name: mode_of(path) for path in disk.directory.iterdir()}
    assert set(found.values()) == {files}
    assert {*META, LOCK, PAGE, INDEX, "queue-0000000004.page"} <= set(found)
    if directory == 0o1777:
        assert outcome(disk.directory, read_only=True) == "open"


@as_root
@pytest.mark.parametrize("mask", [0, 0o777])
def test_user_with_umask_777_can_create_a_queue(reachable: Path, mask: int) -> None:
    """The owner can enter the directory, even if it was created without any permission."""
    reachable.chmod(0o777)
    assert as_user(NOBODY, reachable / "a" / "queue", page_bytes=4096, umask=mask) == "open"
    for path in (reachable / "a", reachable / "a" / "queue"):
        assert mode_of(path) == 0o700
        assert path.stat().st_uid == NOBODY
    assert {mode_of(path) for path in (reachable / "a" / "queue").iterdir()} == {0o600}


def test_only_created_files_get_the_mode(disk: Disk) -> None:
    """The mode belongs to this opening: it is not stored, and existing files keep theirs."""
    disk.send(b"x")
    with disk.open(file_mode=0o644) as queue:
        queue.rotate()
    assert mode_of(disk.directory) == 0o700
    assert mode_of(disk.page(1)) == 0o600
    assert mode_of(disk.page(2)) == mode_of(disk.index(2)) == 0o644
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"y")
        queue.rotate()
    assert mode_of(disk.page(3)) == 0o600


@pytest.mark.parametrize("mode", [0, 0o400, 0o200, 0o700, 0o677, 0o1600, 0o667, 1 << 40, -1])
def test_invalid_mode_is_refused(tmp_path: Path, mode: int) -> None:
    """The owner must read and write, and a queue is never executable."""
    with pytest.raises(errors.InvalidOption, match="from 0o600 to 0o666"):
        Queue(tmp_path / "queue", file_mode=mode)
    with pytest.raises(errors.InvalidType, match="file_mode must be an int"):
        Queue(tmp_path / "queue", file_mode=bool(mode))
    assert not (tmp_path / "queue").exists()


def test_directory_has_x_where_files_have_r() -> None:
    """A user that may read a file may enter its directory."""
    assert [directory_mode(mode) for mode in (0o600, 0o620, 0o640, 0o664)] == [
        0o700,
        0o720,
        0o750,
        0o775,
    ]


# --- directories that are new ---------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Record the directories that are synced, with their contents at that time."""
    found = []

    def note(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        found.append((path, sorted(os.listdir(path)) if os.path.isdir(path) else []))
        real(fd)

    real = os.fsync
    monkeypatch.setattr(os, "fsync", note)
    return found


def test_each_new_directory_is_durable_before_anything_is_put_into_it(
    tmp_path: Path, synced: list[tuple[str, list[str]]]
) -> None:
    """I5: a power cut right after a flush must not take the directory away."""
    Queue(tmp_path / "a" / "b" / "queue", page_bytes=4096).close()
    assert synced[:3] == [
        (str(tmp_path), ["a"]),
        (str(tmp_path / "a"), ["b"]),
        (str(tmp_path / "a" / "b"), ["queue"]),
    ]


def test_directory_that_another_process_created_is_durable_as_well(
    tmp_path: Path, synced: list[tuple[str, list[str]]]
) -> None:
    """I5: its creator can have died before syncing it."""
    (tmp_path / "queue").mkdir()
    Queue(tmp_path / "queue", page_bytes=4096).close()
    assert synced[0] == (str(tmp_path), ["queue"])
    synced.clear()
    Queue(tmp_path / "queue").close()
    assert str(tmp_path) not in dict(synced)


@as_root
def test_unreadable_parent_is_not_an_error(reachable: Path) -> None:
    """A parent that may be entered but not listed cannot be synced."""
    os.chown(reachable, NOBODY, -1)
    reachable.chmod(0o300)
    assert as_user(NOBODY, reachable / "queue", page_bytes=4096) == "open"


def test_sync_of_the_parent_that_fails_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is acknowledged in a directory that may not last."""

    def failing(_: int) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(os, "fsync", failing)
    for _ in range(2):
        with pytest.raises(errors.SystemLimit, match="Input/output error"):
            Queue(tmp_path / "queue")
    monkeypatch.undo()
    sync_directory(str(tmp_path))
    assert not list((tmp_path / "queue").glob("*Meta"))


def test_dangling_link_above_the_directory_is_an_error_that_ends(tmp_path: Path) -> None:
    """Neither is the link's target made, nor is that tried for ever."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(errors.QueueNotFound):
        Queue(tmp_path / "link" / "a" / "queue")
    assert os.listdir(tmp_path) == ["link"]


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_hard_linked_file_is_not_written_to(disk: Disk, tmp_path: Path, name: str) -> None:
    """What has another name elsewhere would change under that name as well."""
    disk.send(b"x")
    os.link(disk.directory / name, tmp_path / "backup")
    before = (tmp_path / "backup").read_bytes()
    with pytest.raises(errors.UnsafePath, match=r"hard links.*cp FILE") as caught:
        disk.open().producer()
    assert caught.value.path == str(disk.directory / name)
    assert (tmp_path / "backup").read_bytes() == before
    assert disk.payloads(read_only=True) == [b"x"]
    (tmp_path / "backup").unlink()
    disk.send(b"y")


def test_sealed_page_can_be_backed_up_by_a_hard_link(disk: Disk, tmp_path: Path) -> None:
    """A sealed page is only read, so sending and reading go on."""
    disk.send(WIDE, WIDE, WIDE, WIDE, flush=True)
    os.link(disk.page(1), tmp_path / "page")
    os.link(disk.index(1), tmp_path / "index")
    disk.send(WIDE)
    assert disk.payloads() == [WIDE] * 5
    disk.cut_power()
    assert disk.payloads() == [WIDE] * 5  # it is below the durable mark


def test_recovery_that_would_write_to_a_backup_raises_with_the_remedy(
    disk: Disk, tmp_path: Path
) -> None:
    """A sealed page that was never flushed is checked again after a power cut."""
    disk.send(WIDE, WIDE, WIDE, WIDE)
    os.link(disk.page(1), tmp_path / "page")
    os.link(disk.index(1), tmp_path / "index")
    before = (tmp_path / "index").read_bytes()
    disk.cut_power()
    assert disk.payloads(read_only=True) == [WIDE] * 4
    with pytest.raises(errors.UnsafePath, match="put a copy in its place"):
        disk.open()
    for path in (disk.page(1), disk.index(1)):
        with contextlib.suppress(errors.UnsafePath):
            disk.open().close()
        subprocess.run(["cp", path, f"{path}.copy"], check=True)
        Path(f"{path}.copy").rename(path)
    assert disk.payloads() == [WIDE] * 4
    assert (tmp_path / "index").read_bytes() == before


def test_next_page_that_is_hard_linked_is_not_rolled_into(disk: Disk, tmp_path: Path) -> None:
    """I10: a file in the next page's place can be a trap."""
    disk.send(b"x")
    (tmp_path / "mine").write_bytes(bytes(4096))
    os.link(tmp_path / "mine", disk.page(2))
    with disk.open() as queue:
        with pytest.raises(errors.UnsafePath, match="hard links"):
            queue.rotate()
        assert queue.tail_sequence == 1
    assert (tmp_path / "mine").read_bytes() == bytes(4096)


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "file"])
@pytest.mark.parametrize("name", [PAGE.replace("1.", "2."), INDEX.replace("1.", "2.")])
def test_planted_temporary_name_leads_nowhere(
    disk: Disk, tmp_path: Path, name: str, kind: str
) -> None:
    """The names of files that are being made can be guessed: they are made new, or not at all."""
    disk.send(b"x")
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    planted = disk.directory / f"{name}.tmp-next"
    with disk.open() as queue:
        if kind == "link":
            planted.symlink_to(target)
        elif kind == "hard link":
            os.link(target, planted)
        elif kind == "fifo":
            os.mkfifo(planted)
        else:
            planted.write_bytes(b"something else")
        queue.rotate()
    assert target.read_bytes() == b"precious"
    assert stat.S_ISREG((disk.directory / name).lstat().st_mode)
    assert (disk.directory / name).stat().st_nlink == 1
    assert disk.payloads() == [b"x"]


def test_temporary_name_that_is_a_directory_is_a_typed_error(disk: Disk) -> None:
    """Its contents belong to another program, and must not be removed."""
    disk.send(b"x")
    planted = disk.directory / f"{disk.page(2).name}.tmp-next"
    with disk.open() as queue:
        planted.mkdir()
        with pytest.raises(errors.UnsafePath, match=r"tmp-next"):
            queue.rotate()
        planted.rmdir()
        queue.rotate()


def test_no_program_that_is_started_inherits_a_file(disk: Disk) -> None:
    """A child program neither holds a lock nor reaches the queue."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(WIDE)
        producer.flush()
        list(queue.replay())
        ours = [
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{name}")
            and os.readlink(f"/proc/self/fd/{name}").startswith(str(disk.directory))
        ]
        assert len(ours) >= 4
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in ours)
