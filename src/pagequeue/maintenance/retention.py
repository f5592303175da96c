"""Retention: whole pages go, oldest first, never the active one; and room is made for new ones.

The order of steps (FORMAT.md, "Retention"):

T1. What makes it right is put on stable storage: the cursors because of which pages may go, the
    header of the page that becomes the head, and its name; the last message, where a flow needs it.
T2. Under the preparation lock: if nothing of that has changed, the head moves, in one step or two.
T3. The head is put on stable storage.
T4. Page files below it are removed, oldest first, each before its index.

Only T2 holds the lock, for a few loads and stores and no listing, however many pages there are.
Dies anywhere: the head is where it was or further (I12), and pages below it are removed by whoever
trims or recovers next. Cut anywhere: a head on the disk has its page there, and no cursor on the
disk is below it that allowed it to move.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.maintenance.consumers import is_idle
from pagequeue.meta.all_and_read_meta import ReadMeta, sync_words
from pagequeue.meta.cursor import cursor_names, readable_cursors, sync_cursor
from pagequeue.meta.last_stored import forget_stored, sequences_stored, write_stored
from pagequeue.page.header import parse_header, read_header
from pagequeue.page.listing import retired
from pagequeue.page.page import map_plain, missing_page
from pagequeue.page.search import first_batch_end
from pagequeue.page.spare import is_worth_it, keep_spare
from pagequeue.receive.replay import Replay
from pagequeue.util.numbers import whole
from pagequeue.util.timestamps import MICROSECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.cursor import CursorMeta
    from pagequeue.page.header import PageHeader
    from pagequeue.store.store import Store

log = logging.getLogger("pagequeue")
FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05
LIST_SECONDS: Final = 1.0
"""After so long a cursor is seen that was put there by hand, and not made by pagequeue."""
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
        if self.max_bytes is not None:
            bytes_ = whole("max_bytes", self.max_bytes)
            if bytes_ < 1 or isinstance(self.max_bytes, bool):
                raise errors.InvalidOption(f"max_bytes is {self.max_bytes}: give bytes above 0")
            object.__setattr__(self, "max_bytes", bytes_)
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


@dataclass(frozen=True)
class _Place:
    """Where a consumer stands, as retention found it.

    Attributes:
        sequence: every message below it is acknowledged, and that is on stable storage once it was
            synced; None: nothing is kept for the consumer; -1: it cannot be known.
        stamp: while it is the same, the place has not gone back.
        has_flow: whether a flow of this name asks for the last message.
        cursor: its words, mapped; None: they cannot be read.
    """

    sequence: int | None
    stamp: tuple[int, ...]
    has_flow: bool
    cursor: CursorMeta | None = field(default=None, compare=False, repr=False)


@dataclass
class _Cut:
    """How far the head moves, as it was planned without the lock.

    Attributes:
        head_page: the head as it was, and `head_sequence`, its first sequence.
        consumers_made: the read meta's word, as it was before they were listed.
        places: of all consumers, by name.
        steps: headers of the pages that become the head, one or two: the last one is the new head.
        held_by: consumers that keep further pages.
        refused: why no further page can be removed.
    """

    head_page: int
    head_sequence: int
    consumers_made: int
    places: dict[str, _Place]
    steps: list[PageHeader] = field(default_factory=list)
    held_by: tuple[str, ...] = ()
    refused: errors.PageQueueError | None = None

    @property
    def has_flow(self) -> bool:
        """Whether a flow needs the last message."""
        return any(place.has_flow for place in self.places.values())


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
        self._compressed_as_of = -1  # the read meta's word before they were looked for
        self._names = _Names()
        self._has_swept = False  # looked for what a trimmer that died left below the head
        self._stored: set[int] = set()  # sequences of last messages that were kept
        if policy.max_bytes is not None:
            page_bytes = store.meta.page_bytes
            self._page_limit = policy.max_bytes // page_bytes
            if self._page_limit < 2:
                raise errors.InvalidOption(
                    f"max_bytes is {policy.max_bytes}",
                    path=store.folder.path,
                    remedy=f"give two pages of {page_bytes} bytes or more, or create the queue "
                    "with smaller page_bytes",
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
        except errors.ClosedError:
            return
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
        if store is None or self._has_room(store, number):
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
            store.folder.descriptor.check()
            if store.write_meta.is_failed:
                raise store.flusher.failed(store.write_meta.failed_errno)
            if store.tail.page_number >= number:
                return  # another process made it

    def _has_room(self, store: Store, number: int) -> bool:
        """Whether pages up to this number may be there, and nothing below the head takes room."""
        if not self._is_room(store, number):
            return False
        if self._page_limit < math.inf:
            # Another thread or process can have moved the head, and not removed the pages yet.
            self._remove(store)
        return True

    def _is_room(self, store: Store, number: int) -> bool:
        """Whether pages up to this number may be there."""
        head_page = store.read_meta.head_page
        count = number - head_page + 1
        if count <= self._page_limit:
            return True
        self._look_at_sizes(store, head_page)
        spare_bytes = self._spare_bytes(store, head_page)
        return count <= self._page_limit + spare_bytes // store.meta.page_bytes

    def _look_at_sizes(self, store: Store, first: int) -> None:
        """Look which of the pages from `first` on are compressed."""
        known = self._compressed
        for number in [number for number in list(known) if number < first]:
            known.pop(number, None)
        if self.policy.max_bytes is None:
            return
        as_of = store.read_meta.made(ReadMeta.PAGES_COMPRESSED)
        if as_of == self._compressed_as_of and not as_of & 1:
            return  # else each roll would look at all pages
        for number in range(first, store.tail.page_number):
            if number not in known:
                status = store.folder.status(fmt.page_name(store.prefix, number))
                if status is not None and status.st_size < store.meta.page_bytes:
                    known[number] = status.st_size
        self._compressed_as_of = as_of

    def _spare_bytes(self, store: Store, first: int) -> int:
        """Return the bytes of `max_bytes` that are no whole page, or that compressing saved."""
        if self.policy.max_bytes is None:
            return 0
        page_bytes, known = store.meta.page_bytes, self._compressed
        saved = sum(page_bytes - size for number, size in list(known.items()) if number >= first)
        return self.policy.max_bytes % page_bytes + saved

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
        synced: dict[str, _Place] = {}
        while True:
            store.folder.check()
            if store.write_meta.is_failed:
                return TrimReport()  # what is at risk is being written again, or nothing is
            try:
                cut = self._cut(store, page_limit, protects=protects)
                if cut.steps:
                    self._secure(store, cut, synced)
            except errors.Expired:
                continue  # another process trimmed meanwhile
            if not cut.steps or self._move_head(store, cut, protects=protects):
                break
        pages = messages = 0
        if cut.steps:
            pages = cut.steps[-1].page_number - cut.head_page
            messages = _first_of(cut.steps[-1]) - cut.head_sequence
            store.drop_retired()
        removed = self._remove(store)
        if cut.refused is not None:
            raise cut.refused
        return TrimReport(pages, messages, removed, cut.held_by)

    def _cut(self, store: Store, page_limit: float, *, protects: bool) -> _Cut:
        """Plan how far the head can move; nothing is changed, and no lock is needed."""
        head_page, head_sequence = store.head
        made, names = self._names.of(store)
        places = self._places(store, names, protects=protects)
        wanted = self._wanted(store, head_page, page_limit)
        stands = {name: at.sequence for name, at in places.items() if at.sequence is not None}
        needed = min(stands.values(), default=math.inf)
        number = self._last_that(
            store, head_page, wanted, lambda header: _first_of(header) <= needed
        )
        cut = _Cut(head_page, head_sequence, made, places)
        if number < wanted:
            first = _first_of(_header(store, number + 1))
            cut.held_by = tuple(name for name, sequence in stands.items() if sequence < first)
        number, cut.refused = self._removable(store, head_page, number)
        self._step_to(store, cut, number)
        return cut

    def _wanted(self, store: Store, head_page: int, page_limit: float) -> int:
        """Return the page that would be the head if nobody needed what is before it."""
        low, tail_page = head_page, store.tail.page_number
        if tail_page + 1 - head_page > page_limit:  # else no page is too many
            self._look_at_sizes(store, head_page)
            page_bytes, spare_bytes = store.meta.page_bytes, self._spare_bytes(store, head_page)
            while low < tail_page and tail_page - low + 1 > page_limit + spare_bytes // page_bytes:
                spare_bytes -= page_bytes - self._compressed.get(low, page_bytes)
                low += 1
        if self.policy.max_age is None:
            return low
        oldest_kept = store.clock() - self.policy.max_age // MICROSECOND * 1000
        return self._last_that(
            store, low, tail_page, lambda header: header.floor_timestamp < oldest_kept
        )

    def _last_that(
        self, store: Store, low: int, high: int, allows: Callable[[PageHeader], bool]
    ) -> int:
        """Return the last page behind `low` whose header allows it to be the head, or `low`.

        First sequences and floors only rise from page to page.
        """
        while low < high:
            middle = (low + high + 1) // 2
            if allows(_header(store, middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def _removable(
        self, store: Store, head_page: int, number: int
    ) -> tuple[int, errors.PageQueueError | None]:
        """Return up to which page all can be removed, and why no further.

        Otherwise messages of a page would be gone, and its room would not.
        """
        last = number if store.folder.may_keep_files else head_page + 1
        for page in range(head_page, min(number, last)):
            try:
                store.folder.check_removable(fmt.page_name(store.prefix, page))
                store.folder.check_removable(fmt.index_name(store.prefix, page))
            except errors.AccessDenied as error:
                return page, error
        return number, None

    def _step_to(self, store: Store, cut: _Cut, number: int) -> None:
        """Have the head move to a page, in steps of an odd number of pages each (I12)."""
        if number > cut.head_page and (number - cut.head_page) % 2 == 0:
            cut.steps.append(_header(store, number - 1))
        if number > cut.head_page:
            cut.steps.append(_header(store, number))

    def _places(self, store: Store, names: list[str], *, protects: bool) -> dict[str, _Place]:
        """Return where the named consumers stand; a damaged cursor keeps all that is there."""
        places = {}
        idle = set()
        queue_id = store.meta.queue_id
        for name, cursor in readable_cursors(store.folder, store.prefix, queue_id, names):
            if isinstance(cursor, errors.PageQueueError):
                if protects:
                    self._warn(name, f"{cursor}; until then all that is there is kept for it")
            elif protects and is_idle(store, cursor):
                idle.add(name)
                self._warn(
                    name, f"{store.folder.path}: consumer {name!r} was silent for longer than "
                    f"{self.policy.max_idle}: no page is kept for it any more",
                )  # fmt: skip
            places[name] = _place_of(cursor, protects=protects, idle=name in idle)
        if protects:
            self._warned &= idle | {name for name, at in places.items() if at.sequence == -1}
        return places

    def _warn(self, name: str, text: str) -> None:
        """Say something about a consumer once, until it is otherwise."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("%s", text)

    def _secure(self, store: Store, cut: _Cut, synced: dict[str, _Place]) -> None:
        """Put on stable storage what makes it right that the head moves (T1)."""
        folder, prefix = store.folder, store.prefix
        if cut.has_flow:
            self._keep_last(store, cut)
        try:
            for name, place in cut.places.items():
                if place.sequence is None or (at := synced.get(name)) == place:
                    continue
                end = _first_of(cut.steps[-1]) if cut.steps else 0
                if at is not None and at.stamp == place.stamp and (at.sequence or 0) >= end:
                    continue
                with contextlib.suppress(errors.QueueNotFound):  # removed meanwhile
                    sync_cursor(folder, prefix, name)
                synced[name] = place
            for header in cut.steps:
                self._sync_header(store, header)
            folder.sync()
        except OSError as error:
            raise store.flusher.latched(error) from error

    def _sync_header(self, store: Store, header: PageHeader) -> None:
        """Put the header of a new head on stable storage, though others trim or compress it now.

        A compressed page was synced before it had its name.
        """
        number = header.page_number
        while not header.is_compressed:
            try:
                sync_header(store, number)
            except (errors.QueueNotFound, errors.CorruptPage):
                header = _header(store, number)  # Expired: another process trimmed meanwhile
                if not header.is_compressed:
                    raise
            else:
                return

    def _keep_last(self, store: Store, cut: _Cut) -> None:
        """Have the last message outlive its page where a new head has no message (T1).

        Where it cannot be kept, its page stays.
        """
        for header in list(cut.steps):
            last = _first_of(header) - 1
            if last < 0 or store.count(header.page_number) > 0:
                continue  # `sync_header` puts its first message on stable storage
            try:
                message = next(iter(Replay(store, None, None, last)))
                write_stored(store.folder, store.prefix, store.meta.queue_id, message)
                self._stored.add(last)
            except errors.Expired:
                raise
            except errors.PageQueueError as error:
                cut.refused = error
                cut.steps.clear()
                self._step_to(store, cut, store.page_of_sequence(last))
                self._keep_last(store, cut)
                return

    def _move_head(self, store: Store, cut: _Cut, *, protects: bool) -> bool:
        """Move the head (T2); False: what the cut was planned by has changed.

        A consumer that was made or moved since is not passed. Nothing is opened or listed, so that
        the lock is held as long for a million pages as for one.
        """
        with store.roller.lock.exclusive(store.lock_timeout, "trimming the queue"):
            store.folder.check()
            if store.write_meta.is_failed or store.read_meta.head_page != cut.head_page:
                return False
            if not store.read_meta.made_none_since(ReadMeta.CONSUMERS_MADE, cut.consumers_made):
                return False
            if any(_went_back(place, protects=protects) for place in cut.places.values()):
                return False
            for header in cut.steps:
                store.read_meta.advance(_first_of(header), header.page_number)
            return True

    def _remove(self, store: Store) -> int:
        """Remove what is below the head; return its bytes.

        Without the lock: nothing is made, found or renamed below the head any more.
        """
        folder, prefix, head_page = store.folder, store.prefix, store.read_meta.head_page
        below = (fmt.page_name(prefix, head_page - 1), fmt.index_name(prefix, head_page - 1))
        if not any(map(folder.exists, below)):  # these go last
            return 0
        # T3. Not before: a head that is older on the disk would have no page there.
        try:
            sync_words(folder, fmt.read_meta_name(prefix))
        except OSError as error:
            raise store.flusher.latched(error) from error
        # T4. The newest page waits to be used again (U1): it is the one most likely in memory.
        removed = self._park(store, head_page - 1)
        for name in self._retired(store, head_page):
            status = folder.status(name)
            removed += 0 if status is None else status.st_size
            folder.remove(name)
        forget_stored(folder, prefix, self._stored, store.read_meta.head_sequence)
        self._has_swept = True
        return removed

    def _retired(self, store: Store, head_page: int) -> list[str]:
        """Return the files below the head, oldest first, a page before its index.

        What goes is an unbroken row up to the head, because the oldest go first. Only a copy or a
        power cut leaves others, before the queue is opened; so the directory is listed once.
        """
        folder, prefix = store.folder, store.prefix
        names: list[str] = []
        if not self._has_swept:
            names = folder.names()
            self._stored.update(sequences_stored(prefix, names))
            return retired(prefix, names, head_page)
        for number in range(head_page - 1, fmt.FIRST_PAGE - 1, -1):
            pair = fmt.index_name(prefix, number), fmt.page_name(prefix, number)
            if not any(map(folder.exists, pair)):
                break
            names += pair
        return names[::-1]

    def _park(self, store: Store, number: int) -> int:
        """Keep a retired page as the spare if it is of use; return its bytes."""
        page_bytes = store.meta.page_bytes
        if not is_worth_it(page_bytes):
            return 0
        with store.roller.lock.exclusive(store.lock_timeout, "trimming the queue"):
            if store.folder.exists(fmt.page_name(store.prefix, store.tail.page_number + 1)):
                return 0
            if keep_spare(store.folder, store.prefix, number, page_bytes):
                store.has_spare = True
                return page_bytes
        return 0


class _Names:
    """The names of the consumers, listed again only when one was made, or after a while.

    A directory of many pages takes long to list, and a sender that waits for room asks often.
    """

    def __init__(self) -> None:
        self._known = -1, -math.inf, list[str]()  # as one, because threads share it

    def of(self, store: Store) -> tuple[int, list[str]]:
        """Return the read meta's word, loaded before the listing, and the names."""
        made, now = store.read_meta.made(ReadMeta.CONSUMERS_MADE), time.monotonic()
        known, at, names = self._known
        if made != known or made & 1 or now - at > LIST_SECONDS:
            names = cursor_names(store.folder, store.prefix)
            self._known = made, now, names
        return made, names


def _first_of(header: PageHeader) -> int:
    """Return the first sequence of a page that was rolled into."""
    assert header.first_sequence is not None
    return header.first_sequence


def _header(store: Store, number: int) -> PageHeader:
    """Return a retained page's header.

    Raises:
        Expired: another process trimmed meanwhile. MissingPage: it should be there.
    """
    try:
        return read_header(store.folder, store.prefix, store.meta.queue_id, number)
    except errors.QueueNotFound as error:
        if number < store.read_meta.head_page:
            raise store.expired() from error
        raise missing_page(
            store.folder.full(fmt.page_name(store.prefix, number)), number
        ) from error


def _place_of(cursor: CursorMeta | errors.PageQueueError, *, protects: bool, idle: bool) -> _Place:
    """Return where a consumer stands, and by what it is seen that it went back or woke up."""
    if isinstance(cursor, errors.PageQueueError):
        return _Place(-1 if protects else None, (), has_flow=True)
    has_flow = cursor.flow_from > 0
    if not protects:
        return _Place(None, (), has_flow, cursor)
    generation = cursor.generation  # before the place, which only rises from there
    if idle:
        return _Place(None, (*generation, cursor.last_ack), has_flow, cursor)
    return _Place(cursor.next_sequence, generation, has_flow, cursor)


def _went_back(known: _Place, *, protects: bool) -> bool:
    """Whether a consumer went back or woke up since, or a flow asks for the last message."""
    if known.cursor is None:
        return False  # all was kept for it, or nothing
    try:
        now = _place_of(known.cursor, protects=protects, idle=known.sequence is None)
    except errors.CorruptMeta:
        return True  # truncated meanwhile
    return now.stamp != known.stamp or now.has_flow > known.has_flow


def sync_header(store: Store, number: int) -> None:
    """Put a page's header on stable storage; the error is the system's own.

    And its first message, or the batch that it belongs to: after a power cut a flow continues after
    that one. It is enough of the page that becomes the head: what follows is durable up to the
    durable mark, and no more was promised. All of a page that nobody flushed would take as long as
    writing it.
    """
    name = fmt.page_name(store.prefix, number)
    page = map_plain(store.folder, name, store.meta, writable=True)
    first = parse_header(
        page.read(0, fmt.PAGE_HEADER_BYTES), store.folder.full(name)
    ).first_sequence
    end = fmt.PAGE_HEADER_BYTES if first is None else first_batch_end(page, first)
    page.sync(0, -(-end // fmt.PAGE_BYTES_STEP) * fmt.PAGE_BYTES_STEP)
