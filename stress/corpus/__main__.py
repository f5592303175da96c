"""`python -m stress.corpus table | run [--seed N] [--shape NAME] [--interface NAME] [NAME ...]`."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from stress.corpus import DAMAGES, INTERFACES, LIVE
from stress.corpus.case import makes_sense, run_damage
from stress.corpus.live import PAGES_MIN, run_live
from stress.corpus.shapes import OTHER_START_NS, SHAPES, Original, make
from stress.corpus.table import table
from stress.driver import scratch_directory


def run_one(
    name: str, interface: str | None, original: Original, other: Original, base: Path, seed: int
) -> dict[str, list[str]]:
    """Return the disagreements by interface; empty if the damage does not apply to this queue."""
    if name in LIVE:
        many = len(original.ends) >= PAGES_MIN and not original.shape.large
        makes = many and interface is None
        return run_live(LIVE[name], original, other, base / "case", seed) if makes else {}
    damage = DAMAGES[name]
    wanted = [interface] if interface else None
    if not makes_sense(damage, original):
        return {}
    return run_damage(damage, original, other, base / "case", seed, wanted)


def main() -> int:
    """Print the table, or run damages and print every disagreement."""
    parser = argparse.ArgumentParser(prog="python -m stress.corpus", description=__doc__)
    parser.add_argument("what", choices=["table", "run"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of damages; none: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--interface", "--face", choices=INTERFACES)
    options = parser.parse_intermixed_args()
    if options.what == "table":
        print(table(), end="")
        return 0
    logging.getLogger("pagequeue").setLevel(logging.CRITICAL)
    started, cases, failed = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="pagequeue-corpus-", dir=scratch_directory()) as base:
        for shape in SHAPES:
            if options.shape not in {None, shape.name}:
                continue
            original = make(shape, options.seed, Path(base, f"{shape.name}-1"))
            other = make(shape, options.seed + 1, Path(base, f"{shape.name}-2"), OTHER_START_NS)
            for name in options.names or (*DAMAGES, *LIVE):
                found = run_one(name, options.interface, original, other, Path(base), options.seed)
                cases += len(found)
                for interface, wrong in found.items():
                    for text in wrong:
                        failed += 1
                        print(f"{shape.name} | {name} | {interface} | {text}", flush=True)
    elapsed = time.monotonic() - started
    print(f"{cases} cases in {elapsed:.1f} s, {failed} disagreements")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
