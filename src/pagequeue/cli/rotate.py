"""`pagequeue rotate`: seal the active page."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.util.text import message_range

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@options.json_option("Print one JSON object; null if the active page was empty.")
@options.prefix_option
@options.trust_option
def command(directory: str, prefix: str, trust: tuple[Trust, ...], *, as_json: bool) -> None:
    """Seal the active page of the queue in DIR and continue in a new one.

    Only sealed pages are compressed, shipped and removed. Others can send and receive meanwhile.

    \b
    pagequeue rotate events
    pagequeue rotate events --json
    """  # noqa: D301 - click's own mark is the character
    with options.open_to_write(directory, prefix, trust, create=False) as queue:
        sealed = queue.rotate()
    if as_json:
        print_json(None if sealed is None else dataclasses.asdict(sealed))
    elif sealed is None:
        click.echo("the active page is empty, and stays the active one")
    else:
        held = message_range(sealed.first_sequence, sealed.end_sequence)
        click.echo(f"sealed page {sealed.page_number} with {held}")
