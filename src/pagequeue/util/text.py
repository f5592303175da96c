"""Counts and ranges in the text of errors and reports."""

from __future__ import annotations

import os


def plural(count: int, noun: str) -> str:
    """Return a noun, in the plural unless there is one of it."""
    if count == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {plural(count, noun)}"


def grouped(count: int, noun: str) -> str:
    """Return a count with its noun and thousands separators: `1,234 messages`."""
    return f"{count:,} {plural(count, noun)}"


def message_range(first: int, end: int) -> str:
    """Return a half-open range of sequences as text: `messages 3 to 7`."""
    if end <= first:
        return "no message"
    return f"message {first}" if end - first == 1 else f"messages {first} to {end - 1}"


def printable_name(path: str) -> str:
    r"""Return a file's name as text that UTF-8 can hold: other bytes as `\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def without_controls(text: str) -> str:
    r"""Return a text on one line: control characters but tabs become escapes, as `\n`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def human_bytes(size_bytes: float) -> str:
    """Return a size in the largest binary unit of which it has at least one: `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"
