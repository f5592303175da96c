"""The `pagequeue` command.

- exit codes: 0 success, 1 an error printed in one line on stderr, 2 wrong usage, 130 interrupted,
  141 the reader of stdout has closed it; none of these prints a traceback.
- data goes to stdout, everything else to stderr; a closed stderr changes no exit code.
- importing this package imports no command and no extra; a missing extra is named.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from pagequeue.system import program
from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXTRA_MODULES = frozenset({"click", "rich"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: those after the program's name; None takes `sys.argv`, and prepares the process
            as the command's own (`pagequeue.system.program`).

    Returns:
        The exit code, listed at the top of this module.

    Example:
        >>> from pagequeue.cli import main
        >>> main(["info", "/var/lib/app/events", "--json"])  # doctest: +SKIP
        0
    """
    if arguments is None:
        program.begin()
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        return program.EXIT_INTERRUPTED
    finally:
        if arguments is None:
            program.end()


def _main(arguments: Sequence[str] | None) -> int:
    try:
        from pagequeue.cli import app  # noqa: PLC0415 - a missing extra must be told, not raised
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _EXTRA_MODULES:
            raise
        with contextlib.suppress(OSError):
            print(
                f"pagequeue: the command line needs {missing.name}: {install_command('cli')}",
                file=sys.stderr,
            )
        return 1
    return app.run(arguments)
