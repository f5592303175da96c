"""What the methods of a `Queue` work on: its open store, and the handles that close with it.

Handles and iterators may refer to an `OpenQueue`; it refers to them weakly, and has no reference to
the `Queue`. So a queue whose last reference is dropped releases its files at once, without the
garbage collector.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from pagequeue import errors
from pagequeue.integrity.repair import RepairReport, repair_queue
from pagequeue.integrity.rewrite_unsynced import rewrite_undurable
from pagequeue.maintenance.compress import Compressor
from pagequeue.maintenance.retention import KEEP_ALL, Retention
from pagequeue.maintenance.trimmer import Trimmer
from pagequeue.maintenance.upkeep import Upkeep
from pagequeue.store.options import refuse_beside_ring
from pagequeue.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.maintenance.info import SealedPage
    from pagequeue.store.opening import Opening
    from pagequeue.util.closing import Closing

    Handle = TypeVar("Handle", bound=Closing)
    from pagequeue.util.literals import OnFull, Trusted
Found = TypeVar("Found")


@dataclass(frozen=True)
class OpenOptions:
    """How a queue is opened, and opened again after a repair; all options are checked.

    Attributes:
        open_directory: opens the directory.
        retaining: the retention, `on_full` and `full_timeout`, as they were given.
        compressing: `compress_after` and `compress_level`.
        seals: whether a failed sync seals the page; else it stops the queue.
        syncs: whether `sync` is not "none".
        sync_every: messages of a producer between two syncs; 0: it never syncs by their number.
        flush_seconds: the time between two flushes in the background; None: flush only on request.
        trust: accepted risks, as for `Queue`.
    """

    open_directory: Callable[..., Opening]
    retaining: tuple[Retention | None, OnFull | None, float | None]
    compressing: tuple[int | None, int]
    seals: bool
    syncs: bool
    sync_every: int
    flush_seconds: float | None
    trust: Trusted


class OpenQueue:
    """The open store of a queue, and the handles that close with it.

    Attributes:
        options: how it was opened.
        store: the open store; `repair` exchanges it.
        handles: everything that was made from the queue, by `id`, as long as it is referred to.
        upkeep: its policy; None: the queue was opened with `read_only=True`.
        sealed: what `info` found in sealed pages, by number.
        is_closed: whether no operation begins any more.
        flushes_on_close: whether closing flushes.
    """

    def __init__(self, options: OpenOptions, *, create: bool) -> None:
        self.options = options
        self.handles: WeakValueDictionary[int, Closing] = WeakValueDictionary()
        self.upkeep: Upkeep | None = None
        self.sealed: dict[int, SealedPage] = {}
        self.is_closed: bool = False
        self.store: Store = self._start(create=create)
        self.flushes_on_close: bool = options.syncs and not self.store.read_only

    def _start(self, *, create: bool) -> Store:
        options = self.options
        opening = options.open_directory(create=create)
        try:
            if not opening.read_only:
                self.upkeep = _upkeep(opening, options)
        except BaseException:
            opening.close()
            raise
        store = Store(opening, self.upkeep)
        self.sealed = {}
        if self.upkeep is not None:
            try:
                self.upkeep.begin(store)
                if options.flush_seconds is not None:
                    store.flusher.flush_every(options.flush_seconds)
            except BaseException:
                store.close()
                raise
        return store

    # --- for operations ---------------------------------------------------------------------------

    def usable(self) -> Store:
        """Return the store, for a handle whose first call looks where the path leads.

        Raises:
            ClosedError: the queue was closed.
            ForkedError: it belongs to the parent process.
        """
        if self.is_closed:
            raise self._closed_error(self.store)
        self.store.check_process("queue")
        return self.store

    def readable(self) -> Store:
        """Return the store, for what only reads.

        Raises:
            ClosedError, ForkedError: as for `usable`.
            QueueReplaced: its path leads elsewhere, which may be noticed half a second late.
            LockReplaced: it was opened with `read_only=True`, and its write meta was replaced.
        """
        store = self.usable()
        try:
            store.folder.check_soon()
        except errors.LockReplaced:
            if store.read_only:
                raise
            # Only writing stops: what was sent until then can be read.
        return store

    def writable(self, doing: str) -> Store:
        """Return the store, for what needs write permission.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`; the remedy names what the
                caller is `doing`.
            ClosedError, ForkedError: as for `readable`.
        """
        store = self.readable()
        if store.read_only:
            raise errors.ReadOnlyQueue(
                "opened with read_only=True",
                path=store.folder.path,
                remedy=f"open it for writing to {doing}",
            )
        return store

    def inspect(self, inspection: Callable[[Store], Found]) -> Found:
        """Return what an inspection of the store finds.

        Raises:
            ClosedError: the queue was closed meanwhile. An inspection continues after most errors,
                those of a closed file included, so what it found is incomplete.
        """
        store = self.readable()
        store.folder.check()  # some of what it finds goes by the path
        found = inspection(store)
        store.folder.descriptor.check()
        return found

    def keep(self, handle: Handle, store: Store) -> Handle:
        """Return a handle that is closed with the queue.

        Raises:
            ClosedError: the queue was closed while the handle was made, so that it is closed too.
        """
        self.handles[id(handle)] = handle
        # Registered before the check: closing has seen the handle, or the check sees the closing.
        if self.is_closed or store.is_closed:
            handle.close()
            raise self._closed_error(store)
        return handle

    @staticmethod
    def _closed_error(store: Store) -> errors.ClosedError:
        return errors.ClosedError(
            "this queue is closed", path=store.folder.path, remedy="open it again"
        )

    # --- the end ----------------------------------------------------------------------------------

    def repair(
        self, progress: Callable[[int, int], None] | None, *, times: bool = False
    ) -> RepairReport:
        """Close all handles and the store, repair the files, and open the store again."""
        store = self.writable("repair")
        store.folder.check()  # repair goes by the path
        try:
            self._close_handles()
            store.close()
            self._close_handles()  # those that other threads were making
            report = repair_queue(
                store.folder.path,
                prefix=store.prefix,
                trust=self.options.trust,
                lock_timeout=store.lock_timeout,
                progress=progress,
                dtype=store.schema.dtype,
                codec=store.schema.codec,
                times=times,
            )
            with contextlib.suppress(errors.DamageError):
                self.store = self._start(create=False)
        finally:
            if self.is_closed:  # by another thread, which closed the previous store
                self.store.close()
            if self.store.is_closed:
                self.is_closed = True
        return report

    def _close_handles(self) -> None:
        for known in self.handles.valuerefs():
            if (handle := known()) is not None:
                handle.close()

    def close(self) -> None:
        """Close all handles, flush if `sync` promises that, and close the store."""
        self.is_closed = True
        store = self.store
        if store.is_forked:
            return  # the parent's: its locks and threads are not ours to end
        try:
            self._close_handles()
            if self.flushes_on_close and not store.is_closed:
                with contextlib.suppress(errors.ClosedError):  # by another thread meanwhile
                    store.flusher.flush(None)
        finally:
            store.close()


def options_of_no_ring(
    retention: Retention | None,
    on_full: OnFull | None,
    syncs: bool,
    compress_after: int | None,
) -> dict[str, bool]:
    """Return the options that a ring excludes, and whether each is given so."""
    return {
        "retention": retention is not None
        and (retention.max_idle is None or retention != Retention(max_idle=retention.max_idle)),
        'on_full="drop_oldest"': on_full == "drop_oldest",
        "sync": syncs,
        "compress_after": compress_after is not None,
    }


def _upkeep(opening: Opening, options: OpenOptions) -> Upkeep:
    """Return the policy of a queue that is opened for writing."""
    trimmer = Trimmer(opening.meta, opening.folder.path, *_retaining(opening, options))
    compressor = Compressor(*options.compressing)
    return Upkeep(trimmer, compressor, rewrite_undurable if options.seals else None)


def _retaining(opening: Opening, options: OpenOptions) -> tuple[Retention, OnFull, float | None]:
    """Return the retention and what it does when it is reached.

    Raises:
        JournalOnly: a retention would remove a journal's entries; compaction removes them.
        InvalidOption: the queue is a ring, which has its own.
    """
    given, on_full, timeout = options.retaining
    policy, ring_bytes = given or KEEP_ALL, opening.meta.ring_bytes
    if ring_bytes is not None:
        refuse_beside_ring(
            opening.folder.path,
            options_of_no_ring(given, on_full, options.syncs, options.compressing[0]),
        )
        own = Retention(max_bytes=ring_bytes, max_idle=policy.max_idle)
        return own, on_full or "block", timeout
    if opening.schema.is_journal and policy != KEEP_ALL:
        raise errors.JournalOnly(
            "a journal has no retention: only compaction knows which entries a snapshot replaces",
            path=opening.folder.path,
            remedy="leave retention out, and call Journal.compact",
        )
    return policy, on_full or "raise", timeout
