"""The bytes of snapshots and dead letters, stated once; `format.py` has all others.

FORMAT.md and `core/protocol/layout.h` are printed from here as well.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pagequeue.format import GROUP_RECORD, GROUP_TABLE_AT

SNAPSHOT: Final = np.dtype(
    [
        ("magic", "V8"),
        ("ordinal", "<u8"),
        ("checksum", "<u4"),  # CRC-32C of this with this word as zero, and the records behind it
        ("count", "<u4"),
        ("new_sequence", "<u8"),
    ]
)

SNAPSHOT_RECORD: Final = np.dtype(
    [
        ("sequence", "<u8"),
        ("due", "<i8"),  # ns since 1970, UTC; 0 = at once
        ("deliveries", "<u4"),
        ("cause", "<u4"),
    ]
)

DEAD_LETTER: Final = np.dtype(
    [
        ("version", "<u4"),
        ("cause", "<u4"),  # why its last claim ended
        ("sequence", "<u8"),  # of the message, in the queue that it was sent to
        ("timestamp", "<i8"),  # the same
        ("deliveries", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""What stands before the payload of a dead letter, inside its message."""

SNAPSHOT_MAGIC: Final = b"pgqsnap\x1a"
GROUP_CAPACITY_DEFAULT: Final = 1 << 16
GROUP_CAPACITY_MAX: Final = 1 << 22
PLACE_SHIFT: Final = 27
RECORD_FREE: Final = 0
RECORD_WAITS: Final = 1
RECORD_CLAIMED: Final = 2
CAUSE_NONE: Final = 0
CAUSE_NACK: Final = 1
CAUSE_LEASE: Final = 2
CAUSE_DEATH: Final = 3
CAUSE_DAMAGE: Final = 4
DEAD_LETTER_FORMAT: Final = 1
DEAD_LETTERS: Final = ".dead."
"""What stands between a queue's prefix and a group's name in the prefix of its dead letters."""


def snapshot_bytes(capacity: int) -> int:
    """Return the bytes that are reserved for one snapshot of a group, whole OS pages."""
    needed = SNAPSHOT.itemsize + capacity * SNAPSHOT_RECORD.itemsize
    return -(-needed // GROUP_TABLE_AT) * GROUP_TABLE_AT


def snapshot_at(capacity: int, ordinal: int) -> int:
    """Return where a snapshot stands: they alternate between two places."""
    table_bytes = capacity * GROUP_RECORD.itemsize
    table_end = GROUP_TABLE_AT + -(-table_bytes // GROUP_TABLE_AT) * GROUP_TABLE_AT
    return table_end + (ordinal & 1) * snapshot_bytes(capacity)


def group_bytes(capacity: int) -> int:
    """Return the size of a group's file."""
    return snapshot_at(capacity, 1) + snapshot_bytes(capacity)


def dead_letter_prefix(prefix: str, name: str) -> str:
    """Return the prefix of the queue that takes a group's dead letters."""
    return f"{prefix}{DEAD_LETTERS}{name}"
