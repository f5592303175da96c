"""Group: competing consumers, each message claimed by one at a time, over any number of processes.

The hot path is the core's `Claims`; here stands what it cannot settle by itself: the next page, a
message that retention took, owners that died, dead letters, and what is put on stable storage.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.group.async_claim import AwaitedClaims
from pagequeue.group.dead_letters import DeadLetters
from pagequeue.group.group_errors import refusal
from pagequeue.meta.group_table import GroupTable
from pagequeue.page.compressed_page import BlockInflater
from pagequeue.page.header import REMEDY
from pagequeue.page.page import REASONS
from pagequeue.system.file_lock import FileLock, LivenessLock
from pagequeue.util.closing import Closing
from pagequeue.util.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue._core import Claim, Message, Region
    from pagequeue.group.dead_letters import DeadLetter
    from pagequeue.store.store import Place, Store

MANY_MAX = 1 << 20
EXPIRED_REMEDY = "open the group with on_expired='skip', which goes on at {head}, the head"


class Group(_core.Claims, AwaitedClaims, Closing):
    """Claims messages together with others. Threads may share it; after a fork open it anew.

    Made by `Queue.group(name)`. What this handle has claimed and not acknowledged is delivered
    again when it is closed, or its process ends.

    Attributes:
        name: of the group.
    """

    __slots__ = (
        "__weakref__", "_dead", "_flush_lock", "_group_file", "_owner_lock", "_rested_at", "_skips",
        "_store", "name",
    )  # fmt: skip

    name: str
    _store: Store
    _group_file: GroupTable
    _owner_lock: LivenessLock
    _flush_lock: FileLock
    _dead: DeadLetters
    _skips: bool
    _rested_at: float

    def __new__(
        cls,
        store: Store,
        file: GroupTable,
        owner_lock: LivenessLock,
        owner: int,
        *,
        lease: float,
        max_deliveries: int | None,
        on_expired: str,
        clock: Callable[[], int] | None,
        wall: Callable[[], int] | None,
    ) -> Self:
        """Share what was found; the handle owns it from here on."""
        folder, prefix = store.folder, store.prefix
        own_name = fmt.cursor_name(prefix, file.name)
        # Where the lock of the table is flock itself, flushing needs another file.
        flush_name = fmt.read_meta_name(prefix) if _core.LOCK_NEEDS_FD else own_name
        flush_lock = FileLock(
            folder.open(flush_name, writable=False), folder.full(flush_name), folder.descriptor
        )
        with owner_lock.descriptor as fd:  # the core has it until the last thread is out
            self = super().__new__(
                cls, store.write_meta.region, file.region, file.capacity, fd,
                store.write_meta.is_foreign, owner, lease, max_deliveries or 0, store.lock_timeout,
                clock, wall,
            )  # fmt: skip
        self.name = file.name
        self._store = store
        self._group_file = file
        self._owner_lock = owner_lock
        self._flush_lock = flush_lock
        self._dead = DeadLetters(store, file.name)
        self._skips = on_expired == "skip"
        self._rested_at = 0.0
        if not store.schema.is_plain:
            self._decoder = store.schema.decoder
        return self

    def __init__(self, *shared: object, **options: object) -> None:
        """Everything is done in `__new__`."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next new message {self._next()[0]}"
        return f"<Group {self.name!r} of {self._store.folder.path!r}, {state}>"

    # --- what users call --------------------------------------------------------------------------

    def claim_many(self, limit_count: int, timeout: float | None = None) -> list[Claim]:
        """Claim several messages at once: those that came back first, in order of sequence.

        Args:
            limit_count: most to claim, 1 to 1_048_576. It also ends after about 1 MiB, after 1024,
                and with a page.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Returns:
            1 to `limit_count` claims.

        Raises:
            As for `claim`; what was claimed is given back then.
        """
        if not 1 <= whole("limit_count", limit_count) <= MANY_MAX:
            raise errors.InvalidOption(f"limit_count is {limit_count}: give 1 to {MANY_MAX}")
        return self._claim_many(limit_count, timeout)

    def flush(self) -> None:
        """Return when all that was acknowledged so far is on stable storage.

        Without it a power cut takes acknowledgements back, and messages come again; none is lost.

        Raises:
            SyncFailed: it could not be; acknowledged it is. Calling again writes all of it again.
            LockTimeout: another process was flushing for too long.
        """
        self._check()
        file, store = self._group_file, self._store
        before = file.region.load(file.SNAPSHOT)
        with self._flush_lock.exclusive(store.lock_timeout, "flushing a group"):
            if file.region.load(file.SNAPSHOT) > before + 1:
                return  # one that was begun after this call
            # Dies or is cut in here: the snapshot before this one is whole.
            new_sequence, records = self._snapshot()
            ordinal = file.write_snapshot(new_sequence, records)
            try:
                self._owner_lock.sync()
            except OSError as error:
                words = errors.describe(error)
                raise errors.SyncFailed(
                    f"what was acknowledged is not on stable storage ({words}): a power cut can "
                    "take it back, so that messages come again; mend the disk, then flush again",
                    path=file.path, position=0, reason=words,
                    first_sequence=file.region.load(file.NEXT), end_sequence=new_sequence,
                ) from error  # fmt: skip
            file.region.store(file.SNAPSHOT, ordinal)

    @property
    def lag(self) -> int:
        """Messages published and not acknowledged, those that are claimed included."""
        self._check()
        new_sequence = self._next()[0]
        waiting = max(0, self._store.tail.sequence - new_sequence)
        return waiting + self.outstanding

    @property
    def outstanding(self) -> int:
        """Messages that were claimed and not acknowledged, also those that wait to come again."""
        self._check()
        return self._group_file.region.load_half(GroupTable.OUTSTANDING)

    @property
    def missed(self) -> int:
        """Messages that retention took before they were claimed, passed over so far."""
        self._check()
        return self._group_file.region.load(GroupTable.MISSED)

    @property
    def dead_letter_prefix(self) -> str:
        """The prefix of the queue beside this one that takes the dead letters."""
        return self._dead.prefix

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Give the messages that were delivered `max_deliveries` times, as far as there are any."""
        self._check()
        return self._dead.read()

    def close(self) -> None:
        """Give back all that this handle has claimed, and let go; closing again does nothing."""
        if self._store.is_forked:
            return  # the parent's
        if not self._closed:
            with contextlib.suppress(errors.PageQueueError):
                self._release(self._owner)  # else whoever looks finds that nobody has them
        self._leave()
        self._dead.close()
        self._flush_lock.close()
        with contextlib.suppress(errors.ClosedError):  # then nobody waits any more
            self._store.write_meta.wake()

    def _let_go(self) -> None:
        """Close what the lock is taken by; the core calls it when the last thread is out."""
        self._owner_lock.close()

    def __del__(self) -> None:
        if hasattr(self, "_dead") and not self._store.is_forked:
            self._dead.close()
            self._flush_lock.close()
            self._owner_lock.close()

    # --- what the core asks -----------------------------------------------------------------------

    def _check(self) -> None:
        self._store.check_process("group")
        if self._closed:
            self._on_event(_core.EVENT_CLOSED, 0)

    def _on_event(self, event: int, value: int) -> bool:
        """Settle what the core could not; True = go on, False = there is nothing to claim yet."""
        if event == _core.EVENT_MOVED:
            return self._move()
        if event == _core.EVENT_IDLE:
            return self._look_at_owners()
        if event == _core.EVENT_DAMAGED:
            return self._damaged()
        raise refusal(self._store.folder.path, self._group_file, event, value)

    def _move(self) -> bool:
        """Map the page of the next new message, and say where in it that stands."""
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
                f"begins with message {page.first_sequence}, must be {sequence}: {REMEDY}",
                path=page.path, position=0, reason="wrong first sequence",
            )  # fmt: skip
        self._map(page.ready(position), number)
        return True

    def _map(self, region: Region, number: int) -> None:
        old: list[object] = [self._region]
        store, goes_on = self._store, 0 < self._page_number < number
        self._enter(region, number)
        store.background.drop(old)
        if goes_on and store.after_roll is not None:
            # What was taken can go now: there may be no producer who rolls for long.
            store.background.submit(store.after_roll)

    def _expire(self, sequence: int) -> bool:
        """Look for the next new message anew, because the page that it was to stand in is gone.

        A page goes when all in it is done, which can be before anybody was led beyond its end: then
        nothing is missed. Else go on at the head, and count what was missed, if that was chosen.
        """
        store = self._store
        place = store.seek_head()
        if self._next()[0] != sequence:
            return True  # another one did
        if place.sequence < sequence:  # only a damaged table says so
            place = store.seek_sequence(sequence)
        is_missed = place.sequence > sequence
        if is_missed and not self._skips:
            raise store.expired(EXPIRED_REMEDY)
        self._place(place.sequence, place.page.number, place.position, is_missed)
        return True

    def _damaged(self) -> bool:
        """Raise what is wrong at the next new message; not if it only stands elsewhere by now."""
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
        found = _core.look(page.ready(position), position, sequence)[0]
        if found in {_core.READ_FRAME, _core.READ_END} or store.tail.sequence <= sequence:
            self._map(page.ready(position), number)
            return True
        raise self._corrupt_frame(page.path, position, sequence, found)

    def _corrupt_frame(
        self, path: str, position: int, sequence: int, found: int
    ) -> errors.CorruptFrame:
        reason = REASONS.get(found, "unknown")
        return errors.CorruptFrame(
            f"message {sequence} at position {position}: {reason}: {REMEDY}",
            path=path, position=position, sequence=sequence, reason=reason,
        )  # fmt: skip

    # --- messages that were claimed ---------------------------------------------------------------

    def _find(
        self, sequence: int, number: int, position: int, reason: int
    ) -> tuple[Region, int] | None:
        """Return the page of a claimed message, and its position; None: retention took it."""
        del reason
        store = self._store
        try:
            if number >= fmt.FIRST_PAGE:
                return store.page(number).ready(position), position
            place: Place = store.seek_sequence(sequence)
        except errors.Expired:
            if not self._skips:
                raise
            file = self._group_file
            file.region.store(file.MISSED, file.region.load(file.MISSED) + 1)
            return None
        return place.page.ready(place.position), place.position

    def _look_again(
        self, sequence: int, number: int, position: int, reason: int
    ) -> tuple[Region, int] | None:
        """The same, when what stands there is wrong: its page can be another file by now."""
        del number, position, reason
        store = self._store
        head = store.read_meta.head_sequence
        if sequence >= head:
            store.page_again(store.page_of_sequence(sequence))
        return self._find(sequence, 0, 0, 0)

    def _unreadable(
        self, sequence: int, number: int, position: int, reason: int
    ) -> tuple[Region, int] | None:
        """Raise what is wrong with a claimed message; the claim is given back."""
        store = self._store
        if sequence < store.read_meta.head_sequence:
            return self._find(sequence, 0, 0, 0)
        number = number or store.page_of_sequence(sequence)
        path = store.folder.full(fmt.page_name(store.prefix, number))
        raise self._corrupt_frame(path, position, sequence, reason)

    def _is_damage(self, error: Exception) -> bool:
        """Return whether a message cannot be read because of itself, not of who reads it."""
        return isinstance(error, errors.DamageError | errors.SeekError)

    def _bury(
        self,
        slot: int,
        claim_id: int,
        sequence: int,
        number: int,
        position: int,
        deliveries: int,
        cause: int,
    ) -> None:
        """Put a message that was delivered too often among the dead letters, and be done with it.

        Dies behind sending it: it is there, and is claimed and sent once more, with its sequence.
        """
        try:
            message: Message | None = self._read(sequence, number, position)
        except errors.DamageError:
            message, cause = None, fmt.CAUSE_DAMAGE
        if message is not None or cause == fmt.CAUSE_DAMAGE:
            self._dead.send(sequence, message, deliveries, cause)
        file = self._group_file
        if self._settle(slot, claim_id, True, 0, 0):
            file.region.store(file.BURIED, file.region.load(file.BURIED) + 1)

    # --- owners that died -------------------------------------------------------------------------

    def _look_at_owners(self) -> bool:
        """Give back what dead handles had claimed; True if that was anything."""
        self._check_file()
        released = 0
        for owner in self._owners() if LivenessLock.KNOWN else ():
            if owner != self._owner and not self._owner_lock.is_held(owner):
                released += self._release(owner)
        return released > 0

    def _check_file(self) -> None:
        """Raise if the file was removed or replaced: another one can be in use by now."""
        folder = self._store.folder
        name = fmt.cursor_name(self._store.prefix, self.name)
        if folder.identity(name) != self._owner_lock.identity():
            self._leave()
            raise errors.LockReplaced(
                "the group's file was replaced or removed while it was open, so that others could "
                "have claimed the same: close the group everywhere, then open it again",
                path=self._group_file.path,
            )
