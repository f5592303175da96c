"""`pagequeue salvage`: what it prints of what is lost, repeated and skipped, and its exit codes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from plugin import MESSAGES, Disk
from test_cli import Capture, call, payloads

from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def filled(disk: Disk) -> Disk:
    """Eight messages on three pages: 0 to 2, 3 to 5, 6 and 7."""
    disk.send(*MESSAGES, flush=True)
    return disk


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where nothing is yet."""
    return tmp_path / "saved"


def sent_at(disk: Disk) -> list[int]:
    """Return the messages' timestamps."""
    with disk.open(read_only=True) as queue:
        return [message.timestamp for message in queue.replay()]


def conflicting_page(filled: Disk, tmp_path: Path) -> Path:
    """Return a page of the same queue whose only message has the sequence 3, and other bytes."""
    other = Disk(tmp_path / "other", clock=filled.clock)
    shutil.copytree(filled.directory, other.directory)
    other.page(2).unlink()
    other.page(3).unlink()
    other.zero(1, -1)
    other.path("writeMeta").unlink()
    other.poke(other.path("readMeta"), 32, (1).to_bytes(8, "little"))
    other.poke(other.page(1), 4024, bytes(16))
    other.send(b"other" * 100)
    with other.open() as queue:
        queue.rotate()
    return other.page(2)


def test_whole_queue_is_copied_and_none_is_lost(
    filled: Disk, target: Path, capfdbinary: Capture
) -> None:
    """One line on stdout, exit code 0."""
    code, out, err = call(capfdbinary, "salvage", filled.directory, "--to", target)
    assert (code, err) == (0, "")
    assert out.decode() == f"ok: 8 messages copied to {target}, none lost\n"
    assert payloads(target) == MESSAGES


def test_lost_messages_are_printed_with_their_times_and_place(
    filled: Disk, target: Path, capfdbinary: Capture
) -> None:
    """Which messages, between which times, in which file, at which position, and why."""
    times = [to_datetime(time).isoformat() for time in sent_at(filled)]
    position = filled.tear(1, 1)
    filled.page(2).unlink()
    code, out, err = call(capfdbinary, "salvage", filled.directory, "--to", target)
    assert code == 1
    damaged, missing = out.decode().splitlines()
    assert damaged == (
        f"lost: message 1 (after {times[0]} and before {times[2]}): "
        f"{filled.page(1)}, position {position}: its checksum is wrong"
    )
    between = f"after {times[2]} and before {times[6]}"
    assert missing.startswith(f"lost: messages 3 to 5 ({between}): {filled.page(2)}: ")
    assert err == f"pagequeue: 4 messages copied to {target}\n"
    assert payloads(target) == [MESSAGES[number] for number in (0, 2, 6, 7)]


def test_damage_whose_extent_is_unknown_is_not_given_a_number(
    filled: Disk, target: Path, capfdbinary: Capture
) -> None:
    """A damaged last frame, and no write meta, which has how many messages there are."""
    filled.tear(3, 1)
    filled.path("writeMeta").unlink()
    code, out, _ = call(capfdbinary, "salvage", filled.directory, "--to", target)
    assert code == 1
    assert out.decode().startswith("lost: what followed message 7, if there was any (after ")
    assert payloads(target) == MESSAGES[:7]


def test_duplicate_page_is_printed_and_is_no_failure(
    filled: Disk, target: Path, capfdbinary: Capture
) -> None:
    """Each message is copied once, so exit code 0."""
    shutil.copy(filled.page(2), filled.page(9))
    code, out, _ = call(capfdbinary, "salvage", filled.directory, "--to", target)
    assert code == 0
    assert out.decode().startswith(f"ignored: messages 3 to 5: {filled.page(9)}: ")
    assert payloads(target) == MESSAGES


def test_conflicting_page_is_printed_and_is_a_failure(
    filled: Disk, target: Path, tmp_path: Path, capfdbinary: Capture
) -> None:
    """Two valid messages of one sequence: the first is copied, and exit code 1 says that."""
    shutil.copy(conflicting_page(filled, tmp_path), filled.page(9))
    code, out, err = call(capfdbinary, "salvage", filled.directory, "--to", target)
    assert code == 1
    assert f"conflict: message 3: {filled.page(9)}: " in out.decode()
    assert "ok" not in out.decode().split()
    assert err == f"pagequeue: 8 messages copied to {target}\n"
    assert payloads(target) == MESSAGES


def test_unreadable_index_is_a_note_and_no_loss(
    filled: Disk, target: Path, capfdbinary: Capture
) -> None:
    """An index is only a copy: it is named, and all messages are copied."""
    filled.index(2).unlink()
    filled.index(2).mkdir()
    code, out, _ = call(capfdbinary, "salvage", filled.directory, "--to", target)
    note, last = out.decode().splitlines()
    assert note.startswith(f"note: {filled.index(2)}")
    assert (code, last) == (0, f"ok: 8 messages copied to {target}, none lost")


def test_json_has_runs_and_losses_by_name(filled: Disk, target: Path, capfdbinary: Capture) -> None:
    """Programs map old sequences to new ones without the order of a tuple."""
    times = sent_at(filled)
    position = filled.tear(2, 1)
    code, out, _ = call(capfdbinary, "salvage", filled.directory, "--to", target, "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["messages_copied"]) == (1, False, 7)
    assert report["runs"] == [
        {"first": 0, "last": 3, "target_first": 0},
        {"first": 5, "last": 7, "target_first": 4},
    ]
    (loss,) = report["lost"]
    assert loss == {
        "file": str(filled.page(2)),
        "position": position,
        "first_sequence": 4,
        "last_sequence": 4,
        "after_ns": times[3],
        "before_ns": times[5],
        "reason": "its checksum is wrong",
    }


def test_json_of_a_whole_queue_is_ok(filled: Disk, target: Path, capfdbinary: Capture) -> None:
    """Exit code 0 and `ok` agree."""
    code, out, _ = call(capfdbinary, "salvage", filled.directory, "--to", target, "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)


def test_target_that_has_a_queue_is_wrong_usage(filled: Disk, capfdbinary: Capture) -> None:
    """Exit code 2, and neither queue changes."""
    before = filled.contents()
    code, out, err = call(capfdbinary, "salvage", filled.directory, "--to", filled.directory)
    assert (code, out) == (2, b"")
    assert "choose another target" in err
    assert filled.contents() == before
