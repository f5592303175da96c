"""Repair: mend what can be mended without losing a message, and say what was done.

It works alone with the queue. What it makes again is derived from what is still there and proves
itself: the frames' checksums contain their sequences. What would need guessing is left as it is,
and stays in the report; salvage copies out what is still good. Every step leaves a queue that is
no worse when it is cut short, and a repair that is repeated does nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.inspection import appended, survey
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.integrity.repair_page import PageRepair
from pagequeue.integrity.rewrite_unsynced import rewrite_undurable
from pagequeue.integrity.verify import verify
from pagequeue.meta.all_and_read_meta import ReadMeta, read_all_meta, write_all_meta
from pagequeue.meta.cursor import cursor_files
from pagequeue.meta.ledger import damaged
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.compressed_format import is_compressed
from pagequeue.page.compressed_page import map_page
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import scan_region, writable_index
from pagequeue.schema.schema import requested_schema
from pagequeue.store.exclusive import exclusive, remove_bad_lock_file
from pagequeue.store.options import check_options
from pagequeue.store.pending_commit import remove_again
from pagequeue.store.power_loss_recovery import Recovery, missing_before
from pagequeue.store.store import Store
from pagequeue.system.directory import Directory, read_all
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.trust import trusted
from pagequeue.util.text import counted, message_range
from pagequeue.util.timestamps import system_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import DTypeLike

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.schema.schema import Schema

log = logging.getLogger("pagequeue")
LOCK_TIMEOUT = 10.0


@dataclass
class RepairReport:
    """What was done and what is left.

    Attributes:
        actions: one sentence for each thing that was mended.
        remaining: what is still wrong, because mending it would lose or invent something.
    """

    actions: list[str] = field(default_factory=list)
    remaining: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more."""
        return not self.remaining

    def did(self, sentence: str) -> None:
        """Note one thing that was mended."""
        self.actions.append(sentence)


def repair_queue(
    directory: str | os.PathLike[str],
    *,
    prefix: str = "queue",
    trust: Collection[str] = (),
    lock_timeout: float = LOCK_TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
    dtype: DTypeLike | None = None,
    codec: str | None = None,
) -> RepairReport:
    """Mend a queue as far as that is possible without losing a message.

    Mended are: missing or damaged meta files and indexes, page headers and end marks that the
    frames prove, files that are too long, or too short behind their last frame, a page under
    another number, a torn tail, leftover temporary files, and a failed sync: what it put at risk is
    written again to new files.

    Args:
        directory: its path.
        prefix: of its file names.
        trust: as for `Queue`.
        lock_timeout: seconds to wait until no other process has the queue open.
        progress: called with pages done and pages in all, while the result is verified.
        dtype: of its records, should `allMeta` be lost: no page says it. Else it is not used.
        codec: the same, of its messages.

    Raises:
        QueueNotFound: nothing there looks like a queue.
        LockTimeout: another process has it open.
        UnsafePath, AccessDenied, NotADirectory: the directory cannot be used.
        DiskFull: there is no room for what must be made again; repair goes on when there is.
    """
    path = os.path.abspath(os.fsdecode(directory))
    lock_timeout = check_options(path, prefix, None, lock_timeout)[1]
    schema = requested_schema(dtype, codec, path).of_new_queue()
    folder = Directory(path, create=False, trust=trusted(trust, path))
    try:
        survey(folder, prefix)  # or there is nothing to repair
        report = RepairReport()
        remove_bad_lock_file(folder, prefix, lock_timeout, report.did)
        mending = _Repair(folder, prefix, schema, report, progress)
        with exclusive(folder, prefix, lock_timeout):
            meta, left = mending.run()
        found = mending.found
        if meta is not None and left is None and _is_latched(folder, prefix, meta):
            left = _clear_latch(folder, prefix, trusted(trust, path), lock_timeout, report)
            found = None
        report.remaining = verify(folder, prefix, progress).problems if found is None else found
        if left is not None and not report.remaining:
            report.remaining.append(left)
    finally:
        folder.close()
    if report.actions:
        log.warning("%s: repaired: %s", path, "; ".join(report.actions))
    return report


def _is_latched(folder: Directory, prefix: str, meta: AllMeta) -> bool:
    write = WriteMeta(folder, prefix, meta.queue_id, writable=False)
    try:
        return write.is_failed
    finally:
        write.close()


def _clear_latch(
    folder: Directory, prefix: str, trust: frozenset[str], timeout: float, report: RepairReport
) -> Problem | None:
    """Put what a failed sync left at risk on stable storage; return why that is not possible."""
    try:
        store = Store(
            folder.path, prefix, create=False, read_only=False, page_bytes=None,
            lock_timeout=timeout, clock=system_clock, trust=trust,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + timeout
            while True:
                with store.flusher.lock.attempt("repairing") as taken:
                    if taken:
                        saved = rewrite_undurable(store)
                        break
                if time.monotonic() > deadline:
                    raise errors.LockTimeout("another process is flushing", path=folder.path)
                time.sleep(0.001)
        finally:
            store.close()
    except errors.PageQueueError as error:
        return problem_of(error)
    if saved:
        what = f"wrote {message_range(saved.start, saved.stop)} again after a failed sync"
    else:
        what = "cleared the failure latch: no message was at risk"
    report.did(what)
    return None


class _Repair:
    """One repair; the caller has the queue alone.

    Attributes:
        found: what verify found at the end, None if it must look again: all messages are read for
            that, so it is not done twice where nothing was changed in between.
    """

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        schema: Schema,
        report: RepairReport,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.folder = folder
        self.schema = schema
        self.prefix = prefix
        self.report = report
        self.progress = progress
        self.found: list[Problem] | None = None
        self._seen: tuple[int, Inspection] | None = None

    def _look(self) -> Inspection:
        """Return what stands there; looked at again only where something was mended since.

        Raises:
            AccessDenied: a meta file may not be read. What it says is not known, and must not be
                replaced by what the pages say.
        """
        mended = len(self.report.actions)
        if self._seen is None or self._seen[0] != mended:
            self._seen = mended, survey(self.folder, self.prefix)
        found = self._seen[1]
        for name in (fmt.all_meta_name, fmt.write_meta_name, fmt.read_meta_name):
            denied = found.denied.get(self.folder.full(name(self.prefix)))
            if denied is not None:
                raise denied
        return found

    def run(self) -> tuple[AllMeta | None, Problem | None]:
        """Mend; return what the queue is, and what stopped it, if verify might not see that."""
        self._sweep()
        meta = self._all_meta()
        if meta is None:
            return None, None
        self._special_indexes()
        self._single_names(meta)
        self._cut_appended(meta)
        for name in damaged(self.folder, self.prefix):
            self.folder.remove(name)
            self.report.did(f"removed {name}: look for what its writer published last by hand")
        PageRepair(self.folder, self.prefix, meta, self.report.did, self._look).run()
        self._read_meta(meta)
        self._write_meta(meta)
        self._sync_names(meta)
        try:
            self._renew(meta)
            recovered = Recovery(self.folder, self.prefix, meta, system_clock).run()
        except (errors.DamageError, errors.UpgradeError, errors.UnsafePath) as error:
            return meta, problem_of(error)
        self.report.actions += recovered.actions
        self._indexes(meta)
        self._sync_names(meta)
        return meta, None

    def _sweep(self) -> None:
        pattern = fmt.temporary_pattern(self.prefix)
        for name in filter(pattern.fullmatch, self.folder.names()):
            if self._is_removable(name):
                self.folder.remove(name)
                self.report.did(f"removed {name}, which an interrupted maker had left")

    def _special_indexes(self) -> None:
        """Remove what stands in an index's place and is no file of ours: links, FIFOs, devices."""
        pattern = fmt.page_name_pattern(self.prefix)
        for name in self.folder.names():
            match = pattern.fullmatch(name)
            if match is None or match[2] != "idx" or not self._is_removable(name):
                continue
            status = self.folder.status(name)
            if status is not None and (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1):
                self.folder.remove(name)
                self.report.did(f"removed {name}, which was no file of this queue alone")

    def _is_removable(self, name: str) -> bool:
        """Whether a name can be given to another file: a directory stays."""
        status = self.folder.status(name)
        return status is None or not stat.S_ISDIR(status.st_mode)

    def _all_meta(self) -> AllMeta | None:
        name = fmt.all_meta_name(self.prefix)
        found = self._look()
        reasons = self._reasons(found, name)
        if found.meta is None or not self._is_removable(name):
            return None
        if reasons:
            sentence = f"made {name} again from the pages ({reasons[0]})"
            try:
                read_all_meta(self.folder, self.prefix)
            except errors.PageQueueError:  # no page says what its messages hold
                found.meta = replace(found.meta, options=self.schema.options(), schema=self.schema)
                if not self.schema.is_plain:
                    sentence += f", with {self.schema}, as it was told"
            write_all_meta(self.folder, self.prefix, found.meta)
            self.report.did(sentence)
        return found.meta

    def _reasons(self, found: Inspection, name: str) -> list[str]:
        """Return what is wrong with a meta file; it is left alone if a newer version wrote it."""
        path = self.folder.full(name)
        reasons = [problem.reason for problem in found.problems if problem.file == path]
        return [] if path in found.newer else reasons

    def _single_names(self, meta: AllMeta) -> None:
        """Give meta files that are written to a file that has no other name.

        After a failed sync each of them becomes a new file: the system can have dropped the name,
        or the content, of the one that is there.
        """
        trusted_words = self._has_trusted_words(meta)
        is_latched = False
        with contextlib.suppress(errors.PageQueueError):  # made again later
            is_latched = _is_latched(self.folder, self.prefix, meta)
        own = (fmt.write_meta_name(self.prefix), fmt.read_meta_name(self.prefix))
        names = self._small_files() if is_latched else []
        for name in dict.fromkeys((*own, *cursor_files(self.folder, self.prefix), *names)):
            status = self.folder.status(name)
            if status is None or not stat.S_ISREG(status.st_mode):
                continue
            is_single = status.st_nlink == 1
            if is_single and not is_latched:
                continue
            try:
                data = read_all(self.folder, name, status.st_size)
            except errors.AccessError:
                continue  # verify reports it
            self.folder.make(name, data, size_bytes=max(len(data), 1), synced=True)
            if not is_single:
                self.report.did(f"copied {name}, which has another name as well")
        if trusted_words and not self._has_trusted_words(meta):  # it is another file by now
            WriteMeta(self.folder, self.prefix, meta.queue_id, writable=True).settle()

    def _cut_appended(self, meta: AllMeta) -> None:
        """Cut off what was appended to small files: they have one size, and nobody reads on."""
        for name, used in appended(survey(self.folder, self.prefix), meta).items():
            with self.folder.opened(name, writable=True) as fd:
                try:
                    os.ftruncate(fd, used)
                except OSError as error:
                    raise_typed(error, self.folder.full(name), "cutting the file")
            self.report.did(f"cut off what was appended to {name}, behind its {used} bytes")

    def _small_files(self) -> list[str]:
        """Return the names of all files of the queue, pages, indexes and the lock left out."""
        ours, pages = fmt.file_pattern(self.prefix), fmt.page_name_pattern(self.prefix)
        names = self.folder.names()
        return [name for name in names if ours.fullmatch(name) and not pages.fullmatch(name)]

    def _has_trusted_words(self, meta: AllMeta) -> bool:
        """Whether the write meta was settled in this boot, in this very file."""
        try:
            return WriteMeta(self.folder, self.prefix, meta.queue_id, writable=False).is_settled
        except errors.PageQueueError:
            return False

    def _read_meta(self, meta: AllMeta) -> None:
        name = fmt.read_meta_name(self.prefix)
        found = self._look()
        reasons = self._reasons(found, name)
        if not reasons or found.head_sequence is None or not self._is_removable(name):
            return
        ReadMeta.make(
            self.folder, self.prefix, meta.queue_id,
            head_page=found.head_page, head_sequence=found.head_sequence,
        )  # fmt: skip
        missing = missing_before(found.head_page, found.head_sequence)
        self.report.did(f"made {name} again from the first page ({reasons[0]}){missing}")

    def _write_meta(self, meta: AllMeta) -> None:
        """Make the write meta anew if it cannot be right; recovery then finds the tail."""
        name = fmt.write_meta_name(self.prefix)
        found = self._look()
        reasons = self._reasons(found, name)
        if found.written is not None or not reasons or not self._is_removable(name):
            return
        mark = self._durable_mark(meta, found)
        WriteMeta.make(
            self.folder, self.prefix, meta.queue_id,
            durable_sequence=mark[0] if mark else found.head_sequence or 0,
            durable_page=mark[1] if mark else 0,
        )  # fmt: skip
        self.report.did(f"made {name} again; the frames say where the tail is ({reasons[0]})")

    def _durable_mark(self, meta: AllMeta, found: Inspection) -> tuple[int, int] | None:
        """Return sequence and page of the durable mark, if the write meta still says one."""
        try:
            write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=False)
        except errors.PageQueueError:
            return None
        sequence, number = write.durable_sequence, write.durable_page
        write.close()
        first = found.first_sequence(number) if number in found.numbers else None
        if first is None or not 0 <= sequence - first <= meta.index_capacity:
            return None
        return sequence, number

    def _sync_names(self, meta: AllMeta) -> None:
        """Put the names of all new files on stable storage.

        Raises:
            SyncFailed: trying it again could succeed and mean nothing, so the queue is latched and
                nothing counts as durable: the next repair writes all of it again.
        """
        try:
            self.folder.sync()
        except OSError as error:
            with contextlib.suppress(errors.PageQueueError):
                write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=True)
                found = survey(self.folder, self.prefix)
                write.set_durable(found.head_sequence or 0, found.head_page)
                write.latch(error.errno or errno.EIO, found.head_page)
            words = errors.describe(error)
            raise errors.SyncFailed(
                f"syncing the directory failed ({words}), so nothing counts as durable and nothing "
                "more is written: mend the disk, then repair again, which writes all of it anew",
                path=self.folder.path, position=0, reason=words,
                first_sequence=0, end_sequence=0,
            ) from error  # fmt: skip

    def _renew(self, meta: AllMeta) -> None:
        """Write again to new files what a sync that failed during recovery left at risk.

        Dies in between: some files are new, with the same bytes; the latch is still set.
        """
        write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=True)
        if write.is_settled or not write.is_failed_in_this_boot:
            return
        pages = page_numbers(self.prefix, self.folder.names())
        renewed = [number for number in pages if number >= write.durable_page]
        for number in renewed:
            name = fmt.page_name(self.prefix, number)
            data = read_all(self.folder, name, meta.page_bytes)
            size = len(data) if is_compressed(data) else meta.page_bytes
            self.folder.make(name, data, size_bytes=size, maker="again", synced=True)
            self.folder.remove(fmt.index_name(self.prefix, number))
        gone = range(pages[-1] + 1 if pages else fmt.FIRST_PAGE, write.failed_page + 1)
        remove_again(self.folder, self.prefix, meta.page_bytes, gone)
        self._sync_names(meta)
        write.unlatch()
        self.report.did(f"wrote {counted(len(renewed), 'page')} again after a failed sync")

    def _indexes(self, meta: AllMeta) -> None:
        """Rebuild every index that is missing or wrong; one that cannot be read may be right."""
        self.found = verify(self.folder, self.prefix, self.progress).problems
        damaged = (problem for problem in self.found if problem.kind == "damage")
        wrong = {os.path.basename(problem.file) for problem in damaged}
        found = survey(self.folder, self.prefix)
        for number in found.numbers:
            name = fmt.index_name(self.prefix, number)
            if name not in wrong or not self._is_removable(name):
                continue
            try:
                header = found.header(number)
                page_name = fmt.page_name(self.prefix, number)
                page = map_page(self.folder, page_name, meta)
            except errors.DamageError:
                continue
            if header.first_sequence is not None:
                self.folder.remove(name)
                index = writable_index(self.folder, self.prefix, meta, number)
                scan_region(page, index, header, header.first_sequence, None, use=_core.INDEX_WRITE)
                self.report.did(f"made {name} again from its page")
                self.found = None
