"""Histograms and latencies: right whatever the batches are, in memory that does not grow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import SMALL, Clock

from pagequeue import InvalidOption, Queue, merge
from pagequeue.plot import latencies
from pagequeue.plot.histograms import SizeBins, TimeBins
from pagequeue.plot.latencies import Latencies

if TYPE_CHECKING:
    from pathlib import Path

GAPS = st.lists(st.integers(0, 10**15) | st.integers(0, 2000), max_size=40)


@given(gaps=GAPS, split=st.integers(1, 7))
def test_bins_of_time_are_those_of_a_count(gaps: list[int], split: int) -> None:
    """However many times they had to be made wider."""
    times = np.cumsum(np.array([0, *gaps], np.int64)) - 5
    lengths = np.arange(len(times)) * 3
    bins = TimeBins()
    for start in range(0, len(times), split):
        bins.add(times[start : start + split], lengths[start : start + split])
    where = (times + 5) // bins.bin_ns
    assert bins.start == -5
    assert int(where[-1]) < len(bins.messages) == 512
    assert bins.messages.tolist() == np.bincount(where, minlength=512).tolist()
    assert bins.payload_bytes.tolist() == np.bincount(where, lengths, 512).tolist()
    assert bins.used == where[-1] + 1
    assert bins.bin_ns == 1000 or where[-1] >= 256  # no wider than needed


@given(numbers=st.lists(st.integers(-3, 10**12), max_size=40), cut=st.integers(0, 40))
def test_parts_that_are_counted_apart_are_merged(numbers: list[int], cut: int) -> None:
    """Two histograms together are that of everything."""
    whole, one, two = SizeBins(), SizeBins(), SizeBins()
    whole.add(np.array(numbers, np.int64))
    one.add(np.array(numbers[:cut], np.int64))
    two.add(np.array(numbers[cut:], np.int64))
    one.merge(two)
    for name in ("below", "total", "least", "most"):
        assert getattr(one, name) == getattr(whole, name)
    assert one.counts.tolist() == whole.counts.tolist()


def test_empty_histogram_has_no_bins() -> None:
    """A queue can be empty."""
    bins, sizes = TimeBins(), SizeBins()
    bins.add(np.empty(0, np.int64), np.empty(0, np.int64))
    sizes.add(np.empty(0, np.int64))
    assert (bins.start, bins.used) == (None, 0)
    assert (sizes.total, sizes.least, sizes.most, sizes.quantile(0.5)) == (0, None, None, 0.0)


@given(numbers=st.lists(st.integers(-5, 2**62) | st.integers(0, 40), min_size=1, max_size=60))
def test_bins_of_sizes_hold_each_number_once(numbers: list[int]) -> None:
    """Each in a bin whose edges are around it; quantiles are right to a fifth."""
    sizes = SizeBins()
    sizes.add(np.array(numbers[:7], np.int64))
    sizes.add(np.array(numbers[7:], np.int64))
    assert sizes.total == len(numbers) == sizes.counts.sum() + sizes.below
    assert (sizes.least, sizes.most) == (min(numbers), max(numbers))
    assert sizes.below == sum(number <= 0 for number in numbers)
    edges = sizes.edges()
    for i in np.flatnonzero(sizes.counts).tolist():
        inside = [n for n in numbers if edges[i] * 0.9999999 <= n <= edges[i + 1] * 1.0000001]
        assert len(inside) >= sizes.counts[i]
    ordered = sorted(numbers)
    for part in (0.5, 0.99):
        exact = max(ordered[max(int(np.ceil(part * len(ordered))) - 1, 0)], 0)
        assert exact * 0.999999 <= sizes.quantile(part) <= exact * 1.2
        assert sizes.quantile(part) % 1 == 0  # a payload of 5.66 B does not exist


def fill(queue: Queue, *messages: tuple[int, bytes]) -> None:
    """Send messages, given as time and payload."""
    with queue.producer() as producer:
        for time, payload in messages:
            producer.send(payload, timestamp=time)


def found(first: Queue, second: Queue, rule: str) -> tuple[int, int | None, int | None, int]:
    """Return how many latencies there are, the least and the most, and how many have none."""
    result = Latencies(rule)
    for batch in merge([first, second]).batches(limit_count=2):
        result.add(batch)
    bins = result.bins
    return bins.total, bins.least, bins.most, result.unmatched


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("payload", (1, 8, 8, 4)),
        ("field:id", (2, 8, 50, 3)),
        ("time", (0, 0, 0, 0)),
        ("time:sent", (1, 60, 60, 4)),
    ],
)
def test_latency_follows_the_rule(tmp_path: Path, rule: str, expected: tuple[int, ...]) -> None:
    """Matches count once; messages without a match are counted too."""
    clock = Clock(1)
    with (
        Queue(tmp_path / "a", page_bytes=SMALL, clock=clock) as first,
        Queue(tmp_path / "b", page_bytes=SMALL, clock=clock) as second,
    ):
        fill(first, (2, b'{"id": 1}'), (10, b'{"id": 2, "a": 0}'), (11, b"[]"), (12, b"\xff"))
        fill(
            second,
            (10, b'{"id": 1}'),
            (60, b'{"id": 2}'),
            (61, b'{"id": 2}'),
            (62, b"no"),
            (70, json.dumps({"sent": 10}).encode()),
        )
        if rule != "time":
            assert found(first, second, rule) == expected
            return
    with Queue(tmp_path / "c", page_bytes=SMALL, clock=clock) as third:
        fill(third, (100, (40).to_bytes(8, "little") + b"x"), (101, b"short"))
        assert found(third, third, "time") == (1, 60, 60, 1)


def test_few_messages_wait_for_their_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones, so that memory does not grow."""
    monkeypatch.setattr(latencies, "WAITING_MAX", 3)
    clock = Clock(1)
    with (
        Queue(tmp_path / "a", page_bytes=SMALL, clock=clock) as first,
        Queue(tmp_path / "b", page_bytes=SMALL, clock=clock) as second,
    ):
        fill(first, *((time, b"%d" % time) for time in range(10, 20)))
        fill(second, *((time + 100, b"%d" % time) for time in range(10, 20)))
        assert found(first, second, "payload") == (3, 100, 100, 7)


@pytest.mark.parametrize("rule", ["", "key", "field", "field:", "time:", "payload:x"])
def test_unknown_rule_is_refused(rule: str) -> None:
    """Typed, and the error lists them."""
    with pytest.raises(InvalidOption, match="field:NAME"):
        Latencies(rule)
