"""The tiers of the check: each test and step is run by one of them, and what they name exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from itertools import product
from pathlib import Path

import pytest
import tools

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
STEPS = (ROOT / ".ci" / "steps.py").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TASKS = PROJECT["tool"]["poe"]["tasks"]
MARKS = ("slow", "tool", "nightly", "spark", "stress")


def entries_of(name: str) -> list[str]:
    """Return the entries of an array of the script."""
    found = re.search(rf"^{name}=\((.*?)\)$", SCRIPT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].split()


def taken(expression: str, marks: dict[str, bool]) -> bool:
    """Whether `-m` takes a test with these marks."""
    return bool(eval(expression, {}, {**marks, "step": False}))


def test_every_marked_set_of_tests_is_run_by_one_tier() -> None:
    """A mark that keeps tests out of all tiers would hide them; twice would only take time.

    A test of `tests` that needs a tool and is not slow is run by the quick tier too, where the tool
    is there. All of `stress/tests` are marked `stress`, by the conftest there.
    """
    quick = PROJECT["tool"]["pytest"]["ini_options"]["addopts"][-1]
    change = re.search(r"-m '(.+)'\s+\.ci/steps\.py tests stress/tests$", TASKS["change"]["cmd"])
    assert change is not None
    assert '"pytest -n 2 -m nightly tests stress/tests"' in STEPS
    for values in product((False, True), repeat=len(MARKS)):
        marks = dict(zip(MARKS, values, strict=True))
        by = [
            not marks["stress"] and not marks["tool"] and taken(quick, marks),
            taken(change[1], marks),
            marks["nightly"],
        ]
        assert sum(by) == 1, (marks, by)


def test_document_and_hooks_know_the_tasks() -> None:
    """Each task is in CONTRIBUTING.md, and a commit is checked by what `poe check` runs."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [name for name in TASKS if f"poe {name}" not in text] == []
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    checked = {command["cmd"].split()[0] for command in TASKS["check"]["sequence"]} - {"stubtest"}
    assert [name for name in checked if f"id: {name}\n" not in hooks] == []


def test_readme_commands_see_no_tool_that_the_readme_does_not_ask_for() -> None:
    """A test that fails on a fresh machine was hidden by tools that were installed before it."""
    programs = {program for needed in tools.PROGRAMS.values() for program in needed}
    assert programs & {*entries_of("PLAIN")} == {"mkfs.ext4"}
    assert "set -- readme tools change" in SCRIPT


def test_every_benchmark_that_a_step_names_exists() -> None:
    """A module that was moved would be missed at night only."""
    table = STEPS[STEPS.index("BENCHES = {") : STEPS.index("NIGHTLY = [")]
    named = set(re.findall(r'"(\w+)"', table))
    found = {path.name.partition(".")[0] for path in (ROOT / "stress").glob("bench_*")}
    assert {f"bench_{name}" for name in named} == found
    assert all(importlib.util.find_spec(f"stress.{name}") for name in found)


@pytest.mark.slow
def test_every_tool_is_named_by_a_mark_and_every_mark_names_a_tool() -> None:
    """An entry that no test needs is stale; a mark with another name would never skip."""
    named = set()
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("stress/tests/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.tool":
                argument = node.args[0]
                named.add(argument.value if isinstance(argument, ast.Constant) else None)
    named.discard(None)  # the kinds of disks, in `tools.py`
    assert named | {"mkfs.ext4", "mkfs.xfs"} == set(tools.PROGRAMS)


def test_missing_tool_skips_and_fails_where_tools_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine with all tools a skipped test is a failure."""
    monkeypatch.delenv(tools.REQUIRED_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception):
        tools.missing("spin", "not installed")
    monkeypatch.setenv(tools.REQUIRED_VARIABLE, "spark tools")
    with pytest.raises(pytest.fail.Exception):
        tools.missing("spin", "not installed")
