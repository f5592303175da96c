"""One case: a copy of a good queue is damaged, and one face is looked at."""

from __future__ import annotations

import random
import shutil
from functools import partial
from typing import TYPE_CHECKING

import pagequeue
from stress.corpus import faces, sandbox
from stress.corpus.judge import Judge, snapshot
from stress.corpus.victim import Victim

if TYPE_CHECKING:
    from pathlib import Path

    from stress.corpus.damage import Damage
    from stress.corpus.shapes import Original

CASE_SECONDS_MAX = 5.0
"""Bounded time: every face of every damage ends within it, on a machine that is busy too."""


def can_look(face: str) -> bool:
    """Whether the package has what a face needs."""
    return hasattr(pagequeue, faces.NEEDS.get(face, "Queue"))


def makes_sense(damage: Damage, original: Original) -> bool:
    """Whether a queue has the pages that a damage needs."""
    return len(original.ends) >= damage.pages


def run_case(
    damage: Damage, face: str, original: Original, other: Original, base: Path, seed: int
) -> list[str]:
    """Run one case in an empty directory, which is removed; return what is not as it must be."""
    base.mkdir(mode=0o700)
    try:
        victim = Victim(original, other, base, random.Random(f"{seed} {damage.name}"))
        hit = damage.do(victim)
        victim.outcomes = damage.outcomes
        victim.durable = victim.mark()
        judge = Judge(victim, hit)
        outside, inside = snapshot(victim.outside), snapshot(victim.directory)
        try:
            seen = sandbox.call(partial(faces.RUN[face], victim), CASE_SECONDS_MAX)
        except sandbox.Crashed as error:
            return [f"crashed: {error}"]
        wrong = judge.disagreements(face, damage.outcomes[face], seen)
        if snapshot(victim.outside) != outside:
            wrong.append("something outside of the directory was touched")
        if face in faces.WRITES_NOTHING and snapshot(victim.directory) != inside:
            wrong.append("it wrote into the directory")
        return wrong
    finally:
        shutil.rmtree(base, ignore_errors=True)
