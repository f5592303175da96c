"""Shared by several commands: options, opening a queue, notes on stderr."""

from __future__ import annotations

import contextlib
import math
import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pagequeue import Queue
from pagequeue.cli.error_text import message_of
from pagequeue.cli.framing import Framing
from pagequeue.errors import CodecMismatch, InvalidOption, PageSizeMismatch
from pagequeue.export.files import FORMATS, SUFFIXES, format_of
from pagequeue.system import program
from pagequeue.system.trust import ALL as TRUST
from pagequeue.util.time_text import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.util.literals import CodecName, Trust
_Value = TypeVar("_Value")
_Function = TypeVar("_Function", bound="Callable[..., Any]")
_SIZE: Final = re.compile(r"(\d{1,18})([KMG]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_SIZE_SHIFTS: Final = {"": 0, "K": 10, "M": 20, "G": 30}


class CommandError(click.ClickException):
    """An error that ends a command with exit code 1; its message ends with the remedy.

    Args:
        message: the message.
        figures: what the error as JSON has besides.
    """

    def __init__(self, message: str, **figures: object) -> None:
        super().__init__(message)
        self.figures: dict[str, object] = figures


def parsed(
    parse: Callable[[str], _Value],
) -> Callable[[click.Context, click.Parameter, str | None], _Value | None]:
    """Return an option's callback that gives its text to `parse`; ValueError is wrong usage."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> _Value | None:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def parse_size(text: str) -> int:
    """Return the bytes that a text means: a number, with K, M or G for powers of 1024."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write one like 65536, 64K, 64M or 1G")
    return int(match[1]) << _SIZE_SHIFTS[match[2].upper()]


def parse_timestamp(text: str) -> int:
    """Return the time that a text means, relative to now."""
    return parse_time(text, time.time_ns())


def directory_argument(function: _Function) -> _Function:
    """Add the queue's directory."""
    # An unreadable directory is an error (exit code 1) of the library, not wrong usage.
    kind = click.Path(readable=False, path_type=str)
    return click.argument("directory", metavar="DIR", type=kind)(function)


def finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Reject infinite and NaN."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


def json_option(each: str = "Print one JSON object.") -> Callable[[_Function], _Function]:
    """Add the option that prints data for programs, errors included."""
    return click.option("--json", "as_json", is_flag=True, help=each)


def prefix_option(function: _Function) -> _Function:
    """Add the queue's prefix."""
    return click.option(
        "--prefix", default="queue", show_default=True, help="File name prefix of the queue."
    )(function)


def since_option(function: _Function) -> _Function:
    """Add the time to start at."""
    return click.option(
        "--since",
        metavar="TIME",
        callback=parsed(parse_timestamp),
        help="Start at this time: 10m (ago), 2026-01-31T08:00Z, or nanoseconds since 1970.",
    )(function)


def until_option(function: _Function) -> _Function:
    """Add the time to end before."""
    return click.option(
        "--until",
        metavar="TIME",
        callback=parsed(parse_timestamp),
        help="End before this time, in the same forms.",
    )(function)


def trust_option(function: _Function) -> _Function:
    """Add the option that accepts otherwise refused owners, modes and file systems."""
    return click.option(
        "--trust",
        multiple=True,
        type=click.Choice(sorted(TRUST)),
        help="Accept what is refused by default; repeatable.",
    )(function)


def file_format_option(function: _Function) -> _Function:
    """Add the format of a file of rows."""
    return click.option(
        "--format",
        "file_format",
        type=click.Choice(FORMATS),
        help="The format of the file, whatever its suffix.",
    )(function)


def chosen_format(path: str, file_format: str | None) -> str:
    """Return the format that the option names, else the suffix of the path."""
    try:
        return file_format or format_of(path)
    except InvalidOption as error:
        known = ", ".join(SUFFIXES)
        raise click.UsageError(f"{error.problem}: use {known}, or give --format") from None


def framing_options(function: _Function) -> _Function:
    """Add the options for framing messages in a stream."""
    function = click.option(
        "--length-prefixed",
        is_flag=True,
        help="Precede each message by its length, 4 bytes little-endian; keeps any payload.",
    )(function)
    return click.option(
        "-0", "--null", is_flag=True, help="End each message with a zero byte instead of a newline."
    )(function)


def chosen_framing(*, null: bool, length_prefixed: bool) -> Framing:
    """Return the framing that the options select."""
    if null and length_prefixed:
        raise click.UsageError("--null and --length-prefixed exclude each other; give one of them")
    if length_prefixed:
        return Framing.LENGTH
    return Framing.NULL if null else Framing.NEWLINE


def open_to_read(directory: str, prefix: str, trust: tuple[Trust, ...]) -> Queue:
    """Return the queue, opened without write permission."""
    try:
        return Queue(directory, prefix=prefix, create=False, read_only=True, trust=trust)
    except InvalidOption as error:
        raise click.UsageError(message_of(error)) from None


def open_to_write(
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    create: bool,
    page_bytes: int | None = None,
    codec: CodecName | None = None,
) -> Queue:
    """Return the queue, opened for writing."""
    try:
        return Queue(
            directory,
            prefix=prefix,
            create=create,
            page_bytes=page_bytes,
            trust=trust,
            codec=codec,
        )
    except (PageSizeMismatch, CodecMismatch):
        raise  # depends on the queue, not on the form of the option
    except InvalidOption as error:
        raise click.UsageError(message_of(error)) from None


def check_output() -> None:
    """Raise if stdout is closed, for a command whose only result is its output."""
    if 1 in program.closed:
        raise CommandError("standard output is closed; give the command one, or >/dev/null")


def note(text: str) -> None:
    """Print one line on stderr, unless stderr is closed."""
    with contextlib.suppress(OSError):
        click.echo(f"pagequeue: {text}", err=True)
