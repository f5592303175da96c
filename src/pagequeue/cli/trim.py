"""`pagequeue trim`: apply a retention once."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from pagequeue import Queue, Retention
from pagequeue.cli import options
from pagequeue.cli.error_text import message_of
from pagequeue.cli.json_output import print_json
from pagequeue.errors import InvalidOption
from pagequeue.util.text import grouped, human_bytes
from pagequeue.util.time_text import parse_duration

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


def parse_age(text: str) -> timedelta:
    """Return the duration that a text means."""
    return timedelta(microseconds=parse_duration(text) // 1000)


@click.command()
@options.directory_argument
@click.option(
    "--max-age",
    metavar="AGE",
    callback=options.parsed(parse_age),
    help="Remove pages whose messages are all older: 90s, 10m, 12h, 7d; and seal the active page "
    "when its first message is.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=options.parsed(options.parse_size),
    help="Remove the oldest pages until the page files have at most this size, like 10G.",
)
@click.option(
    "--acknowledged",
    is_flag=True,
    help="Remove pages that every named consumer and group has acknowledged.",
)
@click.option(
    "--drop-unacked",
    is_flag=True,
    help="With --max-age and --max-bytes: also what consumers have not acknowledged.",
)
@click.option("--rotate", is_flag=True, help="Seal the active page first, which is never removed.")
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    max_age: timedelta | None,
    max_bytes: int | None,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    acknowledged: bool,
    drop_unacked: bool,
    rotate: bool,
    as_json: bool,
) -> None:
    """Remove the oldest sealed pages of the queue in DIR, as a retention would.

    Whole pages go, oldest first, and none that a named consumer or group has not acknowledged,
    unless --drop-unacked is given. Run every day with --max-age, no message grows older than twice
    that and a day.

    \b
    pagequeue trim events --max-age 7d
    pagequeue trim jobs --acknowledged --rotate
    """  # noqa: D301 - click's own mark is the character
    if max_age is None and max_bytes is None and not acknowledged:
        raise click.UsageError("give --max-age, --max-bytes or --acknowledged")
    if drop_unacked and acknowledged:
        raise click.UsageError("--acknowledged and --drop-unacked exclude each other")
    try:
        retention = Retention(
            max_age=max_age,
            max_bytes=max_bytes,
            drop_acknowledged=acknowledged,
            keep_unacked=not drop_unacked,
        )
        queue = Queue(directory, prefix=prefix, create=False, trust=trust, retention=retention)
    except InvalidOption as error:
        raise click.UsageError(message_of(error)) from None
    with queue:
        if rotate:
            queue.rotate()
        report = queue.trim()
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    click.echo(
        f"{grouped(report.pages, 'page')} removed with {grouped(report.messages, 'message')}, "
        f"{human_bytes(report.bytes)}"
    )
    if report.held_by:
        options.note(f"older pages are kept for {', '.join(report.held_by)}")
    elif not report.pages and not rotate and max_age is None:
        options.note("the active page is never removed; --rotate seals it first")
