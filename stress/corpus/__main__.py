"""`python -m stress.corpus table | run [--seed N] [--shape NAME] [--face NAME] [NAME ...]`."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from stress.corpus import DAMAGES, FACES, LIVE
from stress.corpus.case import look_at, makes_sense
from stress.corpus.live import PAGES_MIN, look_live
from stress.corpus.shapes import OTHER_START_NS, SHAPES, Original, make
from stress.corpus.table import table
from stress.driver import scratch_directory


def looked_at(
    name: str, face: str | None, original: Original, other: Original, base: Path, seed: int
) -> dict[str, list[str]]:
    """Return what is not as it must be, by face; nothing where the damage makes no sense."""
    if name in LIVE:
        makes = len(original.ends) >= PAGES_MIN and face is None
        return look_live(LIVE[name], original, other, base / "case", seed) if makes else {}
    damage = DAMAGES[name]
    wanted = [face] if face else None
    if not makes_sense(damage, original):
        return {}
    return look_at(damage, original, other, base / "case", seed, wanted)


def main() -> int:
    """Print the table, or run damages and print every disagreement."""
    parser = argparse.ArgumentParser(prog="python -m stress.corpus", description=__doc__)
    parser.add_argument("what", choices=["table", "run"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of damages; none: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--face", choices=FACES)
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
                found = looked_at(name, options.face, original, other, Path(base), options.seed)
                cases += len(found)
                for face, wrong in found.items():
                    for text in wrong:
                        failed += 1
                        print(f"{shape.name} | {name} | {face} | {text}", flush=True)
    elapsed = time.monotonic() - started
    print(f"{cases} cases in {elapsed:.1f} s, {failed} disagreements")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
