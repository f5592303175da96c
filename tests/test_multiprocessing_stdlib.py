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

ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "src" / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+\.test_\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)
SECONDS = 600


def documented() -> dict[str, str]:
    """Return the tests that the docs say do not pass, and what they say happens instead."""
    return {name: what for name, what, _ in ROW.findall(ARCHITECTURE)}


def test_docs_name_only_tests_that_are_run() -> None:
    """A table that names nothing, or what is gone, would excuse everything."""
    ran = {f"{name}.{test}" for name, tests in stdlib_queues.CASES.items() for test in tests}
    assert documented()
    assert set(documented()) <= ran


@pytest.mark.parametrize("method", stdlib_queues.METHODS)
def test_cpythons_own_tests_pass_but_those_in_the_docs(method: str) -> None:
    """Only the import is changed: what fails is what ARCHITECTURE.md lists, no more, no less."""
    if importlib.util.find_spec("test._test_multiprocessing") is None:
        pytest.skip("this Python came without its tests: there is no test._test_multiprocessing")
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
    left_out = ("ok", "skipped: ", "not in this Python")
    failed = {name for name, outcome in outcomes.items() if not outcome.startswith(left_out)}
    skipped = {name for name, outcome in outcomes.items() if outcome.startswith("skipped: ")}
    print(method, json.dumps(outcomes, indent=1))
    assert failed == set(documented()) - skipped
