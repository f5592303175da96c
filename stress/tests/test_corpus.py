"""The hostile corpus on one queue, its document, and that it notices what it is there to notice."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pagequeue
from pagequeue import errors
from stress import no_damage_goes_unnoticed as campaign
from stress.campaign import Budget
from stress.corpus import DAMAGES, INTERFACES, interfaces, sandbox
from stress.corpus.case import run_damage
from stress.corpus.shapes import OTHER_START_NS, SHAPES, Original, make
from stress.corpus.table import table

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
SEED = 1


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> tuple[Original, Original]:
    """Return a good queue of many pages, and another one."""
    base = tmp_path_factory.mktemp("good")
    shape = SHAPES[0]
    return make(shape, SEED, base / "1"), make(shape, SEED + 1, base / "2", OTHER_START_NS)


@pytest.fixture
def look(
    queues: tuple[Original, Original], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Callable[..., Any]:
    """Return a function that runs one damage."""
    caplog.set_level(logging.CRITICAL, "pagequeue")

    def at(name: str, *wanted: str) -> dict[str, list[str]]:
        original, other = queues
        return run_damage(DAMAGES[name], original, other, tmp_path / "case", SEED, wanted or None)

    return at


@pytest.mark.nightly
@pytest.mark.parametrize("shape", ["batches", "large messages"])
def test_damages_come_to_what_the_corpus_says(shape: str) -> None:
    """On one queue each interface has the required outcome of each damage."""
    done = subprocess.run(
        [sys.executable, "-m", "stress.corpus", "run", "--seed", str(SEED), "--shape", shape],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    large = shape == "large messages"
    wanted = [damage for damage in DAMAGES.values() if damage.large == large]
    assert int(done.stdout.split()[0]) > 6 * len(wanted) > 200


def test_corpus_is_as_large_and_as_whole_as_it_should_be() -> None:
    """There are at least 60 damages, and every interface is used."""
    assert len(DAMAGES) >= 60
    for damage in DAMAGES.values():
        assert {"opening", "verify", "repair", "salvage"} <= set(damage.outcomes)
        assert {"read_only", "reading"} & set(damage.outcomes)
        assert set(damage.outcomes) <= set(INTERFACES)


def test_document_is_printed_from_the_corpus() -> None:
    """`stress/CORPUS.md` equals the table of what is run."""
    assert (ROOT / "stress" / "CORPUS.md").read_text(encoding="utf-8") == table()


# --- it can fail ---------------------------------------------------------------------------------


def test_crash_is_noticed(look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error than a typed one, in any interface, is a crash."""

    def fail(victim: object) -> dict[str, Any]:
        raise KeyError(victim)

    monkeypatch.setitem(interfaces.RUN, "read_only", fail)
    assert "KeyError" in look("page empty", "read_only")["read_only"][0]


def test_hanging_is_noticed() -> None:
    """A child that does not end in time is killed."""
    with pytest.raises(sandbox.Crashed, match="no end after"):
        sandbox.call(lambda: time.sleep(60), 0.2)


def test_signal_is_noticed() -> None:
    """A child that is killed is named by the signal."""
    with pytest.raises(sandbox.Crashed, match="SIGKILL"):
        sandbox.call(lambda: os.kill(os.getpid(), signal.SIGKILL), 5)


def test_checksum_that_is_not_compared_is_noticed(
    look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verify that finds no problem, and an opening that skips checks, disagree."""
    content = {"problems": [], "ok": True}
    monkeypatch.setitem(interfaces.RUN, "verify", lambda _: content)
    found = look("payload changed", "verify", "reading")
    assert "does not find" in found["verify"][0]
    assert found["reading"] == []


def test_writing_while_verifying_is_noticed(
    look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a byte and no time of a file may change during read-only use."""
    honest = interfaces.RUN["verify"]

    def touches(victim: Any) -> dict[str, Any]:  # noqa: ANN401
        victim.path("queue-allMeta").touch()
        return honest(victim)

    monkeypatch.setitem(interfaces.RUN, "verify", touches)
    assert look("payload changed", "verify")["verify"] == ["it wrote into the directory"]


def test_touching_what_a_link_leads_to_is_noticed(
    look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files outside of the directory are compared in bytes and times."""

    def follows(victim: Any) -> dict[str, Any]:  # noqa: ANN401
        victim.path("queue-readMeta").write_bytes(b"followed")
        raise errors.UnsafePath("a link", path=str(victim.path("queue-readMeta")))

    monkeypatch.setitem(interfaces.RUN, "opening", interfaces.typed(follows))
    found = look("symbolic link as queue-readMeta", "opening")
    assert found["opening"] == ["a file outside of the directory was changed"]


def test_salvage_that_invents_or_forgets_is_noticed(
    look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are compared byte for byte and by their times, the report with what is gone."""
    honest = interfaces.RUN["salvage"]

    def with_change(change: Callable[[dict[str, Any]], Any]) -> list[str]:
        def lies(victim: Any) -> dict[str, Any]:  # noqa: ANN401
            seen = honest(victim)
            change(seen)
            return seen

        monkeypatch.setitem(interfaces.RUN, "salvage", lies)
        return look("payload changed", "salvage")["salvage"]  # type: ignore[no-any-return]

    assert with_change(lambda _: None) == []
    assert "was never sent" in with_change(lambda seen: seen["copied"][3].__setitem__(2, "0"))[0]
    assert "was never sent" in with_change(lambda seen: seen["copied"][3].__setitem__(1, 5))[0]
    assert "not copied" in with_change(lambda seen: seen["copied"].pop())[0]
    assert "reported" in with_change(lambda seen: seen["lost"].clear())[0]


def test_conflict_that_is_not_reported_is_noticed(
    look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Salvage reports exactly the messages that exist again with other contents."""
    honest = interfaces.RUN["salvage"]

    def silent(victim: Any) -> dict[str, Any]:  # noqa: ANN401
        return {**honest(victim), "conflicts": []}

    name = "page that contradicts the one before"
    assert look(name, "salvage")["salvage"] == []
    monkeypatch.setitem(interfaces.RUN, "salvage", silent)
    assert "conflicts are" in look(name, "salvage")["salvage"][0]


def test_opening_that_fails_and_spoils_a_page_is_noticed(
    look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that fails to open keeps every header and every frame as it was."""
    honest = interfaces.RUN["opening"]

    def spoils(victim: Any) -> dict[str, Any]:  # noqa: ANN401
        victim.flip(victim.page(1), 100)
        return honest(victim)

    monkeypatch.setitem(interfaces.RUN, "opening", spoils)
    found = look("active page empty", "opening")["opening"]
    assert any("it failed, and changed queue-0000000001.page" in text for text in found)


@pytest.mark.nightly
def test_campaign_finds_a_core_that_does_not_check() -> None:
    """With the comparison of checksums taken out of the core, changed messages are delivered."""
    outcome = campaign.run_with(
        Budget(60.0, 400, 3), {"PAGEQUEUE_KILL_POINTS": "1", "PAGEQUEUE_PLANT": '"no_checksum"'}
    )
    assert any("was never sent like that" in text for text in outcome.violations), outcome


@pytest.mark.nightly
def test_campaign_runs_a_part_of_the_corpus_without_a_violation() -> None:
    """A seed's first cases, as the runner starts them."""
    outcome = campaign.run(Budget(20.0, 100, 5))
    assert outcome.violations == []
    assert outcome.cases >= 100


def test_package_has_what_the_interfaces_need() -> None:
    """No interface is left out because the package lacks a name."""
    assert all(hasattr(pagequeue, name) for name in interfaces.NEEDS.values())
