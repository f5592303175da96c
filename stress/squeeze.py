"""Taking room away and giving it back: a full disk, and the limits of a process.

Each squeeze is a context manager: inside there is no room, afterwards there is. What the library
may report then, and which files it must not leave, is judged here as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

OS_PAGE_BYTES: Final = 4096
BALLAST: Final = "ballast"
PIECE_BYTES_MAX: Final = 64 << 20
PIECES_MAX: Final = 10_000
REMEDIES: Final = ("make room", "raise the limit", "close something")


@dataclass(frozen=True)
class Squeeze:
    """One way to be without room.

    Attributes:
        name: "disk", or that of a limit: "FSIZE", "NOFILE", "AS".
        spared_bytes: the room that remains; for NOFILE, so many descriptors.
        directory: on the disk that is filled.
    """

    name: str
    spared_bytes: int
    directory: Path

    @property
    def reading_needs_it(self) -> bool:
        """Whether reading, too, may be refused: it needs descriptors and memory, but no room."""
        return self.name in {"NOFILE", "AS"}

    @staticmethod
    def drawn(rng: random.Random, directory: Path, page_bytes: int) -> Squeeze:
        """Return one of all kinds; the disk is filled most often."""
        name = rng.choice(("disk", "disk", "disk", "FSIZE", "NOFILE", "AS"))
        spared = {
            "disk": rng.choice((0, 0, OS_PAGE_BYTES, page_bytes // 2, page_bytes)),
            "FSIZE": rng.choice((0, OS_PAGE_BYTES, page_bytes - 1)),
            "NOFILE": rng.randint(0, 4),
            "AS": rng.randint(512 << 10, 1 << 20),
        }
        return Squeeze(name, spared[name], directory)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Take the room away for as long as the block runs."""
        with full(self.directory, self.spared_bytes) if self.name == "disk" else self._limited():
            yield

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        kind = getattr(resource, f"RLIMIT_{self.name}")
        soft, hard = resource.getrlimit(kind)
        limit = self.spared_bytes
        if self.name == "NOFILE":
            limit += 1 + max(map(int, os.listdir("/proc/self/fd")))
        elif self.name == "AS":
            words = Path("/proc/self/statm").read_text(encoding="ascii").split()
            limit += int(words[0]) * OS_PAGE_BYTES
        if soft != resource.RLIM_INFINITY:
            limit = min(limit, soft)
        resource.setrlimit(kind, (limit, hard))
        try:
            yield
        finally:
            resource.setrlimit(kind, (soft, hard))


def fill(directory: Path, spared_bytes: int = 0) -> None:
    """Leave so many bytes of a disk, or a little more, by a file in its directory."""
    try:
        fd = os.open(directory / BALLAST, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return  # xfs frees what was removed later
    try:
        piece, size = PIECE_BYTES_MAX, os.fstat(fd).st_size
        while piece >= OS_PAGE_BYTES:
            free = os.fstatvfs(fd)
            if free.f_bfree * free.f_frsize - piece < spared_bytes:
                piece //= 2
                continue
            try:
                os.posix_fallocate(fd, size, piece)
                size += piece
            except OSError:
                piece //= 2
    finally:
        os.close(fd)


def relieve(directory: Path) -> None:
    """Remove what `fill` made."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(directory / BALLAST)


@contextlib.contextmanager
def full(directory: Path, spared_bytes: int = 0) -> Iterator[None]:
    """Fill a disk for as long as the block runs."""
    try:
        fill(directory, spared_bytes)
        yield
    finally:
        relieve(directory)


def complaint(error: BaseException) -> str | None:
    """Return what is wrong with an error that reports a lack of room; None if it is right."""
    from pagequeue import errors  # noqa: PLC0415  the core is chosen by now

    if isinstance(error, MemoryError):
        return None  # the interpreter's own, where what it lacks is not a map of ours
    if isinstance(error, errors.NotDurable) and error.__cause__ is not None:
        error = error.__cause__
    words = f"{type(error).__name__}: {error}"
    if not isinstance(error, errors.DiskFull | errors.SystemLimit):
        return f"not the error that was due: {words}"
    if not error.path or error.path not in str(error):
        return f"names no path: {words}"
    if not error.errno:
        return f"has no errno: {words}"
    if not any(remedy in str(error) for remedy in REMEDIES):
        return f"names no remedy: {words}"
    return None


def may_be_sparse(path: Path) -> bool:
    """Whether a page, or the page of an index, is of a large message, or empty behind one.

    These are made sparse; who maps an empty one to write to it reserves its blocks first.
    """
    from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now

    page = path.with_suffix(".page")
    try:
        with page.open("rb") as file:
            start = file.read(fmt.PAGE_HEADER_BYTES + fmt.FRAME_HEADER_BYTES)
    except FileNotFoundError:
        return True  # retention removed it
    word = int.from_bytes(start[fmt.PAGE_HEADER_BYTES :][:4], "little")
    if fmt.is_large(word) or (fmt.is_end(word) and word & fmt.LENGTH_MASK > 16):
        return True
    prefix, number = page.stem.rsplit("-", 1)
    if int(number) == 1 or not (word == 0 or fmt.is_end(word)):
        return False
    return may_be_sparse(page.with_name(f"{prefix}-{int(number) - 1:010}.page"))


def halves(directory: Path, page_bytes: int) -> list[str]:
    """Return the names of files that are not whole, or have a temporary name."""
    sizes = {".page": page_bytes, ".idx": page_bytes // 32 * 12}
    found = []
    staged = directory / "queue-staged"
    if staged.is_dir():
        found += [f"queue-staged/{name}" for name in os.listdir(staged) if name != "lock"]
    for entry in os.scandir(directory):
        expected = sizes.get(os.path.splitext(entry.name)[1])
        with contextlib.suppress(FileNotFoundError):
            stat = entry.stat(follow_symlinks=False)
            # More blocks are reserved as messages come; where the disk was full, some of them.
            sparse = stat.st_blocks == 0
            if ".tmp-" in entry.name or expected not in {None, stat.st_size}:
                found.append(f"{entry.name}, {stat.st_size} bytes")
            elif sparse and not may_be_sparse(directory / entry.name):
                found.append(f"{entry.name}, {stat.st_blocks * 512} of {stat.st_size} bytes")
    return sorted(found)
