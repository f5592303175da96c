"""Damages of an index: it is only a hint, so no interface may fail, and it is rebuilt (I6)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pagequeue import format as fmt
from stress.corpus.damage import WORKS, Finds, FindsNothing, Hit, Idle, Kind, Repairs, Saves

if TYPE_CHECKING:
    from stress.corpus.victim import Victim

RECORD = fmt.INDEX_RECORD_BYTES
index = Kind(
    {
        "opening": WORKS,
        "after_cut": WORKS,
        "read_only": WORKS,
        "reading": WORKS,
        "verify": Finds("index", placed=False),
        "repair": Repairs(),
        "salvage": Saves(),
    }
)


def whole(victim: Victim, number: int) -> Hit:
    """Return the hit of an index as a whole."""
    return Hit(victim.index(number))


def record(victim: Victim, ordinal: int, data: bytes, at: int = 0) -> Hit:
    """Overwrite a part of one record of the inner page's index."""
    name = victim.index(victim.inner)
    victim.poke(name, ordinal * RECORD + at, data)
    sequence = victim.places(victim.inner)[ordinal].sequence
    return Hit(name, ordinal * RECORD, sequence, None)


def first(victim: Victim) -> Hit:
    """Return the hit of an index whose first record is wrong."""
    sequence = victim.places(victim.inner)[0].sequence
    return Hit(victim.index(victim.inner), 0, sequence, None)


@index("index missing", "an index is removed")
def _(victim: Victim) -> Hit:
    victim.remove(victim.index(victim.inner))
    return whole(victim, victim.inner)


@index("index of the active page missing", "the index of the active page is removed")
def _(victim: Victim) -> Hit:
    victim.remove(victim.index(victim.active))
    return whole(victim, victim.active)


@index("index empty", "an index is cut to 0 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(victim.index(victim.inner), 0)
    return whole(victim, victim.inner)


@index("index too short", "an index is cut in the middle of its first record")
def _(victim: Victim) -> Hit:
    victim.resize(victim.index(victim.inner), 7)
    return whole(victim, victim.inner)


@index("index too long", "a record's worth of zeros is appended to an index")
def _(victim: Victim) -> Hit:
    size = len(victim.read(victim.index(victim.inner)))
    victim.resize(victim.index(victim.inner), size + RECORD)
    return whole(victim, victim.inner)


@index("index of the active page too long", "the same, of the active page")
def _(victim: Victim) -> Hit:
    size = len(victim.read(victim.index(victim.active)))
    victim.resize(victim.index(victim.active), size + RECORD)
    return whole(victim, victim.active)


@index("index of zeros", "an index becomes one hole")
def _(victim: Victim) -> Hit:
    name = victim.index(victim.inner)
    victim.put(name, bytes(len(victim.read(name))))
    return first(victim)


@index("index of the active page of zeros", "the index of the active page becomes one hole")
def _(victim: Victim) -> Hit:
    name = victim.index(victim.active)
    victim.put(name, bytes(len(victim.read(name))))
    return Hit(name, 0, victim.places(victim.active)[0].sequence, None)


@index("index of ones", "all bits of an index are set")
def _(victim: Victim) -> Hit:
    name = victim.index(victim.inner)
    victim.put(name, b"\xff" * len(victim.read(name)))
    return first(victim)


@index("index of noise", "an index is overwritten with random bytes")
def _(victim: Victim) -> Hit:
    name = victim.index(victim.inner)
    victim.put(name, victim.rng.randbytes(len(victim.read(name))))
    return first(victim)


@index.but(pages=3)("index of another page", "an index is overwritten with that of the page before")
def _(victim: Victim) -> Hit:
    victim.put(victim.index(victim.inner), victim.read(victim.index(victim.inner - 1)))
    return first(victim)


@index("index shifted", "an index begins with its second record")
def _(victim: Victim) -> Hit:
    name = victim.index(victim.inner)
    victim.put(name, victim.read(name)[RECORD:] + bytes(RECORD))
    return first(victim)


@index("index record with another place", "a record points 8 bytes past its frame")
def _(victim: Victim) -> Hit:
    place = victim.places(victim.inner)[2]
    return record(victim, 2, struct.pack("<I", place.position + 8), 8)


@index("index record past the end", "a record points past the end of the page")
def _(victim: Victim) -> Hit:
    return record(victim, 2, struct.pack("<I", 0xFFFFFFF8), 8)


@index("index record into the header", "a record points into the page's header")
def _(victim: Victim) -> Hit:
    return record(victim, 2, struct.pack("<I", 16), 8)


@index("index record missing", "a record in the middle is marked as absent")
def _(victim: Victim) -> Hit:
    return record(victim, 2, bytes(4), 8)


@index("index record with another time", "a record has another time than its frame")
def _(victim: Victim) -> Hit:
    place = victim.places(victim.inner)[2]
    return record(victim, 2, struct.pack("<q", place.timestamp + 1))


@index("index record with the last time there is", "a record has the largest time there is")
def _(victim: Victim) -> Hit:
    return record(victim, 2, struct.pack("<q", fmt.TIMESTAMP_MAX))


@index("index record of a negative time", "a record has the smallest time there is")
def _(victim: Victim) -> Hit:
    return record(victim, 2, struct.pack("<q", -(2**63)))


@index("index record of the frame before", "a record is a copy of the one before it")
def _(victim: Victim) -> Hit:
    data = victim.read(victim.index(victim.inner))
    return record(victim, 2, data[RECORD : 2 * RECORD])


@index("index in reverse", "the records of an index are in reverse order")
def _(victim: Victim) -> Hit:
    name, count = victim.index(victim.inner), len(victim.places(victim.inner))
    data = victim.read(name)
    records = [data[at : at + RECORD] for at in range(0, count * RECORD, RECORD)]
    victim.poke(name, 0, b"".join(reversed(records)))
    return first(victim)


@index(
    "index with more records than frames",
    "an index has noise after its last record, as a killed producer can leave it",
    verify=FindsNothing(),
    repair=Idle(),
)
def _(victim: Victim) -> Hit:
    name, count = victim.index(victim.active), len(victim.places(victim.active))
    size = len(victim.read(name)) - count * RECORD
    victim.poke(name, count * RECORD, victim.rng.randbytes(size))
    return whole(victim, victim.active)
