"""The command line and task stores: what each command prints, changes and refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue.cli import main
from pagequeue.tasks import NewTask, TaskStore

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[bytes]
PAGE = 65536


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with a dead task, a scheduled one and two ready ones."""
    path = tmp_path / "store"
    with TaskStore(path, page_bytes=PAGE, max_deliveries=1) as store:
        store.insert("mail", {"to": "ann"})
        store.claim("mail").nack(reason="no such address")
        store.insert("mail", {"to": "ben"}, at=2**62)
        store.modify(insert=[NewTask("mail", "a" * 100), NewTask("print", None, priority=2)])
    return path


def call(capture: Capture, *arguments: object) -> tuple[int, str, str]:
    """Run `pagequeue tasks` in this process, and return exit code, stdout and stderr."""
    code = main(["tasks", *map(str, arguments)])
    out, err = capture.readouterr()
    return code, out.decode(), err.decode()


def rows(capture: Capture, *arguments: object) -> list[Any]:
    """Run a command with `--json`, and return what it printed."""
    code, out, err = call(capture, *arguments, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_tasks_are_listed_as_a_table_and_as_json(directory: Path, capfdbinary: Capture) -> None:
    """All of them, those of one queue, of one status, and figures of the queues."""
    code, out, _ = call(capfdbinary, "ls", directory)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["task", "queue", "status"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["1:3", "mail", "dead"],
        ["2:1", "mail", "waiting"],
        ["3:1", "mail", "ready"],
        ["4:1", "print", "ready"],
    ]
    assert "no such address" in lines[1]
    assert "..." in lines[3]
    found = rows(capfdbinary, "ls", directory)
    assert [row["id"] for row in found] == [1, 2, 3, 4]
    assert found[0]["reason"] == "no such address"
    assert (found[2]["value"], found[3]["value"], found[3]["priority"]) == ("a" * 100, None, 2)
    assert [row["id"] for row in rows(capfdbinary, "ls", directory, "--status", "dead")] == [1]
    assert [row["id"] for row in rows(capfdbinary, "ls", directory, "--queue", "print")] == [4]
    assert rows(capfdbinary, "ls", directory, "--at", 5) == []
    (figures,) = rows(capfdbinary, "ls", directory, "--queues")
    assert figures["queues"]["mail"] == {
        "tasks": 3,
        "ready": 1,
        "waiting": 1,
        "claimed": 0,
        "dead": 1,
        "oldest_ready": found[2]["at"],
    }
    code, out, _ = call(capfdbinary, "ls", directory, "--queues")
    assert out.splitlines()[1].split()[:5] == ["mail", "1", "1", "0", "1"]
    assert "4 tasks; so far 4 inserted, 1 claimed" in out


def test_task_is_inserted_claimed_and_done(tmp_path: Path, capfdbinary: Capture) -> None:
    """The life of a task from a shell."""
    path = tmp_path / "new"
    code, out, _ = call(capfdbinary, "insert", path, "mail", '{"to": "ann"}', '"text"')
    assert (code, out) == (0, '1:1  mail  {"to": "ann"}\n2:1  mail  "text"\n')
    lines = tmp_path / "lines"
    lines.write_text("[1]\n[2]\n")
    assert len(rows(capfdbinary, "insert", path, "later", "--file", lines, "--at", "1h")) == 2
    (row,) = rows(capfdbinary, "claim", path, "print", "mail", "--worker", "shell")
    assert (row["id"], row["version"], row["status"], row["worker"]) == (1, 2, "claimed", "shell")
    code, out, _ = call(capfdbinary, "claim", path, "mail")
    assert (code, out) == (0, '2:2  mail  "text"\n')
    code, _, err = call(capfdbinary, "claim", path, "mail")
    assert (code, "no task to claim in 'mail'" in err) == (1, True)
    assert call(capfdbinary, "done", path, "1:2", "2:2")[0] == 0
    assert [row["queue"] for row in rows(capfdbinary, "ls", path)] == ["later", "later"]


def test_task_that_another_worker_has_is_not_finished(
    directory: Path, capfdbinary: Capture
) -> None:
    """All of them or none."""
    code, _, err = call(capfdbinary, "done", directory, "4:1", "3:7")
    assert code == 1
    assert "task 3 has version 1, not 7" in err
    assert len(rows(capfdbinary, "ls", directory)) == 4
    code, out, _ = call(capfdbinary, "done", directory, "3:7", "--json")
    assert (code, json.loads(out)["error"]["type"]) == (1, "Stale")


def test_retry_lets_tasks_be_claimed_now(directory: Path, capfdbinary: Capture) -> None:
    """All dead ones, or those that are named."""
    assert [row["id"] for row in rows(capfdbinary, "retry", directory, "--dead")] == [1]
    assert rows(capfdbinary, "retry", directory, "--dead") == []
    (row,) = rows(capfdbinary, "retry", directory, "2")
    assert (row["status"], row["version"], row["deliveries"]) == ("ready", 2, 0)
    code, _, err = call(capfdbinary, "retry", directory, "2:1")
    assert (code, "has version 2, not 1" in err) == (1, True)
    code, _, err = call(capfdbinary, "retry", directory, "99")
    assert (code, "task 99 is not in the store" in err) == (1, True)
    assert len(rows(capfdbinary, "ls", directory, "--status", "ready")) == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["done", "{d}", "4"], "write it as 17:3"),
        (["done", "{d}", "four"], "write its number and version"),
        (["retry", "{d}"], "--dead"),
        (["retry", "{d}", "1", "--dead"], "--dead"),
        (["insert", "{d}", "mail"], "--file"),
        (["insert", "{d}", "mail", "1", "2", "--key", "k"], "give one value"),
        (["insert", "{d}", "mail", "1", "--at", "soon"], "soon"),
        (["claim", "{d}", "mail", "--lease", "0"], "--lease"),
        (["ls", "{d}", "--queues", "--queue", "a"], "--queues"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_the_correct_usage_of_tasks(
    directory: Path, capfdbinary: Capture, arguments: list[str], text: str
) -> None:
    """The tasks are unchanged."""
    code, _, err = call(capfdbinary, *(word.format(d=directory) for word in arguments))
    assert code == 2
    assert text in " ".join(err.split())


def test_value_that_is_not_json_is_refused(directory: Path, capfdbinary: Capture) -> None:
    """With how to write it; all values or none."""
    code, _, err = call(capfdbinary, "insert", directory, "mail", "1", "hello")
    assert code == 1
    assert "'hello' is not a value of codec json" in err
    assert len(rows(capfdbinary, "ls", directory)) == 4


def test_store_that_does_not_exist_is_not_made(tmp_path: Path, capfdbinary: Capture) -> None:
    """Only `insert` makes one."""
    for arguments in (["ls", "{}"], ["claim", "{}", "a"], ["done", "{}", "1:1"]):
        words = [word.format(tmp_path / "none") for word in arguments]
        code, _, err = call(capfdbinary, *words)
        assert (code, "none" in err) == (1, True)
    assert not (tmp_path / "none").exists()
