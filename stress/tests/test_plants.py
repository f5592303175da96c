"""Planted bugs: each can still be planted, quick ones are caught, and the score is the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stress import score, variant
from stress.campaign import campaign_names
from stress.plants import registry, rewrite
from stress.plants.plant import STEP, Plant
from stress.plants.registry import PLANTS

ROOT = Path(__file__).resolve().parents[2]
PATCHES = [plant for plant in PLANTS if plant.patch]
IN_C = [plant for plant in PLANTS if plant.changes is not None]
TRAPS = 25
"""At least so many bugs are planted, and in each of the three ways."""

CAUGHT = {"cases": 9, "violations": ["lost 4"]}


def by_name(plant: Plant) -> str:
    """Name a case after its bug."""
    return plant.name


def test_registry_has_enough_bugs_each_with_a_campaign_that_exists() -> None:
    """Names are unique, and every campaign that must catch a bug exists."""
    names = [plant.name for plant in PLANTS]
    assert len(set(names)) == len(names) >= TRAPS
    assert {plant.where for plant in PLANTS} == {"C", "Python", "model"}
    for plant in PLANTS:
        assert plant.by, plant.name
        assert set(plant.by) <= set(campaign_names()), plant.name
        assert plant.wrong
        assert plant.breaks
        assert (plant.changes is not None) + plant.patch + bool(plant.model) == 1, plant.name


@pytest.mark.parametrize("plant", IN_C, ids=by_name)
def test_bug_of_the_core_still_applies_to_its_sources(plant: Plant) -> None:
    """A replaced text occurs in the sources exactly once, and the result differs."""
    assert plant.changes is not None
    directory = plant.changes.sources()
    for name in plant.changes.replacements:
        before = (variant.CORE_DIRECTORY / name).read_text(encoding="utf-8")
        assert (directory / name).read_text(encoding="utf-8") != before
    for define in plant.changes.defines:
        assert define == "PAGEQUEUE_PLANT"
        everything = "".join(path.read_text("utf-8") for path in directory.rglob("*.c"))
        assert f"PQ_PLANTED({plant.name})" in everything


APPLY = """
import importlib, json, os, sys, traceback
from stress import driver
import pagequeue
importlib.import_module(sys.argv[1])
for name in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.environ[driver.PATCH_VARIABLE] = f"{sys.argv[1]}:{name}"
        try:
            driver.apply_patch()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name)
"""


def test_bugs_of_python_all_apply() -> None:
    """Each patch finds the text that it replaces, in a process forked from one parent."""
    run = subprocess.run(
        [sys.executable, "-c", APPLY, score.PATCHES_MODULE],
        cwd=ROOT,
        input=json.dumps([plant.name for plant in PATCHES]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_bug_of_a_model_names_a_switch_that_the_model_has() -> None:
    """A switch that the model does not have would leave the model unchanged."""
    for plant in PLANTS:
        if plant.model:
            name, *switches = plant.model
            text = (score.model_campaign.MODEL_DIRECTORY / f"{name}.pml").read_text("utf-8")
            assert all(f"def {switch}\n" in text for switch in switches), plant.name


def test_text_that_is_gone_or_there_twice_cannot_be_replaced() -> None:
    """Planting fails loudly when the library changed, in C and in Python."""
    for old in ("no such text in there", "PQ_APPEND_DONE"):
        with pytest.raises(LookupError, match="not once"):
            variant.Changes(replacements={"protocol/frames.c": [(old, "")]}).sources()
        with pytest.raises(LookupError, match="not once"):
            rewrite.rewrite(registry, "named", (old, ""))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["length_first", "durable_only_ignored"])
def test_quick_bug_is_caught(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One in C and one in Python, by the campaigns that must; `.ci/run plants` plants others."""
    assert score.main([name, "--seed", "1", "--no-controls"]) == 0
    printed = capsys.readouterr().out
    assert f"caught  {name}" in printed
    assert "caught 1 of 1" in printed


def test_bug_that_is_not_noticed_or_not_tried_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither silence nor a campaign that could not start counts as catching."""
    silent = {"cases": 9, "violations": []}
    broken = {"cases": 0, "violations": ["it could not start"]}
    answers = iter([silent] * 5 + [broken] * 3 + [CAUGHT])
    monkeypatch.setattr(score, "attempt", lambda *_: dict(next(answers)))
    for code in (1, 1, 0):
        assert score.main(["length_first", "--seed", "1", "--no-controls"]) == code
    printed = capsys.readouterr().out
    assert printed.count("MISSED") == 2
    assert "missed: length_first" in printed


def test_bug_that_was_missed_is_looked_for_longer_with_another_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All cases that were tried are counted; the first run that catches it is the last one."""
    asked = []

    def attempt(_: str, plant: Plant | None, seconds: float, seed: int) -> dict[str, object]:
        asked.append((seconds, seed))
        return dict(CAUGHT) if plant and len(asked) == 2 else {"cases": 4, "violations": []}

    monkeypatch.setattr(score, "attempt", attempt)
    arguments = ["length_first", "--seed", "7", "--seconds", "3", "--no-controls"]
    assert score.main(arguments) == 0
    assert asked == [(3, 7), (6, 8)]
    assert f"{4 + 9} cases" in capsys.readouterr().out


@pytest.mark.parametrize("found", [["there is always something"], []])
def test_campaign_that_finds_something_without_a_bug_proves_nothing(
    found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each campaign is run as it is first; what it finds with a bug counts if that was clean."""
    asked = []

    def attempt(campaign: str, plant: Plant | None, *_: object) -> dict[str, object]:
        asked.append((campaign, plant and plant.name))
        return {"cases": 9, "violations": ["lost 4"] if plant else found}

    monkeypatch.setattr(score, "attempt", attempt)
    bugs = ["length_first", "tail_first"]
    assert score.main([*bugs, "--seed", "1"]) == bool(found)
    assert asked == [(STEP, name) for name in (None, *bugs)]
    said = "caught 0 of 2" if found else "caught 2 of 2"
    assert said in capsys.readouterr().out


def test_short_run_takes_some_quick_ones_that_the_seed_chooses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same seed chooses the same bugs, and none of the slow ones."""
    monkeypatch.setattr(score, "attempt", lambda *_: {"cases": 9, "violations": ["seen"]})
    monkeypatch.setattr(score.model_campaign, "judge", lambda _: ("seen", {}))
    monkeypatch.setattr(score.model_campaign, "missing_tools", list)
    runs = []
    for seed in ("1", "1", "2"):
        assert score.main(["--short", "--seed", seed]) == 0
        lines = capsys.readouterr().out.splitlines()
        runs.append([line.split()[1] for line in lines if line.startswith("caught  ")])
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) == score.SHORT_COUNT
    for plant in map(registry.named, runs[0]):
        assert max(plant.by.values()) <= score.SHORT_BUDGET


@pytest.mark.parametrize("arguments", [["no_such"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_wrong_usage_leaves_with_two(arguments: list[str]) -> None:
    """No bug is planted."""
    with pytest.raises(SystemExit) as left:
        score.main(arguments)
    assert left.value.code == 2


def test_campaign_without_a_bug_gets_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control run sees no bug that the environment has planted."""
    monkeypatch.setenv(variant.CHANGES_VARIABLE, "{}")
    monkeypatch.setenv(variant.CORE_VARIABLE, "/nowhere")
    found = score.environment(None)
    assert not {variant.CHANGES_VARIABLE, variant.CORE_VARIABLE} & set(found)
    assert found["PATH"] == os.environ["PATH"]


def test_list_whose_reader_is_gone_ends_well() -> None:
    """`| head` closes the pipe: no traceback, code 0, also when the rest is flushed at exit."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "stress.score", "--list"]
        done = subprocess.run(
            command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
