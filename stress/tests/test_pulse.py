"""The process that beats: what it lost tells how long a machine stood still."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from stress import children
from stress.pulse import Pulse

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STOPPED_SECONDS = 0.3


def test_time_without_a_processor_is_lost(tmp_path: Path) -> None:
    """While it does not run, and afterwards."""
    errors = children.ErrorFile(tmp_path / "errors")
    pulse = Pulse(errors)
    before = pulse.lost_seconds()
    os.kill(pulse._pid, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    during = pulse.lost_seconds()
    os.kill(pulse._pid, signal.SIGCONT)
    assert during - before > STOPPED_SECONDS / 2
    assert pulse.lost_seconds() >= during - STOPPED_SECONDS / 10
    pulse.end()
    assert errors.said() == []
    errors.close()


def test_beats_in_time_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: by a clock that goes on as it should."""
    now = [1_000_000_000]

    def sleep(seconds: float) -> None:
        now[0] += int(seconds * 1e9) + 1_000_000
        if now[0] > 2_000_000_000:
            raise InterruptedError

    errors = children.ErrorFile(tmp_path / "errors")
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(children, "fork", lambda *_: 0)
    pulse = Pulse(errors)
    try:
        pulse._beat()
    except InterruptedError:
        assert pulse.lost_seconds() == 0.0
    errors.close()
