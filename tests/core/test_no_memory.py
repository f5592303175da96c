"""An allocation that fails: MemoryError, and nothing is lost or half done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_guard import output_of

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("_testcapi", reason="this Python cannot make allocations fail")


def swept(name: str, path: Path) -> Any:  # noqa: ANN401 - JSON
    """Run a sweep of `no_memory.py` in its own process; return what it counted."""
    return output_of(name, path, module="no_memory")


def test_functions_and_constructors_survive_each_failed_allocation(tmp_path: Path) -> None:
    """They raise MemoryError, and give the same as before when there is memory again."""
    found = swept("sweep_functions", tmp_path / "q")
    without = {"check_intact", "payload", "find", "resync", "copy_checked", "doorbell", "room_bell"}
    assert {name for name, (raised, _) in found.items() if raised == 0} <= without | {"Message"}
    assert all(returned > 0 for _, returned in found.values())


def test_no_message_is_lost_or_doubled_by_a_failed_allocation(tmp_path: Path) -> None:
    """I14, I15: sending, receiving, claiming and settling, each with each allocation failing."""
    found = swept("sweep_sending", tmp_path / "q")
    assert all(returned > 0 for _, returned in found.values())
    raising = {"_send_many", "_send_rows", "_send_spans", "poll", "_read_many", "claim", "take"}
    assert raising <= {name for name, (raised, _) in found.items() if raised}


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="CPython crashes making a type's methods")
def test_import_survives_each_failed_allocation(tmp_path: Path) -> None:
    """It fails with MemoryError, and the next one makes all of the module."""
    assert swept("sweep_import", tmp_path) > 100
