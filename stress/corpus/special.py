"""An object that is not a regular file in the place of each of the files.

No process may follow it, wait for it or write to it. A pipe or a device in the place of an index
counts as a missing index; in the place of any other file, opening is refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stress.corpus.damage import (
    WORKS,
    ByMark,
    Fails,
    Finds,
    FindsNothing,
    Hit,
    Idle,
    Kind,
    Leaves,
    OutcomeOf,
    Repairs,
    Saves,
    Until,
)
from stress.corpus.things import THINGS, linked, replaced
from stress.corpus.victim import ALL_META, LOCK, READ_META, WRITE_META

if TYPE_CHECKING:
    from stress.corpus.victim import Victim

UNSAFE = Fails("UnsafePath", "", placed=False)
SECOND_NAME = Finds("another name", placed=False)


def place(victim: Victim, role: str) -> Hit:
    """Return the hit of a file by its role."""
    if role == "sealed page":
        return victim.at_page(victim.inner, None)
    if role == "active page":
        return victim.at_page(victim.active, None)
    if role == "next page":
        return Hit(victim.page(victim.active + 1))
    indexes = {"index": victim.inner, "active page's index": victim.active}
    if role in indexes:
        hit = victim.at_page(indexes[role], None)
        return Hit(victim.index(indexes[role]), None, hit.sequence, hit.page)
    return Hit(role)


def special(victim: Victim, role: str, thing: str) -> Hit:
    """Put an object in the place of the file with this role."""
    hit = place(victim, role)
    if thing in THINGS:
        replaced(victim, hit.file, thing)
    else:
        linked(victim, hit.file, hard=thing == "hard link")
    return hit


def outcomes_of(role: str) -> dict[str, OutcomeOf]:
    """Return the outcomes of a special file, by the role of the file that it replaces."""
    meta: dict[str, OutcomeOf] = {
        "opening": UNSAFE,
        "after_cut": UNSAFE,
        "read_only": UNSAFE,
        "verify": Finds("regular", placed=False),
        "repair": Repairs(),
        "salvage": Saves(),
    }
    if role == WRITE_META:
        del meta["after_cut"]
        meta["salvage"] = Saves(knows=False)
    if role == LOCK:
        meta.update(read_only=WORKS, reading=WORKS)
    if role.endswith("page"):
        last = role == "active page"
        meta.update(
            opening=UNSAFE if last else WORKS,
            after_cut=ByMark(UNSAFE, UNSAFE),
            read_only=WORKS,
            reading=Until(UNSAFE, continues=not last),
            repair=Leaves(),
        )
    if role == "next page":
        meta.update(opening=UNSAFE, read_only=WORKS, reading=WORKS)
        del meta["after_cut"]  # recovery removes pages past the tail, or meets this one
        meta["repair"] = Repairs("removed")
    if role.endswith("index"):
        last = role != "index"
        meta.update(
            opening=UNSAFE if last else WORKS,
            after_cut=ByMark(UNSAFE, UNSAFE),
            read_only=WORKS,
            reading=WORKS,
            repair=Repairs(),
        )
    return meta


def intact_outcomes(role: str) -> dict[str, OutcomeOf]:
    """Return what is different when the file is whole and has a second name.

    No process writes to such a file: verify reports it before a write would, repair copies it.
    """
    same: dict[str, OutcomeOf] = {"read_only": WORKS, "reading": WORKS}
    if role == LOCK:
        return {**same, "verify": SECOND_NAME}
    if role in {"sealed page", ALL_META}:
        return {
            **same,
            "opening": WORKS,
            "after_cut": WORKS,
            "verify": FindsNothing(),
            "repair": Idle(),
        }
    if role == "index":
        return {**same, "opening": WORKS, "verify": FindsNothing(), "repair": Idle()}
    return {**same, "verify": SECOND_NAME, "repair": Repairs()}


ROLES = (
    *(ALL_META, WRITE_META, READ_META, LOCK),
    *("sealed page", "active page", "index", "active page's index"),
)


def declare() -> None:
    """Register a damage for each object in the place of each file."""
    for role in ROLES:
        kind = Kind(outcomes_of(role), pages=3 if role.endswith(("page", "index")) else 1)
        for thing in (*THINGS, "symbolic link"):
            what = f"a {thing} replaces the {role}"
            made = kind
            if thing == "directory":  # it can hold anything
                made = kind.but(repair=UNSAFE if role == LOCK else Leaves())
            made.add(f"{thing} as {role}", what, partial(special, role=role, thing=thing))
        what = f"the {role} has a second name outside the directory"
        do = partial(special, role=role, thing="hard link")
        kind.add(f"hard link as {role}", what, do, **intact_outcomes(role))
    kind = Kind(outcomes_of("next page"))
    for thing in THINGS:
        what = f"a {thing} has the name of the next page"
        made = kind.but(repair=Leaves()) if thing == "directory" else kind
        made.add(f"{thing} as next page", what, partial(special, role="next page", thing=thing))


declare()
