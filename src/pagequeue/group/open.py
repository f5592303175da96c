"""Opening a group, and creating it if it does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.group.dead_letters import DeadLetters
from pagequeue.group.group import Group
from pagequeue.meta.group_table import GroupTable, Snapshot, make_group_file, recreate
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.store.options import check_consumer_name, check_expired, check_group
from pagequeue.system.file_lock import LivenessLock
from pagequeue.system.namespaces import CLOCK_OFFSETS
from pagequeue.util.retry import BACKOFF, DELIVERIES_MAX, check_retry
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.store.store import Store
    from pagequeue.util.literals import Backoff, OnExpired
    from pagequeue.util.retry import Retry
    from pagequeue.util.timestamps import TimeLike


def open_group(
    store: Store,
    name: str,
    *,
    lease: float,
    max_deliveries: int | None = DELIVERIES_MAX,
    backoff: Backoff = BACKOFF,
    since: TimeLike | None,
    sequence: int | None,
    latest: bool,
    on_expired: OnExpired,
    capacity: int | None,
    clock: Callable[[], int] | None = None,
) -> Group:
    """Open a group, or create it.

    `clock` measures leases and delays, in ns, and must be the same for all handles: None is the
    system's monotonic one. The other arguments are those of `Queue.group`.

    Raises:
        UsageError: a consumer has this name; or the group exists, and a start was given.
    """
    path = store.folder.path
    check_consumer_name(path, name, "group")
    if clock is None and not store.is_clock_known:
        raise errors.SystemLimit(
            f"the clock that leases use is unknown: {CLOCK_OFFSETS} does not give its offset",
            path=path,
            remedy="open the group in a process that was started in its time namespace, with /proc "
            "mounted",
        )
    lease, capacity = check_group(path, lease, capacity)
    retry = check_retry(max_deliveries, backoff, path=path)
    check_expired(path, on_expired)
    if retry.deliveries_max is not None:
        try:
            DeadLetters(store, name).check()
        except errors.InvalidOption:
            if max_deliveries != DELIVERIES_MAX:
                raise
            retry = retry._replace(deliveries_max=None)  # the name leaves no room for a prefix
    given = (since is not None) + (sequence is not None) + bool(latest)
    if given > 1:
        raise errors.InvalidOption(
            "since, sequence and latest exclude each other", remedy="give one of them"
        )
    # Under this lock, so that retention does not move past the start before the group holds it, and
    # no process removes the group while it is opened.
    with store.roller.lock.exclusive(store.lock_timeout, "opening a group"):
        exists = store.folder.exists(fmt.cursor_name(store.prefix, name))
        if exists and given:
            raise errors.UsageError(
                f"group {name!r} exists and continues at its own position",
                path=path,
                remedy="omit since, sequence and latest, or remove the group",
            )
        if exists:
            _finish(store, name, capacity)
        else:
            _make(store, name, since=since, sequence=sequence, latest=latest, capacity=capacity)
        return _open(
            store,
            name,
            lease=lease,
            retry=retry,
            on_expired=on_expired,
            clock=clock,
        )


def _make(
    store: Store,
    name: str,
    *,
    since: TimeLike | None,
    sequence: int | None,
    latest: bool,
    capacity: int | None,
) -> None:
    if since is not None:
        begin = store.seek_since(to_ns(since, store.clock)).sequence
    elif sequence is not None:
        begin = store.seek_sequence(sequence).sequence
    else:
        begin = store.tail.sequence if latest else store.seek_head().sequence
    now = store.clock()
    with store.read_meta.making(ReadMeta.CONSUMERS_MADE):
        make_group_file(
            store.folder,
            store.prefix,
            store.meta.queue_id,
            name,
            Snapshot(begin),
            capacity=min(capacity or fmt.GROUP_CAPACITY_MAX, fmt.GROUP_CAPACITY_DEFAULT),
            limit=capacity or 0,
            created=now,
            now=now,
        )


def _finish(store: Store, name: str, capacity: int | None) -> None:
    """Recreate a file whose creator died before any process could use it; set its limit."""
    folder, queue_id = store.folder, store.meta.queue_id
    file = GroupTable(folder, store.prefix, queue_id, name, writable=True)
    if capacity is not None:
        file.region.store_half(GroupTable.LIMIT, capacity)
    if file.is_unfinished:
        with store.read_meta.making(ReadMeta.CONSUMERS_MADE):
            head_sequence = store.read_meta.head_sequence if store.meta.is_ring else 0
            recreate(
                folder,
                store.prefix,
                queue_id,
                file,
                head_sequence,
                store.tail.sequence,
                store.clock(),
            )
    else:
        file.close()


def _open(
    store: Store,
    name: str,
    *,
    lease: float,
    retry: Retry,
    on_expired: OnExpired,
    clock: Callable[[], int] | None,
) -> Group:
    folder = store.folder
    file = GroupTable(folder, store.prefix, store.meta.queue_id, name, writable=True, grows=True)
    file_name = fmt.cursor_name(store.prefix, name)
    owner_lock = LivenessLock(folder.open(file_name, writable=True, what="group"), file.path)
    try:
        file.check_usable()
        while True:
            owner = file.region.load(file.OWNER) + 1
            file.region.store(file.OWNER, owner)
            if owner_lock.take(owner):
                break
        file.region.store(file.OPENED, store.clock())
        return Group(
            store,
            file,
            owner_lock,
            owner,
            lease=lease,
            retry=retry,
            on_expired=on_expired,
            clock=clock,
        )
    except BaseException:
        owner_lock.close()
        raise
