"""Errors of commands: as text, and as data where `--json` was given."""

from __future__ import annotations

import os

import click

from pagequeue import PageQueueError
from pagequeue.cli.error_text import message_of


def os_error_text(error: OSError) -> str:
    """Return the text of an operating system's error, with its file."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {reason}" if error.filename else reason


def text_of(error: Exception) -> str | None:
    """Return the text of an error that a command may end with; None: the error is a bug."""
    if isinstance(error, PageQueueError):
        return message_of(error)
    if isinstance(error, OSError):
        return os_error_text(error)
    return error.format_message() if isinstance(error, click.ClickException) else None


def figures_of(error: Exception, text: str) -> dict[str, object]:
    """Return the object that is printed in place of the result."""
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    more = getattr(error, "figures", {})
    name = type(error).__name__
    return {"ok": False, "error": {"type": name, "message": text, "path": path, **more}}
