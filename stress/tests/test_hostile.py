"""Strangers: the campaign accepts the library's defences, and catches their removal."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagequeue.system import directory as files_of_pagequeue
from stress import driver
from stress.campaign import Budget
from stress.hostile import KINDS, STRANGER, Neighbourhood, snapshot

if TYPE_CHECKING:
    from stress.campaign import Outcome

PLANTED_SECONDS = 180.0
"""A campaign that finds a violation ends at once; this is for busy machines."""
SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"
STRANGERS = "stress.no_stranger_gets_in"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


# --- bugs, planted by `driver.apply_patch` in the campaign's own process -------------------------


def follow_links() -> None:
    """Open what a link leads to."""
    os.O_NOFOLLOW = 0


def wait_for_a_fifo() -> None:
    """Open a FIFO as if it were a file."""
    os.O_NONBLOCK = 0


def take_any_file() -> None:
    """Ask neither for the owner nor for the kind of a file."""
    files_of_pagequeue.check_file = lambda *_, **__: None


def trust_every_directory() -> None:
    """Trust a directory, no matter who made it."""
    files_of_pagequeue.check_directory = lambda fd, *_, **__: os.fstat(fd).st_uid


def leave_it_to_the_umask() -> None:
    """Do not set the modes of what is made."""
    os.fchmod = lambda *_: None


def campaign_with(bug: str, budget: Budget) -> Outcome:
    """Run the campaign with one of the bugs above."""
    environment = {
        **os.environ,
        driver.FIRST_VARIABLE: "1",
        driver.PATCH_VARIABLE: f"{Path(__file__).stem}:{bug}",
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, SUPPORT))),
    }
    return driver.run_in(STRANGERS, budget, environment)


@pytest.mark.nightly
@needs_root
def test_no_stranger_gets_in() -> None:
    """Some openings between plants, as root and as another user."""
    outcome = driver.run_apart(STRANGERS, Budget(60.0, 60, 1))
    assert outcome.violations == []
    assert outcome.cases >= 60


@pytest.mark.nightly
@needs_root
@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("follow_links", "written outside|is not a file of ours|was taken"),
        ("wait_for_a_fifo", "blocks for"),
        ("take_any_file", "is not a file of ours|written to|has other names|has mode"),
        ("trust_every_directory", "the directory was taken"),
        ("leave_it_to_the_umask", "has mode"),
    ],
)
def test_planted_bug_is_caught_by_strangers(bug: str, expected: str) -> None:
    """A campaign that never fails would prove no property."""
    outcome = campaign_with(bug, Budget(PLANTED_SECONDS, None, 1))
    assert any(word in each for word in expected.split("|") for each in outcome.violations)


def test_campaign_says_that_it_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root no case runs, which is reported and counts as failed."""
    from stress import no_stranger_gets_in as campaign  # noqa: PLC0415

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    outcome = campaign.campaign(Budget(1.0, None, 1))
    assert outcome.failed
    assert "needs root" in outcome.notes["left out"]


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_harm_by_following_a_plant_is_seen(kind: str, tmp_path: Path) -> None:
    """A write through a planted object leaves a trace; an honest process leaves none."""
    place = Neighbourhood(tmp_path, 0, random.Random(1))
    name = "mine-0000000001.page"
    place.plant(kind, name)
    assert place.harm() == []
    path = place.shared / name
    owner = path.lstat().st_uid
    assert owner == (0 if kind == "hard link to the victim's" else STRANGER)
    if path.is_file() or kind == "dangling link":
        path.write_bytes(b"written")
        assert place.harm()
    place.clear()
    assert not os.path.lexists(path)
    place.close()


def test_snapshot_sees_every_change(tmp_path: Path) -> None:
    """Content, mode, a new name, one that is gone."""
    (tmp_path / "file").write_bytes(b"1")
    before = snapshot(tmp_path)
    assert snapshot(tmp_path) == before
    (tmp_path / "file").write_bytes(b"2")
    assert snapshot(tmp_path) != before
    (tmp_path / "file").write_bytes(b"1")
    assert snapshot(tmp_path) == before
    (tmp_path / "file").chmod(0o600 if before[str(tmp_path / "file")][0] != 0o100600 else 0o644)
    assert snapshot(tmp_path) != before
