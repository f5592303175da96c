"""Repair a queue without losing a message, and report each action.

Repair has the queue exclusively. Everything it recreates is derived from data that proves itself:
the frames' checksums contain their sequences. Damage whose repair would need guessing remains, and
is reported; salvage copies the intact messages out. A repair that is interrupted at any step leaves
the queue no worse, and repeating a finished repair changes no file.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.correct_times import correct_times, refuse_others
from pagequeue.integrity.inspection import appended, inspect, names_of_queue
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.integrity.repair_page import PageRepair
from pagequeue.integrity.rewrite_unsynced import rewrite_undurable
from pagequeue.integrity.verify import verify
from pagequeue.meta.all_meta import read_all_meta, write_all_meta
from pagequeue.meta.cursor import cursor_files
from pagequeue.meta.ledger import damaged
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.compressed_format import is_compressed
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import read_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import index_to_rebuild, scan_region
from pagequeue.schema.schema import requested_schema
from pagequeue.store.exclusive import exclusive, remove_bad_lock_file
from pagequeue.store.opening import Opening
from pagequeue.store.options import check_options
from pagequeue.store.pending_commit import remove_again
from pagequeue.store.power_loss_recovery import Recovery, missing_before
from pagequeue.store.store import Store
from pagequeue.system.directory import Directory, read_all
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.trust import trusted
from pagequeue.util.arguments import absolute_path
from pagequeue.util.text import counted, message_range
from pagequeue.util.timestamps import system_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.schema.schema import Schema
    from pagequeue.util.literals import CodecName, Trusted

log: logging.Logger = logging.getLogger("pagequeue")
LOCK_TIMEOUT = 10.0


@dataclass
class RepairReport:
    """The result of a repair.

    Attributes:
        actions: one sentence for each repaired problem.
        remaining: problems whose repair would lose or invent messages.

    Example:
        >>> report = repair_queue("events")
        >>> report.ok, report.actions
        (True, ['wrote queue-0000000001.idx again from its page'])
    """

    actions: list[str] = field(default_factory=list)
    remaining: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no problem remains.

        Example:
            >>> repair_queue("events").ok
            True
        """
        return not self.remaining

    def did(self, sentence: str) -> None:
        """Add an action.

        Args:
            sentence: what was done.

        Example:
            >>> report = repair_queue("events")
            >>> report.did("asked the operator")
            >>> report.actions[-1]
            'asked the operator'
        """
        self.actions.append(sentence)


def repair_queue(
    directory: str | os.PathLike[str],
    *,
    prefix: str = "queue",
    trust: Trusted = (),
    lock_timeout: float = LOCK_TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
    dtype: DTypeLike | None = None,
    codec: CodecName | None = None,
    times: bool = False,
) -> RepairReport:
    """Repair a queue as far as possible without losing a message.

    Repaired are: missing or damaged meta files and indexes, page headers and end-of-page markers
    that the frames prove, files that are too long, or too short after their last frame, a page
    under another number, a torn tail, leftover temporary files, and a failed sync: the messages at
    risk are written again to new files.

    Args:
        directory: its path.
        prefix: of its file names.
        trust: as for `Queue`.
        lock_timeout: seconds to wait until no other process has the queue open.
        progress: called with pages done and pages in all, while the result is verified.
        dtype: of its records, used only if `allMeta` is lost: pages do not contain it.
        codec: of its messages, likewise.
        times: also set the times of messages that lie ahead of the system's clock to now: it was
            wrong when they were sent. The clock must be right.

    Returns:
        The actions taken and the problems that remain.

    Raises:
        QueueNotFound: no queue with this prefix is in the directory.
        LockTimeout: another process has it open.
        UnsafePath, AccessDenied, NotADirectory: the directory is unusable.
        DiskFull: the disk has too little space for the files to recreate; free some, call again.
        UsageError: with `times`: it is a journal, or a copy that `ship` made.

    Example:
        >>> repair_queue("events").actions
        ['wrote queue-0000000001.idx again from its page']
    """
    path = absolute_path("directory", directory)
    lock_timeout = check_options(path, prefix, None, lock_timeout)[1]
    requested = requested_schema(dtype, codec, path)
    folder = Directory(path, create=False, trust=trusted(trust, path))
    try:
        names_of_queue(folder, prefix)  # raises QueueNotFound
        with contextlib.suppress(errors.UnsafePath):  # it is no file, and is made again
            folder.adopt(fmt.all_meta_name(prefix))
        is_journal = folder.exists(fmt.journal_name(prefix))
        if times:
            refuse_others(folder, prefix, is_journal=is_journal)
        schema = replace(requested, is_journal=is_journal).of_new_queue()
        report = RepairReport()
        remove_bad_lock_file(folder, prefix, lock_timeout, report.did)
        repair = _Repair(folder, prefix, schema, report, progress)
        with exclusive(folder, prefix, lock_timeout):
            meta, failure = repair.run()
            if times and meta is not None and failure is None:
                failure = _correct_times(folder, prefix, meta, report)
        found = repair.found
        if meta is not None and failure is None:
            opened = partial(_opened, path, prefix, trusted(trust, path), lock_timeout)
            if _is_latched(folder, prefix, meta):
                failure = _clear_latch(opened, lock_timeout, report)
                found = None
            elif repair.lost_flag:
                failure = _flush(opened, lock_timeout, report)
        report.remaining = verify(folder, prefix, progress).problems if found is None else found
        if failure is not None and not report.remaining:
            report.remaining.append(failure)
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


def _correct_times(
    folder: Directory, prefix: str, meta: AllMeta, report: RepairReport
) -> Problem | None:
    try:
        correct_times(folder, prefix, meta, system_clock(), report.did)
    except (errors.DamageError, errors.UpgradeError) as error:
        return problem_of(error)
    return None


def _opened(path: str, prefix: str, trust: frozenset[str], timeout: float) -> Store:
    return Store(
        Opening(
            path,
            prefix,
            create=False,
            read_only=False,
            page_bytes=None,
            lock_timeout=timeout,
            clock=system_clock,
            trust=trust,
        )
    )


def _flush(opened: Callable[[], Store], timeout: float, report: RepairReport) -> Problem | None:
    """Put all messages on stable storage; return why not."""
    try:
        with contextlib.closing(opened()) as store:
            store.flusher.flush(timeout)
    except errors.PageQueueError as error:
        return problem_of(error)
    report.did("flushed all messages")
    return None


def _clear_latch(
    opened: Callable[[], Store], timeout: float, report: RepairReport
) -> Problem | None:
    """Put the messages that a failed sync left at risk on stable storage; return why not."""
    try:
        with contextlib.closing(opened()) as store:
            deadline = time.monotonic() + timeout
            while True:
                with store.flusher.lock.attempt("repairing") as taken:
                    if taken:
                        saved = rewrite_undurable(store)
                        break
                if time.monotonic() > deadline:
                    raise errors.LockTimeout(
                        "another process is flushing",
                        path=store.folder.path,
                        remedy="call again later",
                    )
                time.sleep(0.001)
    except errors.PageQueueError as error:
        return problem_of(error)
    if saved:
        what = f"wrote {message_range(saved.start, saved.stop)} again after a failed sync"
    else:
        what = "cleared the failure latch: no message was at risk"
    report.did(what)
    return None


class _Repair:
    """One repair; the caller has the queue exclusively.

    Attributes:
        found: the problems that verify found last; None if files changed since. Verifying reads all
            messages, so it runs a second time only then.
        lost_flag: as of `PageRepair`.
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
        self.lost_flag = False
        self._seen: tuple[int, Inspection] | None = None
        self._same = 0

    def _did_inside(self, sentence: str) -> None:
        """Add an action inside of a page, after which an inspection would find the same."""
        self.report.did(sentence)
        self._same += 1

    def _inspect(self) -> Inspection:
        """Return an inspection that is newer than the last action that matters to it.

        Raises:
            AccessDenied: a meta file may not be read. Its contents are unknown, and must not be
                replaced by what is derived from the pages.
        """
        actions = len(self.report.actions) - self._same
        if self._seen is None or self._seen[0] != actions:
            self._seen = actions, inspect(self.folder, self.prefix)
        found = self._seen[1]
        for name in (fmt.all_meta_name, fmt.write_meta_name, fmt.read_meta_name):
            denied = found.denied.get(self.folder.full(name(self.prefix)))
            if denied is not None:
                raise denied
        return found

    def run(self) -> tuple[AllMeta | None, Problem | None]:
        """Repair; return the queue's meta, and what stopped it, in case verify misses that."""
        self._sweep()
        meta = self._all_meta()
        if meta is None:
            return None, None
        self._special_indexes()
        self._single_names(meta)
        self._cut_appended(meta)
        for name in damaged(self.folder, self.prefix, meta.queue_id):
            self.folder.remove(name)
            self.report.did(f"removed {name}: find out by hand what its writer published last")
        pages = PageRepair(
            self.folder, self.prefix, meta, self.report.did, self._did_inside, self._inspect
        )
        pages.run()
        self.lost_flag = pages.lost_flag
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
                self.report.did(f"removed {name}, left by an interrupted process")

    def _special_indexes(self) -> None:
        """Remove links, FIFOs and devices that have the name of an index."""
        pattern = fmt.page_name_pattern(self.prefix)
        for name in self.folder.names():
            match = pattern.fullmatch(name)
            if match is None or match[2] != "idx" or not self._is_removable(name):
                continue
            status = self.folder.status(name)
            if status is not None and (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1):
                self.folder.remove(name)
                self.report.did(f"removed {name}, which was not a regular file with one name")

    def _is_removable(self, name: str) -> bool:
        """Whether another file can replace a name: directories are kept."""
        status = self.folder.status(name)
        return status is None or not stat.S_ISDIR(status.st_mode)

    def _all_meta(self) -> AllMeta | None:
        name = fmt.all_meta_name(self.prefix)
        found = self._inspect()
        reasons = self._reasons(found, name)
        if found.meta is None or not self._is_removable(name):
            return None
        if reasons:
            sentence = f"made {name} again from the pages ({reasons[0]})"
            try:
                read_all_meta(self.folder, self.prefix)
            except errors.PageQueueError:  # the pages do not contain the schema
                found.meta = replace(found.meta, options=self.schema.options(), schema=self.schema)
                if not self.schema.is_plain:
                    sentence += f", with {self.schema}, as requested"
            write_all_meta(self.folder, self.prefix, found.meta)
            self.report.did(sentence)
        return found.meta

    def _reasons(self, found: Inspection, name: str) -> list[str]:
        """Return the problems of a meta file; none for a file that a newer version wrote."""
        path = self.folder.full(name)
        reasons = [problem.reason for problem in found.problems if problem.file == path]
        return [] if path in found.newer else reasons

    def _single_names(self, meta: AllMeta) -> None:
        """Replace meta files that have a second name with copies.

        After a failed sync each small file is replaced: the system can have dropped the name, or
        the contents, of the old one.
        """
        was_recovered = self._is_recovered(meta)
        is_latched = False
        with contextlib.suppress(errors.PageQueueError):  # recreated later
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
        if was_recovered and not self._is_recovered(meta):  # it is another file now
            WriteMeta(self.folder, self.prefix, meta.queue_id, writable=True).mark_recovered()

    def _cut_appended(self, meta: AllMeta) -> None:
        """Cut off what was appended to small files: they have one size."""
        for name, used in appended(self._inspect(), meta).items():
            with self.folder.opened(name, writable=True) as fd:
                try:
                    os.ftruncate(fd, used)
                except OSError as error:
                    raise_typed(error, self.folder.full(name), "cutting the file")
            self.report.did(f"cut off what was appended to {name}, after its {used} bytes")

    def _small_files(self) -> list[str]:
        """Return the names of all files of the queue except pages, indexes and the lock."""
        ours, pages = fmt.file_pattern(self.prefix), fmt.page_name_pattern(self.prefix)
        names = self.folder.names()
        return [name for name in names if ours.fullmatch(name) and not pages.fullmatch(name)]

    def _is_recovered(self, meta: AllMeta) -> bool:
        """Whether the write meta is valid in this boot, as this file."""
        try:
            return WriteMeta(self.folder, self.prefix, meta.queue_id, writable=False).is_recovered
        except errors.PageQueueError:
            return False

    def _read_meta(self, meta: AllMeta) -> None:
        name = fmt.read_meta_name(self.prefix)
        found = self._inspect()
        reasons = self._reasons(found, name)
        if not reasons or found.head_sequence is None or not self._is_removable(name):
            return
        ReadMeta.make(
            self.folder,
            self.prefix,
            meta.queue_id,
            head_page=found.head_page,
            head_sequence=found.head_sequence,
        )
        missing = missing_before(found.head_page, found.head_sequence)
        self.report.did(f"made {name} again from the first page ({reasons[0]}){missing}")

    def _write_meta(self, meta: AllMeta) -> None:
        """Recreate an invalid write meta; recovery then finds the tail."""
        name = fmt.write_meta_name(self.prefix)
        found = self._inspect()
        reasons = self._reasons(found, name)
        if found.written is not None or not reasons or not self._is_removable(name):
            return
        mark = self._durable_mark(meta, found)
        WriteMeta.make(
            self.folder,
            self.prefix,
            meta.queue_id,
            durable_sequence=mark[0] if mark else found.head_sequence or 0,
            durable_page=mark[1] if mark else 0,
        )
        self.report.did(f"made {name} again; the frames determine the tail ({reasons[0]})")

    def _durable_mark(self, meta: AllMeta, found: Inspection) -> tuple[int, int] | None:
        """Return sequence and page of the durable mark, if the write meta's is plausible."""
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
            SyncFailed: a second try could report success for dropped data, so the queue is latched
                and no message counts as durable: the next repair writes all of them again.
        """
        try:
            self.folder.sync()
        except OSError as error:
            with contextlib.suppress(errors.PageQueueError):
                write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=True)
                found = inspect(self.folder, self.prefix)
                write.set_durable(found.head_sequence or 0, found.head_page)
                write.latch(error.errno or errno.EIO, found.head_page)
            words = errors.describe(error)
            raise errors.SyncFailed(
                f"syncing the directory failed ({words}), so no message counts as durable and "
                "writing has stopped",
                remedy="fix the disk, then repair again, which writes all messages to new files",
                path=self.folder.path,
                position=0,
                reason=words,
                first_sequence=0,
                end_sequence=0,
            ) from error

    def _renew(self, meta: AllMeta) -> None:
        """Write the pages that a failed sync during recovery left at risk again, to new files.

        Dies in between: some files are new, with the same bytes; the latch is still set.
        """
        write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=True)
        if write.is_recovered or not write.is_failed_in_this_boot:
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
        """Rebuild every index that is missing or wrong; an unreadable one may be right."""
        self.found = verify(self.folder, self.prefix, self.progress).problems
        damaged = (problem for problem in self.found if problem.kind == "damage")
        wrong = {os.path.basename(problem.file) for problem in damaged}
        for number in page_numbers(self.prefix, self.folder.names()) if wrong else []:
            name = fmt.index_name(self.prefix, number)
            if name not in wrong or not self._is_removable(name):
                continue
            try:
                header = read_header(self.folder, self.prefix, meta.queue_id, number)
                page_name = fmt.page_name(self.prefix, number)
                page = map_page(self.folder, page_name, meta)
            except errors.DamageError:
                continue
            if header.first_sequence is not None:
                self.folder.remove(name)
                index = index_to_rebuild(self.folder, self.prefix, meta, number)
                scan_region(page, index, header, header.first_sequence, None, use=_core.INDEX_WRITE)
                self.report.did(f"made {name} again from its page")
                self.found = None
