"""`pagequeue journal state`: the state, as of now or of a time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli.journal import machine_of, machine_option, open_journal
from pagequeue.cli.json_output import print_json

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@machine_option(required=True)
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    callback=options.parsed(options.parse_timestamp),
    help="As of this time: 10m (ago), 2026-01-31T08:00Z, or nanoseconds since 1970.",
)
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    machine: str,
    moment: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the state of the journal in DIR: what its machine dumps, one line for each chunk.

    \b
    pagequeue journal state accounts --machine bank:Accounts
    pagequeue journal state accounts --machine bank:Accounts --at 1h
    """  # noqa: D301 - click's own mark is the character
    found = machine_of(machine)
    with open_journal(directory, prefix, trust, found, read_only=True) as journal:
        if moment is None:
            state, sequence = journal.state, journal.sequence
        else:
            state, sequence = journal.at(moment), journal.queue.as_of(moment) + 1
        chunks = [bytes(chunk) for chunk in found.dump(state)]
    if as_json:
        texts = [chunk.decode(errors="backslashreplace") for chunk in chunks]
        print_json({"sequence": sequence, "at": moment, "state": texts})
        return
    sys.stdout.flush()
    for chunk in chunks:
        click.echo(chunk)
