"""The page of all commands, made from click's own objects: a hook of MkDocs.

The line `<!-- commands -->` of a page becomes a heading for each command, with its help, usage,
options and examples.
"""

from __future__ import annotations

import html
import inspect
from typing import TYPE_CHECKING, Final

import click

from pagequeue.cli.app import application

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MARK: Final = "<!-- commands -->"


def described(text: str) -> Iterator[str]:
    r"""Yield the paragraphs of a help text; one after click's mark `\b` is an example."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        example = paragraph.removeprefix("\b\n")
        if example != paragraph:
            yield f"```bash\n{example}\n```"
        else:
            yield html.escape(paragraph, quote=False)


def table(rows: list[tuple[str, str]]) -> str:
    """Return options and what they do as a table."""
    lines = ["| option | what it does |", "| --- | --- |"]
    for option, text in rows:
        name, does = (
            html.escape(cell, quote=False).replace("|", "&#124;") for cell in (option, text)
        )
        lines.append(f"| <code>{name}</code> | {does} |")
    return "\n".join(lines)


def sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Yield the Markdown of a command and of its subcommands."""
    path = context.command_path
    yield f"{'#' * level} {path} {{ #{path.replace(' ', '-')} }}"
    yield from described(command.help or "")
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    rows = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    yield table([row for row in rows if row is not None and row[1]])  # arguments have no text
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                below = child.context_class(child, parent=context, info_name=name)
                yield from sections(child, below, min(level + 1, 4))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the mark by all commands."""
    del page, config, files
    if MARK not in markdown:
        return markdown
    context = application.context_class(
        application, info_name="pagequeue", **application.context_settings
    )
    return markdown.replace(MARK, "\n\n".join(sections(application, context, 2)))
