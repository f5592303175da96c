"""Bugs of rings; each function plants one, as in `patches.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import format as fmt
from pagequeue.maintenance import trim_plan
from pagequeue.page import page
from pagequeue.store import power_loss_recovery
from stress.plants.plant import FULL, RING, in_c, in_python
from stress.plants.rewrite import rewrite

if TYPE_CHECKING:
    from pagequeue import errors
    from pagequeue.meta.cursor import CursorMeta

RINGS = (
    in_c(
        "renewed_while_it_is_read",
        "a ring uses a page again that a reader has mapped",
        "I13",
        {RING: 20.0},
        {
            "python/mapped_file.c": [
                (
                    "    if (flock(self->fd, LOCK_EX | LOCK_NB) != 0) {",
                    "    if (self->fd < 0) {",
                )
            ]
        },
    ),
    in_c(
        "lent_without_its_lock",
        "a reader uses a map that it kept without its lock",
        "I13",
        {RING: 20.0},
        {"python/mapped_file.c": [("    int error = hold(self->fd);", "    int error = 0;")]},
    ),
    in_python(
        "ring_forgets_groups",
        "a ring uses a page again that a group still needs",
        "I14, a dead worker's messages are gone",
        {RING: 20.0},
    ),
    in_c(
        "last_ack_wakes_no_sender",
        "the bell rings only for more than the sender waits for",
        "I7, a slow ring",
        {RING: 20.0},
        {"os/futex.c": [("sequence + 1 < found", "sequence + 1 <= found")]},
    ),
    in_c(
        "group_wakes_no_sender",
        "workers ring no bell of a sender that waits for room",
        "I7, a slow ring",
        {RING: 20.0},
        {"python/group_handle.c": [("if (pq_load_u64(floor_at) != floor) {", "if (floor == 1) {")]},
    ),
    in_c(
        "older_run_believed",
        "after a power cut the first run before the mark counts",
        "I5, what a page of the ring held before comes back",
        {RING: 30.0},
        {
            "protocol/judge.c": [
                (
                    "run->first <= mark && mark <= run->end) {",
                    "run->first <= mark && judge->kept.first_page == 0) {",
                ),
            ],
        },
    ),
    in_python(
        "ring_keeps_its_old_head",
        "after a power cut the head is left in a page that is gone",
        "I12",
        {RING: 30.0},
    ),
    in_python(
        "ring_raises_no_cursor",
        "after a power cut cursors stay before the head",
        "I12",
        {RING: 30.0},
    ),
    in_python(
        "blocks_believed",
        "all of a page that was there counts as reserved",
        "I10, a full disk ends the process",
        {FULL: 60.0},
    ),
)


def ring_forgets_groups() -> None:
    """Only consumers keep pages."""
    genuine = trim_plan.place_of

    def place_of(
        cursor: CursorMeta | errors.PageQueueError, *, protects: bool, idle: bool
    ) -> trim_plan.Place:
        place = genuine(cursor, protects=protects, idle=idle)
        if place.cursor is None or not place.cursor.is_group:
            return place
        return trim_plan.Place(fmt.SEQUENCE_MAX, place.stamp, place.has_flow, place.cursor)

    setattr(trim_plan, "place_of", place_of)  # noqa: B010  mypy forbids it in plain words


def ring_keeps_its_old_head() -> None:
    """V2 is left out."""
    rewrite(
        power_loss_recovery.Recovery,
        "_keep_run",
        ("elif head_page not in kept:", "elif not kept:"),
    )


def ring_raises_no_cursor() -> None:
    """V5 lowers cursors only."""
    rewrite(
        power_loss_recovery.Recovery,
        "run",
        ("low = read.head_sequence if is_ring else 0", "low = 0"),
    )


def blocks_believed() -> None:
    """A page that is found has blocks everywhere, though a kill or a cut left it half reserved."""
    setattr(page, "_has_all_blocks", lambda _status: True)  # noqa: B010  mypy forbids it
