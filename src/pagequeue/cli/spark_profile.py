"""`pagequeue spark profile`: figures of queues, or of an archive of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from pagequeue import InvalidOption
from pagequeue.cli import options as shared
from pagequeue.cli import spark as sparks
from pagequeue.cli.json_output import print_json
from pagequeue.plot import figures as plotting
from pagequeue.system.atomic_file import whole_file
from pagequeue.util.console import output_console

if TYPE_CHECKING:
    from pagequeue.spark.pipeline import Profile
    from pagequeue.util.literals import Trust


def _show(profile: Profile) -> None:
    """Print a table, a line for each queue."""
    from pagequeue.spark.pipeline.report import COLUMNS, row  # noqa: PLC0415 - the extra

    table = Table(box=None, pad_edge=False, header_style="cyan")
    for name in COLUMNS:
        justify: Any = "left" if name == "queue" else "right"
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for one in profile.queues:
        table.add_row(*row(one))
    if len(profile.queues) != 1:
        table.add_section()
        table.add_row(*row(profile.total), style="bold")
    console = output_console()
    if not console.is_terminal:
        console.width = 200  # a file has no edge
    console.print(table)


@click.command()
@click.argument(
    "source", metavar="QUEUES...|TABLE", nargs=-1, required=True, type=click.Path(readable=False)
)
@click.option(
    "--to", "target", metavar="FILE", type=click.Path(readable=False),
    help="Draw a page of plots too: .png, or .html with the table.",
)  # fmt: skip
@shared.since_option
@shared.until_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@sparks.damage_option
@sparks.session_options
@shared.json_option()
@shared.prefix_option
@shared.trust_option
def command(
    source: tuple[str, ...],
    target: str | None,
    prefix: str,
    trust: tuple[Trust, ...],
    on_damage: str,
    master: str | None,
    settings: dict[str, str],
    *,
    since: int | None,
    until: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show rates, sizes, gaps, lags, and what is missing, late or there twice.

    Of QUEUES, directories or globs, or of the TABLE that `archive` made. A gap is the time from a
    message to the next one of its queue; a late message is older than one with a lower sequence;
    the lag of a table is the number of messages that its queue has more, if that is on this host.

    \b
    pagequeue spark profile table --to profile.html
    pagequeue spark profile events orders --json
    """  # noqa: D301 - click's own mark is the character
    sparks.check_extra()
    from pagequeue.spark.pipeline import profile, report, table_layout  # noqa: PLC0415 - the extra

    suffix = ""
    if target is not None:
        try:
            suffix = report.suffix_of(target)
        except InvalidOption as error:
            raise click.UsageError(str(error)) from None
        plotting.check()
    options: dict[str, Any] = {}
    if not (len(source) == 1 and table_layout.is_table(source[0])):
        options = sparks.source_options(prefix, trust, on_damage)
    with contextlib.ExitStack() as stack:
        file = None
        if target is not None:
            file = stack.enter_context(whole_file(target, force=force))
        with (
            sparks.progress_of("reading, in tasks") as progress,
            sparks.session(master, settings) as spark,
        ):
            found = profile(spark, source, since=since, until=until, progress=progress, **options)
        if file is not None:
            report.write(file, suffix, ", ".join(source), found)
    if as_json:
        queues = [report.figures(one, with_times=False) for one in found.queues]
        figures = {"queues": queues, "total": report.figures(found.total)}
        print_json(figures | ({"path": target} if target else {}))
        return
    _show(found)
    if target is not None:
        click.echo(f"drawn in {target}")
