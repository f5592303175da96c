"""What is written down agrees with the code: tables, header, invariants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pagequeue
from pagequeue import core_layout

PACKAGE = Path(pagequeue.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
FORMAT = PACKAGE / "FORMAT.md"
BLOCK = re.compile(r"<!-- table: (\w+) -->\n(.*?)\n<!-- end -->", re.DOTALL)
INVARIANT = re.compile(r"^- \*\*(I\d+)\.\*\*", re.MULTILINE)
SOURCES = {".py", ".pyi", ".c", ".h"}


def text_of(*folders: Path) -> str:
    """Return the text of all source files below some folders, this one left out."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return "\n".join(
        path.read_text()
        for path in paths
        if path.suffix in SOURCES and path != Path(__file__).resolve()
    )


def names(text: str, invariant: str) -> bool:
    """Return whether a text names an invariant as a whole word."""
    return re.search(rf"\b{invariant}\b", text) is not None


@pytest.mark.parametrize("name", core_layout.tables())
def test_table_of_the_format_is_the_printed_one(name: str) -> None:
    """The format is stated once: the tables are printed from format.py."""
    blocks = dict(BLOCK.findall(FORMAT.read_text()))
    assert blocks.get(name, "").strip() == core_layout.tables()[name]


def test_format_has_no_table_of_something_else() -> None:
    """A block that is no longer printed is gone."""
    found = BLOCK.findall(FORMAT.read_text())
    assert sorted(name for name, _ in found) == sorted(core_layout.tables())


def test_header_of_the_core_is_the_printed_one() -> None:
    """The core compiles against the constants of format.py."""
    assert (PACKAGE / "core" / "protocol" / "layout.h").read_text() == core_layout.header()


def test_invariants_are_numbered_from_one_without_gap() -> None:
    """Each invariant is stated once."""
    found = INVARIANT.findall(FORMAT.read_text())
    assert found == [f"I{number}" for number in range(1, len(found) + 1)]
    assert len(found) >= 10


@pytest.mark.slow
def test_every_invariant_is_kept_by_a_line_and_attacked_by_a_test() -> None:
    """Grepping its number finds the statement, the line that keeps it, and the test."""
    source = text_of(PACKAGE)
    tests = text_of(ROOT / "tests", ROOT / "stress")
    for invariant in INVARIANT.findall(FORMAT.read_text()):
        assert names(source, invariant), f"{invariant} is named by no line of the source"
        assert names(tests, invariant), f"{invariant} is named by no test"


def test_every_invariant_named_anywhere_is_stated() -> None:
    """No line appeals to an invariant that does not exist."""
    stated = set(INVARIANT.findall(FORMAT.read_text()))
    named = set(re.findall(r"\bI[1-9]\d?\b", text_of(PACKAGE, ROOT / "tests")))
    assert named <= stated
