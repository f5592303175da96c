"""Damages of allMeta and readMeta."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagequeue import format as fmt
from stress.corpus.damage import (
    WORKS,
    Fails,
    Finds,
    FindsNothing,
    Hit,
    Idle,
    Kind,
    Leaves,
    Repairs,
    Saves,
    Works,
)
from stress.corpus.victim import ALL_META, READ_META, WRITE_META

if TYPE_CHECKING:
    from stress.corpus.damage import OutcomeOf
    from stress.corpus.victim import Victim


def meta_kind(
    error: Fails, repair: OutcomeOf | None = None, verify: Finds | FindsNothing | None = None
) -> Kind:
    """Return the outcomes for an unusable meta file: no open works, repair recreates it."""
    return Kind(
        {
            "opening": error,
            "after_cut": error,
            "read_only": error,
            "verify": verify or Finds(error.reason, placed=error.placed),
            "repair": repair or Repairs("Meta"),
            "salvage": Saves(),
        }
    )


MISSING = Fails("CorruptMeta", "missing", placed=False)
SHORT = Fails("CorruptMeta", "too short")
MAGIC = Fails("CorruptMeta", "wrong magic")
CHECKSUM = Fails("CorruptMeta", "wrong checksum")
NEWER = Fails("NewerFormat", "upgrade", placed=False)
OTHER = Fails("CorruptMeta|CorruptPage", "another queue", placed=False)
VERSION_0 = Fails("CorruptMeta", "no format")
SIZE = Fails("CorruptMeta", "page size")


# --- allMeta --------------------------------------------------------------------------------------


@meta_kind(MISSING)("allMeta missing", "the allMeta is removed")
def _(victim: Victim) -> Hit:
    victim.remove(ALL_META)
    return Hit(ALL_META, others=(victim.directory.name,))


@meta_kind(SHORT)("allMeta empty", "the allMeta is cut to 0 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(ALL_META, 0)
    return Hit(ALL_META, 0)


@meta_kind(SHORT)("allMeta too short", "the allMeta loses its last byte")
def _(victim: Victim) -> Hit:
    victim.resize(ALL_META, fmt.ALL_META.itemsize - 1)
    return Hit(ALL_META, 0)


@meta_kind(CHECKSUM).but(
    opening=WORKS, after_cut=WORKS, read_only=WORKS, reading=WORKS, verify=Finds("are used")
)("allMeta too long", "noise is appended to the allMeta, past the bytes that are read")
def _(victim: Victim) -> Hit:
    used = len(victim.read(ALL_META))
    victim.put(ALL_META, victim.read(ALL_META) + b"noise")
    return Hit(ALL_META, used)


@meta_kind(MAGIC)("allMeta with wrong magic", "one bit of the allMeta's magic word is changed")
def _(victim: Victim) -> Hit:
    victim.flip(ALL_META, victim.rng.randrange(8))
    return Hit(ALL_META, 0)


@meta_kind(MAGIC)("allMeta torn", "the first half of the allMeta is zero")
def _(victim: Victim) -> Hit:
    victim.poke(ALL_META, 0, bytes(32))
    return Hit(ALL_META, 0)


@meta_kind(MAGIC)("allMeta of ones", "all bits of the allMeta are set")
def _(victim: Victim) -> Hit:
    victim.put(ALL_META, b"\xff" * 64)
    return Hit(ALL_META, 0)


@meta_kind(CHECKSUM)("allMeta with wrong checksum", "one bit of the allMeta's checksum is changed")
def _(victim: Victim) -> Hit:
    victim.flip(ALL_META, 12 + victim.rng.randrange(4))
    return Hit(ALL_META, 12)


@meta_kind(CHECKSUM)("allMeta field changed", "one bit of the allMeta after its checksum changes")
def _(victim: Victim) -> Hit:
    victim.flip(ALL_META, 16 + victim.rng.randrange(40))
    return Hit(ALL_META, 12)


@meta_kind(CHECKSUM)("allMeta with options past its end", "the length of the options is 2**32 - 1")
def _(victim: Victim) -> Hit:
    victim.word(ALL_META, fmt.ALL_META, "options_bytes", 2**32 - 1)
    return Hit(ALL_META, 12)


def signed(victim: Victim, options: bytes = b"", **fields: int) -> None:
    """Write the allMeta with these fields and options, and the checksum for that."""
    record = np.frombuffer(victim.read(ALL_META), fmt.ALL_META, 1).copy()
    for field, value in fields.items():
        record[field] = value
    record["options_bytes"] = len(options)
    victim.sign_all_meta(record.tobytes() + options)


@meta_kind(
    NEWER, Fails("NewerFormat|CorruptMeta", placed=False), Finds("format", placed=False)
).but(salvage=Fails("CorruptMeta|NewerFormat", placed=False))(
    "allMeta of a newer format", "the allMeta has the next format, with the checksum for that"
)
def _(victim: Victim) -> Hit:
    signed(victim, version=fmt.FORMAT_VERSION + 1)
    return Hit(ALL_META)


@meta_kind(VERSION_0)("allMeta of format 0", "the allMeta has format version 0, checksum right")
def _(victim: Victim) -> Hit:
    signed(victim, version=0)
    return Hit(ALL_META, 8)


@meta_kind(SIZE)("allMeta with an impossible page size", "the page size is 2**63, checksum right")
def _(victim: Victim) -> Hit:
    signed(victim, page_bytes=2**63)
    return Hit(ALL_META, 40)


@meta_kind(SIZE)("allMeta with another index capacity", "the capacity is 1, checksum right")
def _(victim: Victim) -> Hit:
    signed(victim, index_capacity=1)
    return Hit(ALL_META, 40)


DOUBLE = Fails("CorruptPage", "wrong size", placed=False)


@meta_kind(DOUBLE, Repairs(), Finds("", placed=False)).but(read_only=Works("any"))(
    "allMeta with another page size",
    "page size and capacity are doubled, checksum right, against all pages",
)
def _(victim: Victim) -> Hit:
    signed(victim, page_bytes=8192, index_capacity=256)
    everything = tuple(victim.page(number) for number in range(1, victim.active + 2))
    return Hit(ALL_META, 40, None, None, everything)


@meta_kind(Fails("CorruptMeta", "options"))(
    "allMeta with options that are no JSON", "options are noise, checksum right"
)
def _(victim: Victim) -> Hit:
    signed(victim, b"{not json")
    return Hit(ALL_META, fmt.ALL_META.itemsize)


@meta_kind(Fails("CorruptMeta", "options"))(
    "allMeta with options nested too deeply", "options are 60,000 brackets, checksum right"
)
def _(victim: Victim) -> Hit:
    signed(victim, b"[" * 60_000)
    return Hit(ALL_META, fmt.ALL_META.itemsize)


@meta_kind(Fails("CorruptMeta", "options"))(
    "allMeta with an unknown codec", "the options name an unknown codec, checksum right"
)
def _(victim: Victim) -> Hit:
    signed(victim, b'{"codec": "eval"}')
    return Hit(ALL_META, fmt.ALL_META.itemsize)


@meta_kind(Fails("CorruptMeta", "options"))(
    "allMeta with a dtype of objects",
    "the options define each message as a pointer to a Python object, checksum right",
)
def _(victim: Victim) -> Hit:
    form = b'{"names": ["a"], "formats": ["|O"], "offsets": [0], "itemsize": 8}'
    signed(victim, b'{"dtype": ' + form + b"}")
    return Hit(ALL_META, fmt.ALL_META.itemsize)


@meta_kind(Fails("CorruptMeta", "options"))(
    "allMeta with a dtype beyond all memory",
    "the options define each message as an array of 2**60 numbers, checksum right",
)
def _(victim: Victim) -> Hit:
    sizes = b"[1073741824, 1073741824]"
    form = b'{"names": ["a"], "formats": [["<f8", %s]], "offsets": [0], "itemsize": 8}' % sizes
    signed(victim, b'{"dtype": ' + form + b"}")
    return Hit(ALL_META, fmt.ALL_META.itemsize)


@meta_kind(OTHER)("allMeta of another queue", "another queue's allMeta takes its place")
def _(victim: Victim) -> Hit:
    victim.put(ALL_META, victim.other.contents[ALL_META])
    pages = tuple(victim.page(number) for number in range(1, victim.active + 2))
    return Hit(ALL_META, None, None, None, (WRITE_META, READ_META, *pages))


# --- readMeta -------------------------------------------------------------------------------------


@meta_kind(MISSING).but(
    opening=Works("all", "recreated the read meta"),
    after_cut=Works("all", "recreated the read meta"),
)("readMeta missing", "the readMeta is removed")
def _(victim: Victim) -> Hit:
    victim.remove(READ_META)
    return Hit(READ_META, others=(victim.directory.name,))


def read_kind(error: Fails, *, repair: OutcomeOf | None = None) -> Kind:
    """Return the outcomes for an unusable readMeta."""
    return meta_kind(error, repair or Repairs("readMeta"))


@read_kind(SHORT)("readMeta empty", "the readMeta is cut to 0 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(READ_META, 0)
    return Hit(READ_META, 0)


@read_kind(SHORT)("readMeta too short", "the readMeta loses its last byte")
def _(victim: Victim) -> Hit:
    victim.resize(READ_META, fmt.READ_META_BYTES - 1)
    return Hit(READ_META, 0)


@read_kind(MAGIC)("readMeta of zeros", "the readMeta becomes one hole")
def _(victim: Victim) -> Hit:
    victim.put(READ_META, bytes(fmt.READ_META_BYTES))
    return Hit(READ_META, 0)


@read_kind(CHECKSUM)(
    "readMeta with wrong checksum", "one bit of the readMeta's checksum is changed"
)
def _(victim: Victim) -> Hit:
    victim.flip(READ_META, 12 + victim.rng.randrange(4))
    return Hit(READ_META, 12)


@meta_kind(NEWER, Leaves(), Finds("format", placed=False))(
    "readMeta of a newer format", "the readMeta has the next format version"
)
def _(victim: Victim) -> Hit:
    victim.word(READ_META, fmt.READ_META, "version", fmt.FORMAT_VERSION + 1)
    return Hit(READ_META)


@read_kind(OTHER)("readMeta of another queue", "another queue's readMeta takes its place")
def _(victim: Victim) -> Hit:
    victim.put(READ_META, victim.other.contents[READ_META])
    return Hit(READ_META, 16)


# The checksum does not cover the head, because it moves; a head that contradicts pages is found.
# Moving it loses no message: the pages before it exist until a trim removes them.
HEAD = Fails("CorruptMeta|CorruptPage|CorruptFrame|MissingPage", "", placed=False)
head = read_kind(HEAD).but(verify=Finds("", placed=False))


def head_hit(victim: Victim, *pages: int) -> Hit:
    """Return the hit of a head; the pages that contradict it may be blamed as well."""
    others = tuple(victim.page(number) for number in (victim.head, victim.active, *pages))
    return Hit(READ_META, None, None, None, (WRITE_META, *others))


@head("readMeta with head page 0", "the head page becomes 0")
def _(victim: Victim) -> Hit:
    victim.word(READ_META, fmt.READ_META, "head_page", 0)
    return head_hit(victim, 0)


@head("readMeta with head page past the tail", "the head page is the one after the active page")
def _(victim: Victim) -> Hit:
    victim.word(READ_META, fmt.READ_META, "head_page", victim.active + 1)
    return head_hit(victim, victim.active + 1)


@head("readMeta with the largest head page", "the head page is 2**64 - 1")
def _(victim: Victim) -> Hit:
    victim.word(READ_META, fmt.READ_META, "head_page", 2**64 - 1)
    return head_hit(victim, 2**64 - 1)


@head("readMeta with head sequence past the tail", "the head sequence is 2**63 - 1")
def _(victim: Victim) -> Hit:
    victim.word(READ_META, fmt.READ_META, "head_odd", fmt.SEQUENCE_MAX)
    return head_hit(victim)


@head("readMeta with a head inside a page", "the head sequence is one too many")
def _(victim: Victim) -> Hit:
    victim.word(READ_META, fmt.READ_META, "head_odd", 1)
    return head_hit(victim)


@head.but(
    pages=3,
    opening=Works("any"),
    after_cut=Works("any"),
    read_only=Works("any"),
    repair=Idle(),
    salvage=Saves(knows=False, reads=False),
)(
    "readMeta ahead by a page",
    "the head is the second page, as when trimming was cut before it removed the first",
    verify=FindsNothing(),
)
def _(victim: Victim) -> Hit:
    victim.move_head(victim.places(victim.head + 1)[0])
    return Hit(READ_META, None, None, victim.head)


APPENDED = Kind(
    {
        "opening": WORKS,
        "after_cut": WORKS,
        "read_only": WORKS,
        "reading": WORKS,
        "verify": Finds("are used"),
        "repair": Repairs("cut off"),
        "salvage": Saves(),
    }
)


@APPENDED("writeMeta too long", "noise is appended to the writeMeta")
def _(victim: Victim) -> Hit:
    used = len(victim.read(WRITE_META))
    victim.put(WRITE_META, victim.read(WRITE_META) + b"noise")
    victim.settle()
    return Hit(WRITE_META, used)


@APPENDED("readMeta too long", "noise is appended to the readMeta")
def _(victim: Victim) -> Hit:
    used = len(victim.read(READ_META))
    victim.put(READ_META, victim.read(READ_META) + b"noise")
    return Hit(READ_META, used)
