"""Groups over compressed pages: claims come from memory that is filled as it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("zstandard", reason="compression needs the extra zstd")

COUNT = 12_000
PAGE_BYTES = 1 << 20


def payload(number: int) -> bytes:
    """Return what message `number` carries."""
    return b"%09d" % number * 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a queue of which all sealed pages are compressed, in several blocks each."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            for number in range(COUNT):
                producer.send(payload(number))
        assert queue.compress().pages >= 2
    return tmp_path / "q"


def test_every_message_is_claimed_once_from_compressed_pages(directory: Path) -> None:
    """I15: one after the other, block by block, each with its own payload."""
    with Queue(directory) as queue, queue.group("workers") as group:
        for number in range(COUNT):
            claim = group.claim(timeout=1.0)
            assert (claim.message.sequence, claim.message.payload) == (number, payload(number))
            claim.ack()
        with pytest.raises(TimeoutError):
            group.claim(timeout=0)


def test_messages_that_were_given_back_are_found_in_compressed_pages(directory: Path) -> None:
    """I14: also by another process's handle, which comes from the index, and backwards."""
    with Queue(directory) as queue, queue.group("workers") as group:
        kept = {claim.message.sequence: claim for claim in group.claim_many(COUNT)}
        while len(kept) < COUNT:
            kept.update({claim.message.sequence: claim for claim in group.claim_many(COUNT)})
        chosen = [0, 1, 4000, 4001, 8000, COUNT - 1]
        for number in reversed(chosen):
            kept[number].nack(0)
        with Queue(directory) as other, other.group("workers") as second:
            found = [second.claim(timeout=60) for _ in chosen]
            assert [claim.message.sequence for claim in found] == chosen
            assert [claim.message.payload for claim in found] == [payload(n) for n in chosen]
            assert {claim.deliveries for claim in found} == {2}


def test_page_that_is_compressed_under_a_group_has_the_same_messages(tmp_path: Path) -> None:
    """A handle that has the old file mapped finishes it; the next page is inflated."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            for number in range(COUNT):
                producer.send(payload(number))
        with queue.group("workers") as group:
            got = [group.claim(timeout=60) for _ in range(100)]
            assert queue.compress().pages >= 2
            while len(got) < COUNT:
                got += group.claim_many(1000, timeout=60)
            assert [claim.message.payload for claim in got] == [payload(n) for n in range(COUNT)]
