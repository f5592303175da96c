"""What was measured, as tables for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stress.bench.plan import Case, Metrics

LIBRARIES = ("pagequeue", "pyzmq", "lmdb", "numpy")
SCHEMA = 1
MANY_PER_S = 100_000
COMPARED = ("_per_s", "_us", "_ns", "_mib", "_per_message")
LARGE_BYTES = 64 << 10
IN_BYTES = {"ring-1-kib"}
REACHED = {True: "reached", False: "NOT reached", None: "not measured"}


@dataclass
class Measured:
    """One case, with the figures of every run of every contender."""

    case: Case
    runs: dict[str, list[Metrics]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)

    def medians(self) -> dict[str, Metrics]:
        """Return the median of every figure of every contender that ran."""
        return {
            label: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for label, runs in self.runs.items()
        }

    def ratios(self) -> dict[str, Metrics]:
        """Return every rate and time of the first contender, ours, over the others'."""
        medians = self.medians()
        ours = medians.get(self.case.plans[0].label, {})
        return {
            label: {
                name: ours[name] / value
                for name, value in figures.items()
                if name.endswith(COMPARED) and name in ours and value
            }
            for label, figures in medians.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return all of it in JSON's types."""
        medians, ratios = self.medians(), self.ratios()
        return {
            "name": self.case.name,
            "title": self.case.title,
            "contenders": [
                {
                    "label": plan.label,
                    "count": plan.count,
                    "size_bytes": plan.size_bytes,
                    "installed": plan.peer is not None,
                    "median": medians.get(plan.label, {}),
                    "ours_over_it": ratios.get(plan.label, {}),
                    "runs": self.runs.get(plan.label, []),
                }
                for plan in self.case.plans
            ],
            "targets": [
                {
                    "text": target.text,
                    "metric": target.metric,
                    "limit": target.limit,
                    "at_most": target.at_most,
                    "against": target.peer,
                    "value": target.value(medians),
                    "verdict": REACHED[target.reached(medians)],
                }
                for target in self.case.targets
            ],
            "left_out": dict(self.case.left_out),
            "failures": self.failures,
        }


def file_system_of(directory: Path) -> str:
    """Return the kind of file system a directory lies on."""
    best, kind = -1, "unknown"
    place = directory.resolve()
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        mount, mount_kind = line.split()[1:3]
        if place.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), mount_kind
    return kind


def processor() -> str:
    """Return the name of the processor, if the system tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def header(
    directory: Path, *, scale: float, repeats: int, libraries: Iterable[str] = LIBRARIES
) -> dict[str, Any]:
    """Return where and with what was measured."""
    versions = {}
    for library in libraries:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            versions[library] = "not installed"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "processor": processor(),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": versions,
        "file_system": file_system_of(directory),
        "scale": scale,
        "repeats": repeats,
    }


UNITS = {
    "_us": (",.2f", " us"),
    "_ns": (",.0f", " ns"),
    "_mib": (",.1f", " MiB"),
    "_per_message": (",.1f", " B"),
    "megabytes_per_s": (",.0f", " MB/s"),
}
"""By the end of a figure's name, how it is shown."""


def amount(name: str, value: float) -> str:
    """Return a figure with its unit."""
    for end, (form, unit) in UNITS.items():
        if name.endswith(end):
            return f"{value:{form}}{unit}"
    if name.endswith("_per_s"):
        return f"{value / 1e6:.3f} M/s" if value >= MANY_PER_S else f"{value / 1e3:.2f} k/s"
    return f"{value:,.2f}" if name.startswith("times_") else f"{value:,.0f}"


def _shown(name: str, case: Case) -> bool:
    """Return whether a figure is worth a line; JSON has them all."""
    by_bytes = bool(case.plans) and case.plans[0].size_bytes >= LARGE_BYTES
    return name != "seconds" and (name != "megabytes_per_s" or by_bytes or case.name in IN_BYTES)


def _figures_table(measured: Measured) -> Table:
    case = measured.case
    table = Table(title=f"{case.name}: {case.title}", title_justify="left")
    table.add_column("contender", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    for column in ("median", "lowest", "highest", "ours / it"):
        table.add_column(column, justify="right", no_wrap=True)
    medians, ratios = measured.medians(), measured.ratios()
    for plan in case.plans:
        if plan.label not in medians:
            why = "failed" if plan.peer is not None else "not installed"
            table.add_row(plan.label, why)
            continue
        label = plan.label
        for name, median in medians[label].items():
            if _shown(name, case):
                values = [run[name] for run in measured.runs[plan.label]]
                amounts = [amount(name, value) for value in (median, min(values), max(values))]
                ratio = ratios[plan.label].get(name)
                compared = "" if ratio is None or plan is case.plans[0] else f"{ratio:.2f} x"
                table.add_row(label, name, *amounts, compared)
                label = ""
    return table


def targets_table(results: list[Measured]) -> Table:
    """Return each target with whether it was reached."""
    table = Table(title="targets", title_justify="left")
    for column in ("case", "to reach", "measured", "verdict"):
        table.add_column(column, no_wrap=True)
    for measured in results:
        medians = measured.medians()
        for target in measured.case.targets:
            value = target.value(medians)
            shown = "-"
            if value is not None:
                shown = f"{value:.2f} x" if target.peer else amount(target.metric, value)
            verdict = REACHED[target.reached(medians)]
            table.add_row(measured.case.name, target.text, shown, verdict)
    return table


def as_json(head: dict[str, Any], results: list[Measured]) -> dict[str, Any]:
    """Return the whole report in JSON's types."""
    return {
        "schema": SCHEMA,
        "header": head,
        "cases": [measured.as_json() for measured in results],
        "failed": any(measured.failures for measured in results),
    }


def show(head: dict[str, Any], results: list[Measured]) -> None:
    """Print the whole report."""
    console = Console(width=110, highlight=False)
    versions = ", ".join(f"{name} {version}" for name, version in head["libraries"].items())
    console.print(
        f"{head['date']}: {head['cpus']} CPUs, {head['machine']}, Linux {head['kernel']}, "
        f"{head['python']}, {head['file_system']}, load {head['load_average_1min']}\n"
        f"{versions}; scale {head['scale']}, medians of {head['repeats']}"
    )
    for measured in results:
        console.print(_figures_table(measured))
        for label, why in measured.case.left_out.items():
            console.print(f"left out: {label}: {why}", markup=False)
    if any(measured.case.targets for measured in results):
        console.print(targets_table(results))
    for measured in results:
        for failure in measured.failures:
            console.print(f"FAILED {measured.case.name}: {failure}", markup=False, soft_wrap=True)
