"""Reports of profiles: pages and pictures of no queue, of many, and of queues with odd names."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import pytest
from test_profile import SECOND, filled

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.profile import report
from pagequeue.profile.queues import profile_queues

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n"


def many(tmp_path: Path, count: int) -> dict[str, Callable[[], Queue]]:
    """Make queues of one message, two, three ..., in one directory."""
    return {
        f"/data/queues/{number}": filled(
            tmp_path / f"q{number}", [(SECOND * n, 10) for n in range(1, number + 2)]
        )
        for number in range(count)
    }


def drawn(monkeypatch: pytest.MonkeyPatch, profile: Any) -> Any:  # noqa: ANN401 - axes
    """Draw a profile; return the panels."""
    kept: list[Any] = []
    made = report.plotting.page

    def page(*arguments: Any) -> Any:  # noqa: ANN401 - whatever it takes and returns
        found = made(*arguments)
        kept.extend(found[1])
        return found

    monkeypatch.setattr(report.plotting, "page", page)
    file = io.BytesIO()
    report.write(file, ".png", "queues", profile)
    assert file.getvalue().startswith(PNG)
    return kept


@pytest.mark.slow
def test_picture_names_the_queues_with_most_messages_and_counts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the directory that all are in; rates of the five largest only."""
    found = profile_queues(many(tmp_path, 17))
    panels = drawn(monkeypatch, found)
    names = [label.get_text() for label in panels[4].get_yticklabels()]
    assert names == [str(number) for number in range(2, 17)]
    assert panels[4].get_xlabel() == "messages; 2 more queues are not shown"
    lines = [text.get_text() for text in panels[0].get_legend().get_texts()]
    assert lines == ["16", "15", "14", "13", "12"]


@pytest.mark.slow
def test_picture_tells_what_is_missing_or_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only figures that are not 0 are beside a queue's bar."""
    opened = filled(tmp_path / "a", [(SECOND, 10)] * 3)
    with Queue(tmp_path / "a") as queue, queue.consumer("slow") as consumer:
        consumer.ack(consumer.receive())
    panels = drawn(monkeypatch, profile_queues({"a": opened}))
    assert [text.get_text() for text in panels[4].texts] == [" 3 (lag 2)"]
    assert panels[4].get_xlabel() == "messages"


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("suffix", report.SUFFIXES)
def test_queues_without_messages_have_a_report(tmp_path: Path, suffix: str) -> None:
    """No time is known, and no gap."""
    found = profile_queues({name: filled(tmp_path / name, []) for name in ("a", "b")})
    file = io.BytesIO()
    report.write(file, suffix, "queues", found)
    assert file.getvalue().startswith(PNG if suffix == ".png" else b"<!doctype html>")


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("suffix", report.SUFFIXES)
def test_directories_of_any_name_have_a_report(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of files are bytes: these are no UTF-8, no formula, two lines, not ASCII."""
    for name in (b"\xff\xfe", b"$x_{$", b"two\nlines", "na\u00efve".encode()):
        filled(tmp_path / os.fsdecode(name), [(SECOND, 5), (2 * SECOND, 5)])
    target = tmp_path / f"report{suffix}"
    assert main(["profile", str(tmp_path), "--to", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    data = target.read_bytes()
    assert data.startswith(PNG if suffix == ".png" else b"<!doctype html>")
    if suffix == ".html":
        assert rb"\xff\xfe</td>" in data


def test_name_with_markup_is_a_text_of_the_page(tmp_path: Path) -> None:
    """A user who can create a directory must not run scripts where the report is read."""
    for below in ("a<", "b"):
        filled(tmp_path / below / "script><img src=x onerror=alert(1)>", [(SECOND, 5)])
    target = tmp_path / "report.html"
    assert main(["profile", str(tmp_path), "--to", str(target)]) == 0
    page = target.read_text()
    assert "&lt;img src=x onerror" in page
    assert "<img src=x onerror" not in page
