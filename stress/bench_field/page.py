"""What was measured, as text: where pagequeue is slower, tables, and the page of the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stress.bench.report import amount
from stress.bench_field.cases import CASES
from stress.bench_field.contenders import OURS

if TYPE_CHECKING:
    from pathlib import Path

    from stress.bench.report import Measured

TIE = 1.05
"""Less than this is not called slower; under 1.5 x, two runs can differ."""
PAGE = "field.md"
PICTURES = "field"
NAMES = {
    "messages_per_s": "messages/s",
    "megabytes_per_s": "MB/s",
    "append_per_s": "appended/s",
    "replay_per_s": "replayed/s",
    "round_trip_p50_us": "p50",
    "round_trip_p99_us": "p99",
    "round_trip_p99.9_us": "p99.9",
    "round_trip_p99.99_us": "p99.99",
    "seek_p50_us": "p50",
    "seek_p99_us": "p99",
    "first_send_us": "first send",
    "first_read_us": "first read",
    "all_mib": "all processes",
    "sender_mib": "sender",
    "receiver_mib": "receiver",
    "server_mib": "server",
    "disk_bytes_per_message": "bytes a message",
    "written_kib_per_flush": "KiB written a flush",
}
"""Of figures, as a column's head; a figure that is not here is in the JSON only."""
IN_TABLE = {"memory": ("all_mib", "sender_mib", "receiver_mib", "server_mib")}


def is_better_high(figure: str) -> bool:
    """Return whether more of a figure is better."""
    return figure.endswith("_per_s")


def slower(results: list[Measured]) -> list[str]:
    """Return for each figure in which peers are ahead by how much, the largest distance first."""
    lines = []
    for measured in results:
        medians, case = measured.medians(), measured.case
        if not case.plans or case.plans[0].label not in medians:
            continue
        ours = medians[case.plans[0].label]
        for figure in CASES[case.name].compared:
            ahead = []
            for label, figures in medians.items():
                theirs = figures.get(figure, 0.0)
                if label.startswith(OURS) or not theirs or not ours.get(figure):
                    continue
                times = theirs / ours[figure]
                times = times if is_better_high(figure) else 1 / times
                if times > TIE:
                    ahead.append((times, f"{label} {times:.2f} x ({amount(figure, theirs)})"))
            if ahead:
                ahead.sort(reverse=True)
                peers = ", ".join(text for _, text in ahead)
                own = amount(figure, ours[figure])
                lines.append((ahead[0][0], f"{case.name}, {NAMES[figure]}, {own}: {peers}"))
    return [line for _, line in sorted(lines, reverse=True)]


def table(measured: Measured) -> list[str]:
    """Return one case as a Markdown table, the best of its first figure first."""
    case, medians = measured.case, measured.medians()
    figures = list(IN_TABLE.get(case.name, CASES[case.name].compared))
    figures += [
        name for name in ("written_kib_per_flush",) if any(name in m for m in medians.values())
    ]
    first = figures[0]
    labels = sorted(medians, key=lambda label: medians[label][first], reverse=is_better_high(first))
    ratios = measured.ratios()
    heads = ["contender", *(NAMES[figure] for figure in figures), "pagequeue / it", "runs"]
    lines = [f"### {case.name}", "", f"{case.title[:1].upper()}{case.title[1:]}.", ""]
    lines += [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for label in labels:
        shown = [
            amount(figure, medians[label][figure]) if figure in medians[label] else ""
            for figure in figures
        ]
        ratio = ratios[label].get(first)
        runs = [run[first] for run in measured.runs[label]]
        spread = f"{amount(first, min(runs))} to {amount(first, max(runs))}"
        compared = "" if ratio is None or label == case.plans[0].label else f"{ratio:.2f} x"
        name = f"**{label}**" if label.startswith(OURS) else label
        lines.append(f"| {' | '.join([name, *shown, compared, spread])} |")
    reasons: dict[str, list[str]] = {}
    for label, why in case.left_out.items():
        reasons.setdefault(why, []).append(label)
    if reasons:
        parts = [f"{', '.join(labels)} ({why})" for why, labels in reasons.items()]
        lines += ["", f"Left out: {'; '.join(parts)}."]
    lines += [f"\nFAILED: {failure.splitlines()[0]}" for failure in measured.failures]
    return [*lines, ""]


def _setting(head: dict[str, Any]) -> list[str]:
    libraries = ", ".join(f"{name} {version}" for name, version in head["libraries"].items())
    return [
        f"- date: {head['date']}, load {head['load_average_1min']} at the start",
        f"- machine: {head['cpus']} processors ({head['processor']}, {head['machine']})",
        f"- system: Linux {head['kernel']}, files on {head['file_system']}",
        f"- software: {head['python']}; {libraries}",
        f"- command: `{head['command']}`; medians of {head['repeats']}, scale {head['scale']}"
        + (", **quick: figures of this run mean nothing**" if head["quick"] else ""),
        "",
    ]


def _losses(results: list[Measured]) -> list[str]:
    lines = [f"- {line}" for line in slower(results)] or ["Nowhere in this run."]
    text = "Each line names a figure, pagequeue's value, and how many times as good the peers are."
    return ["## Where pagequeue is slower", "", text, "", *lines, ""]


def written(head: dict[str, Any], results: list[Measured]) -> str:
    """Return the whole report as Markdown."""
    tables = [line for measured in results for line in table(measured)]
    return "\n".join([*_setting(head), *_losses(results), "## All figures", "", *tables]) + "\n"


INTRODUCTION = """\
# The field

pagequeue beside what else passes or stores messages between Python processes of one host. This page
is written by `python -m stress.bench_field --docs docs`, with the extra `bench`; run it on your own
machine.

All contenders are in one run and in turns. Each process is new, all start at one barrier, and each
message is checked: its length, its number, its end, and of some all bytes; in lists, all bytes of
all. A loss, a message twice, out of order or torn fails the run. The clock starts after the page
cache has been warmed and pagequeue has left its first page. A ratio under 1.5 is a tie: two runs
can differ by as much. Where the text does not say durable, no contender syncs anything to the disk.
Redis and NATS are servers that write to files too. Memory is the peak of the resident set, which
includes pages of mapped files.
"""


def write_page(head: dict[str, Any], results: list[Measured], docs: Path) -> None:
    """Write the page of the documents, with its pictures below it."""
    from stress.bench_field.plots import draw  # noqa: PLC0415 - only with the extra `plot`

    pictures = draw(results, docs / PICTURES)
    shown = [
        line for name, text in pictures.items() for line in (f"![{text}]({PICTURES}/{name})", "")
    ]
    parts = [INTRODUCTION, *_setting(head), "## Pictures", "", *shown, *_losses(results)]
    tables = [line for measured in results for line in table(measured)]
    text = "\n".join([*parts, "## All figures", "", *tables])
    (docs / PAGE).write_text(text.rstrip() + "\n", encoding="utf-8")
