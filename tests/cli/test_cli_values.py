"""The command with queues of records and codecs: JSON for people, bytes where asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.producer.producer import Producer
from pagequeue.schema import dtype_json

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RECORD = np.dtype(
    [("time", "<M8[s]"), ("name", "S4"), ("wave", "<c8"), ("at", [("x", "?")], (2,)), ("raw", "V2")]
)
SHOWN = {
    "time": "1970-01-01T00:00:01",
    "name": "ab",
    "wave": [1.0, 2.0],
    "at": [{"x": True}, {"x": False}],
    "raw": "//8=",
}


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command; return what it printed."""
    assert main(arguments) == 0
    return capfd.readouterr().out


def lines(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    """Return the JSON of each line that the command prints."""
    return [json.loads(line) for line in run(capfd, *arguments).splitlines()]


def test_records_are_printed_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Raw is bytes still; what is no record is printed as its payload."""
    row = np.array([(1, b"ab", 1 + 2j, [(True,), (False,)], b"\xff\xff")], RECORD)
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(row)
    path = str(tmp_path)
    assert lines(capfd, "receive", path) == [SHOWN]
    assert lines(capfd, "receive", path, "--format", "json")[0]["value"] == SHOWN
    raw = run(capfd, "receive", path, "--format", "raw", "--length-prefixed")
    assert len(raw) > RECORD.itemsize // 2
    told = json.loads(run(capfd, "info", path, "--json"))
    assert dtype_json.parse(told["dtype"]) == RECORD
    assert told["codec"] == "bytes"
    assert "symbol" not in run(capfd, "info", path)
    with Queue(tmp_path) as queue, Producer(queue._store) as stranger:
        stranger.send(b"no record")
    assert run(capfd, "receive", path, "--last", "1") == "no record\n"
    assert lines(capfd, "receive", path, "--format", "json", "--last", "1")[0]["payload"]
    assert main(["verify", path]) == 1
    assert "9 bytes, a record has" in capfd.readouterr().out


def test_values_are_printed_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """JSON as such, MessagePack as JSON; text as text."""
    for name, values in {
        "json": [{"a": [1, "ü"]}, 3],
        "msgpack": [{"b": b"raw"}, [b"\xff"]],
        "utf-8": ["ü"],
    }.items():
        path = tmp_path / name
        with Queue(path, codec=name) as queue, queue.producer() as producer:
            producer.send_many(values)
    assert lines(capfd, "receive", str(tmp_path / "json")) == [{"a": [1, "ü"]}, 3]
    assert lines(capfd, "receive", str(tmp_path / "msgpack")) == [{"b": "raw"}, ["/w=="]]
    assert run(capfd, "receive", str(tmp_path / "utf-8")) == "ü\n"
    first = lines(capfd, "receive", str(tmp_path / "json"), "--format", "json")[0]
    assert first["value"] == {"a": [1, "ü"]}
    assert "payload" not in first
    assert '"codec": "json"' in run(capfd, "info", str(tmp_path / "json"), "--json")


def test_lines_are_encoded_by_the_codec(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error names a line that is not JSON; its batch and later lines are not sent."""
    path, source = str(tmp_path / "queue"), tmp_path / "lines"
    source.write_text('{"a": 1}\n"text"\n')
    run(capfd, "send", path, "--codec", "json", "--file", str(source))
    with Queue(path) as queue:
        assert [message.value for message in queue.replay()] == [{"a": 1}, "text"]
    source.write_text("1\n{\n")
    assert main(["send", path, "--file", str(source)]) == 1
    assert "line 2 is invalid in the queue's codec" in capfd.readouterr().err
    with Queue(path) as queue:
        assert len(queue) == 2
    assert main(["send", path, "--codec", "utf-8", "--file", str(source)]) == 1
    assert "leave --codec out" in capfd.readouterr().err
    assert main(["send", str(tmp_path / "p"), "--codec", "pickle", "--file", str(source)]) == 2
    assert "has no text form" in capfd.readouterr().err
