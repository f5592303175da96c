"""Try one state of a kept recording again: `python -m stress.cut RECORDING SEED MODE`.

MODE is 0 for OS pages, 1 for sectors, 2 for cache lines. With `--files DIRECTORY` the state's files
are left there. What was planted when the state was found, in PAGEQUEUE_STRESS_PATCH or
PAGEQUEUE_STRESS_DEFINES, must be in the environment again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from stress import driver, variant


def main() -> int:
    """Try the state by both engines; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m stress.cut")
    parser.add_argument("recording", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("mode", type=int, choices=range(3))
    parser.add_argument("--files", type=Path, metavar="DIRECTORY", help="leave the files there")
    options = parser.parse_args()
    if driver.defines():
        variant.install(variant.build(driver.defines()))
    driver.apply_patch()
    logging.basicConfig(level=logging.WARNING)
    from stress.cut.full import Full  # noqa: PLC0415  the core is chosen by now
    from stress.cut.native import States  # noqa: PLC0415
    from stress.cut.plan import Plan  # noqa: PLC0415
    from stress.cut.recording import Recording  # noqa: PLC0415

    recording = Recording.load(options.recording)
    states = States(recording, driver.defines())
    states.choose(options.seed, options.mode)
    found = states.check()
    files = states.files()
    print(f"{recording.name}, {Plan.of(recording.seed).words}")
    print(f"fast engine: {found.words}")
    if options.files is not None and files is not None:
        options.files.mkdir()
        for name, data in files.items():
            (options.files / name).write_bytes(data)
    with tempfile.TemporaryDirectory() as directory:
        wrong = Full(Path(directory)).try_state(
            Plan.of(recording.seed),
            recording.messages(),
            files,
            found,
            recording.places_at(found.moment),
            recording.published_at(found.moment),
            again=True,
        )
    print(f"full engine: {'; '.join(wrong) or 'fine'}")
    return 1 if wrong or found.result else 0


if __name__ == "__main__":
    sys.exit(main())
