"""`pagequeue demo`: a year of flights through one queue, by five processes, checked to the last."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, NoReturn

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.demo import flights

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def _directory(kept: str | None) -> Iterator[str]:
    """Yield the queue's directory: the one given, or a temporary one."""
    if kept is not None:
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="pagequeue-demo-") as directory:
        yield directory


@contextlib.contextmanager
def _terminated_tidily() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that children and the temporary directory are removed."""

    def leave(number: int, frame: object) -> NoReturn:
        del frame
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@click.option(
    "--directory",
    type=click.Path(path_type=str),
    help="Keep the queue and the event log here. Without it they are removed.",
)
@click.option(
    "--limit", "limit_count", type=click.IntRange(min=1), help="Only the first rows of the source."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Spread the year over so many seconds; otherwise as fast as possible.",
)
@options.json_option()
def command(
    directory: str | None, limit_count: int | None, seconds: float | None, *, as_json: bool
) -> int:
    """Replay the flights that left New York in 2013, and check every one.

    Three producer processes, one for each airport, send their flights in event order into one
    queue. Two consumer processes follow live: one keeps delay statistics by carrier, one writes an
    event log. Then half of it is replayed by time, and all of it compared with the source. Any
    flight that is missing, doubled, changed or out of order is printed; the exit code is then 1.

    \b
    pagequeue demo
    pagequeue demo --limit 20000
    """  # noqa: D301 - click's own mark is the character
    # Imported here: the other commands, and this one's help, need not wait for it.
    from pagequeue.demo import run, view  # noqa: PLC0415

    try:
        source = flights.source_path()
        with (
            _terminated_tidily(),
            _directory(directory) as chosen,
            view.bars() as display,
        ):
            report = run.run(
                chosen, source, limit_count=limit_count, seconds=seconds, display=display
            )
    except flights.SourceError as error:
        raise options.CommandError(str(error)) from None
    except run.DemoError as error:
        for fault in error.faults:
            options.note(fault)
        raise options.CommandError(
            "the demo failed; the lines above name each fault", faults=error.faults
        ) from None
    if as_json:
        print_json(report.figures())
        return 0
    view.show(report, flights.carrier_names())
    if directory is not None:
        options.note(f"kept in {directory}; print it: pagequeue receive {directory} --last 5")
    return 0
