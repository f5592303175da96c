"""The plan of a trim: how far the head can move, without changing a file and without a lock.

Consumers can move and appear meanwhile, so a plan records the state that it was made by; the trim
compares that under the preparation lock.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.maintenance.consumers import is_idle
from pagequeue.meta.cursor import cursor_names, readable_cursors
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.page.header import read_header
from pagequeue.page.page import missing_page
from pagequeue.util.timestamps import MICROSECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.maintenance.retention import Retention
    from pagequeue.maintenance.size_limit import SizeLimit
    from pagequeue.meta.cursor import CursorMeta
    from pagequeue.page.header import PageHeader
    from pagequeue.store.store import Store

log: logging.Logger = logging.getLogger("pagequeue")
LIST_SECONDS: Final = 1.0
"""Time after which the directory is listed again, to find cursors put there by other programs."""


@dataclass(frozen=True)
class Place:
    """The position of a consumer, as the plan found it.

    Attributes:
        sequence: every message below it is acknowledged, and durably so once the cursor was synced;
            None: no page is kept for the consumer; -1: unknown.
        stamp: as long as it is unchanged, the position has not decreased.
        has_flow: whether a flow of this name needs the last message.
        cursor: its mapped cursor; None: it is unreadable.
    """

    sequence: int | None
    stamp: tuple[int, ...]
    has_flow: bool
    cursor: CursorMeta | None = field(default=None, compare=False, repr=False)

    def moved_back(self, *, protects: bool) -> bool:
        """Whether the consumer sought back or became active since, or a flow was added."""
        if self.cursor is None:
            return False  # all pages were kept for it, or none
        try:
            now = place_of(self.cursor, protects=protects, idle=self.sequence is None)
        except errors.CorruptMeta:
            return True  # truncated meanwhile
        return now.stamp != self.stamp or now.has_flow > self.has_flow


@dataclass
class TrimPlan:
    """How far the head moves.

    Attributes:
        head_page: the head when planning, and `head_sequence`, its first sequence.
        consumers_made: the read meta's counter, before the consumers were listed.
        places: of all consumers, by name.
        steps: headers of the pages that become the head, one or two: the last one is the new head.
        held_by: consumers that keep further pages.
        refused: the error that prevents removing further pages.
    """

    head_page: int
    head_sequence: int
    consumers_made: int
    places: dict[str, Place]
    steps: list[PageHeader] = field(default_factory=list)
    held_by: tuple[str, ...] = ()
    refused: errors.PageQueueError | None = None

    @property
    def has_flow(self) -> bool:
        """Whether a flow needs the last message."""
        return any(place.has_flow for place in self.places.values())


class TrimPlanner:
    """Plans trims of one queue; it keeps what need not be read again for the next plan.

    Args:
        policy: the retention.
        limit: its limit of bytes.

    Attributes:
        names: of the consumers.
        headers: of the retained pages.
    """

    def __init__(self, policy: Retention, limit: SizeLimit) -> None:
        self._policy = policy
        self._limit = limit
        self._warned: set[str] = set()
        self.names: ConsumerNames = ConsumerNames()
        self.headers: Headers = Headers()

    def plan(self, store: Store, page_limit: float, *, protects: bool) -> TrimPlan:
        """Plan how far the head can move.

        Args:
            store: of the queue.
            page_limit: pages that may remain.
            protects: whether pages that consumers need are kept.

        Raises:
            Expired: another process trimmed meanwhile.
        """
        head_page, head_sequence = store.head
        made, names = self.names.of(store)
        places = self._places(store, names, protects=protects)
        wanted = self._wanted(store, head_page, page_limit)
        positions = {name: at.sequence for name, at in places.items() if at.sequence is not None}
        needed = min(positions.values(), default=math.inf)
        number = self._last_allowed(
            store, head_page, wanted, lambda header: first_of(header) <= needed
        )
        plan = TrimPlan(head_page, head_sequence, made, places)
        if number < wanted:
            first = first_of(self.headers.of(store, number + 1))
            plan.held_by = tuple(name for name, sequence in positions.items() if sequence < first)
        elif self._policy.drop_acknowledged and positions:
            number = self._last_allowed(
                store, number, store.tail.page_number, lambda header: first_of(header) <= needed
            )
        number, plan.refused = _removable(store, head_page, number)
        self.step_to(store, plan, number)
        return plan

    def step_to(self, store: Store, plan: TrimPlan, number: int) -> None:
        """Move the head of a plan to a page, in steps of an odd number of pages each (I12)."""
        if number > plan.head_page and (number - plan.head_page) % 2 == 0:
            plan.steps.append(self.headers.of(store, number - 1))
        if number > plan.head_page:
            plan.steps.append(self.headers.of(store, number))

    def _last_allowed(
        self, store: Store, low: int, high: int, allows: Callable[[PageHeader], bool]
    ) -> int:
        """Return the last page after `low` whose header allows it to be the head, or `low`.

        First sequences and floors only rise from page to page.
        """
        while low < high:
            middle = (low + high + 1) // 2
            if allows(self.headers.of(store, middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def oldest_kept(self, store: Store) -> int | None:
        """Return the time before which messages are too old; None: they may be of any age."""
        if self._policy.max_age is None:
            return None
        return store.clock() - self._policy.max_age // MICROSECOND * 1000

    def _wanted(self, store: Store, head_page: int, page_limit: float) -> int:
        """Return the page that would be the head without consumers."""
        low = self._limit.first_kept(store, head_page, page_limit)
        oldest_kept = self.oldest_kept(store)
        if oldest_kept is None:
            return low
        credited = store.clock.credited
        return self._last_allowed(
            store,
            low,
            store.tail.page_number,
            lambda header: credited(header.floor_timestamp) < oldest_kept,
        )

    def _places(self, store: Store, names: list[str], *, protects: bool) -> dict[str, Place]:
        """Return the positions of the named consumers; a damaged cursor keeps all pages."""
        places = {}
        idle = set()
        queue_id = store.meta.queue_id
        for name, cursor in readable_cursors(store.folder, store.prefix, queue_id, names):
            if isinstance(cursor, errors.PageQueueError):
                if protects:
                    self._warn(name, f"{cursor}; until then all pages are kept for it")
            elif protects and is_idle(store, cursor):
                idle.add(name)
                self._warn(
                    name,
                    f"{store.folder.path}: consumer {name!r} was silent for longer than "
                    f"{self._policy.max_idle}: no page is kept for it any more",
                )
            places[name] = place_of(cursor, protects=protects, idle=name in idle)
        if protects:
            self._warned &= idle | {name for name, at in places.items() if at.sequence == -1}
        return places

    def _warn(self, name: str, text: str) -> None:
        """Log a warning about a consumer once, until its state changes."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("%s", text)


class Headers:
    """The headers of retained pages; those of a ring never change once they were rolled into."""

    def __init__(self) -> None:
        self._known: dict[int, PageHeader] = {}

    def of(self, store: Store, number: int) -> PageHeader:
        """Return a retained page's header.

        Raises:
            Expired, MissingPage: as for `retained_header`.
        """
        known, head_page = self._known.get(number), store.read_meta.head_page
        if known is not None and number >= head_page:
            return known
        header = retained_header(store, number)
        if store.meta.is_ring and number <= store.tail.page_number:
            for passed in [n for n in list(self._known) if n < head_page]:
                self._known.pop(passed, None)
            self._known[number] = header
        return header


class ConsumerNames:
    """The names of the consumers, listed again only after one was made, or after a while.

    Listing a directory of many pages is slow, and a sender that waits for space polls often.
    """

    def __init__(self) -> None:
        self._known = -1, -math.inf, list[str]()  # one attribute, because threads share it

    def of(self, store: Store) -> tuple[int, list[str]]:
        """Return the read meta's counter, loaded before the listing, and the names."""
        made, now = store.read_meta.made(ReadMeta.CONSUMERS_MADE), time.monotonic()
        known, at, names = self._known
        if made != known or made & 1 or now - at > LIST_SECONDS:
            names = cursor_names(store.folder, store.prefix)
            self._known = made, now, names
        return made, names


def first_of(header: PageHeader) -> int:
    """Return the first sequence of a page that was rolled into."""
    assert header.first_sequence is not None
    return header.first_sequence


def retained_header(store: Store, number: int) -> PageHeader:
    """Return a retained page's header.

    Raises:
        Expired: another process trimmed meanwhile. MissingPage: it should exist.
    """
    try:
        return read_header(store.folder, store.prefix, store.meta.queue_id, number)
    except errors.QueueNotFound as error:
        if number < store.read_meta.head_page:
            raise store.expired() from error
        raise missing_page(
            store.folder.full(fmt.page_name(store.prefix, number)), number
        ) from error


def place_of(cursor: CursorMeta | errors.PageQueueError, *, protects: bool, idle: bool) -> Place:
    """Return a consumer's position, with a stamp that changes when it seeks back or wakes up."""
    if isinstance(cursor, errors.PageQueueError):
        return Place(-1 if protects else None, (), has_flow=True)
    has_flow = cursor.flow_from > 0
    if not protects:
        return Place(None, (), has_flow, cursor)
    generation = cursor.generation  # before the position, which only rises within a generation
    if idle:
        return Place(None, (*generation, cursor.last_ack), has_flow, cursor)
    return Place(cursor.next_sequence, generation, has_flow, cursor)


def _removable(
    store: Store, head_page: int, number: int
) -> tuple[int, errors.PageQueueError | None]:
    """Return the page up to which all files may be removed, and the error that stops there.

    Otherwise the messages of a page would be gone without freeing its space.
    """
    last = number if store.folder.may_keep_files else head_page + 1
    for page in range(head_page, min(number, last)):
        try:
            store.folder.check_removable(fmt.page_name(store.prefix, page))
            store.folder.check_removable(fmt.index_name(store.prefix, page))
        except errors.AccessDenied as error:
            return page, error
    return number, None
