"""Damages of a named consumer's cursor.

A cursor stores the position of one consumer and no other state: if it is damaged, the queue still
opens and all other consumers read on. The position cannot be derived from any other file, so repair
leaves a damaged cursor, and no code may guess it: the head would deliver every message again, and
the tail would skip messages.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from pagequeue import format as fmt
from pagequeue.meta.cursor import CursorMeta
from stress.corpus.damage import (
    HARMLESS,
    Fails,
    Finds,
    Hit,
    Kind,
    Leaves,
    Repairs,
    Resumes,
    Saves,
    Works,
)
from stress.corpus.shapes import PREFIX
from stress.corpus.things import THINGS, linked, replaced
from stress.corpus.victim import CURSOR

if TYPE_CHECKING:
    from stress.corpus.victim import Victim

harmless = HARMLESS.but(named=Resumes("cursor"))


def damaged(kind: str, reason: str) -> Kind:
    """Return the outcomes for an unreadable cursor: only its consumer is refused."""
    return harmless.but(verify=Finds(reason), repair=Leaves(), named=Fails(kind, reason))


def placed(victim: Victim, sequence: int) -> Hit:
    """Write a cursor with this sequence."""
    victim.put_cursor(sequence)
    return Hit(CURSOR, CursorMeta.NEXT, sequence)


def ahead(victim: Victim, sequence: int) -> Hit:
    """Write a cursor with a sequence at which no message exists yet."""
    victim.put_cursor(sequence)
    return Hit(CURSOR, CursorMeta.NEXT)


def in_the_middle(victim: Victim) -> None:
    """Write a cursor at a message in the middle of a page."""
    victim.put_cursor(victim.middle(victim.inner).sequence)


# --- a place that is unusual ----------------------------------------------------------------------


@harmless("cursor in the middle", "a consumer has acknowledged half of the messages")
def _(victim: Victim) -> Hit:
    return placed(victim, victim.middle(victim.inner).sequence)


@harmless("cursor at the tail", "a consumer has acknowledged all messages")
def _(victim: Victim) -> Hit:
    return placed(victim, len(victim.original.places))


@harmless("cursor inside a batch", "a consumer has acknowledged the first part of a batch")
def _(victim: Victim) -> Hit:
    parts = [place.sequence for place in victim.original.places if place.more]
    return placed(victim, (parts or [0])[0] + 1)


AHEAD = harmless.but(
    after_cut=Works("all", "lowered consumer"),
    verify=Finds("are acknowledged, but the tail is"),
    repair=Repairs("lowered consumer"),
    named=Resumes("tail"),
)


@AHEAD("cursor ahead by one", "a cursor is one past the next sequence to be assigned")
def _(victim: Victim) -> Hit:
    return ahead(victim, len(victim.original.places) + 1)


@AHEAD("cursor far ahead", "a cursor is 1,000,000 past the tail")
def _(victim: Victim) -> Hit:
    return ahead(victim, len(victim.original.places) + 1_000_000)


@AHEAD("cursor at the largest sequence", "a cursor is at 2**63 - 1")
def _(victim: Victim) -> Hit:
    return ahead(victim, fmt.SEQUENCE_MAX)


@harmless.but(
    pages=3,
    opening=Works("any"),
    after_cut=Works("any"),
    read_only=Works("any"),
    reading=Works("any"),
    salvage=Saves(knows=False, reads=False),
    named=Fails("Expired", "", placed=False),
)("cursor in a deleted page", "the first page was trimmed, and a cursor points into it")
def _(victim: Victim) -> Hit:
    second = victim.places(victim.head + 1)[0]
    victim.move_head(second)
    victim.put_cursor(0)
    victim.remove(victim.page(victim.head))
    victim.remove(victim.index(victim.head))
    return Hit(CURSOR, None, None, victim.head, (victim.directory.name,))


# --- bytes ----------------------------------------------------------------------------------------


@damaged("CorruptMeta", "an invalid sequence")("cursor of ones", "the place is 2**64 - 1")
def _(victim: Victim) -> Hit:
    return ahead(victim, 2**64 - 1)


def cut(victim: Victim, size_bytes: int) -> Hit:
    """Cut a cursor."""
    in_the_middle(victim)
    victim.resize(CURSOR, size_bytes)
    return Hit(CURSOR, 0)


damaged("CorruptMeta", "too short").add(
    "cursor empty", "the cursor is cut to 0 bytes", partial(cut, size_bytes=0)
)
damaged("CorruptMeta", "too short").add(
    "cursor too short",
    "the cursor loses its last byte",
    partial(cut, size_bytes=fmt.CURSOR_META_BYTES - 1),
)


@damaged("CorruptMeta", "wrong magic")("cursor of zeros", "the cursor becomes one hole")
def _(victim: Victim) -> Hit:
    victim.put(CURSOR, bytes(fmt.CURSOR_META_BYTES))
    return Hit(CURSOR, 0)


@damaged("CorruptMeta", "wrong magic")("cursor torn", "the first half of the cursor is zero")
def _(victim: Victim) -> Hit:
    in_the_middle(victim)
    victim.poke(CURSOR, 0, bytes(fmt.CURSOR_META.itemsize // 2))
    return Hit(CURSOR, 0)


@damaged("CorruptMeta", "wrong checksum")(
    "cursor with wrong checksum", "one bit of the cursor's checksum is changed"
)
def _(victim: Victim) -> Hit:
    in_the_middle(victim)
    victim.flip(CURSOR, 12 + victim.rng.randrange(4))
    return Hit(CURSOR, 12)


@damaged("NewerFormat", "format")("cursor of a newer format", "the cursor has the next format")
def _(victim: Victim) -> Hit:
    in_the_middle(victim)
    victim.word(CURSOR, fmt.CURSOR_META, "version", fmt.FORMAT_VERSION + 1)
    return Hit(CURSOR)


@damaged("CorruptMeta", "another queue")(
    "cursor of another queue", "a cursor with another queue's id takes its place"
)
def _(victim: Victim) -> Hit:
    victim.put_cursor(1, victim.other)
    return Hit(CURSOR, 16)


@damaged("CorruptMeta", "wrong checksum")(
    "cursor of another consumer", "another consumer's cursor is copied over a cursor"
)
def _(victim: Victim) -> Hit:
    victim.put_cursor(1, consumer="other")
    os.replace(victim.path(fmt.cursor_name(PREFIX, "other")), victim.path(CURSOR))
    return Hit(CURSOR, 12)


@damaged("CorruptMeta", "not the cursor")("cursor of another kind", "the kind is 2**32 - 1")
def _(victim: Victim) -> Hit:
    in_the_middle(victim)
    victim.word(CURSOR, fmt.CURSOR_META, "kind", 2**32 - 1)
    return Hit(CURSOR, CursorMeta.KIND)


# --- another object in its place ------------------------------------------------------------------


def special(victim: Victim, thing: str) -> Hit:
    """Put an object in the place of the cursor."""
    in_the_middle(victim)
    if thing in THINGS:
        replaced(victim, CURSOR, thing)
    else:
        linked(victim, CURSOR, hard=thing == "hard link")
    return Hit(CURSOR)


def declare() -> None:
    """Register a damage for each object in the place of the cursor."""
    unsafe = damaged("UnsafePath", "").but(
        verify=Finds("regular", placed=False), named=Fails("UnsafePath", "", placed=False)
    )
    for thing in (*THINGS, "symbolic link"):
        what = f"a {thing} replaces a cursor"
        unsafe.add(f"{thing} as cursor", what, partial(special, thing=thing))
    what = "a cursor has a second name outside the directory"
    linked_kind = unsafe.but(verify=Finds("another name", placed=False), repair=Repairs("copied"))
    linked_kind.add("hard link as cursor", what, partial(special, thing="hard link"))


declare()
