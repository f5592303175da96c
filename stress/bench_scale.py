"""How pagequeue scales with processes: python -m stress.bench_scale [--most N] [--quick].

Throughput with 1, 2, 4, ... producers into one consumer, workers of a group, readers that get all,
and readers of columns, beside ZeroMQ where it has the like. Each message is checked. Where there
are as many processors as processes, each process is pinned to one; where there are fewer, the total
must not collapse: at least 0.8 of one. With `perf` and counters, the cache lines that moved between
processors are counted, on the whole machine, for each message.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from stress.bench.plan import Case, Plan, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stress.bench.plan import Metrics, Stages, Summary
    from stress.bench.report import Measured

OURS, ZEROMQ = "pagequeue", "ZeroMQ"
LEAST_MOST = 16
"""So many processes are tried on any machine: on few processors they take turns."""
OVERSUBSCRIBED = (8, 16)
KEPT = 0.8
QUICK_MOST, QUICK_SCALE = 2, 0.002
LEAST_COUNT = 2_000
SIZE_BYTES = 100
RATE = "messages_per_s"
LINES = "lines_per_message"
EVENTS = (
    "mem_load_l3_hit_retired.xsnp_fwd",
    "mem_load_l3_hit_retired.xsnp_hitm",
    "ls_dmnd_fills_from_sys.lcl_cache",
    "cache-misses",
)
"""What counts lines that came from another processor's cache; the last one is all misses."""


class Axis(NamedTuple):
    """One thing whose number grows.

    Attributes:
        peers: by label, the module of `stress.bench.peers` and the class.
        stages_of: the stages for so many.
        summary: of their outcomes.
        counts: messages by label.
    """

    title: str
    peers: dict[str, tuple[str, str]]
    stages_of: Callable[[int], Stages]
    summary: Summary
    counts: dict[str, int]


def axes() -> dict[str, Axis]:
    """Return what is scaled; imported here, because every spawned process imports this file."""
    from stress.bench.figures import last_first_to_last  # noqa: PLC0415
    from stress.bench.loops import (  # noqa: PLC0415
        consume,
        consume_mixed,
        produce,
        produce_batches,
    )
    from stress.bench.worker_loops import (  # noqa: PLC0415
        all_readers,
        hand_out,
        read_columns,
        shared_out,
        work,
    )

    both = {OURS: ("ours", "PageQueue"), ZEROMQ: ("zeromq", "ZeroMQ")}
    return {
        "producers": Axis(
            "producers into one consumer, one call each, 100 B",
            both,
            lambda count: ((*[produce] * count, consume_mixed),),
            last_first_to_last,
            {OURS: 2_000_000, ZEROMQ: 600_000},
        ),
        "workers": Axis(
            "workers of a group that claim and acknowledge; ZeroMQ's forget",
            {
                OURS: ("our_group", "GroupQueue"),
                ZEROMQ: ("zeromq", "ZeroMQ"),
            },
            lambda count: ((hand_out, *[work] * count),),
            shared_out,
            {OURS: 1_000_000, ZEROMQ: 600_000},
        ),
        "readers": Axis(
            "readers that each get all, one call each, 100 B",
            both,
            lambda count: ((produce, *[consume] * count),),
            last_first_to_last,
            {OURS: 1_000_000, ZEROMQ: 300_000},
        ),
        "columns": Axis(
            "readers of all as columns of NumPy, together",
            {OURS: ("our_group", "ColumnQueue")},
            lambda count: ((produce_batches,), (read_columns,) * count),
            all_readers,
            {OURS: 4_000_000},
        ),
    }


def label_of(peer: str, number: int) -> str:
    """Return the label of so many of a peer."""
    return f"{peer}, {number}"


def numbers_to(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`, and `most` itself."""
    powers = [1 << place for place in range(most.bit_length())]
    return sorted({*[number for number in powers if number < most], most})


def build_case(name: str, most: int, scale: float) -> Case:
    """Return the case of an axis: every number, of each peer."""
    from stress.bench.cases import _peer  # noqa: PLC0415

    axis, plans = axes()[name], []
    for number in numbers_to(most):
        for peer, adapter in axis.peers.items():
            plans.append(
                Plan(
                    label=label_of(peer, number),
                    peer=_peer(*adapter),
                    stages=axis.stages_of(number),
                    summary=axis.summary,
                    count=max(LEAST_COUNT, int(axis.counts[peer] * scale)),
                    size_bytes=SIZE_BYTES,
                    stall_seconds=300.0,
                    pinned=True,
                )
            )
    targets = [
        Target(
            f"{number} {name}, in total at least {KEPT} x one",
            RATE,
            KEPT,
            label_of(OURS, 1),
            ours=label_of(OURS, number),
        )
        for number in OVERSUBSCRIBED
        if name in {"producers", "workers"} and number in numbers_to(most)
    ]
    return Case(name, axis.title, tuple(plans), tuple(targets))


# --- counters ------------------------------------------------------------------------------------


def counted(text: str) -> int | None:
    """Return the count in what `perf stat -x,` wrote for one event, None: it counts none."""
    for line in text.splitlines():
        value, *rest = line.split(",")
        if rest and value.isdigit():
            return int(value)
    return None


def event_here() -> str | None:
    """Return the first event that counts something here, None: there is none."""
    if shutil.which("perf") is None:
        return None
    for event in EVENTS:
        command = ["perf", "stat", "-a", "-x,", "-e", event, "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and counted(done.stderr) is not None:
            return event
    return None


def measure_counted(event: str, plan: Plan, base: Path) -> Metrics:
    """Measure a plan, and count an event on all processors meanwhile."""
    from stress.bench.harness import measure  # noqa: PLC0415

    output = base / "perf"
    command = ["perf", "stat", "-a", "-x,", "-e", event, "-o", str(output), "sleep", "3600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as perf:
        try:
            figures = measure(plan, base)
        finally:
            perf.send_signal(signal.SIGINT)
            perf.wait()
    lines = counted(output.read_text(encoding="utf-8"))
    return figures | ({} if lines is None else {LINES: lines / plan.count})


# --- the command ---------------------------------------------------------------------------------


def table(measured: Measured, most: int) -> Table:
    """Return one axis as a table: a line for each number."""
    from stress.bench.report import amount  # noqa: PLC0415

    medians = measured.medians()
    shown = Table(title=f"{measured.case.name}: {measured.case.title}", title_justify="left")
    for head in ("number", OURS, "against one", ZEROMQ, f"{OURS} / {ZEROMQ}", "lines a message"):
        shown.add_column(head, justify="right", no_wrap=True)
    one = medians.get(label_of(OURS, 1), {}).get(RATE)
    for number in numbers_to(most):
        ours, theirs = (medians.get(label_of(peer, number), {}) for peer in (OURS, ZEROMQ))
        rate, other = ours.get(RATE), theirs.get(RATE)
        shown.add_row(
            str(number),
            amount(RATE, rate) if rate else "-",
            f"{rate / one:.2f} x" if rate and one else "-",
            amount(RATE, other) if other else "-",
            f"{rate / other:.2f} x" if rate and other else "-",
            f"{ours[LINES]:.2f}" if LINES in ours else "-",
        )
    return shown


def _arguments(arguments: Sequence[str] | None, names: Sequence[str]) -> argparse.Namespace:
    processors = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        prog="python -m stress.bench_scale", description="Measure how pagequeue scales."
    )
    parser.add_argument("--only", action="append", choices=names, help="can be repeated")
    parser.add_argument("--most", type=int, metavar="N", help="processes of a kind; default: 16")
    parser.add_argument("--quick", action="store_true", help="only whether it works")
    parser.add_argument("--scale", type=float, default=1.0, help="of message counts")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each")
    parser.add_argument("--directory", type=Path, help="for queues; default: temporary")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args(arguments)
    if options.most is None:
        options.most = QUICK_MOST if options.quick else max(LEAST_MOST, processors)
    if options.quick:
        options.scale, options.repeats = QUICK_SCALE, 1
    if options.most < 1 or options.repeats < 1 or options.scale <= 0:
        parser.error("--most and --repeats must be at least 1 and --scale above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a check failed, even where the total collapsed."""
    from stress.bench.command import run_case  # noqa: PLC0415
    from stress.bench.harness import measure  # noqa: PLC0415
    from stress.bench.report import as_json, header, targets_table  # noqa: PLC0415

    options = _arguments(arguments, list(axes()))
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    event = event_here()
    by = measure if event is None else partial(measure_counted, event)
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as base:
        head = header(Path(base), scale=options.scale, repeats=options.repeats)
        head |= {"most": options.most, "counted": event}
        for name in options.only or axes():
            print(f"{name} ...", file=sys.stderr, flush=True)
            case = build_case(name, options.most, options.scale)
            results.append(run_case(case, Path(base), options.repeats, by=by))
    console = Console(width=110, highlight=False)
    console.print(
        f"{head['date']}: {head['cpus']} CPUs ({head['processor']}), Linux {head['kernel']}, "
        f"{head['python']}, {head['file_system']}, load {head['load_average_1min']}; "
        f"medians of {options.repeats}"
    )
    told = f"counted by perf: {event}" if event else "no hardware counters here: lines not counted"
    console.print(told)
    for measured in results:
        console.print(table(measured, options.most))
    if any(measured.case.targets for measured in results):
        console.print(targets_table(results))
    for measured in results:
        for failure in measured.failures:
            console.print(f"FAILED {measured.case.name}: {failure}", markup=False, soft_wrap=True)
    report = as_json(head, results)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
