"""The figures as pictures: one of rates, one of times and costs, one of the tails of round trips.

Each is one column of panels, so that it can be read on a phone, and a PNG with a small palette.
"""

from __future__ import annotations

import io
import math
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from PIL import Image

from stress.bench.report import amount
from stress.bench_field.contenders import CONTENDERS, OURS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from stress.bench.plan import Metrics
    from stress.bench.report import Measured

TITLE_WIDTH = 50
WIDTH, BAR_HEIGHT, PANEL_HEIGHT = 4.8, 0.2, 0.85
DOTS_PER_INCH, COLORS = 130, 96
OUR_COLOR, OTHER_COLOR = "#3f51b5", "#b0b7c3"
TAIL = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}


class Panel(NamedTuple):
    """One picture of a page: a case, its figure, and the axis."""

    case: str
    figure: str
    axis: str


PAGES: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "rates.png": (
        "Rates, more is better",
        (
            Panel("one-call", "messages_per_s", "messages/s"),
            Panel("batches", "messages_per_s", "messages/s"),
            Panel("64-kib", "megabytes_per_s", "MB/s"),
            Panel("two-producers", "messages_per_s", "messages/s"),
            Panel("fan-out", "messages_per_s", "messages/s"),
            Panel("replay", "replay_per_s", "messages/s replayed"),
            Panel("durable-1", "messages_per_s", "messages/s"),
            Panel("ring-64-kib", "megabytes_per_s", "MB/s"),
        ),
    ),
    "costs.png": (
        "Times, memory and disk, less is better",
        (
            Panel("seek-1m", "seek_p50_us", "p50, microseconds"),
            Panel("seek-10m", "seek_p50_us", "p50, microseconds"),
            Panel("cold-start", "first_send_us", "first send, microseconds"),
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
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(panel.axis + (", log scale" if is_wide else ""), fontsize=9)
    head = textwrap.fill(f"{panel.case}: {title}", TITLE_WIDTH)
    axes.set_title(head, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _page(head: str, panels: Sequence[tuple[Panel, Measured]]) -> Figure:
    medians = [measured.medians() for _, measured in panels]
    heights = [PANEL_HEIGHT + BAR_HEIGHT * len(names) for names in medians]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained")
    figure.suptitle(head, fontsize=11)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, values, (panel, measured) in zip(grid.flat, medians, panels, strict=True):
        _bars(axes, values, panel, measured.case.title)
    return figure


def _tails(results: Sequence[Measured]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.2 * len(results) + 1.2), layout="constrained")
    figure.suptitle("Round trips of 64 B, less is better", fontsize=11)
    grid = figure.subplots(len(results), squeeze=False)
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
    figure.legend(drawn.values(), list(drawn), loc="outside lower center", ncols=3, fontsize=8)
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
        figures["round-trips.png"] = ("Round trips, p50 to p99.99", _tails(tails))
    with mpl.rc_context({"font.family": "DejaVu Sans"}):
        for name, (_, figure) in figures.items():
            drawn = io.BytesIO()
            figure.savefig(drawn, dpi=DOTS_PER_INCH, facecolor="white")
            image = Image.open(drawn).convert("RGB")
            image.quantize(COLORS).save(directory / name, optimize=True)
    return {name: head for name, (head, _) in figures.items()}
