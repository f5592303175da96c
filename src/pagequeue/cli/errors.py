"""JSON error output: an error object is printed in place of the result."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pagequeue import PageQueueError
from pagequeue.cli.error_text import message_of
from pagequeue.cli.json_output import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def os_error_text(error: OSError) -> str:
    """Return the text of an operating system's error, with its file."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {reason}" if error.filename else reason


def _figures(error: PageQueueError | OSError | click.ClickException) -> dict[str, object]:
    """Return an error as data."""
    path = None
    if isinstance(error, PageQueueError):
        text, path = message_of(error), error.path
    elif isinstance(error, OSError):
        text, path = os_error_text(error), error.filename
    else:
        text = error.format_message()
    return {"type": type(error).__name__, "message": text, "path": path}


def json_errors(function: _Function) -> _Function:
    """Make a command with `--json` print an error as a JSON object on stdout too.

    The exit code and the line on stderr stay the same.
    """

    @functools.wraps(function)
    def command(*arguments: Any, as_json: bool, **options: Any) -> Any:  # noqa: ANN401
        try:
            return function(*arguments, as_json=as_json, **options)
        except BrokenPipeError:
            raise
        except (PageQueueError, OSError, click.ClickException) as error:
            if as_json:
                figures = {"ok": False, "error": _figures(error)}
                print_json(figures)
            raise

    return command  # type: ignore[return-value]
