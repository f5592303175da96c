"""`pagequeue spark replay`: a table back into a queue, in order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli import spark as sparks
from pagequeue.cli.json_output import print_json
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


def _time(text: str) -> str:
    """Check a time and return its text: a resumed replay must resolve "ago" only once."""
    options.parse_timestamp(text)
    return text


@click.command()
@click.argument("table", metavar="TABLE", type=click.Path(readable=False))
@click.option(
    "--to",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(readable=False),
    help="The queue to send to; created if necessary.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=options.parsed(_time),
    help="Start at this time: 10m (ago), 2026-01-31T08:00Z, or nanoseconds since 1970.",
)
@click.option(
    "--until",
    metavar="TIME",
    callback=options.parsed(_time),
    help="End before this time, in the same forms.",
)
@click.option(
    "--page-bytes",
    callback=options.parsed(options.parse_size),
    metavar="SIZE",
    help="The size of each page of a new queue, like 64M.",
)
@click.option(
    "--slice",
    "slice_count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Publish about so many messages at a time, fewer if large.  [default: 1,000,000]",
)
@sparks.session_options
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    table: str,
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    since: str | None,
    until: str | None,
    page_bytes: int | None,
    slice_count: int | None,
    master: str | None,
    settings: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Send the messages of TABLE, that `archive` made, to a queue again.

    Ordered by time, then queue, then sequence; the messages keep their times and get new sequences.
    The same command resumes one that was killed, with the messages that the table had at its first
    start. Other producers must not send to the queue meanwhile: their timestamps would be later.

    \b
    pagequeue spark replay table --to again --since 1d
    """  # noqa: D301 - click's own mark is the character
    sparks.check_extra()
    from pagequeue.spark.pipeline import replay  # noqa: PLC0415 - the extra
    from pagequeue.spark.pipeline.replaying import SLICE_COUNT  # noqa: PLC0415 - the same

    with (
        sparks.progress_of("replaying slices") as progress,
        sparks.session(master, settings) as spark,
    ):
        done = replay(
            spark,
            table,
            directory,
            since=since,
            until=until,
            page_bytes=page_bytes,
            prefix=prefix,
            trust=trust,
            slice_count=slice_count or SLICE_COUNT,
            progress=progress,
        )
    if as_json:
        print_json({"directory": directory} | done._asdict())
        return
    click.echo(f"{grouped(done.messages, 'message')} replayed to {directory}")
    if done.slices_before:
        click.echo(f"{grouped(done.slices_before, 'slice')} published by an earlier run")
