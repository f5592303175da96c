"""Flushing: what is published is put on stable storage, data before mark.

Whoever waits here while another one syncs finds its own messages covered by that, in any process
(group commit). A sync that fails is never tried again: the system may have dropped what it could
not write and say nothing the next time. The queue is latched instead, for everybody.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.files import Folder
    from pagequeue.locks import FileLock
    from pagequeue.meta import ReadMeta, WriteMeta
    from pagequeue.page import Page


class Flusher:
    """Raises the durable mark of one open queue."""

    def __init__(
        self,
        folder: Folder,
        write_meta: WriteMeta,
        read_meta: ReadMeta,
        lock: FileLock,
        page: Callable[[int], Page],
    ) -> None:
        self._folder = folder
        self._write_meta = write_meta
        self._read_meta = read_meta
        self._lock = lock
        self._page = page

    def flush(self, timeout: float | None) -> int:
        """Put all that is published on stable storage; return the durable sequence.

        Args:
            timeout: seconds to wait for another flusher; None waits for ever.

        Raises:
            SyncFailed: a sync failed, now or before. FlushTimeout: another one took too long.
        """
        if timeout is not None and not timeout >= 0:
            raise errors.InvalidOption(
                f"timeout is {timeout}: give seconds, 0 or more, or None for ever",
                path=self._folder.path,
            )
        target = self._write_meta.tail.sequence
        wait = threading.TIMEOUT_MAX if timeout is None else timeout
        if self._durable(target):
            return self._write_meta.durable_sequence
        try:
            with self._lock.exclusive(wait, "flushing"):
                if not self._durable(target):
                    self._sync_to_tail()
        except errors.LockTimeout as error:
            raise errors.FlushTimeout(
                f"not on stable storage within {timeout} s: call again", path=self._folder.path
            ) from error
        return self._write_meta.durable_sequence

    def _durable(self, target: int) -> bool:
        failed = self._write_meta.failed_errno
        if failed:
            raise self.failed(failed)
        return self._write_meta.durable_sequence >= target

    def _sync_to_tail(self) -> None:
        """Data before mark, from the queue's durable mark on, whoever wrote it (I5)."""
        meta = self._write_meta
        tail = meta.tail
        known = meta.durable_page
        first = max(known, self._read_meta.head_page)
        number = first
        try:
            # 1. The pages. Cut here: the mark still says less than is there.
            for number in range(first, tail.page_number + 1):
                page = self._page(number)
                last = number == tail.page_number
                page.region.sync(0, tail.position if last else len(page.region))
            # 2. Their names.
            if known < tail.page_number:
                self._folder.sync()
            # 3. The mark. Cut before it is on disk: recovery checks more than it must.
            meta.set_durable(tail.sequence, tail.page_number)
            meta.sync()
        except OSError as error:
            if isinstance(error, errors.PageQueueError):
                raise
            number_of_error = error.errno or errno.EIO
            meta.latch(number_of_error, number)
            raise self.failed(number_of_error) from error

    def failed(self, number: int) -> errors.SyncFailed:
        """Return the error for a queue whose failure latch is set."""
        error = errors.SyncFailed(
            f"a sync failed ({os.strerror(number)}), so messages from "
            f"{self._write_meta.durable_sequence} on may never reach the disk and nothing more is "
            "written: mend the disk, then copy what can be read into a new queue",
            path=self._folder.path, position=0, reason=os.strerror(number),
        )  # fmt: skip
        error.errno = number
        return error
