"""Runs the body of a campaign in a child process, with a variant of the core if one is requested.

The child loads the core before anything imports `pagequeue`, opens no queue before it forks its own
children, and answers with one JSON object. `python -m stress.driver MODULE BUDGET` is that child.

The child's own children inherit its environment, so that a campaign can be run with a bug planted:
`PAGEQUEUE_STRESS_PATCH=module:function` names a function that is called when the core is in place
and before anything else, and `PAGEQUEUE_STRESS_DEFINES` holds what the core was built with.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stress import variant
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOM_BYTES_MIN = 2 << 30
SCRATCH = "pagequeue-stress-"
"""Prefix of the names of directories of runs."""
DIRECTORY_VARIABLE = "PAGEQUEUE_STRESS_DIRECTORY"
PATCH_VARIABLE = "PAGEQUEUE_STRESS_PATCH"
DEFINES_VARIABLE = "PAGEQUEUE_STRESS_DEFINES"
FIRST_VARIABLE = "PAGEQUEUE_STRESS_FIRST"
GRACE_SECONDS = 120.0
"""A child that takes so much longer than its budget hangs."""


def scratch_directory() -> str:
    """Return where queues are made: as told, or in memory where there is room, or on disk."""
    told = os.environ.get(DIRECTORY_VARIABLE)
    if told:
        return told
    memory = "/dev/shm"
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM_BYTES_MIN:
        return memory
    return tempfile.gettempdir()


@contextlib.contextmanager
def scratch(base: str) -> Iterator[tuple[str, int]]:
    """Yield a new directory for a run, and the descriptor that locks it; remove what is left over.

    A child that inherits the descriptor holds the lock too. So a directory whose lock is free is
    one of a run that was killed, and of which no process is left.
    """
    for left in Path(base).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            os.close(_locked(left))
            shutil.rmtree(left, ignore_errors=True)
    while True:
        path = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=base))
        with contextlib.suppress(OSError):  # another run took it for one that is left over
            lock = _locked(path)
            if path.exists():
                break
            os.close(lock)
    try:
        path.chmod(0o1777)  # as the directory that it is in: some processes are other users'
        yield str(path), lock
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked(path: Path) -> int:
    """Lock a directory; return the descriptor that holds the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def violations_enough(usual: int) -> int:
    """Return how many violations end a campaign: one, where a bug is planted."""
    return 1 if os.environ.get(FIRST_VARIABLE) else usual


def run_apart(
    module: str,
    budget: Budget,
    defines: Mapping[str, str] | None = None,
    replacements: variant.Replacements | None = None,
    *,
    grace_seconds: float = GRACE_SECONDS,
) -> Outcome:
    """Run `campaign(budget)` of a module in a child.

    Args:
        module: the campaign's.
        budget: as it was given to the campaign.
        defines: of the core that it needs; None takes the installed one.
        replacements: in the sources of that core.
        grace_seconds: so long after its budget it counts as hanging.
    """
    environment = dict(os.environ)
    environment.pop(variant.CORE_VARIABLE, None)
    environment.pop(DEFINES_VARIABLE, None)
    if defines is not None or os.environ.get(variant.CHANGES_VARIABLE):
        core = variant.build(defines or {}, replacements=replacements)
        environment[variant.CORE_VARIABLE] = str(core)
        environment[DEFINES_VARIABLE] = json.dumps(dict(defines or {}))
    return run_in(module, budget, environment, grace_seconds=grace_seconds)


def run_in(
    module: str,
    budget: Budget,
    environment: Mapping[str, str],
    *,
    grace_seconds: float = GRACE_SECONDS,
) -> Outcome:
    """Run `campaign(budget)` of a module in a child with this environment."""
    environment = dict(environment)
    root = str(Path(__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "stress.driver", module]
    command.append(json.dumps(dataclasses.asdict(budget)))
    try:
        with scratch(environment.get(DIRECTORY_VARIABLE) or scratch_directory()) as (path, lock):
            environment[DIRECTORY_VARIABLE] = path
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                timeout=budget.seconds + grace_seconds,
                check=False,
                pass_fds=(lock,),
            )
    except subprocess.TimeoutExpired as error:
        return Outcome(0, [f"hangs: no end {grace_seconds:g} s after its budget ({error.cmd})"])
    if done.returncode != 0:
        return Outcome(0, [f"the campaign itself ended with code {done.returncode}"])
    return Outcome(**json.loads(done.stdout))


def defines() -> dict[str, str]:
    """Return what the core of this process was built with, as far as `run_apart` was told."""
    found: dict[str, str] = json.loads(os.environ.get(DEFINES_VARIABLE, "{}"))
    return found


def apply_patch() -> None:
    """Call the function that the environment names as `module:function`, if it names one.

    Raises:
        ValueError: it does not have that form.
    """
    patch = os.environ.get(PATCH_VARIABLE)
    if not patch:
        return
    module, colon, function = patch.partition(":")
    if not (module and colon and function):
        raise ValueError(f"{PATCH_VARIABLE} is {patch!r}: give module:function")
    getattr(importlib.import_module(module), function)()


def main() -> int:
    """Run the body of a campaign and print its outcome."""
    variant.bootstrap()
    apply_patch()
    logging.getLogger("pagequeue").setLevel(logging.ERROR)  # recoveries are what it is about
    module, budget = sys.argv[1:]
    answer = os.dup(1)
    os.dup2(2, 1)  # printed text goes to the user, not into the answer
    outcome = importlib.import_module(module).campaign(Budget(**json.loads(budget)))
    with os.fdopen(answer, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(outcome), file, default=str)
    return 0


if __name__ == "__main__":
    sys.exit(main())
