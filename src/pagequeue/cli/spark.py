"""`pagequeue spark`: an archive of queues, the way back, figures, and an example; by Spark."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import signal
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from pagequeue.cli import options as shared
from pagequeue.cli.lazy import LazyGroup
from pagequeue.util.console import messages_console
from pagequeue.util.text import printable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from pagequeue.util.literals import Trust

_Function = TypeVar("_Function", bound="Callable[..., Any]")

COMMANDS: Final = {
    "archive": "pagequeue.cli.spark_archive",
    "replay": "pagequeue.cli.spark_replay",
    "profile": "pagequeue.cli.spark_profile",
    "example": "pagequeue.cli.spark_example",
}
QUIET: Final = """\
rootLogger.level = off
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.apache.name = org.apache
logger.apache.level = off
logger.sparkproject.name = org.sparkproject
logger.sparkproject.level = off
"""
"""The command prints an error in one line; Spark's own logging of it is off."""
CONFIGURATION: Final = "spark.driver.extraJavaOptions"


@click.group(cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Queues in Spark: archive to Parquet, replay from there, profile.

    Needs the extra `spark`, and a Java from 17 on or the extra `spark-java`.

    \b
    pagequeue spark archive events --to table --consumer archive
    pagequeue spark profile table --to profile.html
    """  # noqa: D301 - click's own mark is the character


def _setting(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> Any:  # noqa: ANN401
    pairs = [text.partition("=") for text in given]
    for name, sign, _ in pairs:
        if not sign or not name.startswith("spark."):
            raise click.BadParameter(f"{name!r} is not a setting; write spark.NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _refusing_odd_names(function: _Function) -> _Function:
    """Refuse names that are not UTF-8: the JVM would replace them by other names."""

    @functools.wraps(function)
    def command(**options: Any) -> Any:  # noqa: ANN401
        for value in options.values():
            for name in value if isinstance(value, tuple) else (value,):
                if isinstance(name, str) and any("\ud800" <= char <= "\udfff" for char in name):
                    raise shared.CommandError(
                        f"{printable_name(name)} is not UTF-8, and Spark cannot open such a name: "
                        "rename it, or give a symbolic link to it"
                    )
        return function(**options)

    return command  # type: ignore[return-value]


def session_options(function: _Function) -> _Function:
    """Add the options of the Spark session."""
    function = _refusing_odd_names(function)
    function = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_setting,
        help="A setting of Spark; repeatable.",
    )(function)
    return click.option(
        "--master", metavar="URL", help="The cluster, like spark://host:7077; default: this host."
    )(function)


damage_option: Final = click.option(
    "--on-damage",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="How to handle a damaged page.",
)


def source_options(prefix: str, trust: tuple[Trust, ...], on_damage: str) -> dict[str, Any]:
    """Return the options of the Spark source for the queues to read."""
    options = {"prefix": prefix, "onDamage": on_damage}
    if trust:
        options["trust"] = ",".join(trust)
    return options


@contextlib.contextmanager
def session(master: str | None, settings: dict[str, str], *, fast: bool = True) -> Iterator[Any]:
    """Yield a session without logging, stopped at the end of the block unless it ran before.

    Args:
        master: of the cluster.
        settings: more of Spark's.
        fast: start it in fewer seconds, for short work.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the extra

    from pagequeue import spark as ours  # noqa: PLC0415 - the same

    running = SparkSession.getActiveSession()
    if running is not None:
        ours.register(running)
        yield running
        return
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="pagequeue-spark-") as there,
    ):
        warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
        path = os.path.join(there, "log4j2.properties")
        with open(path, "w", encoding="utf-8") as file:
            file.write(QUIET)
        flags = ["-XX:TieredStopAtLevel=1"] if fast and master is None else []
        flags += [f"-Dlog4j2.configurationFile=file:{path}", settings.pop(CONFIGURATION, "")]
        chosen = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            CONFIGURATION: " ".join(flags).strip(),
            **settings,
        }
        for name in ("pyspark", "py4j"):  # the callback reports its own failure
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        handler = signal.getsignal(signal.SIGINT)
        started: SparkSession = ours.session("pagequeue", master=master, settings=chosen)
        with contextlib.suppress(ValueError):  # in another thread than the main one
            # Spark's handler calls the JVM, perhaps in the middle of another call.
            signal.signal(signal.SIGINT, handler)
        try:
            yield started
        finally:
            started.stop()


def check_extra() -> None:
    """Raise MissingExtra where Spark is not installed."""
    importlib.import_module("pagequeue.spark")


@contextlib.contextmanager
def progress_of(doing: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar if stderr is a terminal, also while Spark starts."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages_console(), transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)

        def advanced(done_count: int, total_count: int) -> None:
            bar.update(task, description=doing, completed=done_count, total=total_count)

        yield advanced
