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
SUMMARY_CHARACTERS: Final = 200
"""More than any command's first sentence has: the help shows all of it, on several lines."""


class SuggestingGroup(click.Group):
    """A group that names similar commands when there is none of a name, and cuts no summary."""

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, which click would cut to one line."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(SUMMARY_CHARACTERS))
            for name, command in commands
            if command is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


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
