"""`pagequeue journal compact`: write a snapshot, remove the entries that it replaces."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli.journal import machine_of, machine_option, open_journal
from pagequeue.cli.json_output import print_json
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@machine_option(required=True)
@click.option(
    "--snapshots",
    "keep",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="How many snapshots to keep; entries stay from the oldest of them on.",
)
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    machine: str,
    keep: int,
    *,
    as_json: bool,
) -> int:
    """Write a snapshot of the journal in DIR, and remove the entries that it replaces.

    Other processes can append and follow meanwhile. Exits with code 1 if another process is
    compacting.

    \b
    pagequeue journal compact accounts --machine bank:Accounts
    """  # noqa: D301 - click's own mark is the character
    with open_journal(directory, prefix, trust, machine_of(machine), snapshots=keep) as journal:
        report = journal.compact()
    if as_json:
        print_json(dataclasses.asdict(report))
        return 1 if report.sequence is None else 0
    if report.sequence is None:
        options.note("another process is compacting this journal; this call had no effect")
        return 1
    written = f", {human_bytes(report.snapshot_bytes)}" if report.snapshot_bytes else ", unchanged"
    click.echo(
        f"snapshot {report.sequence:,}{written}; {grouped(report.pages, 'page')} with "
        f"{grouped(report.entries, 'entry')} removed"
    )
    if report.held_by:
        options.note(f"kept for consumers: {', '.join(report.held_by)}")
    return 0
