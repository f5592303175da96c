"""Damages of a compressed page: its front, its copy, its blocks, its size.

Each damage first gives a sealed page the file that compressing would give it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.page import compressed_format, zstd
from pagequeue.page.header import parse_header
from stress.corpus.damage import (
    HARMLESS,
    WORKS,
    ByMark,
    Fails,
    Finds,
    Hit,
    Kind,
    Leaves,
    OutcomeOf,
    Repairs,
    Saves,
    Until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stress.corpus.victim import Victim

BLOCK_MESSAGES = 4
"""Number of messages in one block."""
BOMB_BYTES = 1 << 20
HEAD = fmt.PAGE_HEADER_BYTES
BLOCKS = HEAD + fmt.COMPRESSED_HEAD_BYTES


def compressed_kind(error: Fails, repair: OutcomeOf) -> Kind:
    """Return the outcomes for a compressed page that fails with this error."""
    return Kind(
        {
            "opening": WORKS,
            "after_cut": ByMark(error, error),
            "read_only": WORKS,
            "reading": Until(error),
            "verify": Finds(error.reason),
            "repair": repair,
            "salvage": Saves(),
        },
        pages=3,
    )


whole = HARMLESS.but(pages=3)
block = compressed_kind(Fails("CorruptFrame", "compressed block"), Leaves())
front = compressed_kind(Fails("CorruptPage", "compressed head"), Repairs("again from its copy"))
forged = compressed_kind(Fails("CorruptPage", "compressed head: its blocks"), Leaves())
short = compressed_kind(Fails("CorruptPage", "compressed head: the file has"), Leaves())
long = compressed_kind(Fails("CorruptPage", "compressed head: the file has"), Repairs())
copy = whole.but(verify=Finds("its copy at the end"), repair=Repairs("again from its copy"))


def _compress(victim: Victim) -> compressed_format.Head:
    """Replace a sealed page by its compressed file; return the parsed front."""
    number = victim.inner
    name = victim.page(number)
    data = victim.read(name)
    places = victim.places(number)
    used = victim.end(number) + fmt.FRAME_HEADER_BYTES
    begins = places[::BLOCK_MESSAGES]
    ends = [*(place.position for place in begins[1:]), used]
    first = places[0].sequence
    parts = [
        zstd.deflate(data[place.position : end], 1, name)
        for place, end in zip(begins, ends, strict=True)
    ]
    _write_page(
        victim,
        parts,
        [(place.position, place.sequence - first) for place in begins],
        used,
    )
    victim.compressed[number] = set()
    written = victim.read(name)
    return compressed_format.parse_front(written, len(written), name)


def _write_page(
    victim: Victim, parts: Sequence[bytes], begins: Sequence[tuple[int, int]], used: int
) -> None:
    """Write a compressed page of these blocks, with fronts and checksums that are right for it."""
    number = victim.inner
    name = victim.page(number)
    header = parse_header(victim.original.contents[name], name)
    places = victim.places(number)
    timestamps = [place.timestamp for place in places]
    made = compressed_format.encode_front(
        header,
        [
            (len(part), *begin, _core.crc32c(part), timestamps[begin[1]])
            for part, begin in zip(parts, begins, strict=True)
        ],
        page_bytes=len(victim.original.contents[name]),
        used_bytes=used,
        end_sequence=places[-1].sequence + 1,
        first_timestamp=places[0].timestamp,
        last_timestamp=places[-1].timestamp,
    )
    data = made + b"".join(parts) + made + compressed_format.encode_end(len(made))
    victim.put(name, data)


def _block_hit(victim: Victim, head: compressed_format.Head, number: int) -> Hit:
    """Return the hit of a block, all of whose messages are lost."""
    hit = head.blocks[number]
    first = (head.header.first_sequence or 0) + hit.ordinal
    count = len(victim.places(victim.inner)) - hit.ordinal
    if number + 1 < len(head.blocks):
        count = head.blocks[number + 1].ordinal - hit.ordinal
    victim.compressed[victim.inner] |= set(range(first, first + count))
    return Hit(victim.page(victim.inner), hit.offset, first, victim.inner)


def _stored(victim: Victim, head: compressed_format.Head) -> list[bytes]:
    data = victim.read(victim.page(victim.inner))
    return [data[b.offset : b.offset + b.stored_bytes] for b in head.blocks]


def _begins(head: compressed_format.Head) -> list[tuple[int, int]]:
    return [(b.position, b.ordinal) for b in head.blocks]


def _all_gone(victim: Victim) -> None:
    victim.compressed[victim.inner] = {p.sequence for p in victim.places(victim.inner)}


@whole("compressed page", "no damage: a sealed page is compressed")
def _(victim: Victim) -> Hit:
    _compress(victim)
    return victim.at_page(victim.inner)


@block("compressed block changed", "one bit of a compressed page's block is changed")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    number = victim.rng.randrange(len(head.blocks))
    stored = head.blocks[number]
    victim.flip(
        victim.page(victim.inner), stored.offset + victim.rng.randrange(stored.stored_bytes)
    )
    return _block_hit(victim, head, number)


@block("compressed block zeroed", "the bytes of a compressed page's last block become zeros")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    stored = head.blocks[-1]
    victim.poke(victim.page(victim.inner), stored.offset, bytes(stored.stored_bytes))
    return _block_hit(victim, head, len(head.blocks) - 1)


def _exchanged(victim: Victim, make: Callable[[int], bytes]) -> Hit:
    """Put other bytes into a block, with a checksum that is right for them."""
    head = _compress(victim)
    number = victim.rng.randrange(len(head.blocks))
    parts = _stored(victim, head)
    size = head.blocks[number].end - head.blocks[number].position
    parts[number] = make(size)
    _write_page(victim, parts, _begins(head), head.used_bytes)
    return _block_hit(victim, head, number)


@block("compressed block is a bomb", "a block correctly declares that it inflates to 1 MiB")
def _(victim: Victim) -> Hit:
    return _exchanged(victim, lambda _: zstd.deflate(bytes(BOMB_BYTES), 1, "bomb"))


@block("compressed block is too short", "a block inflates to 8 bytes fewer than it has room for")
def _(victim: Victim) -> Hit:
    return _exchanged(victim, lambda size: zstd.deflate(bytes(size - 8), 1, "short"))


@block("compressed block is not compressed", "a block is not what Zstandard writes")
def _(victim: Victim) -> Hit:
    return _exchanged(victim, lambda size: b"not compressed at all" * (size // 64 + 1))


@front("compressed page with wrong magic", "one bit of a compressed page's magic word is changed")
def _(victim: Victim) -> Hit:
    _compress(victim)
    victim.flip(victim.page(victim.inner), victim.rng.randrange(8))
    return victim.at_page(victim.inner)


@front("compressed page header changed", "one bit of a compressed page's header is changed")
def _(victim: Victim) -> Hit:
    _compress(victim)
    victim.flip(victim.page(victim.inner), 16 + victim.rng.randrange(HEAD - 16))
    return victim.at_page(victim.inner)


@front("compressed head changed", "one bit of a compressed page's head is changed")
def _(victim: Victim) -> Hit:
    _compress(victim)
    count_at = HEAD + field_of(fmt.COMPRESSED_HEAD, "checksum")
    victim.flip(victim.page(victim.inner), count_at + victim.rng.randrange(8))
    return victim.at_page(victim.inner, HEAD)


@front("compressed table of blocks changed", "one bit of a compressed page's table is changed")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    victim.flip(victim.page(victim.inner), BLOCKS + victim.rng.randrange(head.head_bytes - BLOCKS))
    return victim.at_page(victim.inner, HEAD)


@copy("copy of the compressed front changed", "one bit of a compressed page's second front changes")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    copy_at = head.file_bytes - fmt.COMPRESSED_END_BYTES - head.head_bytes
    victim.flip(victim.page(victim.inner), copy_at + victim.rng.randrange(head.head_bytes))
    return victim.at_page(victim.inner, copy_at)


@copy("end of a compressed page changed", "one bit of a compressed page's last 16 bytes changes")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    end_at = head.file_bytes - fmt.COMPRESSED_END_BYTES
    victim.flip(victim.page(victim.inner), end_at + victim.rng.randrange(16))
    return victim.at_page(victim.inner, end_at - head.head_bytes)


def _forge(victim: Victim, change: Callable[[np.ndarray], None]) -> Hit:
    """Change the table of blocks, with checksums that are right for that."""
    head = _compress(victim)
    records = np.array([(b.position, b.ordinal) for b in head.blocks], np.int64)
    parts = _stored(victim, head)
    change(records)
    begins = [(int(position) & 0xFFFFFFFF, int(ordinal)) for position, ordinal in records]
    _write_page(victim, parts, begins, head.used_bytes)
    _all_gone(victim)
    return victim.at_page(victim.inner, HEAD)


@forged("compressed blocks overlap", "a block begins where the one before it does")
def _(victim: Victim) -> Hit:
    def change(records: np.ndarray) -> None:
        records[1, 0] = records[0, 0]

    return _forge(victim, change)


@forged("compressed blocks go backward", "two blocks of a compressed page are swapped")
def _(victim: Victim) -> Hit:
    def change(records: np.ndarray) -> None:
        records[[0, 1]] = records[[1, 0]]

    return _forge(victim, change)


@forged("compressed block past the page", "a block begins 4 GiB after the beginning of its page")
def _(victim: Victim) -> Hit:
    def change(records: np.ndarray) -> None:
        records[-1, 0] = 2**32 - 8

    return _forge(victim, change)


@short("compressed page cut", "a compressed page is cut inside its last block")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    size = head.blocks[-1].offset + head.blocks[-1].stored_bytes // 2
    victim.resize(victim.page(victim.inner), size)
    _block_hit(victim, head, len(head.blocks) - 1)
    return victim.at_page(victim.inner, size)


@long("compressed page too long", "100 zeros are appended to a compressed page")
def _(victim: Victim) -> Hit:
    head = _compress(victim)
    victim.resize(victim.page(victim.inner), head.file_bytes + 100)
    return victim.at_page(victim.inner, head.file_bytes)
