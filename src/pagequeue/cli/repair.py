"""`pagequeue repair`: repair a queue as far as no message is lost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue import repair_queue
from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import line_of, page_progress, remedies, silenced_warnings
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@click.option(
    "--times",
    is_flag=True,
    help="Also set the times of messages that lie ahead of the clock to now: it was wrong when "
    "they were sent.",
)
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str, prefix: str, trust: tuple[Trust, ...], *, times: bool, as_json: bool
) -> int:
    """Repair the queue in DIR as far as that loses no message.

    Prints a line for each repair and for each remaining problem; exit code 1 if there is one. No
    other process may have the queue open.

    \b
    pagequeue repair events
    pagequeue repair events --times
    """  # noqa: D301 - click's own mark is the character
    with silenced_warnings(), page_progress("verifying pages") as progress:
        report = repair_queue(directory, prefix=prefix, trust=trust, progress=progress, times=times)
    if as_json:
        figures = {"ok": report.ok} | dataclasses.asdict(report)
        print_json(figures)
        return 0 if report.ok else 1
    for action in report.actions:
        click.echo(action)
    for problem in report.remaining:
        click.echo(f"not repaired: {line_of(problem)}")
    if report.ok:
        repaired = grouped(len(report.actions), "problem")
        click.echo(f"{click.style('ok', fg='green')}: repaired {repaired}, none remaining")
        return 0
    remaining = grouped(len(report.remaining), "problem")
    remedy = remedies(
        report.remaining,
        "repairing the rest would lose messages: copy the valid ones with `pagequeue salvage`",
    )
    options.note(f"{remaining} remaining: {remedy}")
    return 1
