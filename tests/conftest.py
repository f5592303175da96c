"""Registers what all tests share, once: `tests/support/plugin.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plugin

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register it, unless the other folder of tests has."""
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "shared by all tests")
