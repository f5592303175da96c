"""Group: competing consumers in any number of processes; each message has one claim at a time.

The hot path is the core's `Claims`. This module handles the events that the core passes on: the
next page, messages that retention removed, dead owners, dead letters, and flushes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.group.async_claim import Found, claimed, seconds_until
from pagequeue.group.dead_letters import DeadLetters, reason_of
from pagequeue.meta.group_table import GroupTable
from pagequeue.meta.meta_file import field_of, lost_meta, truncated_meta
from pagequeue.page.compressed_page import BlockInflater
from pagequeue.page.header import REMEDY
from pagequeue.page.large_message import large_message
from pagequeue.page.page import REASONS
from pagequeue.system.file_lock import FileLock, LivenessLock
from pagequeue.util.arguments import whole
from pagequeue.util.closing import Closing, finalizer
from pagequeue.wait.coroutine import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue._core import Claim, Message, Region
    from pagequeue.group.dead_letters import DeadLetter
    from pagequeue.store.store import Place, Store
    from pagequeue.util.literals import OnExpired
    from pagequeue.util.retry import Retry

log: logging.Logger = logging.getLogger("pagequeue")
MUTEX_AT: Final = field_of(fmt.GROUP_META, "mutex")
MANY_MAX = 1 << 20
CLOSE_SECONDS = 1.0
"""Closing waits so long for a flush of another process."""
GROW_AGAIN_SECONDS = 5.0
"""After which a handle tries again to make its table larger, for which there was no room."""
WARN_SECONDS = 60.0
"""The least time between two warnings of one handle that dead letters cannot be written."""
EXPIRED_REMEDY = "open the group with on_expired='skip', which continues at {head}, the head"


class Group(_core.Claims, Closing):
    """A handle of a named group, whose workers share the messages of a queue.

    `Queue.group(name)` opens it. Threads may share a handle; a forked child must open its own.
    Messages that this handle has claimed and not acknowledged are redelivered when it is closed or
    its process ends.

    Attributes:
        name: of the group.

    Example:
        >>> with queue.group("workers", lease=30) as group:
        ...     with group.claim(timeout=1.0) as claim:
        ...         claim.message.payload
        b'one'
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_dead",
        "_flush_lock",
        "_group_file",
        "_grow_from",
        "_owner_lock",
        "_retry",
        "_skips",
        "_store",
        "_turns",
        "_warn_from",
        "name",
    )

    name: str
    _store: Store
    _group_file: GroupTable
    _owner_lock: LivenessLock
    _flush_lock: FileLock
    _dead: DeadLetters
    _skips: bool
    _turns: Turns
    _clock: Callable[[], int]
    _retry: Retry
    _warn_from: float
    _grow_from: float

    def __new__(
        cls,
        store: Store,
        file: GroupTable,
        owner_lock: LivenessLock,
        owner: int,
        *,
        lease: float,
        retry: Retry,
        on_expired: OnExpired,
        clock: Callable[[], int] | None,
    ) -> Self:
        """Open a handle on an open table and a held owner lock; the handle then owns both."""
        folder, prefix = store.folder, store.prefix
        own_name = fmt.cursor_name(prefix, file.name)
        # Where the lock of the table is flock itself, flushing needs another file.
        flush_name = fmt.read_meta_name(prefix) if _core.LOCK_NEEDS_FD else own_name
        flush_lock = FileLock(
            folder.open(flush_name, writable=False), folder.full(flush_name), folder.descriptor
        )
        with owner_lock.descriptor as fd:  # the core has it until the last thread is out
            self = super().__new__(
                cls,
                store.write_meta.region,
                file.region,
                file.first,
                fd,
                store.write_meta.is_foreign,
                owner,
                lease,
                retry.deliveries_max or 0,
                retry.first,
                retry.most,
                store.lock_timeout,
                clock,
                store.clock,
            )
        self.name = file.name
        self._store = store
        self._group_file = file
        self._owner_lock = owner_lock
        self._flush_lock = flush_lock
        self._dead = DeadLetters(store, file.name)
        self._skips = on_expired == "skip"
        self._turns = Turns()
        self._clock = clock or _core.monotonic
        self._retry = retry
        self._warn_from = self._grow_from = 0.0
        if not store.schema.is_plain:
            self._decoder = store.schema.decoder
        return self

    def __init__(self, *shared: object, **options: object) -> None:
        """Leave everything to `__new__`."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next new message {self._next()[0]}"
        return f"<Group {self.name!r} of {self._store.folder.path!r}, {state}>"

    # --- public -----------------------------------------------------------------------------------

    def claim_many(self, limit_count: int, timeout: float | None = None) -> list[Claim]:
        """Claim several messages at once: redelivered ones first, then new ones in order.

        Args:
            limit_count: most to claim, 1 to 1_048_576. It also ends after about 1 MiB, after 1024,
                and with a page.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Returns:
            1 to `limit_count` claims.

        Raises:
            As for `claim`; messages claimed before the error are given back.

        Example:
            >>> [claim.message.payload for claim in group.claim_many(2)]
            [b'one', b'two']
        """
        return self._claim_many(whole("limit_count", limit_count, 1, MANY_MAX), timeout)

    def flush(self) -> None:
        """Put all acknowledgements so far on stable storage.

        Without it a power cut can revert acknowledgements, and their messages are redelivered; no
        message is lost.

        Raises:
            SyncFailed: the sync failed; the acknowledgements are visible, but not durable. Calling
                again writes all of them again.
            LockTimeout: another process was flushing for too long.

        Example:
            >>> claim.ack()
            >>> group.flush()
        """
        self._check()
        file, store = self._group_file, self._store
        before = file.region.load(file.SNAPSHOT)
        with self._flush_lock.exclusive(store.lock_timeout, "flushing a group"):
            if file.region.load(file.SNAPSHOT) > before + 1:
                return  # another process began and finished a flush after this call
            # Dies or power is cut in here: the snapshot before this one is whole.
            new_sequence, records = self._snapshot()
            ordinal = file.write_snapshot(new_sequence, records)
            try:
                self._owner_lock.sync()
            except OSError as error:
                words = errors.describe(error)
                raise errors.SyncFailed(
                    f"acknowledgements are not on stable storage ({words}): a power cut can revert "
                    "them, and their messages are then redelivered",
                    remedy="fix the disk, then flush again",
                    path=file.path,
                    position=0,
                    reason=words,
                    first_sequence=file.region.load(file.NEXT),
                    end_sequence=new_sequence,
                ) from error
            file.region.store(file.SNAPSHOT, ordinal)

    @property
    def lag(self) -> int:
        """Messages published and not acknowledged, including claimed ones.

        Example:
            >>> group.lag
            5
        """
        self._check()
        new_sequence = self._next()[0]
        waiting = max(0, self._store.tail.sequence - new_sequence)
        return waiting + self.outstanding

    @property
    def outstanding(self) -> int:
        """Messages claimed and not acknowledged, including those that await redelivery.

        Example:
            >>> claims = group.claim_many(2)
            >>> group.outstanding
            2
        """
        self._check()
        return self._group_file.region.load_half(GroupTable.OUTSTANDING)

    @property
    def ready(self) -> int:
        """Messages that can be claimed now: new ones, and those that are due for redelivery.

        Not those that are claimed, or delayed by `nack`.

        Example:
            >>> claims = group.claim_many(2)
            >>> group.ready
            3
        """
        self._check()
        new_sequence, (_, _, due) = self._group_file.read_state(self._clock(), self._retry[1:])
        return max(0, self._store.tail.sequence - new_sequence) + due

    @property
    def missed(self) -> int:
        """Messages skipped so far because retention removed them before they were claimed.

        Example:
            >>> group.missed
            0
        """
        self._check()
        return self._group_file.region.load(GroupTable.MISSED)

    @property
    def dead_letter_prefix(self) -> str:
        """The prefix of the dead-letter queue, in the same directory as the group's queue.

        Example:
            >>> group.dead_letter_prefix
            'queue.dead.workers'
        """
        return self._dead.prefix

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the messages that were delivered `max_deliveries` times or rejected, oldest first.

        Those that were requeued or purged are left out.

        Example:
            >>> [(letter.sequence, letter.reason) for letter in group.dead_letters()]
            [(0, 'was given back')]
        """
        self._check()
        return self._dead.read()

    def requeue_dead_letters(self, limit_count: int | None = None) -> int:
        """Send the oldest dead letters to the queue again, as new messages of now.

        Every consumer and group of the queue receives them. One that could not be read is left
        out, and logged. A process that is killed meanwhile can have sent some that the next call
        sends again.

        Args:
            limit_count: most to requeue; None: all.

        Returns:
            how many were sent.

        Raises:
            ConsumerInUse: another thread or process requeues or purges them now.
            QueueFull, DiskFull: there is no room; those that were sent are not dead letters any
                more, except for the last 1024.
            InvalidOption: `limit_count` is below 1.

        Example:
            >>> group.requeue_dead_letters()
            1
        """
        self._check()
        if limit_count is not None:
            remedy = "give 1 or more, or None for all"
            limit_count = whole("limit_count", limit_count, 1, remedy=remedy)
        return self._dead.requeue(limit_count)

    def purge_dead_letters(self) -> int:
        """Discard all dead letters: `dead_letters` does not yield them any more.

        Their pages stay until retention removes them from the dead-letter queue
        (`dead_letter_prefix`).

        Returns:
            how many were discarded.

        Raises:
            ConsumerInUse: another thread or process requeues or purges them now.

        Example:
            >>> group.purge_dead_letters()
            1
        """
        self._check()
        return self._dead.purge()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Claim:
        return self.claim()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim:
        return await self.claim_async()

    async def claim_async(self, timeout: float | None = None) -> Claim:
        """Claim as `claim` does, and let the event loop run meanwhile.

        `async for claim in group` does this repeatedly. Any number of coroutines may claim from one
        group. A cancelled call has claimed no message.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            As for `claim`.

        Example:
            >>> claim = await group.claim_async(timeout=1.0)
            >>> claim.message.payload
            b'one'
        """
        return await self._claimed(lambda: self.claim(0), timeout)  # I7: no waiter misses a message

    async def claim_many_async(self, limit_count: int, timeout: float | None = None) -> list[Claim]:
        """Claim as `claim_many` does, and let the event loop run meanwhile.

        Args:
            limit_count: most to claim, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Raises:
            As for `claim_many`.

        Example:
            >>> [claim.message.payload for claim in await group.claim_many_async(2)]
            [b'one', b'two']
        """
        return await self._claimed(lambda: self.claim_many(limit_count, 0), timeout)

    # The `with` blocks of claims; the core calls these.

    def _give_back(self, claim: Claim, error: BaseException) -> None:
        """Give a claim back, because its block raised; add a note to the error if that fails."""
        try:
            if isinstance(error, Exception):
                claim.nack(reason=reason_of(error))
            else:  # the worker is stopped: the message is not the cause
                claim.nack()
        except errors.PageQueueError as failed:
            error.add_note(f"message {claim.message.sequence} was not given back: {failed}")

    async def _begin_async(self, claim: Claim) -> Claim:
        return claim

    async def _end_async(self, claim: Claim, error: BaseException | None) -> None:
        if claim._is_settled:  # noqa: SLF001 - the core's, for this
            return
        if error is None:
            claim.ack()
        elif not isinstance(error, Exception) or not self._retry.is_spent(claim.deliveries):
            self._give_back(claim, error)
        else:  # it goes to the dead letters, which waits for the disk
            failed = error
            job = self._store.jobs.run(object(), lambda _: self._give_back(claim, failed))
            await job.wait()

    async def _claimed(self, claim: Callable[[], Found], timeout: float | None) -> Found:
        return await claimed(
            self._store, self._turns, claim, self._is_near, self._next_due, timeout
        )

    def _next_due(self) -> float | None:
        """Return the seconds until a claim may succeed without a publication; None: never."""
        return seconds_until(self._wake_in(), self.outstanding)

    def _is_near(self) -> bool:
        """Whether a claim may succeed; called by the notifier's thread."""
        return self._closed or self.outstanding > 0 or self._has_new()

    def _has_new(self) -> bool:
        """Whether a message was published and not claimed yet."""
        return self._next()[0] < self._store.tail.sequence

    def close(self) -> None:
        """Give back all claims of this handle and close it; closing again has no effect.

        Example:
            >>> group.close()
        """
        if self._store.is_forked:
            return  # the parent's
        if not self._closed:
            with contextlib.suppress(errors.PageQueueError):
                self._release(self._owner)  # else the next check for dead owners releases them
            with contextlib.suppress(errors.PageQueueError):
                self._write_state()
        self._leave()
        self._dead.close()
        self._flush_lock.close()
        with contextlib.suppress(errors.ClosedError):  # then no thread waits any more
            self._store.write_meta.wake()

    def _write_state(self) -> None:
        """Write a snapshot without a sync, for an opener that cannot trust the table.

        That is one of another mount, in a container for example. The snapshot has the ordinal of
        the next flush, and so not the place of the last flush's, which is whole if a power cut
        tears this one (F2, F4).
        """
        file = self._group_file
        until = time.monotonic() + CLOSE_SECONDS
        with self._flush_lock.exclusive(CLOSE_SECONDS, "closing a group", until):
            # Dies in here: the table is trusted where it was, and the last flush's is whole.
            file.write_snapshot(*self._snapshot())

    def _close_lock(self) -> None:
        """Close the lock's file; the core calls it when the last thread has left."""
        self._owner_lock.close()

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_dead") and not self._store.is_forked:
            self._dead.close()
            self._flush_lock.close()
            self._owner_lock.close()

    # --- events of the core -----------------------------------------------------------------------

    def _check(self) -> None:
        self._store.check_process("group")
        if self._closed:
            self._on_closed()

    def _on_place(self) -> None:
        """Raise if the queue's directory, or the group's file, is not what its name leads to."""
        folder = self._store.folder
        folder.check()
        name = fmt.cursor_name(self._store.prefix, self.name)
        if folder.identity(name) != self._owner_lock.identity():
            self._leave()
            raise errors.LockReplaced(
                "the group's file was replaced or removed while it was open, so that other "
                "processes may have claimed the same messages",
                path=self._group_file.path,
                remedy="close the group everywhere, then open it again",
            )

    def _on_idle(self) -> bool:
        return self._release_dead_owners()

    def _on_table_full(self, seen: int) -> bool:
        """Double the table, of which so many records were seen in use; False: not possible now."""
        if time.monotonic() < self._grow_from:
            return False
        try:
            with self._flush_lock.exclusive(self._store.lock_timeout, "growing a group"):
                return self._group_file.grow(seen)
        except (errors.DiskFull, errors.SystemLimit, errors.AccessError) as error:
            self._grow_from = time.monotonic() + GROW_AGAIN_SECONDS
            log.warning("%s: group %r: %s", self._store.folder.path, self.name, error)
            return False

    def _on_beyond(self) -> None:
        raise errors.SystemLimit(
            "another process made the group's table larger than this one has mapped, because its "
            "address space is limited",
            path=self._group_file.path,
            remedy="raise the limit (`ulimit -v`), then open the group again",
        )

    def _on_timeout(self, waited_ns: int) -> None:
        raise nothing_received(self._store.folder.path, self._group_file, waited_ns)

    def _on_lost(self) -> None:
        file = self._group_file
        raise lost_meta(file.path, file.region.lost_at)

    def _on_no_lock(self, number: int) -> None:
        file = self._group_file
        if not _core.LOCK_NEEDS_FD:  # its content is wrong
            cut = truncated_meta(file.path, file.size_bytes)
            raise cut or file.corrupt(MUTEX_AT, "its lock was overwritten")
        raise errors.SystemLimit(
            f"acquiring the group's lock failed (error {number})",
            path=self._store.folder.path,
            remedy="see the system's log",
        )

    def _on_lease_lost(self, sequence: int) -> None:
        raise errors.LeaseLost(
            f"the claim of message {sequence} is not live any more: its lease ended or the message "
            "was given to another worker",
            path=self._store.folder.path,
            sequence=sequence,
            remedy="claim again, and extend the claims of long work",
        )

    def _on_settled(self, sequence: int) -> None:
        raise errors.UsageError(
            f"this claim of message {sequence} was already acknowledged or given back",
            path=self._store.folder.path,
            remedy="acknowledge or give back each claim once",
        )

    def _on_stalled(self, waited_ns: int) -> None:
        raise errors.LockTimeout(
            f"another process held the group's lock for {waited_ns / 1e9:g} s",
            path=self._store.folder.path,
            remedy="call again, and find the stopped process that has the group open",
        )

    def _on_forked(self) -> None:
        raise errors.ForkedError(
            "this group belongs to the parent process",
            path=self._store.folder.path,
            remedy="open the queue in the child",
        )

    def _on_closed(self) -> None:
        raise errors.ClosedError(
            "this group is closed", path=self._store.folder.path, remedy="open it again"
        )

    def _on_moved(self) -> bool:
        """Map the page of the next new message, and set its position."""
        store = self._store
        sequence, number, position = self._next()
        try:
            if number < fmt.FIRST_PAGE:
                place = store.seek_sequence(sequence)
                self._place(sequence, place.page.number, place.position, False)
                number, position = place.page.number, place.position
            page = store.page(number)
        except errors.Expired:
            return self._expire(sequence)
        if position == fmt.PAGE_HEADER_BYTES and page.first_sequence > sequence:
            raise errors.CorruptPage(
                f"begins with message {page.first_sequence}, must be {sequence}",
                remedy=REMEDY,
                path=page.path,
                position=0,
                reason="wrong first sequence",
            )
        self._map(page.ready(position), number)
        return True

    def _map(self, region: Region, number: int) -> None:
        old: list[object] = [self._region]
        store, has_left_page = self._store, 0 < self._page_number < number
        self._enter(region, number)
        store.background.drop(old)
        if has_left_page:
            # Retention can remove the page that was left: the next roll may be far away.
            store.policy.rolled(store)

    def _expire(self, sequence: int) -> bool:
        """Re-resolve the next new message: retention removed its page.

        A page is removed once all its messages are acknowledged, which can be before any worker
        followed its end-of-page marker: then no message is missed. Else continue at the head and
        count the missed messages, if `on_expired` is "skip".
        """
        store = self._store
        place = store.seek_head()
        if self._next()[0] != sequence:
            return True  # another worker did it
        if place.sequence < sequence:  # only with a damaged table
            place = store.seek_sequence(sequence)
        is_missed = place.sequence > sequence
        if is_missed and not self._skips:
            raise store.expired(EXPIRED_REMEDY)
        self._place(place.sequence, place.page.number, place.position, is_missed)
        return True

    def _on_damaged(self, _: int) -> bool:
        """Raise the damage at the next new message, unless that message has moved since."""
        store = self._store
        sequence, number, position = self._next()
        if number < store.read_meta.head_page:
            return self._expire(sequence)
        region = self._region
        filler = None if region is None else region.filler
        if (
            region is not None
            and isinstance(filler, BlockInflater)
            and filler.fill(region, position)
        ):
            return True  # it is in the next block of a compressed page
        if region is not None and region.broken:
            self._map(store.page_again(number).ready(position), number)
        place = store.seek_sequence(sequence)
        if (place.page.number, place.position) != (number, position):
            self._place(sequence, place.page.number, place.position, False)
            return True
        page = store.page_again(number)
        found = _core.peek(page.ready(position), position, sequence)[0]
        if found in {_core.READ_FRAME, _core.READ_END} or store.tail.sequence <= sequence:
            self._map(page.ready(position), number)
            return True
        raise self._corrupt_frame(page.path, position, sequence, found)

    def _corrupt_frame(
        self, path: str, position: int, sequence: int, found: int
    ) -> errors.CorruptFrame:
        reason = REASONS.get(found, "unknown")
        return errors.CorruptFrame(
            f"message {sequence} at position {position}: {reason}",
            remedy=REMEDY,
            path=path,
            position=position,
            sequence=sequence,
            reason=reason,
        )

    # --- claimed messages -------------------------------------------------------------------------

    def _large(self, number: int, position: int, timestamp: int, sequence: int) -> Message | None:
        """Return the claimed message whose head the core found; None: retention removed it."""
        store = self._store
        try:
            number = number or store.page_of_sequence(sequence)
            return large_message(store.page, number, position, timestamp, sequence, self._decoder)
        except errors.Expired:
            if self._skips:
                return None
            raise

    def _find(
        self, sequence: int, number: int, position: int, reason: int
    ) -> tuple[Region, int] | None:
        """Return the page of a claimed message, and its position; None: retention removed it."""
        del reason
        store = self._store
        try:
            if number >= fmt.FIRST_PAGE:
                return store.page(number).ready(position), position
            place: Place = store.seek_sequence(sequence)
        except errors.Expired:
            if self._skips:
                return None
            raise
        return place.page.ready(place.position), place.position

    def _reopen_page(
        self, sequence: int, number: int, position: int, reason: int
    ) -> tuple[Region, int] | None:
        """Do the same after an invalid frame: the page can have been replaced by another file."""
        del number, position, reason
        store = self._store
        head = store.read_meta.head_sequence
        if sequence >= head:
            store.page_again(store.page_of_sequence(sequence))
        return self._find(sequence, 0, 0, 0)

    def _unreadable(
        self, sequence: int, number: int, position: int, reason: int
    ) -> tuple[Region, int] | None:
        """Raise the damage of a claimed message; the core gives the claim back."""
        store = self._store
        if sequence < store.read_meta.head_sequence:
            return self._find(sequence, 0, 0, 0)
        number = number or store.page_of_sequence(sequence)
        path = store.folder.full(fmt.page_name(store.prefix, number))
        raise self._corrupt_frame(path, position, sequence, reason)

    def _is_damage(self, error: Exception) -> bool:
        """Return whether reading a message fails because of the message, not of the reader."""
        return isinstance(error, errors.DamageError | errors.SeekError | MemoryError)

    def _move_to_dead_letters(
        self,
        slot: int,
        claim_id: int,
        sequence: int,
        number: int,
        position: int,
        deliveries: int,
        cause: int,
    ) -> bool:
        """Move a message that was delivered too often to the dead letters, and acknowledge it.

        Dies after sending it: the message is claimed and sent there again, with its sequence.

        Returns:
            False: the dead letters cannot be written; the log says why. It stays as it is, and
            other messages are delivered.
        """
        message: Message | None = None
        is_damaged = False
        try:
            with contextlib.suppress(errors.SeekError):  # retention removed it: it is missed
                message = self._read(sequence, number, position)
        except errors.DamageError:
            is_damaged = True
        if is_damaged:
            cause = fmt.CAUSE_DAMAGE
        elif cause == fmt.CAUSE_DAMAGE:  # it is readable now
            cause = fmt.CAUSE_NONE
        is_dead = is_damaged or message is not None
        try:
            if is_dead:
                self._dead.send(sequence, message, deliveries, cause)
        except (errors.PageQueueError, OSError, MemoryError) as error:
            self._check()  # closed meanwhile, which is not the message's fault: it waits no minute
            self._cannot_move(sequence, deliveries, error)
            return False
        self._settle(slot, claim_id, is_dead)
        return True

    def _cannot_move(self, sequence: int, deliveries: int, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._warn_from:
            self._warn_from = now + WARN_SECONDS
            log.warning(
                "%s: group %r: message %d was delivered %d times in vain, and cannot be moved to "
                "the dead letters, which is tried again each minute: %s",
                self._store.folder.path,
                self.name,
                sequence,
                deliveries,
                error,
            )

    def _send_to_dead_letters(
        self,
        slot: int,
        claim_id: int,
        sequence: int,
        message: Message,
        deliveries: int,
        cause: int,
        reason: str | None,
    ) -> bool:
        """Move a claimed message to the dead letters; False: its lease ended meanwhile.

        Dies after sending it: it is claimed again, and can be sent there twice.
        """
        self._dead.send(sequence, message, deliveries, cause, reason)
        return self._settle(slot, claim_id, True)

    # --- dead owners ------------------------------------------------------------------------------

    def _release_dead_owners(self) -> bool:
        """Release the claims of dead handles; True if any were released."""
        released = 0
        for owner in self._owners() if LivenessLock.KNOWN else ():
            if owner != self._owner and not self._owner_lock.is_held(owner):
                released += self._release(owner)
        return released > 0


def nothing_received(path: str, file: GroupTable, waited_ns: int) -> errors.NothingReceived:
    """Return the error for a claim for which no message came in time."""
    most = min(file.capacity, file.limit)
    if file.region.load_half(file.OUTSTANDING) >= most:
        return errors.TooManyClaims(
            f"{most} messages are claimed or delayed, which is the group's capacity",
            path=file.path,
            remedy="acknowledge some, or open the group with more capacity",
        )
    return errors.NothingReceived(
        f"no message to claim within {waited_ns / 1e9:g} s", path=path, remedy="call again"
    )
