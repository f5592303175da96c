"""`pagequeue journal verify`: check entries and snapshots, and replay them with the machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue import verify_queue
from pagequeue.cli import options
from pagequeue.cli.journal import machine_of, machine_option, open_journal
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import line_of, page_progress, silenced_warnings
from pagequeue.journal.info import journal_info
from pagequeue.util.text import grouped, printable_name

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@options.directory_argument
@machine_option(required=False)
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str, prefix: str, trust: tuple[Trust, ...], machine: str | None, *, as_json: bool
) -> int:
    """Check the entries and snapshots of the journal in DIR.

    With --machine all entries are applied again, and the result is compared with every snapshot.
    Prints one line for each problem and exits with code 1 if there is one.

    \b
    pagequeue journal verify accounts
    pagequeue journal verify accounts --machine bank:Accounts
    """  # noqa: D301 - click's own mark is the character
    figures: dict[str, object]
    with page_progress("checking pages") as progress, silenced_warnings():
        if machine is not None:
            with open_journal(
                directory, prefix, trust, machine_of(machine), read_only=True
            ) as journal:
                report = journal.verify(progress)
            problems = list(report.problems)
            figures = dataclasses.asdict(report)
            applied = report.sequence - report.replayed_from
            checked = (
                f"{grouped(applied, 'entry')} applied again, "
                f"{grouped(len(report.snapshots), 'snapshot')} compared"
            )
        else:
            info = journal_info(directory, prefix=prefix, trust=trust)
            log = verify_queue(directory, prefix=prefix, trust=trust, progress=progress)
            problems = [line_of(problem) for problem in log.problems] + list(info.problems)
            snapshots = tuple(one.sequence for one in reversed(info.snapshots))
            figures = {
                "ok": not problems,
                "sequence": info.tail_sequence,
                "replayed_from": None,
                "snapshots": snapshots,
                "problems": problems,
            }
            checked = (
                f"{grouped(log.messages_checked, 'entry')} and "
                f"{grouped(len(snapshots), 'snapshot')} read; --machine applies them again"
            )
    if as_json:
        print_json(figures)
        return 1 if problems else 0
    for problem in problems:
        click.echo(printable_name(problem))
    if not problems:
        click.echo(f"{click.style('ok', fg='green')}: {checked}")
        return 0
    options.note(f"{grouped(len(problems), 'problem')}; {checked}")
    return 1
