"""`pagequeue profile`: figures of the queues below directories of this host."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from pagequeue import InvalidOption
from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.problem_text import page_progress
from pagequeue.cli.survey import directory_problem, walk
from pagequeue.cli.tables import print_table
from pagequeue.plot import figures as plotting
from pagequeue.plot import interactive
from pagequeue.profile import report
from pagequeue.profile.queues import profile_queues
from pagequeue.system.atomic_file import whole_file
from pagequeue.util.text import printable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.profile.figures import Profile
    from pagequeue.util.literals import Trust

target_option: Final = click.option(
    "--to",
    "target",
    metavar="FILE",
    type=click.Path(readable=False),
    help="Draw a page of plots too: .png, or .html with the table.",
)
force_option: Final = click.option("--force", is_flag=True, help="Replace an existing file.")


def chosen_suffix(target: str | None) -> str:
    """Return how a page is written; empty for none.

    Raises:
        UsageError: there is no such format.
        MissingExtra: what draws it is not installed.
    """
    if target is None:
        return ""
    try:
        suffix = report.suffix_of(target)
    except InvalidOption as error:
        raise click.UsageError(str(error)) from None
    (plotting if suffix == ".png" else interactive).check()
    return suffix


@contextlib.contextmanager
def page_of_plots(
    target: str | None, suffix: str, title: str, *, force: bool
) -> Iterator[Callable[[Profile], None]]:
    """Open a page before the work and yield what draws it; it has its name when it is whole."""
    if target is None:
        yield lambda _: None
        return
    with whole_file(target, force=force) as file:
        yield lambda found: report.write(file, suffix, title, found)


def show(found: Profile, target: str | None, *, as_json: bool) -> None:
    """Print figures, and where they were drawn."""
    if as_json:
        queues = [report.figures(one, with_times=False) for one in found.queues]
        figures = {"queues": queues, "total": report.figures(found.total)}
        print_json(figures | ({"path": target} if target else {}))
        return
    _print_table(found)
    if target is not None:
        click.echo(f"drawn in {target}")


def _print_table(found: Profile) -> None:
    """Print a line for each queue, and one for all together if there are several."""
    shown = found.queues if len(found.queues) == 1 else [*found.queues, found.total]
    titles = [name.replace("_", " ") for name in report.COLUMNS]
    print_table(titles, [report.row(one) for one in shown], right=frozenset(titles[1:]))


def _places(directories: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return directory and prefix of each queue by the name that it is shown with.

    Raises:
        ClickException: there is none, or a directory cannot be listed.
    """

    def fail(error: OSError) -> None:
        if problem := directory_problem(error, top):
            raise click.ClickException(f"{printable_name(problem[0])}: {problem[1]}")

    found: dict[str, tuple[str, str]] = {}
    for top in directories:
        here = {
            os.path.abspath(path) + ("" if prefix == "queue" else f"#{prefix}"): (path, prefix)
            for path, prefixes in walk(top, fail)
            for prefix in prefixes
        }
        found |= here
        if not here:
            raise click.ClickException(f"{printable_name(top)}: no queue here or below")
    return found


@click.command()
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(readable=False)
)
@target_option
@options.since_option
@options.until_option
@force_option
@options.json_option()
@options.trust_option
def command(
    directories: tuple[str, ...],
    target: str | None,
    trust: tuple[Trust, ...],
    *,
    since: int | None,
    until: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show rates, payload sizes, gaps and lags of the queues in DIR... and below.

    Each message is read and checked once. A gap is the time from a message to the next one of its
    queue; the lag is that of the slowest consumer or group. `pagequeue spark profile` does the same
    with many processors, and for archives.

    \b
    pagequeue profile events
    pagequeue profile /var/lib/app --since 1h --to profile.html
    """  # noqa: D301 - click's own mark is the character
    suffix = chosen_suffix(target)
    places = _places(directories)
    queues = {
        name: partial(options.open_to_read, directory, prefix, trust)
        for name, (directory, prefix) in places.items()
    }
    with page_of_plots(target, suffix, ", ".join(directories), force=force) as draw:
        with page_progress("counting messages") as progress:
            found = profile_queues(queues, since=since, until=until, progress=progress)
        draw(found)
    show(found, target, as_json=as_json)
