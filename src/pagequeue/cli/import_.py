"""`pagequeue import`: the rows of a file into a queue, with their times."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import IO, TYPE_CHECKING, Any

import click

from pagequeue import InvalidOption, Queue
from pagequeue.cli import options as shared
from pagequeue.cli.error_text import message_of
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import page_progress
from pagequeue.export import files as exchanging
from pagequeue.export.row_times import TIME_UNITS, Layout
from pagequeue.export.text import COLUMNS, read_csv, read_jsonl
from pagequeue.producer.producer import Producer
from pagequeue.queue.queue import internals
from pagequeue.schema.schema import Schema
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.export.files import RowGroup
    from pagequeue.export.row_times import TimeUnit
    from pagequeue.util.literals import Trust


class _Source:
    """An open file of rows: the schema of its queue, its row groups, and how far it was read."""

    def __init__(self, file: IO[bytes], path: str, file_format: str, layout: Layout) -> None:
        self._file = file
        self._size_bytes = os.fstat(file.fileno()).st_size
        self.kind = Schema()
        self.pieces: Callable[[Schema], Iterator[RowGroup]]
        if read := {"jsonl": read_jsonl, "csv": read_csv}.get(file_format):
            self.pieces = lambda _: read(file, layout)
            return
        from pagequeue.export.arrow import TableFile  # noqa: PLC0415 - the extra

        table = TableFile(file, path, is_parquet=file_format == "parquet", layout=layout)
        self.kind, self.pieces = table.kind, table.pieces

    @property
    def place(self) -> tuple[int, int]:
        """How many bytes were read, of how many."""
        return self._file.tell(), self._size_bytes


def _columns(
    context: click.Context, option: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    """Return the names that columns have in the file, by their names in an export."""
    names = {}
    for pair in pairs:
        own, separator, name = pair.partition("=")
        if not separator or own not in COLUMNS:
            known = f"{', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}"
            raise click.BadParameter(f"{pair!r} is not OWN=NAME; OWN is {known}", context, option)
        names[own] = name
    return names


def _open_queue(directory: str, kind: Schema, **options: Any) -> Queue:  # noqa: ANN401 - of Queue
    """Return the queue; a new one gets the schema of the file's queue."""
    try:
        try:
            return Queue(directory, create=False, **options)
        except FileNotFoundError:
            codec = None if kind.dtype is not None else kind.codec
            return Queue(directory, dtype=kind.dtype, codec=codec, **options)
    except InvalidOption as error:
        if error.path is not None:
            raise
        raise click.UsageError(message_of(error)) from None


def _raw_producer(queue: Queue) -> Producer:
    """Return a producer for payloads as they are, also where the queue has a codec."""
    if queue.dtype is not None:
        return queue.producer()
    store = internals(queue).readable()
    store.check_appendable()
    return Producer(store)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    # Without waiting: opening a FIFO waits for a writer, and it is refused below.
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise shared.CommandError(f"{path} is not a regular file; give one")
        yield file


@click.command()
@shared.directory_argument
@click.option(
    "--from",
    "source",
    required=True,
    metavar="FILE",
    type=click.Path(readable=False),
    help="The file to read; its suffix names the format: .parquet, .arrow, .jsonl or .csv.",
)
@shared.file_format_option
@click.option(
    "--time-unit",
    type=click.Choice(TIME_UNITS),
    help="The unit of the times in the file: of integers since 1970, or `iso` for text. Default: "
    "ns, and times that are surely in another unit are refused.",
)
@click.option(
    "--column",
    "names",
    multiple=True,
    metavar="OWN=NAME",
    callback=_columns,
    help="Take a column by another name: timestamp=created, payload=body; `time=` ignores the "
    "readable time.",
)
@click.option("--check", is_flag=True, help="Refuse rows whose sequences have a gap.")
@click.option(
    "--skip",
    "skip_count",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Skip the first N rows, to resume an import.",
)
@click.option(
    "--page-bytes",
    callback=shared.parsed(shared.parse_size),
    metavar="SIZE",
    help="The size of each page of a new queue, like 64M.",
)
@click.option("--flush", is_flag=True, help="Exit only after everything is on stable storage.")
@shared.json_option()
@shared.prefix_option
@shared.trust_option
def command(
    directory: str,
    source: str,
    file_format: str | None,
    prefix: str,
    trust: tuple[Trust, ...],
    skip_count: int,
    page_bytes: int | None,
    time_unit: TimeUnit | None,
    names: dict[str, str],
    *,
    check: bool,
    flush: bool,
    as_json: bool,
) -> None:
    """Send the rows of a file to the queue in DIR, with the times that they have.

    The queue is created if necessary. Times must not decrease, nor precede the last message of the
    queue: the import stops at such a row. Each batch is sent as a whole or not at all; rows before
    an error stay in the queue and are counted, so that --skip can resume. Sequences are new.

    \b
    pagequeue import events --from events.parquet
    pagequeue import events --from rows.jsonl --skip 4096
    pagequeue import events --from edited.jsonl --time-unit ms
    """  # noqa: D301 - click's own mark is the character
    chosen = shared.chosen_format(source, file_format)
    with _opened(source) as file:
        rows = _Source(file, source, chosen, Layout(time_unit, names))
        options = {"prefix": prefix, "page_bytes": page_bytes, "trust": trust}
        with (
            _open_queue(directory, rows.kind, **options) as queue,
            _raw_producer(queue) as producer,
        ):
            first_sequence = queue.tail_sequence
            kind = internals(queue).store.schema
            importing = exchanging.Import(
                producer, queue.page_bytes, kind.record_bytes, skip_count=skip_count, check=check
            )
            failed = True
            try:
                with page_progress("importing bytes") as progress:
                    for piece in rows.pieces(kind):
                        importing.send(piece)
                        if progress is not None:
                            progress(*rows.place)
                if flush:
                    producer.flush()
                failed = False
            finally:
                if failed:
                    _note_progress(importing, skip_count)
    if importing.is_rounded:
        shared.note(
            "the times of this file went through a double, which rounds ns by up to 128: where it "
            "has them as text, too, import these with --time-unit iso --column timestamp=NAME"
        )
    report = {
        "messages": importing.messages,
        "payload_bytes": importing.payload_bytes,
        "first_sequence": first_sequence if importing.messages else None,
    }
    if as_json:
        print_json(report)
        return
    size = human_bytes(importing.payload_bytes)
    click.echo(f"{grouped(importing.messages, 'message')}, {size} imported from {source}")


def _note_progress(importing: exchanging.Import, skip_count: int) -> None:
    rest = skip_count + importing.messages
    shared.note(
        f"{grouped(importing.messages, 'message')} imported; to continue after them: --skip {rest}"
    )
