"""Damages of the page that is written to, and around the tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import Queue
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
from stress.corpus.frames import CHECKSUM, LENGTH, NOTHING
from stress.corpus.sealed_pages import MADE_AGAIN, MAGIC, WRITTEN_AGAIN
from stress.corpus.victim import WRITE_META

if TYPE_CHECKING:
    from stress.corpus.victim import Victim


def tail_kind(reason: str) -> Kind:
    """Return the outcomes for a frame of the active page; opening sees the last one only."""
    error = Fails("CorruptFrame", reason)
    return Kind(
        {
            "opening": WORKS,
            "after_cut": ByMark(error, CUT_OFF),
            "read_only": WORKS,
            "reading": Until(error, continues=False),
            "verify": Finds(reason),
            "repair": Leaves(),
            "salvage": Saves(),
        }
    )


middle = tail_kind(CHECKSUM)
last = middle.but(opening=Fails("CorruptFrame", CHECKSUM))


@middle("active page: payload changed", "one bit of a payload in the middle of the active page")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.active)
    victim.flip(victim.page(place.page), place.position + fmt.FRAME_HEADER_BYTES)
    return victim.at(place)


@tail_kind(NOTHING)("active page: hole", "a frame in the middle of the active page becomes zeros")
def _(victim: Victim) -> Hit:
    place = victim.middle(victim.active)
    victim.poke(victim.page(place.page), place.position, bytes(place.end - place.position))
    return victim.at(place)


@last("tail: bad checksum", "one bit of the last message's checksum is changed")
def _(victim: Victim) -> Hit:
    place = victim.last(victim.active)
    victim.flip(victim.page(place.page), place.position + 4 + victim.rng.randrange(4))
    return victim.at(place)


@last("tail: bad checksum, durable", "the same, and the durable mark is at the tail")
def _(victim: Victim) -> Hit:
    place = victim.last(victim.active)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", place.sequence + 1)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_page", place.page)
    victim.flip(victim.page(place.page), place.position + 4)
    return victim.at(place)


@last("tail: bad checksum, not durable", "the same, and the durable mark is at the head")
def _(victim: Victim) -> Hit:
    place = victim.last(victim.active)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_sequence", 0)
    victim.word(WRITE_META, fmt.WRITE_META, "durable_page", victim.head)
    victim.flip(victim.page(place.page), place.position + 4)
    return victim.at(place)


@tail_kind(NOTHING).but(opening=Fails("CorruptFrame", NOTHING))(
    "tail: last message gone", "the last message becomes zeros"
)
def _(victim: Victim) -> Hit:
    place = victim.last(victim.active)
    victim.poke(victim.page(place.page), place.position, bytes(place.end - place.position))
    return victim.at(place)


@tail_kind(NOTHING).but(opening=Fails("CorruptFrame", NOTHING))(
    "active page without frames", "all bytes after the header of the active page are zero"
)
def _(victim: Victim) -> Hit:
    place = victim.places(victim.active)[0]
    victim.poke(victim.page(place.page), place.position, bytes(4096 - place.position))
    return victim.at(place)


DIRTY = Fails("CorruptFrame", "")
dirty = tail_kind("").but(
    opening=DIRTY,
    after_cut=Works("all", "zeroed"),
    reading=WORKS,
    repair=Repairs("zero"),
)


@dirty("dirty tail", "noise follows the last message and begins with a valid length")
def _(victim: Victim) -> Hit:
    end = victim.end(victim.active)
    noise = b"\x40\0\0\0" + victim.rng.randbytes(60)
    victim.poke(victim.page(victim.active), end, noise)
    return victim.at_end(victim.active)


@dirty("dirty tail of ones", "all bits after the last message are set", verify=Finds(LENGTH))
def _(victim: Victim) -> Hit:
    end = victim.end(victim.active)
    victim.poke(victim.page(victim.active), end, b"\xff" * (4096 - end))
    return victim.at_end(victim.active)


@dirty(
    "dirty tail without a length",
    "noise follows the last message, after a length of 0",
    opening=WORKS,
    verify=FindsNothing(),
    repair=Idle(),
)
def _(victim: Victim) -> Hit:
    end = victim.end(victim.active)
    victim.poke(victim.page(victim.active), end + 4, victim.rng.randbytes(4096 - end - 4))
    return Hit(victim.page(victim.active))


@dirty(
    "stale frame after the tail",
    "a whole frame with a much older sequence follows the last message",
    verify=Finds(CHECKSUM),
)
def _(victim: Victim) -> Hit:
    end = victim.end(victim.active)
    victim.poke(
        victim.page(victim.active), end, victim.frame(b"stale", victim.places(1)[0].timestamp, 0)
    )
    return victim.at_end(victim.active)


@dirty(
    "half a batch after the tail",
    "two frames of a batch without an end follow the last message",
    opening=WORKS,
    verify=Finds("batch"),
    repair=Repairs(),
)
def _(victim: Victim) -> Hit:
    end, sequence = victim.end(victim.active), victim.end_sequence(victim.active)
    timestamp = victim.last(victim.active).timestamp
    for number in range(2):
        data = victim.frame(b"12345678", timestamp, sequence + number, more=True)
        victim.poke(victim.page(victim.active), end + 24 * number, data)
    victim.word(WRITE_META, fmt.WRITE_META, "batch_open", sequence + 1)
    return victim.at_end(victim.active)


@dirty(
    "end-of-page marker on the newest page",
    "a valid end-of-page marker follows the last message, though no page follows",
    opening=WORKS,
    after_cut=WORKS,
    verify=Finds("page"),
    repair=Leaves(),
)
def _(victim: Victim) -> Hit:
    number = victim.active
    following = victim.path(victim.page(number + 1))
    if following.exists():
        following.unlink()
        victim.remove(victim.index(number + 1))
    victim.end_mark(number, victim.end(number), victim.end_sequence(number))
    hit = victim.at_end(number)
    return Hit(hit.file, hit.position, hit.sequence, number, (victim.page(number + 1),))


# --- the active page as a file --------------------------------------------------------------------


def active_kind(error: Fails, above: Works | Fails) -> Kind:
    """Return the outcomes for an unusable active page."""
    return tail_kind("").but(
        pages=3,
        opening=error,
        after_cut=ByMark(error, above),
        reading=Until(error, continues=False),
        verify=Finds(error.reason),
    )


@active_kind(Fails("CorruptPage", "wrong size"), CUT_OFF)(
    "active page empty", "the active page is cut to 0 bytes"
)
def _(victim: Victim) -> Hit:
    victim.resize(victim.page(victim.active), 0)
    return victim.at_page(victim.active)


@active_kind(Fails("CorruptPage", "wrong size"), CUT_OFF).but(repair=Repairs())(
    "active page cut after its last message", "the active page is cut at the tail"
)
def _(victim: Victim) -> Hit:
    victim.resize(victim.page(victim.active), victim.end(victim.active))
    return victim.at_page(victim.active, victim.end(victim.active))


@active_kind(MAGIC, WRITTEN_AGAIN).but(
    repair=Repairs(), after_cut=ByMark(MAGIC, WRITTEN_AGAIN, after=MADE_AGAIN)
)("active page without header", "the header of the active page is zeroed")
def _(victim: Victim) -> Hit:
    victim.poke(victim.page(victim.active), 0, bytes(fmt.PAGE_HEADER_BYTES))
    return victim.at_page(victim.active)


@(
    active_kind(Fails("CorruptPage", "wrong magic"), WORKS)
    .but(repair=Repairs("no message yet"))
    .without("reading")(
        "empty active page without header", "a page is sealed, and the header of the next is zeroed"
    )
)
def _(victim: Victim) -> Hit:
    with Queue(victim.directory) as queue:
        queue.rotate()
    name = victim.page(victim.active + 1)
    victim.poke(name, 0, bytes(fmt.PAGE_HEADER_BYTES))
    return Hit(name, 0)


AHEAD = Fails("CorruptPage|CorruptFrame", "", placed=False)


@active_kind(AHEAD, WRITTEN_AGAIN).but(repair=Repairs(), opening=AHEAD)(
    "active page one sequence ahead", "the active page claims to begin one message later"
)
def _(victim: Victim) -> Hit:
    hit = victim.at_page(victim.active)
    victim.header(victim.active, first_sequence=(hit.sequence or 0) + 1)
    return hit


ONLY = Fails("CorruptPage", "wrong checksum")


@tail_kind("").but(
    pages=3,
    opening=WORKS,
    after_cut=ONLY,
    read_only=WORKS,
    reading=Until(ONLY),
    verify=Finds("wrong checksum"),
    repair=Repairs(),
)("first page's header changed", "one bit of the first page's header is changed")
def _(victim: Victim) -> Hit:
    victim.flip(victim.page(victim.head), 16 + victim.rng.randrange(48))
    return victim.at_page(victim.head)
