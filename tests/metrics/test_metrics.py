"""Metrics for Prometheus and the live table: their values equal the queue's state."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest
import warm
from support import LONG

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.cli.watch import age, samples, tables
from pagequeue.util.optional import install_command

prometheus_client = pytest.importorskip("prometheus_client")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of ten messages, two named consumers, one of which is damaged."""
    with Queue(tmp_path / "events", page_bytes=65536) as queue:
        queue.consumer("broken").close()
        with queue.producer() as producer:
            producer.send_many([b"x"] * 10)
        with queue.consumer("billing") as consumer:
            consumer.receive_many(4)
            consumer.ack()
        (tmp_path / "events" / "queue-readMeta.broken").write_bytes(b"no")
        yield queue


def values_of(text: str, queue: Queue) -> dict[str, float]:
    """Return the samples of a queue by name, those of consumers with theirs."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels["queue"] == queue.directory:
                consumer = sample.labels.get("consumer")
                found[sample.name + (f" {consumer}" if consumer else "")] = sample.value
    return found


def check(text: str, queue: Queue) -> None:
    """Check the metrics of the queue above, as Prometheus reads them."""
    values = values_of(text, queue)
    assert values["pagequeue_up"] == 1
    assert values["pagequeue_messages"] == values["pagequeue_sent_messages_total"] == 10
    assert values["pagequeue_undurable_messages"] == 10
    assert values["pagequeue_removed_messages_total"] == 0
    assert values["pagequeue_file_bytes"] == queue.info().file_bytes
    assert values["pagequeue_consumer_lag_messages billing"] == 6
    assert values["pagequeue_consumer_next_sequence billing"] == 4
    assert values["pagequeue_consumer_damaged billing"] == 0
    assert values["pagequeue_consumer_damaged broken"] == 1
    assert "pagequeue_consumer_lag_messages broken" not in values
    assert values["pagequeue_consumer_last_ack_age_seconds billing"] >= 0


def test_collector_reports_the_queues_state(queue: Queue) -> None:
    """Gauges and counters, with the queue and the consumer as labels."""
    from pagequeue.metrics import QueueCollector  # noqa: PLC0415

    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(QueueCollector(queue))
    check(prometheus_client.generate_latest(registry).decode(), queue)


def test_unreadable_queue_is_down(queue: Queue, tmp_path: Path) -> None:
    """The metrics of the others are reported all the same."""
    from pagequeue.metrics import QueueCollector  # noqa: PLC0415

    closed = Queue(tmp_path / "closed", page_bytes=4096)
    closed.close()
    registry = prometheus_client.CollectorRegistry()
    registry.register(QueueCollector(closed, queue))
    text = prometheus_client.generate_latest(registry).decode()
    assert values_of(text, closed) == {"pagequeue_up": 0}
    check(text, queue)


def test_command_prints_metrics(queue: Queue, capsys: Capture) -> None:
    """Without a port or a file they go to stdout once."""
    assert main(["metrics", queue.directory]) == 0
    check(capsys.readouterr().out, queue)


def test_directory_given_twice_is_reported_once(queue: Queue, capsys: Capture) -> None:
    """Prometheus refuses two samples of one series."""
    assert main(["metrics", queue.directory, f"{queue.directory}/"]) == 0
    series = [
        line.rsplit(" ", 1)[0]
        for line in capsys.readouterr().out.splitlines()
        if not line.startswith("#")
    ]
    assert series
    assert len(series) == len(set(series))


def test_command_writes_a_text_file(queue: Queue, tmp_path: Path, capsys: Capture) -> None:
    """Atomically, as often as requested; no temporary file is left."""
    path = tmp_path / "out" / "pagequeue.prom"
    path.parent.mkdir()
    arguments = ["metrics", queue.directory, "--textfile", str(path)]
    assert main([*arguments, "--interval", "0.01", "--count", "3"]) == 0
    check(path.read_text(), queue)
    assert os.listdir(path.parent) == [path.name]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "options",
    [["--port", "0", "--textfile", "x"], ["--count", "2"], ["--textfile", "x", "--count", "2"]],
)
def test_options_that_contradict_each_other_are_refused(
    queue: Queue, options: list[str], capsys: Capture
) -> None:
    """Wrong usage is exit code 2, before anything is done."""
    assert main(["metrics", queue.directory, *options]) == 2
    assert "Error" in capsys.readouterr().err


def test_command_serves_metrics_until_interrupted(queue: Queue) -> None:
    """Over HTTP, on a port of the system's choice; Ctrl-C ends it."""
    command = [sys.executable, "-m", "pagequeue.cli", "metrics", queue.directory, "--port", "0"]
    process = warm.Popen(command, stderr=warm.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=LONG) as answer:
            check(answer.read().decode(), queue)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONG)
        assert process.returncode == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


# --- the live table -------------------------------------------------------------------------------


def test_watching_as_json_gives_a_line_for_each_sample(queue: Queue, capsys: Capture) -> None:
    """The first has no rates; the others have."""
    arguments = ["info", queue.directory, "--watch", "--json", "--interval", "0.01"]
    assert main([*arguments, "--count", "3"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["depth"] for line in lines] == [10, 10, 10]
    assert [line["rates"] is None for line in lines] == [True, False, False]
    assert lines[1]["rates"]["acknowledged"] == {"billing": 0.0}
    assert [found["name"] for found in lines[0]["consumers"]] == ["billing", "broken"]


def test_watching_without_a_terminal_prints_each_table(queue: Queue, capsys: Capture) -> None:
    """What a person reads: depth, rates, and a row for each consumer."""
    arguments = ["info", queue.directory, "--watch", "--interval", "0.01", "--count", "2"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.count("billing") == text.count("damaged") == 2
    assert text.count("msg/s") == 1
    assert main(["info", queue.directory, "--count", "2"]) == 2


@pytest.mark.parametrize("interval", ["nan", "inf"])
def test_watching_needs_a_finite_interval(queue: Queue, interval: str, capsys: Capture) -> None:
    """A usage error, not a traceback after the first sample."""
    options = ["--watch", "--interval", interval, "--count", "2"]
    assert main(["info", queue.directory, *options]) == 2
    assert "not a number of seconds" in capsys.readouterr().err


def test_samples_wait_in_between_and_have_rates(queue: Queue) -> None:
    """Rates are computed from the sample before."""
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        queue.producer().send_many([b"x"] * 5)

    found = list(samples(queue, 2.5, 3, sleep))
    assert slept == [2.5, 2.5]
    assert [look.depth for look, _ in found] == [10, 15, 20]
    assert found[0][1] is None
    assert all(since is not None and since.sent > 0 for _, since in found[1:])


def test_terminal_shows_the_table(queue: Queue) -> None:
    """The table is made for terminals as well."""
    from rich.console import Console  # noqa: PLC0415

    out = io.StringIO()
    Console(file=out, force_terminal=True, width=120).print(tables(queue, queue.stats(), None, 120))
    assert "billing" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.25, "0.2 s"), (119, "119.0 s"), (600, "10 min"), (7200, "2 h"), (1e6, "12 d")],
)
def test_age_is_shown_in_the_largest_unit_that_fits(seconds: float | None, text: str) -> None:
    """Twice."""
    assert age(seconds) == text


def test_missing_library_names_the_extra() -> None:
    """Importing the collector without it raises an error that names the extra."""
    code = (
        "import sys; sys.modules['prometheus_client.metrics_core'] = None\n"
        "sys.modules.pop('pagequeue.metrics', None)\n"
        "from pagequeue import MissingExtra\n"
        "try:\n    import pagequeue.metrics\n"
        "except MissingExtra as error:\n    print(error.extra, error)\n"
    )
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("metrics ")
    assert install_command("metrics") in done.stdout
