"""The command line words errors for its users, and prints them as JSON on request."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click
import pytest
from plugin import MESSAGES, Disk
from safely import STRANGER, user
from support import within
from test_cli import Capture, call, run

from pagequeue import NewerFormat, Problem, Queue, Retention, errors
from pagequeue.cli.app import application
from pagequeue.cli.error_text import _TRUST, REMEDIES
from pagequeue.cli.problem_text import remedies
from pagequeue.integrity.problem import problem_of
from pagequeue.system.trust import ALL as ALL_TRUST

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
EACH = [
    ["send"],
    ["receive"],
    ["info"],
    ["info", "--json"],
    ["consumers"],
    ["verify"],
    ["repair"],
    ["receive", "--consumer", "c"],
]


@pytest.fixture
def filled(disk: Disk) -> Disk:
    """Eight messages on three pages."""
    disk.send(*MESSAGES, flush=True)
    return disk


# --- what is accepted -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", EACH, ids=" ".join)
def test_refused_queue_is_accepted_with_the_option_that_the_error_names(
    filled: Disk, command: list[str], capfdbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell user is not asked to write trust=(...)."""
    filled.directory.chmod(0o777)
    name, *options = command
    trusting = [*options, "--trust", "world_writable"]
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        code, _, err = call(capfdbinary, name, filled.directory, *options)
        assert code == 1
        assert "--trust world_writable" in err
        assert "trust=" not in err
        code, _, err = call(capfdbinary, name, filled.directory, *trusting)
    assert code == 0
    assert "error" not in err


@needs_root
def test_file_of_another_user_is_accepted_by_name(filled: Disk, capfdbinary: Capture) -> None:
    """Also where verify names it as a problem."""
    os.chown(filled.page(2), STRANGER, STRANGER)
    code, out, _ = call(capfdbinary, "verify", filled.directory)
    assert code == 1
    assert b"--trust other_owner" in out
    code, _, _ = call(capfdbinary, "verify", filled.directory, "--trust", "other_owner")
    assert code == 0


SEND = ["send", "--file", "rows.jsonl"]
PROVOKED = {
    errors.UnsafePath: (["info"], "accept it with --trust world_writable"),
    errors.QueueNotFound: (["info", "--prefix", "p"], "`pagequeue send` creates a queue"),
    errors.ReadOnlyQueue: (SEND, "read it with other commands"),
    errors.PageSizeMismatch: (
        [*SEND, "--page-bytes", "128K"],
        "leave --page-bytes out",
    ),
    errors.CodecMismatch: (
        [*SEND, "--codec", "json"],
        "leave --codec out",
    ),
    errors.ConsumerNotFound: (["consumers", "--remove", "c"], "`pagequeue consumers` lists them"),
    errors.OutputExists: (["export", "--to", "rows.jsonl"], "or give --force"),
    errors.Expired: (["receive", "--sequence", "0"], "give --sequence 6, the head"),
    errors.SequenceOutOfRange: (["receive", "--sequence", "9"], "give --sequence 0 up to 8"),
}
"""For each class with remedies of the command line: a command that raises it, and the remedy."""


def test_every_remedy_of_the_command_line_is_provoked() -> None:
    """A remedy that no error asks for any more is removed."""
    # The one of permissions needs another user: see the test of a sender without permission.
    assert PROVOKED.keys() | {errors.AccessDenied} == REMEDIES.keys()
    assert set(_TRUST) == ALL_TRUST


@pytest.mark.parametrize("kind", PROVOKED, ids=lambda kind: kind.__name__)
def test_remedy_names_a_command_line_option_for_each_argument(
    filled: Disk,
    kind: type[errors.PageQueueError],
    capfdbinary: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shell user is not asked to seek or to write page_bytes."""
    directory = filled.directory
    monkeypatch.chdir(directory.parent)
    if kind is errors.UnsafePath:
        directory.chmod(0o777)
    if kind is errors.ReadOnlyQueue:
        call(capfdbinary, "ship", directory, "--to", "copy")
        directory = directory.parent / "copy"
    if kind is errors.Expired:
        with filled.open(retention=Retention(max_bytes=3 * 4096)) as queue:
            queue.rotate()
            queue.trim()
    row = {"sequence": 0, "timestamp": 1, "payload": "x" * 100_000}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    (name, *options), remedy = PROVOKED[kind]
    code, _, err = call(capfdbinary, name, directory, *options)
    assert code == 1
    assert remedy in err
    assert not re.search(r"page_bytes|\bseek\b|create=|read_only|\btrust=|queue\.| codec out", err)


# --- errors as JSON -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["info", "consumers", "compress", "verify", "repair", "salvage", "group claim", "group dead"],
)
def test_error_is_json_where_json_was_asked_for(
    tmp_path: Path, capfdbinary: Capture, command: str
) -> None:
    """Who parses stdout finds the error there; exit code and stderr stay."""
    more = ["--to", tmp_path / "target"] if command == "salvage" else []
    more += ["workers"] if command.startswith("group") else []
    words = [*command.split(), tmp_path / "none", *more]
    plain = call(capfdbinary, *words)
    code, out, err = call(capfdbinary, *words, "--json")
    assert (code, err) == (plain[0], plain[2])
    assert plain[1] == b""
    said = json.loads(out)
    assert said["ok"] is False
    assert said["error"]["type"] == "QueueNotFound"
    assert said["error"]["path"] == str(tmp_path / "none")
    assert said["error"]["message"] in err


def test_every_command_with_json_prints_wrong_usage_as_json(capfdbinary: Capture) -> None:
    """No command is left out, and none prints a second object."""
    context, told = click.Context(application), []

    def walk(group: click.Group, words: list[str]) -> None:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                walk(command, [*words, name])
            elif command is not None and any(one.name == "as_json" for one in command.params):
                code, out, _ = call(capfdbinary, *words, name, "--json", "--no-such-option")
                assert (code, json.loads(out)["error"]["type"]) == (2, "NoSuchOption"), name
                told.append(name)

    walk(application, [])
    assert {"claim", "demo", "info", "requeue"} <= set(told)


def test_command_line_of_a_started_command_asks_for_no_json(
    tmp_path: Path, capfdbinary: Capture
) -> None:
    """What follows `--` is for that command."""
    words = ["group", "claim", tmp_path / "none", "workers", "--", "cat", "--json"]
    code, out, _ = call(capfdbinary, *words)
    assert (code, out) == (1, b"")


def test_demo_that_cannot_begin_prints_json(tmp_path: Path, capfdbinary: Capture) -> None:
    """As any other command."""
    (tmp_path / "file").touch()
    code, out, _ = call(capfdbinary, "demo", "--directory", tmp_path / "file" / "x", "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False


@pytest.mark.parametrize(
    ("kind", "told", "type_name"),
    [
        ("missing", "No such file or directory", "FileNotFoundError"),
        ("directory", "directory", "IsADirectoryError"),
        ("fifo", "is not a regular file; give one", "CommandError"),
    ],
)
def test_file_that_cannot_be_imported_is_an_error_at_once(
    tmp_path: Path, capfdbinary: Capture, kind: str, told: str, type_name: str
) -> None:
    """Opening a FIFO without a writer waited for ever; and no queue is created."""
    file = tmp_path / "rows.csv"
    if kind == "directory":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    with within(20):
        code, out, err = call(capfdbinary, "import", tmp_path / "q", "--from", file, "--json")
    error = json.loads(out)["error"]
    assert (code, error["type"]) == (1, type_name)
    assert told in error["message"]
    assert str(file) in error["message"]
    assert error["message"] in err
    assert not (tmp_path / "q").exists()


def test_unreadable_directory_is_an_error_of_the_queue(
    reachable: Path, capfdbinary: Capture
) -> None:
    """Not wrong usage: the path is right, the permissions are not."""
    queue = reachable / "events"
    queue.mkdir(mode=0)
    call(capfdbinary, "info", reachable)  # all is imported before
    with user(STRANGER):
        code, out, err = call(capfdbinary, "info", queue, "--json")
    assert code == 1
    assert "not allowed while opening the directory" in err
    assert json.loads(out)["error"]["type"] == "AccessDenied"


def test_sender_without_permission_learns_what_sending_needs(
    reachable: Path, capfdbinary: Capture
) -> None:
    """Not how to open the queue read-only, which sends nothing; and nothing is created."""
    (reachable / "old").mkdir()
    Queue(reachable / "old", file_mode=0o644).close()
    reachable.chmod(0o555)
    call(capfdbinary, "info", reachable / "old")  # all is imported before
    with user(STRANGER):
        for directory in (reachable / "old", reachable / "new"):
            code, _, err = call(capfdbinary, "send", directory, "x", "--trust", "other_owner")
            assert code == 1
            assert "sending, and whatever else changes a queue, needs permission to write" in err
            assert "read-only" not in err
    assert not (reachable / "new").exists()


# --- repair and verify ----------------------------------------------------------------------------


def test_repair_reports_its_actions_once(filled: Disk) -> None:
    """On stdout, and not in the log as well."""
    filled.index(1).unlink()
    code, out, err = run("repair", filled.directory)
    assert code == 0
    assert b"made queue-0000000001.idx again from its page\n" in out
    assert err == ""


def test_remedy_depends_on_the_problem() -> None:
    """Salvage does not help where chown, chmod or another version would."""
    damaged = Problem("page", 0, 0, "its checksum is wrong")
    refused = problem_of(errors.UnsafePath("the file belongs to x", path="page"))
    denied = problem_of(errors.AccessDenied("not allowed", path="page"))
    newer = problem_of(NewerFormat("written in format 2", path="page", version=2))
    gone = problem_of(errors.QueueNotFound("not there", path="page"))
    assert [p.kind for p in (damaged, refused, denied, newer, gone)] == [
        "damage",
        "access",
        "access",
        "upgrade",
        "damage",
    ]
    assert remedies([damaged, gone], "salvage it") == "salvage it"
    assert "salvage" not in remedies([refused, denied], "salvage it")
    assert "owner, permissions" in remedies([refused, denied], "salvage it")
    assert remedies([newer, damaged], "salvage it").startswith("salvage it; use the version")


@needs_root
def test_repair_of_a_file_that_was_given_away_asks_for_its_owner(
    filled: Disk, capfdbinary: Capture
) -> None:
    """Every message is there, and only the owner is wrong."""
    os.chown(filled.page(2), STRANGER, STRANGER)
    code, out, err = call(capfdbinary, "repair", filled.directory)
    assert code == 1
    assert f"uid {STRANGER}".encode() in out
    assert "correct the owner, permissions or type" in err
    assert "salvage" not in err


def test_misspelled_directory_is_answered_with_similar_queues(
    tmp_path: Path, capfdbinary: Capture
) -> None:
    """Only with queues; without one, with the command that lists them."""
    Queue(tmp_path / "orders", page_bytes=65_536).close()
    (tmp_path / "order").write_text("a file")
    (tmp_path / "ordrs").mkdir()
    code, _, err = call(capfdbinary, "receive", tmp_path / "orderz")
    assert code == 1
    assert err.endswith("orderz: no queue here: did you mean orders?\n")
    code, _, err = call(capfdbinary, "info", tmp_path / "nothing" / "like it")
    assert code == 1
    assert err.endswith("no queue here: `pagequeue ls` lists queues\n")


def test_unfinished_queue_is_not_named_as_another_one(tmp_path: Path, capfdbinary: Capture) -> None:
    """Another prefix is what a user may have meant; its own is what was not found."""
    (tmp_path / "queue-allMeta").write_bytes(b"x\n")  # its creator was killed
    code, _, err = call(capfdbinary, "info", tmp_path)
    assert code == 1
    assert "no queue with prefix 'queue' here: " in err
    Queue(tmp_path, prefix="other", page_bytes=65_536).close()
    code, _, err = call(capfdbinary, "info", tmp_path)
    assert code == 1
    assert "here (there is one with 'other'): " in err
