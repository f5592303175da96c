"""The writers' lock and a group's where the system has no robust mutexes: flock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_guard import output_of

if TYPE_CHECKING:
    from pathlib import Path


def test_queue_without_robust_mutexes_loses_nothing_of_a_process_that_died(tmp_path: Path) -> None:
    """I3: threads and processes exclude each other, and the kernel ends a dead one's lock.

    Another open file that has the lock is waited for, and its lock is not broken.
    """
    found = output_of("use", tmp_path / "q", is_fresh=True, module="no_robust_lists")
    if found is None:
        pytest.skip("no filter of system calls here")
    needs_fd, died, claimed, refused, sequences = found
    assert (needs_fd, died) == (1, -9)
    each = (len(claimed) - 1) // 2
    for thread in "01":
        own = [payload for payload in claimed[:-1] if payload.startswith(thread)]
        assert own == [f"{thread} {i}" for i in range(each)]
    assert claimed[-1] == "last"
    assert refused == ["LockTimeout", "LockTimeout"]
    assert sequences == [*range(len(claimed) + 1)]
