"""Counts and ranges, as errors and reports say them."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return a noun, in the plural unless there is one of it."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {plural(count, noun)}"


def message_range(first: int, end: int) -> str:
    """Return how messages from one sequence up to another, which is not among them, are called."""
    if end <= first:
        return "no message"
    return f"message {first}" if end - first == 1 else f"messages {first} to {end - 1}"
