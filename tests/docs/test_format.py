"""The bytes of every file, computed here a second time with struct and a slow CRC-32C."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from plugin import START, slow_crc32c

from pagequeue import Queue, core_layout
from pagequeue import format as fmt

if TYPE_CHECKING:
    from plugin import Disk

ID_AT = {"page": 24, "allMeta": 16, "writeMeta": 16, "readMeta": 16}


def queue_id(disk: Disk) -> bytes:
    """Return the queue's id from its allMeta."""
    return disk.path("allMeta").read_bytes()[16:32]


def frame_bytes(
    identity: bytes, payload: bytes, timestamp: int, sequence: int, flags: int = 0
) -> bytes:
    """Return a whole frame."""
    word = 16 + len(payload) | flags
    checksum = slow_crc32c(identity + payload + struct.pack("<qQI", timestamp, sequence, word))
    return struct.pack("<IIq", word, checksum, timestamp) + payload + bytes(-len(payload) % 8)


def page_header(number: int, identity: bytes, first: int, floor: int, created: int) -> bytes:
    """Return a page's header."""
    parts = struct.pack("<Q16sQqq", number, identity, first, floor, created)
    checksum = slow_crc32c(b"pgqpage\x1a" + struct.pack("<II", 2, 0) + parts)
    return b"pgqpage\x1a" + struct.pack("<II", 2, checksum) + parts


@pytest.mark.parametrize(
    ("record", "size_bytes", "offsets"),
    [
        (fmt.FRAME, 16, [0, 4, 8]),
        (fmt.INDEX_RECORD, 12, [0, 8]),
        (fmt.PAGE_HEADER, 64, [0, 8, 10, 12, 16, 24, 40, 48, 56]),
        (fmt.ALL_META, 64, [0, 8, 12, 16, 32, 40, 48, 56, 60]),
        (fmt.READ_META, 64, [0, 8, 12, 16, 32, 40, 48, 56, 60]),
        (fmt.CURSOR_META, 128, [0, 8, 12, 16, 32, 36, 40, 48, 56, 64, 72, 80]),
        (fmt.GROUP_RECORD, 64, [0, 8, 16, 24, 32, 40, 48, 52, 56, 60]),
        (fmt.SNAPSHOT, 32, [0, 8, 16, 20, 24]),
        (fmt.SNAPSHOT_RECORD, 24, [0, 8, 16, 20]),
        (fmt.DEAD_LETTER, 32, [0, 4, 8, 16, 24, 28]),
    ],
)
def test_records_have_these_offsets(record: object, size_bytes: int, offsets: list[int]) -> None:
    """The format is fixed: a change of any offset needs a new version."""
    assert record.itemsize == size_bytes
    assert [record.fields[name][1] for name in record.names] == offsets


def test_write_meta_has_these_offsets_without_overlap() -> None:
    """The shared words are aligned to their size and no two overlap."""
    fields = fmt.WRITE_META.fields
    spans = sorted((fields[name][1], fields[name][0].itemsize) for name in fmt.WRITE_META.names)
    assert [at for at, _ in spans] == [
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
    ]
    assert all(at + size <= after for (at, size), (after, _) in pairwise(spans))
    assert all(at % size == 0 for at, size in spans if size in {4, 8})
    assert fmt.WRITE_META.itemsize == 512


def test_group_meta_begins_as_a_cursor_and_has_no_overlap() -> None:
    """Who reads a cursor's words finds them in a group's file, and no two words overlap."""
    fields = fmt.GROUP_META.fields
    shared = {"magic", "version", "checksum", "queue_id", "kind", "created", "opened"}
    for name in shared | {"next_sequence", "last_ack"}:
        assert fields[name] == fmt.CURSOR_META.fields[name]
    spans = sorted((fields[name][1], fields[name][0].itemsize) for name in fmt.GROUP_META.names)
    assert all(at + size <= after for (at, size), (after, _) in pairwise(spans))
    assert all(at % size == 0 for at, size in spans if size in {4, 8})
    assert fields["mutex"][1] % 64 == 0
    assert fmt.GROUP_META.itemsize == 512


def test_message_is_written_in_exactly_these_bytes(disk: Disk) -> None:
    """I2: header, payload and zero padding to 8 bytes, followed by zeros."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"hello", timestamp=START)
        producer.send(b"", timestamp=START + 1)
    page, identity = disk.page(1).read_bytes(), queue_id(disk)
    expected = frame_bytes(identity, b"hello", START, 0) + frame_bytes(identity, b"", START + 1, 1)
    assert page[64:] == expected.ljust(4096 - 64, b"\0")
    assert struct.unpack("<qIqIqI", disk.index(1).read_bytes()[:36]) == (
        START,
        64,
        START + 1,
        88,
        0,
        0,
    )


def test_batch_carries_its_flag_on_all_but_the_last(disk: Disk) -> None:
    """I8: a frame with more-of-this-batch is whole only together with the next one."""
    disk.clock.step = 0
    with disk.open() as queue, queue.producer() as producer:
        assert producer.send_many([b"a", b"bb", b"ccc"]) == range(3)
    more, identity = 1 << 30, queue_id(disk)
    expected = (
        frame_bytes(identity, b"a", START, 0, more)
        + frame_bytes(identity, b"bb", START, 1, more)
        + frame_bytes(identity, b"ccc", START, 2)
    )
    assert disk.page(1).read_bytes()[64:136] == expected


def test_page_headers_and_end_of_page_marker_have_exactly_these_bytes(disk: Disk) -> None:
    """I10: the marker's checksum covers the next sequence, with which the next page begins."""
    disk.clock.step = 0
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"one", timestamp=START + 5)
        queue.rotate()
        producer.send(b"two", timestamp=START + 6)
    identity = queue_id(disk)
    first, second = disk.page(1).read_bytes(), disk.page(2).read_bytes()
    assert first[:64] == page_header(1, identity, 0, 0, START)
    word = 1 << 31 | 16
    checksum = slow_crc32c(identity + struct.pack("<qQI", START + 5, 1, word))
    assert first[88:104] == struct.pack("<IIq", word, checksum, START + 5)
    assert second[:64] == page_header(2, identity, 1, START + 5, START)
    assert second[64:88] == frame_bytes(identity, b"two", START + 6, 1)


def test_meta_files_have_exactly_these_bytes(disk: Disk) -> None:
    """I5: the durable fields hold what was flushed, the tail fields what was sent."""
    disk.clock.step = 0
    disk.send(b"12345678", flush=True)
    disk.send(b"12345678")
    identity = queue_id(disk)
    body = struct.pack("<16sqQQII", identity, START, 4096, 128, 0, 0)
    checksum = slow_crc32c(b"pgqall\x00\x1a" + struct.pack("<II", 2, 0) + body)
    whole = b"pgqall\x00\x1a" + struct.pack("<II", 2, checksum) + body
    assert disk.path("allMeta").read_bytes() == whole

    def head(magic: bytes) -> bytes:
        checksum = slow_crc32c(magic + struct.pack("<I", 2) + identity)
        return magic + struct.pack("<II", 2, checksum) + identity

    write = disk.path("writeMeta").read_bytes()
    assert len(write) == 4096
    assert write[:32] == head(b"pgqwrit\x1a")
    tail_odd = (64 + 2 * 24) << 32 | 2
    assert struct.unpack_from("<QQQQQqQ", write, 192) == (1, 0, 0, tail_odd, 0, START, 0)
    assert struct.unpack_from("<QQI", write, 256) == (1, 1, 0)
    assert disk.path("readMeta").read_bytes() == head(b"pgqread\x1a") + struct.pack("<QQ16x", 1, 0)


def test_files_have_these_names_and_sizes(disk: Disk) -> None:
    """Page numbers have ten digits, and an index has a record for each 32 bytes of its page."""
    disk.send(b"x")
    sizes = {path.name: path.stat().st_size for path in disk.directory.iterdir()}
    assert sizes == {
        "queue-0000000001.page": 4096,
        "queue-0000000001.idx": 128 * 12,
        "queue-allMeta": 64,
        "queue-readMeta": 64,
        "queue-writeMeta": 4096,
        "queue.lock": 0,
    }


@pytest.mark.parametrize(("payload_bytes", "expected"), [(0, 16), (1, 24), (8, 24), (9, 32)])
def test_frame_bytes_counts_header_and_padding(payload_bytes: int, expected: int) -> None:
    """I1: the position of the next frame follows from the length alone."""
    assert fmt.frame_bytes(payload_bytes) == expected


def test_largest_payload_fills_a_page_up_to_its_end_of_page_marker(disk: Disk) -> None:
    """I10: space for the end-of-page marker is always kept."""
    largest = fmt.payload_bytes_max(4096)
    disk.send(b"x" * largest, b"y" * largest)
    assert [len(frame.payload) for frame in disk.frames(1)] == [largest, 0]
    assert disk.frames(1)[1].position == 4096 - 16
    assert disk.payloads() == [b"x" * largest, b"y" * largest]


@pytest.mark.parametrize("name", ["queue", "a.b-c_D9", "q" * 100, "_"])
def test_names_are_recognised_by_their_patterns(name: str) -> None:
    """Every name that is made is recognised again, and no other."""
    pattern = fmt.page_name_pattern(name)
    match = pattern.fullmatch(fmt.page_name(name, 7))
    assert match is not None
    assert match.groups() == ("0000000007", "page")
    match = pattern.fullmatch(fmt.index_name(name, 7))
    assert match is not None
    assert match.groups() == ("0000000007", "idx")
    for other in ("x-0000000007.page", f"{name}-7.page", f"{name}-0000000007.page.tmp-3"):
        assert pattern.fullmatch(other) is None
    assert fmt.temporary_pattern(name).fullmatch(f"{fmt.page_name(name, 7)}.tmp-33")
    assert fmt.temporary_pattern(name).fullmatch(fmt.page_name(name, 7)) is None


@pytest.mark.parametrize("name", ["", "-x", ".x", "a/b", "a b", "q" * 101, "ü", "a\n"])
def test_prefixes_that_could_leave_the_directory_are_refused(disk: Disk, name: str) -> None:
    """A prefix is letters, digits, dot, dash and underscore; any other creates no file."""
    with pytest.raises(ValueError, match="use letters"):
        Queue(disk.directory, prefix=name)
    assert not disk.directory.exists()


def test_temporary_names_of_a_longer_prefix_are_not_taken_for_ones_own() -> None:
    """Two queues in one directory never sweep each other's files."""
    foreign = fmt.page_name("queue-b", 1) + ".tmp-7"
    assert fmt.temporary_pattern("queue-b").fullmatch(foreign)
    assert fmt.temporary_pattern("queue").fullmatch(foreign) is None


def test_tables_have_a_row_for_every_field_and_end_with_the_size() -> None:
    """The tables of FORMAT.md are complete."""
    tables = core_layout.tables()
    assert set(tables) == {*core_layout.RECORDS, "limits"}
    for name, dtype in core_layout.RECORDS.items():
        rows = tables[name].splitlines()[2:]
        assert len(rows) == len(dtype.names or ()) + 1
        assert rows[-1] == f"| {dtype.itemsize} | | | end |"


@pytest.mark.parametrize("argument", ["header", "tables"])
def test_printing_writes_to_standard_output(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m pagequeue.core_layout` is how the header and the tables are made."""
    assert core_layout.main([argument]) == 0
    out = capsys.readouterr().out
    assert out.startswith("/* Printed" if argument == "header" else "<!-- table: frame -->")
    assert core_layout.main([]) == 2
