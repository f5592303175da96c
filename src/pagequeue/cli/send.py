"""`pagequeue send`: the messages of a byte stream into a queue, as they arrive.

Each read takes the bytes available, and sends the complete messages before the next read: a fast
stream is sent in large batches, a slow one without delay. An error names a message: all messages
before it were sent, and it and the following ones were not.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from pagequeue import format as fmt
from pagequeue.cli import framing, options, values
from pagequeue.schema.codec import NAMES
from pagequeue.system import program
from pagequeue.util.console import messages_console
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Producer, Queue
    from pagequeue.util.literals import CodecName, Trust

READ_BYTES: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Messages are read into memory: input without separators must not fill it."""
BATCHES_PER_PAGE: Final = 16
"""A batch does not continue in the next page; a small one leaves little of a page unused."""
ARGUMENTS: Final = framing.SeparatorDecoder(b"\0", "message")
"""Of messages that are arguments: only names them in errors."""


class Sender:
    """Sends the messages of one stream, batch by batch.

    Args:
        queue: where they go.
        decoder: takes the stream apart.
        producer: sends to that queue.
    """

    def __init__(self, queue: Queue, decoder: framing.Decoder, producer: Producer) -> None:
        page_bytes = queue.page_bytes
        self.sent_count: int = 0
        self._decoder = decoder
        self._values = values.decoder_of_lines(queue)
        self._producer = producer
        self._payload_limit_bytes = max(fmt.payload_bytes_max(page_bytes), MESSAGE_BYTES_MAX)
        self._batch_limit_bytes = page_bytes // BATCHES_PER_PAGE
        self._batch_limit_count = max(fmt.index_capacity(page_bytes) // BATCHES_PER_PAGE, 1)

    def send_stream(self, descriptor: int, advanced: Callable[[int], object]) -> None:
        """Send all messages up to the end of the stream.

        Args:
            descriptor: what to read from.
            advanced: called with the size of each piece after its messages are sent.
        """
        while piece := os.read(descriptor, READ_BYTES):
            self._send(self._decoder.feed(piece))
            if self._decoder.pending_bytes > self._payload_limit_bytes:
                raise self._too_long(f"{self._decoder.pending_bytes:,} bytes or more")
            advanced(len(piece))
        self._send(self._decoder.finish())

    def send_all(self, messages: list[bytes]) -> None:
        """Send these messages."""
        self._send(messages)

    def _send(self, messages: list[bytes]) -> None:
        limit_bytes = self._payload_limit_bytes
        too_long = None
        if max(map(len, messages), default=0) > limit_bytes:
            too_long = next(i for i, message in enumerate(messages) if len(message) > limit_bytes)
        for batch in self._batches(messages[:too_long]):
            self._producer.send_many(batch if self._values is None else self._decoded(batch))
            self.sent_count += len(batch)
        if too_long is not None:
            raise self._too_long(f"{len(messages[too_long]):,} bytes")

    def _decoded(self, batch: list[bytes]) -> list[object]:
        """Return the values of the queue's codec that these lines encode."""
        assert self._values is not None
        decoded: list[object] = []
        for place, line in enumerate(batch):
            try:
                decoded.append(self._values(line))
            except ValueError as error:
                raise options.CommandError(
                    f"{self._decoder.unit} {self.sent_count + place + 1} is invalid in the queue's "
                    f"codec ({error}); {self._decoder.unit} {self.sent_count + 1} and all "
                    "following were not sent"
                ) from None
        return decoded

    def _batches(self, messages: list[bytes]) -> Iterator[list[bytes]]:
        """Cut messages into runs that are a small part of a page, or one message."""
        first = 0
        batch_bytes = 0
        for index, message in enumerate(messages):
            message_bytes = fmt.frame_bytes(len(message))
            full = (
                batch_bytes + message_bytes > self._batch_limit_bytes
                or index - first == self._batch_limit_count
            )
            if full and index > first:
                yield messages[first:index]
                first = index
                batch_bytes = 0
            batch_bytes += message_bytes
        if messages[first:]:
            yield messages[first:]

    def _too_long(self, size: str) -> options.CommandError:
        return options.CommandError(
            f"{self._decoder.unit} {self.sent_count + 1} has {size}, and this command reads at "
            f"most {self._payload_limit_bytes:,} for one message; check that the options match the "
            "framing of the input, or write it from Python with Producer.open"
        )


@contextlib.contextmanager
def _progress(descriptor: int) -> Iterator[Callable[[int], object]]:
    """Show a progress bar over a regular file if stderr is a terminal."""
    status = os.fstat(descriptor)
    if not (stat.S_ISREG(status.st_mode) and status.st_size and sys.stderr.isatty()):
        yield lambda _: None
        return
    columns = ("sending", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=messages_console(), transient=True) as progress:
        task = progress.add_task("sending", total=status.st_size)
        yield lambda size_bytes: progress.advance(task, size_bytes)


@contextlib.contextmanager
def source(file: str | None) -> Iterator[int]:
    """Yield the descriptor to read from."""
    if file is None or file == "-":
        if 0 in program.closed:
            raise options.CommandError("standard input is closed; give the command one, or --file")
        yield sys.stdin.fileno()
        return
    with Path(file).open("rb", buffering=0) as stream:
        yield stream.fileno()


@click.command()
@options.directory_argument
@click.argument("messages", metavar="[MESSAGE...]", nargs=-1)
@click.option("--file", metavar="FILE", help="Read this file; '-' is stdin, the default.")
@options.framing_options
@options.prefix_option
@click.option(
    "--page-bytes",
    callback=options.parsed(options.parse_size),
    metavar="SIZE",
    help="The size of each page of a new queue, like 64M.",
)
@click.option(
    "--codec",
    type=click.Choice(NAMES),
    help="Codec of a new queue; with json and utf-8 each line must be valid.",
)
@click.option("--flush", is_flag=True, help="Exit only after everything is on stable storage.")
@options.trust_option
def command(
    directory: str,
    messages: tuple[str, ...],
    file: str | None,
    prefix: str,
    trust: tuple[Trust, ...],
    page_bytes: int | None,
    codec: CodecName | None,
    *,
    null: bool,
    length_prefixed: bool,
    flush: bool,
) -> None:
    """Send each MESSAGE, or each line of stdin or of a file, to the queue in DIR.

    The queue is created if necessary. Lines are sent as soon as they are read, so that 'tail -f log
    | pagequeue send DIR' works.

    \b
    pagequeue send events hello 'second message'
    printf 'hello\\n' | pagequeue send events
    find . -print0 | pagequeue send files --null
    """  # noqa: D301 - click's own mark is the character
    chosen = options.chosen_framing(null=null, length_prefixed=length_prefixed)
    if messages and (file is not None or null or length_prefixed):
        raise click.UsageError(
            "MESSAGE excludes --file, --null and --length-prefixed; leave one of them out"
        )
    payloads = list(map(os.fsencode, messages))
    values.check_before_creation(codec, payloads)
    with (
        contextlib.nullcontext(-1) if messages else source(file) as descriptor,
        options.open_to_write(
            directory, prefix, trust, create=True, page_bytes=page_bytes, codec=codec
        ) as queue,
        queue.producer() as producer,
    ):
        sender = Sender(queue, ARGUMENTS if messages else framing.decoder(chosen), producer)
        if os.isatty(descriptor):
            options.note(
                "reading messages from the terminal, one a line; Ctrl-D on an empty line ends; "
                "`pagequeue send DIR MESSAGE` sends one"
            )
        failed = True
        try:
            if messages:
                sender.send_all(payloads)
            else:
                with _progress(descriptor) as advanced:
                    sender.send_stream(descriptor, advanced)
            if flush:
                producer.flush()
            failed = False
        except framing.FramingError as error:
            raise options.CommandError(str(error)) from None
        except KeyboardInterrupt:
            failed = False
            raise
        finally:
            if failed or sys.stderr.isatty():
                options.note(f"{grouped(sender.sent_count, 'message')} sent")
