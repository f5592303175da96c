"""Opening, creating and removing files: only regular files with own names, typed errors only."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import warm
from support import within

from pagequeue import Queue, errors
from pagequeue.system.directory import Directory
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plugin import Disk

NAMES = [
    "queue-allMeta",
    "queue-writeMeta",
    "queue-readMeta",
    "queue.lock",
    "queue-0000000001.page",
    "queue-0000000001.idx",
]
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """A call that blocks on a FIFO fails instead of hanging."""
    with within(300):
        yield


def put_in_place(path: Path, kind: str) -> None:
    """Put something that is not a regular file in a file's place."""
    target = path.with_name("aside")
    path.rename(target)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(path.with_name("nowhere"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.mkdir()


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "socket", "directory"])
@pytest.mark.parametrize("name", NAMES)
def test_file_that_is_not_regular_is_refused_without_blocking(
    disk: Disk, name: str, kind: str
) -> None:
    """I9: neither a link out of the directory nor a pipe is ever opened for a file of ours."""
    disk.send(b"x")
    put_in_place(disk.directory / name, kind)
    with pytest.raises(errors.UnsafePath) as caught:
        disk.open()
    assert str(disk.directory / name) in str(caught.value)
    assert not disk.directory.joinpath("nowhere").exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "queue.lock"])
def test_read_only_refuses_the_same_or_does_without(disk: Disk, name: str, kind: str) -> None:
    """I6: only the index can be done without."""
    disk.send(b"x", b"y")
    put_in_place(disk.directory / name, kind)
    if name.endswith(".idx"):
        with disk.open(read_only=True) as queue:
            assert [m.payload for m in queue.replay(sequence=1)] == [b"y"]
    else:
        with pytest.raises(errors.UnsafePath), disk.open(read_only=True) as queue:
            list(queue.replay())


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_next_page_is_not_written_into_an_existing_object(disk: Disk, kind: str) -> None:
    """I10: an object in the next page's place is an error, and the queue is unchanged."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        disk.page(2).write_bytes(b"")
        put_in_place(disk.page(2), kind)
        with pytest.raises(errors.UnsafePath):
            queue.rotate()
        assert [m.payload for m in queue.replay()] == [b"x"]
        producer.send(b"y")
        assert queue.tail_sequence == 2


def test_directory_that_is_a_link_is_refused(disk: Disk, tmp_path: Path) -> None:
    """The queue's own directory is never reached through a link."""
    disk.send(b"x")
    link = tmp_path / "link"
    link.symlink_to(disk.directory)
    for create in (True, False):
        with pytest.raises(errors.UnsafePath, match="give the directory itself"):
            Queue(link, create=create)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(errors.UnsafePath):
        Queue(dangling)
    assert not (tmp_path / "nowhere").exists()


def test_path_through_a_file_is_not_a_directory(tmp_path: Path) -> None:
    """A file where a directory should be is a NotADirectoryError."""
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    for path in (file, file / "below", file / "far" / "below"):
        with pytest.raises(NotADirectoryError) as caught:
            Queue(path)
        assert isinstance(caught.value, errors.NotADirectory)
    assert file.read_bytes() == b"mine"


def test_missing_directory_is_created_only_on_request(tmp_path: Path) -> None:
    """Directories are for their owner only."""
    path = tmp_path / "a" / "b"
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(FileNotFoundError):
            Queue(path, **options)
    assert not path.exists()
    Queue(path, page_bytes=4096).close()
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}


@pytest.mark.parametrize("path", ["new", "new/below"])
def test_relative_directory_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Its first part is in the working directory, which has no name here."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        Directory(path, create=True).close()
    assert (tmp_path / path).is_dir()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.DiskFull),
        (errno.EDQUOT, errors.DiskFull),
        (errno.EFBIG, errors.DiskFull),
        (errno.EMFILE, errors.SystemLimit),
        (errno.ENOMEM, errors.SystemLimit),
        (errno.EIO, errors.SystemLimit),
        (errno.EACCES, errors.AccessDenied),
        (errno.EROFS, errors.AccessDenied),
        (errno.ELOOP, errors.UnsafePath),
        (errno.ENXIO, errors.UnsafePath),
        (errno.ENOENT, errors.QueueNotFound),
    ],
)
def test_every_system_error_becomes_a_typed_one(number: int, kind: type) -> None:
    """The caller learns what to do, and still finds the number."""
    with pytest.raises(kind, match=r"/q/f: .*while testing.*: ") as caught:
        raise_typed(OSError(number, os.strerror(number)), "/q/f", "testing")
    if isinstance(caught.value, OSError):
        assert caught.value.errno == number
        assert caught.value.filename == "/q/f"


def test_file_is_created_complete_and_zero_after_its_content(tmp_path: Path) -> None:
    """I10: a file gets its final name only with all its blocks and content."""
    folder = Directory(str(tmp_path), create=False)
    (tmp_path / "name").write_bytes(b"old")
    (tmp_path / "name.tmp-next").write_bytes(b"left by one that was killed")
    region = folder.make("name", b"content", size_bytes=8192, maker="next", synced=True)
    assert (tmp_path / "name").read_bytes() == b"content".ljust(8192, b"\0")
    assert (tmp_path / "name").stat().st_blocks * 512 >= 8192
    assert os.listdir(tmp_path) == ["name"]
    assert region.writable
    region.store(8, 7)
    assert (tmp_path / "name").read_bytes()[8] == 7
    folder.close()


def test_failed_creation_leaves_no_file(tmp_path: Path) -> None:
    """A name that a directory has already is refused, without a temporary file left."""
    folder = Directory(str(tmp_path), create=False)
    (tmp_path / "name").mkdir()
    with pytest.raises(errors.UnsafePath):
        folder.make("name", b"content", size_bytes=4096)
    with pytest.raises(ValueError, match="must fit"):
        folder.make("other", b"content", size_bytes=3)
    with pytest.raises(errors.QueueNotFound):
        folder.make("none/other", b"content", size_bytes=4096)
    assert os.listdir(tmp_path) == ["name"]
    folder.close()


def test_removing_a_missing_file_is_not_an_error(tmp_path: Path) -> None:
    """Two processes may remove the same file."""
    folder = Directory(str(tmp_path), create=False)
    folder.remove("none")
    (tmp_path / "directory").mkdir()
    with pytest.raises(errors.PageQueueError):
        folder.remove("directory")
    folder.close()
    folder.close()


def test_failed_close_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is closed all the same, and all syncs were done before."""
    (tmp_path / "name").write_bytes(b"content")
    folder = Directory(str(tmp_path), create=False)
    real = os.close

    def failing(fd: int) -> None:
        real(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "close", failing)
    with folder.opened("name", writable=False) as fd:
        assert os.pread(fd, 7, 0) == b"content"
    folder.close()
    assert folder.descriptor.is_closed


def test_file_that_stat_refuses_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor is closed."""
    (tmp_path / "name").write_bytes(b"content")
    folder = Directory(str(tmp_path), create=False)
    before = os.listdir("/proc/self/fd")

    def failing(_: int) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fstat", failing)
    with pytest.raises(errors.SystemLimit, match="while reading"):
        folder.open("name", writable=False)
    with pytest.raises(errors.SystemLimit, match="while reading"):
        Directory(str(tmp_path), create=False)
    monkeypatch.undo()
    assert os.listdir("/proc/self/fd") == before
    folder.close()


# --- another user ---------------------------------------------------------------------------------

OTHER_USER = """
import concurrent.futures.thread, encodings.ascii, os, sys  # while they may still be read
from pagequeue import Queue, errors
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
try:
    with Queue(sys.argv[1], read_only=sys.argv[2] == "read_only") as queue:
        if sys.argv[2] == "send":
            queue.producer().send(b"y")
        print([message.payload for message in queue.replay()])
except errors.PageQueueError as error:
    print(type(error).__name__, isinstance(error, PermissionError))
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A queue that another user can reach, with one message."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made) / "queue"
        Path(made).chmod(0o755)
        with Queue(directory, page_bytes=4096) as queue, queue.producer() as producer:
            producer.send(b"x")
        yield directory


def as_other_user(directory: Path, how: str) -> str:
    """Open the queue in a process that becomes another user; return what it prints."""
    result = warm.run(
        [sys.executable, "-c", OTHER_USER, str(directory), how, str(NOBODY)],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@as_root
@pytest.mark.parametrize("how", ["read", "read_only", "send"])
def test_queue_of_another_user_is_denied(public: Path, how: str) -> None:
    """A queue is accessible to its owner only, unless the owner chooses otherwise."""
    assert as_other_user(public, how) == "AccessDenied True"


@as_root
def test_permission_to_read_is_enough_for_read_only(public: Path) -> None:
    """Reading takes no lock and writes no byte."""
    public.chmod(0o755)
    for path in public.iterdir():
        path.chmod(0o644)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in public.iterdir()}
    assert as_other_user(public, "read_only") == "[b'x']"
    assert as_other_user(public, "read") == "AccessDenied True"
    assert as_other_user(public, "send") == "AccessDenied True"
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in public.iterdir()}
    assert after == before


@as_root
@pytest.mark.parametrize("name", [name for name in NAMES if name != "queue.lock"])
def test_one_file_that_may_not_be_read_is_denied(public: Path, name: str) -> None:
    """The error names the file."""
    public.chmod(0o755)
    for path in public.iterdir():
        path.chmod(0o644)
    (public / name).chmod(0o600)
    expected = "[b'x']" if name.endswith(".idx") else "AccessDenied True"
    assert as_other_user(public, "read_only") == expected


def test_listing_in_many_threads_gives_every_name_once(tmp_path: Path) -> None:
    """Otherwise retention could miss the cursor of a consumer that lags."""
    expected = [f"{number:03d}" for number in range(200)]
    for name in expected:
        (tmp_path / name).touch()
    folder = Directory(str(tmp_path), create=False)
    wrong: list[int] = []

    def list_often() -> None:
        wrong.extend(1 for _ in range(200) if sorted(folder.names()) != expected)

    threads = [threading.Thread(target=list_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder.close()
    assert wrong == []
