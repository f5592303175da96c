"""`pagequeue completion`: the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    eval "$(pagequeue completion bash)"
    pagequeue completion zsh > ~/.zfunc/_pagequeue
    pagequeue completion fish > ~/.config/fish/completions/pagequeue.fish
    """  # noqa: D301 - click's own mark is the character
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    click.echo(kind(root.command, {}, "pagequeue", "_PAGEQUEUE_COMPLETE").source())
