"""`pagequeue receive`: a queue's messages to stdout.

It opens the queue read-only, except for a named consumer, whose position the queue stores. Then a
message is acknowledged after its delivery, which stdout.py defines.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Final, TypedDict

import click

from pagequeue.cli import framing, options, values
from pagequeue.cli.stdout import STEP_COUNT, Outlet
from pagequeue.export.text import json_lines
from pagequeue.util.console import are_colours_allowed
from pagequeue.util.text import without_controls
from pagequeue.util.time_text import NS_PER_SECOND
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Batch, Consumer, Queue

    Render = Callable[[Batch], bytes]
    from pagequeue.util.literals import Trust

POLL_SECONDS: Final = 0.5
"""How often an idle follower checks that its own reader still exists."""
EARLY_NS: Final = 10**17
"""A bare number below it (1973) probably counts seconds or milliseconds."""


def printable(payload: bytes) -> str:
    """Return a payload as text without control characters for a terminal."""
    return without_controls(payload.decode(errors="backslashreplace"))


def _unstyled(text: str, **_style: object) -> str:
    return text


def render_for_people(batch: Batch, contents: list[bytes]) -> bytes:
    """Return a line for each message: sequence, time, contents, in the terminal's colours."""
    lines = []
    style = click.style if are_colours_allowed() else _unstyled
    columns = zip(batch.sequences.tolist(), batch.timestamps.tolist(), contents, strict=True)
    for sequence, timestamp, payload in columns:
        number = style(f"{sequence:>8}", fg="cyan")
        time_text = style(iso_time(timestamp), dim=True)
        lines.append(f"{number}  {time_text}  {printable(payload)}\n")
    return "".join(lines).encode(errors="backslashreplace")


def render_values(batch: Batch) -> bytes:
    """Return the same JSON objects with `value`, decoded, instead of the payload."""
    lines = []
    for message, plain in zip(batch, json_lines(batch).splitlines(), strict=True):
        has_value, value = values.value_of(message)
        row = json.loads(plain)
        if has_value:
            row = {name: row[name] for name in ("sequence", "timestamp", "time")}
            row["value"] = value
        lines.append(values.encoded(row))
    return b"\n".join((*lines, b""))


def _renderer(output_format: str, chosen: framing.Framing, queue: Queue) -> Render:
    """Return the function that turns a batch into bytes."""
    shown = values.are_shown(queue)

    def contents(batch: Batch) -> list[bytes]:
        return list(map(values.line_of, batch)) if shown else batch.payloads

    if output_format == "json":
        return render_values if shown else json_lines
    if output_format == "text" and sys.stdout.isatty():
        return lambda batch: render_for_people(batch, contents(batch))
    if output_format == "text":
        return lambda batch: framing.encode(chosen, contents(batch))
    return lambda batch: framing.encode(chosen, batch.payloads)


class _Start(TypedDict, total=False):
    """A position in a queue; empty means the head."""

    since: int
    sequence: int


class _Span:
    """The requested range of messages."""

    def __init__(
        self, *, since: int | None, until: int | None, sequence: int | None, last: int | None
    ) -> None:
        if sum(choice is not None for choice in (since, sequence, last)) > 1:
            raise click.UsageError("--since, --sequence and --last exclude each other; give one")
        self.since = since
        self.until = until
        self.sequence = sequence
        self.last = last

    @property
    def is_bounded(self) -> bool:
        """Whether a part of the queue was asked for."""
        return any(end is not None for end in (self.since, self.until, self.sequence, self.last))

    def start(self, queue: Queue) -> _Start:
        """Return where to start, as the queue's methods take it."""
        if self.last is not None:
            return {"sequence": max(queue.head_sequence, queue.tail_sequence - self.last)}
        if self.sequence is not None:
            return {"sequence": self.sequence}
        return {} if self.since is None else {"since": self.since}


def _retained(queue: Queue, span: _Span) -> Iterator[Batch]:
    """Yield the messages that are retained now."""
    return queue.batches(**span.start(queue), until=span.until, limit_count=STEP_COUNT)


def _followed(queue: Queue, span: _Span, outlet: Outlet) -> Iterator[Batch]:
    """Yield retained and new messages, up to `until` or until interrupted."""
    with queue.consumer(**span.start(queue)) as consumer:
        while True:
            try:
                batch = consumer.receive_many(STEP_COUNT, timeout=POLL_SECONDS)
            except TimeoutError:
                if outlet.is_abandoned():
                    raise BrokenPipeError from None
                if span.until is not None and time.time_ns() >= span.until:
                    return
                continue
            if span.until is not None and batch.timestamps[-1] >= span.until:
                yield batch[: int(batch.timestamps.searchsorted(span.until))]
                return
            yield batch


def _limited(batches: Iterator[Batch], count: int | None) -> Iterator[Batch]:
    """Yield the first `count` messages; None: all."""
    if count is None:
        yield from batches
        return
    for batch in batches:
        yield batch[:count]
        count -= len(batch)
        if count <= 0:
            return


def _consumed(
    queue: Queue, name: str, until: int | None, count: int | None, outlet: Outlet, *, follow: bool
) -> Iterator[tuple[Consumer, Batch]]:
    """Yield what a named consumer receives; the caller acknowledges it."""
    end = queue.tail_sequence
    left = sys.maxsize if count is None else count
    with queue.consumer(name) as consumer:
        while left > 0 and (follow or consumer.sequence < end):
            try:
                batch = consumer.receive_many(
                    min(left, STEP_COUNT), timeout=POLL_SECONDS if follow else 0
                )
            except TimeoutError:
                if outlet.is_abandoned():
                    raise BrokenPipeError from None
                if not follow or (until is not None and time.time_ns() >= until):
                    return
                continue
            wanted = batch
            if until is not None:
                wanted = batch[: int(batch.timestamps.searchsorted(until))]
            yield consumer, wanted
            left -= len(wanted)
            if len(wanted) < len(batch):
                return


def _deliver(
    consumer: Consumer, batch: Batch, render: Render, outlet: Outlet, step_count: int
) -> None:
    """Write messages and acknowledge them, so many at a time.

    1. Write. Dies here: some were seen, none is acknowledged; they are received again.
    2. Wait until the reader has read them. Dies here, or the reader does: the same.
    3. Acknowledge.
    """
    for first in range(0, len(batch), step_count):
        part = batch[first : first + step_count]
        outlet.write(render(part))
        outlet.wait_until_taken()
        consumer.ack(int(part.sequences[-1]))


def _note_if_empty(received: int, text: str) -> None:
    """Tell a person that nothing was received; a program sees it by itself."""
    if received == 0 and sys.stderr.isatty():
        options.note(text)


def _warn_of_early(name: str, timestamp: int | None) -> None:
    """Warn about a bare number that is too small for nanoseconds since 1970."""
    if timestamp is not None and 0 < timestamp < EARLY_NS:
        options.note(
            f"{name} is {iso_time(timestamp)}: a bare number counts nanoseconds since 1970"
            f" (seconds times {NS_PER_SECOND:,})"
        )


@click.command()
@options.directory_argument
@click.option("-f", "--follow", is_flag=True, help="Then print new messages, until interrupted.")
@options.since_option
@options.until_option
@click.option("--sequence", type=click.IntRange(min=0), help="Start at this sequence.")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start at the last N messages; with --follow, 0 means only new ones.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N messages; with --follow, wait for them.",
)
@click.option(
    "--consumer",
    metavar="NAME",
    help="Continue where this named consumer stopped; created if necessary.",
)
@click.option(
    "--ack-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --consumer, into a pipe: write N messages, and acknowledge them when its reader has "
    "read them all. More is faster; a reader that ends can lose up to N.  [default: 1]",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "raw"]),
    default="text",
    show_default=True,
    help="text: with time on a terminal, else payload lines. json: one object per line. Both show "
    "records, JSON and MessagePack as JSON. raw: payload bytes, framed.",
)
@options.framing_options
@options.prefix_option
@options.trust_option
def command(
    directory: str,
    *,
    since: int | None,
    until: int | None,
    sequence: int | None,
    last: int | None,
    count: int | None,
    consumer: str | None,
    ack_every: int | None,
    output_format: str,
    prefix: str,
    trust: tuple[Trust, ...],
    follow: bool,
    null: bool,
    length_prefixed: bool,
) -> None:
    """Print the messages of the queue in DIR, the oldest first.

    \b
    pagequeue receive events --since 10m
    pagequeue receive events --follow --last 0 --format json
    pagequeue receive events --consumer billing --count 100
    pagequeue receive a --format raw --length-prefixed | pagequeue send b --length-prefixed
    """  # noqa: D301 - click's own mark is the character
    span = _Span(since=since, until=until, sequence=sequence, last=last)
    chosen = options.chosen_framing(null=null, length_prefixed=length_prefixed)
    if chosen is not framing.Framing.NEWLINE and output_format != "raw":
        raise click.UsageError("--null and --length-prefixed frame --format raw; give that too")
    _warn_of_early("--since", since)
    _warn_of_early("--until", until)
    if ack_every is not None and consumer is None:
        raise click.UsageError("--ack-every belongs to --consumer")
    options.check_output()
    outlet = Outlet()
    received = 0
    if consumer is not None:
        if any(choice is not None for choice in (since, sequence, last)):
            raise click.UsageError(
                "--consumer continues where it stopped; leave the place to start out"
            )
        with options.open_to_write(directory, prefix, trust, create=False) as queue:
            render = _renderer(output_format, chosen, queue)
            step_count = ack_every or outlet.step_count
            for reader, batch in _consumed(queue, consumer, until, count, outlet, follow=follow):
                received += len(batch)
                _deliver(reader, batch, render, outlet, step_count)
        _note_if_empty(received, f"consumer {consumer} has no new message")
        return
    with options.open_to_read(directory, prefix, trust) as queue:
        render = _renderer(output_format, chosen, queue)
        batches = _followed(queue, span, outlet) if follow else _retained(queue, span)
        for batch in _limited(batches, count):
            received += len(batch)
            outlet.write(render(batch))
    _note_if_empty(received, "no message in this range" if span.is_bounded else "no message yet")
