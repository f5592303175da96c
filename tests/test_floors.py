"""No room imports a higher floor, found by reading the imports, those for types included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pagequeue

ROOT = Path(pagequeue.__file__).parent
FLOORS = {
    0: {
        "closing",
        "errors",
        "format",
        "format_groups",
        "format_text",
        "moments",
        "problem",
        "recovery_report",
        "wording",
    },
    1: {
        "_core",
        "background",
        "codec",
        "dtypes",
        "errands",
        "extras",
        "files",
        "holding",
        "kind",
        "locks",
        "lodging",
        "options",
        "pacing",
        "pickling",
        "recycle",
        "system_errors",
        "trust",
        "watching",
        "zstd",
    },
    2: {
        "arrow",
        "batch",
        "compressed",
        "cursor",
        "group_file",
        "inflating",
        "ledger",
        "manifest",
        "meta",
        "page",
        "page_header",
        "page_search",
        "records",
        "rows",
        "walk",
        "words",
    },
    3: {
        "alone",
        "bell",
        "creation",
        "flush",
        "opening",
        "publishing",
        "recover",
        "roll",
        "settle",
        "store",
        "survey",
        "survey_words",
    },
    4: {
        "awaiting",
        "batches",
        "claiming",
        "columns",
        "compress",
        "consumer",
        "dead",
        "flow",
        "group",
        "group_errors",
        "group_open",
        "info",
        "laying",
        "listing",
        "merged",
        "merging",
        "named",
        "ordering",
        "paced",
        "producer",
        "producer_errors",
        "publication",
        "pumps",
        "repair",
        "repair_page",
        "replay",
        "retention",
        "rewrite",
        "salvage",
        "salvage_source",
        "sending",
        "sharing",
        "ship",
        "ship_target",
        "sources",
        "stats",
        "upkeep",
        "valued",
        "verify",
        "verify_records",
        "verify_tail",
    },
    5: {
        "__init__",
        "exchange",
        "exchange_arrow",
        "exchange_text",
        "histograms",
        "merge_open",
        "queue",
    },
}
TOP = 6
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
FILES = sorted(path for path in ROOT.rglob("*.py*") if path.suffix in {".py", ".pyi"})


def room_of(path: Path) -> str:
    """Return a file's room: its first part below the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def module_of(node: ast.ImportFrom, path: Path) -> str:
    """Return the absolute name of what an import names."""
    if not node.level:
        return node.module or ""
    parts = ["pagequeue", *path.relative_to(ROOT).parts[:-1]]
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def rooms_imported(path: Path) -> set[str]:
    """Return the rooms of the package that a file imports, in whatever way."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = module_of(node, path)
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "pagequeue":
                known = len(parts) > 1 and (
                    (ROOT / f"{parts[1]}.py").exists()
                    or (ROOT / f"{parts[1]}.pyi").exists()
                    or (ROOT / parts[1]).is_dir()
                )
                rooms.add(parts[1] if known else "__init__")
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_room_imports_no_higher_floor(path: Path) -> None:
    """Lower rooms know nothing of higher ones, so each can be read by itself."""
    own = FLOOR_OF.get(room_of(path), TOP)
    too_high = {room for room in rooms_imported(path) if FLOOR_OF.get(room, TOP) > own}
    assert too_high == set()


def test_every_room_with_a_floor_exists() -> None:
    """The list of floors names nothing that is gone."""
    rooms = {room_of(path) for path in FILES}
    assert set(FLOOR_OF) <= rooms


def test_reading_imports_finds_them() -> None:
    """The test above would see an import that is wrong."""
    assert {"page", "meta", "files", "format", "_core", "errors"} <= rooms_imported(
        ROOT / "recover.py"
    )
    assert "locks" in rooms_imported(ROOT / "roll.py")  # for types only
    assert "queue" in rooms_imported(ROOT / "__init__.py")
