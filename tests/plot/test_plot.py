"""`pagequeue plot`: a picture for any queue, written atomically."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import SMALL, Clock
from tiers import slow_but

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.plot import interactive
from pagequeue.plot.figures import GREEN, SIZE_UNITS
from pagequeue.plot.histograms import SizeBins, TimeBins
from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
START = 1_700_000_000_000_000_000
PNG = b"\x89PNG\r\n\x1a\n"


def make(path: Path, *times: int, size: int = 40) -> str:
    """Make a queue of messages of these times; return its path."""
    with Queue(path, page_bytes=SMALL, clock=Clock(START)) as queue, queue.producer() as producer:
        for number, time in enumerate(times):
            producer.send(b"%d" % number + b"." * (number * size % 1000), timestamp=START + time)
    return str(path)


def size_of(path: Path) -> tuple[int, int]:
    """Return the width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(PNG)
    assert data.endswith(b"IEND\xaeB`\x82")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


TIMES = [(), (0,), (0, 0, 0), (0, 1), tuple(range(0, 300 * 10**9, 10**9)), (0, 10**18)]


@pytest.mark.parametrize("times", slow_but([TIMES[0], TIMES[2], TIMES[5]], TIMES))
def test_any_queue_has_a_picture(tmp_path: Path, times: tuple[int, ...], capsys: Capture) -> None:
    """None, one, many; within a microsecond or over thirty years."""
    directory = make(tmp_path / "q", *times)
    file = tmp_path / "q.png"
    assert main(["plot", directory, "--to", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["messages"] == len(times)
    width, height = size_of(file)
    assert width > 1000
    assert height > 700


@pytest.mark.slow
def test_latency_adds_a_panel(tmp_path: Path, capsys: Capture) -> None:
    """With its figures; also if no message matches."""
    first = make(tmp_path / "a", *range(0, 1000, 10))
    second = make(tmp_path / "b", *range(5, 1005, 10))
    file, plain = tmp_path / "q.png", tmp_path / "p.png"
    assert main(["plot", first, "--to", str(plain)]) == 0
    capsys.readouterr()
    assert main(["plot", first, "--to", str(file), "--latency", second, "--json"]) == 0
    latency = json.loads(capsys.readouterr().out)["latency"]
    assert (latency["matched"], latency["least_ns"], latency["most_ns"]) == (100, 5, 5)
    assert size_of(file)[1] > size_of(plain)[1]
    arguments = ["plot", first, "--to", str(file), "--latency", second, "--force"]
    assert main([*arguments, "--by", "time:sent"]) == 0
    assert "0 messages of" in capsys.readouterr().out
    assert main([*arguments, "--by", "size"]) == 2


@pytest.mark.parametrize("times", slow_but([TIMES[0], TIMES[5]], TIMES))
def test_any_queue_has_a_page_that_loads_nothing(tmp_path: Path, times: tuple[int, ...]) -> None:
    """Its plots are data in the page, and so is the script; a name is no tag in it."""
    directory = make(tmp_path / "<b>q", *times)
    file = tmp_path / "q.html"
    assert main(["plot", directory, "--to", str(file), "--latency", directory]) == 0
    text = file.read_text()
    assert text.startswith("<!doctype html>")
    assert "<b>q" not in text
    assert f"<h1>{tmp_path}/&lt;b&gt;q</h1>" in text
    assert re.findall(r"<(?:script|img|link|iframe)[^>]* (?:src|href)=", text) == []
    drawn = text[text.rindex("Plotly.newPlot(") :]
    assert "payload size" in drawn
    assert "&lt;b&gt;q" in drawn[drawn.index("latency to") :]
    traces, _ = json.JSONDecoder().raw_decode(drawn[drawn.index("[") :])
    assert bool(traces) == bool(times)


def test_page_has_the_figures(tmp_path: Path) -> None:
    """Rates by second, and one bar for each size that there is."""
    directory = make(tmp_path / "q", *range(0, 4 * 10**9, 10**7))
    file = tmp_path / "q.html"
    assert main(["plot", directory, "--to", str(file)]) == 0
    text = file.read_text()
    drawn = text[text.rindex("Plotly.newPlot(") :]
    traces, _ = json.JSONDecoder().raw_decode(drawn[drawn.index("[") :])
    messages, payload_bytes, sizes = traces
    seconds = (messages["x"][-1] - messages["x"][0]) / 1000
    bins = len(messages["y"]) - 1
    assert sum(messages["y"][:-1]) * seconds / bins == pytest.approx(400)
    assert sum(payload_bytes["y"][:-1]) > 100 * sum(messages["y"][:-1])
    assert sum(sizes["y"]) == 400
    assert any("B to" in label for label in sizes["customdata"])


def test_part_of_a_queue_is_drawn(tmp_path: Path, capsys: Capture) -> None:
    """Between two times."""
    directory = make(tmp_path / "q", *range(10))
    span = ["--since", str(START + 3), "--until", str(START + 7)]
    assert main(["plot", directory, "--to", str(tmp_path / "q.png"), *span, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 4


def test_missing_extra_and_existing_file_are_errors(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each; no file is created or overwritten."""
    directory = make(tmp_path / "q", 1)
    file = tmp_path / "q.png"
    file.write_text("mine")
    assert main(["plot", directory, "--to", str(file)]) == 1
    assert "exists already" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", directory, "--to", str(file), "--force"]) == 1
    assert install_command("plot") in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main(["plot", directory, "--to", str(tmp_path / "q.html")]) == 1
    assert install_command("plot") in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.quick_each(3)
@pytest.mark.parametrize(
    ("name", "begins"), [("q.svg", b"<?xml"), ("q.PDF", b"%PDF-"), ("q.png", PNG)]
)
def test_the_suffix_chooses_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    """The suffix decides the file's format."""
    directory = make(tmp_path / "q", 0, 1)
    assert main(["plot", directory, "--to", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("options", "words"), [(["--to", "q.jpeg"], ".svg"), (["--by", "payload"], "--latency")]
)
def test_options_that_would_be_ignored_are_refused(
    tmp_path: Path, capsys: Capture, options: list[str], words: str
) -> None:
    """An unknown suffix, and a rule without queues to match, draw no picture."""
    directory = make(tmp_path / "q", 0)
    assert main(["plot", directory, *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "q.jpeg").exists()


def test_ticks_of_an_interactive_histogram_are_round() -> None:
    """As those of a picture: not 2.83 B; and the labels of quantiles are above its bars."""
    pytest.importorskip("plotly", reason="the extra `plot` is not installed")
    bins = SizeBins()
    bins.add(np.arange(1, 100_000, dtype=np.int64))
    text = interactive.plots([("q", TimeBins())], [(bins, SIZE_UNITS, GREEN, "payload size")])
    drawn = text[text.rindex("Plotly.newPlot(") :]
    decoder = json.JSONDecoder()
    start = drawn.index("[")
    length = decoder.raw_decode(drawn[start:])[1]
    layout, _ = decoder.raw_decode(drawn[drawn.index("{", start + length) :])
    ticks = layout["xaxis3"]["ticktext"]
    assert ticks[:3] == ["1 B", "4 B", "16 B"]
    assert all(re.fullmatch(r"\d+ Ki?B|\d+ B", tick) for tick in ticks)
    assert layout["yaxis3"]["range"][1] > 1.1 * bins.counts.max()
