"""A profile as data, and as plots: PNG, or an HTML page to zoom in, with a table of the figures."""

from __future__ import annotations

import html
import os
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import errors
from pagequeue.plot import figures as plotting
from pagequeue.plot import interactive
from pagequeue.util.text import printable_name
from pagequeue.util.timestamps import NS_PER_S, iso_time

if TYPE_CHECKING:
    from pagequeue.plot.histograms import SizeBins
    from pagequeue.profile.figures import Profile, QueueProfile

SUFFIXES: Final = (".png", ".html")
QUEUES_MAX: Final = 15
"""So many queues are drawn, those with most messages."""
LINES_MAX: Final = 5
COLOURS: Final = ("#b03a4b", "#3d9970", "#7a5ba6", "#222222", "#c2a300")
GAPS: Final = "gap to the message before, in each queue"
COLUMNS: Final = (
    "queue",
    "messages",
    "payload_bytes",
    "rate",
    "peak_rate",
    "size p50",
    "size p99",
    "gap p50",
    "gap p99",
    "lag",
    "missing",
    "late",
    "duplicates",
)


def suffix_of(path: str) -> str:
    """Return how a report is written.

    Raises:
        InvalidOption: the path has neither suffix.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise errors.InvalidOption(f"{path!r} ends with neither of {', '.join(SUFFIXES)}")
    return suffix


def _bins(bins: SizeBins) -> dict[str, Any]:
    """Return a histogram as data: the upper bounds of bins that have something, with how many."""
    used = np.flatnonzero(bins.counts)
    edges = bins.edges()
    return {
        "least": bins.least,
        "p50": bins.quantile(0.5),
        "p99": bins.quantile(0.99),
        "most": bins.most,
        "zero": bins.below,
        "histogram": [[float(edges[i + 1]), int(bins.counts[i])] for i in used],
    }


def figures(one: QueueProfile, *, with_times: bool = True) -> dict[str, Any]:
    """Return what is known of a queue as data; times in ns since 1970, gaps in ns."""
    found: dict[str, Any] = {
        name: getattr(one, name)
        for name in (
            "queue",
            "messages",
            "payload_bytes",
            "first_sequence",
            "last_sequence",
            "first_timestamp",
            "last_timestamp",
            "rate",
            "peak_rate",
            "missing",
            "duplicates",
            "late",
            "lag",
            "lags",
        )
    }
    found |= {"sizes": _bins(one.sizes), "gaps": _bins(one.gaps)}
    if with_times:
        used = one.times.used
        found["times"] = {
            "start": one.times.start,
            "bin_ns": one.times.bin_ns,
            "messages": one.times.messages[:used].tolist(),
            "payload_bytes": one.times.payload_bytes[:used].tolist(),
        }
    return found


def row(one: QueueProfile) -> list[str]:
    """Return what is known of a queue for a table of `COLUMNS`."""
    sizes = [plotting.in_unit(one.sizes.quantile(p), plotting.SIZE_UNITS) for p in (0.5, 0.99)]
    gaps = [plotting.in_unit(one.gaps.quantile(p), plotting.TIME_UNITS) for p in (0.5, 0.99)]
    return [
        one.queue or "all",
        f"{one.messages:,}",
        plotting.in_unit(one.payload_bytes, plotting.SIZE_UNITS),
        _rate(one.rate),
        _rate(one.peak_rate),
        *sizes,
        *gaps,
        "-" if one.lag is None else f"{one.lag:,}",
        f"{one.missing:,}",
        f"{one.late:,}",
        f"{one.duplicates:,}",
    ]


def _rate(number: float) -> str:
    return f"{number:,.0f}/s" if number >= 100 else f"{number:.3g}/s"


def write(file: IO[bytes], suffix: str, title: str, profile: Profile) -> None:
    """Write a report.

    Args:
        file: to write to.
        suffix: one of `SUFFIXES`.
        title: what was profiled.
        profile: of it.

    Raises:
        MissingExtra: matplotlib is not installed, or plotly for HTML.
    """
    if suffix == ".png":
        draw(file, title, profile)
    else:
        file.write(_page(title, profile).encode())


def draw(file: IO[bytes], title: str, profile: Profile) -> None:
    """Draw rates, sizes, gaps and queues as PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure, panels = plotting.page(plotting.literal(title), 5)
    total = profile.total
    unit = plotting.draw_times(panels[0], panels[1], total.times)
    queues = sorted(profile.queues, key=lambda one: -one.messages)
    if len(queues) > 1:
        _draw_lines(panels[0], panels[1], queues[:LINES_MAX], total, unit)
    plotting.draw_bins(
        panels[2], total.sizes, plotting.SIZE_UNITS, plotting.GREEN, "payload size", "messages"
    )
    plotting.draw_bins(
        panels[3],
        total.gaps,
        plotting.TIME_UNITS,
        plotting.RED,
        GAPS,
        "messages",
    )
    _draw_queues(panels[4], queues)
    figure.savefig(file, format="png")


def _draw_lines(
    messages: Any,  # noqa: ANN401 - axes
    payload_bytes: Any,  # noqa: ANN401 - the same
    queues: list[QueueProfile],
    total: QueueProfile,
    unit: float,
) -> None:
    """Draw the rates of single queues above that of all."""
    start, used, seconds = total.times.start, total.times.used, total.times.bin_ns / NS_PER_S
    if start is None:
        return
    edges = (start + np.arange(used + 1) * total.times.bin_ns) / plotting.NS_PER_DAY
    names = map(plotting.literal, labels(queues))
    for one, label, colour in zip(queues, names, COLOURS, strict=False):
        style = {"color": colour, "linewidth": 0.9}
        messages.stairs(one.times.messages[:used] / seconds, edges, label=label, **style)
        payload_bytes.stairs(one.times.payload_bytes[:used] / seconds / unit, edges, **style)
    messages.legend(fontsize=7, frameon=False, ncols=len(queues), loc="upper right")


def _draw_queues(panel: Any, queues: list[QueueProfile]) -> None:  # noqa: ANN401 - axes
    """Draw how many messages queues have, with what is to be known of each."""
    shown = queues[:QUEUES_MAX][::-1]
    if not shown:
        panel.set_axis_off()
        return
    places = range(len(shown))
    panel.barh(places, [one.messages for one in shown], color=plotting.BLUE, alpha=0.35)
    panel.set_yticks(places, list(map(plotting.literal, labels(shown))), fontsize=7)
    for place, one in zip(places, shown, strict=True):
        notes = [
            f"{name} {value:,}"
            for name in ("lag", "missing", "late", "duplicates")
            if (value := getattr(one, name))
        ]
        text = f" {one.messages:,}" + (f" ({', '.join(notes)})" if notes else "")
        panel.text(0, place, text, va="center", fontsize=7, color="#222222")
    hidden = len(queues) - len(shown)
    panel.set_xlabel("messages" + (f"; {hidden:,} more queues are not shown" if hidden else ""))
    panel.xaxis.set_major_formatter(lambda number, _: f"{number:,.6g}")


def labels(queues: list[QueueProfile]) -> list[str]:
    """Return short names of queues, without the directory that they have in common."""
    names = [one.queue for one in queues]
    common = 0
    if len(names) > 1:
        common = os.path.commonprefix(names).rfind("/") + 1  # noqa: RUF071 - cut at a slash here
    return [name if len(name) <= 30 else "..." + name[-27:] for name in (n[common:] for n in names)]


def _page(title: str, profile: Profile) -> str:
    """Return a self-contained page: the figures as a table, and rates, sizes and gaps as plots."""
    heads = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in COLUMNS)
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(printable_name(cell))}</td>" for cell in row(one))
        + "</tr>\n"
        for one in [*profile.queues, profile.total]
    )
    total = profile.total
    when = ""
    if total.first_timestamp is not None and total.last_timestamp is not None:
        first, last = iso_time(total.first_timestamp), iso_time(total.last_timestamp)
        when = f"<p>{first} to {last}</p>"
    queues = sorted(profile.queues, key=lambda one: -one.messages)[:LINES_MAX]
    rates = [("all queues", total.times)]
    if len(profile.queues) > 1:
        named = zip(labels(queues), queues, strict=True)
        rates += [(name, one.times) for name, one in named]
    plots = interactive.plots(
        rates,
        [
            (total.sizes, plotting.SIZE_UNITS, plotting.GREEN, "payload size"),
            (total.gaps, plotting.TIME_UNITS, plotting.RED, GAPS),
        ],
    )
    return interactive.page(
        title,
        f"""{when}<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>
{rows}</tbody></table></div>
{plots}""",
    )
