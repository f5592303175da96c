"""The command line and compressed pages."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.page import zstd
from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
PAGE = 65536


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue of some pages."""
    path = tmp_path / "events"
    with Queue(path, page_bytes=PAGE) as queue, queue.producer() as producer:
        for number in range(3000):
            producer.send(b"line %06d " % number * 8)
    return path


def test_pages_are_compressed_and_read_as_before(directory: Path, capsys: Capture) -> None:
    """The output has the size before and after."""
    assert main(["receive", str(directory)]) == 0
    before = capsys.readouterr().out
    assert main(["compress", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "pages compressed" in out
    assert main(["receive", str(directory)]) == 0
    assert capsys.readouterr().out == before
    assert main(["verify", str(directory)]) == 0
    capsys.readouterr()
    assert main(["info", str(directory), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["compressed_page_count"] == figures["page_count"] - 1 > 2


def test_json_and_rotate(directory: Path, capsys: Capture) -> None:
    """One object with the report's fields; with `--rotate` every message is compressed."""
    assert main(["compress", str(directory), "--rotate", "--level", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bytes_before"] == report["pages"] * PAGE > report["bytes_after"] * 3 > 0
    assert report["pages_left"] == 0
    with Queue(directory) as queue:
        assert queue.info().compressed_page_count == report["pages"]
        assert queue.info().tail_page == report["pages"] + 1


def test_missing_extra_and_missing_queue_are_reported(
    directory: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each, with the remedy; no file is created."""
    assert main(["compress", str(tmp_path / "none")]) == 1
    assert "no queue here" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(zstd, "_known", {})
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    assert main(["compress", str(directory)]) == 1
    assert install_command("zstd") in capsys.readouterr().err
    assert main(["compress", str(directory), "--level", "99"]) == 2
