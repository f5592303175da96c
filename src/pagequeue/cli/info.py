"""`pagequeue info`: what a queue holds; opens it read-only."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli import watch as watching
from pagequeue.cli.json_output import print_json
from pagequeue.util.text import human_bytes

if TYPE_CHECKING:
    from pagequeue import ConsumerInfo
    from pagequeue.util.literals import Trust


def _text(name: str, value: object) -> str:
    """Return one of the queue's figures as text."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        exact = f"{value:,}"
        return f"{exact} ({human_bytes(value)})" if name.endswith("_bytes") else exact
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return str(value)


def _consumer(found: ConsumerInfo) -> str:
    """Return a consumer or group as text: `pagequeue consumers` has the rest."""
    name = found.name if found.group is None else f"group {found.name}"
    if found.next_sequence is None:
        return f"{name}: damaged"
    return f"{name}: next {found.next_sequence:,}, lag {_text('lag', found.lag)}"


@click.command()
@options.directory_argument
@options.json_option("Print one JSON object; with --watch one per line.")
@click.option("--watch", is_flag=True, help="Show depth, rates, lags and ages repeatedly.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    callback=options.finite,
    default=1.0,
    show_default=True,
    help="With --watch: seconds between samples.",
)
@click.option("--count", type=click.IntRange(min=1), help="With --watch: number of samples.")
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    interval: float,
    count: int | None,
    *,
    as_json: bool,
    watch: bool,
) -> None:
    """Show pages, messages, bytes and times of the queue in DIR.

    \b
    pagequeue info events
    pagequeue info events --watch --interval 5
    """  # noqa: D301 - click's own mark is the character
    if count is not None and not watch:
        raise click.UsageError("--count belongs to --watch")
    with options.open_to_read(directory, prefix, trust) as queue:
        if watch:
            watching.watch(queue, interval, count, as_json=as_json)
            return
        found = queue.info()
    figures = dataclasses.asdict(found)
    if as_json:
        print_json(figures)
        return
    width = max(map(len, figures))
    figures["consumers"] = f"\n{' ' * (width + 2)}".join(map(_consumer, found.consumers)) or None
    for name, value in figures.items():
        label = click.style(f"{name.replace('_', ' '):<{width}}", fg="cyan")
        click.echo(f"{label}  {_text(name, value)}")
