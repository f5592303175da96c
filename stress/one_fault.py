"""Play one case of the fault matrix: `python -m stress.one_fault SCENE KIND N HOW [--forever]`.

The arguments are the words that a violation of `no_fault_goes_unsaid` begins with, for instance
`python -m stress.one_fault "sync always" open 1 EIO`. Exit code: 0 no violation, 1 a violation,
2 wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path

from stress import driver, shim, variant
from stress.campaign import Budget
from stress.fault_matrix import ERRORS, Case
from stress.fault_scenes import SCENES
from stress.no_fault_goes_unsaid import Campaign


def parse() -> tuple[Case, int]:
    """Return the case and how often it is played; leave with code 2 when they make no sense."""
    parser = argparse.ArgumentParser(prog="python -m stress.one_fault", description="One fault.")
    parser.add_argument("scene", choices=[scene.name for scene in SCENES])
    parser.add_argument("kind", choices=list(ERRORS))
    parser.add_argument("nth", type=int)
    parser.add_argument("how", help="an error's name, short, alarm returns, alarm raises")
    parser.add_argument("--forever", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    told = parser.parse_args()
    case = Case(told.scene, told.kind, told.nth, told.how, told.forever)
    if not told.how.startswith("alarm") and not case.error:
        parser.error(f"no error is called {told.how}")
    return case, told.repeats


def main() -> int:
    """Play it and print what became of it."""
    if not shim.is_loaded():
        command = [sys.executable, "-m", "stress.one_fault", *sys.argv[1:]]
        os.execve(sys.executable, command, shim.environment())
    case, repeats = parse()
    variant.bootstrap()
    driver.apply_patch()
    logging.getLogger("pagequeue").setLevel(logging.ERROR)
    violations: list[str] = []
    with tempfile.TemporaryDirectory(dir=driver.scratch_directory()) as directory:
        campaign = Campaign(Budget(0.0, None, 0), Path(directory))
        campaign.find_end(case.scene)
        for _ in range(repeats):
            with tempfile.TemporaryDirectory(dir=directory) as place:
                played = campaign.play(case, Path(place))
            print(f"{case}: {played.fired} calls disturbed, raised {played.errors or 'no error'}")
            violations += played.violations
    for text in violations:
        print(f"  VIOLATION: {text}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
