"""Checks of arguments: an error of this package, whatever the value's own class does."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import InvalidOption, InvalidType, Queue, QueueNotFound, verify_queue
from pagequeue.util import arguments

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS: dict[str, Any] = {
    "several": np.array([1.0, 2.0]),
    "none": np.array([]),
    "text": np.array("soon"),
    "complex": np.array([1j, 2j]),
}
"""They have what a number has, and no value as one."""


@pytest.mark.parametrize("name", ARRAYS)
def test_array_is_no_number(tmp_path: Path, name: str) -> None:
    """NumPy's own error names no argument."""
    with pytest.raises(InvalidType, match="span must be a number, not ndarray"):
        arguments.number("span", ARRAYS[name])
    with Queue(tmp_path, page_bytes=4096) as queue, queue.producer() as producer:
        for call in (producer.flush, lambda timeout: queue.consumer().receive(timeout)):
            with pytest.raises(InvalidType, match="timeout must be a number, not ndarray"):
                call(ARRAYS[name])


def test_numbers_of_all_classes_are_taken() -> None:
    """What is a number in Python or NumPy is one here."""
    for value in (1, 1.0, Fraction(2, 2), np.int8(1), np.float32(1.0), np.array(1)):
        assert arguments.number("span", value) == 1.0
    with pytest.raises(InvalidOption, match="span is"):
        arguments.number("span", Fraction(10**400))


def test_relative_path_in_a_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any directory that is not there, and not as an error of the system's."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    for call in (Queue, verify_queue):
        with pytest.raises(QueueNotFound, match="'q', and the current directory was removed"):
            call("q")
    Queue(tmp_path / "q", page_bytes=4096).close()
