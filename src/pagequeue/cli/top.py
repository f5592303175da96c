"""`pagequeue top`: all queues below some directories, live."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.screen import Ended, Screen, cell
from pagequeue.cli.survey import NEW, Row, Survey
from pagequeue.cli.tables import print_table, wrapped
from pagequeue.cli.watch import age
from pagequeue.util.console import output_console
from pagequeue.util.text import grouped, human_bytes, printable_name, without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pagequeue.util.literals import Trust

Value = float | None


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        key: that sorts by it.
        width: in cells, on a screen.
        rank: the columns with the highest rank are left out first where not all fit.
        value: of a row with figures; None: there is none.
        text: of a value, in full.
        short: of a value, in `width` cells.
        what: it is, for the help.
    """

    key: str
    width: int
    rank: int
    value: Callable[[Row], Value]
    text: Callable[[float], str]
    short: Callable[[float], str]
    what: str


def _short(number: float) -> str:
    """Return a number in at most 5 cells: 9,999, 12.3k, 4.1M."""
    if round(number) < 10_000:
        return f"{number:,.0f}"
    for unit in "kMGT":
        number /= 1000
        if number < 999.5:
            return f"{number:.0f}{unit}" if number >= 99.95 else f"{number:.1f}{unit}"
    return f"{number:.0f}T"


def _short_bytes(size_bytes: float) -> str:
    """Return a size in at most 8 cells: 1023 KiB, 12.3 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1023.5:
            digits = 0 if unit == "B" or size_bytes >= 99.95 else 1
            return f"{size_bytes:.{digits}f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.0f} TiB"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _sent(row: Row) -> Value:
    return None if row.rates is None else row.rates.sent


def _acknowledged(row: Row) -> Value:
    if row.rates is None or not row.rates.acknowledged:
        return None
    return sum(max(0.0, rate) for rate in row.rates.acknowledged.values())


def _lag(row: Row) -> Value:
    consumers = row.stats.consumers if row.stats else ()
    return max((one.lag for one in consumers if one.lag is not None), default=None)


def _of_groups(name: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        consumers = row.stats.consumers if row.stats else ()
        found = [getattr(one.group, name) for one in consumers if one.group is not None]
        return sum(found) if found else None

    return value


def _age(row: Row) -> Value:
    """Return the age of the oldest message that is not done."""
    if row.stats is None:
        return None
    if not row.stats.consumers:
        return row.stats.oldest_age
    ages = (one.oldest_age for one in row.stats.consumers)
    return max((one for one in ages if one is not None), default=None)


def _of_stats(name: str) -> Callable[[Row], Value]:
    return lambda row: None if row.stats is None else getattr(row.stats, name)


COLUMNS: Final = {
    "messages": Column("m", 8, 3, _of_stats("depth"), _whole, _short, "retained messages"),
    "in/s": Column("i", 5, 0, _sent, _whole, _short, "messages sent per second"),
    "out/s": Column(
        "o",
        5,
        1,
        _acknowledged,
        _whole,
        _short,
        "messages acknowledged per second, by all consumers and groups together",
    ),
    "lag": Column(
        "l",
        5,
        0,
        _lag,
        _whole,
        _short,
        "messages that the slowest consumer or group has not acknowledged",
    ),
    "ready": Column(
        "r", 5, 5, _of_groups("ready"), _whole, _short, "messages that groups can claim now"
    ),
    "claimed": Column(
        "c", 7, 6, _of_groups("claimed"), _whole, _short, "messages that workers of groups have"
    ),
    "dead": Column("d", 5, 4, _of_groups("dead_letters"), _whole, _short, "dead letters of groups"),
    "disk": Column("u", 8, 2, _of_stats("file_bytes"), human_bytes, _short_bytes, "disk in use"),
    "age": Column(
        "a",
        8,
        2,
        _age,
        age,
        age,
        "of the oldest message that a consumer or group has not acknowledged; without any, of the "
        "oldest message",
    ),
}
NAME: Final = "queue"
NAME_KEY: Final = "n"
STATE: Final = "state"
NAME_WIDTH_MIN: Final = 22
STATE_WIDTH: Final = 12
"""Kept free after the columns on a wide screen; else a state takes the place of the figures."""
WIDE: Final = 104
GAP: Final = " "
SORTS: Final = (NAME, *COLUMNS)
HEAD_LINES: Final = 2
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1}


def _name(row: Row) -> str:
    directory, prefix = row.place
    path = printable_name(directory)
    name = path if prefix in ("queue", None) else f"{path} --prefix {prefix}"
    return without_controls(name)


def ordered(rows: Sequence[Row], sort: str, *, reverse: bool) -> list[Row]:
    """Return the rows by a column: the largest first, before them those that cannot be read."""
    rows = sorted(rows, key=lambda row: (row.place.directory, row.place.prefix or ""))
    if sort != NAME:
        value = COLUMNS[sort].value

        def key(row: Row) -> tuple[bool, float]:
            found = value(row)
            return row.stats is None, -1.0 if found is None else found

        rows.sort(key=key, reverse=True)
    return rows[::-1] if reverse else rows


# --- once -----------------------------------------------------------------------------------------


def _print(rows: Sequence[Row]) -> None:
    table = []
    for row in rows:
        values = [None if row.stats is None else column.value(row) for column in COLUMNS.values()]
        texts = [
            "-" if value is None else column.text(value)
            for column, value in zip(COLUMNS.values(), values, strict=True)
        ]
        table.append([_name(row), *texts, row.state])
    titles = [NAME, *COLUMNS, STATE]
    if not any(row.state for row in rows):
        titles.pop()
        table = [texts[:-1] for texts in table]
    print_table(titles, table, right=frozenset(COLUMNS))


def _figures(row: Row) -> dict[str, object]:
    directory, prefix = row.place
    figures: dict[str, object] = {"directory": directory, "prefix": prefix}
    if row.stats is None:
        return figures | {"problem": row.state}
    names = (
        "messages",
        "sent_per_second",
        "acknowledged_per_second",
        "largest_lag",
        "ready",
        "claimed",
        "dead_letters",
        "file_bytes",
        "oldest_age",
    )
    values = (column.value(row) for column in COLUMNS.values())
    return figures | dict(zip(names, values, strict=True)) | {"state": row.state or None}


def _once(survey: Survey, interval: float, sort: str, *, reverse: bool, as_json: bool) -> int:
    """Print one table, with rates over an interval."""
    for _ in survey.sample():
        pass
    if survey.rows:
        time.sleep(interval)
        for _ in survey.sample():
            pass
    rows = ordered(survey.rows, sort, reverse=reverse)
    if as_json:
        for row in rows:
            print_json(_figures(row))
    elif rows:
        _print(rows)
    else:
        options.note("no queue found")
    return 1 if any(row.stats is None for row in rows) else 0


# --- live -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class View:
    """What is shown of the rows.

    Attributes:
        sort: the column.
        reverse: whether the smallest is first.
        first: how many rows are scrolled out at the top.
        helps: whether the help is shown instead.
    """

    sort: str
    reverse: bool
    first: int = 0
    helps: bool = False

    def lines(self, rows: Sequence[Row], width: int, height: int, interval: float) -> list[Text]:
        """Return the lines of a screen."""
        if self.helps:
            return self._help(width)
        rows = ordered(rows, self.sort, reverse=self.reverse)
        room = max(1, height - HEAD_LINES)
        self.first = max(0, min(self.first, len(rows) - room))
        shown = self._columns(width)
        spare = STATE_WIDTH + 1 if width >= WIDE else 0
        taken = sum(COLUMNS[name].width + len(GAP) for name in shown) + spare
        name_width = max(1, width - taken)
        if spare:
            longest = max((Text(_name(row)).cell_len for row in rows), default=0)
            name_width = min(name_width, max(NAME_WIDTH_MIN, longest))
        titles = [self._title(NAME, name_width, right=False)]
        titles += [self._title(name, COLUMNS[name].width, right=True) for name in shown]
        header = Text(GAP).join(titles)
        body = [
            self._row(row, shown, name_width, has_room=spare > 0)
            for row in rows[self.first : self.first + room]
        ]
        return [self._summary(rows, interval, room), header, *body]

    def _columns(self, width: int) -> list[str]:
        """Return the columns that fit, that of the order always among them."""
        shown = list(COLUMNS)
        left = width - NAME_WIDTH_MIN - (STATE_WIDTH + 1 if width >= WIDE else 0)
        while len(shown) > 1 and sum(COLUMNS[name].width + len(GAP) for name in shown) > left:
            others = (name for name in shown if name != self.sort)
            shown.remove(max(others, key=lambda name: COLUMNS[name].rank))
        return shown

    def _title(self, name: str, width: int, *, right: bool) -> Text:
        style = "bold cyan underline" if name == self.sort else "cyan"
        return Text(cell(name, width, right=right), style)

    @staticmethod
    def _row(row: Row, shown: Sequence[str], name_width: int, *, has_room: bool) -> Text:
        text = Text(cell(_name(row), name_width))
        state = without_controls(row.state)
        if row.stats is None or (state not in ("", NEW) and not has_room):
            # The begin of the path is in the row's name.
            state = state.removeprefix(without_controls(f"{printable_name(row.place.directory)}/"))
            return text.append(GAP).append(state, "red")
        for name in shown:
            column = COLUMNS[name]
            value = column.value(row)
            number = "-" if value is None else column.short(value)
            text.append(GAP + cell(number, column.width, right=True))
        if state and has_room:
            text.append(GAP).append(state, "green" if state == NEW else "red")
        return text

    def _summary(self, rows: Sequence[Row], interval: float, room: int) -> Text:
        unreadable = sum(row.stats is None for row in rows)
        words = [
            grouped(len(rows), "queue"),
            *([f"{unreadable:,} unreadable or gone"] if unreadable else []),
            *([f"from {self.first + 1:,}"] if len(rows) > room else []),
            f"by {self.sort}{', reversed' if self.reverse else ''}",
            f"every {interval:g} s",
        ]
        return Text("? help  q quit", "cyan").append("  " + ", ".join(words), "default")

    def _help(self, width: int) -> list[Text]:
        keys = [
            ("q", "quit"),
            ("?", "this help; any key leaves it"),
            ("R", "reverse the order"),
            ("space", "sample now"),
            ("↑ ↓ j k", "scroll, also by page up and page down"),
            (NAME_KEY, f"sort by {NAME}"),
        ]
        keys += [(column.key, f"{name}: {column.what}") for name, column in COLUMNS.items()]
        lines = [Text("pagequeue top", "bold")]
        for key, what in keys:
            lines += map(Text, wrapped(f"  {key:8}", what, width))
        return lines

    def press(self, key: str, height: int) -> bool:
        """Change the view by a key; return whether a sample is to be taken now."""
        sorts = {NAME_KEY: NAME, **{column.key: name for name, column in COLUMNS.items()}}
        page = max(1, height - HEAD_LINES)
        if key in ("q", "Q"):
            raise Ended(0)
        if key == "?" or self.helps:  # any key leaves the help
            self.helps = not self.helps
        elif key in sorts:
            self.sort, self.first = sorts[key], 0
        elif key == "R":
            self.reverse = not self.reverse
        elif key in _MOVES:
            self.first = max(0, self.first + _MOVES[key])
        elif key in ("page up", "page down"):
            self.first = max(0, self.first + (page if key == "page down" else -page))
        elif key in ("home", "end"):
            self.first = 0 if key == "home" else sys.maxsize
        return key == " "


def _live(survey: Survey, interval: float, view: View) -> int:
    """Show samples until the user or a signal ends it; return the exit code."""
    with Screen() as screen:

        def show() -> None:
            screen.show(view.lines(survey.rows, *screen.size, interval))

        def wait(seconds: float) -> bool:
            """Handle keys for so long; return whether one asks for a sample."""
            deadline = time.monotonic() + seconds
            while True:
                key = screen.key(max(0.0, deadline - time.monotonic()))
                asked = key is not None and view.press(key, screen.size[1])
                if key is None and time.monotonic() >= deadline:
                    return False
                show()  # the view or the size has changed
                if asked:
                    return True

        try:
            screen.show([Text("reading ...")])
            while True:
                for _ in survey.sample():
                    wait(0)
                show()
                wait(interval)
        except Ended as ended:
            return ended.exit_code


@click.command()
@click.argument("directories", metavar="[DIR...]", nargs=-1, type=click.Path(path_type=str))
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="lag",
    show_default=True,
    help="The column to sort by, the largest first.",
)
@click.option("--reverse", is_flag=True, help="The smallest first.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    callback=options.finite,
    default=2.0,
    show_default=True,
    help="Seconds between samples.",
)
@click.option("--once", is_flag=True, help="Print one table, with rates over an interval.")
@options.json_option("Print one JSON object per line, once.")
@options.trust_option
def command(
    directories: tuple[str, ...],
    sort: str,
    interval: float,
    trust: tuple[Trust, ...],
    *,
    reverse: bool,
    once: bool,
    as_json: bool,
) -> int:
    """Show all queues in DIR... and below, live: rates, lag, groups, disk, age.

    Press ? for the keys, q to quit. Queues that appear, disappear or cannot be read are shown as
    such. Into a pipe it prints one table and ends; the exit code is then 1 if a queue cannot be
    read. Opens queues read-only, and none between samples.

    \b
    pagequeue top
    pagequeue top /var/lib/app /srv/jobs --sort in/s
    pagequeue top --once --json --interval 5
    """  # noqa: D301 - click's own mark is the character
    survey = Survey(directories or (".",), trust)
    console = output_console()
    if once or as_json or not console.is_terminal or console.is_dumb_terminal:
        return _once(survey, interval, sort, reverse=reverse, as_json=as_json)
    return _live(survey, interval, View(sort, reverse))
