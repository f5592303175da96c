"""Files that the core makes, uses again, renews and lends: each step that can fail."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from typing import TYPE_CHECKING, Any

import pytest
from support import is_locked

from pagequeue import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OS_PAGE = os.sysconf("SC_PAGESIZE")
SIZE = 4 * OS_PAGE
HEADER = bytes(range(64))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a directory."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def made(
    folder: int,
    name: str = "page",
    *,
    size: int = SIZE,
    reserved: int | None = None,
    filled: int = 0,
    again: bool = False,
    kept: bool = False,
    held: bool = True,
) -> _core.Region:
    """Make a file, or use the one under the temporary name again."""
    whole = size if reserved is None else reserved
    numbers = size, whole, filled, -1, -1, 0o600
    return _core.Region.make(folder, "temporary", name, HEADER, *numbers, False, held, again, kept)


def raises(number: int, call: Callable[[], object]) -> None:
    """Check that a call fails with an error of the system."""
    with pytest.raises(OSError, match=r"\[Errno") as raised:
        call()
    assert raised.value.errno == number, raised.value


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file can grow over two OS pages: what a full quota is, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * OS_PAGE, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("reserved", [OS_PAGE, SIZE])
def test_file_that_cannot_have_its_size_is_not_made(
    folder: int, tmp_path: Path, reserved: int
) -> None:
    """No room is an error at once; no half made file is left."""
    raises(errno.EFBIG, lambda: made(folder, reserved=reserved))
    assert [*tmp_path.iterdir()] == []


def test_file_whose_name_is_a_directory_is_not_made(folder: int, tmp_path: Path) -> None:
    """The temporary name goes, and the directory stays."""
    (tmp_path / "page").mkdir()
    raises(errno.EISDIR, lambda: made(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_file_with_a_temporary_name_that_is_there_is_not_made(folder: int, tmp_path: Path) -> None:
    """Another process makes it: its file stays as it is."""
    (tmp_path / "temporary").write_bytes(b"another's")
    raises(errno.EEXIST, lambda: made(folder))
    raises(errno.EBADF, lambda: made(-1))
    assert (tmp_path / "temporary").read_bytes() == b"another's"


def test_file_is_filled_reserved_and_kept_as_asked(folder: int, tmp_path: Path) -> None:
    """Content at the beginning, zeros after it, blocks for what is reserved."""
    region = made(folder, size=1 << 20, reserved=600_000, filled=600_000, kept=True)
    assert (tmp_path / "page").read_bytes() == HEADER.ljust(1 << 20, b"\0")
    assert (tmp_path / "page").stat().st_blocks * 512 >= 600_000
    assert region.is_renewable
    assert not region.is_removed
    (tmp_path / "page").unlink()
    assert region.is_removed
    assert made(folder, "other").is_removed  # no open file tells


@pytest.mark.parametrize(
    ("size", "reserved", "filled"),
    [(0, 0, 0), (2**40, 2**40, 0), (63, 63, 0), (128, 64, 65), (128, 129, 0), (128, 63, 0)],
)
def test_content_that_does_not_fit_is_refused(
    folder: int, tmp_path: Path, size: int, reserved: int, filled: int
) -> None:
    """Before any file is made."""
    with pytest.raises(ValueError, match="must fit"):
        made(folder, size=size, reserved=reserved, filled=filled)
    assert [*tmp_path.iterdir()] == []


# --- used again -----------------------------------------------------------------------------------


def retired(tmp_path: Path, size: int = SIZE, mode: int = 0o600) -> Path:
    """Write a file that can be used again: full of old bytes, warm, with all of its blocks."""
    path = tmp_path / "temporary"
    path.write_bytes(b"\xee" * size)
    path.chmod(mode)
    return path


def test_file_that_is_used_again_has_no_old_byte(folder: int, tmp_path: Path) -> None:
    """I13: zeroed, with its new header, under its new name only."""
    retired(tmp_path)
    region = made(folder, again=True)
    assert (tmp_path / "page").read_bytes() == HEADER.ljust(SIZE, b"\0")
    assert region.read(0, 64) == HEADER
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def _linked(path: Path) -> None:
    os.link(path, path.with_name("link"))


def _sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, SIZE)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _shorter(path: Path) -> None:
    os.truncate(path, SIZE - 1)


def _foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    "change", [_linked, _sparse, _fifo, _shorter, _foreign, lambda path: path.chmod(0o644)]
)
def test_file_that_is_not_as_it_was_is_not_used_again(
    folder: int, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """I13: one with another name, owner, mode, size or kind can be in use elsewhere."""
    path = retired(tmp_path)
    change(path)
    raises(errno.ENOTSUP, lambda: made(folder, again=True))
    assert not (tmp_path / "page").exists()
    assert path.exists()


def test_file_that_another_process_has_locked_is_not_used_again(
    folder: int, tmp_path: Path
) -> None:
    """I13: a reader has it mapped, and keeps the bytes that it reads."""
    path = retired(tmp_path)
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        raises(errno.EWOULDBLOCK, lambda: made(folder, again=True))
    assert path.read_bytes() == b"\xee" * SIZE


def test_file_that_cannot_get_its_name_or_is_gone_is_not_used_again(
    folder: int, tmp_path: Path
) -> None:
    """The caller makes a new one."""
    raises(errno.ENOENT, lambda: made(folder, again=True))
    retired(tmp_path)
    (tmp_path / "page").mkdir()
    raises(errno.EISDIR, lambda: made(folder, again=True))
    assert (tmp_path / "temporary").exists()


# --- blocks of a range ----------------------------------------------------------------------------


@pytest.mark.parametrize("call", [_core.reserve, _core.release])
def test_blocks_of_another_file_are_never_touched(
    folder: int, tmp_path: Path, call: Callable[..., None]
) -> None:
    """I13: the name can be another file's by now."""
    path = tmp_path / "page"
    path.write_bytes(b"\xee" * SIZE)
    own = path.stat()
    raises(errno.ENOENT, lambda: call(folder, "page", own.st_dev, own.st_ino + 1, 0, SIZE))
    raises(errno.ENOENT, lambda: call(folder, "page", own.st_dev + 1, own.st_ino, 0, SIZE))
    raises(errno.ENOENT, lambda: call(folder, "none", own.st_dev, own.st_ino, 0, SIZE))
    raises(errno.EINVAL, lambda: call(folder, "page", own.st_dev, own.st_ino, 2**63, SIZE))
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        raises(errno.EWOULDBLOCK, lambda: call(folder, "page", own.st_dev, own.st_ino, 0, SIZE))
    assert path.read_bytes() == b"\xee" * SIZE
    call(folder, "page", own.st_dev, own.st_ino, 0, OS_PAGE)
    assert path.read_bytes()[OS_PAGE:] == b"\xee" * (SIZE - OS_PAGE)


# --- renewed in place -----------------------------------------------------------------------------

NAMES = ("page", "temporary", "next page", "index", "next index")


class Ring:
    """A page of a ring and its index, as the process that fills them has them."""

    def __init__(self, folder: int, tmp_path: Path) -> None:
        self.folder, self.path = folder, tmp_path
        self.page = made(folder, "page", kept=True)
        self.index = made(folder, "index")
        self.page.write(64, b"\xee" * 100)
        self.index.write(0, b"\xee" * SIZE)

    def renew(self, header: bytes = HEADER, used: int = SIZE, index: Any = None) -> None:  # noqa: ANN401 - a Region
        """Make the page the next one."""
        self.page.renew(self.folder, index or self.index, *NAMES, header, used)

    def names(self) -> list[str]:
        """Return the names that are there."""
        return sorted(path.name for path in self.path.iterdir())


@pytest.fixture
def ring(folder: int, tmp_path: Path) -> Ring:
    """A page that can be renewed."""
    return Ring(folder, tmp_path)


@pytest.mark.parametrize("used", [24, SIZE, 2**40])
def test_renewed_page_is_the_next_one(ring: Ring, used: int) -> None:
    """I13: its header is the new one, its first frame is empty, its index has no record."""
    ring.renew(used=used)
    assert ring.names() == ["next index", "next page"]
    page = (ring.path / "next page").read_bytes()
    assert page[:80] == HEADER + bytes(16)
    index = (ring.path / "next index").read_bytes()
    assert index[: min(used, SIZE)] == bytes(min(used, SIZE))


def _other_file(ring: Ring) -> None:
    (ring.path / "page").rename(ring.path / "moved")
    (ring.path / "page").write_bytes(bytes(SIZE))


def _second_name(ring: Ring) -> None:
    os.link(ring.path / "page", ring.path / "second")


def _cut(ring: Ring) -> None:
    os.truncate(ring.path / "page", SIZE - 8)


@pytest.mark.parametrize("change", [_other_file, _second_name, _cut])
def test_page_that_is_not_the_named_file_is_not_renewed(
    ring: Ring, change: Callable[[Ring], None]
) -> None:
    """I13: then its bytes and names stay."""
    change(ring)
    before = ring.names()
    raises(errno.ENOTSUP, ring.renew)
    assert ring.names() == before
    assert ring.page.read(64, 100) == b"\xee" * 100


def _without_page(ring: Ring) -> None:
    (ring.path / "page").unlink()


def _without_index(ring: Ring) -> None:
    (ring.path / "index").unlink()


def _temporary_taken(ring: Ring) -> None:
    (ring.path / "temporary").mkdir()


def _next_taken(ring: Ring) -> None:
    (ring.path / "next page").mkdir()


@pytest.mark.parametrize(
    ("change", "number", "left"),
    [
        (_without_page, errno.ENOENT, ["index"]),
        (_temporary_taken, errno.EISDIR, ["index", "page", "temporary"]),
        (_without_index, errno.ENOENT, ["temporary"]),
        (_next_taken, errno.EISDIR, ["next index", "next page", "temporary"]),
    ],
)
def test_page_whose_renewal_fails_has_its_old_or_its_temporary_name(
    ring: Ring, change: Callable[[Ring], None], number: int, left: list[str]
) -> None:
    """X1 to X5: readers find no page of two numbers, whichever step was the last."""
    change(ring)
    raises(number, ring.renew)
    assert ring.names() == left


def test_page_that_a_reader_has_open_is_not_renewed(ring: Ring) -> None:
    """X2, I13: its lock is shared, and its bytes are what it was told to read."""
    with (ring.path / "page").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        raises(errno.EWOULDBLOCK, ring.renew)
    assert ring.page.read(64, 100) == b"\xee" * 100


def test_only_what_was_made_to_be_renewed_can_be(ring: Ring, folder: int) -> None:
    """No map of another kind loses its bytes."""
    readable = _core.Region(-1, SIZE, False)
    for call in (
        lambda: ring.renew(header=b"short"),
        lambda: ring.renew(index=readable),
        lambda: ring.index.renew(folder, ring.index, *NAMES, HEADER, 0),
        lambda: made(folder, "small", size=128, kept=True).renew(
            folder, ring.index, *NAMES, HEADER, 0
        ),
    ):
        with pytest.raises(ValueError, match="made to be renewed"):
            call()


# --- lent to a reader -----------------------------------------------------------------------------


def borrowed(path: Path) -> _core.Region:
    """Map a page of a ring for reading, as a reader keeps it."""
    with path.open("rb") as file:
        return _core.Region(file.fileno(), SIZE, False, True)


def test_map_is_lent_with_the_lock_and_given_back(tmp_path: Path, folder: int) -> None:
    """I13: while anything refers to the bytes the file is not used again."""
    path = tmp_path / "page"
    path.write_bytes(bytes(SIZE))
    page = borrowed(path)
    assert not is_locked(path)
    lent, again = page.lend(folder, "page"), page.lend(folder, "page")
    assert lent is again
    assert page.lend(folder, "other") is None
    view = memoryview(lent)  # type: ignore[arg-type]
    del lent, again
    assert is_locked(path)
    view.release()
    assert not is_locked(path)


def test_map_is_not_lent_if_its_file_is_another_one_now(tmp_path: Path, folder: int) -> None:
    """I13: it was used again, cut, linked, removed, or is locked by who uses it again."""
    path = tmp_path / "page"
    path.write_bytes(bytes(SIZE))
    page = borrowed(path)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert page.lend(folder, "page") is None
    os.link(path, tmp_path / "second")
    assert page.lend(folder, "page") is None
    (tmp_path / "second").unlink()
    assert page.lend(folder, "page") is not None
    os.truncate(path, SIZE - 8)
    assert page.lend(folder, "page") is None
    path.rename(tmp_path / "moved")
    path.write_bytes(bytes(SIZE))
    assert page.lend(folder, "page") is None
    assert not is_locked(path)
    for other in (made(folder, "mine", kept=True), _core.Region(-1, SIZE, False)):
        with pytest.raises(ValueError, match="mapped to be lent"):
            other.lend(folder, "mine")


def test_map_that_a_child_of_a_fork_may_have_is_not_lent_again(tmp_path: Path, folder: int) -> None:
    """I13: the lock belongs to the open file, which the child has too, for as long as it lives."""
    path = tmp_path / "page"
    path.write_bytes(bytes(SIZE))
    page = borrowed(path)
    lent = page.lend(folder, "page")
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        del lent
        os.close(begin)
        os.read(end, 1)  # until the parent has looked
        os._exit(0)
    os.close(end)
    del lent
    try:
        assert is_locked(path)
        assert page.lend(folder, "page") is None
    finally:
        os.close(begin)
        os.waitpid(child, 0)
