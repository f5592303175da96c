"""What `Queue` offers for looking after a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pagequeue import errors
from pagequeue.integrity.salvage import SalvageReport, salvage_queue
from pagequeue.integrity.verify import VerifyReport, verify
from pagequeue.maintenance.consumers import ConsumerInfo, consumers, remove_consumer
from pagequeue.maintenance.info import Info, info
from pagequeue.maintenance.ship import ShipReport, ship
from pagequeue.maintenance.stats import Stats, stats
from pagequeue.send.producer import Producer
from pagequeue.store.options import check_file_mode
from pagequeue.system.directory import FILE_MODE
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection
    from weakref import WeakValueDictionary

    import numpy as np

    from pagequeue.maintenance.compress import Compressor, CompressReport
    from pagequeue.maintenance.retention import Retainer, TrimReport
    from pagequeue.store.store import Store


Handle = TypeVar("Handle", bound=Closing)
Found = TypeVar("Found")


class QueueMaintenance(Closing):
    """The part of `Queue` that looks after what stands there."""

    _trust: Collection[str]
    _retainer: Retainer | None = None
    _compressor: Compressor | None = None

    _store: Store
    _closed: bool
    _handles: WeakValueDictionary[int, Closing]

    def _open(self) -> Store:
        """Return the open store."""
        raise NotImplementedError

    def _keep(self, handle: Handle, store: Store) -> Handle:
        """Return a handle that is closed with the queue.

        Raises:
            ClosedError: the queue was closed while the handle was made; it is closed as well.
        """
        self._handles[id(handle)] = handle
        if self._closed or store.is_closed:  # after it is known: closing has seen it, or we do
            handle.close()
            raise errors.ClosedError("this queue is closed: open it again", path=store.folder.path)
        return handle

    # --- what was fixed at creation ---------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The absolute path of the directory."""
        return self._store.folder.path

    @property
    def prefix(self) -> str:
        """The prefix of all file names."""
        return self._store.prefix

    @property
    def page_bytes(self) -> int:
        """The size of each page file."""
        return self._store.meta.page_bytes

    @property
    def dtype(self) -> np.dtype[np.void] | None:
        """The dtype of the records; None: messages are of any size."""
        return self._store.schema.dtype

    @property
    def codec(self) -> str:
        """The name of the codec; "bytes": what is sent are payloads."""
        return self._store.schema.codec

    # --- looking after it -------------------------------------------------------------------------

    def _check_writable(self, doing: str) -> None:
        store = self._open()
        if store.read_only:
            raise errors.ReadOnlyQueue(
                f"opened with read_only=True: open it for writing to {doing}",
                path=store.folder.path,
            )

    def info(self) -> Info:
        """Return sizes, times and sequences, as of now."""
        store = self._open()
        return _if_open(store, info(store))

    def stats(self) -> Stats:
        """Return how full the queue is and how far its consumers are, cheaply; see `rates`."""
        store = self._open()
        return _if_open(store, stats(store))

    def consumers(self) -> list[ConsumerInfo]:
        """Return all named consumers and groups, in order of their names; a damaged one says so."""
        store = self._open()
        return _if_open(store, consumers(store))

    def remove_consumer(self, name: str) -> None:
        """Remove a named consumer or a group, for good: no page is kept for it any more.

        Raises:
            ConsumerNotFound: there is none of this name.
            ConsumerInUse: a thread or process has it open.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
        """
        store = self._open()
        self._check_writable("remove a consumer")
        remove_consumer(store, name)

    def trim(self) -> TrimReport:
        """Apply this queue's retention now: whole pages go, oldest first, never the active one.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            AccessDenied: this user may not remove the oldest page, another's in a directory that
                is sticky; it can be read still.
            LockTimeout: another process is making a page or trimming for too long.
            SyncFailed: a sync failed; the queue is latched.

        Source: FORMAT.md, "Retention"; keeps I12.
        """
        store = self._open()
        self._check_writable("trim")
        assert self._retainer is not None
        return self._retainer.trim(store)

    def compress(self, progress: Callable[[int, int], None] | None = None) -> CompressReport:
        """Compress all sealed pages, while others send and read.

        Each takes the place of its page by one rename; who reads in the old file goes on in it.

        Args:
            progress: called with pages done and pages in all.

        Raises:
            MissingExtra: the extra `zstd` is not installed.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            DiskFull: there is no room for a compressed page beside the page; it stays as it was.
            CorruptFrame: a page is damaged; it stays as it was.
            SyncFailed: the queue is latched.

        Source: FORMAT.md, "Compressing"; keeps I16.
        """
        store = self._open()
        self._check_writable("compress pages")
        assert self._compressor is not None
        return self._compressor.run(store, progress)

    def ship(
        self,
        to: str | os.PathLike[str],
        *,
        consumer: str | None = None,
        file_mode: int = FILE_MODE,
        progress: Callable[[int, int], None] | None = None,
    ) -> ShipReport:
        """Copy the sealed pages that are not there yet into another directory, while others send.

        What stands there then is a queue to read: for `Queue(..., read_only=True)`, the command and
        Spark, here or wherever the directory is seen or copied to. Its manifest names every page,
        with checksums and sequences; a page appears there whole, checked and on stable storage, or
        not at all, whoever dies meanwhile. Only pages that are on stable storage here are shipped:
        a queue that is open for writing is flushed before.

        Args:
            to: the directory, of this queue's pages alone; made if it is not there.
            consumer: name of a consumer that acknowledges what was shipped, so that retention
                waits for it; made at the head where there is none.
            file_mode: permission bits of the copies, as for `Queue`.
            progress: called with the pages done and the pages in all.

        Raises:
            Expired: retention took pages behind those that were shipped before; what could be
                shipped was.
            CorruptFrame, CorruptPage, MissingPage: a page here is damaged, so it and what follows
                are not shipped; or a file there is not as it was shipped.
            InvalidOption: there is something else, or the queue is an older copy of what was
                shipped.
            ReadOnlyQueue: a consumer was given, and the queue was opened with `read_only=True`.
            ConsumerInUse: somebody else has that consumer.
            LockTimeout: somebody else ships there for too long.
            DiskFull, SystemLimit, SyncFailed: as they say; pages that were noted stay.
            MissingExtra: a page is compressed, and the extra `zstd` is not installed.

        Source: FORMAT.md, "Shipping"; keeps I20.
        """
        store = self._open()
        if consumer is not None:
            self._check_writable("keep a named consumer's place")
        file_mode = check_file_mode(store.folder.path, file_mode)
        return ship(store, to, consumer=consumer, file_mode=file_mode, progress=progress)

    def rotate(self) -> None:
        """Seal the active page now and go on in a new one, while others write.

        An empty page stays as it is.

        Raises:
            DiskFull: there is no room for the next page; nothing changed.
            QueueFull: retention leaves no room for it; nothing changed.
        """
        store = self._open()
        self._check_writable("rotate")
        with Producer(store, store.clock) as producer:
            producer.rotate()

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check every page, frame and index; change nothing.

        Args:
            progress: called with the pages done and the pages in all.
        """
        store = self._open()
        return _if_open(store, verify(store.folder, store.prefix, progress))

    def salvage(
        self,
        target: str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
    ) -> SalvageReport:
        """Copy all messages that still validate into a new queue; see `salvage_queue`.

        Args:
            target: path of a directory where no queue of this prefix is.
            progress: called with page files done and page files in all.
        """
        store = self._open()
        return salvage_queue(
            store.folder.path, target, prefix=store.prefix, trust=self._trust, progress=progress
        )


def _if_open(store: Store, found: Found) -> Found:
    """Return what an inspection found, unless the queue was closed meanwhile.

    An inspection continues after most errors, and so after those of a closed handle.

    Raises:
        ClosedError: it was.
    """
    store.folder.descriptor.check()
    return found
