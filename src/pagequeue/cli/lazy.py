"""Groups of commands whose modules are imported on first use."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any, Final

import click

from pagequeue.system import program

if TYPE_CHECKING:
    from collections.abc import Mapping

SIMILAR_MAX: Final = 3
"""Most commands that an error suggests."""


class SuggestingGroup(click.Group):
    """A group that names the most similar commands when there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments begin with, and the rest of them."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not ctx.resilient_parsing:
            similar = difflib.get_close_matches(args[0], known, SIMILAR_MAX)
            if similar:
                raise click.UsageError(
                    f"No such command {args[0]!r}; did you mean {' or '.join(similar)}?", ctx
                )
        return super().resolve_command(ctx, args)


class InOrder(SuggestingGroup):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        del ctx
        return list(self.commands)


class LazyGroup(SuggestingGroup):
    """A group that imports a command on first use.

    Args:
        modules: each command's, by name, in the order of the help; a module has a `command`.
        given: what `click.Group` takes.
    """

    def __init__(self, *, modules: Mapping[str, str], **given: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(**given)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        del ctx
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None."""
        del ctx
        if cmd_name not in self._modules:
            return None
        program.exit_on_interrupt()
        command = importlib.import_module(self._modules[cmd_name]).command
        program.raise_on_interrupt()
        assert isinstance(command, click.Command)
        return command
