"""`pagequeue verify`: check every checksum of a queue; opens it read-only."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from pagequeue import verify_queue
from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import line_of, page_progress, remedies
from pagequeue.store.clock import BOUND_NS
from pagequeue.util.text import grouped
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@options.json_option()
@options.prefix_option
@options.trust_option
def command(directory: str, prefix: str, trust: tuple[Trust, ...], *, as_json: bool) -> int:
    """Check every message of the queue in DIR.

    Prints one line for each problem and exits with code 1 if there is one. Also works on a queue
    that is too damaged to open.

    \b
    pagequeue verify events
    pagequeue verify events --json
    """  # noqa: D301 - click's own mark is the character
    with page_progress("checking pages") as progress:
        report = verify_queue(directory, prefix=prefix, trust=trust, progress=progress)
    if as_json:
        figures = {"ok": report.ok} | dataclasses.asdict(report)
        print_json(figures)
        return 0 if report.ok else 1
    for problem in report.problems:
        click.echo(line_of(problem))
    checked = (
        f"{grouped(report.messages_checked, 'message')} in "
        f"{grouped(report.pages_checked, 'page')} checked"
    )
    if report.seconds_ahead > BOUND_NS / NS_PER_S:
        options.note(
            f"the last message is {timedelta(seconds=round(report.seconds_ahead))} ahead of the "
            "clock, and later ones get its time: `pagequeue repair --times` sets such times to now"
        )
    if report.ok:
        click.echo(f"{click.style('ok', fg='green')}: {checked}")
        return 0
    remedy = remedies(
        report.problems,
        "copy the directory first; `pagequeue repair` repairs what loses no message, "
        "`pagequeue salvage` copies the valid messages",
    )
    options.note(f"{grouped(len(report.problems), 'problem')}; {checked}; {remedy}")
    return 1
