"""Exclusive access to a queue, even if its lock file was deleted or replaced."""

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
    """Ensure that no process has the queue open through a lock file that was removed.

    The caller has `queue.lock` exclusively. Every writer has the write meta locked as well, which
    people do not remove. The kernel may release a killed writer's lock slightly later.

    Raises:
        LockReplaced: a process has it open, for longer than `timeout` seconds.
    """
    name = fmt.write_meta_name(prefix)
    file = None
    if not _core.LOCK_NEEDS_FD:  # there its lock is the writers' own
        # No process can have the queue open without a regular write meta.
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
                "the lock file was deleted or replaced while another process has the queue open",
                path=folder.full(fmt.lock_name(prefix)),
                remedy="close the queue in that process, then open it again",
            )
        yield
    finally:
        lock.close()


def remove_bad_lock_file(
    folder: Directory, prefix: str, timeout: float, did: Callable[[str], None]
) -> None:
    """Remove a lock file that no process can lock; never a directory.

    A process that has the queue open, through the earlier lock file, has the write meta locked as
    well. Under that lock, two repairs do not remove the file that the other one has just made.

    Raises:
        LockReplaced: a process has the queue open.
    """
    name = fmt.lock_name(prefix)
    if wrong_lock(folder, name) is None or _core.LOCK_NEEDS_FD:
        return  # without the lock on the write meta, open queues are not detected
    with ensure_no_writer(folder, prefix, timeout):
        reason = wrong_lock(folder, name)
        status = folder.status(name)
        if reason is not None and status is not None and not stat.S_ISDIR(status.st_mode):
            folder.remove(name)
            did(f"removed {name}, which no process could lock ({reason})")


@contextlib.contextmanager
def exclusive(folder: Directory, prefix: str, timeout: float) -> Iterator[None]:
    """Hold `queue.lock` exclusively, to repair the queue."""
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
