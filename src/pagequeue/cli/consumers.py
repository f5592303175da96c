"""`pagequeue consumers`: the named consumers and groups of a queue, and removing one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json

if TYPE_CHECKING:
    from pagequeue import ConsumerInfo


def line_of(consumer: ConsumerInfo) -> str:
    """Return a consumer as one line of text."""
    name = click.style(consumer.name, fg="cyan")
    if consumer.problem is not None:
        return f"{name}  damaged: {consumer.problem}"
    acked = consumer.last_ack
    words = [
        f"next {consumer.next_sequence:,}",
        f"lag {consumer.lag:,}",
        "never acknowledged" if acked is None else f"last ack {acked.isoformat()}",
        "open" if consumer.is_open else "not open",
    ]
    if consumer.group is not None:
        group = consumer.group
        words.append(
            f"group: {group.claimed:,} claimed, {group.waiting:,} to be redelivered, "
            f"{group.dead_letters:,} dead letters"
        )
    return f"{name}  {', '.join(words)}"


@click.command()
@options.directory_argument
@options.json_option("Print one JSON object per line.")
@click.option("--remove", metavar="NAME", help="Remove this consumer; its position is lost.")
@options.prefix_option
@options.trust_option
def command(
    directory: str, prefix: str, trust: tuple[str, ...], *, as_json: bool, remove: str | None
) -> None:
    """List the named consumers and groups of the queue in DIR: position, lag, last ack."""
    if remove is not None:
        with options.open_to_write(directory, prefix, trust, create=False) as queue:
            queue.remove_consumer(remove)
        options.note(f"removed consumer {remove}")
        return
    with options.open_to_read(directory, prefix, trust) as queue:
        found = queue.consumers()
    for consumer in found:
        if as_json:
            figures = dataclasses.asdict(consumer)
            print_json(figures)
        else:
            click.echo(line_of(consumer))
