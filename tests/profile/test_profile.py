"""Figures of queues, against counts by hand; `pagequeue profile`."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import flip
from tiers import examples

from pagequeue import CorruptFrame, Queue
from pagequeue.cli import main
from pagequeue.profile.queues import profile_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECOND = 10**9


def filled(directory: Path, messages: list[tuple[int, int]]) -> Callable[[], Queue]:
    """Make a queue of messages of given times (ns) and sizes; return what opens it."""
    with Queue(directory, page_bytes=4096) as queue, queue.producer() as producer:
        for time, size in messages:
            producer.send(bytes(size), timestamp=time)
    return partial(Queue, directory, read_only=True)


def test_figures_are_those_of_the_messages(tmp_path: Path) -> None:
    """Sizes, gaps, rates and lags; of all together sequences are those of no queue."""
    first = filled(tmp_path / "a", [(SECOND * n, 10 * n) for n in range(1, 12)])
    second = filled(tmp_path / "b", [(SECOND * 100, 7)])
    with Queue(tmp_path / "a") as queue, queue.consumer("slow") as consumer:
        consumer.ack(consumer.receive())
    found = profile_queues({"a": first, "b": second})
    one, other = found.queues
    assert (one.queue, one.messages, one.payload_bytes, one.rate) == ("a", 11, 660, 1.0)
    assert (one.first_sequence, one.last_sequence) == (0, 10)
    assert (one.first_timestamp, one.last_timestamp) == (SECOND, 11 * SECOND)
    assert (one.gaps.total, one.gaps.least, one.gaps.most) == (10, SECOND, SECOND)
    assert (one.sizes.least, one.sizes.most) == (10, 110)
    assert (one.missing, one.late, one.duplicates, one.lags) == (0, 0, 0, {"slow": 10})
    assert (other.messages, other.gaps.total, other.lag) == (1, 0, None)
    total = found.total
    assert (total.messages, total.payload_bytes, total.lag) == (12, 667, 10)
    assert (total.first_timestamp, total.last_timestamp) == (SECOND, 100 * SECOND)
    assert total.times.messages.sum() == 12
    assert one.times.bin_ns == other.times.bin_ns == total.times.bin_ns


times = st.integers(1700 * 10**15, 1700 * 10**15 + (1 << 40))
messages = st.lists(st.tuples(times, st.integers(0, 3000)), max_size=40)


@given(queues=st.lists(messages, max_size=3), since=st.none() | times, data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_ranges_are_counted_as_by_hand(
    queues: list[list[tuple[int, int]]],
    since: int | None,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Any times and sizes, empty queues, and ranges that leave out everything."""
    until = data.draw(st.none() | times.filter(lambda time: time >= (since or 0)))
    base = tmp_path_factory.mktemp("queues")
    queues = [sorted(messages) for messages in queues]
    opened = {str(n): filled(base / str(n), one) for n, one in enumerate(queues)}
    found = profile_queues(opened, since=since, until=until)
    chosen = [
        [(t, s) for t, s in one if t >= (since or 0) and (until is None or t < until)]
        for one in queues
    ]
    for figures, kept in zip(found.queues, chosen, strict=True):
        assert figures.messages == len(kept)
        assert figures.payload_bytes == sum(size for _, size in kept)
        assert figures.first_timestamp == (kept[0][0] if kept else None)
        assert figures.last_timestamp == (kept[-1][0] if kept else None)
        assert (figures.missing, figures.late, figures.duplicates) == (0, 0, 0)
        assert figures.gaps.total == max(0, len(kept) - 1)
        assert figures.times.messages.sum() == len(kept)
        bins = {(t - (figures.times.start or 0)) // figures.times.bin_ns for t, _ in kept}
        assert set(np.flatnonzero(figures.times.messages).tolist()) == bins
    assert found.total.messages == sum(map(len, chosen))


def test_one_queue_is_open_at_a_time(tmp_path: Path) -> None:
    """So that the limit of open files does not limit how many queues there are."""
    now_open: list[str] = []

    @contextlib.contextmanager
    def opened(name: str) -> Iterator[Queue]:
        now_open.append(name)
        assert len(now_open) == 1
        with Queue(tmp_path / name) as queue:
            yield queue
        now_open.remove(name)

    for name in "abc":
        filled(tmp_path / name, [(1, 1)])
    found = profile_queues({name: partial(opened, name) for name in "abc"})  # type: ignore[misc]
    assert found.total.messages == 3


def test_messages_that_come_meanwhile_are_counted_or_not(tmp_path: Path) -> None:
    """They are later than the last bin, and fall into it."""
    opens = filled(tmp_path / "a", [(SECOND, 1), (2 * SECOND, 1)])
    told = []

    def opened() -> Queue:
        told.append("opened")
        if len(told) == 2:
            with Queue(tmp_path / "a") as queue:
                queue.producer().send(b"late", timestamp=SECOND << 20)
        return opens()

    steps: list[tuple[int, int]] = []
    found = profile_queues({"a": opened}, progress=lambda done, count: steps.append((done, count)))
    assert found.queues[0].messages == 3
    assert found.queues[0].times.messages.sum() == 3
    assert steps[-1] == (2, 2)


def test_the_messages_in_all_are_those_of_the_range(tmp_path: Path) -> None:
    """The first that is not older than the end of the range is not among them."""
    opens = filled(tmp_path / "a", [(1000, 1), (2000, 1), (2000, 1)])
    steps: list[tuple[int, int]] = []
    told = lambda done, count: steps.append((done, count))  # noqa: E731
    assert profile_queues({"a": opens}, until=2000, progress=told).total.messages == 1
    assert steps == [(1, 1)]


def test_damage_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No figure is shown that leaves out messages, and no page is written."""
    opens = filled(tmp_path / "a", [(n, 50) for n in range(1, 4)])
    flip(tmp_path / "a" / "queue-0000000001.page", 64 + 16 + 3)
    with pytest.raises(CorruptFrame):
        profile_queues({"a": opens})
    target = tmp_path / "page.html"
    assert main(["profile", str(tmp_path), "--to", str(target)]) == 1
    assert "queue-0000000001.page" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.slow
def test_command_finds_queues_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of other prefixes, whose names tell them; the table has a line for all together."""
    filled(tmp_path / "deep" / "a", [(SECOND, 5), (3 * SECOND, 5)])
    with Queue(tmp_path / "b", prefix="other") as queue:
        queue.producer().send(b"xyz", timestamp=SECOND)
    target = tmp_path / "page.html"
    assert main(["profile", str(tmp_path), "--to", str(target)]) == 0
    out = capsys.readouterr().out
    titles, *lines = out.splitlines()
    assert titles.split()[:3] == ["queue", "messages", "payload"]
    names = [line.split()[:2] for line in lines[:3]]
    assert names == [[f"{tmp_path}/b#other", "1"], [f"{tmp_path}/deep/a", "2"], ["all", "3"]]
    assert lines[3] == f"drawn in {target}"
    assert "all queues" in target.read_text()
    assert main(["profile", f"{tmp_path}/deep", f"{tmp_path}/deep/a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["queue"] for one in found["queues"]] == [f"{tmp_path}/deep/a"]
    assert found["total"]["payload_bytes"] == 10
    assert found["queues"][0]["gaps"]["p50"] == pytest.approx(2 * SECOND, rel=0.2)


def test_directories_may_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue is shown once, however often it is meant."""
    filled(tmp_path / "top" / "deep" / "a", [(SECOND, 5)])
    with Queue(tmp_path / "top" / "b", prefix="other") as queue:
        queue.producer().send(b"xyz", timestamp=SECOND)
    for below in ("", "deep", "b"):
        assert main(["profile", f"{tmp_path}/top", f"{tmp_path}/top/{below}", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["total"]["messages"] == len(found["queues"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["{0}/none"], 1, "none: No such file or directory"),
        (["{0}/empty"], 1, "empty: no queue here or below"),
        (["{0}/q", "--to", "{0}/x.gif"], 2, "neither of .png, .html"),
        (["{0}/q", "--to", "{0}/there.html"], 1, "exists already"),
        ([], 2, "Missing argument 'DIR...'"),
    ],
)
def test_wrong_use_is_told_and_writes_nothing(
    arguments: list[str],
    code: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And creates no queue."""
    filled(tmp_path / "q", [(1, 1)])
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.html").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(["profile", *(one.format(tmp_path) for one in arguments)]) == code
    assert told in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.html").read_text() == "mine"
