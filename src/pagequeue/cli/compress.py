"""`pagequeue compress`: compress sealed pages, while other processes use the queue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue import Queue
from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import page_progress
from pagequeue.errors import InvalidOption
from pagequeue.page.zstd import LEVEL_DEFAULT, LEVEL_MAX, LEVEL_MIN
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@click.option(
    "--level",
    type=click.IntRange(LEVEL_MIN, LEVEL_MAX),
    default=LEVEL_DEFAULT,
    show_default=True,
    help="Zstandard level; higher is smaller and slower.",
)
@click.option("--rotate", is_flag=True, help="Seal the active page first.")
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    level: int,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    rotate: bool,
    as_json: bool,
) -> None:
    """Compress the sealed pages of the queue in DIR; needs the extra `zstd`.

    Other processes can send and receive meanwhile. Pages that would hardly shrink are skipped.

    \b
    pagequeue compress events
    pagequeue compress events --rotate --level 9
    """  # noqa: D301 - click's own mark is the character
    try:
        queue = Queue(directory, prefix=prefix, create=False, trust=trust, compress_level=level)
    except InvalidOption as error:
        raise click.UsageError(str(error)) from None
    with queue, page_progress("compressing pages") as progress:
        if rotate:
            queue.rotate()
        report = queue.compress(progress)
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    before, after = map(human_bytes, (report.bytes_before, report.bytes_after))
    click.echo(f"{grouped(report.pages, 'page')} compressed, {before} before, {after} after")
    if not (report.pages or report.pages_left or rotate):
        options.note("no sealed page is left to compress; --rotate seals the active page first")
    if report.pages_left:
        click.echo(f"{grouped(report.pages_left, 'page')} left: they would hardly shrink")
