"""Failing system calls: the shim fails only the calls it is told to; planted bugs are found."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from stress import driver, no_failed_sync_is_forgotten, no_fault_goes_unsaid, shim
from stress.campaign import Budget
from stress.fault_matrix import ERRORS, TRY_AGAIN, Case, cases_of, ordered, points_of
from stress.fault_scenes import SCENES
from stress.faulty_disk import OS_PAGE_BYTES, Disk

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

PROGRAM = """
import errno, json, os, signal, sys, tempfile
from stress import shim
directory, other = sys.argv[1:3]
shim.watch(directory)
{body}
"""


def run_shimmed(tmp_path: Path, body: str) -> object:
    """Run lines in a process with the shim; return the JSON that they print."""
    watched, other = tmp_path / "watched", tmp_path / "watched-not"
    watched.mkdir()
    other.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body), str(watched), str(other)],
        env={**shim.environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_what_was_ordered_fails(tmp_path: Path) -> None:
    """The second write below the directory fails, and neither the others nor those elsewhere."""
    body = """
def write(name):
    fd = os.open(name, os.O_CREAT | os.O_RDWR)
    ends = []
    for _ in range(3):
        try:
            ends.append(os.write(fd, b"1234"))
        except OSError as error:
            ends.append(-error.errno)
    os.close(fd)
    return ends
shim.begin(shim.Order("write", 2, error=errno.ENOSPC))
ends = [write(f"{other}/b"), write(f"{directory}/a")]
counts = {kind: count for kind, count in shim.counts().items() if count}
print(json.dumps([ends, shim.fired(), os.path.basename(shim.fired_path()), counts]))
"""
    ends, fired, path, counts = run_shimmed(tmp_path, body)  # type: ignore[misc]
    assert ends == [[4, 4, 4], [4, -errno.ENOSPC, 4]]
    assert (fired, path) == (1, "a")
    assert counts == {"open": 1, "write": 3, "close": 1}


def test_what_fails_for_ever_fails_until_the_end(tmp_path: Path) -> None:
    """From the Nth on, through a directory's descriptor too; a half transfer moves half."""
    body = """
folder = os.open(directory, os.O_RDONLY)
shim.begin(shim.Order("open", 2, times=1 << 40, error=errno.EMFILE))
ends = []
for name in "abc":
    try:
        ends.append(os.open(name, os.O_CREAT | os.O_RDWR, dir_fd=folder) >= 0)
    except OSError as error:
        ends.append(error.errno)
shim.end()
fd = os.open("a", os.O_RDWR, dir_fd=folder)
shim.begin(shim.Order("write", 1, error=shim.SHORT))
ends.append(os.write(fd, b"12345678"))
print(json.dumps(ends))
"""
    assert run_shimmed(tmp_path, body) == [True, errno.EMFILE, errno.EMFILE, 4]


def test_maps_and_syncs_are_known_by_their_file(tmp_path: Path) -> None:
    """A map of a watched descriptor is watched, under the name that its file has by now."""
    body = """
import mmap
heard = []
shim.on_sync(lambda kind, path, error: heard.append([kind, os.path.basename(path), error]) or 0)
fd = os.open(f"{directory}/a.tmp", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 4096)
area = mmap.mmap(fd, 4096)
os.rename(f"{directory}/a.tmp", f"{directory}/a")
shim.begin(shim.Order("msync", 1, error=errno.EIO))
for _ in range(2):
    try:
        area.flush()
    except OSError:
        pass
os.fdatasync(fd)
print(json.dumps(heard))
"""
    assert run_shimmed(tmp_path, body) == [
        ["msync", "a", errno.EIO],
        ["msync", "a", 0],
        ["fdatasync", "a", 0],
    ]


def test_a_signal_comes_before_the_call(tmp_path: Path) -> None:
    """A handler that returns lets the call continue; the call can be told to be interrupted too."""
    body = """
came = []
signal.signal(signal.SIGALRM, lambda *_: came.append(1))
shim.begin(shim.Order("open", 1, times=2, error=errno.EINTR, signal=signal.SIGALRM))
fd = os.open(f"{directory}/a", os.O_CREAT | os.O_RDWR)
print(json.dumps([len(came), fd >= 0, shim.counts()["open"]]))
"""
    assert run_shimmed(tmp_path, body) == [2, True, 3]


def test_the_matrix_has_every_call_and_every_error() -> None:
    """Every call of a scene, once and for ever, with each of its errors."""
    assert set(ERRORS) == set(shim.KINDS)
    cases = list(cases_of("a scene", {"fsync": 2}))
    assert len(set(cases)) == len(cases)
    for nth in (1, 2):
        for how in ERRORS["fsync"]:
            assert Case("a scene", "fsync", nth, how, forever=False) in cases
            assert Case("a scene", "fsync", nth, how, forever=True) in cases
        assert Case("a scene", "fsync", nth, "alarm raises") in cases
    assert len({scene.name for scene in SCENES}) == len(SCENES)


def test_each_point_has_its_turn_before_any_has_another() -> None:
    """Also one that a single scene reaches once, among calls that all scenes make often."""
    usual = ("page.page:1", "send.producer:2", "send.producer:3", "queue.queue:4")
    rare_way = ("page.page:1", "group.group:5", *usual[2:])
    other_caller = (*usual[:3], "queue.queue:9")
    often = {"open": [usual] * 30, "fsync": [usual] * 5, "stat": [usual] * 40}
    ways = {f"scene {n}": often for n in range(6)}
    ways["last"] = {"open": [usual, rare_way, other_caller]}
    points = {
        scene: {kind: [points_of(way, 0) for way in found] for kind, found in of.items()}
        for scene, of in ways.items()
    }
    cases = {
        scene: list(cases_of(scene, {kind: len(found) for kind, found in of.items()}))
        for scene, of in ways.items()
    }
    order = ordered(cases, points, random.Random(1))
    assert sorted(order) == sorted(case for found in cases.values() for case in found)
    found = [(case.kind, ways[case.scene][case.kind][case.nth - 1]) for case in order]
    first = [("open", rare_way), ("fsync", usual), ("stat", usual)]
    assert set(found[:5]) == {*first, ("open", usual), ("open", other_caller)}
    assert found.index(("open", rare_way)) < 4
    rare = [case.how for case, (_, way) in zip(order, found, strict=True) if way == rare_way]
    outcomes = len(set(rare))
    assert len(set(rare[:outcomes])) == outcomes
    assert rare[0] in ERRORS["open"]
    assert rare[0] not in TRY_AGAIN


def test_calls_are_noted_with_their_places(tmp_path: Path) -> None:
    """Equal for one line and files that differ in numbers; told thread by thread."""
    body = """
shim.note_places(on=True)
shim.begin()
at = shim.teller()
for place, name in ((1, "p-01"), (1, "p-02"), (2, "p-03"), (2, "other")):
    at(place)
    os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_RDWR))
found = shim.places()
print(json.dumps([found["open"], found["close"]]))
"""
    opened, closed = run_shimmed(tmp_path, body)  # type: ignore[misc]
    assert opened == closed
    assert [place for place, _ in opened] == [1, 1, 2, 2]
    names = [name for _, name in opened]
    assert names[0] == names[1] == names[2] != names[3]


def test_the_disk_forgets_what_it_failed_to_write(tmp_path: Path) -> None:
    """A sync after one that failed writes later changes, and not those that the failed one lost."""
    directory = tmp_path / "files"
    directory.mkdir()
    path = directory / "a"
    old = b"a" * OS_PAGE_BYTES + b"b" * OS_PAGE_BYTES
    path.write_bytes(old)
    disk = Disk(str(directory), tmp_path / "state")
    disk.start()
    path.write_bytes(b"c" * OS_PAGE_BYTES + b"b" * OS_PAGE_BYTES)
    disk.told(str(path), errno.EIO)
    disk.told(str(path), 0)
    disk.cut(str(tmp_path / "forgot"), random.Random(0), newer=0.0)
    assert (tmp_path / "forgot" / "a").read_bytes() == old
    path.write_bytes(b"c" * OS_PAGE_BYTES + b"d" * OS_PAGE_BYTES)
    disk.told(str(path), 0)
    disk.cut(str(tmp_path / "half"), random.Random(0), newer=0.0)
    half = b"a" * OS_PAGE_BYTES + b"d" * OS_PAGE_BYTES
    assert (tmp_path / "half" / "a").read_bytes() == half


def test_the_disk_has_only_names_that_were_synced(tmp_path: Path) -> None:
    """A file whose directory was not synced is gone, though the file itself was synced."""
    directory = tmp_path / "files"
    directory.mkdir()
    disk = Disk(str(directory), tmp_path / "state")
    disk.start()
    (directory / "a").write_bytes(b"1")
    disk.told(str(directory / "a"), 0)
    disk.cut(str(tmp_path / "before"), random.Random(0), newer=0.0)
    disk.told(str(directory), 0)
    disk.cut(str(tmp_path / "after"), random.Random(0), newer=0.0)
    assert os.listdir(tmp_path / "before") == []
    assert (tmp_path / "after" / "a").read_bytes() == b"1"


@pytest.mark.nightly
def test_no_fault_goes_unsaid() -> None:
    """I2, I5, I8, I10: a sample of the matrix."""
    outcome = no_fault_goes_unsaid.run(Budget(20.0, 200, 3))
    assert outcome.violations == []
    assert outcome.notes["disturbed a call"] > 0


@pytest.mark.nightly
def test_no_failed_sync_is_forgotten() -> None:
    """I5: every mode, both policies, several processes."""
    outcome = no_failed_sync_is_forgotten.run(Budget(15.0, 40, 3))
    assert outcome.violations == []
    assert outcome.cases > 0


@pytest.mark.nightly
@pytest.mark.parametrize("campaign", [no_fault_goes_unsaid, no_failed_sync_is_forgotten])
def test_a_planted_bug_is_found(campaign: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync that blocks no sender; `stress.score` plants the others."""
    monkeypatch.setenv(driver.PATCH_VARIABLE, "stress.fault_plants:forget_to_latch")
    monkeypatch.setenv(driver.FIRST_VARIABLE, "1")
    assert campaign.run(Budget(300.0, None, 1)).violations
