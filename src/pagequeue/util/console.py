"""Where a command prints for people: results on stdout, everything else on stderr."""

from __future__ import annotations

import os

from rich.console import Console


class _OutputConsole(Console):
    """rich's own exits with code 1 when the reader has closed the pipe."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def are_colours_allowed() -> bool:
    """Return whether the user allows colours on a terminal: no NO_COLOR, no TERM=dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def output_console() -> Console:
    """Return the console for results, which is stdout."""
    return _OutputConsole(highlight=False)


def messages_console() -> Console:
    """Return the console for messages to a person, which is stderr."""
    return Console(stderr=True, highlight=False, soft_wrap=True)
