"""CPython's own queue tests pass with our classes in their place, but those that the docs name."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stdlib_queues
from stdlib_queues import METHODS

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+\.test_\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)
SECONDS = 600


def documented() -> dict[str, str]:
    """Return the tests that the docs list as failing, and the behaviour stated instead."""
    return {name: what for name, what, _ in ROW.findall(ARCHITECTURE)}


def wrong_in_docs(outcomes: dict[str, str], listed: set[str]) -> dict[str, str]:
    """Return the errors of the docs' list of exceptions: tests missing in it, or wrongly listed.

    Args:
        outcomes: of all tests that were run, by name.
        listed: the names in the docs.
    """
    wrong = {}
    for name, outcome in outcomes.items():
        passed, skipped = outcome == "ok", outcome.startswith("skipped: ")
        if name in listed and passed:
            wrong[name] = "listed, and it passes"
        elif name not in listed and not passed and not skipped:
            wrong[name] = outcome
    return wrong | dict.fromkeys(listed - set(outcomes), "listed, and there is no such test")


def test_a_list_that_is_not_the_truth_is_found() -> None:
    """What fails and is not listed; what is listed and passes, or is not there at all."""
    outcomes = {"a": "ok", "b": "AssertionError: no", "c": "skipped: not here", "d": "ok"}
    assert wrong_in_docs(outcomes, {"b"}) == {}
    assert wrong_in_docs(outcomes, {"b", "c"}) == {}
    assert wrong_in_docs(outcomes, set()) == {"b": "AssertionError: no"}
    assert set(wrong_in_docs(outcomes, {"b", "d", "e"})) == {"d", "e"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.nightly) for name in METHODS[1:])]
)
def test_cpythons_own_tests_pass_but_those_in_the_docs(method: str) -> None:
    """Only the import is changed: what fails is what architecture.md lists, no more, no less."""
    if importlib.util.find_spec(stdlib_queues.TESTS) is None:
        pytest.skip(f"this Python came without its tests: there is no {stdlib_queues.TESTS}")
    done = subprocess.run(
        [sys.executable, stdlib_queues.__file__, method],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert sum(outcome == "ok" for outcome in outcomes.values()) >= 17, outcomes
    for name in ("WithProcessesTestQueue.test_put", "TestSimpleQueue.test_empty"):
        assert outcomes[name] == "ok"
    print(method, json.dumps(outcomes, indent=1))
    assert documented()
    assert wrong_in_docs(outcomes, set(documented())) == {}
