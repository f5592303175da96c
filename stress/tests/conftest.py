"""Registers what all tests share: `tests/support/plugin.py`. Marks the tests here."""

from pathlib import Path

import pytest
from plugin import pytest_configure  # noqa: F401 - a hook


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder `stress`, before `-m` looks."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("stress")
