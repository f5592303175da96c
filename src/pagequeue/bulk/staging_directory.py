"""The directory of staged pages and rows: each writer's own part of it, and what dead writers left.

A writer locks a file beside its directory while it is in use; whoever finds that lock free removes
both.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.meta.ledger import STAGED
from pagequeue.system.directory import Directory
from pagequeue.system.file_lock import FileLock
from pagequeue.system.tree import remove_tree
from pagequeue.system.trust import NOTHING

if TYPE_CHECKING:
    from pagequeue.store.store import Store

PAGES: Final = "pages-"
"""Prefix of the names of directories with staged pages."""
ENDED: Final = "ended-"
"""Prefix of the names of directories whose rows are not needed any more; see spark/staging.py."""
LIVE: Final = ".lock"
"""Suffix of the name of such a directory's lock file."""


def staged_directory(
    path: str, prefix: str, trust: frozenset[str] = NOTHING, inside: str = ""
) -> str:
    """Return a queue's staging directory for rows and pages; create it if missing.

    Args:
        path: of the queue.
        prefix: of its file names.
        trust: as for `Queue`.
        inside: the name of a directory in it, which is created as well.

    Raises:
        UnsafePath: it is a link, or belongs to another user. QueueNotFound: the queue's own
            directory is missing, which only opening it makes.
    """
    with contextlib.ExitStack() as stack:
        queue = Directory(path, create=False, trust=trust)
        stack.callback(queue.close)
        queue.adopt(fmt.all_meta_name(prefix))
        folder = open_staged(queue, prefix)
        stack.callback(folder.close)
        if inside:
            _inside(folder, inside).close()
        return folder.path


def remove_abandoned(staged: Directory, own: str = "") -> None:
    """Remove the directories of staged pages whose writers died; what cannot be removed stays.

    Args:
        staged: the staging directory.
        own: the name of the caller's, which is in use.
    """
    found = [name for name in staged.names() if not own or not name.startswith(own)]
    for name in found:
        if name.startswith(ENDED):
            _drop(staged, name)
    # Of a writer that died before it made its directory, or after it removed it, the lock is left.
    for name in {name.removesuffix(LIVE) for name in found if name.startswith(PAGES)}:
        lock = _live_lock(staged, name)
        if lock is None:
            continue
        try:
            if lock.try_exclusive():
                _drop(staged, name)
        except errors.PageQueueError:
            continue
        finally:
            lock.close()


def _live_lock(staged: Directory, name: str) -> FileLock | None:
    """Return the lock file of a directory of staged pages; None: it cannot be opened."""
    try:
        return FileLock(
            staged.open(name + LIVE, writable=True, make=True), staged.full(name + LIVE)
        )
    except errors.PageQueueError:
        return None


def _drop(staged: Directory, name: str) -> None:
    """Remove a directory of staged pages, and then its lock file, whose lock the caller has."""
    with contextlib.suppress(OSError), staged.descriptor as fd:
        remove_tree(name, fd)
        os.unlink(name + LIVE, dir_fd=fd)


class StagingDirectory:
    """A new directory for staged pages, locked while it is in use: a context manager.

    Entering returns it, open; leaving removes it. What a writer that died leaves has no lock, and
    the next publisher removes it.

    Attributes:
        parent: the queue's staging directory, which it is in.
        name: in that.
    """

    def __init__(self, store: Store) -> None:
        self.parent: Directory = open_staged(store.folder, store.prefix)
        self._folder: Directory | None = None
        self._lock: FileLock | None = None
        self.name: str = ""

    def __enter__(self) -> Directory:
        try:
            while self._lock is None:
                self.name = PAGES + uuid.uuid4().hex
                name = self.name + LIVE
                lock = FileLock(
                    self.parent.open(name, writable=True, make=True), self.parent.full(name)
                )
                # Another process can have taken the file for a dead writer's before it was locked.
                if lock.try_exclusive() and self.parent.identity(name) == lock.identity():
                    self._lock = lock
                else:
                    lock.close()
            self._folder = _inside(self.parent, self.name)
        except BaseException:
            self._close()
            raise
        return self._folder

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()
        _drop(self.parent, self.name)
        if self._lock is not None:
            self._lock.close()
        self.parent.close()


def open_staged(queue: Directory, prefix: str) -> Directory:
    """Open a queue's staging directory; create it if missing."""
    return _inside(queue, prefix + STAGED)


def _inside(folder: Directory, name: str) -> Directory:
    """Open a directory of temporary files in another one; create it if missing."""
    # Not synced: a failed sync of the queue's directory would have to stop the whole queue, and a
    # power cut may take what was not committed.
    return Directory(
        folder.full(name),
        create=True,
        durable=False,
        file_mode=folder.file_mode,
        trust=folder.trust,
        within=folder,
    )
