"""A process that plays scenes and was spawned, not forked: `python -m stress.combined ORDER`."""

from __future__ import annotations

import json
import logging
import sys

from stress import children, driver, variant


def main() -> None:
    """Play scenes until the round ends."""
    children.die_with_parent()
    variant.bootstrap()
    driver.apply_patch()
    logging.getLogger("pagequeue").setLevel(logging.ERROR)  # recoveries are what it is about
    from stress.combined import ground, worker  # noqa: PLC0415  the core is chosen by now

    base, bystander, seed, uid = json.loads(sys.argv[1])
    shared = ground.Ground(base, bystander, seed)
    shared.note("spawn")
    worker.play(shared, 0, uid)


if __name__ == "__main__":
    main()
