"""`pagequeue ship`: copy sealed pages into another directory, a read-only queue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import page_progress
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from pagequeue import ShipReport
    from pagequeue.util.literals import Trust


def parse_mode(text: str) -> int:
    """Return the permission bits that a text means, in octal digits."""
    try:
        return int(text, 8)
    except ValueError:
        raise ValueError(f"{text!r} is not an octal number; write one like 640") from None


def _summary(report: ShipReport) -> str:
    """Return the report as one line."""
    what = f"{grouped(report.pages, 'page')}, {grouped(report.messages, 'message')}"
    there = grouped(report.pages_before + report.pages, "page")
    return (
        f"{what}, {human_bytes(report.bytes_shipped)} shipped to {report.target}, which has "
        f"{there} now, up to sequence {report.end_sequence}"
    )


@click.command()
@options.directory_argument
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DIR",
    type=click.Path(readable=False),
    help="Directory of the copies; created if necessary.",
)
@click.option("--rotate", is_flag=True, help="Seal the active page first, to ship every message.")
@click.option(
    "--consumer",
    metavar="NAME",
    help="Acknowledge shipped messages as this consumer, so that retention waits for it.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Need no write permission in DIR; ships only pages that are flushed already.",
)
@click.option(
    "--mode",
    "file_mode",
    metavar="MODE",
    callback=options.parsed(parse_mode),
    default="600",
    show_default=True,
    help="Permission bits of the copies.",
)
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    target: str,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    rotate: bool,
    consumer: str | None,
    read_only: bool,
    file_mode: int,
    as_json: bool,
) -> None:
    """Copy the sealed pages of the queue in DIR that are not in another directory yet.

    Each copy is read back and checked. The target can be read as a queue, also by Spark, and copied
    to other hosts. Other processes can send and receive meanwhile; the same command later ships the
    new pages, also after it was killed.

    \b
    pagequeue ship events --to /shared/ships/host-1
    """  # noqa: D301 - click's own mark is the character
    if read_only and (rotate or consumer is not None):
        raise click.UsageError("--read-only excludes --rotate and --consumer; leave it out")
    if read_only:
        queue = options.open_to_read(directory, prefix, trust)
    else:
        queue = options.open_to_write(directory, prefix, trust, create=False)
    with queue, page_progress("shipping pages") as progress:
        if rotate:
            queue.rotate()
        report = queue.ship(target, consumer=consumer, file_mode=file_mode, progress=progress)
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    click.echo(_summary(report))
    if not (report.pages or report.pages_left or rotate or read_only):
        options.note("no sealed page is new; --rotate seals the active page first")
    if report.messages_missed:
        options.note(
            f"retention took {grouped(report.messages_missed, 'message')} before the first "
            "page was shipped; --consumer makes it wait"
        )
    if report.pages_left:
        options.note(
            f"{grouped(report.pages_left, 'page')} left, not flushed yet; leave --read-only out"
        )
