"""Run one damage on copies of a good queue, through every interface, each on a fresh copy.

Interfaces that write to no file share one copy and one child process, one after the other, which
saves forks; a final snapshot checks that no byte changed. If that child crashes or writes, each of
these interfaces runs again in a separate child with a separate copy, to find out which one did it.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pagequeue
from stress.corpus import interfaces, sandbox
from stress.corpus.judge import Judge, snapshot
from stress.corpus.victim import Victim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stress.corpus.damage import Damage
    from stress.corpus.shapes import Original

CASE_SECONDS_MAX = 60.0
"""Bounded time: every interface of every damage ends within it, on a machine that is busy too."""
Found = dict[str, list[str]]


def _beginning(directory: dict[str, Any], name: str, end: int) -> bytes | None:
    """Return a file of a snapshot up to where its messages ended, None if it is not there."""
    data: bytes | None = directory[name][-1] if name in directory else None
    return None if data is None else data[:end]


def is_available(interface: str) -> bool:
    """Whether the package has what an interface needs."""
    return hasattr(pagequeue, interfaces.NEEDS.get(interface, "Queue"))


def makes_sense(damage: Damage, original: Original) -> bool:
    """Whether a queue has the pages that a damage needs, and the messages that it is one of."""
    return len(original.ends) >= damage.pages and damage.large == original.shape.large


def run_damage(
    damage: Damage,
    original: Original,
    other: Original,
    base: Path,
    seed: int,
    wanted: Iterable[str] | None = None,
) -> Found:
    """Run a damage through its interfaces and return the disagreements of each interface.

    Args:
        damage: the damage to apply.
        original: the good queue to copy.
        other: another good queue, the source of foreign files.
        base: a path that does not exist yet; it is created and removed for each run.
        seed: seeds the random choices of the damage.
        wanted: names of interfaces; by default all that apply.
    """
    names = [interface for interface in damage.outcomes if wanted is None or interface in wanted]
    names = [interface for interface in names if is_available(interface)]
    reading = [interface for interface in names if interface in interfaces.WRITES_NOTHING]
    looks = [[interface] for interface in names if interface not in interfaces.WRITES_NOTHING]
    found: Found = {}
    for group in [reading, *looks] if reading else looks:
        part = _run_group(damage, group, original, other, base, seed)
        if len(group) > 1 and any(part.values()):
            for interface in group:
                found |= _run_group(damage, [interface], original, other, base, seed)
        else:
            found |= part
    return found


def _run_group(
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
                lambda: [interfaces.RUN[interface](victim) for interface in group], CASE_SECONDS_MAX
            )
        except sandbox.Crashed as error:
            return {interface: [f"crashed: {error}"] for interface in group}
        found = {
            interface: judge.disagreements(interface, damage.outcomes[interface], saw)
            for interface, saw in zip(group, seen, strict=True)
        }
        if snapshot(victim.outside) != outside:
            found[group[0]].append("a file outside of the directory was changed")
        after = snapshot(victim.directory)
        if group[0] in interfaces.WRITES_NOTHING and after != inside:
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
