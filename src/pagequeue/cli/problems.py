"""What verify, repair and salvage have in common: progress over pages, and problems as lines."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from pagequeue.cli import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Problem


@contextlib.contextmanager
def page_progress(doing: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how many pages are done, where somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (doing, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shared.messages_console(), transient=True) as progress:
        task = progress.add_task(doing, total=None)

        def advanced(done_count: int, total_count: int) -> None:
            progress.update(task, completed=done_count, total=total_count)

        yield advanced


def line_of(problem: Problem) -> str:
    """Return one problem as a person reads it: where, then why."""
    where = [str(problem.file)]
    if problem.position is not None:
        where.append(f"position {problem.position}")
    if problem.sequence is not None:
        where.append(f"sequence {problem.sequence}")
    return f"{', '.join(where)}: {problem.reason}"
