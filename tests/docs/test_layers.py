"""Packages import downward only: the contract in pyproject.toml, and that it holds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pagequeue

PACKAGE = Path(pagequeue.__file__).parent
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
UPPER = {"__init__", "__main__", "cli", "demo", "spark", "multiprocessing"}
"""What may use the public names of the package; everything else imports modules."""
LOWEST = {"_core", "errors", "format"}
FROM_TOP = re.compile(r"^ *from pagequeue import (?:\([^)]*\)|.*)$", re.MULTILINE)
pytest.importorskip("importlinter", reason="import-linter is not installed")


def layers() -> list[set[str]]:
    """Return the layers of the contract, top first."""
    settings = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    return [{name.strip() for name in layer.split(":")} for layer in contract["layers"]]


def run(config: Path) -> int:
    """Check the contract of a file; return the exit code."""
    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", config, "--no-cache"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Contracts:" in done.stdout, done.stdout
    return done.returncode


@pytest.mark.slow
def test_imports_run_downward_only() -> None:
    """Types included: what a lower package must not know of, it must not name."""
    assert run(PROJECT) == 0


@pytest.mark.slow
def test_contract_sees_an_import_that_runs_upward(tmp_path: Path) -> None:
    """With two layers exchanged, imports between them are wrong ones."""
    text = PROJECT.read_text()
    page, store = '    "page",\n', '    "store",\n'
    swapped = text.replace(store, "").replace(page, page + store)
    assert swapped != text
    config = tmp_path / "pyproject.toml"
    config.write_text(swapped)
    assert run(config) != 0


def test_each_package_has_a_layer() -> None:
    """An unlisted package could import all others; a stale name checks no package."""
    here = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    named = [name for layer in layers() for name in layer]
    assert sorted(named) == sorted(here)


def test_lower_packages_import_modules_and_no_public_names() -> None:
    """The contract ignores imports from the top package, which re-exports every layer."""
    packages = {name for layer in layers() for name in layer}
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] in UPPER | {"__init__.py"}:
            continue
        for text in FROM_TOP.findall(path.read_text()):
            (statement,) = ast.parse(text.strip()).body
            names = {alias.name for alias in statement.names}
            found[str(place)] = found.get(str(place), set()) | names - packages - LOWEST
    assert len(found) > 100
    assert {place: names for place, names in found.items() if names} == {}


def test_package_shows_public_names_only() -> None:
    """What is not documented is not offered by a prompt's completion, and what is shown exists."""
    modules = {
        "errors",
        "format",
        "journal",
        "logging",
        "metrics",
        "multiprocessing",
        "spark",
        "tasks",
        "types",
    }
    shown = set(dir(pagequeue))
    assert set(pagequeue.__all__) | {"errors", "format"} <= shown
    assert shown <= set(pagequeue.__all__) | modules
    assert all(hasattr(pagequeue, name) for name in shown)
    assert callable(pagequeue.merge)  # the function, although a package has the same name
    for name in modules:
        assert (PACKAGE / f"{name}.py").exists() or (PACKAGE / name / "__init__.py").exists()
