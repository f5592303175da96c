"""Registers what all tests share: `tests/support/plugin.py`."""

from plugin import pytest_configure, pytest_xdist_auto_num_workers  # noqa: F401 - hooks
