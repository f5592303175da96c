"""Damages of frames in a sealed page, of its end-of-page marker, and of the bytes after it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pagequeue import format as fmt
from stress.corpus.damage import (
    CUT_OFF,
    WORKS,
    ByMark,
    Fails,
    Finds,
    FindsNothing,
    Hit,
    Idle,
    Kind,
    Leaves,
    Repairs,
    Saves,
    Until,
    Works,
)
from stress.corpus.victim import SECTOR, frame

if TYPE_CHECKING:
    from stress.corpus.shapes import Place
    from stress.corpus.victim import Victim

NOTHING = "no frame there"
LENGTH = "its length is invalid"
CHECKSUM = "its checksum is wrong"
OLDER = "it is older than the frame before it"


def frame_kind(reason: str) -> Kind:
    """Return the outcomes for one frame of a sealed page that is damaged."""
    error = Fails("CorruptFrame", reason)
    return Kind(
        {
            "opening": WORKS,
            "after_cut": ByMark(error, CUT_OFF),
            "read_only": WORKS,
            "reading": Until(error),
            "verify": Finds(reason),
            "repair": Leaves(),
            "salvage": Saves(),
        },
        pages=3,
    )


nothing, bad_length, bad_checksum, bad = map(frame_kind, (NOTHING, LENGTH, CHECKSUM, ""))


def word(victim: Victim, place: Place, value: int) -> Hit:
    """Set a frame's length word."""
    victim.poke(victim.page(place.page), place.position, value.to_bytes(4, "little"))
    return victim.at(place)


def length_of(place: Place) -> int:
    """Return the length in a frame's length word, without its flags."""
    return fmt.FRAME_HEADER_BYTES + len(place.payload)


# --- lengths --------------------------------------------------------------------------------------


@nothing("length 0 in the middle", "the length of a frame in the middle of a page becomes 0")
def _(victim: Victim) -> Hit:
    return word(victim, victim.middle(victim.inner), 0)


@bad_length("length of ones", "the length of a frame becomes 0xFFFFFFFF")
def _(victim: Victim) -> Hit:
    return word(victim, victim.middle(victim.inner), 0xFFFFFFFF)


@bad_length("length past the end", "a frame's length leads past the end of the page")
def _(victim: Victim) -> Hit:
    return word(victim, victim.middle(victim.inner), 4096)


@bad_length("length that overflows", "a frame's length is the largest that its 30 bits can hold")
def _(victim: Victim) -> Hit:
    return word(victim, victim.middle(victim.inner), fmt.LENGTH_MASK)


@bad_length("length shorter than a header", "a frame's length becomes 15")
def _(victim: Victim) -> Hit:
    return word(victim, victim.middle(victim.inner), 15)


@bad_length(
    "length without room for the end-of-page marker", "a frame's length reaches to the page's end"
)
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    return word(victim, place, 4096 - place.position)


@bad_checksum("length unaligned", "a frame's length grows by one")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    return word(victim, place, length_of(place) + 1)


@bad_checksum("length into the next frame", "a frame's length includes the next frame")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    return word(victim, place, length_of(place) + 24)


@bad_checksum("length of a bare header", "a frame's length becomes 16, as if it had no payload")
def _(victim: Victim) -> Hit:
    return word(victim, victim.middle(victim.inner), fmt.FRAME_HEADER_BYTES)


@bad_checksum(
    "frame with the flag of an end-of-page marker",
    "the end-of-page flag is set in a frame's length",
)
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    return word(victim, place, length_of(place) | fmt.END_OF_PAGE)


@bad_checksum("frame with the other batch flag", "the batch flag of a frame's length is inverted")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    flag = 0 if place.more else fmt.MORE_OF_BATCH
    return word(victim, place, length_of(place) | flag)


# --- contents -------------------------------------------------------------------------------------


@bad_checksum("payload changed", "one bit of a payload in the middle of a sealed page is changed")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    at = fmt.FRAME_HEADER_BYTES + victim.rng.randrange(len(place.payload))
    victim.flip(victim.page(place.page), place.position + at)
    return victim.at(place)


@bad_checksum("checksum changed", "one bit of a frame's checksum is changed")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.flip(victim.page(place.page), place.position + 4 + victim.rng.randrange(4))
    return victim.at(place)


@bad_checksum("timestamp changed", "one bit of a frame's timestamp is changed")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.flip(victim.page(place.page), place.position + 8 + victim.rng.randrange(8))
    return victim.at(place)


@bad_checksum("first frame changed", "one bit of the first frame of a sealed page is changed")
def _(victim: Victim) -> Hit:
    place = victim.places(victim.inner)[0]
    victim.flip(victim.page(place.page), place.position + 4)
    return victim.at(place)


@bad_checksum("last frame changed", "one bit of the last frame of a sealed page is changed")
def _(victim: Victim) -> Hit:
    place = victim.last(victim.inner)
    victim.flip(victim.page(place.page), place.position + 4)
    return victim.at(place)


@bad_checksum("frames changed places", "two frames of one size are exchanged")
def _(victim: Victim) -> Hit:
    first, second = equal_pair(victim)
    name, data = victim.page(first.page), victim.read(victim.page(first.page))
    victim.poke(name, first.position, data[second.position : second.end])
    victim.poke(name, second.position, data[first.position : first.end])
    return victim.at(first)


@bad_checksum("frame repeated", "a frame is overwritten with a copy of an earlier one")
def _(victim: Victim) -> Hit:
    first, second = equal_pair(victim)
    name, data = victim.page(first.page), victim.read(victim.page(first.page))
    victim.poke(name, second.position, data[first.position : first.end])
    return victim.at(second)


@bad_checksum("gap", "a frame is cut out, and the bytes after it are moved up")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    name = victim.page(place.page)
    data = victim.read(name)
    victim.put(name, data[: place.position] + data[place.end :] + bytes(place.end - place.position))
    return victim.at(place)


@bad_checksum("frame of another queue", "a frame is overwritten with one of another queue's page")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    name = victim.page(place.page)
    data = victim.other.contents[name][place.position : place.position + 24]
    victim.poke(name, place.position, b"\x18\0\0\0" + data[4:])
    return victim.at(place)


@bad_checksum(
    "frame of another queue in its place",
    "a frame becomes one of another queue, of the same size, sequence and time",
)
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    payload = bytes(255 - byte for byte in place.payload)
    queue_id = victim.other.queue_id
    data = frame(queue_id, payload, place.timestamp, place.sequence, more=place.more)
    victim.poke(victim.page(place.page), place.position, data)
    return victim.at(place)


@bad_checksum(
    "frames in a payload",
    "a damaged payload holds a frame of this queue with the next sequence, and a page's end marker",
)
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    inner = victim.frame(b"invented", place.timestamp, place.sequence + 1)
    inner += victim.frame(b"", place.timestamp, place.sequence + 2, end=True)
    victim.poke(victim.page(place.page), place.position + fmt.FRAME_HEADER_BYTES, inner)
    return victim.at(place)


def equal_pair(victim: Victim) -> tuple[Place, Place]:
    """Return two frames of one size, alike in all but what was sent."""
    for first, second in itertools.combinations(victim.places(victim.inner)[1:], 2):
        if 0 < len(first.payload) == len(second.payload) and first.more == second.more:
            return first, second
    raise AssertionError("no equal frames in this shape")


# --- times ----------------------------------------------------------------------------------------


timed = bad.but(
    after_cut=ByMark(Fails("CorruptFrame", OLDER), Works("any")),
    reading=Works("any"),
    verify=Finds(OLDER),
    salvage=Saves(),
)


@timed("time before the frame in front", "a frame is 1 s older than the one before, checksum right")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.lay(place, timestamp=place.timestamp - 10**9)
    return victim.at(place)


@timed("time before 1970", "a frame has the smallest time there is, with the checksum for that")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.lay(place, timestamp=-(2**63))
    return victim.at(place)


@timed("time at its end", "a frame has the largest time there is, with the checksum for that")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.lay(place, timestamp=fmt.TIMESTAMP_MAX)
    return victim.at(victim.original.places[place.sequence + 1])


# --- ranges ---------------------------------------------------------------------------------------


def sector(victim: Victim, data: bytes) -> Hit:
    """Overwrite a sector inside a sealed page; return the first frame that it changes."""
    start = SECTOR * (1 + victim.rng.randrange(4))
    victim.poke(victim.page(victim.inner), start, data)
    changed = victim.read(victim.page(victim.inner))
    before = victim.original.contents[victim.page(victim.inner)]
    for place in victim.places(victim.inner):
        until = place.position + length_of(place)
        if changed[place.position : until] != before[place.position : until]:
            return victim.at(place)
    raise AssertionError("no frame was changed")


@bad("sector of zeros", "a sector of 512 bytes inside a sealed page becomes a hole")
def _(victim: Victim) -> Hit:
    return sector(victim, bytes(SECTOR))


@bad("sector of ones", "all bits of a sector inside a sealed page are set")
def _(victim: Victim) -> Hit:
    return sector(victim, b"\xff" * SECTOR)


@bad("sector of another page", "a sector inside a sealed page becomes that of the page before it")
def _(victim: Victim) -> Hit:
    start = victim.rng.randrange(3) * SECTOR + SECTOR
    return sector(victim, victim.read(victim.page(victim.head))[start : start + SECTOR])


@bad("first frame of another page", "a sealed page begins with the first frame of the one before")
def _(victim: Victim) -> Hit:
    other, place = victim.places(victim.inner - 1)[0], victim.places(victim.inner)[0]
    data = victim.read(victim.page(other.page))[other.position : other.end]
    victim.poke(victim.page(place.page), place.position, data)
    return victim.at(place)


@nothing("hole to the end", "all of a sealed page from its middle on is zero")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.poke(victim.page(place.page), place.position, bytes(4096 - place.position))
    return victim.at(place)


# --- the end-of-page marker -----------------------------------------------------------------------


mark = bad.but(repair=Repairs())


@mark(
    "end-of-page marker with a wrong checksum",
    "one bit of a sealed page's end-of-page marker's checksum is changed",
    reading=Until(Fails("CorruptFrame", CHECKSUM)),
    verify=Finds(CHECKSUM),
)
def _(victim: Victim) -> Hit:
    victim.flip(victim.page(victim.inner), victim.end(victim.inner) + 4)
    return victim.at_end(victim.inner)


@mark(
    "end-of-page marker gone",
    "a sealed page's end-of-page marker is zeroed",
    reading=Until(Fails("CorruptFrame", NOTHING)),
    verify=Finds(NOTHING),
)
def _(victim: Victim) -> Hit:
    victim.poke(victim.page(victim.inner), victim.end(victim.inner), bytes(16))
    return victim.at_end(victim.inner)


@mark(
    "end-of-page marker of ones",
    "all bits of a sealed page's end-of-page marker are set",
    reading=Until(Fails("CorruptFrame", LENGTH)),
    verify=Finds(LENGTH),
)
def _(victim: Victim) -> Hit:
    victim.poke(victim.page(victim.inner), victim.end(victim.inner), b"\xff" * 16)
    return victim.at_end(victim.inner)


EARLY = Fails("CorruptPage|CorruptFrame", "", placed=False)


@bad(
    "end-of-page marker too early",
    "an end-of-page marker that is right takes the place of a frame in the middle of a sealed page",
    after_cut=ByMark(EARLY, Works("any")),
    reading=Until(EARLY),
    verify=Finds("", placed=False),
)
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.inner)
    victim.end_mark(place.page, place.position, place.sequence)
    # The page that follows begins with another message than it must: that contradicts the mark.
    others = (victim.page(place.page + 1),)
    return Hit(victim.page(place.page), place.position, place.sequence, place.page, others)


@bad(
    "frames after the end-of-page marker",
    "a whole frame with the next sequence follows a sealed page's end-of-page marker, as a "
    "producer that died inside a batch leaves it",
    after_cut=WORKS,
    reading=WORKS,
    verify=FindsNothing(),
    repair=Idle(),
)
def _(victim: Victim) -> Hit:
    number = victim.roomy
    end, sequence = victim.end(number) + fmt.FRAME_HEADER_BYTES, victim.end_sequence(number)
    victim.poke(
        victim.page(number), end, victim.frame(b"stale", victim.last(number).timestamp, sequence)
    )
    return Hit(victim.page(number))
