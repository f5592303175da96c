"""Counts and ranges, as errors and reports say them."""

from __future__ import annotations

import os


def plural(count: int, noun: str) -> str:
    """Return a noun, in the plural unless there is one of it."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {plural(count, noun)}"


def grouped(count: int, noun: str) -> str:
    """Return a count with its noun, its thousands apart, for a person: `1,234 messages`."""
    return f"{count:,} {plural(count, noun)}"


def message_range(first: int, end: int) -> str:
    """Return how messages from one sequence up to another, which is not among them, are called."""
    if end <= first:
        return "no message"
    return f"message {first}" if end - first == 1 else f"messages {first} to {end - 1}"


def printable_name(path: str) -> str:
    r"""Return a file's name as text that UTF-8 can hold: other bytes as `\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def human_bytes(size_bytes: float) -> str:
    """Return a size in the largest binary unit that leaves something before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"
