"""`pagequeue journal`: what a journal holds, whether it is right, its state, compacting it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pagequeue.cli import options as shared
from pagequeue.cli.lazy import LazyGroup
from pagequeue.journal import Journal
from pagequeue.journal.info import check_journal_queue
from pagequeue.schema.codec import PICKLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.journal import Machine
    from pagequeue.util.literals import Trust

_Function = TypeVar("_Function", bound="Callable[..., Any]")
COMMANDS: Final = {
    "info": "pagequeue.cli.journal_info",
    "verify": "pagequeue.cli.journal_verify",
    "compact": "pagequeue.cli.journal_compact",
    "state": "pagequeue.cli.journal_state",
}


@click.group(cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Journals: shared states that follow from a log of entries.

    \b
    pagequeue journal info accounts
    pagequeue journal verify accounts --machine bank:Accounts
    """  # noqa: D301 - click's own mark is the character


def machine_option(*, required: bool) -> Callable[[_Function], _Function]:
    """Add the machine, by its place in Python."""

    def add(function: _Function) -> _Function:
        return click.option(
            "--machine",
            metavar="MODULE:NAME",
            required=required,
            help="The journal's machine: a class without arguments, or an object. It is imported, "
            "also from the current directory, and so can execute any code.",
        )(function)

    return add


def machine_of(place: str) -> Machine[Any]:
    """Return the machine of a place in Python.

    Raises:
        click.UsageError: there is none.
    """
    module, colon, name = place.partition(":")
    if not colon or not module or not name:
        raise click.UsageError(f"--machine {place!r} is not MODULE:NAME; give it like app:Accounts")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        machine: Machine[Any] = found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise click.UsageError(f"--machine {place}: {error}") from None
    lacking = [
        word for word in ("version", "initial", "apply", "dump", "load") if not hasattr(found, word)
    ]
    if lacking:
        raise click.UsageError(
            f"--machine {place} has no {lacking[0]}: name a machine of a journal"
        )
    return machine


def open_journal(
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    machine: Machine[Any],
    *,
    read_only: bool = False,
    snapshots: int = 2,
) -> Journal[Any]:
    """Return a journal with the codec that it has."""
    with shared.open_to_read(directory, prefix, trust) as queue:
        check_journal_queue(queue)
        codec = queue.codec
    if codec == PICKLE:
        raise shared.CommandError(
            f"{directory}: its entries are pickles, which can execute arbitrary code: if you trust "
            "every writer, open it in Python with codec='pickle'"
        )
    return Journal(
        directory,
        machine,
        codec=codec,
        prefix=prefix,
        trust=trust,
        create=False,
        compact_on_open=False,
        read_only=read_only,
        snapshots=snapshots,
    )
