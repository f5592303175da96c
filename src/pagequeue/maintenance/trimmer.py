"""Trimmer: moves the head and removes the pages below it.

The order of steps (FORMAT.md, "Retention"):

T1. Put on stable storage what the move depends on: the cursors that allow pages to be removed, the
    header of the page that becomes the head, and its name; the last message, where a flow needs it.
T2. Under the preparation lock: if none of that has changed, move the head, in one step or two.
T3. Put the head on stable storage.
T4. Remove the page files below it, oldest first, each before its index.

Only T2 holds the lock, for a few loads and stores and no listing, however many pages there are.
Dies anywhere: the head is unchanged or has moved (I12), and the next trim or recovery removes the
pages below it. Power is cut anywhere: a head on the disk has its page there, and every cursor on
the disk that allowed the move is at or after it.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.maintenance.abandoned import AbandonedWatch
from pagequeue.maintenance.retention import TrimReport
from pagequeue.maintenance.ring_trim import RingTrimmer
from pagequeue.maintenance.room import RoomMaker
from pagequeue.maintenance.size_limit import SizeLimit
from pagequeue.maintenance.trim_plan import Place, TrimPlan, TrimPlanner, first_of
from pagequeue.meta.cursor import sync_cursor
from pagequeue.meta.last_stored import forget_stored, sequences_stored, write_stored
from pagequeue.meta.meta_file import sync_state
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.page.compressed_page import map_page
from pagequeue.page.fragments import head_in
from pagequeue.page.header import read_header
from pagequeue.page.listing import retired
from pagequeue.page.page import map_plain
from pagequeue.page.search import first_batch_end
from pagequeue.page.spare import is_worth_it
from pagequeue.producer.producer import Producer
from pagequeue.receive.replay import Replay
from pagequeue.store.policy import Limits
from pagequeue.util.timestamps import MICROSECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.maintenance.retention import Retention
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.header import PageHeader
    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store
    from pagequeue.util.literals import OnFull

log: logging.Logger = logging.getLogger("pagequeue")
AGE_CHECKED_MIN: Final = timedelta(seconds=1)
"""A shorter `max_age` is applied by rolls and trims only."""
AGE_CHECKS: Final = 100
"""So often within `max_age` a thread applies it, where nothing is sent."""
CHECK_SECONDS_MIN: Final = 1.0
CHECK_SECONDS_MAX: Final = 3600.0


class Trimmer:
    """Applies one process's retention to an open queue, which comes with each call.

    Args:
        meta: of the queue.
        path: of its directory.
        policy: the retention.
        on_full: what is done when it is reached.
        full_timeout: seconds that a call may wait for room; None: for ever.

    Attributes:
        policy: the retention.
        limits: of the queue, by all of this.
        follows_rolls: whether there is something to do in the background after a roll.
        check_seconds: how often a quiet queue is trimmed; None: never.

    Raises:
        InvalidOption: `max_bytes` holds less than two pages.
    """

    def __init__(
        self,
        meta: AllMeta,
        path: str,
        policy: Retention,
        on_full: OnFull,
        full_timeout: float | None,
    ) -> None:
        self.policy = policy
        self._limit = SizeLimit(meta.page_bytes, path, policy.max_bytes)
        self._planner = TrimPlanner(policy, self._limit)
        self._ring = RingTrimmer(self._limit, self._planner.names) if meta.is_ring else None
        self._room = RoomMaker(self._limit, on_full, self._planner.headers, self._ring)
        self._abandoned = AbandonedWatch()
        self._is_trimming = False
        self._has_swept = False  # removed what a dead process left below the head
        self._stored: set[int] = set()  # sequences of last messages that were kept
        self._synced_to = 0  # the last page of a commit whose pages were synced for a new head
        is_limited = policy.max_bytes is not None
        self.limits: Limits = Limits(
            self._limit.page_limit,
            None if policy.max_idle is None else policy.max_idle // MICROSECOND * 1000,
            full_timeout if is_limited else None,
            blocks=is_limited and on_full == "block",
        )
        trims = policy.max_age is not None or policy.drop_acknowledged
        # A ring is trimmed by the roll that needs the page.
        self.follows_rolls: bool = (is_limited or trims) and not meta.is_ring
        self.check_seconds: float | None = None
        if policy.max_age is not None and policy.max_age >= AGE_CHECKED_MIN:
            seconds = policy.max_age.total_seconds() / AGE_CHECKS
            self.check_seconds = min(max(seconds, CHECK_SECONDS_MIN), CHECK_SECONDS_MAX)

    def trim_quietly(self, store: Store) -> bool:
        """Apply retention in the background, after a roll; False: the queue is closed."""
        # A trim that has sealed a page trims again, and reports it.
        return self._is_trimming or self._quietly(store, self._trim)

    def check_quietly(self, store: Store) -> bool:
        """Do the same now and then, and seal an active page that is too old."""
        return self._quietly(store, self.trim)

    def _quietly(self, store: Store, trim: Callable[[Store], TrimReport]) -> bool:
        """Trim in the background, and log what is wrong; False: the queue is closed."""
        try:
            self._abandoned.note(store, trim(store).held_by)
        except errors.ClosedError:
            return False
        except errors.PageQueueError as error:
            log.warning("%s: retention: %s", store.folder.path, error)
        return True

    def trim(self, store: Store) -> TrimReport:
        """Apply retention now, including space for the next page.

        The active page is sealed when its first message is too old, so that messages of a quiet
        queue grow no older than twice the limit.
        """
        report = self._trim(store)
        self._is_trimming = True
        try:
            if not self._seal_aged(store):
                return report
            again = self._trim(store)
        finally:
            self._is_trimming = False
        return TrimReport(
            report.pages + again.pages,
            report.messages + again.messages,
            report.bytes + again.bytes,
            again.held_by,
        )

    def _trim(self, store: Store) -> TrimReport:
        page_limit = self._limit.page_limit - 1
        return self.trim_to(store, page_limit, protects=self.policy.keep_unacked)

    def _seal_aged(self, store: Store) -> bool:
        """Seal the active page if its first message is too old; whether it was sealed.

        Raises:
            DiskFull: the page after it does not fit on the disk.
        """
        oldest_kept = self._planner.oldest_kept(store)
        if oldest_kept is None or store.write_meta.is_failed:
            return False
        first = store.own_first_timestamp(store.tail.page_number)
        if first is None or store.clock.credited(first) >= oldest_kept:
            return False
        try:
            with Producer(store, store.clock) as producer:
                return producer.rotate(timeout=0.0) is not None
        except errors.QueueFull:  # consumers keep older pages, so they keep this one, too
            return False

    def renew(self, store: Store, number: int, *, is_held: bool) -> WritablePage | None:
        """Make the next page of a ring of its oldest one; see `RingTrimmer.advance`."""
        return None if self._ring is None else self._ring.advance(store, number, is_held=is_held)[1]

    def has_room(self, store: Store, number: int) -> bool:
        """Whether a page of this number fits without removing one."""
        return self._limit.allows(store, number)

    def make_room(
        self, store: Store, number: int, check: Callable[[], None] | None, deadline: float
    ) -> None:
        """Make room for a page before it is created; see `RoomMaker.make_room`."""
        if self.policy.max_bytes is not None:
            self._room.make_room(self, store, number, check, deadline)

    def trim_to(self, store: Store, page_limit: float, *, protects: bool) -> TrimReport:
        """Remove pages until at most `page_limit` remain.

        Args:
            store: of the queue.
            page_limit: pages that may remain.
            protects: whether pages that consumers need are kept.

        Raises:
            AccessDenied: this user may not remove the oldest page.
        """
        synced: dict[str, Place] = {}
        while True:
            store.folder.check()
            if store.write_meta.is_failed:
                return TrimReport()  # the messages at risk are rewritten first, if at all
            try:
                plan = self._planner.plan(store, page_limit, protects=protects)
                if plan.steps:
                    self._secure(store, plan, synced)
            except errors.Expired:
                continue  # another process trimmed meanwhile
            with store.folder.descriptor:  # closing waits until no page is left below the head
                removed = self._move_head(store, plan, protects=protects) if plan.steps else 0
                if removed is not None:
                    return self._removed(store, plan, removed)

    def _removed(self, store: Store, plan: TrimPlan, removed: int) -> TrimReport:
        """Remove the pages below the head, which has moved as planned; some bytes went already.

        Raises:
            AccessDenied: this user may not remove the oldest page.
        """
        pages = messages = 0
        if plan.steps:
            pages = plan.steps[-1].page_number - plan.head_page
            messages = first_of(plan.steps[-1]) - plan.head_sequence
            store.pages.drop_retired()
        removed += self.remove_retired(store)
        if plan.refused is not None:
            raise plan.refused
        return TrimReport(pages, messages, removed, plan.held_by)

    # --- T1 ---------------------------------------------------------------------------------------

    def _secure(self, store: Store, plan: TrimPlan, synced: dict[str, Place]) -> None:
        """Put on stable storage what the move of the head depends on (T1)."""
        folder, prefix = store.folder, store.prefix
        if plan.has_flow:
            self._keep_last(store, plan)
        elif store.meta.is_ring:
            return  # recovery after a power cut looks for the head (FORMAT.md, "Rings")
        try:
            for name, place in plan.places.items():
                if place.sequence is None or (at := synced.get(name)) == place:
                    continue
                end = first_of(plan.steps[-1]) if plan.steps else 0
                if at is not None and at.stamp == place.stamp and (at.sequence or 0) >= end:
                    continue
                with contextlib.suppress(errors.QueueNotFound):  # removed meanwhile
                    sync_cursor(folder, prefix, name)
                synced[name] = place
            for header in plan.steps:
                self._sync_header(store, header, whole=plan.has_flow)
            folder.sync()
        except OSError as error:
            raise store.flusher.latched(error) from error

    def _sync_header(self, store: Store, header: PageHeader, *, whole: bool) -> None:
        """Sync the header of a new head, although others may trim the page."""
        if header.page_number <= self._synced_to:
            return  # with a page before it, of the same commit
        try:
            last = sync_header(store, header.page_number, whole=whole)
            if last > header.page_number:
                self._synced_to = last
        except (errors.QueueNotFound, errors.CorruptPage):
            self._planner.headers.of(store, header.page_number)  # Expired: another one trimmed
            raise

    def _keep_last(self, store: Store, plan: TrimPlan) -> None:
        """Store the last message apart from its page where a new head is empty (T1).

        If that fails, its page is kept.
        """
        for header in list(plan.steps):
            last = first_of(header) - 1
            if last < plan.head_sequence or store.count(header.page_number) > 0:
                # It was stored when the head came to the first of several such pages, of one large
                # message; or `sync_header` puts this page's first message on stable storage.
                continue
            try:
                message = next(iter(Replay(store, None, None, last)))
                write_stored(store.folder, store.prefix, store.meta.queue_id, message)
                self._stored.add(last)
            except errors.Expired:
                raise
            except errors.PageQueueError as error:
                plan.refused = error
                plan.steps.clear()
                self._planner.step_to(store, plan, store.page_of_sequence(last))
                self._keep_last(store, plan)
                return

    # --- T2 ---------------------------------------------------------------------------------------

    def _move_head(self, store: Store, plan: TrimPlan, *, protects: bool) -> int | None:
        """Move the head (T2); return the bytes of the pages that were removed with it.

        The head never passes a consumer that was made or sought back since. No file is opened or
        listed, so that the lock is held as long for a million pages as for one; but the few pages
        of a ring are removed under it, so that nobody makes the next one beside them.

        Returns:
            None: the state that the plan was made by has changed.
        """
        with store.roller.lock.exclusive(store.lock_timeout, "trimming the queue"):
            store.folder.check()
            if store.write_meta.is_failed or store.read_meta.head_page != plan.head_page:
                return None
            if not store.read_meta.made_none_since(ReadMeta.CONSUMERS_MADE, plan.consumers_made):
                return None
            if any(place.moved_back(protects=protects) for place in plan.places.values()):
                return None
            for header in plan.steps:
                store.read_meta.advance(first_of(header), header.page_number)
            if not store.meta.is_ring:
                return 0
            store.pages.drop_retired()
            return self.remove_retired(store)

    # --- T3 and T4 --------------------------------------------------------------------------------

    def remove_retired(self, store: Store) -> int:
        """Remove the pages below the head; return their bytes.

        Without the lock: no process creates, opens or renames files below the head any more.
        """
        folder, prefix, head_page = store.folder, store.prefix, store.read_meta.head_page
        below = (fmt.page_name(prefix, head_page - 1), fmt.index_name(prefix, head_page - 1))
        if not any(map(folder.exists, below)):  # these are removed last
            return 0
        # T3. Before T4: the page of an older head on the disk would be missing.
        if not store.meta.is_ring:
            try:
                sync_state(folder, fmt.read_meta_name(prefix))
            except OSError as error:
                raise store.flusher.latched(error) from error
        # T4. Keep the newest page as the spare (U1): it is the one most likely in memory.
        if not store.meta.is_ring:
            removed = self._keep_as_spare(store, head_page - 1)
            kept = head_page
        else:  # the roll that asked for room uses the newest one again
            removed = 0
            kept = head_page - 1 if store.roller.can_renew(head_page - 1) else head_page
        for name in self._retired(store, kept):
            status = folder.status(name)
            removed += 0 if status is None else status.st_size
            folder.remove(name)
        forget_stored(folder, prefix, self._stored, store.read_meta.head_sequence)
        self._has_swept = True
        return removed

    def _retired(self, store: Store, head_page: int) -> list[str]:
        """Return the files below the head, oldest first, a page before its index.

        They are an unbroken run up to the head, because the oldest are removed first. Only a copy
        or a power cut causes others, before the queue is opened; so the directory is listed once.
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

    def _keep_as_spare(self, store: Store, number: int) -> int:
        """Keep a retired page as the spare if it is worth it; return its bytes."""
        page_bytes = store.meta.page_bytes
        if not is_worth_it(page_bytes):
            return 0
        with store.roller.lock.exclusive(store.lock_timeout, "trimming the queue"):
            if store.folder.exists(fmt.page_name(store.prefix, store.tail.page_number + 1)):
                return 0
            return page_bytes if store.keep_spare(number) else 0


def sync_header(store: Store, number: int, *, whole: bool) -> int:
    """Put a page's header and its first batch on stable storage; raise the system's own error.

    Its last byte too, which gives the file its size: a page that was written as a file, of a large
    message, has on the disk only the size of what was written back.

    After a power cut a flow continues after that batch. The rest of the new head needs no sync:
    messages are durable up to the durable mark only, and syncing all of a page that was never
    flushed would take as long as writing it. But the messages of a bulk commit that goes on in the
    next page are kept with all of its pages only, so these are synced too, with all fragments.

    Args:
        store: of the queue.
        number: of the page.
        whole: whether the same is done for a large message that is alone, for a flow.

    Returns:
        the number of the last page that was synced.
    """
    folder, prefix, meta = store.folder, store.prefix, store.meta
    large_end = 0
    while True:
        header = read_header(folder, prefix, meta.queue_id, number)
        name, first = fmt.page_name(prefix, number), header.first_sequence
        if header.is_compressed:  # such a page was synced before it was renamed
            head = head_in(map_page(folder, name, meta))
        else:
            try:
                page = map_plain(folder, name, meta, writable=True, reserved=False)
            except errors.CorruptPage:
                if not read_header(folder, prefix, meta.queue_id, number).is_compressed:
                    raise
                continue  # it was compressed meanwhile
            head = head_in(page)
        if first is not None and first < store.write_meta.durable_sequence:
            head, header = None, header._replace(is_continued=False)  # a flush has synced all of it
        whole = whole or header.is_continued
        if head is not None and whole:
            large_end = number + head.fragments
        if not header.is_compressed:
            end = len(page)
            if not header.is_continued and number >= large_end:
                end = fmt.PAGE_HEADER_BYTES if first is None else first_batch_end(page, first)
            page.sync(len(page) - 1, 1)
            page.sync(0, -(-end // fmt.PAGE_BYTES_STEP) * fmt.PAGE_BYTES_STEP)
        if not header.is_continued and number + 1 >= large_end:
            return number
        number += 1
