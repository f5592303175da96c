"""Damages of a sealed page as a file, and of its header. Opening does not read such a page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pagequeue import format as fmt
from stress.corpus.damage import (
    CUT_OFF,
    WORKS,
    ByMark,
    Fails,
    Finds,
    Kind,
    Leaves,
    OutcomeOf,
    Repairs,
    Saves,
    Until,
    Works,
)

if TYPE_CHECKING:
    from stress.corpus.damage import Hit
    from stress.corpus.victim import Victim

WRITTEN_AGAIN = Works("all", "header of page")
MADE_AGAIN = Works("before", "made page")
"""In a page that no flush has passed, which could be one of a commit."""


def page_kind(
    error: Fails, above: Works | Fails, repair: OutcomeOf, *, finds: str | None = None
) -> Kind:
    """Return the outcomes for a sealed page that fails with this error."""
    return Kind(
        {
            "opening": WORKS,
            "after_cut": ByMark(error, above),
            "read_only": WORKS,
            "reading": Until(error),
            "verify": Finds(error.reason if finds is None else finds),
            "repair": repair,
            "salvage": Saves(),
        },
        pages=3,
    )


WRONG_SIZE = Fails("CorruptPage", "wrong size")
lossy_size = page_kind(WRONG_SIZE, CUT_OFF, Leaves())
harmless_size = page_kind(WRONG_SIZE, CUT_OFF, Repairs())
MAGIC, CHECKSUM = Fails("CorruptPage", "wrong magic"), Fails("CorruptPage", "wrong checksum")
magic = page_kind(MAGIC, WRITTEN_AGAIN, Repairs()).but(
    after_cut=ByMark(MAGIC, WRITTEN_AGAIN, after=MADE_AGAIN)
)
checksum = page_kind(CHECKSUM, WRITTEN_AGAIN, Repairs()).but(
    after_cut=ByMark(CHECKSUM, WRITTEN_AGAIN, after=MADE_AGAIN)
)
overwritten = page_kind(Fails("CorruptPage", "wrong magic"), CUT_OFF, Leaves())
NEWER = Fails("NewerFormat", "upgrade", placed=False)
newer = page_kind(NEWER, NEWER, Leaves()).but(
    verify=Finds("format", placed=False), salvage=Saves(reads=False)
)
FIRST = Fails("CorruptPage|CorruptFrame", "", placed=False)
first = page_kind(FIRST, WRITTEN_AGAIN, Repairs(), finds="begins with message").but(
    after_cut=ByMark(FIRST, WRITTEN_AGAIN, may_repair=True)
)


@lossy_size("page empty", "a sealed page is cut to 0 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(victim.page(victim.inner), 0)
    return victim.at_page(victim.inner, 0)


@lossy_size("page cut inside its header", "a sealed page is cut to 40 bytes")
def _(victim: Victim) -> Hit:
    victim.resize(victim.page(victim.inner), 40)
    return victim.at_page(victim.inner, 40)


@lossy_size("page cut inside a frame", "a sealed page is cut inside a frame in its middle")
def _(victim: Victim) -> Hit:
    size = victim.middle(victim.inner).position + 20
    victim.resize(victim.page(victim.inner), size)
    return victim.at_page(victim.inner, size)


@harmless_size(
    "page cut after its end-of-page marker", "a sealed page is cut after its end-of-page marker"
)
def _(victim: Victim) -> Hit:
    number = victim.roomy
    size = victim.end(number) + fmt.FRAME_HEADER_BYTES
    victim.resize(victim.page(number), size)
    return victim.at_page(number, size)


@harmless_size("page too long", "4096 zeros are appended to a sealed page")
def _(victim: Victim) -> Hit:
    size = len(victim.read(victim.page(victim.inner)))
    victim.resize(victim.page(victim.inner), size + 4096)
    return victim.at_page(victim.inner, size)


@harmless_size("page too long by one byte", "one byte is appended to a sealed page")
def _(victim: Victim) -> Hit:
    data = victim.read(victim.page(victim.inner))
    victim.put(victim.page(victim.inner), data + b"\x01")
    return victim.at_page(victim.inner, len(data))


@magic("header with wrong magic", "one bit of a sealed page's magic word is changed")
def _(victim: Victim) -> Hit:
    victim.flip(victim.page(victim.inner), victim.rng.randrange(8))
    return victim.at_page(victim.inner)


@magic("header of zeros", "a sealed page's header is zeroed")
def _(victim: Victim) -> Hit:
    victim.poke(victim.page(victim.inner), 0, bytes(fmt.PAGE_HEADER_BYTES))
    return victim.at_page(victim.inner)


@magic("header of another kind of file", "a sealed page's header becomes that of the allMeta")
def _(victim: Victim) -> Hit:
    victim.poke(victim.page(victim.inner), 0, victim.original.contents["queue-allMeta"][:64])
    return victim.at_page(victim.inner)


@checksum("header with wrong checksum", "one bit of a sealed page's header checksum is changed")
def _(victim: Victim) -> Hit:
    victim.flip(victim.page(victim.inner), 12 + victim.rng.randrange(4))
    return victim.at_page(victim.inner)


@checksum("header field changed", "one bit of a sealed page's header after its checksum changes")
def _(victim: Victim) -> Hit:
    victim.flip(victim.page(victim.inner), 16 + victim.rng.randrange(48))
    return victim.at_page(victim.inner)


@newer("header of a newer format", "a sealed page has the next format version, checksum right")
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, version=fmt.FORMAT_VERSION + 1)
    return victim.at_page(victim.inner)


# Recovery does not rewrite damage that no power cut can cause: repair does.
VERSION_0 = Fails("CorruptPage", "no format")


@page_kind(VERSION_0, VERSION_0, Repairs())(
    "header of format 0", "a sealed page has format version 0, with the checksum for that"
)
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, version=0)
    return victim.at_page(victim.inner)


OTHER_QUEUE = Fails("CorruptPage", "another queue")


@page_kind(OTHER_QUEUE, OTHER_QUEUE, Leaves())(
    "page of another queue", "another queue's page of this number takes the place of a sealed page"
)
def _(victim: Victim) -> Hit:
    name = victim.page(victim.inner)
    victim.put(name, victim.other.contents[name])
    return victim.at_page(victim.inner)


OTHER_NUMBER = Fails("CorruptPage", "it is page")


@page_kind(OTHER_NUMBER, OTHER_NUMBER, Leaves())(
    "page under another number", "a sealed page is overwritten by a copy of the page before it"
)
def _(victim: Victim) -> Hit:
    victim.put(victim.page(victim.inner), victim.read(victim.page(victim.inner - 1)))
    return victim.at_page(victim.inner)


@page_kind(OTHER_NUMBER, OTHER_NUMBER, Leaves()).but(reading=Until(OTHER_NUMBER, continues=False))(
    "two pages changed places", "the names of a sealed page and of the page before are exchanged"
)
def _(victim: Victim) -> Hit:
    return exchanged(victim)


@page_kind(OTHER_NUMBER, OTHER_NUMBER, Leaves()).but(
    opening=OTHER_NUMBER, read_only=OTHER_NUMBER, reading=OTHER_NUMBER
)("two pages of a copy changed places", "the same, in a copy, which the next writer recovers")
def _(victim: Victim) -> Hit:
    victim.cut_power()
    return exchanged(victim)


def exchanged(victim: Victim) -> Hit:
    """Exchange a sealed page and the page before it."""
    first_name, second_name = victim.page(victim.inner - 1), victim.page(victim.inner)
    first_data, second_data = victim.read(first_name), victim.read(second_name)
    victim.put(first_name, second_data)
    victim.put(second_name, first_data)
    return victim.at_page(victim.inner - 1)


@first("header one sequence ahead", "a sealed page claims to begin one message later")
def _(victim: Victim) -> Hit:
    hit = victim.at_page(victim.inner)
    victim.header(victim.inner, first_sequence=(hit.sequence or 0) + 1)
    return hit


@first("header one sequence early", "a sealed page claims to begin one message earlier")
def _(victim: Victim) -> Hit:
    hit = victim.at_page(victim.inner)
    victim.header(victim.inner, first_sequence=(hit.sequence or 0) - 1)
    return hit


@first(
    "header without first sequence",
    "a sealed page claims to be only prepared",
    verify=Finds("first sequence"),
)
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, first_sequence=fmt.UNSET_SEQUENCE)
    return victim.at_page(victim.inner)


@first("header with the last sequence there is", "a sealed page claims to begin with 2**63 - 1")
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, first_sequence=fmt.SEQUENCE_MAX)
    # The page before seems to continue up to there.
    return replace(victim.at_page(victim.inner), others=(victim.page(victim.inner - 1),))


IMPOSSIBLE = Fails("CorruptPage", "first sequence")


@page_kind(IMPOSSIBLE, IMPOSSIBLE, Repairs())(
    "header with an invalid sequence", "a sealed page claims to begin with 2**63"
)
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, first_sequence=fmt.SEQUENCE_MAX + 1)
    return victim.at_page(victim.inner)


@page_kind(FIRST, CUT_OFF, Leaves(), finds="begins with message").but(
    salvage=Saves(contradicts=True)
)(
    "page that contradicts the one before",
    "a sealed page is overwritten by one that has the sequences of the page before and other "
    "payloads, under its own number, all checksums right",
)
def _(victim: Victim) -> Hit:
    number, name = victim.inner, victim.page(victim.inner)
    victim.put(name, victim.read(victim.page(number - 1)))
    for place in victim.places(number - 1):
        payload = bytes(255 - byte for byte in place.payload)
        data = victim.frame(payload, place.timestamp, place.sequence, more=place.more)
        victim.poke(name, place.position, data)
    victim.header(number, page_number=number)
    # The next page does not follow it, and may be blamed as well.
    return replace(victim.at_page(number), others=(victim.page(number + 1),))


floor = page_kind(Fails("CorruptPage"), WORKS, Repairs()).but(
    after_cut=ByMark(Fails("CorruptFrame|CorruptPage", "older", placed=False), Works("any")),
    reading=WORKS,
)


@floor(
    "header with a floor above its frames",
    "a sealed page claims that the previous page ended in the far future",
    verify=Finds("older"),
)
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, floor_timestamp=fmt.TIMESTAMP_MAX)
    return victim.at(victim.places(victim.inner)[0])


@floor(
    "header with a floor below the page before",
    "a sealed page claims that the previous page ended at time 0",
    verify=Finds("earlier"),
    after_cut=WORKS,
)
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, floor_timestamp=0)
    return victim.at_page(victim.inner)


@floor(
    "header with a negative floor",
    "a sealed page claims that the previous page ended before 1970",
    verify=Finds("earlier"),
    after_cut=WORKS,
)
def _(victim: Victim) -> Hit:
    victim.header(victim.inner, floor_timestamp=-(2**63))
    return victim.at_page(victim.inner)


@overwritten("page of ones", "all bits of a sealed page are set")
def _(victim: Victim) -> Hit:
    name = victim.page(victim.inner)
    victim.put(name, b"\xff" * len(victim.read(name)))
    return victim.at_page(victim.inner)


@overwritten("page of zeros", "a sealed page becomes one hole")
def _(victim: Victim) -> Hit:
    name = victim.page(victim.inner)
    size = len(victim.read(name))
    victim.resize(name, 0)
    victim.resize(name, size)
    return victim.at_page(victim.inner)


@overwritten("page of noise", "a sealed page is overwritten with random bytes")
def _(victim: Victim) -> Hit:
    name = victim.page(victim.inner)
    victim.put(name, victim.rng.randbytes(len(victim.read(name))))
    return victim.at_page(victim.inner)
