"""The named consumers and groups of a queue: where each stands, who is silent, and removing one."""

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
    """What a group has besides what every consumer has.

    Attributes:
        claimed: messages with a live claim.
        waiting: messages that were claimed and come again, now or later.
        dead_letters: messages that went to its dead letters so far.
        missed: messages that retention took before they were claimed.
        capacity: most messages that can be claimed or waiting at a time.
    """

    claimed: int
    waiting: int
    dead_letters: int
    missed: int
    capacity: int


@dataclass(frozen=True)
class ConsumerInfo:
    """A named consumer, or a group, at one moment.

    Attributes:
        name: of the consumer.
        next_sequence: every message below it is acknowledged; None if its file is damaged.
        lag: messages published and not acknowledged, those that a group has claimed included; None
            if its file is damaged.
        last_ack: when something was acknowledged last, None if nothing was.
        is_open: whether a thread or process has it open.
        is_idle: whether it was silent for longer than this queue's `Retention(max_idle=...)`, so
            that it does not keep pages any more.
        problem: what is wrong with its file, None if nothing is.
        group: what only a group has; None for a consumer.
        oldest_time: of the oldest message that it has not acknowledged and that is there; None if
            there is none.
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
    """Return all named consumers and groups, in order of their names; a damaged one says so."""
    result: list[ConsumerInfo] = []
    for name, cursor in readable_cursors(store.folder, store.prefix, store.meta.queue_id):
        try:
            taken = is_open(store.folder, store.prefix, name)
        except errors.QueueNotFound:
            continue  # removed meanwhile
        except errors.AccessError:
            taken = False  # no regular file: that is told as its problem
        if isinstance(cursor, errors.PageQueueError):
            result.append(ConsumerInfo(name, None, None, None, taken, problem=str(cursor)))
            continue
        sequence, last_ack = cursor.next_sequence, cursor.last_ack
        lag, group = max(0, store.tail.sequence - sequence), None
        if cursor.is_group:
            try:
                taken, lag, group = _look_at_group(store, name)
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


def _look_at_group(store: Store, name: str) -> tuple[bool, int, GroupInfo]:
    """Return whether anybody has a group open, how many messages it has to do, and its table."""
    file = GroupTable(store.folder, store.prefix, store.meta.queue_id, name, writable=False)
    try:
        new_sequence, states = file.look(_core.monotonic())
        word = file.region.load
        buried, missed = word(GroupTable.BURIED), word(GroupTable.MISSED)
        lag = max(0, store.tail.sequence - new_sequence) + sum(states)
        return (
            _is_group_open(store, name), lag, GroupInfo(*states, buried, missed, file.capacity)
        )  # fmt: skip
    finally:
        file.close()


def _is_group_open(store: Store, name: str) -> bool:
    """Whether any handle of a group is alive, as of now."""
    file_name = fmt.cursor_name(store.prefix, name)
    path = store.folder.full(file_name)
    owners = LivenessLock(store.folder.open(file_name, writable=False), path)
    try:
        return owners.is_held()
    finally:
        owners.close()


def _oldest_time(store: Store, sequence: int) -> datetime | None:
    """Return the time of the first message from a place on that is there."""
    while True:
        sequence = max(sequence, store.read_meta.head_sequence)
        if sequence >= store.tail.sequence:
            return None
        try:
            return to_datetime(store.time_at(sequence))
        except errors.Expired:
            continue  # retention went on in between
        except errors.DamageError:
            return None


def is_idle(store: Store, cursor: CursorMeta) -> bool:
    """Whether a consumer was silent for too long, and had something to acknowledge all the while.

    A sign of life is making it, opening it, and acknowledging. Silence does not begin before there
    is a message that it has not acknowledged.
    """
    if store.max_idle_ns is None:
        return False
    since, sequence = cursor.seen, cursor.next_sequence
    oldest_kept = store.clock() - store.max_idle_ns
    if since >= oldest_kept or sequence >= store.tail.sequence:
        return False
    try:
        place = store.seek_sequence(sequence)
    except (errors.Expired, errors.DamageError):
        return True  # passed before, or it cannot be known; and it was silent
    found, timestamp, _, _ = _core.look(place.page.ready(place.position), place.position, sequence)
    return found != _core.READ_FRAME or timestamp < oldest_kept


def remove_consumer(store: Store, name: str) -> None:
    """Remove a named consumer or a group, for good; the dead letters of a group stay.

    Raises:
        ConsumerNotFound: there is none of this name.
        ConsumerInUse: a thread or process has it open.
    """
    check_consumer_name(store.folder.path, name)
    # Under this lock, so that nobody opens a group that is being removed.
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
                f"group {name!r} is open in a thread or process: close it there",
                path=store.folder.full(fmt.cursor_name(store.prefix, name)),
            )
        store.folder.remove(fmt.cursor_name(store.prefix, name))
        store.folder.sync_entries()
    finally:
        lock.close()
