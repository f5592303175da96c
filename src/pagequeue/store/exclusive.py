"""Being the only one who has a queue open, although its lock file can be removed or replaced."""

from __future__ import annotations

import contextlib
import stat
import time
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.write_meta import check_boot_id
from pagequeue.system.file_lock import FileLock, wrong_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.system.directory import Directory

RETRY_SECONDS = 0.01


@contextlib.contextmanager
def ensure_no_writer(folder: Directory, prefix: str, timeout: float) -> Iterator[None]:
    """Make sure that nobody has the queue open who holds a lock file that was removed.

    The caller has `queue.lock` alone. Whoever writes has the write meta locked as well, and that is
    not a file that people remove. One who is killed right now can let go of it a moment later.

    Raises:
        LockReplaced: somebody has it open, for longer than `timeout` seconds.
    """
    name = fmt.write_meta_name(prefix)
    file = None
    if not _core.LOCK_NEEDS_FD:  # there its lock is the writers' own
        # Nobody can be inside without it, or with something else in its place.
        with contextlib.suppress(errors.QueueNotFound, errors.UnsafePath):
            file = folder.open(name, writable=False)
    if file is None:
        yield
        return
    lock = FileLock(file, folder.full(name))
    try:
        deadline = time.monotonic() + timeout
        while not lock.try_exclusive():
            if time.monotonic() < deadline:
                time.sleep(RETRY_SECONDS)
                continue
            raise errors.LockReplaced(
                "nobody has it locked, and yet another process has the queue open, so this "
                "file was replaced or removed: close the queue there, then open it again",
                path=folder.full(fmt.lock_name(prefix)),
            )
        yield
    finally:
        lock.close()


def remove_bad_lock_file(
    folder: Directory, prefix: str, timeout: float, did: Callable[[str], None]
) -> None:
    """Remove what stands in the lock file's place and keeps everybody out; never a directory.

    Nobody can lock it as it is. Whoever is inside, with the lock file that stood there before, has
    the write meta locked as well. Under that lock two repairs do not remove what the other one has
    just made.

    Raises:
        LockReplaced: somebody has the queue open.
    """
    name = fmt.lock_name(prefix)
    if wrong_lock(folder, name) is None or _core.LOCK_NEEDS_FD:
        return  # without the lock on the write meta nothing says whether somebody is inside
    with ensure_no_writer(folder, prefix, timeout):
        reason = wrong_lock(folder, name)
        status = folder.status(name)
        if reason is not None and status is not None and not stat.S_ISDIR(status.st_mode):
            folder.remove(name)
            did(f"removed {name}, which kept everybody out ({reason})")


@contextlib.contextmanager
def exclusive(folder: Directory, prefix: str, timeout: float) -> Iterator[None]:
    """Hold `queue.lock` alone, to mend the queue."""
    check_boot_id()
    name = fmt.lock_name(prefix)
    lock = FileLock(folder.open(name, writable=True, make=True), folder.full(name))
    try:
        with lock.exclusive(timeout, "repairing the queue, which no other process may have open"):
            folder.watch(name, lock.identity())
            folder.check()
            with ensure_no_writer(folder, prefix, timeout):
                yield
    finally:
        lock.close()
