"""The hook of PyInstaller: what a frozen program would miss, and what it says where it does."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pagequeue
from pagequeue._pyinstaller import LAZY, get_hook_dirs, installed
from pagequeue.errors import MissingExtra
from pagequeue.page import zstd
from pagequeue.util.optional import install_command, library

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(pagequeue.__file__).parent
CALLS = {"load", "library", "import_module"}
"""What imports a module by its name."""


def imported_lazily(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports by their names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given = node.args[0]
            if name in CALLS and isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield given.value


def owner(path: Path) -> str:
    """Return the package whose hook is run for programs that import a file."""
    name = f"pagequeue.{path.relative_to(PACKAGE).parts[0]}"
    return name if name in LAZY else "pagequeue"


@pytest.mark.slow
def test_hooks_name_what_is_imported_lazily() -> None:
    """Neither less, which a frozen program would lose, nor more."""
    found: dict[str, set[str]] = {name: set() for name in LAZY}
    found["pagequeue"] |= {name for name, _ in zstd._SOURCES}
    for path in PACKAGE.rglob("*.py"):
        names = {name for name in imported_lazily(path) if not name.startswith("pagequeue.")}
        found[owner(path)] |= names
    assert found == {name: set(modules) for name, modules in LAZY.items()}


def test_hooks_are_found_by_their_entry_point() -> None:
    """PyInstaller asks it for the directory, in which each package has its file."""
    points = metadata.entry_points(group="pyinstaller40", name="hook-dirs")
    assert "pagequeue._pyinstaller:get_hook_dirs" in {point.value for point in points}
    (directory,) = get_hook_dirs()
    names = {path.name for path in Path(directory).glob("hook-*.py")}
    assert names == {f"hook-{name}.py" for name in (*LAZY, "pagequeue.cli")}


@pytest.mark.parametrize("name", ["pagequeue", "pagequeue.demo", "pagequeue.plot"])
def test_hook_names_only_what_is_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyInstaller warns of every other."""
    path = Path(get_hook_dirs()[0], f"hook-{name}.py")
    assert runpy.run_path(str(path))["hiddenimports"] == installed(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert runpy.run_path(str(path))["hiddenimports"] == []


def test_frozen_program_without_a_library_is_told_to_be_built_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no pip, and perhaps no metadata of packages."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setitem(sys.modules, "importlib.metadata", None)
    assert install_command("codecs") == (
        "pip install 'pagequeue[codecs]' where this program is built, and build it again"
    )
    with pytest.raises(MissingExtra, match="build it again"):
        library("no_such_library", "codecs", "tests")
