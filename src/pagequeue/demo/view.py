"""What the demo shows: bars while it runs, then its figures and one chart."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from rich.bar import Bar
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from pagequeue.demo.flights import ORIGINS
from pagequeue.util.console import messages_console, output_console
from pagequeue.util.text import human_bytes
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pagequeue.demo.run import Rate, Report

CHART_WIDTH: Final = 40


class Count(MofNCompleteColumn):
    """How many of how many; nothing for a phase, which is not counted."""

    def render(self, task: Task) -> Text:
        """Return the text of one bar."""
        return Text() if task.total is None else super().render(task)


class Bars:
    """What is going on, and a bar for each worker."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._phase = progress.add_task("", total=None)

    def phase(self, text: str) -> None:
        """Show what is being done now."""
        self._progress.update(self._phase, description=text)

    def totals(self, counts: dict[str, int]) -> None:
        """Show an empty bar for each worker."""
        for name, total in counts.items():
            kind = "producer" if name in ORIGINS else "consumer"
            self._tasks[name] = self._progress.add_task(f"{kind} {name}", total=total)

    def count(self, name: str, count: int) -> None:
        """Show how far a worker has come."""
        self._progress.update(self._tasks[name], completed=count)


@contextlib.contextmanager
def bars() -> Iterator[Bars]:
    """Show a run's progress on stderr if it is a terminal."""
    console = messages_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        Count(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        yield Bars(progress)


def show(report: Report, names: Mapping[str, str]) -> None:
    """Print the figures and the chart on stdout."""
    console = output_console()
    size = human_bytes(report.payload_bytes)
    airports = ", ".join(f"{origin} {count:,}" for origin, count in report.airports.items())
    console.print(f"[bold]{report.flights:,} flights[/] ({airports}), {size} of payloads")
    rates = Table(box=None, pad_edge=False, show_header=False)
    rates.add_column()
    rates.add_column(justify="right", style="cyan")
    rates.add_column(style="dim")
    rates.add_row("sent", _rate(report.sent), "three producers, one call for each flight")
    for name, rate in report.received.items():
        rates.add_row(f"followed: {name}", _rate(rate), "live, with its own work")
    rates.add_row(
        "replayed",
        _rate(report.replayed),
        f"{report.replayed.count:,} since {iso_time(report.replayed_since)[:23]}Z",
    )
    console.print(rates)
    console.print(
        "[green]checked against the source:[/] each flight once and unchanged, each airport's in\n"
        "order, sequences consecutive, times never back, replay and statistics right\n"
    )
    console.print(_chart(report.carriers, names))
    console.print(f"{report.seconds:.1f} s in all", style="dim")


def _rate(rate: Rate) -> str:
    return f"{rate.per_second:,.0f} msg/s"


def _chart(carriers: Mapping[str, list[int]], names: Mapping[str, str]) -> Table:
    """Return mean departure delay by carrier, the worst first."""
    chart = Table(box=None, pad_edge=False, title="mean departure delay, minutes")
    chart.title_justify = "left"
    chart.show_header = False
    means = {
        carrier: minutes / departed
        for carrier, (_, departed, _, minutes) in carriers.items()
        if departed
    }
    longest = max(means.values(), default=0.0)
    for carrier, mean in sorted(means.items(), key=lambda item: -item[1]):
        bar = Bar(max(longest, 1.0), 0, max(mean, 0.0), width=CHART_WIDTH, color="yellow")
        chart.add_row(names.get(carrier, carrier), f"{mean:6.1f}", bar)
    return chart
