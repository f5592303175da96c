"""The bytes of every file, stated once: dtypes, magic words, flags and limits.

FORMAT.md carries tables printed from here, and the C core compiles against
`core/protocol/layout.h`, which is printed from here too (`python -m pagequeue.core_layout`); tests
compare both. All integers are little-endian. The module opens no files and knows no paths, only
names and numbers.

Example:
    >>> fmt.frame_bytes(payload_bytes=5)
    24
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT_VERSION: Final = 2

PAGE_MAGIC: Final = b"pgqpage\x1a"
ALL_MAGIC: Final = b"pgqall\x00\x1a"
WRITE_MAGIC: Final = b"pgqwrit\x1a"
READ_MAGIC: Final = b"pgqread\x1a"
CURSOR_MAGIC: Final = b"pgqcurs\x1a"
STORED_MAGIC: Final = b"pgqstor\x1a"
COMPRESSED_MAGIC: Final = b"pgqzpag\x1a"

FRAME: Final = np.dtype(
    [
        ("length", "<u4"),  # the commit word: 0 = empty
        ("checksum", "<u4"),
        ("timestamp", "<i8"),  # ns since 1970, UTC
    ]
)
"""Frame header; the payload follows it, then zero padding to `FRAME_ALIGN_BYTES`."""

INDEX_RECORD: Final = np.dtype([("timestamp", "<i8"), ("position", "<u4")])
"""One for each frame of a page, in order; position 0 = no record."""

PAGE_HEADER: Final = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("checksum", "<u4"),  # CRC-32C of this header with this word as zero
        ("page_number", "<u8"),
        ("queue_id", "V16"),
        ("first_sequence", "<u8"),  # UNSET_SEQUENCE while the page is only made ready
        ("floor_timestamp", "<i8"),  # the last timestamp before this page
        ("created", "<i8"),  # ns since 1970, UTC
    ]
)

ALL_META: Final = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("checksum", "<u4"),  # CRC-32C of the whole file with this word as zero
        ("queue_id", "V16"),
        ("created", "<i8"),
        ("page_bytes", "<u8"),
        ("index_capacity", "<u8"),  # records in one index file
        ("options_bytes", "<u4"),  # of JSON text, UTF-8, directly after this record
        ("reserved", "<u4"),
    ]
)

WRITE_META: Final = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "checksum",  # CRC-32C of magic, version and queue_id
            "queue_id",
            "lock_boot",  # boot id of the kernel that the lock state belongs to
            "lock_inode",  # inode number of this file when the lock state was made
            "lock_mount",  # unique id of the mount it was made through, 0 = unknown
            "lock_abi",  # which C library's mutex layout `mutex` has
            "lock_namespace",  # the PID namespace whose threads use `mutex`, zeros = none
            "mutex",
            "page_number",  # the active page
            "tail_even",  # position << 32 | frame count, of the active page if its number is even
            "first_even",  # sequence of that page's first frame
            "tail_odd",
            "first_odd",
            "last_timestamp",  # no later frame is older than this
            "batch_open",  # first sequence + 1 of the batch last begun, 0 = none or aborted
            "durable_sequence",  # every message below it is on stable storage
            "durable_page",  # every page below it is on stable storage, with its directory entry
            "failed_errno",  # failure latch: not 0 = a sync failed, writing is refused
            "failed_page",
            "failed_boot",  # boot id of the kernel in which that sync failed
            "flushed_at",  # when a flush last raised the durable mark; 0 = unknown
            "gather_to",  # the next sync may wait until the tail is here, ...
            "gather_until",  # ... but no longer than this: ns of the monotonic clock
            "flush_turn",  # futex word, counts flushes that ended
            "flush_begun",  # 1 + the turn that somebody began
            "gather_begun",  # 1 + the turn for which somebody watches `gather_until`
            "doorbell",  # futex word, moves when sleepers are woken
            "waiters",  # 1 = somebody may be asleep
            "room_bell",  # futex word, moves when senders that wait for room are woken
            "room_wanted",  # 1 + the sequence below which all must be done, 0 = no sender waits
            "clock_ahead",  # of the time since the boot, as it was last believed; 0 = unknown
            "clock_doubted",  # when that began, in ns since the boot; 0 = it is believed
            "jumps",  # three pairs: a time that the clock jumped ahead to, and by how many ns
        ],
        "formats": [
            "V8",
            "<u4",
            "<u4",
            "V16",
            "V16",
            "<u8",
            "<u8",
            "<u4",
            "V16",
            "V64",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<i8",
            "<u8",
            "<u8",
            "<u8",
            "<u4",
            "<u8",
            "V16",
            "<i8",
            "<u8",
            "<i8",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<u8",
            "<i8",
            "<i8",
            "V48",
        ],
        "offsets": [
            0,
            8,
            12,
            16,
            64,
            80,
            88,
            96,
            104,
            128,
            192,
            200,
            208,
            216,
            224,
            232,
            240,
            256,
            264,
            272,
            280,
            288,
            304,
            320,
            328,
            336,
            340,
            344,
            384,
            388,
            392,
            400,
            448,
            456,
            464,
        ],
        "itemsize": 512,
    }
)
"""Grouped by who writes it, each group in cache lines of its own, all in one 512-byte sector."""

READ_META: Final = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("checksum", "<u4"),  # CRC-32C of magic, version and queue_id
        ("queue_id", "V16"),
        ("head_page", "<u8"),  # first readable page
        ("head_odd", "<u8"),  # its first sequence, if its number is odd
        ("head_even", "<u8"),  # the same, if its number is even
        ("consumers_made", "<u4"),  # rises by two for each consumer that is made; odd meanwhile
        ("pages_compressed", "<u4"),  # the same for each page that is compressed
    ]
)

CURSOR_META: Final = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("checksum", "<u4"),  # CRC-32C of magic, version and queue_id
        ("queue_id", "V16"),
        ("kind", "<u4"),  # CURSOR_OF_CONSUMER
        ("reserved", "<u4"),
        ("created", "<i8"),  # ns since 1970, UTC
        ("opened", "<i8"),  # the last time that somebody opened it or moved it elsewhere
        ("flow_from", "<u8"),  # 1 + the tail when a flow first asked for the last message; 0 = none
        ("next_sequence", "<u8"),  # every message below it is acknowledged
        ("last_ack", "<i8"),  # 0 = no acknowledgement yet
        ("reserved_last", "V48"),
    ]
)

STORED: Final = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("checksum", "<u4"),  # CRC-32C of this record with this field zero, and of the payload
        ("queue_id", "V16"),
        ("sequence", "<u8"),
        ("timestamp", "<i8"),  # ns since 1970, UTC
        ("payload_bytes", "<u8"),
        ("reserved", "V8"),
    ]
)
"""Before the payload of a queue's last message, kept when retention takes its page."""

GROUP_META: Final = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "checksum",  # CRC-32C of magic, version and queue_id
            "queue_id",
            "kind",  # CURSOR_OF_GROUP
            "capacity",  # records that the table was made with
            "created",
            "opened",
            "reserved",
            "next_sequence",  # the floor: every message below it is acknowledged
            "last_ack",
            "table_boot",  # boot id of the kernel that lock and table belong to
            "table_inode",
            "table_mount",
            "lock_abi",
            "grown",  # how often the number of records was doubled since
            "limit",  # messages that can be outstanding; 0 = as many as a table can have
            "reserved_too",
            "mutex",
            "turn",  # counts advances; its low bit selects which of the two places is in use
            "new_even",  # sequence that is claimed next among those that never were
            "place_even",  # page number << PLACE_SHIFT | position / 8; 0 = not known
            "new_odd",
            "place_odd",
            "changing",  # not 0 = somebody died in the middle: links are made again
            "claim_id",  # the last one given
            "owner",  # the last number given to a handle
            "first",  # slot + 1 of the outstanding record with the lowest sequence, 0 = none
            "last",
            "free",  # slot + 1 of the first record that was used and is free
            "used",  # records from here on were never used
            "outstanding",
            "scan_from",  # slot + 1: a record from here on may be due; 0 = none before `scan_at`
            "scan_at",  # the time at which a record before `scan_from` may be due
            "snapshot",  # ordinal of the last snapshot on stable storage
            "dead_letters",  # messages that went to the dead letters
            "missed",  # messages that retention took
        ],
        "formats": [
            "V8",
            "<u4",
            "<u4",
            "V16",
            "<u4",
            "<u4",
            "<i8",
            "<i8",
            "V8",
            "<u8",
            "<i8",
            "V16",
            "<u8",
            "<u8",
            "<u4",
            "<u4",
            "<u4",
            "V4",
            "V64",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<u8",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<i8",
            "<u8",
            "<u8",
            "<u8",
        ],
        "offsets": [
            0,
            8,
            12,
            16,
            32,
            36,
            40,
            48,
            56,
            64,
            72,
            80,
            96,
            104,
            112,
            116,
            120,
            124,
            128,
            192,
            200,
            208,
            216,
            224,
            232,
            240,
            248,
            256,
            260,
            264,
            268,
            272,
            276,
            280,
            288,
            296,
            304,
        ],
        "itemsize": 512,
    }
)
"""Begins as CURSOR_META does, so that retention, listing and verify need not know the kind."""

GROUP_RECORD: Final = np.dtype(
    [
        ("word", "<u8"),  # claim id << 2 | state; the commit word: 0 = free
        ("sequence", "<u8"),
        ("place", "<u8"),  # page number << PLACE_SHIFT | position / 8; 0 = not known
        ("due", "<i8"),  # while it waits: when it can be claimed
        ("lease_end", "<i8"),  # while it is claimed: until when
        ("owner", "<u8"),  # number of the handle that claimed it last
        ("deliveries", "<u4"),
        ("cause", "<u4"),  # why the claim before this one ended
        ("prior", "<u4"),  # slot + 1 of the outstanding record with the sequence before
        ("following", "<u4"),  # the same after it; of a free one: the next that is free
    ]
)
"""One message that was claimed and is not acknowledged; times are ns of the monotonic clock."""

SNAPSHOT: Final = np.dtype(
    [
        ("magic", "V8"),
        ("ordinal", "<u8"),
        ("checksum", "<u4"),  # CRC-32C of this with this word as zero, and the records after it
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
        ("reason_bytes", "<u4"),  # of the reason that follows, in UTF-8
    ]
)
"""The header before the payload of a dead letter, inside its message."""

COMPRESSED_HEAD: Final = np.dtype(
    [
        ("page_bytes", "<u8"),  # of the page when it is inflated
        ("used_bytes", "<u8"),  # of it, end-of-page marker included; the rest was zeros
        ("file_bytes", "<u8"),  # of this file
        ("end_sequence", "<u8"),  # one past the page's last message
        ("first_timestamp", "<i8"),  # of its first message, 0 when it has none
        ("last_timestamp", "<i8"),  # of its last message, 0 when it has none
        ("block_count", "<u4"),
        ("method", "<u4"),  # METHOD_ZSTD
        ("checksum", "<u4"),  # CRC-32C of page header, this record with this word as zero, blocks
        ("reserved", "<u4"),
    ]
)
"""After the page header of a compressed page; its blocks' records follow, then their bytes."""

COMPRESSED_BLOCK: Final = np.dtype(
    [
        ("stored_bytes", "<u4"),  # in this file, directly after those of the block before
        ("position", "<u4"),  # in the page, of its first frame
        ("ordinal", "<u4"),  # of that frame in the page
        ("checksum", "<u4"),  # CRC-32C of the bytes in this file
        ("timestamp", "<i8"),  # of that frame, 0 when the page has no message
    ]
)
"""A run of whole frames, up to the next block's position; the last has the end mark as well."""

COMPRESSED_END: Final = np.dtype(
    [
        ("magic", "V8"),
        (
            "head_bytes",
            "<u4",
        ),  # of page header, head and blocks' records, which are repeated before it
        ("checksum", "<u4"),  # CRC-32C of magic and head_bytes
    ]
)

LARGE_HEAD: Final = np.dtype(
    [
        ("payload_bytes", "<u8"),
        ("fragments", "<u4"),  # in this page and those that follow, one in each
        ("block_bytes", "<u4"),  # of each block of a fragment but the last
    ]
)
"""The payload of the frame of a large message."""

FRAGMENT: Final = np.dtype(
    [
        ("offset", "<u8"),  # of its first byte in the message
        ("size", "<u4"),  # in bytes
        ("ordinal", "<u4"),
    ]
)
"""What the end mark of a page with a fragment has as its payload, and then a checksum for each
block. The fragment's bytes follow the mark."""

COMMIT_CONTINUES: Final = 1
"""Flag in a page's header: the next page has messages of the same bulk commit."""
END_OF_PAGE: Final = 1 << 31
"""Flag in `length`: no frame follows in this page; the next page continues the sequence."""
MORE_OF_BATCH: Final = 1 << 30
"""Flag in `length`: the next frame belongs to the same batch."""
LARGE_MESSAGE: Final = END_OF_PAGE | MORE_OF_BATCH
"""Both flags: the frame is the head of a message whose payload is in fragments."""
LENGTH_MASK: Final = MORE_OF_BATCH - 1
"""The bits of `length` that hold the frame's bytes, header included, padding not."""

FRAME_HEADER_BYTES: Final = FRAME.itemsize
FRAME_ALIGN_BYTES: Final = 8
PAGE_HEADER_BYTES: Final = PAGE_HEADER.itemsize
INDEX_RECORD_BYTES: Final = INDEX_RECORD.itemsize
WRITE_META_FILE_BYTES: Final = 4096
READ_META_BYTES: Final = READ_META.itemsize
CURSOR_META_BYTES: Final = CURSOR_META.itemsize
COMPRESSED_HEAD_BYTES: Final = COMPRESSED_HEAD.itemsize
COMPRESSED_BLOCK_BYTES: Final = COMPRESSED_BLOCK.itemsize
COMPRESSED_END_BYTES: Final = COMPRESSED_END.itemsize
FRAGMENT_BLOCK_BYTES: Final = 256 << 10
"""A fragment has a checksum for each so many of its bytes."""
LARGE_BYTES_MAX: Final = 1 << 40
"""The largest payload of a message."""
METHOD_ZSTD: Final = 1
"""Each block is one frame of Zstandard that states its own inflated size."""
CURSOR_OF_CONSUMER: Final = 1
"""The kind of cursor that a named consumer has."""
CURSOR_OF_GROUP: Final = 2
"""The kind of cursor that a group has."""
GROUP_TABLE_AT: Final = 4096
"""Where the records of a group's table begin; the snapshots follow them."""
ALL_META_MAX_BYTES: Final = 65536

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
CAUSE_REJECT: Final = 5
DEAD_LETTER_FORMAT: Final = 1
DEAD_LETTER_FORMAT_REASON: Final = 2
DEAD_LETTERS: Final = ".dead."
"""Between a queue's prefix and a group's name in the prefix of its dead letters."""


FIRST_PAGE: Final = 1
PAGE_NUMBER_DIGITS: Final = 10
PAGE_NUMBER_MAX: Final = 10**PAGE_NUMBER_DIGITS - 1
UNSET_SEQUENCE: Final = 2**64 - 1
SEQUENCE_MAX: Final = 2**63 - 1
TIMESTAMP_MIN: Final = 0
TIMESTAMP_MAX: Final = 2**63 - 1

PAGE_BYTES_MIN: Final = 4096
PAGE_BYTES_MAX: Final = 1 << 30
PAGE_BYTES_STEP: Final = 4096
PAGE_BYTES_DEFAULT: Final = 64 << 20
INDEX_BYTES_PER_RECORD: Final = 32
"""A page has room for one index record in each so many of its bytes."""

COMPRESSED_BLOCK_TARGET_BYTES: Final = 256 << 10
"""A block ends with the frame that passes this many bytes; larger frames make larger blocks."""

READ_COUNT_MAX: Final = 1 << 20
READ_BYTES_MAX: Final = 1 << 20
"""A batch read ends after the frame that passes this many bytes, so that it stays in cache."""

TEMPORARY: Final = ".tmp"
"""Part of every temporary file's name, and of no prefix and no consumer's name."""
SHIP: Final = "-ship"
"""Before `.lock` in the name of the lock that shippers take."""
CURSOR: Final = "-readMeta."
"""Part of every cursor file's name, and of no prefix."""
PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


INVERTED: Final = bytes(range(255, -1, -1))


def staged_id(queue_id: bytes) -> bytes:
    """Return the id that staged pages have until they become pages of a queue: its bits inverted.

    No frame of one is valid in the other; and recovery sees whose page it is, when a power cut kept
    its name and not what the commit wrote.
    """
    return queue_id.translate(INVERTED)


def has_more(word: int) -> bool:
    """Whether a frame with this commit word is followed by another one of its batch."""
    return word & LARGE_MESSAGE == MORE_OF_BATCH


def is_end(word: int) -> bool:
    """Whether a commit word is that of an end-of-page mark."""
    return word & LARGE_MESSAGE == END_OF_PAGE


def is_large(word: int) -> bool:
    """Whether a frame with this commit word is the head of a message in fragments."""
    return word & LARGE_MESSAGE == LARGE_MESSAGE


def frame_bytes(payload_bytes: int) -> int:
    """Return the bytes that a frame with this payload takes in a page, padding included."""
    length = FRAME_HEADER_BYTES + payload_bytes
    return -(-length // FRAME_ALIGN_BYTES) * FRAME_ALIGN_BYTES


def payload_bytes_max(page_bytes: int) -> int:
    """Return the largest payload of one message: alone in a page, before the end-of-page mark."""
    return page_bytes - PAGE_HEADER_BYTES - 2 * FRAME_HEADER_BYTES


def index_capacity(page_bytes: int) -> int:
    """Return how many records the index of a page has; a page whose index is full is full."""
    return page_bytes // INDEX_BYTES_PER_RECORD


def files_bytes(page_bytes: int) -> int:
    """Return what a page and its index take on the disk together, at most."""
    return page_bytes + index_capacity(page_bytes) * INDEX_RECORD_BYTES


def page_name(prefix: str, page_number: int) -> str:
    """Return the file name of a page."""
    return f"{prefix}-{page_number:0{PAGE_NUMBER_DIGITS}d}.page"


def index_name(prefix: str, page_number: int) -> str:
    """Return the file name of a page's index."""
    return f"{prefix}-{page_number:0{PAGE_NUMBER_DIGITS}d}.idx"


def spare_name(prefix: str) -> str:
    """Return the name under which a retired page waits to be used again: a temporary one."""
    return f"{page_name(prefix, 0)}.tmp-spare"


def page_name_pattern(prefix: str) -> re.Pattern[str]:
    """Return the pattern of page and index names: group 1 the number, group 2 the kind."""
    return re.compile(rf"{re.escape(prefix)}-(\d{{{PAGE_NUMBER_DIGITS}}})\.(page|idx)")


def file_pattern(prefix: str) -> re.Pattern[str]:
    """Return the pattern of the names of all files of a queue, the lock file left out."""
    return re.compile(_final_names(prefix) + r"(?:\.tmp-\w+)?")


def directory_names(prefix: str) -> tuple[str, ...]:
    """Return the names of the directories that a queue can have beside its files."""
    return journal_name(prefix), f"{prefix}-staged", f"{prefix}-large"


def temporary_pattern(prefix: str) -> re.Pattern[str]:
    """Return the pattern of the temporary names that an interrupted process can leave."""
    return re.compile(_final_names(prefix) + r"\.tmp-\w+")


def owner_of(name: str) -> str | None:
    """Return the prefix of the queue that a file of this name belongs to; None: not a queue's file.

    The name of a shippers' lock reads as the lock of a queue with the prefix `PREFIX-ship`, which
    therefore is never made in the directory of PREFIX: see `confused_with`.
    """
    final = _TEMPORARY_END.sub("", name)
    prefix, cursor, consumer = final.partition(CURSOR)
    if cursor:
        return prefix if is_prefix(prefix) and is_consumer_name(consumer) else None
    end = _OWN_END.search(final)
    return final[: end.start()] if end and is_prefix(final[: end.start()]) else None


def is_prefix(prefix: str) -> bool:
    """Return whether a queue can have this prefix."""
    return (
        PREFIX_PATTERN.fullmatch(prefix) is not None
        and TEMPORARY not in prefix
        and CURSOR not in f"{prefix}."
    )


def queues_in(names: Iterable[str]) -> list[str]:
    """Return the prefixes of the queues that have an allMeta among these file names, sorted."""
    ends = (name for name in names if name.endswith(all_meta_name("")))
    return sorted(prefix for prefix in map(owner_of, ends) if prefix is not None)


def confused_with(prefix: str, names: Iterable[str]) -> str | None:
    """Return the prefix of a queue among these names that has a file of the same name, or None."""
    confusable = {f"{prefix}{SHIP}", prefix.removesuffix(SHIP)} - {prefix}
    owners = {owner_of(name) for name in names if not name.endswith(".lock")}
    return next(iter(sorted(confusable & owners)), None)


def _final_names(prefix: str) -> str:
    pages = rf"\d{{{PAGE_NUMBER_DIGITS}}}\.(?:page|idx)"
    cursors = rf"readMeta\.{PREFIX_PATTERN.pattern}"
    # ledger.py, manifest.py, last_stored.py
    others = (
        r"publishing|sending|published\.[0-9a-f]{32}|manifest\.json|stored\.(?:0|[1-9]\d{0,18})"
    )
    return rf"{re.escape(prefix)}-(?:{pages}|allMeta|writeMeta|readMeta|{cursors}|{others})"


_TEMPORARY_END: Final = re.compile(r"\.tmp-\w+\Z")
_OWN_END: Final = re.compile(rf"(?:{_final_names('')}|\.lock)\Z")


def all_meta_name(prefix: str) -> str:
    """Return the name of the file that is written once."""
    return f"{prefix}-allMeta"


def write_meta_name(prefix: str) -> str:
    """Return the name of the file that writers share."""
    return f"{prefix}-writeMeta"


def read_meta_name(prefix: str) -> str:
    """Return the name of the file that holds the head: the first readable page and sequence."""
    return f"{prefix}-readMeta"


def cursor_name(prefix: str, name: str) -> str:
    """Return the name of the file that records what a named consumer acknowledged."""
    return f"{read_meta_name(prefix)}.{name}"


def stored_name(prefix: str, sequence: int) -> str:
    """Return the name of the file that keeps a last message whose page retention took."""
    return f"{prefix}-stored.{sequence}"


def stored_sequence(prefix: str, file_name: str) -> int | None:
    """Return the sequence of the message that such a file keeps; None: not such a file."""
    match = re.fullmatch(rf"{re.escape(prefix)}-stored\.(0|[1-9]\d{{0,18}})", file_name)
    return None if match is None else int(match[1])


def is_consumer_name(name: str) -> bool:
    """Return whether a consumer can have this name; not one that reads as a temporary file's."""
    return PREFIX_PATTERN.fullmatch(name) is not None and TEMPORARY not in f".{name}"


def consumer_of(prefix: str, file_name: str) -> str | None:
    """Return the name of the consumer that a file belongs to; None: not a cursor."""
    name = file_name.removeprefix(f"{read_meta_name(prefix)}.")
    return name if name != file_name and is_consumer_name(name) else None


def lock_name(prefix: str) -> str:
    """Return the name of the lock file."""
    return f"{prefix}.lock"


JOURNAL_SNAPSHOT: Final = re.compile(r"snapshot-(\d{20})")
"""A directory in a journal's directory: the number is that of the first entry it lacks."""


def journal_name(prefix: str) -> str:
    """Return the name of the directory that a journal has beside its entries."""
    return f"{prefix}-journal"


def snapshot_bytes(capacity: int) -> int:
    """Return the bytes that are reserved for one snapshot of a group, whole OS pages."""
    needed = SNAPSHOT.itemsize + capacity * SNAPSHOT_RECORD.itemsize
    return -(-needed // GROUP_TABLE_AT) * GROUP_TABLE_AT


def group_part_at(capacity: int, part: int) -> int:
    """Return where a part of a group's file begins: records, then two places for snapshots.

    Args:
        capacity: records of the first part; each later one doubles their number in all.
        part: 0, 1, ...; the end of the part before it.
    """
    at = GROUP_TABLE_AT
    for before in range(part):
        at = snapshot_at(capacity, 1, before, at) + snapshot_bytes(capacity << before)
    return at


def snapshot_at(capacity: int, ordinal: int, part: int = 0, part_at: int | None = None) -> int:
    """Return the position of a snapshot: they alternate between two places of the last part."""
    at = group_part_at(capacity, part) if part_at is None else part_at
    table_bytes = (capacity << part >> (part > 0)) * GROUP_RECORD.itemsize
    table_end = at + -(-table_bytes // GROUP_TABLE_AT) * GROUP_TABLE_AT
    return table_end + (ordinal & 1) * snapshot_bytes(capacity << part)


def group_bytes(capacity: int, grown: int = 0) -> int:
    """Return the size of a group's file, whose table was doubled so often."""
    return group_part_at(capacity, grown + 1)


def group_grown_max(capacity: int) -> int:
    """Return how often a table can be doubled."""
    return (GROUP_CAPACITY_MAX // capacity).bit_length() - 1


def dead_letter_prefix(prefix: str, name: str) -> str:
    """Return the prefix of the queue that takes a group's dead letters."""
    return f"{prefix}{DEAD_LETTERS}{name}"
