"""`pagequeue journal info`: entries and snapshots of a journal; opens it read-only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click
from rich.table import Table

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.journal.info import journal_info
from pagequeue.util.console import output_console
from pagequeue.util.text import grouped, human_bytes, printable_name
from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from pagequeue.journal.snapshots import SnapshotInfo
    from pagequeue.util.literals import Trust

LINES = ("codec", "head_sequence", "tail_sequence", "durable_sequence", "entries_to_apply")


@click.command()
@options.directory_argument
@options.json_option()
@options.prefix_option
@options.trust_option
def command(directory: str, prefix: str, trust: tuple[Trust, ...], *, as_json: bool) -> None:
    """Show the entries and snapshots of the journal in DIR.

    All snapshots are read and checked; the journal's machine is not needed.

    \b
    pagequeue journal info accounts
    pagequeue journal info accounts --json
    """  # noqa: D301 - click's own mark is the character
    info = journal_info(directory, prefix=prefix, trust=trust)
    if as_json:
        print_json(dataclasses.asdict(info))
        return
    lines = {name.replace("_", " "): _text(getattr(info, name)) for name in LINES}
    lines["log"] = f"{grouped(info.page_count, 'page')}, {human_bytes(info.log_bytes)}"
    width = max(map(len, lines))
    for name, text in lines.items():
        label = click.style(f"{name:<{width}}", fg="cyan")
        click.echo(f"{label}  {text}")
    if info.snapshots:
        output_console().print(_table(info.snapshots))
    else:
        click.echo("no snapshots")
    for problem in info.problems:
        click.echo(f"not usable: {printable_name(problem)}")


def _text(value: str | int) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _table(snapshots: tuple[SnapshotInfo, ...]) -> Table:
    table = Table("snapshot", "bytes", "machine", "created")
    for one in snapshots:
        created = to_datetime(one.created).isoformat(timespec="seconds")
        table.add_row(
            f"{one.sequence:,}", human_bytes(one.bytes), str(one.machine_version), created
        )
    return table
