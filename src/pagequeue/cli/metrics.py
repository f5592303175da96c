"""`pagequeue metrics`: figures of queues for Prometheus."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time

import click

from pagequeue.cli import options


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
    trust: tuple[str, ...],
) -> None:
    """Give Prometheus depth, lag, ages and bytes of the queues in DIR...; opens them read-only.

    Without --port and --textfile the metrics are printed once.
    """
    try:
        import prometheus_client  # noqa: PLC0415 - only this command needs it

        from pagequeue.metrics import QueueCollector  # noqa: PLC0415 - the same
    except ImportError as error:
        raise options.CommandError(
            "prometheus_client is not installed; install pagequeue with the extra 'metrics'"
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
        queues = [stack.enter_context(options.open_to_read(path, prefix, trust)) for path in once]
        registry = prometheus_client.CollectorRegistry()
        registry.register(QueueCollector(*queues))
        if port is not None:
            server, _ = prometheus_client.start_http_server(port, address, registry)
            stack.callback(server.shutdown)
            options.note(f"metrics at http://{address}:{server.server_port}/metrics")
            threading.Event().wait()
        elif textfile is None:
            click.echo(prometheus_client.generate_latest(registry).decode(), nl=False)
        else:
            rounds = itertools.count() if count is None and interval else range(count or 1)
            for number in rounds:
                if number:
                    time.sleep(interval or 0)
                prometheus_client.write_to_textfile(textfile, registry)
