"""The examples in the docstrings of `Queue`, run one by one against a queue of five messages."""

from __future__ import annotations

import doctest
import inspect
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from pagequeue import Queue

if TYPE_CHECKING:
    from pathlib import Path

PAYLOADS: Final = [b"one", b"two", b"three", b"four", b"five"]
EXAMPLES: Final = {
    example.name: example
    for example in doctest.DocTestFinder(recurse=True, exclude_empty=True).find(Queue)
    if example.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An example that does not run misleads its readers."""
    if name == "Queue.compress":
        pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    monkeypatch.chdir(tmp_path)
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
        if name not in {"Queue.producer", "Queue.persist"}:  # these send their own
            with queue.producer() as producer:
                producer.send_many(PAYLOADS)
        if name in {"Queue.consumers", "Queue.remove_consumer"}:
            with queue.consumer("billing") as consumer:
                consumer.receive()
                consumer.ack()
        example = EXAMPLES[name]
        example.globs = {"Queue": Queue, "queue": queue, "time": time, "timedelta": timedelta}
        report: list[str] = []
        doctest.DocTestRunner(verbose=False).run(example, out=report.append)
        assert not report, "".join(report)


def test_every_public_method_has_an_example() -> None:
    """Also one that is added later."""
    public = {name for name, value in vars(Queue).items() if inspect.isfunction(value)}
    with_example = {name.removeprefix("Queue.") for name in EXAMPLES}
    assert {name for name in public if not name.startswith("_")} <= with_example
