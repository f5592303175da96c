"""Retention: whole pages go, oldest first, never the active one; and room is made for new ones.

The order of steps (FORMAT.md, "Retention"), under the preparation lock:

T1. What makes it right is put on stable storage: the cursors because of which pages may go, the
    header of the page that becomes the head, and its name.
T2. The head moves, one page at a time, one store each.
T3. The head is put on stable storage.
T4. Page files below it are removed, oldest first, each before its index.

Dies anywhere: the head is where it was or further (I12), and pages below it are removed by whoever
trims or recovers next. Cut anywhere: a head on the disk has its page there, and no cursor on the
disk is below it that allowed it to move.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import time
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.cursor import readable_cursors, sync_cursor
from pagequeue.listing import is_idle
from pagequeue.meta import sync_words
from pagequeue.moments import MICROSECOND
from pagequeue.page import map_file
from pagequeue.page_header import read_header
from pagequeue.recycle import park
from pagequeue.survey import retired

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.page_header import PageHeader
    from pagequeue.store import Store

log = logging.getLogger("pagequeue")
FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05
NAMED_COUNT: Final = 5
"""So many consumers an error names; all of them are in its `held_by`."""


@dataclass(frozen=True)
class Retention:
    """What a queue keeps: `Queue(..., retention=Retention(max_bytes=10 << 30))`.

    Attributes:
        max_age: a page goes when its last message is older; None: whatever its age.
        max_bytes: pages go while the page files, the one that comes next included, would take more;
            at least two pages; None: however many. A compressed page counts as its file does.
        keep_unacked: whether a page stays as long as a named consumer has not acknowledged all of
            it.
        max_idle: a named consumer that acknowledged nothing and was not opened for longer, though
            there was something, keeps no pages; None: however long.
    """

    max_age: timedelta | None = None
    max_bytes: int | None = None
    keep_unacked: bool = True
    max_idle: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("max_age", "max_idle"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, timedelta):
                raise TypeError(f"{name} must be a timedelta, not {type(value).__name__}")
            if value is not None and value <= timedelta(0):
                raise errors.InvalidOption(f"{name} is {value}: give a timedelta above 0")
        bytes_ = 1 if self.max_bytes is None else operator.index(self.max_bytes)
        if bytes_ < 1 or isinstance(self.max_bytes, bool):
            raise errors.InvalidOption(f"max_bytes is {self.max_bytes}: give bytes above 0")
        if not isinstance(self.keep_unacked, bool):
            raise TypeError(f"keep_unacked must be a bool, not {type(self.keep_unacked).__name__}")


KEEP_ALL: Final = Retention()


@dataclass(frozen=True)
class TrimReport:
    """What `trim` removed.

    Attributes:
        pages: whole pages.
        messages: in them.
        bytes: of their page and index files.
        held_by: names of the consumers that kept pages which would have gone otherwise.
    """

    pages: int = 0
    messages: int = 0
    bytes: int = 0
    held_by: tuple[str, ...] = ()


@dataclass
class _Cut:
    """How far the head moves: pages, their first sequences, and what kept others."""

    pages: list[PageHeader]  # those that become the head, one after the other
    held_by: tuple[str, ...]
    needed: list[str]  # consumers whose cursors allow it
    refused: errors.AccessDenied | None  # why the next page cannot be removed


class Retainer:
    """Applies one process's retention to an open queue, without keeping it open."""

    def __init__(
        self, store: Store, policy: Retention, on_full: str, full_timeout: float | None
    ) -> None:
        self._known = weakref.ref(store)
        self.policy = policy
        self._on_full = on_full
        self._full_timeout = full_timeout
        self._warned: set[str] = set()
        self._page_limit: float = math.inf
        self._compressed: dict[int, int] = {}  # sizes of compressed pages, by number
        if policy.max_bytes is not None:
            page_bytes = store.meta.page_bytes
            self._page_limit = policy.max_bytes // page_bytes
            if self._page_limit < 2:
                raise errors.InvalidOption(
                    f"max_bytes is {policy.max_bytes}: give two pages of {page_bytes} bytes or "
                    "more, or create the queue with smaller page_bytes",
                    path=store.folder.path,
                )
        if policy.max_idle is not None:
            store.max_idle_ns = policy.max_idle // MICROSECOND * 1000
        if policy.max_bytes is not None or policy.max_age is not None:
            store.after_roll = self.trim_quietly
        if policy.max_bytes is not None:
            store.roller.make_room = self.make_room

    def trim_quietly(self) -> None:
        """Apply retention in the background, after a roll."""
        store = self._known()
        if store is None:
            return
        try:
            self.trim(store)
        except errors.PageQueueError as error:
            log.warning("%s: retention: %s", store.folder.path, error)

    def trim(self, store: Store) -> TrimReport:
        """Apply retention now; room for the page that comes next is made as well."""
        return self._trim(store, self._page_limit - 1, protects=self.policy.keep_unacked)

    # --- room for the next page -------------------------------------------------------------------

    def make_room(self, number: int, check: Callable[[], None] | None) -> None:
        """Make room for a page before it is made.

        Args:
            number: of the page.
            check: raises when it is not wanted any more; None: nobody waits for it.

        Raises:
            QueueFull: there is none, and that is what was chosen, or it took too long; or there
                never can be.
            AccessDenied: this user may not remove the oldest page.
            SyncFailed: somebody's sync failed while room was waited for.
        """
        store = self._known()
        if store is None or self._is_room(store, number):
            return
        count = number - store.tail.page_number
        if count >= self._page_limit:  # of many at once: nothing is dropped for what never fits
            raise errors.QueueFull(
                f"these messages take {count} pages beside the active one, and max_bytes of "
                f"{self.policy.max_bytes} allows {self._page_limit:.0f} in all: raise max_bytes or "
                "write them in parts; nothing was sent",
                path=store.folder.path, held_by=(),
            )  # fmt: skip
        deadline = math.inf
        if self._full_timeout is not None:
            deadline = time.monotonic() + self._full_timeout
        pause = FIRST_PAUSE
        while True:
            limit = self._page_limit - (number - store.tail.page_number)
            report = self._trim(store, limit, protects=self.policy.keep_unacked)
            if self._is_room(store, number):
                return
            if self._on_full == "drop_oldest":
                self._trim(store, limit, protects=False)
                log.warning(
                    "%s: full: dropped pages that were not acknowledged by %s",
                    store.folder.path, ", ".join(report.held_by),
                )  # fmt: skip
                return
            if self._on_full == "raise" or check is None or time.monotonic() >= deadline:
                raise self._full(store, report.held_by)
            # Asleep: no acknowledgement wakes a sender, because it would have to look for one.
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            pause = min(2 * pause, LONGEST_PAUSE)
            check()
            if store.write_meta.is_failed:
                raise store.flusher.failed(store.write_meta.failed_errno)
            if store.tail.page_number >= number:
                return  # another process made it

    def _is_room(self, store: Store, number: int) -> bool:
        """Whether pages up to this number may be there."""
        head_page = store.read_meta.head_page
        count = number - head_page + 1
        return count <= self._page_limit or (
            count <= self._page_limit + self._saved_pages(store, head_page)
        )

    def _saved_pages(self, store: Store, first: int) -> int:
        """Return for how many more pages compressing has made room, in those from `first` on."""
        if self.policy.max_bytes is None:
            return 0
        page_bytes, known = store.meta.page_bytes, self._compressed
        for number in [number for number in list(known) if number < store.read_meta.head_page]:
            known.pop(number, None)
        for number in range(first, store.tail.page_number):
            if number not in known:
                status = store.folder.status(fmt.page_name(store.prefix, number))
                if status is not None and status.st_size < page_bytes:
                    known[number] = status.st_size
        saved = sum(page_bytes - size for number, size in list(known.items()) if number >= first)
        return (self.policy.max_bytes % page_bytes + saved) // page_bytes

    def _full(self, store: Store, held_by: tuple[str, ...]) -> errors.QueueFull:
        names = ", ".join(map(repr, held_by[:NAMED_COUNT])) or "nobody"
        if len(held_by) > NAMED_COUNT:
            names += f" and {len(held_by) - NAMED_COUNT} more"
        return errors.QueueFull(
            f"max_bytes of {self.policy.max_bytes} is reached, and the oldest page is not "
            f"acknowledged by {names}: acknowledge, remove the consumer or raise max_bytes; "
            "nothing was sent",
            path=store.folder.path, held_by=held_by,
        )  # fmt: skip

    # --- trimming ---------------------------------------------------------------------------------

    def _trim(self, store: Store, page_limit: float, *, protects: bool) -> TrimReport:
        with store.roller.lock.exclusive(store.lock_timeout, "trimming the queue"):
            store.folder.check()
            if store.write_meta.is_failed:
                return TrimReport()  # what is at risk is being written again, or nothing is
            head_page, head_sequence = store.head
            cut = self._cut(store, head_page, page_limit, protects=protects)
            if cut.pages:
                self._move_head(store, cut)
                store.let_go_of_retired()
            removed = self._remove(store)
            if cut.refused is not None:
                raise cut.refused
        end = cut.pages[-1].first_sequence if cut.pages else None
        return TrimReport(
            len(cut.pages), 0 if end is None else end - head_sequence, removed, cut.held_by
        )

    def _cut(self, store: Store, head_page: int, page_limit: float, *, protects: bool) -> _Cut:
        tail_page = store.tail.page_number
        stands = self._places(store) if protects else {}
        oldest_kept = None
        if self.policy.max_age is not None:
            oldest_kept = store.clock() - self.policy.max_age // MICROSECOND * 1000
        pages: list[PageHeader] = []
        held: tuple[str, ...] = ()
        refused = None
        for number in range(head_page + 1, tail_page + 1):
            header = read_header(store.folder, store.prefix, store.meta.queue_id, number)
            first = header.first_sequence
            assert first is not None
            too_many = tail_page - number + 2 > page_limit and (
                tail_page - number + 2 > page_limit + self._saved_pages(store, number - 1)
            )
            too_old = oldest_kept is not None and header.floor_timestamp < oldest_kept
            if not (too_many or too_old):
                break
            held = tuple(name for name, sequence in stands.items() if sequence < first)
            if held:
                break
            try:  # or its messages were gone, and its room was not
                store.folder.check_removable(fmt.page_name(store.prefix, number - 1))
                store.folder.check_removable(fmt.index_name(store.prefix, number - 1))
            except errors.AccessDenied as error:
                refused = error
                break
            pages.append(header)
        return _Cut(pages, held, list(stands), refused)

    def _places(self, store: Store) -> dict[str, int]:
        """Return where those consumers stand for whom pages are kept; -1: it cannot be known."""
        stands = {}
        idle = set()
        for name, cursor in readable_cursors(store.folder, store.prefix, store.meta.queue_id):
            if isinstance(cursor, errors.PageQueueError):
                self._warn(name, f"{cursor}; until then all that is there is kept for it")
                stands[name] = -1
            elif is_idle(store, cursor):
                idle.add(name)
                self._warn(
                    name, f"{store.folder.path}: consumer {name!r} was silent for longer than "
                    f"{self.policy.max_idle}: no page is kept for it any more",
                )  # fmt: skip
            else:
                stands[name] = cursor.next_sequence
        self._warned &= idle | {name for name, sequence in stands.items() if sequence < 0}
        return stands

    def _warn(self, name: str, text: str) -> None:
        """Say something about a consumer once, until it is otherwise."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("%s", text)

    def _move_head(self, store: Store, cut: _Cut) -> None:
        folder, prefix = store.folder, store.prefix
        head = cut.pages[-1]
        try:
            # T1.
            for name in cut.needed:
                with contextlib.suppress(errors.QueueNotFound):  # removed meanwhile
                    sync_cursor(folder, prefix, name)
            if not head.is_compressed:  # which was synced before it had its name
                sync_header(store, head.page_number)
            folder.sync()
        except OSError as error:
            raise store.flusher.latched(error) from error
        # T2.
        for header in cut.pages:
            assert header.first_sequence is not None
            store.read_meta.advance(header.first_sequence)

    def _remove(self, store: Store) -> int:
        """Remove what is below the head; return its bytes."""
        folder = store.folder
        left = retired(store.prefix, folder.names(), store.read_meta.head_page)
        if not left:
            return 0
        # T3. Not before: a head that is older on the disk would have no page there.
        try:
            sync_words(folder, fmt.read_meta_name(store.prefix))
        except OSError as error:
            raise store.flusher.latched(error) from error
        # T4. The newest page waits to be used again (U1): it is the one most likely in memory.
        next_page = fmt.page_name(store.prefix, store.tail.page_number + 1)
        spare = 0 if folder.exists(next_page) else store.read_meta.head_page - 1
        removed = 0
        for name in left:
            status = folder.status(name)
            removed += 0 if status is None else status.st_size
            if name == fmt.page_name(store.prefix, spare) and park(
                folder, store.prefix, spare, store.meta.page_bytes
            ):
                store.has_spare = True
            else:
                folder.remove(name)
        return removed


def sync_header(store: Store, number: int) -> None:
    """Put a page's header on stable storage; the error is the system's own.

    It is enough of the page that becomes the head: what follows is durable up to the durable mark,
    and no more was promised. All of a page that nobody flushed would take as long as writing it.
    """
    name = fmt.page_name(store.prefix, number)
    page = map_file(store.folder, name, store.meta.page_bytes, writable=True)
    page.sync(0, fmt.PAGE_BYTES_STEP)
