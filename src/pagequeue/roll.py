"""The next page, made ready ahead of need, and the writable maps of pages.

A page is made under the preparation lock by whichever process needs it first, off the writer's path
if there is time: blocks reserved, page faults taken a few MiB ahead of the tail. It stands under its
final name before any end-of-page mark leads to it (I10). Rolling itself is one call into the core,
under the writers' lock.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.page import PageHeader, decode_header, make_page, map_file, writable_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import _core
    from pagequeue.background import Background
    from pagequeue.files import Folder
    from pagequeue.locks import FileLock
    from pagequeue.meta import AllMeta, WriteMeta

log = logging.getLogger("pagequeue")


class WritablePage(NamedTuple):
    """A page and its index, mapped for writing."""

    number: int
    region: _core.Region
    index: _core.Region


class Roller:
    """Maps pages for writers, and makes the next one."""

    def __init__(
        self,
        folder: Folder,
        prefix: str,
        meta: AllMeta,
        write_meta: WriteMeta,
        lock: FileLock,
        background: Background,
        clock: Callable[[], int],
        lock_timeout: float,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._meta = meta
        self._write_meta = write_meta
        self._lock = lock
        self._background = background
        self._clock = clock
        self._lock_timeout = lock_timeout
        self._spares: dict[int, WritablePage] = {}
        self._asked = 0
        self._guard = threading.Lock()

    def page(self, number: int) -> WritablePage:
        """Return a page that exists."""
        with self._guard:
            spare = self._spares.pop(number, None)
            for old in [key for key in self._spares if key < number]:
                self._background.drop(self._spares.pop(old))
        return spare or self._map(number)

    def next_page(self, number: int) -> WritablePage:
        """Return a page that may not exist yet.

        Raises:
            DiskFull: there is no room for it.
            LockTimeout: another process holds the preparation lock.
        """
        with self._guard:
            spare = self._spares.get(number)
        return spare or self._make(number)

    def prepare(self, number: int) -> None:
        """Make a page ready in the background; what goes wrong shows when it is needed."""
        with self._guard:
            if number <= self._asked:
                return
            self._asked = number

        def job() -> None:
            page = self._make(number)
            with self._guard:
                self._spares[number] = page

        self._background.submit(job)

    def _map(self, number: int) -> WritablePage:
        name = fmt.page_name(self._prefix, number)
        region = map_file(self._folder, name, self._meta.page_bytes, writable=True)
        data = region.read(0, fmt.PAGE_HEADER_BYTES)
        decode_header(data, self._meta.queue_id, number, self._folder.full(name))
        index = writable_index(self._folder, self._prefix, self._meta, number)
        return WritablePage(number, region, index)

    def _make(self, number: int) -> WritablePage:
        name = fmt.page_name(self._prefix, number)
        if number > fmt.PAGE_NUMBER_MAX:
            raise errors.SequencesExhausted(
                "no page number is left: start a new queue", path=self._folder.path
            )
        with self._lock.exclusive(self._lock_timeout, "making the next page"):
            if number > self._write_meta.tail.page_number:
                self._sweep(number)
                try:
                    return self._map(number)
                except errors.QueueNotFound:
                    pass
                except errors.CorruptPage as error:
                    # Nothing was ever written to it: no end-of-page mark leads here yet.
                    log.warning("%s; it held nothing and is made again", error)
                    self._folder.remove(name)
                header = PageHeader(number, self._meta.queue_id, None, 0, self._clock())
                make_page(self._folder, self._prefix, self._meta, header)
        return self._map(number)

    def _sweep(self, number: int) -> None:
        """Remove what a killed maker of this page left; whoever makes it holds the lock."""
        names = (fmt.page_name(self._prefix, number), fmt.index_name(self._prefix, number))
        starts = tuple(f"{name}.tmp-" for name in names)
        for found in self._folder.names():
            if found.startswith(starts):
                self._folder.remove(found)

    def close(self) -> None:
        """Let the spare pages go."""
        with self._guard:
            self._spares.clear()
