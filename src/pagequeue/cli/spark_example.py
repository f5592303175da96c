"""`pagequeue spark example`: a year of flights from queues to a table to a chart, checked."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli import spark as sparks
from pagequeue.cli.json_output import print_json
from pagequeue.demo import flights as demo_flights
from pagequeue.plot import figures
from pagequeue.system.atomic_file import whole_file
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def _directory(kept: str | None) -> Iterator[str]:
    """Yield the directory given, or a temporary one."""
    if kept is not None:
        os.makedirs(kept, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="pagequeue-flights-") as directory:
        yield directory


@click.command()
@click.option(
    "--to",
    "target",
    default="delays.png",
    show_default=True,
    metavar="FILE",
    type=click.Path(readable=False),
    help="The PNG to write.",
)
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(path_type=str),
    help="Keep queues and table here. Without it they are removed.",
)
@click.option(
    "--limit", "limit_count", type=click.IntRange(min=1), help="Only the first rows of the source."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@sparks.session_options
@options.json_option()
def command(
    target: str,
    directory: str | None,
    limit_count: int | None,
    master: str | None,
    settings: dict[str, str],
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Stream, archive and join the flights that left New York in 2013, and draw their delays.

    Three processes send the flights of one airport each, Spark archives the three queues while they
    do, and joins the table with the weather. Every figure is compared with the same computed from
    the source: ends with exit code 1 if one differs. Needs the extras `spark`, `demo` and `plot`.

    \b
    pagequeue spark example --to delays.png --limit 20000
    """  # noqa: D301 - click's own mark is the character
    sparks.check_extra()
    from pagequeue.demo import spark_flights  # noqa: PLC0415 - the extra

    if not target.lower().endswith(".png"):
        raise click.UsageError(f"--to {target}: the picture ends with .png")
    figures.check()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(whole_file(target, force=force))
        chosen = stack.enter_context(_directory(directory))
        try:
            with (
                sparks.progress_of("archiving flights") as progress,
                sparks.session(master, settings) as spark,
            ):
                found = spark_flights.run(spark, chosen, limit_count=limit_count, progress=progress)
        except demo_flights.SourceError as error:
            raise options.CommandError(str(error)) from None
        spark_flights.draw(file, found.answer)
    by_hour, by_carrier = (spark_flights.delays_by(found.answer, place) for place in (0, 1))
    if as_json:
        rows = [
            {"hour": hour, "carrier": carrier, **dict(zip(spark_flights.FIGURES, row, strict=True))}
            for (hour, carrier), row in sorted(found.answer.items())
        ]
        report = {"path": target, "messages": found.messages, "files": found.files, "rows": rows}
        print_json(report)
        return
    count = grouped(found.messages, "flight")
    files = grouped(found.files, "file")
    click.echo(f"{count} archived in {files}, joined with the weather: equal to the source")
    names = demo_flights.carrier_names()
    for what, delays in (("hour", by_hour), ("carrier", by_carrier)):
        worst = max(delays, key=lambda key: delays[key])
        click.echo(f"latest {what}: {names.get(worst, worst)}, {delays[worst]:.1f} minutes")
    click.echo(f"drawn in {target}")
    if directory is not None:
        table = os.path.join(directory, "table")
        options.note(f"kept in {directory}; to profile it: pagequeue spark profile {table}")
