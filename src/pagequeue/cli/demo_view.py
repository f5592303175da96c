"""What the demo shows: bars while it runs, then its figures and one chart."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pagequeue.cli import shared
from pagequeue.cli.demo_flights import ORIGINS
from pagequeue.cli.times import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pagequeue.cli.demo_run import Rate, Report

CHART_WIDTH: Final = 40


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[dict[str, int]], Callable[[str, int], None]]]:
    """Give what makes a bar for each worker, once it is known how much each will see."""
    console = shared.messages_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def prepared(totals: dict[str, int]) -> Callable[[str, int], None]:
            tasks = {
                name: progress.add_task(
                    f"{'producer' if name in ORIGINS else 'consumer'} {name}", total=total
                )
                for name, total in totals.items()
            }
            return lambda name, count: progress.update(tasks[name], completed=count)

        yield prepared


def show(report: Report, names: Mapping[str, str]) -> None:
    """Print the figures and the chart on stdout."""
    console = Console(highlight=False)
    size = shared.human_bytes(report.payload_bytes)
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
        f"{report.replayed.count:,} since {iso_time(report.replayed_since)}",
    )
    console.print(rates)
    console.print(
        "[green]checked against the source:[/] each flight once, unchanged, each airport's in "
        "order; sequences consecutive; times never back; replay and statistics right"
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
