"""The page files of a queue in a listing of its directory."""

from __future__ import annotations

from pagequeue import format as fmt


def page_numbers(prefix: str, names: list[str], also: str = "page") -> list[int]:
    """Return the numbers of the pages among these file names, sorted; `also`: another suffix."""
    pattern = fmt.page_name_pattern(prefix)
    matches = [match for match in map(pattern.fullmatch, names) if match]
    return sorted({int(match[1]) for match in matches if match[2] in {"page", also}})


def retired(prefix: str, names: list[str], head_page: int) -> list[str]:
    """Return the page and index files below the head, oldest first, a page before its index."""
    pattern = fmt.page_name_pattern(prefix)
    found = [match for match in map(pattern.fullmatch, names) if match]
    below = sorted((int(match[1]), match[2] == "idx", match[0]) for match in found)
    return [name for number, _, name in below if fmt.FIRST_PAGE <= number < head_page]
