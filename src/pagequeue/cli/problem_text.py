"""Shared by verify, repair and salvage: progress over pages, and problems as lines."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TimeRemainingColumn

from pagequeue.cli.error_text import reason_of
from pagequeue.util.console import messages_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pagequeue import Problem


@contextlib.contextmanager
def page_progress(doing: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar over pages if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (doing, BarColumn(), "{task.fields[count]}", TimeRemainingColumn())
    with Progress(*columns, console=messages_console(), transient=True) as progress:
        task = progress.add_task(doing, total=None, count="")

        def advanced(done_count: int, total_count: int) -> None:
            count = f"{done_count:,}/{total_count:,}"  # until it is known, no count is shown
            progress.update(task, completed=done_count, total=total_count, count=count)

        yield advanced


@contextlib.contextmanager
def silenced_warnings() -> Iterator[None]:
    """Silence the library's warnings, which the printed report repeats."""
    log = logging.getLogger("pagequeue")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def remedies(problems: Sequence[Problem], damage: str) -> str:
    """Return the remedy for each kind of problem present; `damage` is the one for damage."""
    texts = {
        "damage": damage,
        "access": "correct the owner, permissions or type of the refused files, then repair",
        "upgrade": "use the version of pagequeue that wrote the files, or a newer one",
    }
    kinds = {problem.kind for problem in problems}
    return "; ".join(text for kind, text in texts.items() if kind in kinds)


def line_of(problem: Problem) -> str:
    """Return one problem as a line: where, then why."""
    where = [str(problem.file)]
    if problem.position is not None:
        where.append(f"position {problem.position}")
    if problem.sequence is not None:
        where.append(f"sequence {problem.sequence}")
    return f"{', '.join(where)}: {reason_of(problem)}"
