"""Optional libraries: imported where they are used; the error for a missing one names its extra.

A child that is forked while another thread imports a module inherits the lock of that import, and
waits for it for ever when it imports the same module. So a fork waits until none of pagequeue's
imports is in progress; at most `FORK_SECONDS_MAX`, because the forking thread may itself be inside
an import that the other thread waits for.

If a module registers fork hooks during a fork, only half of them are called: the lock of executors
would be released in the parent without having been taken. So that module, which event loops need,
is imported with the package.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - see the head of this file
import contextlib
import importlib
import os
import shlex
import sys
import threading
from typing import Any, Final
from urllib.parse import unquote

from pagequeue import errors

FORK_SECONDS_MAX: Final = 10.0

_loading = threading.RLock()  # an import can fork, and a signal handler can load


def load(name: str) -> Any:  # noqa: ANN401 - it need not be installed
    """Import a module; no other thread forks meanwhile."""
    with _loading:
        return importlib.import_module(name)


def _await_imports() -> None:
    _loading.acquire(timeout=FORK_SECONDS_MAX)


def _after_fork() -> None:
    with contextlib.suppress(RuntimeError):  # an import took too long, and has the lock
        _loading.release()


def _after_fork_in_child() -> None:
    global _loading  # noqa: PLW0603 - the parent's can be taken by a thread that is not here
    _loading = threading.RLock()


os.register_at_fork(
    before=_await_imports, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)


def install_command(extra: str) -> str:
    """Return the command that adds an extra of pagequeue to this installation.

    A name is looked up in a package index; what was installed from a directory, a file or a
    repository comes from there again. A frozen program has no installation: where it is built the
    library must be.
    """
    origin: dict[str, Any] = {}
    with contextlib.suppress(ImportError, OSError, ValueError):
        import json  # noqa: PLC0415 - for an error only, as the next one
        from importlib import metadata  # noqa: PLC0415

        origin = json.loads(metadata.distribution("pagequeue").read_text("direct_url.json") or "{}")
    url, option = str(origin.get("url", "")), ""
    wanted = f"pagequeue[{extra}]"
    if "dir_info" in origin and url.startswith("file://"):
        option = "-e " if origin["dir_info"].get("editable") else ""
        wanted = f"{unquote(url.removeprefix('file://'))}[{extra}]"
    elif "vcs_info" in origin:
        wanted += f" @ {origin['vcs_info']['vcs']}+{url}"
    elif url:
        wanted += f" @ {url}"
    command = f"pip install {option}{shlex.quote(wanted)}"
    if getattr(sys, "frozen", False):
        return f"{command} where this program is built, and build it again"
    return command


def library(name: str, extra: str, what: str) -> Any:  # noqa: ANN401 - it need not be installed
    """Return an optional module.

    Args:
        name: of the module.
        extra: the extra of pagequeue that installs it.
        what: the feature that needs it, in the plural, for the error.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return load(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise errors.MissingExtra(
            f"{what} need {package}, which is not installed",
            remedy=install_command(extra),
            extra=extra,
        ) from error


def pyarrow() -> Any:  # noqa: ANN401 - the same
    """Return pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    return library("pyarrow", "arrow", "Arrow's arrays")
