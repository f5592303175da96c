"""Flushing: published messages are put on stable storage, data before mark.

A thread that waits here while another one syncs, in any process, can find its own messages covered
by that sync (group commit). A failed sync is never retried: the kernel may have dropped the data
that it could not write, and report success the next time. The queue is latched instead, in all
processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue.format import FIRST_PAGE, SEQUENCE_MAX
from pagequeue.system.descriptors import used
from pagequeue.util.arguments import seconds, type_error, value_error, whole
from pagequeue.util.daemon_thread import daemon_thread, start
from pagequeue.util.literals import SyncName
from pagequeue.util.text import message_range
from pagequeue.util.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue._core import Descriptor
    from pagequeue.meta.read_meta import ReadMeta
    from pagequeue.meta.write_meta import Tail, WriteMeta
    from pagequeue.system.directory import Directory
    from pagequeue.system.file_lock import FileLock


Sync = SyncName | int | timedelta
"""How durable messages are across a power cut."""
GATHER_SHARE = 2
"""A sync waits for the senders that shared the last one: at most that sync's time over this."""
WAIT_NS = 10_000_000
"""A flusher can die without waking the waiters: then the next one tries the lock after this."""


def sync_policy(sync: Sync) -> tuple[int, float | None]:
    """Return after how many messages, and after how many seconds, a sync is due.

    Raises:
        InvalidOption, InvalidType: `sync` is not "none", "always", an int of 1 or more or a
            positive timedelta.
    """
    remedy = 'give "none", "always", an int of 1 or more, or a timedelta above 0'
    every, span = 0, None
    if isinstance(sync, str):
        if sync not in {"none", "always"}:
            raise value_error("sync", sync, remedy)
        every = 1 if sync == "always" else 0
    elif isinstance(sync, timedelta):
        span = sync.total_seconds()
        if not 0 < span <= threading.TIMEOUT_MAX:  # longer than a thread can wait
            raise value_error("sync", sync, f"{remedy}, of 200 years at most")
    elif isinstance(sync, bool) or not hasattr(sync, "__index__"):
        raise type_error("sync", sync, '"none", "always", an int or a timedelta')
    else:
        every = whole("sync", sync, 1, SEQUENCE_MAX, remedy=remedy)
    return every, span


class Flusher:
    """Raises the durable mark of one open queue."""

    def __init__(
        self,
        folder: Directory,
        write_meta: WriteMeta,
        read_meta: ReadMeta,
        lock: FileLock,
        page_name: Callable[[int], str],
        index_name: Callable[[int], str],
        clock: Callable[[], int],
        rewrite: Callable[[], object] | None,
    ) -> None:
        self._folder = folder
        self._page_name = page_name
        self._index_name = index_name
        self._synced: tuple[int, Descriptor | None] = (0, None)  # the page that was synced last
        self._write_meta = write_meta
        self._read_meta = read_meta
        self._clock = clock
        self.lock = lock
        self._timer: threading.Thread | None = None
        self._ended = Wakeup()
        self._woken_count = 0  # by the end of this process's last turn
        self._covered = (0, 0)  # messages that the last sync made durable, and ns that it took
        # Puts all that is published on stable storage in another way; None: stop instead.
        self._resume_by = rewrite

    def flush(self, timeout: float | None, end_sequence: int | None = None) -> int:
        """Put all that is published on stable storage; return the durable sequence.

        Args:
            timeout: seconds to wait for another flusher; None waits for ever.
            end_sequence: only what is before it need be durable; None: all up to the tail.

        Raises:
            SyncFailed: a sync failed, now or before. FlushTimeout: another one took too long.
        """
        if timeout is not None:
            timeout = seconds("timeout", timeout, path=self._folder.path)
        target = self._write_meta.tail.sequence if end_sequence is None else end_sequence
        self._alone(self._sync_to_tail, lambda: self._durable(target), target, timeout)
        return self._write_meta.durable_sequence

    def flush_pages(self, before: int) -> None:
        """Put all pages below this one on stable storage, the marks at their ends too.

        Raises:
            SyncFailed: a sync failed, now or before.
        """
        meta = self._write_meta
        self._alone(
            self._sync_to_tail,
            lambda: not self._is_failed() and meta.durable_page >= before,
            SEQUENCE_MAX,
            None,
        )

    @property
    def can_resume(self) -> bool:
        """Whether the opener chose to continue after a failed sync: see `resume`."""
        return self._resume_by is not None

    def resume(self) -> None:
        """Continue after a failed sync, if the opener chose that and it is possible.

        Raises:
            SyncFailed: it is not; the queue stays latched.
        """
        self._alone(self._rewrite, lambda: not self._is_failed(), SEQUENCE_MAX, None)

    def _alone(
        self,
        act: Callable[[], None],
        is_done: Callable[[], bool],
        target: int,
        timeout: float | None,
    ) -> None:
        """Act under the flush lock, unless another thread did meanwhile.

        A thread that does not get the turn sleeps until the turn is over. It does not wait for the
        lock, which its holder would mostly take again before the others are awake. The turn only
        decides who should try; its owner can die, so it delays the others by WAIT_NS at most.
        """
        with self._folder.descriptor:
            self._take_turns(act, is_done, target, timeout)

    def _take_turns(
        self,
        act: Callable[[], None],
        is_done: Callable[[], bool],
        target: int,
        timeout: float | None,
    ) -> None:
        meta = self._write_meta
        deadline = None if timeout is None else time.monotonic() + timeout
        mine, wait_ns = False, WAIT_NS
        try:
            while not is_done():
                self._folder.descriptor.check()  # ends the wait when the queue was closed
                if deadline is not None:
                    left = deadline - time.monotonic()
                    wait_ns = int(max(0.0, min(left * 1e9, WAIT_NS)))
                if not meta.await_turn(target, wait_ns):
                    continue
                mine = True
                with self.lock.attempt("flushing") as taken:
                    if taken and not is_done():
                        act()
                if taken:
                    self._end_turn()
                    mine = False
                elif wait_ns == 0:
                    raise errors.FlushTimeout(
                        f"not on stable storage within {timeout} s",
                        path=self._folder.path,
                        remedy="call again",
                    )
        finally:
            if mine:
                meta.end_turn()

    def _end_turn(self) -> None:
        """Wake the threads whose messages the sync covered; the next one waits for their sends."""
        (count, ns), self._covered = self._covered, (0, 0)
        if not self._woken_count:
            ns = 0
        self._woken_count = self._write_meta.end_turn(count, ns // GATHER_SHARE)

    def flush_every(self, seconds: float) -> None:
        """Flush in the background, so that no message stays unflushed for longer than this.

        Raises:
            SystemLimit: the thread cannot be started.
        """
        self._timer = daemon_thread(partial(self._keep_flushing, seconds / 2), "pagequeue-sync")
        start(self._timer, path=self._folder.path)

    def _keep_flushing(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            try:
                self.flush(None)
            except errors.SyncFailed:
                if self._resume_by is None:
                    return  # the queue is latched: senders get the error
            except errors.RetryError:
                continue  # the next turn is the next attempt
            except errors.PageQueueError:
                return  # closed, damage, or a replaced lock file: senders get the error

    def end(self) -> None:
        """End flushing in the background; return at once."""
        self._ended.set()

    def await_end(self, seconds: float) -> None:
        """Wait until that has ended, but no longer than this."""
        if self._timer is not None and self._timer is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # it never started
                self._timer.join(seconds)

    def _is_failed(self) -> bool:
        """Whether the failure latch is set; raises if this queue cannot resume after it."""
        meta = self._write_meta
        if not meta.is_failed:
            return False
        if self._resume_by is None:
            raise self.failed(meta.failed_errno)
        return True

    def _durable(self, target: int) -> bool:
        return not self._is_failed() and self._write_meta.durable_sequence >= target

    def _sync_to_tail(self) -> None:
        """Sync data, then mark, from the queue's durable mark on, for all processes (I5)."""
        meta = self._write_meta
        if meta.is_failed:
            self._rewrite()
            return
        tail = meta.tail
        begun = meta.durable_sequence
        known = meta.durable_page
        if known < tail.page_number or self._folder.is_replaced:
            self._folder.check()
        first = self._first(known)
        started_ns = time.monotonic_ns()
        number = first
        try:
            # 1. The pages. Cut here: the mark is still lower than what is on disk.
            for number in range(first, tail.page_number + 1):
                self._sync_page(number)
                if number < tail.page_number:
                    self._sync_index(number)
            # 2. Their names.
            if known < tail.page_number:
                self._folder.sync()
            # A sync of another process can have failed meanwhile, so that these left out what it
            # dropped, and succeeded.
            if self._is_failed():
                self._rewrite()
                return
            self._raise_mark(tail, is_synced=known < tail.page_number)
        except OSError as error:
            if isinstance(error, errors.PageQueueError):
                raise
            meta.latch(error.errno or errno.EIO, number)
            if self._resume_by is None:
                raise self.failed(meta.failed_errno) from error
            self._rewrite()
            return
        self._covered = (tail.sequence - begun, time.monotonic_ns() - started_ns)
        meta.wake()  # consumers that take only what is durable

    def _raise_mark(self, tail: Tail, *, is_synced: bool) -> None:
        # 3. The mark. Cut before it is on disk: recovery checks more than it must. That is why it
        #    is only synced with a new page; the kernel writes it back within seconds.
        meta = self._write_meta
        meta.set_durable(tail.sequence, tail.page_number)
        meta.flushed_at = self._clock()
        if is_synced:
            meta.sync()

    def _first(self, known: int) -> int:
        """Return the page to begin with: that of the mark, or the first readable one.

        Pages below the head count as long as their files are there: until retention has synced the
        new head, the one on the disk is an older one, and reading begins there after a power cut.
        """
        first = max(known, self._read_meta.head_page)
        least = max(known, FIRST_PAGE)
        while first > least and self._folder.exists(self._page_name(first - 1)):
            first -= 1
        return first

    def _rewrite(self) -> None:
        """Write the data at risk to new files; the latch stays set until that is done."""
        assert self._resume_by is not None
        self.forget_page()
        try:
            self._resume_by()
        except (errors.PageQueueError, OSError) as error:
            raise self.failed(self._write_meta.failed_errno or errno.EIO) from error

    def _sync_page(self, number: int) -> None:
        """Sync a page by a descriptor: msync through a reader's map has no effect."""
        synced, page = self._synced
        if synced != number or page is None:
            self.forget_page()
            name = self._page_name(number)
            try:
                page = self._folder.open(name, writable=False)
            except errors.QueueNotFound as error:
                if number < self._read_meta.head_page:
                    return  # retention removed it meanwhile: its messages are not guaranteed
                raise errors.MissingPage(
                    f"page {number} is not there, so flushing it failed",
                    path=error.path,
                    position=0,
                    reason="missing page",
                    remedy="salvage the queue",
                ) from error
            self._synced = (number, page)
        with page as fd:
            os.fdatasync(fd)

    def _sync_index(self, number: int) -> None:
        """Sync the index of a sealed page, so that a power cut does not require its rebuild."""
        try:
            index = self._folder.open(self._index_name(number), writable=False)
        except errors.QueueNotFound:
            return  # it is only a hint (I6)
        with used(index) as fd:
            os.fdatasync(fd)

    def forget_page(self) -> None:
        """Close the page that was synced last."""
        page, self._synced = self._synced[1], (0, None)
        if page is not None:
            page.close()

    def sync_names(self) -> None:
        """Put the directory's entries on stable storage.

        Raises:
            SyncFailed: that failed, and the queue is latched: the next sync could report success.
        """
        try:
            self._folder.sync()
        except OSError as error:
            raise self.latched(error) from error

    def sync_removals(self) -> None:
        """Put on stable storage that names were removed, before they are used again.

        Raises:
            SyncFailed: that failed, or the sync of another process did meanwhile: it can have
                dropped the removal, and then this one left that out.
        """
        self.sync_names()
        meta = self._write_meta
        if meta.is_failed and not meta.is_renewing:
            raise self.failed(meta.failed_errno)

    def latched(self, error: OSError) -> errors.PageQueueError:
        """Return the error for a sync that failed; it latches the queue, as everywhere."""
        if isinstance(error, errors.PageQueueError):
            return error
        meta = self._write_meta
        meta.latch(error.errno or errno.EIO, meta.durable_page)
        return self.failed(meta.failed_errno)

    def failed(self, number: int) -> errors.SyncFailed:
        """Return the error for a queue whose failure latch is set."""
        first, end = self._write_meta.durable_sequence, self._write_meta.tail.sequence
        risk = f"a power cut may take {message_range(first, end)}"
        error = errors.SyncFailed(
            f"a sync failed ({os.strerror(number)}), so {risk} and writing is refused",
            path=self._folder.path,
            position=0,
            reason=os.strerror(number),
            first_sequence=first,
            end_sequence=end,
            remedy="repair the disk, close the queue everywhere and repair it, before the machine "
            "is restarted",
        )
        error.errno = number
        return error
