"""Tables for people: aligned where they fit, field by field on a terminal that is too narrow."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.text import Text

from pagequeue.util.console import output_console
from pagequeue.util.text import without_controls

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP: Final = "  "
CELL_CHARACTERS: Final = 60
"""Of a text that `shortened` cuts."""


def shortened(text: str) -> str:
    """Return what a cell of a table shows of a payload, value or reason of any length."""
    if len(text) <= CELL_CHARACTERS:
        return text
    return f"{text[: CELL_CHARACTERS - 3]}..."


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None,
) -> list[Text]:
    """Return rows of text under a line of titles; no text is cut, control characters are escaped.

    Where the longest line does not fit each row is a block of lines instead: the first column, then
    each other one with its title, a long text in lines that end between words.

    Args:
        columns: their titles.
        rows: each with a text for each column.
        right: titles of columns of numbers.
        width: cells of a line; None: as many as it takes.
    """
    rows = [list(map(without_controls, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]

    def line(texts: Sequence[str], style: str = "") -> Text:
        cells = []
        for title, text, cells_wide in zip(columns, texts, widths, strict=True):
            padding = " " * (cells_wide - cell_len(text))
            cells.append(padding + text if title in right else text + padding)
        return Text(GAP.join(cells).rstrip(), style, no_wrap=True, overflow="ignore")

    lines = list(map(line, rows))
    if width is None or max((one.cell_len for one in lines), default=0) <= width:
        return [line(columns, "cyan"), *lines]
    blocks = []
    title_width = max(map(cell_len, columns[1:]))
    for row in rows:
        blocks.append(Text(row[0], "cyan"))
        for title, text in zip(columns[1:], row[1:], strict=True):
            padding = " " * (title_width - cell_len(title))
            blocks += map(Text, wrapped(f"{GAP}{title}{padding}{GAP}", text, width))
    return blocks


def wrapped(begin: str, text: str, width: int) -> list[str]:
    """Return a text in lines that end between words, each below the first word."""
    indent = " " * cell_len(begin)
    if cell_len(begin + text) <= width or len(indent) > width // 2:
        return [begin + text]
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()
) -> None:
    """Print a table as `table_lines` has it for the terminal; its arguments are the same."""
    console = output_console()
    width = console.width if console.is_terminal else None
    for text in table_lines(columns, rows, right=right, width=width):
        console.print(text, soft_wrap=True)
