"""Dying at lines: no module of the library falls out, and every place has its turn."""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue
from stress import traced
from stress.traced import At, Deaths, Files, Victim, Ways

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

SMALL = 4096
THREAD = "util.single_thread"
"""Where a background thread begins."""


def use(path: Path) -> None:
    """Make a queue, send and roll, and open it again."""
    for _ in range(2):
        with Queue(path, page_bytes=SMALL) as queue, queue.producer() as producer:
            producer.send(b"one")
            producer.rotate()
            producer.flush()


def test_every_module_that_runs_is_traced(tmp_path: Path) -> None:
    """Found in another way, by the profiler: no list can have forgotten a module, or a sub-package.

    Five modules were once split off others, and no process was killed in them any more.
    """
    seen: set[str] = set()
    profiled: set[str] = set()
    root = str(traced.root())

    def note(frame: FrameType, _event: str, _value: object) -> None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name != traced.IMPORTING and file.startswith(root):
            profiled.add(file)

    end = traced.trace(lambda module, _: seen.add(module))
    sys.setprofile(note)
    try:
        use(tmp_path / "queue")
    finally:
        sys.setprofile(None)
        end()
    names = {file[len(root) + 1 : -len(".py")].replace(os.sep, ".") for file in profiled}
    assert len(names) > 10
    assert names <= seen


def test_module_is_named_by_its_place(tmp_path: Path) -> None:
    """Also in a sub-package; code outside of the package has no name."""
    root = traced.root()
    assert traced.module_of(str(root / "queue.py")) == "queue"
    assert traced.module_of(str(root / "some" / "where" / "new.py")) == "some.where.new"
    assert traced.module_of(str(tmp_path / "queue.py")) is None
    assert traced.module_of(os.__file__) is None
    assert traced.module_of("<string>") is None


def test_victim_dies_where_it_is_told_and_writes_that_down(tmp_path: Path) -> None:
    """By a real SIGKILL, at that line of that module, the n-th time that it comes there."""
    living, dead = tmp_path / "living", tmp_path / "dead"
    victim = Victim(None, living)
    use(tmp_path / "first")
    victim.end()
    passes = Counter(traced.noted(living))
    place = max(passes, key=lambda place: (place.startswith("store.roll:"), passes[place]))
    assert place.startswith("store.roll:")
    pid = os.fork()
    if pid == 0:
        try:
            Victim(At(place, passes[place]), dead)
            use(tmp_path / "second")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert traced.noted(dead) == [place]


def test_each_place_has_its_turn_before_any_has_another(tmp_path: Path) -> None:
    """What is executed often is not died at more often; no death is counted that was none."""
    notes = tmp_path / "notes"
    notes.write_text("a:1\na:2\na:1\na:1\n", encoding="ascii")
    deaths: Deaths[str] = Deaths()
    deaths.add("scenario", notes)
    order = deaths.ordered(random.Random(1))
    assert len(order) == 4
    assert {at.place for _, at in order[:2]} == {"a:1", "a:2"}
    assert sorted(at for _, at in order) == [At("a:1", n) for n in (1, 2, 3)] + [At("a:2", 1)]
    notes.write_text("a:1\n", encoding="ascii")
    deaths.died(notes)
    deaths.died(tmp_path / "no victim died")
    said = deaths.notes()
    assert said["places"] == 2
    assert said["deaths at lines"] == 1
    assert said["places without a death"] == {"a": 1}


def test_places_with_changed_files_have_every_other_turn(tmp_path: Path) -> None:
    """However few they are; each place of them once before any comes again."""
    notes = tmp_path / "notes"
    few = ["a:1!", "a:1!", "a:2!"]
    notes.write_text("\n".join([*few, *(f"b:{n}" for n in range(90))]), encoding="ascii")
    deaths: Deaths[str] = Deaths()
    deaths.add("scenario", notes)
    order = [at for _, at in deaths.ordered(random.Random(1))]
    assert {at.place for at in order[0:4:2]} == {"a:1", "a:2"}
    assert order[4].place == "a:1"
    assert len(set(order)) == 93


def test_changed_files_are_noticed(tmp_path: Path) -> None:
    """A store into a map, a name and a file in a sub-directory; what is the same is no change."""
    directory = tmp_path / "files"
    files = Files(directory)
    assert not files.have_changed()
    (directory / "below").mkdir(parents=True)
    path = directory / "below" / "page"
    path.write_bytes(bytes(4096))
    assert files.have_changed()
    assert not files.have_changed()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as area:
        area[4000] = 1
        assert files.have_changed()
        assert not files.have_changed()
    path.rename(directory / "page")
    assert files.have_changed()
    (directory / "page").unlink()
    assert files.have_changed()
    assert not files.have_changed()
    files.close()


def test_ways_are_the_lines_that_are_executed_at_once(tmp_path: Path) -> None:
    """One line has as many ways as there are lines that lead to it; each is whole."""
    numbers: list[int] = []
    with Queue(tmp_path / "queue", page_bytes=SMALL) as queue:
        ways = Ways(numbers.append)
        queue.rotate()
        ways.end()
        found = ways.all()
        innermost = [found[number] for number in numbers if number]
        assert {way[-1].partition(":")[0] for way in innermost} <= {"queue.queue", THREAD}
        assert max(map(len, innermost)) > 4

    by_place = Counter(way[0] for way in set(innermost))
    assert max(by_place.values()) > 1


def test_line_that_stores_is_marked_as_one_that_changes_files(tmp_path: Path) -> None:
    """The victim's next line; that is where a death would leave what was stored."""
    notes = tmp_path / "notes"
    victim = Victim(None, notes, tmp_path / "queue")
    use(tmp_path / "queue")
    victim.end()
    marked = [place for place in traced.noted(notes) if place.endswith(traced.CHANGED)]
    assert 10 < len(marked) < len(traced.noted(notes)) / 4


def test_scenario_without_a_line_fails(tmp_path: Path) -> None:
    """A filter that matches no line would have every victim live."""
    deaths: Deaths[str] = Deaths()
    with pytest.raises(AssertionError, match="no line"):
        deaths.add("scenario", tmp_path / "missing")
    with pytest.raises(AssertionError, match="no line"):
        deaths.ordered(random.Random(1))
