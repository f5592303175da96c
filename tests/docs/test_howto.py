"""The tutorial and the how-to guides run as printed, and print what they show.

A page is read from top to bottom, in one directory. A Python block whose first line is `# NAME` is
written to that file and run; a bash block is run; a text block is what the block before it printed,
`...` standing for anything. Before a block there may be a comment: `<!-- file: NAME -->` only
writes it, `<!-- needs: MODULE -->` skips the rest of the page where there is no such module.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {path.stem: path for path in [DOCS / "tutorial.md", *sorted(DOCS.glob("howto/*.md"))]}
BLOCK = re.compile(r"(?:<!-- (\w+): (\S+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
LINES_MAX = 80
"""Of a how-to guide: more is not read."""


def run(directory: Path, *command: str) -> str:
    """Run a command as a reader would; return what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def follow(page: Path, directory: Path) -> int:
    """Do what a page says; return how many blocks were run."""
    printed, count = "", 0
    for mark, value, language, text in BLOCK.findall(page.read_text()):
        if mark == "needs":
            pytest.importorskip(value, reason=f"{value} is not installed")
        if mark == "file":
            (directory / value).write_text(text)
        elif language == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            assert name.endswith(".py"), text
            (directory / name).write_text(text)
            printed, count = run(directory, sys.executable, name), count + 1
        elif language == "bash":
            printed, count = run(directory, "bash", "-euo", "pipefail", "-c", text), count + 1
        elif language == "text":
            assert doctest.OutputChecker().check_output(text, printed, doctest.ELLIPSIS), printed
    return count


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    """Each program and command, with the output that the page shows."""
    assert follow(PAGES[page], tmp_path) > 0


@pytest.mark.parametrize("page", [name for name in PAGES if name != "tutorial"])
def test_guide_is_short(page: str) -> None:
    """One task for each."""
    assert len(PAGES[page].read_text().splitlines()) <= LINES_MAX


def test_wrong_output_is_seen(tmp_path: Path) -> None:
    """A page whose text differs from what its program prints fails."""
    page = tmp_path / "page.md"
    page.write_text("```python\n# a.py\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError):
        follow(page, tmp_path)
