"""Messages around the ends of pages against a model, through each way to read many at once."""

from __future__ import annotations

import random
import tempfile
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagequeue import Queue, merge
from pagequeue import format as fmt
from pagequeue.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
PAGE_BYTES = 4096
LIMIT = fmt.payload_bytes_max(PAGE_BYTES)
ENDS = [LIMIT, LIMIT + 1, 2 * PAGE_BYTES, 3 * LIMIT]
SIZES = st.one_of(
    st.integers(0, 64),
    st.builds(lambda end, more: end + more, st.sampled_from(ENDS), st.integers(-24, 24)),
)
BATCHES = st.lists(st.lists(SIZES, min_size=1, max_size=5), min_size=1, max_size=5)
STEPS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


class Sent(NamedTuple):
    """A message of the model."""

    timestamp: int
    payload: bytes


def sent_to(queue: Queue, batches: list[list[int]], steps: list[int], seed: int) -> list[Sent]:
    """Send batches of payloads of these sizes, at times that these steps lead to."""
    rng = random.Random(seed)
    time = 0
    model: list[Sent] = []
    with queue.producer() as producer:
        for batch in batches:
            messages: list[Sent] = []
            for size in batch:
                time += steps[(len(model) + len(messages)) % len(steps)]
                messages.append(Sent(time, rng.randbytes(size)))
            first = len(model)
            sent = producer.send_many(
                [one.payload for one in messages], timestamps=[one.timestamp for one in messages]
            )
            assert sent == range(first, first + len(messages))
            model += messages
    return model


@settings(max_examples=examples(12))
@given(BATCHES, STEPS, st.data())
def test_columns_times_and_copies_are_those_of_the_model(
    batches: list[list[int]], steps: list[int], data: st.DataObject
) -> None:
    """I1, I23: batches, Arrow, last, between, as_of, and a file that is imported again."""
    pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as folder, Queue(f"{folder}/q", page_bytes=PAGE_BYTES) as q:
        model = sent_to(q, batches, steps, 1)
        payloads = [one.payload for one in model]
        times = [one.timestamp for one in model]
        limit = data.draw(st.integers(1, 7))
        found = list(q.batches(limit_count=limit))
        assert [payload for batch in found for payload in batch.payloads] == payloads
        columns = [batch.to_arrow()["payload"].to_pylist() for batch in found]
        assert [payload for column in columns for payload in column] == payloads
        count = data.draw(st.integers(0, len(model)))
        assert q.last(count).payloads == payloads[len(model) - count :]
        since, until = sorted(data.draw(st.tuples(*[st.integers(0, times[-1] + 2)] * 2)))
        expected = [one.payload for one in model if since <= one.timestamp < until]
        assert q.between(since, until).payloads == expected
        wanted = list(range(times[-1] + 2))
        assert q.as_of(wanted).tolist() == [bisect_right(times, time) - 1 for time in wanted]
        suffix = data.draw(st.sampled_from(["arrow", "jsonl", "parquet"]))
        copied = f"{folder}/copy.{suffix}"
        assert main(["export", f"{folder}/q", "--to", copied]) == 0
        assert main(["import", f"{folder}/again", "--from", copied]) == 0
        with Queue(f"{folder}/again") as again:
            assert [(one.timestamp, one.payload) for one in again.replay()] == model


@settings(max_examples=examples(12))
@given(BATCHES, BATCHES, STEPS)
def test_two_queues_are_merged_as_the_model(
    one: list[list[int]], other: list[list[int]], steps: list[int]
) -> None:
    """I1, I23: in order of time, of equal ones the first queue's before, one by one and in many."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Queue(f"{folder}/a", page_bytes=PAGE_BYTES) as first,
        Queue(f"{folder}/b", page_bytes=2 * PAGE_BYTES) as second,
    ):
        pairs = [(first, sent_to(first, one, steps, 1)), (second, sent_to(second, other, steps, 2))]
        expected = sorted(
            (
                (sent.timestamp, place, sent.payload)
                for place, (_, model) in enumerate(pairs)
                for sent in model
            ),
            key=lambda each: each[:2],
        )
        with merge([first, second]) as merged:
            assert [each.message.payload for each in merged] == [each[2] for each in expected]
        with merge([first, second]) as merged:
            found = [payload for batch in merged.batches(3) for payload in batch.payloads]
        assert found == [each[2] for each in expected]


@settings(max_examples=examples(12))
@given(BATCHES, st.lists(st.booleans(), min_size=1, max_size=8))
def test_group_gives_each_until_it_is_acknowledged(
    batches: list[list[int]], answers: list[bool]
) -> None:
    """I14, I15, I23: refused ones come again, whole; the queue is read whole meanwhile."""
    with tempfile.TemporaryDirectory() as folder, Queue(folder, page_bytes=PAGE_BYTES) as queue:
        model = sent_to(queue, batches, [1], 3)
        waiting = deque(one.payload for one in model)
        refused: deque[bytes] = deque()
        with queue.group("workers") as group:
            for turn in range(100):
                claims = group.claim_many(3, timeout=0) if waiting or refused else []
                if not claims:
                    break
                for claim in claims:
                    came = refused if claim.deliveries > 1 else waiting
                    assert claim.message.payload == came[0]
                    came.popleft()
                    if answers[turn % len(answers)] or claim.deliveries > 1:
                        claim.ack()
                    else:
                        refused.append(claim.message.payload)
                        claim.nack(0)
        assert not waiting
        assert not refused
        assert [each.payload for each in queue.replay()] == [one.payload for one in model]


def test_stored_files_are_left_nowhere(tmp_path: Path) -> None:
    """What was staged for batches around the ends of pages is removed."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        sent_to(queue, [[end + more] for end in ENDS for more in range(-2, 3)], [0], 4)
        assert queue.verify().problems == []
    assert [path.name for path in (tmp_path / "q" / "queue-staged").iterdir()] == ["lock"]
