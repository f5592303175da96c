"""What a repair reads: each page for itself and once more to verify it, and no listing again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torn_pages import page, payloads, zero

from pagequeue import Queue, repair_queue
from pagequeue import format as fmt
from pagequeue.integrity import repair, verify
from pagequeue.page import compressed_page

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGES = 20
SENT = [b"%3d" % number * 300 for number in range(4 * PAGES)]


def test_repair_of_one_header_looks_at_each_page_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is inspected before, and by the verification after it."""
    with Queue(tmp_path, page_bytes=4096) as queue, queue.producer() as producer:
        for payload in SENT:
            producer.send(payload)
        assert queue.info().tail_page == PAGES
    zero(page(tmp_path, PAGES // 2), 0, fmt.PAGE_HEADER_BYTES)
    calls: list[str] = []

    def count(module: object, name: str) -> None:
        real = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> object:  # noqa: ANN401 - passed on
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    count(repair, "inspect")
    count(verify, "inspect")
    count(compressed_page, "map_opened")
    report = repair_queue(tmp_path)
    monkeypatch.undo()
    assert len(report.actions) == 2  # and a flush: the flag of a commit can have been in it
    assert report.ok
    assert calls.count("inspect") == 2
    assert calls.count("map_opened") < 45
    with Queue(tmp_path) as queue:
        assert payloads(queue) == SENT
