"""The code blocks of the README, and of the pages that it points to, run as printed."""

import re
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks, run

README = (ROOT / "README.md").read_text()
PAGES = tuple(
    f"docs/{page}.md" for page in ("guide", "columns", "spark", "command-line", "reference")
)
"""In the order in which their blocks run; those of Spark: tests/spark/test_spark_documents.py."""
BLOCKS = blocks("README.md", *PAGES)
LINES_MAX = 150
LIBRARY = re.compile(r"^import (duckdb|pandas|polars|pyarrow)\b", re.MULTILINE)
SHOWN = re.compile(r"  # prints (.*)")
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([\w-]+))?\)")
PYTHON = [text for mark, language, text in BLOCKS if language == "python" and not mark]
FIRST_COUNT = sum(
    language == "python" and not mark for mark, language, _ in blocks("README.md", *PAGES[:2])
)
SHELL = [text for mark, language, text in BLOCKS if language == "bash" and not mark]
SETUP = {mark: text.strip() for mark, _, text in blocks("README.md") if mark}
DEAR = re.compile(r"^import (duckdb|pandas|polars)\b|spawn", re.MULTILINE)
QUICK = [number for number, text in enumerate(PYTHON) if not DEAR.search(text)]
"""Blocks that start no interpreter and import no large library."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one directory in which all blocks run, in their order."""
    return tmp_path_factory.mktemp("readme")


def run_block(number: int, directory: Path, *, is_fresh: bool = False) -> None:
    """Run a Python block as a reader would: it prints what it says that it prints."""
    file = directory / f"block{number}.py"
    file.write_text(PYTHON[number])
    out = run(directory, sys.executable, str(file), is_fresh=is_fresh)
    for shown in SHOWN.findall(PYTHON[number]):
        assert f"{shown}\n" in out


def test_readme_has_its_blocks() -> None:
    """If the blocks were not found, this file would pass without testing anything."""
    assert len(PYTHON) == 29
    assert FIRST_COUNT == 28
    assert len(SHELL) == 2
    assert set(SETUP) == {"main", "tests"}


def test_readme_is_short() -> None:
    """What is longer belongs into a page of docs/."""
    assert len(README.splitlines()) <= LINES_MAX


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_links_lead_to_files_and_headings(page: str) -> None:
    """Of the README and of what was once a part of it."""
    path = ROOT / page
    found = LINK.findall(path.read_text())
    assert found
    for target, heading in found:
        other = (path.parent / target).resolve() if target else path
        assert other.exists(), target
        assert not heading or heading in anchors(other), heading


@pytest.mark.parametrize("number", QUICK)
def test_python_block_runs(number: int, directory: Path) -> None:
    """Each Python block is a program that ends well, where what it imports is installed."""
    for module in LIBRARY.findall(PYTHON[number]):
        pytest.importorskip(module, reason=f"{module} is not installed")
    run_block(number, directory)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(FIRST_COUNT))
def test_python_block_runs_again(number: int, directory: Path) -> None:
    """Readers try one of the first pages twice: the second time its queue exists."""
    for module in LIBRARY.findall(PYTHON[number]):
        pytest.importorskip(module, reason=f"{module} is not installed")
    run_block(number, directory)
    run_block(number, directory)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block_imports_what_it_uses(number: int, directory: Path, tmp_path: Path) -> None:
    """In a fresh interpreter no module of the package is there because another program used it."""
    directory = directory if number < FIRST_COUNT else tmp_path  # the last one is not repeated
    for module in LIBRARY.findall(PYTHON[number]):
        pytest.importorskip(module, reason=f"{module} is not installed")
    run_block(number, directory, is_fresh=True)


def test_python_blocks_of_the_readme_print_something() -> None:
    """Else a reader who runs one does not see that it worked."""
    found = [text for _, language, text in blocks("README.md") if language == "python"]
    assert len(found) == 6
    assert all("print(" in text for text in found)
    assert len(SHOWN.findall("".join(found))) == 4


@pytest.mark.slow
def test_shell_block_prints_the_messages_sent(directory: Path) -> None:
    """The commands work one after the other."""
    out = run(directory, "bash", "-euo", "pipefail", "-c", SHELL[0])
    assert out.startswith("hello\nsecond message\n5\n14\n")
    assert "./greetings" in out
    out = run(directory, "bash", "-euo", "pipefail", "-c", SHELL[1])
    lines = out.splitlines()
    assert lines[:3] == ["99998", "99999", "100000"]
    assert '"sequence": 99999' in lines[3] or '"sequence":99999' in lines[3]
    assert "1 page compressed" in out


@pytest.mark.parametrize("mark", ["main", "tests"])
def test_setup_command_is_the_one_of_ci(mark: str) -> None:
    """The two set-up commands are taken from the README by the CI script, not repeated there."""
    script = (ROOT / ".ci" / "run").read_text()
    assert SETUP[mark].startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert SETUP[mark] not in script
    assert mark in script
