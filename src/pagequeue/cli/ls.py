"""`pagequeue ls`: the queues below a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.survey import directory_problem, figures_of, walk
from pagequeue.cli.tables import print_table
from pagequeue.cli.watch import age
from pagequeue.util.text import human_bytes, printable_name

if TYPE_CHECKING:
    from pagequeue import Stats
    from pagequeue.util.literals import Trust

COLUMNS: Final = ("queue", "messages", "on disk", "newest", "consumers", "largest lag", "problem")
RIGHT: Final = frozenset({"messages", "on disk", "newest", "consumers", "largest lag"})


def found_below(
    directory: str, trust: tuple[Trust, ...]
) -> list[tuple[str, str | None, Stats | str]]:
    """Return directory, prefix and figures of each queue, or why it cannot be read.

    At the end the directories below that cannot be listed, without a prefix. Links are not
    followed.

    Raises:
        OSError: the directory itself cannot be listed.
    """
    problems: list[tuple[str, None, str]] = []

    def keep(error: OSError) -> None:
        if error.filename == directory:
            raise error
        if problem := directory_problem(error, directory):
            problems.append((problem[0], None, problem[1]))

    found = [
        (path, prefix, figures_of(path, prefix, trust))
        for path, prefixes in walk(directory, keep)
        for prefix in prefixes
    ]
    return [*found, *problems]


def _name(directory: str, prefix: str | None) -> str:
    path = printable_name(directory)
    return path if prefix in ("queue", None) else f"{path} --prefix {prefix}"


def _largest_lag(found: Stats) -> int | None:
    return max((one.lag for one in found.consumers if one.lag is not None), default=None)


def _row(directory: str, prefix: str | None, found: Stats | str) -> list[str]:
    if isinstance(found, str):
        return [_name(directory, prefix), "-", "-", "-", "-", "-", found]
    lag = _largest_lag(found)
    return [
        _name(directory, prefix),
        f"{found.depth:,}",
        human_bytes(found.file_bytes),
        age(found.newest_age),
        f"{len(found.consumers):,}",
        "-" if lag is None else f"{lag:,}",
        "a sync failed: run `pagequeue repair`" if found.sync_failed else "",
    ]


def _figures(directory: str, prefix: str | None, found: Stats | str) -> dict[str, object]:
    figures: dict[str, object] = {"directory": directory, "prefix": prefix}
    if isinstance(found, str):
        return figures | {"problem": found}
    return figures | {
        "messages": found.depth,
        "file_bytes": found.file_bytes,
        "newest_age": found.newest_age,
        "consumers": len(found.consumers),
        "largest_lag": _largest_lag(found),
        "sync_failed": found.sync_failed,
    }


@click.command()
@click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(readable=False, path_type=str)
)
@options.json_option("Print one JSON object per line.")
@options.trust_option
def command(directory: str, trust: tuple[Trust, ...], *, as_json: bool) -> int:
    """List the queues in DIR and below: messages, disk use, lag of their slowest consumer.

    Those of dead letters and of journals too. The exit code is 1 if one cannot be
    read, or a directory below DIR.

    \b
    pagequeue ls
    pagequeue ls /var/lib/app --json
    """  # noqa: D301 - click's own mark is the character
    found = found_below(directory, trust)
    if as_json:
        for one in found:
            print_json(_figures(*one))
    elif not found:
        options.note(f"no queue below {printable_name(directory)}")
    else:
        rows = [_row(*one) for one in found]
        shown = len(COLUMNS) if any(row[-1] for row in rows) else len(COLUMNS) - 1
        print_table(COLUMNS[:shown], [row[:shown] for row in rows], right=RIGHT)
    return 1 if any(isinstance(stats, str) for _, _, stats in found) else 0
