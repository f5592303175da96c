"""`pagequeue plot`: messages and bytes by time, sizes and latencies, as an image."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from pagequeue import InvalidOption, merge
from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import page_progress
from pagequeue.plot import figures as plotting
from pagequeue.plot import interactive
from pagequeue.plot.histograms import SizeBins, TimeBins
from pagequeue.plot.latencies import RULES, Latencies
from pagequeue.system.atomic_file import whole_file
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from pagequeue import Queue
    from pagequeue.util.literals import Trust


def _count(queue: Queue, since: int | None, until: int | None) -> tuple[TimeBins, SizeBins]:
    """Return the histograms of one queue's messages by time and by size."""
    times, sizes = TimeBins(), SizeBins()
    with (
        queue.batches(since=since, until=until) as batches,
        page_progress("counting messages") as progress,
    ):
        first, tail = batches.sequence, queue.tail_sequence
        for batch in batches:
            lengths = batch.lengths
            times.add(batch.timestamps, lengths)
            sizes.add(lengths)
            if progress is not None:
                progress(batches.sequence - first, tail - first)
    return times, sizes


def _figures(times: TimeBins, sizes: SizeBins, latencies: Latencies | None) -> dict[str, Any]:
    """Return what the picture shows, as data."""
    figures: dict[str, Any] = {
        "messages": sizes.total,
        "payload_bytes": int(times.payload_bytes.sum()),
        "bin_ns": times.bin_ns,
        "first_timestamp": times.start,
        "payload_bytes_median": sizes.quantile(0.5),
    }
    if latencies is not None:
        bins = latencies.bins
        figures["latency"] = {
            "matched": bins.total,
            "unmatched": latencies.unmatched,
            "least_ns": bins.least,
            "median_ns": bins.quantile(0.5),
            "p99_ns": bins.quantile(0.99),
            "most_ns": bins.most,
        }
    return figures


@click.command()
@options.directory_argument
@click.option(
    "--to",
    "target",
    default="queue.png",
    show_default=True,
    metavar="FILE",
    type=click.Path(readable=False),
    help="The picture to write: .png, .svg, .pdf, or .html to zoom in, which works offline.",
)
@options.since_option
@options.until_option
@click.option(
    "--latency",
    "other",
    metavar="OTHER",
    type=click.Path(readable=False),
    help="Show how long messages took from DIR to the queue in OTHER.",
)
@click.option(
    "--by",
    "rule",
    metavar="RULE",
    help=f"How --latency matches messages: {RULES}. payload, the default: the same payload in "
    "both; field: the same value of a field of JSON objects; time: the payload in OTHER begins "
    "with ns since 1970, int64 little-endian, or has them in a field.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    target: str,
    other: str | None,
    rule: str | None,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    since: int | None,
    until: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw the queue in DIR: messages and bytes by time, payload sizes; needs the extra `plot`.

    \b
    pagequeue plot orders --to orders.png --since 1h
    pagequeue plot orders --to orders.html
    pagequeue plot orders --latency answers --by field:order_id
    """  # noqa: D301 - click's own mark is the character
    file_format = os.path.splitext(target)[1].lower().removeprefix(".")
    if file_format not in (*plotting.FORMATS, "html"):
        raise click.UsageError(f"--to {target}: a picture ends with .png, .svg, .pdf or .html")
    if rule is not None and other is None:
        raise click.UsageError("--by is how --latency matches messages: give --latency too")
    try:
        latencies = Latencies(rule or "payload") if other is not None else None
    except InvalidOption as error:
        raise click.UsageError(str(error)) from None
    check = interactive.check if file_format == "html" else plotting.check
    check()
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(options.open_to_read(directory, prefix, trust))
        file = stack.enter_context(whole_file(target, force=force))
        times, sizes = _count(queue, since, until)
        if other is not None and latencies is not None:
            second = stack.enter_context(options.open_to_read(other, prefix, trust))
            with merge([queue, second], since=since, until=until) as merged:
                for batch in merged.batches():
                    latencies.add(batch)
        title = directory if prefix == "queue" else f"{directory}, prefix {prefix}"
        bins = None if latencies is None else latencies.bins
        if file_format == "html":
            plots = interactive.queue_plots(times, sizes, bins, other or "")
            file.write(interactive.page(title, plots).encode())
        else:
            plotting.draw(file, title, times, sizes, bins, other or "", file_format)
    if as_json:
        print_json({"path": target} | _figures(times, sizes, latencies))
        return
    click.echo(f"{grouped(sizes.total, 'message')} drawn in {target}")
    if latencies is not None:
        matched = grouped(latencies.bins.total, "message")
        click.echo(f"{matched} of {other} with a latency, {latencies.unmatched:,} without")
