"""The page files of a queue in a listing of its directory.

Names are taken apart by hand, because a regular expression would be compiled for each prefix, and
that takes longer than the rest of opening a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUFFIXES = {".page": "page", ".idx": "idx"}


def _pages(prefix: str, names: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the number, the kind and the name of each page and index file."""
    start = f"{prefix}-"
    end = len(start) + fmt.PAGE_NUMBER_DIGITS
    for name in names:
        kind = SUFFIXES.get(name[end:])
        digits = name[len(start) : end]
        if kind is not None and name.startswith(start) and digits.isascii() and digits.isdigit():
            yield int(digits), kind, name


def page_numbers(prefix: str, names: list[str], also: str = "page") -> list[int]:
    """Return the numbers of the pages among these file names, sorted; `also`: another suffix."""
    return sorted({number for number, kind, _ in _pages(prefix, names) if kind in {"page", also}})


def retired(prefix: str, names: list[str], head_page: int) -> list[str]:
    """Return the page and index files below the head, oldest first, a page before its index."""
    below = sorted((number, kind == "idx", name) for number, kind, name in _pages(prefix, names))
    return [name for number, _, name in below if fmt.FIRST_PAGE <= number < head_page]
