"""All queues below some directories, sampled again and again: what `pagequeue top` shows.

A sample opens each queue read-only, reads its figures and closes it, so that between samples no
file is open, and the number of queues is not limited by that of open files. Rates come from two
samples. A queue or directory that cannot be read is a row with its problem, never an error; a queue
that has disappeared is one for `GONE_SECONDS`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from pagequeue import PageQueueError, rates
from pagequeue import format as fmt
from pagequeue.cli import options
from pagequeue.cli.error_text import message_of
from pagequeue.cli.errors import os_error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pagequeue import Rates, Stats
    from pagequeue.util.literals import Trust

GONE_SECONDS: Final = 10.0
"""How long a queue that has disappeared is still a row."""


def walk(
    directory: str, on_error: Callable[[OSError], object]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each directory with the prefixes of its queues, in order; links are not followed."""
    for path, directories, files in os.walk(directory, onerror=on_error):
        directories.sort()
        yield path, fmt.queues_in(files)


def directory_problem(error: OSError, top: str) -> tuple[str, str] | None:
    """Return the directory that could not be listed, and why; None if it disappeared meanwhile."""
    path = os.fsdecode(error.filename) if error.filename else top
    if isinstance(error, FileNotFoundError) and path != top:
        return None  # since its parent was listed
    return path, error.strerror or type(error).__name__


def figures_of(directory: str, prefix: str, trust: tuple[Trust, ...]) -> Stats | str:
    """Return the figures of a queue, or why it cannot be read."""
    try:
        with options.open_to_read(directory, prefix, trust) as queue:
            return queue.stats()
    except PageQueueError as error:
        return message_of(error)
    except OSError as error:
        return os_error_text(error)
    except click.ClickException as error:
        return error.format_message()


NEW: Final = "new"
GONE: Final = "gone"


class Place(NamedTuple):
    """Where a queue is; a directory that cannot be listed has no prefix."""

    directory: str
    prefix: str | None


@dataclasses.dataclass(frozen=True)
class Row:
    """A queue in one sample.

    Attributes:
        place: where it is.
        stats: its figures; None if it cannot be read.
        rates: since the sample before; None if it was not read then, or was created since.
        state: what is unusual: why it cannot be read, `new`, `gone`; else empty.
    """

    place: Place
    stats: Stats | None = None
    rates: Rates | None = None
    state: str = ""


class Survey:
    """Samples of all queues below some directories.

    Args:
        directories: where to search; a queue below two of them is one row.
        trust: what to accept, as `Queue` takes it.
    """

    def __init__(self, directories: Sequence[str], trust: tuple[Trust, ...]) -> None:
        self._directories = directories
        self._trust = trust
        self._before: dict[Place, Row] | None = None  # the sample before
        self._gone: dict[Place, float] = {}  # and when it was found to be
        self._rows: list[Row] = []

    @property
    def rows(self) -> list[Row]:
        """The last whole sample."""
        return self._rows

    def sample(self) -> Iterator[None]:
        """Take a sample; yields between any two directories and queues, for keys and signals."""
        found: dict[Place, Row] = {}
        seen: set[tuple[str, str | None]] = set()
        for directory in self._directories:
            problems: list[OSError] = []
            for path, prefixes in walk(directory, problems.append):
                yield
                for prefix in prefixes:
                    key = os.path.realpath(path), prefix
                    if key not in seen:
                        seen.add(key)
                        place = Place(path, prefix)
                        found[place] = self._row(place, prefix)
                    yield
            for error in problems:
                if problem := directory_problem(error, directory):
                    place = Place(problem[0], None)
                    found[place] = Row(place, state=problem[1])
        self._keep_gone(found)
        self._before = found
        self._rows = list(found.values())

    def _row(self, place: Place, prefix: str) -> Row:
        """Return the current row of a queue."""
        before = None if self._before is None else self._before.get(place)
        now = figures_of(place.directory, prefix, self._trust)
        if isinstance(now, str):
            return Row(place, state=now)
        if now.sync_failed:
            state = "a sync failed: run `pagequeue repair`"
        else:
            damaged = [one.name for one in now.consumers if one.problem is not None]
            state = f"damaged: {', '.join(damaged)}" if damaged else ""
        if before is None or before.stats is None or now.tail_sequence < before.stats.tail_sequence:
            # One that could not be read before is not new.
            is_new = before is None or before.stats is not None or before.state == GONE
            return Row(place, now, state=state or (NEW if is_new and self._before else ""))
        return Row(place, now, rates(before.stats, now), state)

    def _keep_gone(self, found: dict[Place, Row]) -> None:
        """Add the queues that were there before and are not found any more."""
        now = time.monotonic()
        for place in self._before or ():
            if place not in found and place.prefix is not None:
                self._gone.setdefault(place, now)
        self._gone = {
            place: since
            for place, since in self._gone.items()
            if place not in found and now - since < GONE_SECONDS
        }
        for place in self._gone:
            found[place] = Row(place, state=GONE)
