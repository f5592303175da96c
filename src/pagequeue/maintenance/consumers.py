"""The named consumers and groups of a queue: their state, idleness, and removal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.cursor import is_open, locked, readable_cursors
from pagequeue.meta.group_table import GroupTable
from pagequeue.store.options import check_consumer_name
from pagequeue.system.file_lock import LivenessLock
from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from datetime import datetime

    from pagequeue.meta.cursor import CursorMeta
    from pagequeue.store.store import Store


@dataclass(frozen=True)
class GroupInfo:
    """The part of a group's state that a consumer does not have.

    Attributes:
        claimed: messages with a live claim.
        waiting: messages that were claimed and await redelivery.
        dead_letters: messages moved to its dead letters so far.
        missed: messages that retention removed before they were claimed.
        capacity: most messages that can be claimed or waiting at a time.
        ready: messages that can be claimed now: new ones, and of those waiting the ones that are
            due.

    Example:
        >>> queue.consumers()[0].group.claimed
        3
    """

    claimed: int
    waiting: int
    dead_letters: int
    missed: int
    capacity: int
    ready: int


@dataclass(frozen=True)
class ConsumerInfo:
    """A named consumer, or a group, at one time.

    Attributes:
        name: of the consumer.
        next_sequence: every message below it is acknowledged; None if its file is damaged.
        lag: messages published and not acknowledged, including those that a group has claimed; None
            if its file is damaged.
        last_ack: time of the last acknowledgement, None before the first one.
        is_open: whether a thread or process has it open.
        is_idle: whether it was silent for longer than this queue's `Retention(max_idle=...)`, so
            that it does not keep pages any more.
        problem: what is wrong with its file; None if it is valid.
        group: claims and dead letters of a group; None for a consumer.
        oldest_time: of the oldest retained message that it has not acknowledged; None if it has
            acknowledged all.

    Example:
        >>> [(consumer.name, consumer.lag) for consumer in queue.consumers()]
        [('billing', 4)]
    """

    name: str
    next_sequence: int | None
    lag: int | None
    last_ack: datetime | None
    is_open: bool
    is_idle: bool = False
    problem: str | None = None
    group: GroupInfo | None = None
    oldest_time: datetime | None = None


def consumers(store: Store) -> list[ConsumerInfo]:
    """Return all named consumers and groups, in order of their names; `problem` marks damage."""
    result: list[ConsumerInfo] = []
    for name, cursor in readable_cursors(store.folder, store.prefix, store.meta.queue_id):
        try:
            taken = is_open(store.folder, store.prefix, name)
        except errors.QueueNotFound:
            continue  # removed meanwhile
        except errors.AccessError:
            taken = False  # not a regular file: reported as its problem
        if isinstance(cursor, errors.PageQueueError):
            result.append(ConsumerInfo(name, None, None, None, taken, problem=str(cursor)))
            continue
        sequence, last_ack = cursor.next_sequence, cursor.last_ack
        lag, group = max(0, store.tail.sequence - sequence), None
        if cursor.is_group:
            try:
                taken, lag, group = _group_state(store, name)
            except errors.PageQueueError as error:
                result.append(ConsumerInfo(name, None, None, None, taken, problem=str(error)))
                continue
        result.append(
            ConsumerInfo(
                name,
                sequence,
                lag,
                to_datetime(last_ack) if last_ack else None,
                taken,
                is_idle(store, cursor),
                group=group,
                oldest_time=_oldest_time(store, sequence),
            )
        )
    return result


def _group_state(store: Store, name: str) -> tuple[bool, int, GroupInfo]:
    """Return whether a group is open, its lag, and the state of its table."""
    file = GroupTable(store.folder, store.prefix, store.meta.queue_id, name, writable=False)
    try:
        new_sequence, (claimed, waiting, due) = file.read_state(_core.monotonic())
        word = file.region.load
        dead_letters, missed = word(GroupTable.DEAD_LETTERS), word(GroupTable.MISSED)
        new = max(0, store.tail.sequence - new_sequence)
        lag = new + claimed + waiting
        state = GroupInfo(claimed, waiting, dead_letters, missed, file.limit, new + due)
        return _is_group_open(store, name), lag, state
    finally:
        file.close()


def _is_group_open(store: Store, name: str) -> bool:
    """Whether any handle of a group is alive."""
    file_name = fmt.cursor_name(store.prefix, name)
    path = store.folder.full(file_name)
    owners = LivenessLock(store.folder.open(file_name, writable=False), path)
    try:
        return owners.is_held()
    finally:
        owners.close()


def _oldest_time(store: Store, sequence: int) -> datetime | None:
    """Return the time of the first retained message from a sequence on."""
    while True:
        sequence = max(sequence, store.read_meta.head_sequence)
        if sequence >= store.tail.sequence:
            return None
        try:
            return to_datetime(store.time_at(sequence))
        except errors.Expired:
            continue  # retention moved past it meanwhile
        except errors.DamageError:
            return None


def is_idle(store: Store, cursor: CursorMeta) -> bool:
    """Whether a consumer was silent for too long while it had messages to acknowledge.

    Creating it, opening it, and acknowledging end a silence. A silence begins no earlier than the
    first message that it has not acknowledged.
    """
    if store.limits.idle_ns is None:
        return False
    since, sequence = cursor.seen, cursor.next_sequence
    oldest_kept, credited = store.clock() - store.limits.idle_ns, store.clock.credited
    if credited(since) >= oldest_kept or sequence >= store.tail.sequence:
        return False
    try:
        place = store.seek_sequence(sequence)
    except (errors.Expired, errors.DamageError):
        return True  # it fell behind retention, or is at damage; and it was silent
    found, timestamp, _, _ = _core.peek(place.page.ready(place.position), place.position, sequence)
    return found != _core.READ_FRAME or credited(timestamp) < oldest_kept


def remove_consumer(store: Store, name: str) -> None:
    """Remove a named consumer or a group permanently; the dead letters of a group remain.

    Raises:
        ConsumerNotFound: no consumer has this name.
        ConsumerInUse: a thread or process has it open.
    """
    check_consumer_name(store.folder.path, name)
    # Under this lock, so that no process opens a group while it is removed.
    with store.roller.lock.exclusive(store.lock_timeout, "removing a consumer"):
        _remove(store, name)


def _remove(store: Store, name: str) -> None:
    try:
        lock = locked(store.folder, store.prefix, name)
    except errors.QueueNotFound as error:
        raise errors.ConsumerNotFound(
            f"no consumer has the name {name!r}",
            path=store.folder.path,
            remedy="queue.consumers() lists them",
        ) from error
    try:
        if _is_group_open(store, name):
            raise errors.ConsumerInUse(
                f"group {name!r} is open, in this process or in another one",
                path=store.folder.full(fmt.cursor_name(store.prefix, name)),
                remedy="close it first",
            )
        store.folder.remove(fmt.cursor_name(store.prefix, name))
        store.folder.sync_entries()
    finally:
        lock.close()
