"""The command line and named consumers: listing, removing, receiving on."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
import warm

from pagequeue import Queue
from pagequeue.cli import main

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[bytes]


def call(capture: Capture, *arguments: str | Path) -> tuple[int, bytes, str]:
    """Run the command in this process, and return exit code, stdout and stderr."""
    code = main([str(argument) for argument in arguments])
    out, err = capture.readouterr()
    return code, out, err.decode()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue of ten messages."""
    path = tmp_path / "events"
    with Queue(path, page_bytes=65536) as queue, queue.producer() as producer:
        for number in range(10):
            producer.send(b"%d" % number, timestamp=(number + 1) * 10**18 // 10)
    return path


def test_receiving_continues_after_the_output_written_before(
    directory: Path, capfdbinary: Capture
) -> None:
    """Each message is printed once over several runs; later messages follow."""
    arguments = ("receive", directory, "--consumer", "billing")
    assert call(capfdbinary, *arguments, "--until", 5 * 10**17)[:2] == (0, b"0\n1\n2\n3\n")
    assert call(capfdbinary, *arguments)[:2] == (0, b"4\n5\n6\n7\n8\n9\n")
    assert call(capfdbinary, *arguments)[:2] == (0, b"")
    with Queue(directory) as queue:
        queue.producer().send(b"new")
    assert call(capfdbinary, *arguments)[:2] == (0, b"new\n")


def test_message_that_could_not_be_written_is_not_acknowledged(directory: Path) -> None:
    """It is redelivered: the reader that exited never got it."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pagequeue.cli", "receive", str(directory), "--consumer", "b"]
    done = warm.run(command, stdout=writing, stderr=warm.PIPE, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 141, done.stderr
    with Queue(directory) as queue:
        assert queue.consumers()[0].next_sequence == 0


def test_listing_is_available_as_text_and_json(directory: Path, capfdbinary: Capture) -> None:
    """Name, place, lag, age, and whether a process has it open; `info` has them too."""
    with Queue(directory) as queue:
        queue.consumer("shop").close()
        with queue.consumer("billing") as consumer:
            consumer.receive_many(4)
            consumer.ack()
            code, out, _ = call(capfdbinary, "consumers", directory)
    assert code == 0
    titles, first, second = (" ".join(line.split()) for line in out.decode().splitlines())
    assert titles == "consumer next lag last ack state"
    assert first.startswith("billing 4 6 2")
    assert first.endswith(" open")
    assert second == "shop 0 10 never not open"
    lines = call(capfdbinary, "consumers", directory, "--json")[1].splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["name"], row["next_sequence"], row["lag"]) for row in rows] == [
        ("billing", 4, 6),
        ("shop", 0, 10),
    ]
    assert json.loads(call(capfdbinary, "info", directory, "--json")[1])["consumers"] == rows
    (directory / "queue-readMeta.shop").write_bytes(b"damage")
    last = call(capfdbinary, "consumers", directory)[1].splitlines()[-1]
    assert last.split()[:5] == [b"shop", b"-", b"-", b"-", b"damaged:"]


def test_removing_and_errors_are_one_line(directory: Path, capfdbinary: Capture) -> None:
    """Exit code 1 with the remedy, or 2 where the call is wrong."""
    with Queue(directory) as queue:
        with queue.consumer("billing"):
            code, _, err = call(capfdbinary, "consumers", directory, "--remove", "billing")
            assert (code, "is open" in err) == (1, True)
        assert call(capfdbinary, "consumers", directory, "--remove", "billing")[0] == 0
        assert queue.consumers() == []
    code, _, err = call(capfdbinary, "consumers", directory, "--remove", "billing")
    assert (code, "no consumer has the name" in err) == (1, True)
    assert call(capfdbinary, "consumers", directory / "none")[0] == 1
    for extra in (["--last", "1"], ["--sequence", "1"], ["--since", "1m"]):
        code, _, err = call(capfdbinary, "receive", directory, "--consumer", "x", *extra)
        assert (code, "leave the place" in err) == (2, True)
    assert call(capfdbinary, "receive", directory / "none", "--consumer", "x")[0] == 1


def test_groups_are_listed_with_their_claims(directory: Path, capfdbinary: Capture) -> None:
    """The line counts claims, messages to be redelivered and dead letters; so does JSON."""
    with Queue(directory) as queue:
        group = queue.group("workers", capacity=16)
        claims = group.claim_many(3, timeout=0)
        claims[0].ack()
        claims[1].nack(delay=3600)
        code, out, _ = call(capfdbinary, "consumers", directory)
        assert code == 0
        assert out.splitlines()[1].split()[:3] == [b"workers", b"1", b"9"]
        assert b"group: 1 claimed, 1 to be redelivered, 0 dead letters" in out
        code, out, _ = call(capfdbinary, "consumers", directory, "--json")
        assert json.loads(out)["group"] == {
            "claimed": 1,
            "waiting": 1,
            "ready": 7,
            "dead_letters": 0,
            "missed": 0,
            "capacity": 16,
        }
        assert call(capfdbinary, "consumers", directory, "--remove", "workers")[0] == 1
    assert call(capfdbinary, "consumers", directory, "--remove", "workers")[0] == 0
    assert call(capfdbinary, "consumers", directory)[1] == b""
