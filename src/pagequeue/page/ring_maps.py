"""The pages of a ring that a reader has mapped: their files are used again, and so are the maps.

To map a page again costs more than to read it: opening, checking and unmapping it, and its page
faults. So a map stays when its page was read, without the lock on its file, which may become
another page then (I13). For that page the lock is shared again, and only if the file still has that
page's name then, the map is lent.

The maps of files that were removed go when the next page is mapped; there are never more of
them than a ring has pages. Each has a file open, so it is not done in rings of very many pages.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.page.page import Page, lost_page, map_plain

if TYPE_CHECKING:
    from pagequeue import _core
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory
    from pagequeue.system.replaced_file import Identity


KEPT_PAGES_MAX: Final = 128
"""Files that one queue keeps open for its producers, and as many for its readers; a process often
may have 1,024."""


def are_pages_kept(meta: AllMeta) -> bool:
    """Whether the pages of a ring stay mapped with their files open, to be used again."""
    return (meta.ring_bytes or 0) // meta.page_bytes <= KEPT_PAGES_MAX


class RingMaps:
    """The maps that one open queue has for reading."""

    def __init__(self, folder: Directory, prefix: str, meta: AllMeta) -> None:
        self._folder = folder
        self._prefix = prefix
        self._meta = meta
        self._maps: dict[Identity, _core.Region] = {}
        _all.add(self)

    def page(self, number: int) -> Page | None:
        """Return a page in one of the maps, or in a new one; None: it must be opened to tell why.

        Raises:
            CorruptPage: it is not this page of this queue.
        """
        name = fmt.page_name(self._prefix, number)
        identity = self._folder.identity(name)
        if identity is None:
            return None
        kept = self._maps.get(identity)
        if kept is None:
            with contextlib.suppress(errors.PageQueueError):
                kept = self._map(name, identity)
        if kept is None:
            return None
        with self._folder.descriptor as folder:
            region = kept.lend(folder, name)
        if region is None:
            self._maps.pop(identity, None)
            return None
        region.on_lost = partial(lost_page, self._folder.full(name))
        return Page(self._folder, self._prefix, self._meta, number, region, identity)

    def _map(self, name: str, identity: Identity) -> _core.Region:
        """Map the file of this name, which stays open."""
        for key in list(self._maps):
            kept = self._maps.get(key)
            if kept is not None and kept.is_removed:
                self._maps.pop(key, None)
        if len(self._maps) > (self._meta.ring_bytes or 0) // self._meta.page_bytes:
            self._maps.clear()
        kept = map_plain(self._folder, name, self._meta, writable=False, kept=True)
        self._maps[identity] = kept
        return kept

    def clear(self) -> bool:
        """Unmap all that is not read; False: no map was kept."""
        had = bool(self._maps)
        self._maps.clear()
        return had


_all: weakref.WeakSet[RingMaps] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Drop the maps that a fork copied: they would keep the blocks of removed files."""
    for maps in list(_all):
        maps.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
