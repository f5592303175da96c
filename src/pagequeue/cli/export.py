"""`pagequeue export`: a queue's messages into a file of another format."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from pagequeue import InvalidOption
from pagequeue import exchange as exchanging
from pagequeue.cli import shared
from pagequeue.cli.problems import page_progress
from pagequeue.exchange_text import CsvWriting, JsonlWriting

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Queue
    from pagequeue.exchange import Writing
    from pagequeue.kind import Kind


def _begin(suffix: str, kind: Kind) -> Callable[[IO[bytes]], Writing]:
    """Return what begins a file of a format."""
    if suffix == ".jsonl":
        return JsonlWriting
    if suffix == ".csv":
        return CsvWriting
    from pagequeue.exchange_arrow import (  # noqa: PLC0415 - the extra
        ArrowWriting,
        ParquetWriting,
        schema_of,
    )

    schema_of(kind)  # what is missing is told before anything is made
    return partial(ParquetWriting if suffix == ".parquet" else ArrowWriting, kind=kind)


def _export(
    queue: Queue, target: str, *, since: int | None, until: int | None, sequence: int | None,
    force: bool,
) -> exchanging.ExportReport:  # fmt: skip
    begin = _begin(exchanging.suffix_of(target), queue._store.kind)  # noqa: SLF001 - its own package
    with (
        queue.batches(since=since, until=until, sequence=sequence) as batches,
        page_progress("exporting messages") as progress,
    ):
        first, tail = batches.sequence, queue.tail_sequence
        return exchanging.export(
            batches, target, begin, force=force, next_sequence=first,
            progress=progress and (lambda done: progress(done - first, tail - first)),
        )  # fmt: skip


@click.command()
@shared.directory_argument
@click.option(
    "--to", "target", required=True, metavar="FILE", type=click.Path(readable=False),
    help="The file to write; .parquet, .arrow, .jsonl or .csv says how.",
)  # fmt: skip
@shared.since_option
@shared.until_option
@click.option("--sequence", type=click.IntRange(min=0), help="Start at this sequence.")
@click.option("--force", is_flag=True, help="Replace what stands there.")
@shared.json_option()
@shared.prefix_option
@shared.trust_option
def command(
    directory: str,
    target: str,
    prefix: str,
    trust: tuple[str, ...],
    *,
    since: int | None,
    until: int | None,
    sequence: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the messages of the queue in DIR to a file, with their times.

    The file has its name only when it is whole and on stable storage. Payloads are bytes in
    .parquet and .arrow (extra `arrow`), where records have a column for each field; in .jsonl and
    .csv they are text where they are UTF-8, else Base64 in another column.

    \b
    pagequeue export events --to events.parquet --since 1d
    """  # noqa: D301 - click's own mark is the character
    if since is not None and sequence is not None:
        raise click.UsageError("--since and --sequence exclude each other; give one")
    try:
        exchanging.suffix_of(target)
    except InvalidOption as error:
        raise click.UsageError(str(error)) from None
    with shared.open_to_read(directory, prefix, trust) as queue:
        report = _export(queue, target, since=since, until=until, sequence=sequence, force=force)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), ensure_ascii=False))
        return
    what = (
        f"{shared.counted(report.messages, 'message')}, {shared.human_bytes(report.payload_bytes)}"
    )
    click.echo(f"{what} exported to {target}, {shared.human_bytes(report.file_bytes)}")
