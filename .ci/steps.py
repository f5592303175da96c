"""Steps of the check that are commands, each a test: `pytest '.ci/steps.py::test_step[NAME]'`.

`poe change` runs those of each change, beside the tests that the README's command leaves out; `poe
nightly` runs the others, and continues where an earlier run of the same commit ended: a step that
passed leaves its output in build/nightly.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from stress.campaign import campaign_names
from stress.plants.registry import PLANTS

ROOT = Path(__file__).resolve().parents[1]
COMPILE = (
    "CC={0} CFLAGS=-Werror python setup.py -q build_ext --force "
    "--build-temp build/{0} --build-lib build/{0}"
)
SHORT = re.compile(r"^SHORT_SECONDS = ([\d.]+)", re.MULTILINE)
NIGHTLY_SECONDS = 120


class Step(NamedTuple):
    """A command of the shell.

    Attributes:
        name: of the step.
        command: what it runs, with the environment's programs first in the path.
        seconds: what it takes, about; those that take longest begin first.
        tool: what it needs, as tests/support/tools.py names it.
        nightly: whether it is too long for each change.
    """

    name: str
    command: str
    seconds: float
    tool: str | None = None
    nightly: bool = False


def short_seconds(campaign: str) -> float:
    """Return the budget of a campaign's short run, without importing it."""
    path = ROOT / "stress" / campaign
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = SHORT.search(path.read_text(encoding="utf-8"))
    assert found is not None, path
    return float(found[1])


CHANGE = [
    Step("types", "mypy", 60),
    Step(
        "stub",
        "stubtest pagequeue._core --allowlist .ci/stubtest.allow --ignore-unused-allowlist",
        15,
    ),
    Step("style", "ruff check . && ruff format --check --exclude '*.md' .", 3),
    Step("gcc", COMPILE.format("gcc"), 10),
    Step("clang", COMPILE.format("clang"), 10, "clang"),
    Step("plants", "python -m stress.score --short --seed $(date +%V)", 60),
    *(
        Step(name, f"python -m stress {name} --short --seed 11", short_seconds(name))
        for name in campaign_names()
    ),
]
BENCHES = {
    **dict.fromkeys(("columns", "consumers", "field", "journal", "scale", "spark"), "--quick"),
    **dict.fromkeys(("core", "durable"), "--scale 0.02 --repeats 1"),
}
NIGHTLY = [
    Step("nightly_tests", "pytest -n 2 -m nightly tests stress/tests", 900),
    Step("coverage", "PYTEST_DEBUG_TEMPROOT=/var/tmp PAGEQUEUE_EXAMPLES=2 poe coverage", 600),
    *(
        Step(f"bench_{name}", f"python -m stress.bench_{name} {size}", 120)
        for name, size in BENCHES.items()
    ),
    *(
        Step(f"{name}_long", f"python -m stress {name} --seconds {NIGHTLY_SECONDS}", 120)
        for name in campaign_names()
    ),
    *(
        Step(plant.name, f"python -m stress.score {plant.name}", sum(plant.by.values()))
        for plant in PLANTS
    ),
]
STEPS = [*CHANGE, *(step._replace(nightly=True) for step in NIGHTLY)]


def commit() -> str:
    """Return what is checked out, to a file that differs from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def parameters() -> list[object]:
    """Return each step with its marks; those that take longest are first."""
    marked = []
    for step in sorted(STEPS, key=lambda step: -step.seconds):
        marks = [pytest.mark.nightly] if step.nightly else []
        marks += [pytest.mark.tool(step.tool)] if step.tool else []
        marked.append(pytest.param(step, id=step.name, marks=marks))
    return marked


@pytest.mark.step
@pytest.mark.parametrize("step", parameters())
def test_step(step: Step) -> None:
    """Its command ends with 0."""
    kept = ROOT / "build" / "nightly" / commit() / step.name
    if step.nightly and kept.exists():
        sys.stdout.write(kept.read_text(encoding="utf-8"))
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", step.command],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0
    if step.nightly:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout, encoding="utf-8")
