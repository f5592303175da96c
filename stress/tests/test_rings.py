"""The campaign of rings: each part has cases and finds nothing, and a planted bug is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stress import no_ring_overwrites_or_revives as campaign
from stress.campaign import Budget

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.stress


def test_run_without_a_bug_finds_nothing() -> None:
    """Also in a busy machine each part has cases, because it does one whatever the time."""
    outcome = campaign.run(Budget(4.0, None, 5))
    assert outcome.violations == []
    assert set(outcome.notes) == {"holders", "cuts", "wakes"}
    assert all(outcome.notes.values())


def test_failure_of_a_part_is_a_violation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A part that raises has found something; no directory is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def failing(*_: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr(campaign, "hold", failing)
    outcome = campaign.campaign(Budget(60.0, 1, 5))
    assert outcome.violations == ["holders: OSError: planted"]
