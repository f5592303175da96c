"""Damages of messages larger than a page: of a head, of a fragment and of the mark before it.

Many are forged: the checksum of the frame that says something else is right for what it says. Each
costs exactly one message, and no byte of that one is read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from stress.corpus.damage import (
    WORKS,
    Fails,
    Finds,
    Hit,
    Kind,
    Leaves,
    Saves,
    Until,
)

if TYPE_CHECKING:
    from stress.corpus.shapes import Original, Place
    from stress.corpus.victim import Victim

HEADER = fmt.PAGE_HEADER_BYTES
RECORD = fmt.FRAGMENT.itemsize
INNER = 2
"""The ordinal of the fragment that most damages are of: neither the first nor the last."""


def fragment_kind(error: Fails, finds: str | None = None, *, placed: bool = True) -> Kind:
    """Return the outcomes for a large message that fails with this error."""
    return Kind(
        {
            "opening": WORKS,
            "after_cut": WORKS,  # recovery does not read again what was durable
            "reading_after_cut": Until(error, continues=False),
            "read_only": WORKS,
            "reading": Until(error),
            "verify": Finds(error.reason if finds is None else finds, placed=placed),
            "repair": Leaves(),
            "salvage": Saves(),
        },
        large=True,
    )


class Mark(NamedTuple):
    """An end-of-page mark that describes a fragment.

    Attributes:
        position: of it in its page.
        timestamp: in it.
        sequence: that its checksum has.
        payload: its record and the checksums of the blocks.
        data: position of the fragment.
    """

    position: int
    timestamp: int
    sequence: int
    payload: bytes
    data: int

    @property
    def record(self) -> np.void:
        """What it says of its fragment."""
        found: np.void = np.frombuffer(self.payload, fmt.FRAGMENT, 1)[0]
        return found


def large_of(original: Original, at: int = 0) -> Place:
    """Return a large message of a queue."""
    return [place for place in original.places if place.pages > 1][at]


def mark_in(page: bytes, position: int, sequence: int) -> Mark:
    """Return the mark at a position of a page."""
    frame = np.frombuffer(page, fmt.FRAME, 1, position)[0]
    end = position + (int(frame["length"]) & fmt.LENGTH_MASK)
    payload = page[position + fmt.FRAME_HEADER_BYTES : end]
    data = position + fmt.frame_bytes(len(payload))
    return Mark(position, int(frame["timestamp"]), sequence, payload, data)


def mark_of(original: Original, place: Place, ordinal: int) -> Mark:
    """Return the mark before a fragment of a message."""
    number = place.page + ordinal
    page = original.contents[fmt.page_name("queue", number)]
    return mark_in(page, original.ends[number], place.sequence + 1)


def signed(victim: Victim, mark: Mark, payload: bytes) -> bytes:
    """Return a mark with another payload, and the checksum for that."""
    return _signed(victim, payload, mark.timestamp, mark.sequence, fmt.END_OF_PAGE)


def _signed(victim: Victim, payload: bytes, timestamp: int, sequence: int, flags: int) -> bytes:
    word = flags | fmt.FRAME_HEADER_BYTES + len(payload)
    queue_id = victim.original.queue_id
    checksum = _core.frame_checksum(queue_id, payload, timestamp, sequence, word)
    return np.array((word, checksum, timestamp), fmt.FRAME).tobytes() + payload


def hit_of(victim: Victim, place: Place, ordinal: int, position: int | None = None) -> Hit:
    """Return the hit of a fragment, at its mark or elsewhere."""
    number = place.page + ordinal
    at = victim.end(number) if position is None else position
    return Hit(victim.page(number), at, place.sequence, number)


# --- the bytes of a fragment ----------------------------------------------------------------------


changed = fragment_kind(Fails("CorruptFrame", "the checksum of a block is wrong"))


def _change(victim: Victim, ordinal: int) -> Hit:
    place = large_of(victim.original)
    mark = mark_of(victim.original, place, ordinal)
    at = mark.data + victim.rng.randrange(int(mark.record["size"]))
    victim.flip(victim.page(place.page + ordinal), at)
    return hit_of(victim, place, ordinal, mark.data)


changed.add(
    "first fragment changed",
    "one bit of a large message's first fragment is changed",
    partial(_change, ordinal=0),
)
changed.add(
    "fragment changed",
    "one bit of a large message's fragment is changed",
    partial(_change, ordinal=INNER),
)
changed.add(
    "last fragment changed",
    "one bit of a large message's last fragment is changed",
    partial(_change, ordinal=3),
)


@changed("fragment zeroed", "a large message's fragment becomes zeros")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    mark = mark_of(victim.original, place, INNER)
    victim.poke(victim.page(place.page + INNER), mark.data, bytes(int(mark.record["size"])))
    return hit_of(victim, place, INNER, mark.data)


@changed("fragment of another queue", "a fragment's bytes become those of another queue's")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    name = victim.page(place.page + INNER)
    mark = mark_of(victim.original, place, INNER)
    victim.poke(name, mark.data, victim.other.contents[name][mark.data :])
    return hit_of(victim, place, INNER, mark.data)


@changed(
    "checksum of a fragment changed",
    "a mark has another checksum of its fragment's block, and the checksum of its own for that",
)
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    mark = mark_of(victim.original, place, INNER)
    payload = bytearray(mark.payload)
    payload[RECORD] ^= 1
    name = victim.page(place.page + INNER)
    victim.poke(name, mark.position, signed(victim, mark, bytes(payload)))
    return hit_of(victim, place, INNER, mark.data)


# --- a fragment that is another one's -------------------------------------------------------------


another = fragment_kind(
    Fails("CorruptFrame", "a fragment is missing, doubled or another's"),
    "a fragment of another message",
)


@another("fragments changed places", "two fragments of a large message are exchanged")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    first, second = (victim.page(place.page + ordinal) for ordinal in (1, INNER))
    one, other = victim.read(first), victim.read(second)
    victim.poke(first, HEADER, other[HEADER:])
    victim.poke(second, HEADER, one[HEADER:])
    return hit_of(victim, place, 1)


@another("fragment doubled", "a large message's fragment is there again in place of the next")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    data = victim.read(victim.page(place.page + 1))
    victim.poke(victim.page(place.page + INNER), HEADER, data[HEADER:])
    return hit_of(victim, place, INNER)


@another("last fragment in the middle", "a large message's fragment becomes its last one")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    data = victim.read(victim.page(place.page + place.pages - 1))
    victim.poke(victim.page(place.page + 1), HEADER, data[HEADER:])
    return hit_of(victim, place, 1)


foreign = fragment_kind(
    Fails("CorruptFrame", "no valid end-of-page mark"), "the fragments of this message are missing"
)


@foreign("fragment of another message", "a fragment becomes that of the next large message")
def _(victim: Victim) -> Hit:
    place, other = large_of(victim.original), large_of(victim.original, 1)
    data = victim.read(victim.page(other.page + INNER))
    victim.poke(victim.page(place.page + INNER), HEADER, data[HEADER:])
    return hit_of(victim, place, INNER)


@foreign("mark of a fragment changed", "one bit of the mark before a fragment is changed")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    mark = mark_of(victim.original, place, INNER)
    at = mark.position + fmt.FRAME_HEADER_BYTES + victim.rng.randrange(RECORD + 4)
    victim.flip(victim.page(place.page + INNER), at)
    return hit_of(victim, place, INNER)


bare = fragment_kind(Fails("CorruptFrame", "no fragment after the end-of-page mark"))


@bare("mark without a fragment", "the mark before a fragment becomes one of a page without any")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    mark = mark_of(victim.original, place, INNER)
    victim.poke(victim.page(place.page + INNER), mark.position, signed(victim, mark, b""))
    return hit_of(victim, place, INNER)


# --- lengths that do not add up -------------------------------------------------------------------


FORGED = fragment_kind(Fails("CorruptFrame", "", placed=False), "", placed=False)
"""Which fragment an error is found at depends on how it is read: it names the message."""
LAST = 3
FIELDS: tuple[tuple[str, int, dict[str, int]], ...] = (
    ("has the next ordinal", INNER, {"ordinal": INNER + 1}),
    ("has the last ordinal", INNER, {"ordinal": LAST}),
    ("has an ordinal of ones", INNER, {"ordinal": 2**32 - 1}),
    ("begins a byte later", INNER, {"offset_by": 1}),
    ("begins where the one before does", INNER, {"offset_by": -3000}),
    ("begins at 2**39", INNER, {"offset": 1 << 39}),
    ("begins at 2**64 - 1", INNER, {"offset": 2**64 - 1}),
    ("does not begin at 0, and is the first", 0, {"offset": 8}),
    ("is empty", INNER, {"size": 0}),
    ("is a byte shorter", INNER, {"size_by": -1}),
    ("is a byte longer, and the last", LAST, {"size_by": 1}),
    ("is as long as its page", INNER, {"size": 4096}),
    ("has 2**32 - 1 bytes", INNER, {"size": 2**32 - 1}),
)
HEADS: tuple[tuple[str, dict[str, int]], ...] = (
    ("has no fragments", {"fragments": 0}),
    ("has a fragment less", {"fragments_by": -1}),
    ("has a fragment more", {"fragments_by": 1}),
    ("has 300 fragments", {"fragments": 300}),
    ("has 2**32 - 1 fragments", {"fragments": 2**32 - 1}),
    ("has no bytes", {"payload_bytes": 0}),
    ("has a byte less", {"payload_bytes_by": -1}),
    ("has a byte more", {"payload_bytes_by": 1}),
    ("has 2**40 bytes", {"payload_bytes": 1 << 40}),
    ("has 2**40 bytes and 300 fragments", {"payload_bytes": 1 << 40, "fragments": 300}),
    ("has 2**63 bytes", {"payload_bytes": 1 << 63}),
    ("has blocks of no bytes", {"block_bytes": 0}),
    ("has blocks of 4 KiB", {"block_bytes": 4096}),
    ("has blocks of 2**32 - 1 bytes", {"block_bytes": 2**32 - 1}),
)


def _with(data: bytes, dtype: np.dtype[np.void], fields: dict[str, int]) -> bytes:
    """Return a record and what follows it, with other values, or ones that differ by so much."""
    record = np.frombuffer(data, dtype, 1).copy()
    for name, value in fields.items():
        field = name.removesuffix("_by")
        before = int(record[field][0]) if name != field else 0
        record[field] = np.array(before + value, dtype[field])
    return record.tobytes() + data[dtype.itemsize :]


def _whole_of(victim: Victim, place: Place, ordinal: int) -> Hit:
    """Return the hit of a fragment; the pages of the other ones may be blamed as well."""
    pages = range(place.page, place.page + place.pages + 1)
    found = hit_of(victim, place, ordinal)
    return Hit(found.file, None, found.sequence, found.page, tuple(map(victim.page, pages)))


def _describe(victim: Victim, ordinal: int, fields: dict[str, int]) -> Hit:
    """Have a mark say something else of its fragment."""
    place = large_of(victim.original)
    mark = mark_of(victim.original, place, ordinal)
    payload = _with(mark.payload, fmt.FRAGMENT, fields)
    victim.poke(victim.page(place.page + ordinal), mark.position, signed(victim, mark, payload))
    return _whole_of(victim, place, ordinal)


def _forge_head(victim: Victim, fields: dict[str, int]) -> Hit:
    """Have a head say something else of its message."""
    place = large_of(victim.original)
    begin = place.position + fmt.FRAME_HEADER_BYTES
    head = victim.read(victim.page(place.page))[begin : begin + fmt.LARGE_HEAD.itemsize]
    payload = _with(head, fmt.LARGE_HEAD, fields)
    data = _signed(victim, payload, place.timestamp, place.sequence, fmt.LARGE_MESSAGE)
    victim.poke(victim.page(place.page), place.position, data)
    return _whole_of(victim, place, 0)


for _text, _ordinal, _fields in FIELDS:
    FORGED.add(
        f"fragment that {_text}",
        f"a mark says that its fragment {_text}, with the checksum for that",
        partial(_describe, ordinal=_ordinal, fields=_fields),
    )
for _text, _fields in HEADS:
    FORGED.add(
        f"large message that {_text}",
        f"the head of a large message says that it {_text}, with the checksum for that",
        partial(_forge_head, fields=_fields),
    )


# --- heads that are none --------------------------------------------------------------------------


@FORGED("head of a large message cut short", "the record of a head has 8 bytes, checksum right")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    begin = place.position + fmt.FRAME_HEADER_BYTES
    payload = victim.read(victim.page(place.page))[begin : begin + 8]
    data = _signed(victim, payload, place.timestamp, place.sequence, fmt.LARGE_MESSAGE)
    victim.poke(victim.page(place.page), place.position, data)
    mark = mark_of(victim.original, place, 0)
    after = place.position + fmt.frame_bytes(len(payload))
    page = victim.original.contents[victim.page(place.page)]
    victim.poke(victim.page(place.page), after, page[mark.position : mark.data])
    return _whole_of(victim, place, 0)


alone = FORGED.but(verify=Finds("not the only frame of its page"))


@alone(
    "small message with the flags of a large one",
    "a small message's frame has the flags of a head, with the checksum for that",
)
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.active)
    data = _signed(victim, place.payload, place.timestamp, place.sequence, fmt.LARGE_MESSAGE)
    victim.poke(victim.page(place.page), place.position, data)
    return victim.at(place)


# --- pages ----------------------------------------------------------------------------------------


PAGE = Fails("CorruptPage|CorruptFrame", "", placed=False)
page_wrong = fragment_kind(PAGE, "", placed=False)


@page_wrong("page of a fragment of zeros", "the page of a fragment becomes one hole")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    name = victim.page(place.page + INNER)
    victim.put(name, bytes(len(victim.read(name))))
    return _whole_of(victim, place, INNER)


@page_wrong("page of a fragment cut", "the page of a fragment is cut in its middle")
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    victim.resize(victim.page(place.page + INNER), 2048)
    return _whole_of(victim, place, INNER)


GONE = Fails("MissingPage", "missing page", placed=False)


@fragment_kind(GONE, "missing", placed=False)(
    "page of a fragment gone", "the page of a fragment is removed"
)
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    victim.remove(victim.page(place.page + INNER))
    return _whole_of(victim, place, INNER)


@page_wrong(
    "pages of two fragments exchanged", "the files of two fragments' pages have changed names"
)
def _(victim: Victim) -> Hit:
    place = large_of(victim.original)
    first, second = (victim.page(place.page + ordinal) for ordinal in (1, INNER))
    one, other = victim.read(first), victim.read(second)
    victim.put(first, other)
    victim.put(second, one)
    return _whole_of(victim, place, 1)
