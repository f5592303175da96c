"""Damages of the writeMeta: its identity, and each of its fields."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

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
from stress.corpus.metas import CHECKSUM, MAGIC, MISSING, NEWER, OTHER, SHORT, meta_kind
from stress.corpus.victim import WRITE_META

if TYPE_CHECKING:
    from stress.corpus.damage import OutcomeOf
    from stress.corpus.victim import Victim


def write_kind(error: Fails, repair: OutcomeOf | None = None) -> Kind:
    """Return the outcomes for an unusable writeMeta."""
    kind = meta_kind(error, repair or Repairs("writeMeta"))
    return kind.but(salvage=Saves(knows=False)).without("after_cut")


@write_kind(MISSING).but(opening=Works("all", "checked"))(
    "writeMeta missing", "the writeMeta is removed; opening recreates it from all frames"
)
def _(victim: Victim) -> Hit:
    victim.remove(WRITE_META)
    return Hit(WRITE_META, others=(victim.directory.name,))


@write_kind(SHORT)("writeMeta empty", "the writeMeta is cut to 0 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(WRITE_META, 0)
    return Hit(WRITE_META, 0)


@write_kind(SHORT)("writeMeta too short", "the writeMeta is cut to the record of 512 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(WRITE_META, fmt.WRITE_META.itemsize)
    return Hit(WRITE_META, 0)


@write_kind(MAGIC)("writeMeta with wrong magic", "one bit of the writeMeta's magic word is changed")
def _(victim: Victim) -> Hit:
    victim.flip(WRITE_META, victim.rng.randrange(8))
    return Hit(WRITE_META, 0)


@write_kind(MAGIC)("writeMeta of zeros", "the writeMeta becomes one hole")
def _(victim: Victim) -> Hit:
    victim.put(WRITE_META, bytes(fmt.WRITE_META_FILE_BYTES))
    return Hit(WRITE_META, 0)


@write_kind(MAGIC)("writeMeta of ones", "all bits of the writeMeta are set")
def _(victim: Victim) -> Hit:
    victim.put(WRITE_META, b"\xff" * fmt.WRITE_META_FILE_BYTES)
    return Hit(WRITE_META, 0)


@write_kind(CHECKSUM)("writeMeta with wrong checksum", "one bit of its checksum is changed")
def _(victim: Victim) -> Hit:
    victim.flip(WRITE_META, 12 + victim.rng.randrange(4))
    return Hit(WRITE_META, 12)


NEWER_META = meta_kind(NEWER, Leaves(), Finds("format", placed=False)).without("after_cut")


@NEWER_META.but(salvage=Saves(knows=False))(
    "writeMeta of a newer format", "the writeMeta has the next format version"
)
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "version", fmt.FORMAT_VERSION + 1)
    return Hit(WRITE_META)


@write_kind(OTHER)("writeMeta of another queue", "another queue's writeMeta takes its place")
def _(victim: Victim) -> Hit:
    victim.put(WRITE_META, victim.other.contents[WRITE_META])
    return Hit(WRITE_META, 16)


# --- the fields -----------------------------------------------------------------------------------

# After a power cut the fields are not trusted, except for the durable mark.
words = Kind(
    {
        "opening": WORKS,
        "after_cut": WORKS,
        "read_only": WORKS,
        "reading": WORKS,
        "verify": Finds("", placed=False),
        "repair": Repairs(),
        "salvage": Saves(knows=False),
    }
)
harmless = words.but(verify=FindsNothing(), repair=Idle(), salvage=Saves())
TAIL = Fails("CorruptMeta|MissingPage", "", placed=False)
refused = words.but(opening=TAIL, read_only=TAIL).without("reading")


ahead = words.but(
    opening=Fails("CorruptFrame", "counts", placed=False),
    read_only=Works("any"),
    reading=Works("any"),
    repair=Leaves(),
)


def tail_hit(victim: Victim) -> Hit:
    """Return the hit of a tail; the page that contradicts it may be blamed as well."""
    pages = (victim.active, victim.active + 1, max(victim.active - 1, 1))
    numbers = (*pages, victim.field(WRITE_META, fmt.WRITE_META, "page_number"))
    names = tuple(victim.page(number) for number in numbers)
    return Hit(WRITE_META, None, None, None, (*names, victim.directory.name))


@harmless.but(read_only=Works("any"), reading=Works("any"))(
    "tail fields late by a message",
    "the tail fields miss a message or batch, as when a producer was killed right after publishing",
    opening=Works("all", "recovered"),
)
def _(victim: Victim) -> Hit:
    start = victim.original.whole_before(victim.last(victim.active).sequence)
    first = victim.places(victim.active)[0]
    place = victim.original.places[max(start, first.sequence)]
    victim.tail_word(victim.active, place.position, place.sequence - first.sequence)
    durable = min(victim.original.durable, place.sequence)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", durable)
    return Hit(WRITE_META)


@words.but(pages=3, read_only=Works("any"), reading=Works("any"))(
    "tail fields late by a page", "the active page is the one before, with its fields as they were"
)
def _(victim: Victim) -> Hit:
    before = victim.active - 1
    first = victim.places(before)[0]
    field = "first_odd" if before & 1 else "first_even"
    victim.word(WRITE_META, fmt.WRITE_META, "page_number", before)
    victim.word(WRITE_META, fmt.WRITE_META, field, first.sequence)
    victim.tail_word(before, victim.end(before), len(victim.places(before)))
    return tail_hit(victim)


@ahead("tail fields ahead", "the tail fields count a message that does not exist")
def _(victim: Victim) -> Hit:
    count = len(victim.places(victim.active))
    victim.tail_word(victim.active, victim.end(victim.active) + 24, count + 1)
    return tail_hit(victim)


@words.but(read_only=Works("any"), reading=Works("any"))(
    "tail fields inside a frame", "the tail points into the last frame"
)
def _(victim: Victim) -> Hit:
    place = victim.last(victim.active)
    victim.tail_word(victim.active, place.position + 8, len(victim.places(victim.active)))
    return tail_hit(victim)


@words.but(read_only=Works("any"), reading=Works("any"))(
    "tail count wrong", "the tail fields count one message too few"
)
def _(victim: Victim) -> Hit:
    count = len(victim.places(victim.active))
    victim.tail_word(victim.active, victim.end(victim.active), count - 1)
    return tail_hit(victim)


@ahead("tail with another first sequence", "the active page's first sequence is one too many")
def _(victim: Victim) -> Hit:
    field = "first_odd" if victim.active & 1 else "first_even"
    first = victim.places(victim.active)[0].sequence
    victim.word(WRITE_META, fmt.WRITE_META, field, first + 1)
    return tail_hit(victim)


COUNTED = Fails("CorruptFrame|CorruptMeta", placed=False)


@refused.but(opening=COUNTED)(
    "tail fields of ones", "all bits of both pairs of tail fields are set"
)
def _(victim: Victim) -> Hit:
    for field in ("tail_even", "first_even", "tail_odd", "first_odd"):
        victim.word(WRITE_META, fmt.WRITE_META, field, 2**64 - 1)
    return tail_hit(victim)


@refused("tail fields of zeros", "page number and both pairs of tail fields are zero")
def _(victim: Victim) -> Hit:
    for field in ("page_number", "tail_even", "first_even", "tail_odd", "first_odd"):
        victim.word(WRITE_META, fmt.WRITE_META, field, 0)
    return tail_hit(victim)


GONE = Fails("CorruptMeta|MissingPage", "", placed=False)


@words.but(opening=GONE, reading=Works("any"), read_only=Works("any"), repair=Leaves())(
    "active page far ahead", "the active page's number is 2 more than it is"
)
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "page_number", victim.active + 2)
    return tail_hit(victim)


@refused("active page 2**64 - 1", "all bits of the active page's number are set")
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "page_number", 2**64 - 1)
    return tail_hit(victim)


@words("last timestamp ahead", "the last timestamp is the largest there is", verify=Finds("time"))
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "last_timestamp", fmt.TIMESTAMP_MAX)
    return tail_hit(victim)


@words("last timestamp too early", "the last timestamp is 0", verify=Finds("time"))
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "last_timestamp", 0)
    return tail_hit(victim)


LOST = Fails("CorruptFrame", "")


@words.but(after_cut=LOST, repair=Leaves(), salvage=Saves(knows=False))(
    "durable mark ahead",
    "the durable mark is two messages past the tail",
    verify=Finds("durable"),
)
def _(victim: Victim) -> Hit:
    end = victim.end_sequence(victim.active)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", end + 2)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_page", victim.active)
    return Hit(WRITE_META, None, end, victim.active, (victim.page(victim.active),), whole=True)


@words.but(after_cut=LOST, salvage=Saves(knows=False))(
    "durable mark of ones", "all bits of the durable mark are set", verify=Finds("durable")
)
def _(victim: Victim) -> Hit:
    end = victim.end_sequence(victim.active)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", 2**64 - 1)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_page", 2**64 - 1)
    return Hit(WRITE_META, None, end, victim.active, (victim.page(victim.active),), whole=True)


@harmless("durable mark too low", "the durable mark is that of a queue that was never flushed")
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", 0)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_page", victim.head)
    return Hit(WRITE_META)


@harmless.but(salvage=Saves(knows=False))(
    "durable mark unknown", "durable mark and page are 0, as when recovery was cut"
)
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", 0)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_page", 0)
    return Hit(WRITE_META)


LATCHED = Fails("SyncFailed", "", placed=False)


@words.but(opening=LATCHED, repair=Repairs())(
    "failure latch set",
    "the failure latch records that a sync of the active page failed with EIO",
    verify=Finds("sync"),
    after_cut=Works("all"),
)
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "failed_errno", errno.EIO)
    victim.word(WRITE_META, fmt.WRITE_META, "failed_page", victim.active)
    return tail_hit(victim)


@harmless("writers' lock of noise", "the bytes of the writers' lock are noise")
def _(victim: Victim) -> Hit:
    victim.poke(WRITE_META, 128, victim.rng.randbytes(64))
    return Hit(WRITE_META)


@harmless("lock of another C library", "the kind of the lock is unknown to this process")
def _(victim: Victim) -> Hit:
    victim.word(WRITE_META, fmt.WRITE_META, "lock_abi", 0x00400202)
    return Hit(WRITE_META)


@harmless("waiters that do not exist", "doorbell and waiters are noise")
def _(victim: Victim) -> Hit:
    victim.poke(WRITE_META, 384, victim.rng.randbytes(8))
    return Hit(WRITE_META)


@harmless("batch that does not exist", "a batch is marked as open after the tail", opening=WORKS)
def _(victim: Victim) -> Hit:
    sequence = victim.end_sequence(victim.active)
    victim.word(WRITE_META, fmt.WRITE_META, "batch_open", sequence + 1)
    return Hit(WRITE_META)


@harmless("unused bytes of the writeMeta", "noise follows the writeMeta's record")
def _(victim: Victim) -> Hit:
    victim.poke(WRITE_META, 512, victim.rng.randbytes(3584))
    return Hit(WRITE_META)
