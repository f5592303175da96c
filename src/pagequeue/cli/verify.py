"""`pagequeue verify`: every checksum of a queue, read without writing a byte to it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from pagequeue.cli import shared
from pagequeue.cli.info import jsonable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Problem


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show which page is being checked, where somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = ("checking pages", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shared.messages_console(), transient=True) as progress:
        task = progress.add_task("checking", total=None)

        def advanced(done_count: int, total_count: int) -> None:
            progress.update(task, completed=done_count, total=total_count)

        yield advanced


def _line(problem: Problem) -> str:
    """Return one problem as a person reads it: where, then why."""
    where = [str(problem.file)]
    if problem.position is not None:
        where.append(f"position {problem.position}")
    if problem.sequence is not None:
        where.append(f"sequence {problem.sequence}")
    return f"{', '.join(where)}: {problem.reason}"


@click.command()
@shared.directory_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@shared.prefix_option
def command(directory: str, prefix: str, *, as_json: bool) -> int:
    """Check every message of the queue in DIR.

    Prints one line for each problem and ends with exit code 1 if there is one.
    """
    with shared.open_to_read(directory, prefix) as queue, _progress() as progress:
        report = queue.verify(progress=progress)
    if as_json:
        figures = {"ok": report.ok} | dataclasses.asdict(report)
        click.echo(json.dumps(figures, default=jsonable, ensure_ascii=False))
        return 0 if report.ok else 1
    for problem in report.problems:
        click.echo(_line(problem))
    checked = (
        f"{shared.counted(report.messages_checked, 'message')} in "
        f"{shared.counted(report.pages_checked, 'page')} checked"
    )
    if report.ok:
        click.echo(f"{click.style('ok', fg='green')}: {checked}")
        return 0
    shared.note(
        f"{shared.counted(len(report.problems), 'problem')}; {checked}; "
        "keep the files as they are and copy the directory before anything else is tried"
    )
    return 1
