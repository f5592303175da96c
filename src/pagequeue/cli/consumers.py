"""`pagequeue consumers`: the named consumers and groups of a queue, and removing one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import click

from pagequeue.cli import options
from pagequeue.cli.json_output import print_json
from pagequeue.cli.tables import print_table
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from pagequeue import ConsumerInfo
    from pagequeue.util.literals import Trust


COLUMNS: Final = ("consumer", "next", "lag", "last ack", "state")


def row_of(consumer: ConsumerInfo) -> list[str]:
    """Return a consumer as a row of the table."""
    if consumer.problem is not None:
        return [consumer.name, "-", "-", "-", f"damaged: {consumer.problem}"]
    acked = consumer.last_ack
    state = "open" if consumer.is_open else "not open"
    if consumer.group is not None:
        group = consumer.group
        state += (
            f", group: {group.claimed:,} claimed, {group.waiting:,} to be redelivered, "
            f"{grouped(group.dead_letters, 'dead letter')}"
        )
    return [
        consumer.name,
        f"{consumer.next_sequence:,}",
        f"{consumer.lag:,}",
        "never" if acked is None else acked.isoformat(timespec="seconds"),
        state,
    ]


@click.command()
@options.directory_argument
@options.json_option("Print one JSON object per line.")
@click.option("--remove", metavar="NAME", help="Remove this consumer; its position is lost.")
@options.prefix_option
@options.trust_option
def command(
    directory: str, prefix: str, trust: tuple[Trust, ...], *, as_json: bool, remove: str | None
) -> None:
    """List the named consumers and groups of the queue in DIR: position, lag, last ack.

    \b
    pagequeue consumers events
    pagequeue consumers events --remove billing
    """  # noqa: D301 - click's own mark is the character
    if remove is not None:
        with options.open_to_write(directory, prefix, trust, create=False) as queue:
            queue.remove_consumer(remove)
        options.note(f"removed consumer {remove}")
        return
    with options.open_to_read(directory, prefix, trust) as queue:
        found = queue.consumers()
    if as_json:
        for consumer in found:
            print_json(dataclasses.asdict(consumer))
    elif found:
        print_table(COLUMNS, list(map(row_of, found)), right=frozenset({"next", "lag"}))
    else:
        options.note("no named consumer or group; `pagequeue receive DIR --consumer NAME` adds one")
