"""Opens a queue directory: locks it, creates or recovers the queue, checks the result.

For writing, `queue.lock` is taken: exclusively by the first opener, which creates or recovers the
queue, and shared after that. A user can remove a lock file that seems stale, and then the next
opener would believe that it is alone: therefore the write meta is locked as well. For reading, no
lock is taken and no byte is written; a queue that a writer must recover is read as far as it is
valid.
"""

from __future__ import annotations

import logging
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.judge.diagnosis import diagnose
from pagequeue.judge.evidence import Evidence, promise_of
from pagequeue.judge.refusal import wrong_head
from pagequeue.meta.all_meta import AllMeta, queue_id_at, read_all_meta
from pagequeue.meta.manifest import manifest_name, read_manifest
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta, check_boot_id
from pagequeue.page.header import REMEDY, read_header
from pagequeue.page.listing import page_numbers
from pagequeue.schema.schema import ANY_SCHEMA, RequestedSchema
from pagequeue.store.creation import Creation, refuse_confusion
from pagequeue.store.exclusive import ensure_no_writer
from pagequeue.store.options import page_bytes_of, ring_page_bytes
from pagequeue.store.power_loss_recovery import Recovery, RecoveryReport
from pagequeue.system.directory import FILE_MODE, Directory
from pagequeue.system.file_lock import FileLock
from pagequeue.system.namespaces import clock_offsets
from pagequeue.system.trust import NOTHING
from pagequeue.util.green import look_at_threads
from pagequeue.util.weakly import weakly

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.judge.diagnosis import Diagnosis
    from pagequeue.meta.write_meta import Tail
    from pagequeue.page.header import PageHeader
    from pagequeue.schema.schema import Schema

log: logging.Logger = logging.getLogger("pagequeue")
RETRY_SECONDS = 0.01
PREFIXES_SHOWN = 5
DYING_SECONDS = 1.0
"""How long at most the kernel takes to release all locks of a killed process."""
MADE: Final = (fmt.all_meta_name, fmt.write_meta_name, fmt.read_meta_name)
"""The files that a queue must have to be opened, in the order in which they are tested."""


class Opening:
    """One opening of a queue directory; it owns what it opened.

    Args:
        path: of the directory.
        prefix: of all file names.
        create: make the queue if it is missing.
        read_only: write no byte; lock only the pages that are read, shared.
        page_bytes: of a new queue; an existing one must have the same; None accepts any.
        lock_timeout: seconds to wait for any lock before a typed error.
        clock: ns since 1970, UTC.
        file_mode: permission bits of new files, whatever the umask.
        trust: names of accepted circumstances; see `trust.py`.
        schema: of a new queue; an existing one must agree with it.
        ring_bytes: a new queue is a ring of this size; an existing one must have the same; None
            accepts any, and a queue that is no ring.
        within: as for `Directory`.

    Attributes:
        folder: the directory.
        meta: the allMeta.
        schema: of the messages, for this opener.
        write_meta: the shared state of writers, mapped.
        read_meta: the head, mapped.
        report: what recovery did.
        prefix_tail: where the valid prefix ends, if a writer must recover the queue first.
        is_clock_known: whether the clock of leases is the host's.
        prefix, read_only, lock_timeout, clock: as they were given.
        proved_headers: of pages in it that have lost theirs, which their frames or the page before
            prove.
    """

    def __init__(
        self,
        path: str,
        prefix: str,
        *,
        create: bool,
        read_only: bool,
        page_bytes: int | None,
        lock_timeout: float,
        clock: Callable[[], int],
        file_mode: int = FILE_MODE,
        trust: frozenset[str] = NOTHING,
        schema: RequestedSchema = ANY_SCHEMA,
        ring_bytes: int | None = None,
        within: Directory | None = None,
    ) -> None:
        look_at_threads()
        # Leases go by the host's clock; it is set here, because a fork can change the namespace.
        offsets = clock_offsets()
        self.is_clock_known: bool = offsets is not None
        _core.set_clock_offsets(*(offsets or (0, 0)))
        self.prefix = prefix
        self.read_only = read_only
        self.clock = clock
        self.lock_timeout = lock_timeout
        self._page_bytes = page_bytes
        self._requested_schema = schema
        self._ring_bytes = ring_bytes
        self._locks: list[FileLock] = []
        self.report: RecoveryReport = RecoveryReport()
        self.folder: Directory = Directory(
            path,
            create=create and not read_only,
            read_only=read_only,
            file_mode=file_mode,
            trust=trust,
            within=within,
            failed=weakly(self, Opening._latch),
        )
        try:
            self.meta: AllMeta = (
                self._open_to_read() if read_only else self._open_to_write(create=create)
            )
            self._name_queue(self.meta)
            self.schema: Schema = self._check_asked(self.meta)
            queue_id, writable = self.meta.queue_id, not read_only
            if not read_only:
                self._share_write_meta_lock()
            self.write_meta: WriteMeta = WriteMeta(self.folder, prefix, queue_id, writable=writable)
            self.read_meta: ReadMeta = ReadMeta(self.folder, prefix, queue_id, writable=writable)
            self._check_made()
            self._check_head()
            self.proved_headers: dict[int, PageHeader] = {}
            self.prefix_tail: Tail | None = self._unrecovered_tail() if read_only else None
            if read_only:
                self._watch_to_read()
            self.folder.check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all that was opened, when the operations in progress have ended."""
        self.folder.descriptor.close(self.release)

    def release(self) -> None:
        """Release locks and maps; no operation is in progress. May be called again."""
        for lock in reversed(self._locks):  # `queue.lock` last: it marks the queue as open
            lock.close()
        for meta in ("write_meta", "read_meta"):
            self.__dict__.pop(meta, None)

    def _latch(self, number: int) -> None:
        """Latch the open queue, because a sync of its directory failed."""
        meta: WriteMeta | None = None if self.read_only else self.__dict__.get("write_meta")
        if meta is not None:
            meta.latch(number, meta.durable_page)

    def lock_on(
        self, name: str, *, make: bool = False, progress: Callable[[], object] | None = None
    ) -> FileLock:
        """Return a lock on a file, with its own descriptor; it is closed with this."""
        file = self.folder.open(name, writable=make, make=make)
        lock = FileLock(file, self.folder.full(name), self.folder.descriptor, progress)
        self._locks.append(lock)
        return lock

    # --- to read ----------------------------------------------------------------------------------

    def _open_to_read(self) -> AllMeta:
        names = [name_of(self.prefix) for name_of in MADE]
        for name in names:
            if not self.folder.exists(name):
                if self.folder.exists(manifest_name(self.prefix)):
                    raise self._no_queue()  # the first export of a replica is in progress
                if name == names[0] or not Creation(self.folder, self.prefix).is_empty():
                    self._refuse_pages_without(name)
                raise self._no_queue()
        return read_all_meta(self.folder, self.prefix)

    def _watch_to_read(self) -> None:
        """Notice when the tail is not that of the write meta any more.

        On overlayfs the file of a lower layer stays mapped when a writer opens it, which copies it.
        A reader of a replica keeps what it has; the next ship replaces the file.
        """
        if self.folder.exists(manifest_name(self.prefix)):
            return
        name, meta, folder = fmt.write_meta_name(self.prefix), self.write_meta, self.folder
        folder.watch(name, meta.identity)
        if folder.is_overlay:
            folder.watch_bytes(lambda: name if meta.is_behind(folder, name) else None)

    def _unrecovered_tail(self) -> Tail | None:
        """Return where the valid prefix ends, if a writer must recover the queue first."""
        shipped = read_manifest(self.folder, self.prefix)
        if shipped is not None and shipped.pages:
            shipped.check(self.meta, self.read_meta.head, self.folder.path)
            return shipped.tail
        while True:
            if self.write_meta.is_recovered:
                return None
            before, head_page = self.write_meta.tail.sequence, self.read_meta.head_page
            try:
                diagnosis = self._diagnosis()
                tail = diagnosis.readable()
                break
            except (errors.DamageError, errors.QueueNotFound):
                # A writer can have recovered it meanwhile, and retention removed what was read.
                if self.read_meta.head_page == head_page and not self.write_meta.is_recovered:
                    raise
        if self.write_meta.is_this_boot and (
            before <= tail.sequence <= self.write_meta.tail.sequence
        ):
            # Another mount, a container's perhaps: the tail is exactly that of the pages. After a
            # power cut and a mount in the same boot it would be older, or newer.
            return None
        log.warning(
            "%s: read up to message %d; what follows awaits recovery by a writer",
            self.folder.path,
            tail.sequence,
        )
        self.proved_headers = diagnosis.proved_headers()
        return tail

    def _diagnosis(self) -> Diagnosis:
        promise = promise_of(self.folder, self.prefix, self.read_meta, self.write_meta)
        numbers = page_numbers(self.prefix, self.folder.names())
        return diagnose(Evidence(self.folder, self.prefix, self.meta, promise, numbers))

    # --- to write ---------------------------------------------------------------------------------

    def _open_to_write(self, *, create: bool) -> AllMeta:
        """Take `queue.lock`; the first opener, exclusively, creates or recovers the queue."""
        self._check_before(create=create)
        self.folder.adopt(fmt.all_meta_name(self.prefix))
        name = fmt.lock_name(self.prefix)
        lock = self.lock_on(name, make=True)
        deadline = time.monotonic() + self.lock_timeout
        while True:
            alone = lock.try_exclusive()
            if not alone:
                lock.share(self.lock_timeout)
            if self.folder.identity(name) != lock.identity():
                # It was removed or replaced before it was locked, so the lock is worthless.
                lock.close()
                self._locks.remove(lock)
                lock = self.lock_on(name, make=True)
            else:
                self.folder.watch(name, lock.identity())
                if alone:
                    with ensure_no_writer(self.folder, self.prefix, DYING_SECONDS):
                        meta = self._create_or_recover()
                    # Another opener can lock and recover again here: no frame has been written
                    # yet, so that has no effect.
                    lock.share(self.lock_timeout)
                    return meta
                if self._is_recovered():
                    return read_all_meta(self.folder, self.prefix)
                # The process that was creating or recovering it died: a waiting one does it.
                lock.release()
            if time.monotonic() > deadline:
                raise errors.LockTimeout(
                    "it must be recovered, and other processes keep it open",
                    path=self.folder.path,
                    remedy="close it there, then open it again",
                )
            time.sleep(random.uniform(0, RETRY_SECONDS))  # noqa: S311 - only not in step

    def _check_before(self, *, create: bool) -> None:
        """Raise for problems that are visible without a lock, before a lock file is made."""
        check_boot_id()
        if self.folder.exists(name := manifest_name(self.prefix)):
            raise errors.ReadOnlyQueue(
                "this directory is a read-only copy made by ship",
                path=self.folder.full(name),
                remedy="open it with read_only=True, or delete this manifest to turn the copy into "
                "an independent queue",
            )
        if create and not self._has_meta():
            refuse_confusion(self.folder, self.prefix)
        if not create and not self._has_meta():
            self._refuse_pages_without(fmt.all_meta_name(self.prefix))
            raise self._no_queue()
        if self._has_meta():
            try:
                self._check_asked(read_all_meta(self.folder, self.prefix))
            except errors.InvalidOption:
                if not Creation(self.folder, self.prefix).is_unfinished():
                    raise
            except errors.QueueNotFound:
                if not create:
                    raise
                # Another process failed to create it, for lack of space, and removed it again.

    def _share_write_meta_lock(self) -> None:
        """Share the lock on the write meta, as all writers do, before it is mapped; watch it."""
        name = fmt.write_meta_name(self.prefix)
        if _core.LOCK_NEEDS_FD:  # there its lock is the writers' own
            self.folder.watch(name, self.folder.identity(name))
            return
        lock = self.lock_on(name)
        lock.share(self.lock_timeout)
        self.folder.watch(name, lock.identity())

    def _is_recovered(self) -> bool:
        """Whether a process finished creating or recovering the queue, in this boot."""
        if not all(self.folder.exists(name_of(self.prefix)) for name_of in MADE):
            return False
        meta = read_all_meta(self.folder, self.prefix)
        write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=False)
        return write.is_this_boot and write.tail.page_number > 0

    def _create_or_recover(self) -> AllMeta:
        creation = Creation(self.folder, self.prefix)
        unfinished = creation.is_unfinished()
        meta = read_all_meta(self.folder, self.prefix) if self._has_meta() else None
        if meta is not None and unfinished and not self._is_asked(meta):
            creation.abandon()
            meta = None
        if meta is None:
            unfinished = True
            self._refuse_pages_without(fmt.all_meta_name(self.prefix))
            page_bytes = self._page_bytes or page_bytes_of(self._ring_bytes)
            schema = self._schema_of_new_queue(page_bytes)
            ring = self._ring_bytes and ring_page_bytes(self._ring_bytes, page_bytes)
            meta = creation.begin(self.clock(), page_bytes, schema, ring)
        self._name_queue(meta)
        try:
            self.report = Recovery(self.folder, self.prefix, meta, self.clock).run()
        except errors.RetryError:
            if unfinished:  # no room, mostly: no message was ever sent, so all is removed
                creation.abandon()
            raise
        return meta

    def _name_queue(self, meta: AllMeta) -> None:
        self.folder.name_queue(meta.queue_id, partial(queue_id_at, prefix=self.prefix))

    # --- checks -----------------------------------------------------------------------------------

    def _has_meta(self) -> bool:
        return self.folder.exists(fmt.all_meta_name(self.prefix))

    def _no_queue(self) -> errors.QueueNotFound:
        prefixes = [name for name in fmt.queues_in(self.folder.names()) if name != self.prefix]
        others = ", ".join(map(repr, prefixes[:PREFIXES_SHOWN]))
        told = f" (there is one with {others})" if others else ""
        return errors.QueueNotFound(
            f"no queue with prefix {self.prefix!r} here{told}",
            path=self.folder.path,
            prefix=self.prefix,
            remedy="check directory and prefix, or create the queue by opening it for writing with "
            "create=True",
        )

    def _check_made(self) -> None:
        head = self.read_meta.head  # before the tail, which only grows
        tail = self.write_meta.tail
        if tail.page_number == 0:
            if not self.write_meta.is_recovered:
                if page_numbers(self.prefix, self.folder.names()):
                    return  # recreated by a repair that found damage: the valid prefix is there
                raise self._no_queue()  # it is being made right now
            tail = self.write_meta.tail  # it was being made; or zeros overwrote the fields
        if not self.write_meta.is_recovered:
            # A reader before the recovery: after a power cut the tail can be older than the head,
            # which trimming put on stable storage. The scan from the head on finds the tail.
            return
        if not tail.can_be(head, self.meta.page_bytes):
            raise errors.CorruptMeta(
                f"invalid tail {tail}",
                path=self.write_meta.path,
                position=0,
                reason="tail",
                remedy="repair the queue, which recreates this file from the pages",
            )

    def _check_head(self) -> None:
        """Raise if the head page does not begin with the head sequence."""
        number, sequence = self.read_meta.head
        try:
            header = read_header(self.folder, self.prefix, self.meta.queue_id, number)
        except errors.PageQueueError:
            return  # reading the page raises it
        if header.first_sequence not in {None, sequence}:
            raise wrong_head(self.read_meta.path, (number, sequence), header.first_sequence or 0)

    def _refuse_pages_without(self, name: str) -> None:
        """Raise if there are pages and not this meta file, which is made before any page.

        They are a user's data: a new queue never overwrites them, and the error is not
        `QueueNotFound`.
        """
        pattern = fmt.page_name_pattern(self.prefix)
        pages = any(pattern.fullmatch(other) for other in self.folder.names())
        if pages and not self.folder.exists(name):  # else the queue is being made right now
            raise errors.CorruptMeta(
                "missing, though there are pages with this prefix",
                path=self.folder.full(name),
                position=0,
                reason="missing",
                remedy=REMEDY,
            )

    def _is_asked(self, meta: AllMeta) -> bool:
        """Whether a queue is what was asked for, if anything was."""
        return (
            self._page_bytes in {None, meta.page_bytes}
            and self._is_ring_asked(meta)
            and self._requested_schema.agrees(meta.schema)
        )

    def _is_ring_asked(self, meta: AllMeta) -> bool:
        asked = self._ring_bytes
        return asked is None or meta.ring_bytes == ring_page_bytes(asked, meta.page_bytes)

    def _schema_of_new_queue(self, page_bytes: int) -> Schema:
        schema, limit = self._requested_schema.of_new_queue(), fmt.payload_bytes_max(page_bytes)
        if schema.record_bytes > limit:
            raise errors.InvalidOption(
                f"dtype: a record of {schema.record_bytes} bytes does not fit into a page, which "
                f"holds {limit}",
                path=self.folder.path,
                remedy="choose larger pages",
            )
        return schema

    def _check_asked(self, meta: AllMeta) -> Schema:
        """Return what the messages hold; raise if something else was asked for."""
        if self._page_bytes is not None and self._page_bytes != meta.page_bytes:
            raise errors.PageSizeMismatch(
                f"the queue has pages of {meta.page_bytes} bytes, not {self._page_bytes}",
                path=self.folder.path,
                page_bytes=meta.page_bytes,
                remedy="leave page_bytes out, or choose another directory or prefix",
            )
        if not self._is_ring_asked(meta):
            found = "no ring"
            if meta.ring_bytes is not None:
                count = meta.ring_bytes // meta.page_bytes
                found = f"a ring of {count * fmt.files_bytes(meta.page_bytes)} bytes"
            raise errors.InvalidOption(
                f"the queue is {found}, and ring is {self._ring_bytes}",
                path=self.folder.path,
                remedy="leave ring out, or choose another directory or prefix",
            )
        return self._requested_schema.opened(meta.schema, self.folder.path)
