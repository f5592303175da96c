"""Error messages of the command line: a remedy that is a Python call becomes an option."""

from __future__ import annotations

import contextlib
import difflib
import os
from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.cli.lazy import SIMILAR_MAX
from pagequeue.util.text import printable_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Problem

_TRUST: Final = {
    "other_owner": "use one of your own, or accept it with --trust other_owner",
    "world_writable": "run chmod o-w on it, or set its sticky bit, or accept it with "
    "--trust world_writable",
    "network_file_system": "use a local directory, or, if only one host ever uses the queue, "
    "accept it with --trust network_file_system",
}
"""Remedies of what an option `--trust` accepts, by its value."""


def _of_expired(error: errors.Expired) -> str | None:
    if error.seek_sequence is None:
        return None
    return f"give --sequence {error.seek_sequence}, the head"


def _of_not_found(error: errors.QueueNotFound) -> str | None:
    if error.prefix is not None:
        return "check directory and prefix; `pagequeue send` creates a queue"
    similar = _similar(error.path or "")
    return f"did you mean {' or '.join(similar)}?" if similar else "`pagequeue ls` lists queues"


def _similar(path: str) -> list[str]:
    """Return the names of the queues beside a path that resemble its own."""
    parent, wanted = os.path.split(path)
    found = []
    with contextlib.suppress(OSError):  # then there is nothing to suggest
        for name in difflib.get_close_matches(wanted, os.listdir(parent or "."), SIMILAR_MAX):
            with contextlib.suppress(OSError):
                if fmt.queues_in(os.listdir(os.path.join(parent, name))):
                    found.append(printable_name(name))
    return found


REMEDIES: Final[dict[type[errors.PageQueueError], Callable[[Any], str | None]]] = {
    errors.UnsafePath: lambda error: _TRUST.get(error.trust),
    errors.QueueNotFound: _of_not_found,
    errors.ReadOnlyQueue: lambda _: (
        "read it with other commands, or delete this file to turn the copy into an independent "
        "queue"
    ),
    errors.AccessDenied: lambda _: (
        "change owner or permissions; sending, and whatever else changes a queue, needs permission "
        "to write the directory and its files, reading only permission to read them"
    ),
    errors.PageSizeMismatch: lambda _: (
        "leave --page-bytes out, or choose another directory or prefix"
    ),
    errors.CodecMismatch: lambda _: "leave --codec out, or choose another directory or prefix",
    errors.ConsumerNotFound: lambda _: "`pagequeue consumers` lists them",
    errors.OutputExists: lambda _: "choose another name, or give --force",
    errors.Expired: _of_expired,
    errors.SequenceOutOfRange: lambda error: (
        f"give --sequence {error.head_sequence} up to {error.tail_sequence}"
    ),
}
"""The command line's remedies by class; one that returns None keeps the library's."""


def message_of(error: errors.PageQueueError) -> str:
    """Return an error's message with the command line's remedy."""
    for kind, remedy_of in REMEDIES.items():
        if isinstance(error, kind) and (remedy := remedy_of(error)) is not None:
            return f"{error.problem}: {remedy}"
    return str(error)


def reason_of(problem: Problem) -> str:
    """Return a problem's reason with the command line's remedy."""
    if problem.trust is None or problem.remedy is None:
        return problem.reason
    return problem.reason.removesuffix(problem.remedy) + _TRUST[problem.trust]
