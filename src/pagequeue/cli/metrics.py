"""`pagequeue metrics`: figures of queues for Prometheus."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING

import click

from pagequeue import PageQueueError
from pagequeue.cli import options
from pagequeue.cli.error_text import message_of
from pagequeue.util.optional import install_command
from pagequeue.util.text import grouped

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pagequeue import Queue, Stats
    from pagequeue.util.literals import Trust


class _Reopened:
    """A queue for the collector that is opened as soon as it can be: it has `up` 0 until then."""

    def __init__(self, directory: str, prefix: str, trust: tuple[Trust, ...]) -> None:
        self.directory = directory
        self.prefix = prefix
        self.problem: str | None = None
        self._trust = trust
        self._queue: Queue | None = None

    def stats(self) -> Stats:
        """Return the queue's figures; raise what keeps it from being read."""
        try:
            if self._queue is None:
                self._queue = options.open_to_read(self.directory, self.prefix, self._trust)
            found = self._queue.stats()
        except PageQueueError as error:
            self.problem = message_of(error)
            self.close()
            raise
        self.problem = None
        return found

    def close(self) -> None:
        """Close the queue, if it is open."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()


def _check(queues: list[_Reopened]) -> None:
    """Raise an error that names the queues whose metrics are `pagequeue_up 0`."""
    bad = [queue for queue in queues if queue.problem is not None]
    if bad:
        problems = "; ".join(queue.problem or "" for queue in bad)
        raise options.CommandError(
            f"{len(bad)} of {grouped(len(queues), 'queue')} could not be read: {problems}"
        )


def _serve(
    registry: CollectorRegistry,
    port: int,
    address: str,
    queues: list[_Reopened],
    stack: contextlib.ExitStack,
) -> None:
    """Serve the metrics until interrupted."""
    from prometheus_client import start_http_server  # noqa: PLC0415 - only this command needs it

    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise options.CommandError(
            f"cannot serve at {address}:{port} ({error.strerror or error}): give another --port, "
            "or 0 for any"
        ) from None
    stack.callback(server.shutdown)
    for queue in queues:
        if queue.problem is not None:
            options.note(queue.problem)
    options.note(f"metrics at http://{address}:{server.server_port}/metrics")
    threading.Event().wait()


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Serve the metrics on this port until interrupted.",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where --port listens.")
@click.option(
    "--textfile",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="Write the metrics atomically to this file, for the node exporter.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    callback=options.finite,
    help="Rewrite the text file every so many seconds, until interrupted.",
)
@click.option("--count", type=click.IntRange(min=1), help="With --interval: how often.")
@options.prefix_option
@options.trust_option
def command(
    directories: tuple[str, ...],
    port: int | None,
    address: str,
    textfile: str | None,
    interval: float | None,
    count: int | None,
    prefix: str,
    trust: tuple[Trust, ...],
) -> None:
    """Give Prometheus depth, lag, ages and bytes of the queues in DIR...; opens them read-only.

    Without --port and --textfile the metrics are printed once. A queue that cannot be read has
    pagequeue_up 0, and is tried again each time; the exit code is then 1.

    \b
    pagequeue metrics events orders
    pagequeue metrics events --port 9400
    pagequeue metrics events --textfile /var/lib/node_exporter/events.prom --interval 15
    """  # noqa: D301 - click's own mark is the character
    try:
        import prometheus_client  # noqa: PLC0415 - only this command needs it

        from pagequeue.metrics import QueueCollector  # noqa: PLC0415 - the same
    except ImportError as error:
        raise options.CommandError(
            f"prometheus_client is not installed: {install_command('metrics')}"
        ) from error
    if port is not None and textfile is not None:
        raise click.UsageError("--port and --textfile exclude each other; run the command twice")
    if textfile is None and (interval is not None or count is not None):
        raise click.UsageError("--interval and --count belong to --textfile")
    if count is not None and interval is None:
        raise click.UsageError("--count belongs to --interval")
    with contextlib.ExitStack() as stack:
        once = dict.fromkeys(
            map(os.path.abspath, directories)
        )  # Prometheus refuses duplicate samples
        queues = [_Reopened(path, prefix, trust) for path in once]
        for queue in queues:
            stack.callback(queue.close)
            with contextlib.suppress(PageQueueError):
                queue.stats()
        registry = prometheus_client.CollectorRegistry()
        registry.register(QueueCollector(*queues))
        if port is not None:
            _serve(registry, port, address, queues, stack)
            return
        if textfile is None:
            click.echo(prometheus_client.generate_latest(registry).decode(), nl=False)
        else:
            rounds = itertools.count() if count is None and interval else range(count or 1)
            for number in rounds:
                if number:
                    time.sleep(interval or 0)
                prometheus_client.write_to_textfile(textfile, registry)
        _check(queues)
