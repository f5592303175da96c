"""The site of the documents: built without a broken link, with every public name and command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pagequeue
from pagequeue import journal, multiprocessing, tasks
from pagequeue.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = DOCS / "site" / "mkdocs.yml"
MODULES = (pagequeue, journal, multiprocessing, tasks)
STANDARD = {"pagequeue.multiprocessing.Empty", "pagequeue.multiprocessing.Full"}
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)")


def test_api_has_every_public_name_once() -> None:
    """A name that is missing would have a docstring that no reader of the site finds."""
    names = {
        f"{module.__name__}.{name}"
        for module in MODULES
        for name in module.__all__
        if not name.startswith("_")
    }
    entries = [name for path in DOCS.glob("api/*.md") for name in ENTRY.findall(path.read_text())]
    assert len(entries) == len(set(entries))
    assert names - STANDARD <= set(entries)


def test_every_document_is_in_the_navigation() -> None:
    """The strict build checks the same, where MkDocs is installed."""
    named = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", CONFIG.read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages <= set(named)
    assert len(named) == len(set(named))


@pytest.mark.slow
def test_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    """Warnings are errors; no page loads anything from another host."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="the extra `docs` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", CONFIG, "-d", tmp_path / "out"],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in tmp_path.rglob("*.html")}
    assert [url for text in pages.values() for url in LOADED.findall(text)] == []
    assert [name for name in COMMANDS if f'id="pagequeue-{name}"' not in pages["cli.html"]] == []
    assert "pagequeue group claim" in pages["cli.html"]
    for page, name in (("queue", "Queue.replay"), ("group", "Group.claim"), ("group", "Claim.ack")):
        assert f'id="pagequeue.{name}"' in pages[f"{page}.html"]
    assert 'id="frame"' in pages["format.html"]  # not only a link to it
    assert "LeaseLost" in pages["group.html"]  # from a docstring of the core
    examples = re.findall(r"<p>Example:?</p>|<summary>Example</summary>", "".join(pages.values()))
    assert examples == []  # each is a block of code
