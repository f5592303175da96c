"""`pagequeue export`: a queue's messages into a file of another format."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import page_progress
from pagequeue.export import files as exchanging
from pagequeue.export.text import CsvWriting, JsonlWriting
from pagequeue.queue.queue import internals
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Queue
    from pagequeue.export.files import Writing
    from pagequeue.schema.schema import Schema
    from pagequeue.util.literals import Trust


def _begin(
    file_format: str, kind: Schema, holds_over: Callable[[int], bool]
) -> Callable[[IO[bytes]], Writing]:
    """Return the class or function that begins a file of this format."""
    if file_format == "jsonl":
        return JsonlWriting
    if file_format == "csv":
        return CsvWriting
    from pagequeue.columns import arrow  # noqa: PLC0415 - the extra
    from pagequeue.export.arrow import ArrowWriting, ParquetWriting, schema_of  # noqa: PLC0415 - the extra

    schema_of(kind)  # raises for a missing extra before the file is created
    begins: dict[str, Callable[[IO[bytes]], Writing]] = {
        "parquet": partial(ParquetWriting, kind=kind),
        "arrow": partial(ArrowWriting, kind=kind, wide=holds_over(arrow.COPY_BYTES_MAX)),
    }
    return begins[file_format]


def _export(
    queue: Queue,
    target: str,
    file_format: str,
    *,
    since: int | None,
    until: int | None,
    sequence: int | None,
    force: bool,
) -> exchanging.ExportReport:
    store = internals(queue).store
    with (
        queue.batches(since=since, until=until, sequence=sequence) as batches,
        page_progress("exporting messages") as progress,
    ):
        first, tail = batches.sequence, queue.tail_sequence
        begin = _begin(file_format, store.schema, partial(store.holds_over, sequence=first))
        return exchanging.export(
            batches,
            target,
            begin,
            force=force,
            next_sequence=first,
            progress=progress and (lambda done: progress(done - first, tail - first)),
        )


@click.command()
@options.directory_argument
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE",
    type=click.Path(readable=False),
    help="The file to write; its suffix names the format: .parquet, .arrow, .jsonl or .csv.",
)
@options.file_format_option
@options.since_option
@options.until_option
@click.option("--sequence", type=click.IntRange(min=0), help="Start at this sequence.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.json_option()
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    target: str,
    file_format: str | None,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    since: int | None,
    until: int | None,
    sequence: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the messages of the queue in DIR to a file, with their times.

    The file appears under its name once it is complete and on stable storage. Payloads are bytes in
    .parquet and .arrow (extra `arrow`), where records have a column for each field; in .jsonl and
    .csv they are text where they are UTF-8, else Base64 in another column.

    \b
    pagequeue export events --to events.parquet --since 1d
    """  # noqa: D301 - click's own mark is the character
    if since is not None and sequence is not None:
        raise click.UsageError("--since and --sequence exclude each other; give one")
    chosen = options.chosen_format(target, file_format)
    with options.open_to_read(directory, prefix, trust) as queue:
        report = _export(
            queue, target, chosen, since=since, until=until, sequence=sequence, force=force
        )
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    what = f"{grouped(report.messages, 'message')}, {human_bytes(report.payload_bytes)}"
    click.echo(f"{what} exported to {target}, {human_bytes(report.file_bytes)}")
