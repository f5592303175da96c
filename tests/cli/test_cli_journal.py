"""`pagequeue journal`: figures, checks, compaction and states, for people and for programs."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from commands import MACHINE
from support import flip

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.demo.accounts import Accounts
from pagequeue.journal import Journal
from pagequeue.journal.compaction import PIN

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600 * 10**9


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Return a journal of three entries, an hour between each and the next, one snapshot."""
    now = [HOUR]
    path = tmp_path / "accounts"
    with Journal(path, Accounts(), page_bytes=1 << 16, clock=lambda: now[0]) as journal:
        for amount in (5, 6, 7):
            journal.update(lambda _, n=amount: {"to": "ann", "amount": n})
            if amount == 6:
                journal.compact()
            now[0] += HOUR
    return str(path)


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run a command and return its stdout."""
    assert main(["journal", *words]) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Run a command and return its JSON."""
    found: dict[str, Any] = json.loads(output_of(capsys, *words, "--json", code=code))
    return found


def test_info_needs_no_machine(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Entries, snapshots, and what opening has to apply."""
    text = output_of(capsys, "info", directory)
    assert "entries to apply  1" in text
    assert "snapshot" in text
    found = data(capsys, "info", directory)
    assert (found["head_sequence"], found["tail_sequence"], found["codec"]) == (0, 3, "json")
    assert [one["sequence"] for one in found["snapshots"]] == [2]
    shutil.rmtree(f"{directory}/queue-journal")
    assert "no snapshots" in output_of(capsys, "info", directory)


def test_state_as_of_now_and_of_a_time(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each chunk; in JSON with the sequence."""
    machine = MACHINE.split()
    assert output_of(capsys, "state", directory, *machine) == '{"ann": 18}\n'
    assert output_of(capsys, "state", directory, *machine, "--at", str(2 * HOUR)) == '{"ann": 11}\n'
    found = data(capsys, "state", directory, *machine, "--at", str(HOUR))
    assert found == {"sequence": 1, "at": HOUR, "state": ['{"ann": 5}']}
    assert output_of(capsys, "state", directory, *machine, "--at", "1") == ""


def test_verify_reports_each_problem(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a machine what the files tell; with one also what the entries lead to."""
    machine = MACHINE.split()
    assert "3 entries and 1 snapshot read" in output_of(capsys, "verify", directory)
    assert "3 entries applied again, 1 snapshot compared" in output_of(
        capsys, "verify", directory, *machine
    )
    assert data(capsys, "verify", directory, *machine)["ok"] is True
    page = next(path for path in _snapshot(directory).glob("*.page"))
    flip(page, page.read_bytes().index(b'"ann"'))
    for more in ([], machine):
        assert "message 1" in output_of(capsys, "verify", directory, *more, code=1)
        found = data(capsys, "verify", directory, *more, code=1)
        assert (found["ok"], len(found["problems"])) == (False, 1)
    assert "not usable" in output_of(capsys, "info", directory)


def _snapshot(directory: str) -> Path:
    import pathlib  # noqa: PLC0415 - only here

    (found,) = pathlib.Path(directory).glob("queue-journal/snapshot-*")
    return found


def test_compact_writes_a_snapshot(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Once; while another process compacts it writes none, and reports that."""
    words = ["compact", directory, *MACHINE.split()]
    with Queue(directory) as queue, queue.consumer(PIN):
        assert output_of(capsys, *words, code=1) == ""
        assert data(capsys, *words, code=1)["sequence"] is None
    assert output_of(capsys, *words).startswith("snapshot 3, ")
    assert "unchanged" in output_of(capsys, *words)
    found = data(capsys, *words, "--snapshots", "1")
    assert (found["sequence"], found["snapshot_bytes"]) == (3, 0)
    assert len(data(capsys, "info", directory)["snapshots"]) == 1


def test_wrong_usage(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another queue, another codec, and machines that are none."""
    with Queue(tmp_path / "plain"):
        pass
    for words in (["info"], ["state", *MACHINE.split()], ["compact", *MACHINE.split()]):
        assert main(["journal", words[0], str(tmp_path / "plain"), *words[1:]]) == 1
        assert "not a journal" in capsys.readouterr().err
    for place, text in {
        "json": "is not MODULE:NAME",
        "no_such_module_here:M": "No module",
        "json:nothing": "no attr",
        "json:loads": "has no version",
        "json:": "is not MODULE:NAME",
    }.items():
        assert main(["journal", "state", directory, "--machine", place]) == 2
        assert text in capsys.readouterr().err.replace("\n", " ")
    with Journal(tmp_path / "pickles", Accounts(), codec="pickle", page_bytes=1 << 16):
        pass
    assert main(["journal", "state", str(tmp_path / "pickles"), *MACHINE.split()]) == 1
    assert "pickles, which can execute" in capsys.readouterr().err


def test_machine_is_found_in_the_current_directory(
    directory: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like a program in the journal's directory; an object is used as it is."""
    (tmp_path / "my_app.py").write_text(
        "from pagequeue.demo.accounts import Accounts\nclass Own:\n    machine = Accounts()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = output_of(capsys, "state", directory, "--machine", "my_app:Own.machine")
    assert text == '{"ann": 18}\n'
