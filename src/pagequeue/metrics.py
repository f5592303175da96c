"""Metrics: a collector for Prometheus' client library, over any number of open queues.

    REGISTRY.register(QueueCollector(queue))

There are no counters: each scrape calls `Queue.stats`. Needs the extra `metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from pagequeue.errors import MissingExtra, PageQueueError
from pagequeue.util.optional import install_command
from pagequeue.util.text import printable_name

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise MissingExtra(
        "metrics need prometheus_client, which is not installed",
        extra="metrics",
        remedy=install_command("metrics"),
    ) from _error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue.maintenance.stats import ConsumerStats, Stats

QUEUE_LABELS: Final = ("queue", "prefix")
CONSUMER_LABELS: Final = (*QUEUE_LABELS, "consumer", "kind")

QUEUE_GAUGES: Final = {
    "up": "Whether the queue could be read (1) or not (0).",
    "messages": "Messages retained.",
    "undurable_messages": "Messages that are not known to be on stable storage.",
    "pages": "Pages that can be read, the active one included.",
    "file_bytes": "Bytes allocated on disk for all files of the queue.",
    "oldest_age_seconds": "Time since the first message retained was sent.",
    "newest_age_seconds": "Time since the last message was sent.",
    "last_flush_age_seconds": "Time since a flush last put messages on stable storage.",
    "sync_failed": "Whether a sync failed, which stops all writing (1) or not (0).",
}
QUEUE_COUNTERS: Final = {
    "sent_messages": "Messages ever sent.",
    "removed_messages": "Messages that retention removed.",
    "written_bytes": "Bytes written, the unused ends of sealed pages included.",
}
CONSUMER_GAUGES: Final = {
    "lag_messages": "Messages published and not acknowledged.",
    "oldest_age_seconds": "Time since the oldest message not acknowledged was sent.",
    "last_ack_age_seconds": "Time since the last acknowledgement.",
    "open": "Whether a thread or process has it open (1) or not (0).",
    "idle": "Whether it was idle for too long to retain pages (1) or not (0).",
    "damaged": "Whether its file is damaged (1) or not (0).",
    "next_sequence": "Every message below it is acknowledged.",
    "claimed_messages": "Messages with a live claim; of groups only.",
    "ready_messages": "Messages that can be claimed now; of groups only.",
    "returning_messages": "Messages that wait for redelivery; of groups only.",
    "dead_letters": "Messages moved to the dead letters so far; of groups only.",
}


class Sampled(Protocol):
    """What the collector reads: a `Queue`, or an object with these members of it."""

    @property
    def directory(self) -> str:
        """The path of its directory."""

    @property
    def prefix(self) -> str:
        """The prefix of its files."""

    def stats(self) -> Stats:
        """Return its figures; a PageQueueError makes its `up` 0."""


class QueueCollector(Collector):
    """Collects the metrics of open queues; an unreadable one has only `up`, which is 0.

    Args:
        queues: open ones, read-only or not; the caller closes them.

    Example:
        >>> from prometheus_client import REGISTRY
        >>> REGISTRY.register(QueueCollector(queue))
    """

    def __init__(self, *queues: Sampled) -> None:
        self._queues = queues

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, so that registering reads no queue."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics."""
        families = _families()
        for queue in self._queues:
            labels = [printable_name(queue.directory), queue.prefix]
            try:
                found = queue.stats()
            except PageQueueError:
                families["pagequeue_up"].add_metric(labels, 0)
                continue
            for name, value in _of_queue(found).items():
                if value is not None:
                    families[f"pagequeue_{name}"].add_metric(labels, value)
            for consumer in found.consumers:
                labelled = [*labels, consumer.name, consumer.kind]
                for name, value in _of_consumer(consumer).items():
                    if value is not None:
                        families[f"pagequeue_consumer_{name}"].add_metric(labelled, value)
        return families.values()


def _families() -> dict[str, GaugeMetricFamily | CounterMetricFamily]:
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for name, text in QUEUE_GAUGES.items():
        families[f"pagequeue_{name}"] = GaugeMetricFamily(
            f"pagequeue_{name}", text, labels=QUEUE_LABELS
        )
    for name, text in QUEUE_COUNTERS.items():
        families[f"pagequeue_{name}"] = CounterMetricFamily(
            f"pagequeue_{name}", text, labels=QUEUE_LABELS
        )
    for name, text in CONSUMER_GAUGES.items():
        families[f"pagequeue_consumer_{name}"] = GaugeMetricFamily(
            f"pagequeue_consumer_{name}", text, labels=CONSUMER_LABELS
        )
    return families


def _of_queue(found: Stats) -> dict[str, float | None]:
    return {
        "up": 1,
        "messages": found.depth,
        "undurable_messages": max(0, found.tail_sequence - found.durable_sequence),
        "pages": found.page_count,
        "file_bytes": found.file_bytes,
        "oldest_age_seconds": found.oldest_age,
        "newest_age_seconds": found.newest_age,
        "last_flush_age_seconds": _flush_age(found),
        "sync_failed": found.sync_failed,
        "sent_messages": found.tail_sequence,
        "removed_messages": found.head_sequence,
        "written_bytes": found.written_bytes,
    }


def _flush_age(found: Stats) -> float | None:
    """Return seconds since the last flush, never below 0: clocks step; None: it is not known."""
    if found.last_flush is None:
        return None
    return max(0.0, (found.time - found.last_flush).total_seconds())


def _of_consumer(found: ConsumerStats) -> dict[str, float | None]:
    return {
        "lag_messages": found.lag,
        "oldest_age_seconds": 0.0 if found.lag == 0 else found.oldest_age,
        "last_ack_age_seconds": found.last_ack_age,
        "open": found.is_open,
        "idle": found.is_idle,
        "damaged": found.problem is not None,
        "next_sequence": found.next_sequence,
        "claimed_messages": None if found.group is None else found.group.claimed,
        "ready_messages": None if found.group is None else found.group.ready,
        "returning_messages": None if found.group is None else found.group.waiting,
        "dead_letters": None if found.group is None else found.group.dead_letters,
    }
