"""Tables for people: aligned where they fit, field by field on a terminal that is too narrow."""

from __future__ import annotations

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


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()
) -> None:
    """Print rows of text under a line of titles; no text is cut, control characters are escaped.

    On a terminal that is too narrow for the longest line each row is a block of lines instead: the
    first column, then each other one with its title.

    Args:
        columns: their titles.
        rows: each with a text for each column.
        right: titles of columns of numbers.
    """
    console = output_console()
    rows = [list(map(without_controls, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]

    def line(texts: Sequence[str]) -> str:
        cells = []
        for title, text, width in zip(columns, texts, widths, strict=True):
            padding = " " * (width - cell_len(text))
            cells.append(padding + text if title in right else text + padding)
        return GAP.join(cells).rstrip()

    def show(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    lines = list(map(line, rows))
    if not console.is_terminal or max(map(cell_len, lines), default=0) <= console.width:
        show(line(columns), "cyan")
        for text in lines:
            show(text)
        return
    title_width = max(map(cell_len, columns[1:]))
    for row in rows:
        show(row[0], "cyan")
        for title, text in zip(columns[1:], row[1:], strict=True):
            show(f"{GAP}{title}{' ' * (title_width - cell_len(title))}{GAP}{text}")
