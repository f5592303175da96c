"""Whose files are taken, from which directories, on which file systems."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safely import INDEX, LOCK, META, NOBODY, PAGE, STRANGER, as_user, outcome

from pagequeue import Queue, _core, errors
from pagequeue.system import trust

if TYPE_CHECKING:
    from plugin import Disk

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner needs root")


# --- owners ---------------------------------------------------------------------------------------


def use(disk: Disk, *, read_only: bool) -> None:
    """Touch every file that is needed."""
    with disk.open(read_only=read_only) as queue:
        list(queue.replay())
        if not read_only:
            queue.producer()


@as_root
def test_root_reads_any_queue_and_writes_only_to_its_own(disk: Disk) -> None:
    """A user can exchange the files under root; who only reads can at worst read nonsense."""
    disk.send(b"x")
    os.chown(disk.directory, STRANGER, -1)
    with pytest.raises(errors.UnsafePath, match=r"uid 54321.*root.*other_owner") as caught:
        disk.open()
    assert caught.value.path == str(disk.directory)
    assert disk.payloads(read_only=True) == [b"x"]
    assert disk.payloads(trust=("other_owner",)) == [b"x"]
    assert outcome(disk.directory, trust=("world_writable",)) == "UnsafePath"


@as_root
@pytest.mark.parametrize("name", [*META, LOCK, PAGE, INDEX])
@pytest.mark.parametrize("read_only", [True, False])
def test_file_of_a_stranger_is_refused(disk: Disk, name: str, read_only: bool) -> None:
    """A file's owner can change or truncate it at any time."""
    disk.send(b"x", b"y")
    os.chown(disk.directory / name, STRANGER, -1)
    if read_only and name in {LOCK, INDEX}:  # not needed, or done without
        with disk.open(read_only=True) as queue:
            assert [m.payload for m in queue.replay(sequence=1)] == [b"y"]
        return
    with pytest.raises(errors.UnsafePath, match=r"uid 54321.*other_owner") as caught:
        use(disk, read_only=read_only)
    assert caught.value.path == str(disk.directory / name)
    assert disk.payloads(trust=("other_owner",), read_only=read_only) == [b"x", b"y"]


@as_root
def test_user_takes_files_of_its_own_of_root_and_of_a_trusted_owner(reachable: Path) -> None:
    """Root could do worse anyway; any other user must be named as trusted."""
    queue = reachable / "queue"
    with Queue(queue, page_bytes=4096, file_mode=0o666) as made:
        made.producer().send(b"x")
    queue.chmod(0o755)
    assert as_user(NOBODY, queue, read_only=True) == "open"
    assert as_user(NOBODY, queue) == "open"  # every file that it writes to exists already
    os.chown(queue, STRANGER, -1)
    for options in ({}, {"read_only": True}):
        assert as_user(NOBODY, queue, **options) == "UnsafePath"
        assert as_user(NOBODY, queue, trust=["other_owner"], **options) == "open"
        assert as_user(STRANGER, queue, **options) == "open"


@as_root
def test_own_directory_may_hold_files_of_its_owner_for_root(disk: Disk) -> None:
    """Reading another user's queue means reading that owner's files only."""
    disk.send(b"x")
    for path in (disk.directory, *disk.directory.iterdir()):
        os.chown(path, NOBODY, -1)
    assert disk.payloads(read_only=True) == [b"x"]
    os.chown(disk.page(1), STRANGER, -1)
    with pytest.raises(errors.UnsafePath):
        disk.payloads(read_only=True)


def test_names_of_trusted_checks_are_validated(tmp_path: Path) -> None:
    """An unknown word is an error, and accepts no files."""
    for wrong in ("other_owner", ("other-owner",), ("other_owner", "all"), (7,)):
        with pytest.raises(errors.InvalidOption, match="world_writable"):
            Queue(tmp_path / "queue", trust=wrong)
    assert not (tmp_path / "queue").exists()
    Queue(tmp_path / "queue", page_bytes=4096, trust=sorted(trust.ALL)).close()


# --- directories of everybody ---------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
def test_world_writable_directory_is_refused(disk: Disk, read_only: bool) -> None:
    """Any user could exchange the files; with the sticky bit only their owners can."""
    disk.send(b"x")
    disk.directory.chmod(0o777)
    with pytest.raises(errors.UnsafePath, match=r"0777.*chmod o-w.*world_writable"):
        disk.open(read_only=read_only)
    assert disk.payloads(read_only=read_only, trust=("world_writable",)) == [b"x"]
    disk.directory.chmod(0o1777)
    assert disk.payloads(read_only=read_only) == [b"x"]
    disk.directory.chmod(0o775)
    assert disk.payloads(read_only=read_only) == [b"x"]


def test_no_file_is_created_in_a_refused_directory(tmp_path: Path) -> None:
    """The check comes before the first file, the lock file included."""
    directory = tmp_path / "queue"
    directory.mkdir()
    directory.chmod(0o777)
    assert outcome(directory) == "UnsafePath"
    assert list(directory.iterdir()) == []


@as_root
@pytest.mark.parametrize("name", [LOCK, "queue-allMeta"])
def test_file_planted_in_a_sticky_directory_is_refused(tmp_path: Path, name: str) -> None:
    """There the owners of the files are what keeps strangers out."""
    directory = tmp_path / "queue"
    directory.mkdir()
    directory.chmod(0o1777)
    (directory / name).touch(0o666)
    os.chown(directory / name, STRANGER, -1)
    assert outcome(directory, page_bytes=4096) == "UnsafePath"


# --- file systems ---------------------------------------------------------------------------------


def test_core_knows_the_file_system_as_the_system_does(tmp_path: Path) -> None:
    """The number is the one that statfs(2) gives."""
    for path in (str(tmp_path), "/proc", "/dev"):
        said = subprocess.run(
            ["stat", "-f", "-c", "%t", path], capture_output=True, text=True, check=True
        ).stdout
        fd = os.open(path, os.O_RDONLY)
        assert _core.file_system_type(fd) == int(said, 16) != 0
        os.close(fd)
    assert _core.file_system_type(-1) == 0


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("name", sorted(set(trust.NETWORK_FILE_SYSTEMS.values())))
def test_network_file_system_is_refused_by_name(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, name: str, read_only: bool
) -> None:
    """Two hosts share no memory: each would write over the other's messages."""
    disk.send(b"x")
    number = next(key for key, value in trust.NETWORK_FILE_SYSTEMS.items() if value == name)
    monkeypatch.setattr(_core, "file_system_type", lambda _: number)
    with pytest.raises(errors.UnsafePath, match=rf"{name}.*hosts.*network_file_system"):
        disk.open(read_only=read_only)
    assert disk.payloads(trust=("network_file_system",), read_only=read_only) == [b"x"]


def test_local_file_system_would_be_refused_were_it_in_the_table(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of this directory's file system is read."""
    disk.send(b"x")
    fd = os.open(disk.directory, os.O_RDONLY)
    number = _core.file_system_type(fd)
    os.close(fd)
    assert number not in trust.NETWORK_FILE_SYSTEMS
    monkeypatch.setitem(trust.NETWORK_FILE_SYSTEMS, number, "made up")
    assert outcome(disk.directory) == "UnsafePath"


def test_table_has_the_numbers_of_the_systems_header() -> None:
    """Where the kernel's header names a file system between hosts, its number is the same."""
    header = Path("/usr/include/linux/magic.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"#define\s+(\w+?)(?:_SUPER)?_MAGIC\s+0x(\w+)", header.read_text())
    numbers = {name: int(number, 16) for name, number in found}
    between_hosts = {"NFS", "SMB", "CIFS", "SMB2", "AFS", "AFS_FS", "CODA", "NCP", "V9FS", "CEPH"}
    shared = {"OCFS2", "FUSE"}
    for name in (between_hosts | shared) & set(numbers):
        assert numbers[name] in trust.NETWORK_FILE_SYSTEMS, name
    for name in ("EXT4", "XFS", "BTRFS", "F2FS", "OVERLAYFS", "RAMFS"):
        assert numbers.get(name) not in trust.NETWORK_FILE_SYSTEMS
