"""The commands by name, and how each of them ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
import rich  # noqa: F401 - every command needs it, so its absence is told here

from pagequeue import PageQueueError
from pagequeue.cli.error_text import message_of
from pagequeue.cli.errors import os_error_text
from pagequeue.cli.lazy import LazyGroup
from pagequeue.system import program

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR: Final = 1
EXIT_CLOSED_PIPE: Final = 141  # 128 + SIGPIPE

COMMANDS: Final = {
    "send": "pagequeue.cli.send",
    "receive": "pagequeue.cli.receive",
    "info": "pagequeue.cli.info",
    "consumers": "pagequeue.cli.consumers",
    "export": "pagequeue.cli.export",
    "import": "pagequeue.cli.import_",
    "plot": "pagequeue.cli.plot",
    "compress": "pagequeue.cli.compress",
    "ship": "pagequeue.cli.ship",
    "metrics": "pagequeue.cli.metrics",
    "verify": "pagequeue.cli.verify",
    "repair": "pagequeue.cli.repair",
    "salvage": "pagequeue.cli.salvage",
    "spark": "pagequeue.cli.spark",
    "demo": "pagequeue.cli.demo",
}
"""Each command's module, in the order of the help; the module has a `command`."""


class _ClosedPipeError(Exception):
    """The reader of stdout has gone. No OSError: click would answer that one itself."""


class _InterruptedError(Exception):
    """Ctrl-C. Click would answer KeyboardInterrupt with an empty line, where nobody looks too."""


class _Commands(LazyGroup):
    """All commands; how one ends is told by `run`."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ClosedPipeError from error
        except KeyboardInterrupt as error:
            raise _InterruptedError from error


@click.group(
    cls=_Commands, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="pagequeue", prog_name="pagequeue")
def application() -> None:
    """Send to, receive from and look after persistent memory-mapped queues."""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(format="pagequeue: %(message)s", level=logging.WARNING)
    logging.raiseExceptions = False  # a log line that nobody can hear is no error
    program.raise_on_interrupt()
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        code = program.EXIT_INTERRUPTED
    return _close_output(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = application.main(
            args=None if arguments is None else list(arguments),
            prog_name="pagequeue",
            standalone_mode=False,
        )
    except (_InterruptedError, click.Abort):
        return program.EXIT_INTERRUPTED
    except _ClosedPipeError:
        return EXIT_CLOSED_PIPE
    except Exception as error:
        if program.was_interrupted():  # whatever the interruption became on its way
            return program.EXIT_INTERRUPTED
        code = _told(error)
        if code is None:
            raise
        return code
    return result if isinstance(result, int) else 0


def _told(error: Exception) -> int | None:
    """Print an error in one line, and return its exit code; None: the error is a bug."""
    if isinstance(error, click.UsageError):
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        _complain(error.format_message())
        return error.exit_code
    if isinstance(error, PageQueueError):
        _complain(message_of(error))
        return EXIT_ERROR
    if isinstance(error, OSError):
        _complain(os_error_text(error))
        return EXIT_ERROR
    return None


def _complain(text: str) -> None:
    """Say what went wrong in one line on stderr, if there is anybody to hear it."""
    with contextlib.suppress(OSError):
        line = " ".join(text.split())
        click.echo(f"pagequeue: {click.style('error:', fg='red')} {line}", err=True)


def _close_output(code: int) -> int:
    """Flush stdout and stderr, and return the exit code that this leaves.

    The interpreter flushes again when it ends and would fail there, with another exit code, so a
    stream that cannot be written is led to nowhere. Only stdout counts.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or EXIT_CLOSED_PIPE
        _lead_to_nowhere(sys.stdout)
    except OSError as error:
        if code == 0:
            _complain(f"standard output: {os_error_text(error)}; nothing more was written")
            code = EXIT_ERROR
        _lead_to_nowhere(sys.stdout)
    try:
        sys.stderr.flush()
    except OSError:
        _lead_to_nowhere(sys.stderr)
    return code


def _lead_to_nowhere(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
