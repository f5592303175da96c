"""Hostile values of every option and argument of every command: one line of error, no traceback."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import click
import pytest
from support import SMALL
from test_cli import Capture, call

from pagequeue import Queue
from pagequeue.cli.app import application
from pagequeue.tasks import TaskStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUES: Final = ("", "x", "nan", "-1", "1" * 5000, "1e400", "\udcff", "../x")
"""All that an argument can be, which has no NUL."""
LEFT_OUT: Final = {"top", "demo", "spark", "completion"}
"""What needs a terminal or Spark."""
GOOD: Final = {
    "name": ["g"],
    "queue": ["mail"],
    "queues": ["mail"],
    "tasks": ["1:1"],
    "messages": ["x"],
    "values": ["x"],
    "words": ["true"],
    "machine": ["json:loads"],
}


def commands() -> Iterator[tuple[list[str], click.Command]]:
    """Yield each command with its words."""
    context = click.Context(application)
    for name in application.list_commands(context):
        command = application.get_command(context, name)
        if name in LEFT_OUT or command is None:
            continue
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield [name, inner], found
        else:
            yield [name], command


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return a queue and a store of tasks; the standard input is empty."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"a", b"b"])
        queue.group("g").close()
    with TaskStore(tmp_path / "tasks", page_bytes=SMALL) as tasks:
        tasks.insert("mail", b"x")
    monkeypatch.chdir(tmp_path)
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield {"q": str(tmp_path / "q"), "tasks": str(tmp_path / "tasks")}


def words_of(parameter: click.Parameter, value: str) -> list[str]:
    """Return the words that give a parameter this value."""
    if isinstance(parameter, click.Option):
        return (
            [f"{parameter.opts[0]}={value}"]
            if parameter.opts[0].startswith("--")
            else [f"{parameter.opts[0]}{value}"]
        )
    return ["--", value]


@pytest.mark.quick_each(4)
@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*found, id=" ".join(found[0])) for found in commands()]
)
def test_hostile_value_is_one_line_of_error(
    places: dict[str, str], words: list[str], command: click.Command, capfdbinary: Capture
) -> None:
    """The exit code is 0, 1 or 2, and what is wrong is said in one line, or after the usage."""
    directory = places["tasks" if words[0] in {"tasks", "journal"} else "q"]
    for hostile in command.params:
        if getattr(hostile, "is_flag", False) or isinstance(hostile.type, click.Choice):
            continue
        for value in VALUES:
            given: list[str] = []
            for parameter in command.params:
                if parameter is hostile or not parameter.required:
                    continue
                good: Any = GOOD.get(str(parameter.name), [directory])
                if isinstance(parameter, click.Option):
                    good = [f"{parameter.opts[0]}={value_of(parameter)}"]
                given += good
            where = words_of(hostile, value)
            given = [*given, *where] if where[0] == "--" else [*where, *given]
            code, _, err = call(capfdbinary, *words, *given)
            assert code in {0, 1, 2}, (given, code, err)
            assert "Traceback" not in err, (given, err)
            if code == 1:
                assert len(re.findall(r"^pagequeue: error: ", err, re.MULTILINE)) == 1, (given, err)


def value_of(parameter: click.Option) -> str:
    """Return a good value of an option that a command needs."""
    return {"--machine": "json:loads", "--to": "out.jsonl", "--from": "in.jsonl"}[parameter.opts[0]]
