"""The replica that pages are shipped to: a directory of copies, locked by one shipper at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.all_meta import write_all_meta
from pagequeue.meta.manifest import (
    REMEDY,
    Manifest,
    lock_name,
    manifest_name,
    read_manifest,
    write_manifest,
)
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.listing import page_numbers
from pagequeue.store.creation import refuse_confusion
from pagequeue.system.directory import Directory
from pagequeue.system.file_lock import FileLock
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.store.store import Store

TEMPORARY: Final = ".tmp-ship"


class Target(Closing):
    """The directory that pages are shipped to, with its manifest.

    Args:
        path: of the directory; created if missing.
        store: of the queue whose pages these are.
        file_mode: permission bits of created files.

    Attributes:
        folder: the directory.
        manifest: the pages that readers see.
        meta: of the queue.
        prefix: of all file names.

    Raises:
        InvalidOption: another queue is there. LockTimeout: another shipper holds its lock.
        CorruptMeta, CorruptPage: files shipped earlier are damaged.
    """

    def __init__(self, path: str, store: Store, file_mode: int) -> None:
        prefix = store.prefix
        self.prefix: str = prefix
        self.meta: AllMeta = store.meta
        self.folder: Directory = Directory(
            path, create=True, file_mode=file_mode, trust=store.folder.trust
        )
        self._lock: FileLock | None = None
        try:
            manifest = read_manifest(self.folder, prefix)
            if manifest is None and not self._is_empty():
                # Another shipper can have begun since: its manifest comes before its files.
                manifest = read_manifest(self.folder, prefix)
                if manifest is None:
                    self._check_empty()
            if manifest is None:
                refuse_confusion(self.folder, prefix)
            self.folder.adopt(fmt.all_meta_name(prefix))
            name = lock_name(prefix)
            file = self.folder.open(name, writable=True, make=True)
            self._lock = FileLock(file, self.folder.full(name))
            self._held = contextlib.ExitStack()
            self._held.enter_context(self._lock.exclusive(store.lock_timeout, "shipping"))
            # The shipper before may have died between the manifest's name and its sync.
            self.folder.sync_entries()
            self.manifest: Manifest = read_manifest(self.folder, prefix) or self._begin(store)
            self._check_same(store)
            self._sweep()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock, so that others can ship to it."""
        if self._lock is not None:
            with contextlib.suppress(errors.PageQueueError):  # closing unlocks as well
                self._held.close()
            self._lock.close()
        self.folder.close()

    def _is_empty(self) -> bool:
        """Whether the directory has no file of a queue with this prefix."""
        begun = manifest_name(self.prefix) + ".tmp-"  # of a shipper that died
        pattern = fmt.file_pattern(self.prefix)
        return not any(
            pattern.fullmatch(name) and not name.startswith(begun) for name in self.folder.names()
        )

    def _check_empty(self) -> None:
        if not self._is_empty():
            raise errors.InvalidOption(
                f"it contains a queue with prefix {self.prefix!r}, or a part of one, that is not a "
                "replica made by ship()",
                path=self.folder.path,
                remedy="choose another directory",
            )

    def _begin(self, store: Store) -> Manifest:
        """Write the first manifest, which marks the directory as a replica."""
        self._check_empty()
        self.folder.sync_name()
        manifest = Manifest(
            store.meta.queue_id.hex(),
            socket.gethostname(),
            store.folder.path,
            self.prefix,
            store.meta.page_bytes,
        )
        write_manifest(self.folder, self.prefix, manifest)
        return manifest

    def _check_same(self, store: Store) -> None:
        """Raise if the shipped pages are another queue's, or are missing."""
        known = self.manifest
        if known.queue_id != store.meta.queue_id.hex() or known.page_bytes != store.meta.page_bytes:
            raise errors.InvalidOption(
                f"a replica of another queue, {known.directory} on {known.host}",
                path=self.folder.path,
                remedy="choose another directory",
            )
        for page in known.pages:
            status = self.folder.status(page.file)
            if status is None or status.st_size != page.size_bytes:
                size = "missing" if status is None else f"{status.st_size} bytes"
                raise errors.CorruptPage(
                    f"{size}, but {page.size_bytes} bytes in the manifest",
                    remedy=f"{REMEDY}, or restore the file",
                    path=self.folder.full(page.file),
                    position=0,
                    reason="not as shipped",
                )

    def _sweep(self) -> None:
        """Remove the files of a dead shipper.

        It can have replaced the write meta, whose mark must not be ahead of the pages that remain.
        """
        names = self.folder.names()
        temporary = fmt.temporary_pattern(self.prefix)
        known = {page.number for page in self.manifest.pages}
        left = [name for name in names if temporary.fullmatch(name)]
        copied = set(page_numbers(self.prefix, names)) - known
        if copied and self.manifest.pages:
            self._make_write_meta(self.manifest)
        for number in copied:
            left += [fmt.page_name(self.prefix, number), fmt.index_name(self.prefix, number)]
        for name in left:
            self.folder.remove(name)

    @property
    def is_complete(self) -> bool:
        """Whether the last file that makes it a readable queue exists."""
        return self.folder.exists(fmt.all_meta_name(self.prefix))

    def put(self, name: str, pieces: Callable[[int], bytes], size_bytes: int) -> tuple[int, int]:
        """Write a file, synced, under its temporary name; return its bytes and their checksum.

        Args:
            name: of the file.
            pieces: returns the bytes at a position, empty at the end.
            size_bytes: extended to this size with a hole.
        """
        checksum = at = 0
        temporary = name + TEMPORARY
        self.folder.remove(temporary)
        with self.folder.opened(temporary, writable=True, make=True) as fd:
            try:
                while piece := pieces(at):
                    checksum = _core.crc32c(piece, checksum)
                    rest = memoryview(piece)
                    while rest:
                        written = os.pwrite(fd, rest, at)
                        rest, at = rest[written:], at + written
                if size_bytes > at:
                    os.ftruncate(fd, size_bytes)
                os.fsync(fd)
                with contextlib.suppress(OSError):  # so that it is read back from the disk
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise_typed(error, self.folder.full(name), "copying the page")
        return at, checksum

    def note(self, manifest: Manifest) -> None:
        """Make all pages of a manifest visible, on stable storage (H4)."""
        folder, prefix, queue_id = self.folder, self.prefix, self.meta.queue_id
        folder.sync_entries()
        first = manifest.pages[0]
        if not self.is_complete:  # also if a power cut kept the manifest, and not the other files
            ReadMeta.make(
                folder,
                prefix,
                queue_id,
                head_page=first.number,
                head_sequence=first.first_sequence,
            )
        self._make_write_meta(manifest)
        write_manifest(folder, prefix, manifest)
        if not self.is_complete:
            write_all_meta(folder, prefix, self.meta)
            write_manifest(folder, prefix, manifest)  # whose sync makes the rename before durable
        self.manifest = manifest

    def _make_write_meta(self, manifest: Manifest) -> None:
        last = manifest.pages[-1]
        WriteMeta.make(
            self.folder,
            self.prefix,
            self.meta.queue_id,
            durable_sequence=last.end_sequence,
            durable_page=last.number,
        )
