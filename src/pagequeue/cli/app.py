"""The commands by name, and how each of them ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import rich  # noqa: F401 - every command needs it, so its absence is told here

from pagequeue import PageQueueError
from pagequeue.cli.errors import os_error_text
from pagequeue.cli.lazy import LazyGroup
from pagequeue.cli.rewording import reworded

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT
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
    code = _run(arguments)
    return _close_output(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = application.main(
            args=None if arguments is None else list(arguments),
            prog_name="pagequeue",
            standalone_mode=False,
        )
    except click.UsageError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        code = error.exit_code
    except _ClosedPipeError:
        code = EXIT_CLOSED_PIPE
    except (_InterruptedError, click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except PageQueueError as error:
        _complain(reworded(str(error)))
        code = EXIT_ERROR
    except OSError as error:
        _complain(os_error_text(error))
        code = EXIT_ERROR
    else:
        code = result if isinstance(result, int) else 0
    return code


def _complain(text: str) -> None:
    """Say what went wrong in one line on stderr, if there is anybody to hear it."""
    with contextlib.suppress(OSError):
        line = " ".join(text.split())
        click.echo(f"pagequeue: {click.style('error:', fg='red')} {line}", err=True)


def _close_output(code: int) -> int:
    """Flush stdout, and return the exit code that this leaves.

    The interpreter flushes again when it ends and would tell of the same error there, so a stdout
    that cannot be written is led to nowhere.
    """
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or EXIT_CLOSED_PIPE
    except OSError as error:
        if code == 0:
            _complain(f"standard output: {os_error_text(error)}; nothing more was written")
            code = EXIT_ERROR
    else:
        return code
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return code
