"""The commands by name, and the exit code and error line of each."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
import rich  # noqa: F401 - every command needs it: report its absence here

from pagequeue import __version__
from pagequeue.cli.errors import figures_of, os_error_text, text_of
from pagequeue.cli.json_output import print_json
from pagequeue.cli.lazy import LazyGroup
from pagequeue.system import program
from pagequeue.util.console import are_colours_allowed

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR: Final = 1
EXIT_CLOSED_PIPE: Final = 141  # 128 + SIGPIPE

COMMANDS: Final = {
    "send": "pagequeue.cli.send",
    "receive": "pagequeue.cli.receive",
    "ls": "pagequeue.cli.ls",
    "top": "pagequeue.cli.top",
    "info": "pagequeue.cli.info",
    "consumers": "pagequeue.cli.consumers",
    "group": "pagequeue.cli.group",
    "tasks": "pagequeue.cli.tasks",
    "export": "pagequeue.cli.export",
    "import": "pagequeue.cli.import_",
    "plot": "pagequeue.cli.plot",
    "profile": "pagequeue.cli.profile",
    "trim": "pagequeue.cli.trim",
    "rotate": "pagequeue.cli.rotate",
    "compress": "pagequeue.cli.compress",
    "ship": "pagequeue.cli.ship",
    "metrics": "pagequeue.cli.metrics",
    "verify": "pagequeue.cli.verify",
    "repair": "pagequeue.cli.repair",
    "salvage": "pagequeue.cli.salvage",
    "journal": "pagequeue.cli.journal",
    "spark": "pagequeue.cli.spark",
    "demo": "pagequeue.cli.demo",
    "completion": "pagequeue.cli.completion",
}
"""Each command's module, in the order of the help; the module has a `command`."""


class _ClosedPipeError(Exception):
    """The reader closed stdout. Not an OSError: click handles those itself."""


class _InterruptedError(Exception):
    """Ctrl-C. Click would print an empty line for a KeyboardInterrupt."""


class _Commands(LazyGroup):
    """All commands; `run` turns their errors into exit codes."""

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
@click.version_option(__version__, prog_name="pagequeue")
@click.pass_context
def application(context: click.Context) -> None:
    """Send to, receive from and maintain persistent memory-mapped queues.

    NO_COLOR=1 and TERM=dumb switch colours off.

    \b
    pagequeue send events hello
    pagequeue receive events --follow
    pagequeue COMMAND --help
    """  # noqa: D301 - click's own mark is the character
    context.color = None if are_colours_allowed() else False


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(format="pagequeue: %(message)s", level=logging.WARNING)
    logging.raiseExceptions = False  # a closed stderr is not an error
    program.raise_on_interrupt()
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        code = program.EXIT_INTERRUPTED
    return _close_output(code)


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result = application.main(args=words, prog_name="pagequeue", standalone_mode=False)
    except (_InterruptedError, click.Abort):
        return program.EXIT_INTERRUPTED
    except _ClosedPipeError:
        return EXIT_CLOSED_PIPE
    except Exception as error:
        if program.was_interrupted():  # whatever the interruption became on its way
            return program.EXIT_INTERRUPTED
        text = text_of(error)
        if text is None:  # a bug
            raise
        if "--json" in takewhile("--".__ne__, words):
            with contextlib.suppress(OSError):
                print_json(figures_of(error, text))
        return _report(error, text)
    return result if isinstance(result, int) else 0


def _report(error: Exception, text: str) -> int:
    """Print an error in one line, and return its exit code."""
    if isinstance(error, click.UsageError):
        with contextlib.suppress(OSError):
            error.show()
    else:
        _print_error(text)
    return error.exit_code if isinstance(error, click.ClickException) else EXIT_ERROR


def _print_error(text: str) -> None:
    """Print the error in one line on stderr, unless stderr is closed."""
    with contextlib.suppress(OSError):
        line = " ".join(text.split())
        colour = None if are_colours_allowed() else False
        click.echo(f"pagequeue: {click.style('error:', fg='red')} {line}", err=True, color=colour)


def _close_output(code: int) -> int:
    """Flush stdout and stderr, and return the resulting exit code.

    The interpreter flushes again at exit and would fail with another exit code, so a stream that
    fails is redirected to /dev/null. Only stdout affects the exit code.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or EXIT_CLOSED_PIPE
        _redirect_to_null(sys.stdout)
    except OSError as error:
        if code == 0:
            _print_error(f"standard output: {os_error_text(error)}; the rest of the output is lost")
            code = EXIT_ERROR
        _redirect_to_null(sys.stdout)
    try:
        sys.stderr.flush()
    except OSError:
        _redirect_to_null(sys.stderr)
    return code


def _redirect_to_null(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
