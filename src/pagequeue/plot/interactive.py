"""The plots of a queue as one HTML page to zoom and point at; needs the extra `plot`.

The page has Plotly's script in it, some 5 MB, and loads nothing: it works offline.
"""

from __future__ import annotations

import html
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue.plot.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    QUANTILES,
    RED,
    SIZE_UNITS,
    TIME_UNITS,
    in_unit,
    unit_ticks,
)
from pagequeue.util.optional import library
from pagequeue.util.text import printable_name
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from pagequeue.plot.histograms import SizeBins, TimeBins

    Panel = tuple[SizeBins, tuple[tuple[float, str], ...], str, str]

NS_PER_MS: Final = 10**6
PANEL_PIXELS: Final = 260
LABEL_ROOM: Final = 1.2
"""Of a histogram: of its longest bar, so that the labels of the quantiles are above it."""
BUTTONS: Final = ("toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d")
"""Those that need no other host."""
CONFIG: Final[dict[str, object]] = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [BUTTONS],
}
STYLE: Final = """body { font: 14px sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; }
th, td { padding: 3px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { font-weight: bold; }
.wide { overflow-x: auto; }"""


def check() -> None:
    """Raise unless pages can be made.

    Raises:
        MissingExtra: plotly is not installed.
    """
    library("plotly", "plot", "interactive plots")


def queue_plots(
    times: TimeBins, sizes: SizeBins, latencies: SizeBins | None = None, other: str = ""
) -> str:
    """Return the plots of one queue for `page`.

    Args:
        times: messages and bytes by time.
        sizes: of the payloads.
        latencies: to another queue, ns.
        other: the name of that queue.

    Raises:
        MissingExtra: plotly is not installed.
    """
    panels: list[Panel] = [(sizes, SIZE_UNITS, GREEN, "payload size")]
    if latencies is not None:
        panels.append((latencies, TIME_UNITS, RED, f"latency to {other}"))
    return plots([("all", times)], panels)


def plots(
    rates: list[tuple[str, TimeBins]],
    panels: list[Panel],
) -> str:
    """Return messages and bytes by time, and histograms, for `page`.

    Args:
        rates: of all, then of single queues, each with its name; all have the same bins.
        panels: numbers, their units, a colour and what they are.

    Raises:
        MissingExtra: plotly is not installed.
    """
    figures = library("plotly.graph_objects", "plot", "interactive plots")
    figure = library("plotly.subplots", "plot", "interactive plots").make_subplots(
        2 + len(panels), 1, vertical_spacing=0.3 / (2 + len(panels))
    )
    start = rates[0][1].start
    for number, (name, times) in enumerate(rates):
        if start is None:
            break
        used, seconds = rates[0][1].used, times.bin_ns / NS_PER_S
        at = (start + np.arange(used + 1) * times.bin_ns) / NS_PER_MS
        for row, counts, colour in ((1, times.messages, BLUE), (2, times.payload_bytes, ORANGE)):
            values = np.append(counts[:used], counts[used - 1]) / seconds
            style: dict[str, Any] = {"line": {"shape": "hv", "width": 1}}
            if number == 0:
                style = {"line": {"shape": "hv", "width": 1, "color": colour}, "fill": "tozeroy"}
            figure.add_trace(
                figures.Scatter(
                    x=at.tolist(),
                    y=values.tolist(),
                    name=_name(name),
                    mode="lines",
                    legendgroup=_name(name),
                    showlegend=row == 1 and len(rates) > 1,
                    hovertemplate="%{y:,.4~s}/s<br>%{x|%Y-%m-%d %H:%M:%S.%L} UTC",
                    **style,
                ),
                row,
                1,
            )
    figure.update_xaxes(type="date", matches="x", tickangle=0, nticks=6, row=1)
    figure.update_xaxes(
        type="date", matches="x", tickangle=0, nticks=6, title="time sent, UTC", row=2
    )
    figure.update_yaxes(title="messages/s", rangemode="tozero", row=1)
    figure.update_yaxes(title="payload bytes/s", rangemode="tozero", tickformat="~s", row=2)
    for row, panel in enumerate(panels, 3):
        _add_bins(figure, figures, row, *panel)
    figure.update_layout(
        template="plotly_white",
        height=PANEL_PIXELS * (2 + len(panels)),
        bargap=0,
        margin={"l": 80, "r": 20, "t": 30, "b": 50},
        legend={"orientation": "h", "y": 1.05},
    )
    return str(
        library("plotly.io", "plot", "interactive plots").to_html(
            figure, config=CONFIG, include_plotlyjs=True, full_html=False
        )
    )


def _add_bins(
    figure: Any,  # noqa: ANN401 - Plotly's
    figures: Any,  # noqa: ANN401 - the same
    row: int,
    bins: SizeBins,
    units: tuple[tuple[float, str], ...],
    colour: str,
    what: str,
) -> None:
    """Add a histogram whose bars have equal widths, with lines at the quantiles."""
    used = np.flatnonzero(bins.counts)
    figure.update_xaxes(title=_name(what), row=row)
    most = float(bins.counts.max(initial=1))
    figure.update_yaxes(title="messages", tickformat=",", range=[0, most * LABEL_ROOM], row=row)
    if not len(used):
        return
    low, high = int(used[0]), int(used[-1]) + 1
    edges = bins.edges()[low : high + 1]
    labels = [
        f"{in_unit(float(a), units)} to {in_unit(float(b), units)}"
        for a, b in itertools.pairwise(edges)
    ]
    places = np.log2(edges)
    figure.add_trace(
        figures.Bar(
            x=((places[:-1] + places[1:]) / 2).tolist(),
            y=bins.counts[low:high].tolist(),
            width=np.diff(places).tolist(),
            marker_color=colour,
            opacity=0.5,
            name=_name(what),
            customdata=labels,
            hovertemplate="%{customdata}: %{y:,}<extra></extra>",
            showlegend=False,
        ),
        row,
        1,
    )
    ticks = unit_ticks(edges, units)
    texts = [in_unit(float(tick), units) for tick in ticks]
    figure.update_xaxes(tickvals=np.log2(ticks).tolist(), ticktext=texts, row=row)
    for part in QUANTILES:
        number = bins.quantile(part)
        if number > 0:
            figure.add_vline(
                float(np.log2(number)),
                line={"color": GREY, "dash": "dash", "width": 1},
                annotation_text=f"{part:.0%} up to {in_unit(number, units)}",
                annotation_position="top left" if part == QUANTILES[0] else "top right",
                row=row,
                col=1,
            )


def _name(name: str) -> str:
    """Return a name as Plotly prints it as it is: it reads tags."""
    return html.escape(printable_name(name))


def page(title: str, body: str) -> str:
    """Return a self-contained page.

    Args:
        title: a text.
        body: HTML.
    """
    heading = html.escape(printable_name(title))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{heading}</title>
<style>
{STYLE}
</style></head><body>
<h1>{heading}</h1>
{body}
</body></html>
"""
