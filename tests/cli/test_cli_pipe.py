"""`receive --consumer` acknowledges exactly the messages that its reader has read."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
from typing import IO, TYPE_CHECKING

import pytest
import warm
from support import until
from tiers import slow_but_rows

from pagequeue import Queue
from pagequeue.cli.stdout import Outlet

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 500
WAIT_SECONDS = 60.0
RECEIVE = [sys.executable, "-m", "pagequeue", "receive"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue with the numbers from 0 on."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=65_536) as queue, queue.producer() as producer:
        producer.send_many([b"%d" % number for number in range(COUNT)])
    return path


FRAMED = [
    ("", "head -n 3", 3),
    ("--follow", "head -n 3", 3),
    ("--format json", "head -n 70", 70),
    ("--format raw --null", "head -z -n 5", 5),
    ("--format raw --length-prefixed", "head -c 10", 2),
    ("", "sed 4q", 4),
]


def acknowledged(directory: Path) -> int:
    """Return how many messages the consumer has acknowledged."""
    with Queue(directory, create=False, read_only=True) as queue:
        return queue.consumers()[0].next_sequence


def left_bytes(pipe: IO[bytes] | None) -> int:
    """Return how many bytes are in a pipe."""
    found = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, found)  # type: ignore[arg-type]
    return int.from_bytes(found, sys.byteorder)


def shell(directory: Path, command: str) -> str:
    """Run a pipeline, in which `$R` receives, and return what it printed."""
    receive = f"pagequeue receive {directory} --consumer shop"
    done = subprocess.run(
        ["bash", "-c", command.replace("$R", receive)],
        env=warm.environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("options", "reader", "count"),
    slow_but_rows([FRAMED[1], FRAMED[2], FRAMED[4]], FRAMED),
)
def test_a_reader_that_exits_has_all_acknowledged_messages(
    directory: Path, options: str, reader: str, count: int
) -> None:
    """What `head` has shown is acknowledged, and not a message more, however it is framed."""
    shell(directory, f"$R {options} | {reader}")
    assert acknowledged(directory) == count
    assert shell(directory, "$R | head -n 1").strip() == str(count)


def test_message_left_in_the_pipe_is_not_acknowledged(directory: Path) -> None:
    """A reader that never reads acknowledges no message, even if the pipe has room for all."""
    shell(directory, "$R | sleep 1")
    assert acknowledged(directory) == 0


def test_steps_that_were_asked_for_are_acknowledged_as_a_whole(directory: Path) -> None:
    """With --ack-every the reader can have read more than is acknowledged, never less."""
    shell(directory, "$R --ack-every 64 | cat >/dev/null")
    assert acknowledged(directory) == COUNT


def test_a_killed_reader_has_read_all_acknowledged_messages(directory: Path) -> None:
    """SIGKILL at any moment: at most what the reader had got is acknowledged."""
    with warm.Popen(
        [*RECEIVE, str(directory), "--consumer", "shop"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        got = b"".join(os.read(process.stdout.fileno(), 3) for _ in range(50))
        process.stdout.close()
        assert process.wait(WAIT_SECONDS) == 141
    assert acknowledged(directory) == got.count(b"\n")


def test_no_message_is_acknowledged_on_a_full_disk(directory: Path) -> None:
    """A failed write acknowledges no message, and the error names the file."""
    with open("/dev/full", "wb") as full:
        done = warm.run(
            [*RECEIVE, str(directory), "--consumer", "shop"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=WAIT_SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert b"standard output: No space left" in done.stderr
    assert acknowledged(directory) == 0


def test_no_message_is_acknowledged_if_stdout_is_closed(directory: Path) -> None:
    """The command refuses to receive without an open stdout."""
    shell(directory, "$R >&-; $R <&- >&- 2>&-")
    with Queue(directory, create=False, read_only=True) as queue:
        assert queue.consumers() == []


def test_message_in_a_socket_is_acknowledged_once_read(directory: Path) -> None:
    """Services are started with sockets; messages left in one are not acknowledged."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        warm.Popen(
            [*RECEIVE, str(directory), "--consumer", "shop", "--follow"], stdout=theirs
        ) as process,
    ):
        theirs.close()
        got = b""
        while got.count(b"\n") < 10:
            got += ours.recv(1)
        until(lambda: acknowledged(directory) == 10)
        ours.close()
        assert process.wait(WAIT_SECONDS) == 141
    assert acknowledged(directory) == 10


def test_message_that_a_closed_socket_had_not_read_is_not_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffer is empty then as if it was read: the message would be acknowledged, and lost."""
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        outlet = Outlet()
        outlet.write(b"read")
        assert ours.recv(100) == b"read"
        outlet.wait_until_taken()
        outlet.write(b"left")
        ours.close()
        with pytest.raises(BrokenPipeError):
            outlet.wait_until_taken()


def test_ctrl_c_acknowledges_no_unread_message(directory: Path) -> None:
    """A receiver that waits for its reader is interrupted quietly."""
    with warm.Popen(
        [*RECEIVE, str(directory), "--consumer", "shop"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 2) == b"0\n"
        until(lambda: left_bytes(process.stdout) == 2)  # the next one, which it waits for
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, err) == (130, b"")
    assert acknowledged(directory) == 1


def test_a_file_gets_everything_at_once(directory: Path, tmp_path: Path) -> None:
    """What a file accepted is acknowledged, in large steps."""
    shell(directory, f"$R > {tmp_path / 'out'}")
    assert acknowledged(directory) == COUNT
    assert len((tmp_path / "out").read_bytes().splitlines()) == COUNT
