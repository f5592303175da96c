"""Damages of the directory: files missing, doubled, left over."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from stress.corpus.damage import (
    CUT_OFF,
    HARMLESS,
    WORKS,
    ByMark,
    Fails,
    Finds,
    Hit,
    Kind,
    Leaves,
    Repairs,
    Saves,
    Until,
    Works,
)
from stress.corpus.victim import LOCK, READ_META

if TYPE_CHECKING:
    from stress.corpus.victim import Victim

OTHER_PREFIXES = ("QUEUE", "queue-0000000001", "queue.page", "q", "queue-staged")
"""Prefixes of other queues: no interface may touch their files or report them as damage."""
LOST = Fails("CorruptMeta", "missing", placed=False)
GONE = Fails("MissingPage", "missing page")
missing = Kind(
    {
        "opening": WORKS,
        "after_cut": ByMark(GONE, CUT_OFF),
        "read_only": WORKS,
        "reading": Until(GONE),
        "verify": Finds("missing"),
        "repair": Leaves(),
        "salvage": Saves(),
    },
    pages=3,
)


def gone(victim: Victim, number: int, *, index_too: bool = False) -> Hit:
    """Remove a page; return the hit."""
    victim.remove(victim.page(number))
    if index_too:
        victim.remove(victim.index(number))
    return victim.at_page(number, None)


@missing("middle page missing", "a sealed page between others is removed")
def _(victim: Victim) -> Hit:
    return gone(victim, victim.inner)


@missing("middle page and index missing", "a sealed page and its index are removed")
def _(victim: Victim) -> Hit:
    return gone(victim, victim.inner, index_too=True)


@missing("first page missing", "the head page is removed", after_cut=ByMark(GONE, GONE))
def _(victim: Victim) -> Hit:
    return gone(victim, victim.head)


@missing.but(
    opening=GONE,
    after_cut=GONE,
    read_only=LOST,
    verify=Finds("missing", placed=False),
    repair=Repairs("not here", "any"),
    salvage=Saves(knows=False),
).without("reading")(
    "first page and readMeta missing", "the head page and the readMeta are removed"
)
def _(victim: Victim) -> Hit:
    victim.remove(READ_META)
    hit = gone(victim, victim.head)
    return Hit(hit.file, None, hit.sequence, hit.page, (READ_META, victim.directory.name))


@missing(
    "active page missing",
    "the page that is written to is removed",
    opening=GONE,
    reading=Until(GONE, continues=False),
)
def _(victim: Victim) -> Hit:
    return gone(victim, victim.active)


@missing.but(pages=1, after_cut=ByMark(GONE, CUT_OFF))(
    "all pages missing",
    "every page is removed, their indexes stay",
    opening=GONE,
    reading=Until(GONE, continues=False),
    salvage=Saves(knows=False),
)
def _(victim: Victim) -> Hit:
    for number in range(victim.head, victim.active + 2):
        if victim.path(victim.page(number)).exists():
            victim.remove(victim.page(number))
    hit = victim.at_page(victim.head, None)
    pages = tuple(victim.page(number) for number in range(victim.head, victim.active + 1))
    return Hit(hit.file, None, hit.sequence, hit.page, pages)


@HARMLESS("lock file missing", "the lock file is removed")
def _(victim: Victim) -> Hit:
    victim.remove(LOCK)
    return Hit(LOCK)


@HARMLESS("leftover temporary files", "half of a page and a meta exist under temporary names")
def _(victim: Victim) -> Hit:
    page = victim.page(victim.active + 1)
    victim.path(f"{page}.tmp-next").write_bytes(victim.rng.randbytes(1000))
    victim.path("queue-writeMeta.tmp-" + "0" * 32).write_bytes(b"")
    return Hit(f"{page}.tmp-next")


@HARMLESS.but(verify=Finds("10 digits"), repair=Leaves())(
    "two names for one number", "a copy of a sealed page has a name with a shorter number"
)
def _(victim: Victim) -> Hit:
    victim.path("queue-1.page").write_bytes(victim.read(victim.page(1)))
    victim.path("queue-00000000001.page").write_bytes(victim.read(victim.page(1)))
    return Hit("queue-1.page")


@HARMLESS("foreign files", "the directory has files and a directory that are not the queue's")
def _(victim: Victim) -> Hit:
    victim.path("README").write_bytes(b"mine")
    victim.path("queue-notes").write_bytes(b"mine")
    victim.path("other-0000000001.page").write_bytes(b"mine")
    victim.path("subdirectory").mkdir()
    return Hit("README")


@HARMLESS("other queues", "queues whose prefixes resemble its names share the directory")
def _(victim: Victim) -> Hit:
    for prefix in OTHER_PREFIXES:
        for name, data in victim.other.contents.items():
            if name.startswith("queue"):
                victim.path(prefix + name.removeprefix("queue")).write_bytes(data)
    return Hit("QUEUE-allMeta")


@HARMLESS("index without a page", "an index exists for a page far past the tail")
def _(victim: Victim) -> Hit:
    name = victim.index(victim.active + 7)
    victim.path(name).write_bytes(victim.read(victim.index(1)))
    return Hit(name)


@HARMLESS.but(verify=Finds("never read"), repair=Leaves())(
    "page far past the tail", "a copy of the first page has a number far past the active page"
)
def _(victim: Victim) -> Hit:
    name = victim.page(victim.active + 7)
    victim.path(name).write_bytes(victim.read(victim.page(1)))
    return Hit(name)


@HARMLESS("next page of noise", "the page prepared after the active page is noise")
def _(victim: Victim) -> Hit:
    name = victim.page(victim.active + 1)
    victim.path(name).write_bytes(victim.rng.randbytes(4096))
    return Hit(name)


@HARMLESS.but(verify=Finds(""), repair=Repairs())(
    "next page empty", "the page prepared after the active page is empty"
)
def _(victim: Victim) -> Hit:
    name = victim.page(victim.active + 1)
    victim.path(name).write_bytes(b"")
    return Hit(name)


LINKED = Fails("UnsafePath|CorruptPage", "", placed=False)


@HARMLESS.but(pages=3, opening=LINKED, verify=Finds(""), repair=Repairs()).without("after_cut")(
    "sealed page linked as the next", "the next page is a hard link of the first one"
)
def _(victim: Victim) -> Hit:
    name = victim.page(victim.active + 1)
    victim.path(name).unlink(missing_ok=True)
    os.link(victim.path(victim.page(victim.head)), victim.path(name))
    return Hit(name, None, None, None, (victim.page(victim.head),))


# --- the directory itself -------------------------------------------------------------------------


def refusal(kind: str, reason: str = "") -> Kind:
    """Return the outcomes for an unusable directory."""
    error = Fails(kind, reason, placed=False)
    interfaces = ("opening", "read_only", "verify", "repair", "salvage")
    return Kind(dict.fromkeys(interfaces, error))


@refusal("UnsafePath", "symbolic link")(
    "directory is a symbolic link", "the directory is moved, and a link to it takes its place"
)
def _(victim: Victim) -> Hit:
    shutil.move(victim.directory, victim.outside / "real")
    victim.directory.symlink_to(victim.outside / "real")
    return Hit("")


@refusal("NotADirectory", "not a directory")("directory is a file", "a file replaces the directory")
def _(victim: Victim) -> Hit:
    shutil.move(victim.directory, victim.outside / "real")
    victim.directory.write_bytes(b"mine")
    return Hit("")


@refusal("QueueNotFound").but(opening=Works("any"))(
    "directory empty", "every file is removed; opening for writing makes a new queue"
)
def _(victim: Victim) -> Hit:
    for path in victim.directory.iterdir():
        path.unlink()
    return Hit("")


@refusal("QueueNotFound").but(opening=Works("any"))(
    "directory missing", "the directory is removed; opening for writing makes a new queue"
)
def _(victim: Victim) -> Hit:
    shutil.rmtree(victim.directory)
    return Hit("")


@refusal("CorruptMeta", "missing").but(
    verify=Finds("missing", placed=False),
    repair=Repairs(),
    salvage=Saves(knows=False),
)("only the pages are left", "every file but the pages is removed")
def _(victim: Victim) -> Hit:
    for path in victim.directory.iterdir():
        if path.suffix != ".page":
            path.unlink()
    return Hit("queue-allMeta", None, None, None, (victim.directory.name,))
