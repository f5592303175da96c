"""What somebody found who had only read the README."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from test_cli import Capture, call

from pagequeue import Queue, Retention, errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seconds", [-1.0, 1e10, math.inf, math.nan])
def test_span_of_a_claim_has_a_limit(tmp_path: Path, seconds: float) -> None:
    """Nothing is parked for ever by a number that is none; the claim stays as it was."""
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        producer.send(b"x")
        with queue.group("g") as group:
            claim = group.claim(timeout=1.0)
            with pytest.raises(ValueError, match=r"delay is .*: give seconds from 0 to 1e9"):
                claim.nack(delay=seconds)
            with pytest.raises(ValueError, match=r"seconds is .*: give seconds from 0 to 1e9"):
                claim.extend(seconds)
            claim.ack()


def test_time_between_syncs_has_a_limit(tmp_path: Path) -> None:
    """No thread can wait for 270,000 years: that is said at once, and nothing is made."""
    with pytest.raises(errors.InvalidOption, match="200 years at most"):
        Queue(tmp_path / "q", sync=timedelta(days=99_999_999))
    assert not (tmp_path / "q").exists()


def test_group_that_was_passed_is_told_what_helps(tmp_path: Path) -> None:
    """A group has no seek: the option that goes on is named, and goes on."""
    retention = Retention(max_bytes=16_384, keep_unacked=False)
    with Queue(tmp_path / "q", page_bytes=4096, retention=retention) as queue:
        queue.group("g").close()
        with queue.producer() as producer:
            for _ in range(50):
                producer.send(bytes(1000))
        queue.trim()
        with queue.group("g") as group, pytest.raises(errors.Expired, match="on_expired='skip'"):
            group.claim(timeout=0)
        with queue.group("g", on_expired="skip") as group:
            assert group.claim(timeout=1.0).message.sequence == queue.head_sequence


@pytest.mark.parametrize("interval", ["nan", "inf"])
def test_watching_needs_an_interval_that_ends(
    tmp_path: Path, capfdbinary: Capture, interval: str
) -> None:
    """A usage error, not a traceback behind the first look."""
    Queue(tmp_path / "q").close()
    code, _, said = call(
        capfdbinary, "info", str(tmp_path / "q"), "--watch", "--interval", interval, "--count", "2"
    )
    assert code == 2
    assert "not a number of seconds" in said
