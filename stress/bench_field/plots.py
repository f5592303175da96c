"""The figures as pictures: a page of rates, one of times, and one of the tails of round trips."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from stress.bench.report import amount
from stress.bench_field.contenders import CONTENDERS, OURS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from stress.bench.plan import Metrics
    from stress.bench.report import Measured

COLUMNS = 3
LEAST_BARS = 5  # a panel with fewer has room for as many, so that none is a block
TITLE_WIDTH = 52
WIDTH, ROW_HEIGHT = 15.0, 3.8
OUR_COLOR, OTHER_COLOR = "#3f51b5", "#b0b7c3"
TAIL = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}


class Panel(NamedTuple):
    """One picture of a page: a case, its figure, and the axis."""

    case: str
    figure: str
    axis: str


PAGES: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "rates.svg": (
        "Rates, more is better",
        (
            Panel("one-call", "messages_per_s", "messages/s"),
            Panel("batches", "messages_per_s", "messages/s"),
            Panel("1-kib", "messages_per_s", "messages/s"),
            Panel("64-kib", "megabytes_per_s", "MB/s"),
            Panel("1-mib", "megabytes_per_s", "MB/s"),
            Panel("64-mib", "megabytes_per_s", "MB/s"),
            Panel("two-producers", "messages_per_s", "messages/s"),
            Panel("four-producers", "messages_per_s", "messages/s"),
            Panel("fan-out", "messages_per_s", "messages/s"),
            Panel("replay", "append_per_s", "messages/s appended"),
            Panel("replay", "replay_per_s", "messages/s replayed"),
            Panel("replay-batches", "replay_per_s", "messages/s replayed"),
            Panel("durable-1", "messages_per_s", "messages/s"),
            Panel("durable-100", "messages_per_s", "messages/s"),
            Panel("durable-100-later", "messages_per_s", "messages/s"),
            Panel("ring-64-kib", "megabytes_per_s", "MB/s"),
            Panel("ring-1-kib", "megabytes_per_s", "MB/s"),
        ),
    ),
    "costs.svg": (
        "Times, memory and disk, less is better",
        (
            Panel("seek-1m", "seek_p50_us", "p50, microseconds"),
            Panel("seek-10m", "seek_p50_us", "p50, microseconds"),
            Panel("seek-100m", "seek_p50_us", "p50, microseconds"),
            Panel("cold-start", "first_send_us", "first send, microseconds"),
            Panel("cold-start", "first_read_us", "first read, microseconds"),
            Panel("memory", "all_mib", "MiB, all processes"),
            Panel("disk", "disk_bytes_per_message", "bytes a message"),
        ),
    ),
}
TAILS = ("round-trip-spin", "round-trip-block")


def _bars(axes: Axes, medians: dict[str, Metrics], panel: Panel, title: str) -> None:
    found = {name: values[panel.figure] for name, values in medians.items()}
    shown = sorted((value, name) for name, value in found.items() if value > 0)
    if not panel.figure.endswith("_per_s"):
        shown.reverse()
    names = [name for _, name in shown]
    values = [value for value, _ in shown]
    colors = [OUR_COLOR if name.startswith(OURS) else OTHER_COLOR for name in names]
    axes.barh(names, values, color=colors)
    for place, value in enumerate(values):
        axes.annotate(
            amount(panel.figure, value),
            (value, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    is_wide = max(values) / min(values) > 30
    if is_wide:
        axes.set_xscale("log")
        least = 10 ** math.floor(math.log10(min(values)))
        axes.set_xlim(least, max(values) * (max(values) / least) ** 0.35)
    else:
        axes.set_xlim(0, max(values) * 1.35)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(-0.6, max(len(names), LEAST_BARS) - 0.4)
    axes.set_xlabel(panel.axis + (", log scale" if is_wide else ""), fontsize=9)
    head = textwrap.fill(f"{panel.case}: {title}", TITLE_WIDTH)
    axes.set_title(head, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _page(head: str, panels: Sequence[tuple[Panel, Measured]]) -> Figure:
    rows = math.ceil(len(panels) / COLUMNS)
    figure = Figure(figsize=(WIDTH, ROW_HEIGHT * rows + 0.6), layout="constrained")
    figure.suptitle(head, fontsize=13)
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    places: list[Any] = list(grid.flat)
    for axes, (panel, measured) in zip(places, panels, strict=False):
        _bars(axes, measured.medians(), panel, measured.case.title)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return figure


def _tails(results: Sequence[Measured]) -> Figure:
    figure = Figure(figsize=(WIDTH, 5.5), layout="constrained")
    figure.suptitle("Round trips of 64 B, less is better", fontsize=13)
    grid = figure.subplots(1, len(results), squeeze=False)
    colors = mpl.color_sequences["tab20"]
    order = list(CONTENDERS)
    drawn = {}
    for axes, measured in zip(grid.flat, results, strict=True):
        for label, values in measured.medians().items():
            (drawn[label],) = axes.plot(
                list(TAIL),
                [values[f"round_trip_{name}_us"] for name in TAIL],
                marker="o",
                label=label,
                color=OUR_COLOR if label == OURS else colors[order.index(label)],
                linewidth=3 if label == OURS else 1.3,
            )
        axes.set_yscale("log")
        axes.set_ylabel("microseconds, log scale")
        axes.set_xlabel("percentile of round trips")
        axes.set_title(measured.case.title, fontsize=10, loc="left")
        axes.grid(axis="y", alpha=0.3)
    figure.legend(drawn.values(), list(drawn), loc="outside right center", fontsize=9)
    return figure


def draw(results: list[Measured], directory: Path) -> dict[str, str]:
    """Write the pictures of what was measured; return what each file shows."""
    directory.mkdir(parents=True, exist_ok=True)
    there = {measured.case.name: measured for measured in results if measured.medians()}
    figures = {}
    for name, (head, panels) in PAGES.items():
        chosen = [(panel, there[panel.case]) for panel in panels if panel.case in there]
        if chosen:
            figures[name] = (head, _page(head, chosen))
    if tails := [there[name] for name in TAILS if name in there]:
        figures["round-trips.svg"] = ("Round trips, p50 to p99.99", _tails(tails))
    with mpl.rc_context({"svg.hashsalt": "field", "font.family": "DejaVu Sans"}):
        for name, (_, figure) in figures.items():
            figure.savefig(directory / name, metadata={"Date": None}, facecolor="white")
    return {name: head for name, (head, _) in figures.items()}
