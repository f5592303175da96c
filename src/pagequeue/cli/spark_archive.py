"""`pagequeue spark archive`: queues into a Parquet table, each message once."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final

import click

from pagequeue.cli import options as shared
from pagequeue.cli import spark as sparks
from pagequeue.cli.json_output import print_json
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pagequeue.util.literals import Trust

FILE_SIZE: Final = "128M"


@contextlib.contextmanager
def _stopped_tidily(stop: threading.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end an archive after its current batch."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = [(number, signal.signal(number, leave)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@click.command()
@click.argument(
    "queues", metavar="QUEUES...", nargs=-1, required=True, type=click.Path(readable=False)
)
@click.option(
    "--to",
    "table",
    required=True,
    metavar="TABLE",
    type=click.Path(readable=False),
    help="The directory of the table; created if necessary.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0),
    callback=shared.finite,
    metavar="SECONDS",
    help="Archive a batch every so many seconds until Ctrl-C. Default: only what is retained now.",
)
@click.option(
    "--consumer",
    metavar="NAME",
    help="Acknowledge under this name what is archived durably; retention waits for it.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    type=click.Path(readable=False),
    help="Where Spark stores its progress.  [default: below the table]",
)
@click.option(
    "--batch",
    "batch_count",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most so many messages per batch.  [default: 1 GiB of them]",
)
@click.option(
    "--file-bytes",
    default=FILE_SIZE,
    show_default=True,
    metavar="SIZE",
    callback=shared.parsed(shared.parse_size),
    help="Compact small files to about this size.",
)
@click.option("--no-compact", is_flag=True, help="Leave small files as they are.")
@sparks.damage_option
@click.option(
    "--on-expired",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="How to handle messages that retention removed before they were archived.",
)
@click.option(
    "--durable-only",
    is_flag=True,
    help="Archive only what is on stable storage: a power cut cannot take it from the queue.",
)
@sparks.session_options
@shared.json_option()
@shared.prefix_option
@shared.trust_option
def command(
    queues: tuple[str, ...],
    table: str,
    prefix: str,
    trust: tuple[Trust, ...],
    every: float | None,
    consumer: str | None,
    checkpoint: str | None,
    batch_count: int | None,
    file_bytes: int,
    on_damage: str,
    on_expired: str,
    master: str | None,
    settings: dict[str, str],
    *,
    no_compact: bool,
    durable_only: bool,
    as_json: bool,
) -> None:
    """Put the messages of QUEUES, directories or globs, into a Parquet table.

    Each message is in the table once, whichever process is killed; the same command resumes an
    earlier one. The table has the columns sequence, timestamp, timestamp_ns and payload, and is
    partitioned by queue, date and hour, UTC.

    \b
    pagequeue spark archive events --to table --consumer archive
    pagequeue spark archive 'ships/*' --to table --every 60
    """  # noqa: D301 - click's own mark is the character
    sparks.check_extra()
    from pagequeue.spark.pipeline import archive  # noqa: PLC0415 - the extra

    options = sparks.source_options(prefix, trust, on_damage) | {"onExpired": on_expired}
    if durable_only:
        options["durableOnly"] = "true"
    if batch_count is not None:
        options["maxRecordsPerTrigger"] = batch_count
    stop = threading.Event()
    with (
        sparks.progress_of("archiving messages") as progress,
        sparks.session(master, settings, fast=every is None) as spark,
        _stopped_tidily(stop) if every is not None else contextlib.nullcontext(),
    ):
        done = archive(
            spark,
            queues,
            table,
            every=every,
            consumer=consumer,
            checkpoint=checkpoint,
            compact=not no_compact,
            file_bytes=file_bytes,
            stop=stop,
            progress=progress,
            **options,
        )
    if as_json:
        print_json({"table": table} | done._asdict())
        return
    size = human_bytes(done.size_bytes)
    click.echo(f"{grouped(done.messages, 'message')} archived to {table}, {size}")
    if done.files_saved:
        click.echo(f"{grouped(done.files_saved, 'file')} less by compaction")
