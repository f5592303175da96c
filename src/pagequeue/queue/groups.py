"""What `Queue` offers to workers that share its messages, in a room of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue.group.open import open_group
from pagequeue.queue.maintenance import QueueMaintenance

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.group.group import Group
    from pagequeue.util.timestamps import Moment


class QueueGroups(QueueMaintenance):
    """The part of `Queue` that makes groups."""

    _clock: Callable[[], int] | None

    def group(
        self,
        name: str,
        *,
        lease: float = 30.0,
        max_deliveries: int | None = None,
        since: Moment | None = None,
        sequence: int | None = None,
        latest: bool = False,
        on_expired: str = "raise",
        capacity: int | None = None,
    ) -> Group:
        """Return a handle of a group: workers in any number of processes share its messages.

        Each message is claimed by one worker at a time, in order of sequence, and is delivered
        again until it is acknowledged: when it is given back, when its lease ends, and when the
        worker that has it dies. Retention keeps what is not acknowledged.

        Args:
            name: of the group; it is made where there is none, and no consumer may have it.
            lease: seconds that a claim of this handle is kept for it, unless it is extended.
            max_deliveries: a message that was delivered so often to no avail goes to a queue beside
                this one, with the reason: see `Group.dead_letters`. None: it comes again for ever.
            since: where a new group begins: the first message that is not older.
            sequence: the same: this message.
            latest: the same: the next message that is sent.
            on_expired: what happens when retention took messages first. `"raise"`: `Expired`.
                `"skip"`: the group goes on at the head and counts what it missed in `.missed`.
            capacity: most messages of a new group that can be claimed or delayed at a time, 65536
                unless it is given; its file takes 112 bytes for each.

        Raises:
            UsageError: a consumer has this name; or the group exists and a place, or another
                capacity than its own, was given.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            Expired: the sequence is before the head. SequenceOutOfRange: it is behind the tail.
            InvalidOption, TypeError, NaiveDatetime: what was given cannot be.
            DiskFull: there is no room for the group's file.

        Source: FORMAT.md, "Groups"; keeps I14, I15.
        """
        store = self._open()
        self._check_writable("share its messages")
        group = open_group(
            store, name, lease=lease, max_deliveries=max_deliveries, since=since,
            sequence=sequence, latest=latest, on_expired=on_expired, capacity=capacity,
            wall=self._clock,
        )  # fmt: skip
        return self._keep(group, store)
