"""Every command of the command line, found through click, with arguments that make it succeed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import click
import warm

from pagequeue import Queue
from pagequeue.cli.app import application
from pagequeue.demo.accounts import Accounts
from pagequeue.journal import Journal
from pagequeue.tasks import NewTask, TaskStore

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES = 65_536
WAIT_SECONDS = 120.0


class Command(NamedTuple):
    """How a command is called.

    Attributes:
        arguments: `{q}` is a queue, `{store}` a task store, `{journal}` a journal, `{new}` a name
            in the directory that is not there yet, `{rows}` a file of rows, `{lines}` one of lines,
            and `{table}` an archive made by Spark.
        has_json: whether it takes `--json`.
    """

    arguments: str
    has_json: bool = True


MACHINE = "--machine pagequeue.demo.accounts:Accounts"
COMMANDS = {
    "send": Command("{new} --file {lines}", has_json=False),
    "receive": Command("{q} --format json", has_json=False),
    "ls": Command("{q}"),
    "top": Command("{q} --interval 0.1"),
    "info": Command("{q}"),
    "consumers": Command("{q}"),
    "group ls": Command("{q}"),
    "group claim": Command("{q} mailers --count 2"),
    "group dead": Command("{q} mailers"),
    "group requeue": Command("{q} mailers"),
    "tasks ls": Command("{store}"),
    "tasks insert": Command("{new} mail --file {rows}"),
    "tasks claim": Command("{store} mail"),
    "tasks done": Command("{store} 1:1"),
    "tasks retry": Command("{store} 2"),
    "export": Command("{q} --to {new}.jsonl"),
    "import": Command("{new} --from {rows}"),
    "plot": Command("{q} --to {new}.png"),
    "profile": Command("{q}"),
    "trim": Command("{q} --max-age 1d --rotate"),
    "rotate": Command("{q}"),
    "compress": Command("{q} --rotate"),
    "ship": Command("{q} --to {new} --rotate"),
    "metrics": Command("{q}", has_json=False),
    "verify": Command("{q}"),
    "repair": Command("{q}"),
    "salvage": Command("{q} --to {new}"),
    "journal info": Command("{journal}"),
    "journal verify": Command(f"{{journal}} {MACHINE}"),
    "journal compact": Command(f"{{journal}} {MACHINE}"),
    "journal state": Command(f"{{journal}} {MACHINE}"),
    "spark archive": Command("{q} --to {new}"),
    "spark replay": Command("{table} --to {new}"),
    "spark profile": Command("{q}"),
    "spark example": Command("--to {new}.png --limit 50"),
    "demo": Command("--directory {new} --limit 200"),
    "completion": Command("bash", has_json=False),
}


def names(group: click.Group = application, before: str = "") -> list[str]:
    """Return all commands that click knows, those of groups with the group's name."""
    found: list[str] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        whole = f"{before}{name}"
        found += names(command, f"{whole} ") if isinstance(command, click.Group) else [whole]
    return found


def is_spark(name: str) -> bool:
    """Whether a command starts Spark."""
    return name.startswith("spark")


def fill(directory: Path) -> None:
    """Make what the commands read."""
    with Queue(directory / "q", page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            for number in range(100):
                producer.send(b"message %d" % number, timestamp=(1_700_000_000 + number) * 10**9)
        queue.consumer("shop").close()
        queue.group("mailers", capacity=64).close()
    with Journal(directory / "journal", Accounts(), page_bytes=PAGE_BYTES) as journal:
        for number in range(10):
            journal.update(lambda _, n=number: {"to": f"account {n}", "amount": n})
    row = '{{"sequence": {0}, "timestamp": {0}, "payload": "row"}}\n'
    (directory / "rows.jsonl").write_text("".join(map(row.format, range(50))))
    (directory / "lines").write_text("line\n" * 50)
    fill_store(directory)


def fill_store(directory: Path) -> None:
    """Make the task store of the commands, again if there is one."""
    shutil.rmtree(directory / "store", ignore_errors=True)
    with TaskStore(directory / "store", page_bytes=PAGE_BYTES) as store:
        store.modify(insert=[NewTask("mail", {"to": number}) for number in range(5)])


def words(name: str, directory: Path, *more: str) -> list[str]:
    """Return a command with its arguments, which are files below a directory."""
    kinds = ("q", "new", "table", "lines", "store", "journal")
    named = {word: str(directory / word) for word in kinds}
    named["rows"] = str(directory / "rows.jsonl")
    arguments = [word.format(**named) for word in COMMANDS[name].arguments.split()]
    return [*name.split(), *arguments, *more]


def run(
    arguments: list[str],
    redirections: str = "",
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a shell, with redirections; the exit code is the command's.

    One of Spark, or with an environment of its own, starts a fresh interpreter.
    """
    shell = f'"$@" {redirections}; exit ${{PIPESTATUS[0]}}'
    is_forked = environment is None and not is_spark(arguments[0])
    command = ["pagequeue"] if is_forked else [sys.executable, "-m", "pagequeue"]
    return subprocess.run(
        ["bash", "-c", shell, "bash", *command, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**warm.environment(), **(environment or {})},
    )
