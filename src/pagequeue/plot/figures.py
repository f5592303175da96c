"""Plots of the histograms of a queue; needs the extra `plot`."""

from __future__ import annotations

from datetime import UTC
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue.util.optional import library
from pagequeue.util.text import printable_name
from pagequeue.util.timestamps import NS_PER_S, iso_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pagequeue.plot.histograms import SizeBins, TimeBins

NS_PER_DAY: Final = 86_400 * NS_PER_S
BLUE, ORANGE, GREEN, RED, GREY = "#2f6fb3", "#d9822b", "#3d9970", "#b03a4b", "#666666"
WIDTH_INCHES: Final = 10.0
PANEL_INCHES: Final = 2.3
DOTS_PER_INCH: Final = 130
FORMATS: Final = ("png", "svg", "pdf")
SIZE_UNITS: Final = ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"))
TIME_UNITS: Final = ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"), (6e10, "min"), (3.6e12, "h"))
QUANTILES: Final = (0.5, 0.99)


def check() -> None:
    """Raise unless pictures can be drawn.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    library("matplotlib", "plot", "pictures")


def draw(
    file: IO[bytes],
    title: str,
    times: TimeBins,
    sizes: SizeBins,
    latencies: SizeBins | None = None,
    other: str = "",
    file_format: str = "png",
) -> None:
    """Write a picture of a queue.

    Args:
        file: to write to.
        title: the queue.
        times: messages and bytes by time.
        sizes: of the payloads.
        latencies: to another queue, ns.
        other: the name of that queue.
        file_format: one of `FORMATS`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure, panels = page(literal(title), 3 if latencies is None else 4)
    draw_times(panels[0], panels[1], times)
    draw_bins(panels[2], sizes, SIZE_UNITS, GREEN, "payload size", "messages")
    if latencies is not None:
        what = f"latency to {literal(other)}"
        draw_bins(panels[3], latencies, TIME_UNITS, RED, what, "messages")
    figure.savefig(file, format=file_format)


def literal(name: str) -> str:
    """Return a file's name as matplotlib prints it as it is."""
    return printable_name(name).replace("$", r"\$")


def page(title: str, count: int, height_inches: float = PANEL_INCHES) -> tuple[Any, Any]:
    """Return a figure, and its panels one below the other; the first two share their time.

    Args:
        title: of the figure.
        count: of the panels.
        height_inches: of each.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - the extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    size = (WIDTH_INCHES, count * height_inches + 0.6)
    figure = Figure(size, DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(count, 1)
    panels[1].sharex(panels[0])
    for panel in panels:
        panel.grid(visible=True, color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    return figure, panels


def _duration(ns: float) -> str:
    """Return a width of time in its largest unit."""
    unit, name = next((u, n) for u, n in reversed(TIME_UNITS) if ns >= u or u == 1)
    return f"{ns / unit:.3g} {name}"


def draw_times(messages: Any, payload_bytes: Any, times: TimeBins) -> float:  # noqa: ANN401 - axes
    """Draw messages and bytes a second by time; return the unit of bytes that was chosen."""
    dates = library("matplotlib.dates", "plot", "pictures")
    used, seconds = times.used, times.bin_ns / NS_PER_S
    if times.start is None:
        for panel in (messages, payload_bytes):
            _mark_empty(panel)
        return 1.0
    edges = (times.start + np.arange(used + 1) * times.bin_ns) / NS_PER_DAY
    unit = 1.0
    for panel, counts, colour, label in (
        (messages, times.messages, BLUE, "messages/s"),
        (payload_bytes, times.payload_bytes, ORANGE, "payload bytes/s"),
    ):
        rates = counts[:used] / seconds
        if label.endswith("bytes/s"):
            unit, name = _unit_for(float(rates.max(initial=0)), SIZE_UNITS)
            rates, label = rates / unit, f"payload {name}/s"  # noqa: PLW2901 - in that unit
        panel.stairs(rates, edges, fill=True, color=colour, alpha=0.35)
        panel.stairs(rates, edges, color=colour, linewidth=1.0)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        panel.margins(x=0)
        _plain(panel.yaxis)
    locator = dates.AutoDateLocator(tz=UTC)
    messages.xaxis.set_major_locator(locator)
    messages.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    messages.tick_params(labelbottom=False)
    messages.xaxis.get_offset_text().set_visible(False)
    total = int(times.messages.sum())
    first = iso_time(times.start)[:23].replace("T", " ")
    messages.set_title(
        f"{total:,} messages from {first} UTC, bins of {_duration(times.bin_ns)}",
        fontsize=9,
        loc="left",
        color=GREY,
    )
    payload_bytes.set_xlabel("time sent, UTC")
    return unit


def _unit_for(most: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((u, n) for u, n in reversed(units) if most >= u or u == 1)


def _plain(axis: Any) -> None:  # noqa: ANN401 - an axis
    """Label numbers with commas for thousands."""
    ticker = library("matplotlib.ticker", "plot", "pictures")
    axis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:,.6g}"))


def draw_bins(
    panel: Any,  # noqa: ANN401 - axes
    bins: SizeBins,
    units: tuple[tuple[float, str], ...],
    colour: str,
    xlabel: str,
    ylabel: str,
) -> None:
    """Draw numbers by their logarithm, with the median and a high quantile."""
    used = np.flatnonzero(bins.counts)
    panel.set_xlabel(xlabel)
    panel.set_ylabel(ylabel)
    if not bins.total:
        _mark_empty(panel)
        return
    notes = [f"{in_unit(float(bins.least or 0), units)} to {in_unit(float(bins.most or 0), units)}"]
    if bins.below:
        notes.append(f"{bins.below:,} of 0 or less")
    if len(used):
        low, high = max(int(used[0]) - 1, 0), int(used[-1]) + 2
        edges = bins.edges()[low : high + 1]
        panel.stairs(bins.counts[low:high], edges, fill=True, color=colour, alpha=0.35)
        panel.stairs(bins.counts[low:high], edges, color=colour, linewidth=1.0)
        panel.set_xscale("log", base=2)
        panel.set_xlim(edges[0], edges[-1])
        for part in QUANTILES:
            number = bins.quantile(part)
            if number > 0:
                panel.axvline(number, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
                is_left = part == QUANTILES[0]  # so that two in one place can be read
                panel.annotate(
                    f"{part:.0%}",
                    (number, 1),
                    (-3 if is_left else 3, 2),
                    color=GREY,
                    fontsize=8,
                    xycoords=("data", "axes fraction"),
                    textcoords="offset points",
                    ha="right" if is_left else "left",
                )
                notes.append(f"{part:.0%} up to {in_unit(number, units)}")
        _label_units(panel, edges, units)
    panel.set_ylim(bottom=0)
    _plain(panel.yaxis)
    panel.set_title(", ".join(notes), fontsize=9, loc="left", color=GREY, pad=14)


def _label_units(
    panel: Any,  # noqa: ANN401 - axes
    edges: NDArray[np.float64],
    units: tuple[tuple[float, str], ...],
) -> None:
    ticker = library("matplotlib.ticker", "plot", "pictures")
    panel.xaxis.set_major_locator(ticker.FixedLocator(unit_ticks(edges, units)))
    panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: in_unit(x, units)))
    panel.xaxis.set_minor_locator(ticker.NullLocator())


def unit_ticks(
    edges: NDArray[np.float64], units: tuple[tuple[float, str], ...]
) -> NDArray[np.float64]:
    """Return ticks where a person would: at powers of two of bytes, at 1, 2 and 5 of times."""
    if units is SIZE_UNITS:
        ticks = np.exp2(np.arange(np.ceil(np.log2(edges[0])), np.floor(np.log2(edges[-1])) + 1))
    else:
        decades = 10.0 ** np.arange(np.floor(np.log10(edges[0])), np.ceil(np.log10(edges[-1])) + 1)
        ticks = np.outer(decades, [1, 2, 5]).ravel()
    ticks = ticks[(ticks >= edges[0]) & (ticks <= edges[-1])]
    step = max(1, -(-len(ticks) // 14))
    found: NDArray[np.float64] = ticks[::step]
    return found


def in_unit(number: float, units: tuple[tuple[float, str], ...]) -> str:
    """Return a number in its largest unit."""
    unit, name = _unit_for(abs(number), units)
    return f"{number / unit:,.3g} {name}"


def _mark_empty(panel: Any) -> None:  # noqa: ANN401 - axes
    panel.text(
        0.5, 0.5, "no messages", ha="center", va="center", transform=panel.transAxes, color=GREY
    )
    panel.set_xticks([])
    panel.set_yticks([])
