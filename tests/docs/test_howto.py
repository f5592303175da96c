"""The tutorial, the concepts and the how-to guides run as printed, and print what they show.

A page is read from top to bottom, in one directory. A Python block whose first line is `# NAME` is
written to that file and run; a bash block is run; a text block is what the block before it printed,
`...` standing for anything. Before a block there may be a comment: `<!-- file: NAME -->` only
writes it, `<!-- needs: MODULE -->` skips the rest of the page where there is no such module.
"""

from __future__ import annotations

import doctest
import json
import re
import sys
from pathlib import Path

import pytest
from documents import run
from tiers import slow_but

from pagequeue import metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOWTO = DOCS / "howto"
GUIDES = {path.stem: path for path in sorted(HOWTO.glob("*.md")) if path.stem != "index"}
PAGES = {name: DOCS / f"{name}.md" for name in ("tutorial", "concepts")} | GUIDES
QUICK = {*PAGES} - {"backup", "last-hour", "tutorial"}
"""Pages whose programs start no interpreter and import no large library."""
BLOCK = re.compile(r"(?:<!-- (\w+): (\S+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
OPENED = re.compile(r'\bQueue\("([\w/-]+)"((?:[^()]|\([^()]*\))*)\)')
SCHEMA = re.compile(r'codec="[^"]+"|dtype=[^,]+')
LINES_MAX = 80
"""Of a how-to guide: more is not read."""


def follow(page: Path, directory: Path, *, is_fresh: bool = False) -> int:
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
            printed = run(directory, sys.executable, name, is_fresh=is_fresh)
            count += 1
        elif language == "bash":
            printed = run(directory, "bash", "-euo", "pipefail", "-c", text, is_fresh=is_fresh)
            count += 1
        elif language == "text":
            assert doctest.OutputChecker().check_output(text, printed, doctest.ELLIPSIS), printed
    return count


@pytest.mark.parametrize("page", slow_but(QUICK, PAGES))
def test_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    """Each program and command, with the output that the page shows."""
    assert follow(PAGES[page], tmp_path) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_page_imports_what_it_uses(page: str, tmp_path: Path) -> None:
    """In fresh interpreters no module of the package is there because another program used it."""
    assert follow(PAGES[page], tmp_path, is_fresh=True) > 0


@pytest.mark.parametrize("page", GUIDES)
def test_guide_is_short_and_listed(page: str) -> None:
    """One task for each."""
    assert len(GUIDES[page].read_text().splitlines()) <= LINES_MAX
    assert f"]({page}.md)" in (HOWTO / "index.md").read_text()


@pytest.mark.parametrize("page", GUIDES)
def test_guide_tells_its_extras_before_its_first_block(page: str) -> None:
    """Else its first program ends in MissingExtra for a reader who has none."""
    before, _, rest = GUIDES[page].read_text().partition("```")
    asks = {
        "codecs": r"codec\W{1,4}(?:json|msgpack)\W",
        "arrow": r"import (?:polars|duckdb|pyarrow)|batches\(.*arrow",
        "metrics": r"prometheus_client|pagequeue metrics",
    }
    for extra, used in asks.items():
        if re.search(used, rest):
            assert f"`{extra}`" in before, extra


def test_pages_agree_on_the_schema_of_a_directory() -> None:
    """Else a reader who follows two pages in one directory ends in CodecMismatch."""
    schemas: dict[str, dict[str, list[str]]] = {}
    for page in (DOCS.parent / "README.md", *DOCS.glob("*.md"), *HOWTO.glob("*.md")):
        found: dict[str, str] = {}
        for _, _, language, text in BLOCK.findall(page.read_text()):
            if language == "python":
                for name, options in OPENED.findall(text):
                    schema = ", ".join(SCHEMA.findall(options))
                    found[name] = found.get(name) or schema  # one that has none takes what is there
            elif language == "bash":
                for name in re.findall(r"pagequeue send (\w[\w/-]*)", text):
                    found.setdefault(name, "")
        for name, schema in found.items():
            schemas.setdefault(name, {}).setdefault(schema, []).append(page.name)
    assert {name: pages for name, pages in schemas.items() if len(pages) > 1} == {}
    assert schemas["jobs"]['codec="json"']


def test_wrong_output_is_seen(tmp_path: Path) -> None:
    """A page whose text differs from what its program prints fails."""
    page = tmp_path / "page.md"
    page.write_text("```python\n# a.py\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError):
        follow(page, tmp_path)


def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    """A metric that was renamed would leave an empty panel and an alert that never fires."""
    queues = {f"pagequeue_{name}" for name in metrics.QUEUE_GAUGES}
    counters = {f"pagequeue_{name}_total" for name in metrics.QUEUE_COUNTERS}
    consumers = {f"pagequeue_consumer_{name}" for name in metrics.CONSUMER_GAUGES}
    dashboard = json.loads((HOWTO / "prometheus" / "dashboard.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = (HOWTO / "prometheus" / "alerts.yml").read_text()
    conditions = re.findall(r"^ +expr: (.+)$", alerts, re.MULTILINE)
    for text in [*panels, *conditions]:
        named = set(re.findall(r"pagequeue_\w+", text))
        assert named
        assert named <= queues | counters | consumers, text
    page = (HOWTO / "prometheus.md").read_text()
    for name in re.findall(r"^ +- alert: (\w+)$", alerts, re.MULTILINE):
        assert f"`{name}`" in page
