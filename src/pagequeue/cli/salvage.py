"""`pagequeue salvage`: copy what still validates into a new queue, and list what is lost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue import InvalidOption, salvage_queue
from pagequeue.cli import options
from pagequeue.cli.error_text import message_of
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import line_of, page_progress
from pagequeue.util.text import grouped, message_range
from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from pagequeue import Loss
    from pagequeue.util.literals import Trust


def _loss(loss: Loss) -> str:
    """Return a loss as a line: which messages, from when, where, why."""
    if loss.last_sequence is None:
        which = f"what followed message {loss.first_sequence}, if there was any"
    else:
        which = message_range(loss.first_sequence, loss.last_sequence + 1)
    times = [
        f"{word} {to_datetime(time).isoformat()}"
        for word, time in (("after", loss.after_ns), ("before", loss.before_ns))
        if time is not None
    ]
    when = f" ({' and '.join(times)})" if times else ""
    where = loss.file if loss.position is None else f"{loss.file}, position {loss.position}"
    return f"lost: {which}{when}: {where}: {loss.reason}"


@click.command()
@options.directory_argument
@click.option(
    "--to", "target", required=True, type=click.Path(readable=False), help="Directory to copy into."
)
@click.option("--keep-partial", is_flag=True, help="Also copy what is left of an incomplete send.")
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    target: str,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    keep_partial: bool,
    as_json: bool,
) -> int:
    """Copy every message of the queue in DIR that still validates into a new queue.

    DIR is only read. Prints which messages are lost; exit code 1 if there are any. Of messages that
    were sent at once, in several pages, and not flushed, it copies all or none, and prints which
    ones it left out.

    \b
    pagequeue salvage events --to saved
    """  # noqa: D301 - click's own mark is the character
    try:
        with page_progress("copying pages") as progress:
            report = salvage_queue(
                directory,
                target,
                prefix=prefix,
                trust=trust,
                progress=progress,
                keep_partial=keep_partial,
            )
    except InvalidOption as error:
        raise click.UsageError(message_of(error)) from None
    if as_json:
        figures = {"ok": report.ok} | dataclasses.asdict(report)
        figures["runs"] = [run._asdict() for run in report.runs]
        print_json(figures)
        return 0 if report.ok else 1
    for loss in report.lost:
        click.echo(_loss(loss))
    for kind, again in (
        ("conflict", report.conflicts),
        ("ignored", report.duplicates),
        ("left out", report.left_out),
    ):
        for repeat in again:
            which = message_range(repeat.first_sequence, repeat.last_sequence + 1)
            click.echo(f"{kind}: {which}: {repeat.file}: {repeat.reason}")
    for note in report.notes:
        click.echo(f"note: {line_of(note)}")
    copied = f"{grouped(report.messages_copied, 'message')} copied to {report.target}"
    if report.ok:
        click.echo(f"{click.style('ok', fg='green')}: {copied}, none lost")
        return 0
    options.note(copied)
    return 1
