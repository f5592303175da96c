"""`pagequeue info --watch`: depth of a queue and lag of its consumers, repeatedly."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pagequeue import rates
from pagequeue.cli.json_output import print_json
from pagequeue.cli.tables import table_lines
from pagequeue.util.console import output_console
from pagequeue.util.text import grouped, human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import ConsumerStats, Queue, Rates, Stats

Sample = tuple["Stats", "Rates | None"]


def samples(
    queue: Queue,
    interval: float,
    count: int | None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Sample]:
    """Yield `count` samples of a queue, with the rates since the previous one."""
    before: Stats | None = None
    for number in itertools.count() if count is None else range(count):
        if number:
            sleep(interval)
        now = queue.stats()
        yield now, None if before is None else rates(before, now)
        before = now


def watch(queue: Queue, interval: float, count: int | None, *, as_json: bool) -> None:
    """Show `count` samples of a queue, or sample until interrupted."""
    if as_json:
        for found, since in samples(queue, interval, count):
            print_json(jsonable(found, since))
            sys.stdout.flush()
        return
    console = output_console()
    if not console.is_terminal or console.is_dumb_terminal:
        for sample in samples(queue, interval, count):
            console.print(tables(queue, *sample, console.width if console.is_terminal else None))
        return
    with Live(console=console, auto_refresh=False) as live:
        for sample in samples(queue, interval, count):
            live.update(tables(queue, *sample, console.width), refresh=True)


def jsonable(found: Stats, since: Rates | None) -> dict[str, object]:
    """Return a sample as one line of JSON has it."""
    figures = dataclasses.asdict(found)
    figures["time"] = found.time.isoformat()
    del figures["taken_at"]  # of a clock that only this process has
    figures["rates"] = None if since is None else dataclasses.asdict(since)
    return figures


def tables(queue: Queue, found: Stats, since: Rates | None, width: int | None) -> Group:
    """Return a sample as tables for a terminal that is so many cells wide, or for a pipe."""
    figures = Table.grid(padding=(0, 2))
    where = Text(f"{queue.directory}, prefix {queue.prefix}", overflow="fold")
    figures.add_row("[cyan]queue[/]", where)
    figures.add_row("[cyan]messages[/]", f"{found.depth:,} in {grouped(found.page_count, 'page')}")
    undurable = max(0, found.tail_sequence - found.durable_sequence)
    figures.add_row("[cyan]not durable[/]", f"{undurable:,}")
    figures.add_row("[cyan]on disk[/]", human_bytes(found.file_bytes))
    figures.add_row("[cyan]oldest, newest[/]", f"{age(found.oldest_age)}, {age(found.newest_age)}")
    if since is not None:
        written = human_bytes(max(0.0, since.written_bytes))
        figures.add_row("[cyan]sent[/]", f"{since.sent:,.0f} msg/s, {written}/s")
    if found.sync_failed:
        figures.add_row("[red]sync failed[/]", "writing has stopped: run `pagequeue repair`")
    return Group(figures, *(_consumers(found, since, width) if found.consumers else []))


def _consumers(found: Stats, since: Rates | None, width: int | None) -> list[Text]:
    numbers = ("lag", "acked/s", "oldest", "last ack")
    rows = []
    for consumer in found.consumers:
        rate = None if since is None else since.acknowledged.get(consumer.name)
        rows.append(
            (
                consumer.name,
                "-" if consumer.lag is None else f"{consumer.lag:,}",
                "-" if rate is None else f"{rate:,.0f}",
                age(consumer.oldest_age),
                age(consumer.last_ack_age),
                _state(consumer),
            )
        )
    columns = ("consumer", *numbers, "state")
    return table_lines(columns, rows, right=frozenset(numbers), width=width)


def _state(consumer: ConsumerStats) -> str:
    if consumer.problem is not None:
        return "damaged"
    words = [consumer.kind] if consumer.kind != "consumer" else []
    if consumer.group is not None:
        if consumer.group.claimed:
            words.append(f"{consumer.group.claimed:,} claimed")
        if consumer.group.waiting:
            words.append(f"{consumer.group.waiting:,} to be redelivered")
        if consumer.group.dead_letters:
            words.append(grouped(consumer.group.dead_letters, "dead letter"))
    words.append("open" if consumer.is_open else "not open")
    return ", ".join([*words, *(["idle"] if consumer.is_idle else [])])


def age(seconds: float | None) -> str:
    """Return an age as text, like 3 min."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} s"
