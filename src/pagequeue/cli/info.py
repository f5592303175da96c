"""`pagequeue info`: what a queue holds, read without writing a byte to it."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta

import click
import numpy as np

from pagequeue.cli import shared
from pagequeue.cli import watch as watching
from pagequeue.dtypes import describe


def jsonable(value: object) -> object:
    """Return a time as ISO 8601, a duration as seconds, for `json.dumps`."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, np.dtype):
        return describe(value)
    return str(value)


def _text(name: str, value: object) -> str:
    """Return one of the queue's figures for a person."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        exact = f"{value:,}"
        return f"{exact} ({shared.human_bytes(value)})" if name.endswith("_bytes") else exact
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, list | tuple):
        return ", ".join(_text(name, item) for item in value) or "-"
    if isinstance(value, dict):
        return " ".join(f"{key}={_text(key, item)}" for key, item in value.items())
    return str(value)


@click.command()
@shared.directory_argument
@shared.json_option("Print one JSON object; with --watch one a line.")
@click.option("--watch", is_flag=True, help="Show depth, rates, lags and ages again and again.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    callback=shared.finite,
    default=1.0,
    show_default=True,
    help="With --watch: after so many seconds.",
)
@click.option("--count", type=click.IntRange(min=1), help="With --watch: so often.")
@shared.prefix_option
@shared.trust_option
def command(
    directory: str,
    prefix: str,
    trust: tuple[str, ...],
    interval: float,
    count: int | None,
    *,
    as_json: bool,
    watch: bool,
) -> None:
    """Show pages, messages, bytes and times of the queue in DIR."""
    if count is not None and not watch:
        raise click.UsageError("--count belongs to --watch")
    with shared.open_to_read(directory, prefix, trust) as queue:
        if watch:
            watching.watch(queue, interval, count, as_json=as_json)
            return
        figures = dataclasses.asdict(queue.info())
    if as_json:
        click.echo(json.dumps(figures, default=jsonable, ensure_ascii=False))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        label = click.style(f"{name.replace('_', ' '):<{width}}", fg="cyan")
        click.echo(f"{label}  {_text(name, value)}")
