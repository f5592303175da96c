"""Registers what all tests share: `tests/support/plugin.py`."""

from plugin import pytest_configure  # noqa: F401 - a hook
