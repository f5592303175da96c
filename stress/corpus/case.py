"""One damage of a copy of a good queue, looked at from every face, each time anew.

Faces that write nothing look at the same copy in the same child, one after the other: that saves
forks, and it is looked at again that not a byte was changed. If that child crashes or writes, each
of them gets a child and a copy of its own, to say which one it was.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pagequeue
from stress.corpus import faces, sandbox
from stress.corpus.judge import Judge, snapshot
from stress.corpus.victim import Victim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stress.corpus.damage import Damage
    from stress.corpus.shapes import Original

CASE_SECONDS_MAX = 5.0
"""Bounded time: every face of every damage ends within it, on a machine that is busy too."""
Found = dict[str, list[str]]


def _beginning(directory: dict[str, Any], name: str, end: int) -> bytes | None:
    """Return a file of a snapshot up to where its messages ended, None if it is not there."""
    data: bytes | None = directory[name][-1] if name in directory else None
    return None if data is None else data[:end]


def can_look(face: str) -> bool:
    """Whether the package has what a face needs."""
    return hasattr(pagequeue, faces.NEEDS.get(face, "Queue"))


def makes_sense(damage: Damage, original: Original) -> bool:
    """Whether a queue has the pages that a damage needs."""
    return len(original.ends) >= damage.pages


def look_at(
    damage: Damage,
    original: Original,
    other: Original,
    base: Path,
    seed: int,
    wanted: Iterable[str] | None = None,
) -> Found:
    """Return, for each face, what is not as it must be.

    Args:
        damage: what is done.
        original: to a copy of this.
        other: another queue, for what is taken from another queue.
        base: a directory that is not there; it is made and removed for each look.
        seed: of what the damage leaves open.
        wanted: names of faces; all that make sense by default.
    """
    names = [face for face in damage.outcomes if wanted is None or face in wanted]
    names = [face for face in names if can_look(face)]
    reading = [face for face in names if face in faces.WRITES_NOTHING]
    looks = [[face] for face in names if face not in faces.WRITES_NOTHING]
    found: Found = {}
    for group in [reading, *looks] if reading else looks:
        part = _look(damage, group, original, other, base, seed)
        if len(group) > 1 and any(part.values()):
            for face in group:
                found |= _look(damage, [face], original, other, base, seed)
        else:
            found |= part
    return found


def _look(
    damage: Damage, group: Sequence[str], original: Original, other: Original, base: Path, seed: int
) -> Found:
    base.mkdir(mode=0o700)
    try:
        victim = Victim(original, other, base, random.Random(f"{seed} {damage.name}"))
        hit = damage.do(victim)
        victim.outcomes = damage.outcomes
        victim.durable = victim.mark()
        victim.durable_page = victim.mark("durable_page")
        judge = Judge(victim, hit)
        outside, inside = snapshot(victim.outside), snapshot(victim.directory)
        try:
            seen = sandbox.call(
                lambda: [faces.RUN[face](victim) for face in group], CASE_SECONDS_MAX
            )
        except sandbox.Crashed as error:
            return {face: [f"crashed: {error}"] for face in group}
        found = {
            face: judge.disagreements(face, damage.outcomes[face], saw)
            for face, saw in zip(group, seen, strict=True)
        }
        if snapshot(victim.outside) != outside:
            found[group[0]].append("something outside of the directory was touched")
        after = snapshot(victim.directory)
        if group[0] in faces.WRITES_NOTHING and after != inside:
            found[group[0]].append("it wrote into the directory")
        if "error" in seen[0]:
            found[group[0]] += [
                f"it failed, and changed {name}, header or frames"
                for name, end in (
                    (victim.page(number), end) for number, end in original.ends.items()
                )
                if _beginning(after, name, end) != _beginning(inside, name, end)
            ]
        return found
    finally:
        shutil.rmtree(base, ignore_errors=True)
