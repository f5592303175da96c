"""`pagequeue top`: all queues below a directory, on a terminal of its own, and into a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import select
import signal
import struct
import sys
import termios
import time
from typing import TYPE_CHECKING, Any, Self

import pytest
import warm

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.cli.screen import ENTER, LEAVE, cell
from pagequeue.cli.survey import GONE_SECONDS, Survey
from pagequeue.cli.top import COLUMNS, SORTS, View, _short, _short_bytes, ordered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
PAGE_BYTES = 65_536
WAIT_SECONDS = 60.0
RUN = "from pagequeue.cli import main; sys.exit(main(sys.argv[1:]))"


class Terminal:
    """The command on a terminal of its own, as its controlling one; a context manager."""

    def __init__(
        self, *arguments: object, columns: int = 120, lines: int = 24, before: str = ""
    ) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(columns, lines)
        self.settings = termios.tcgetattr(self.theirs)
        self.shown = b""
        sizes = {"COLUMNS", "LINES"}  # readline sets them in the environment of who imports it
        known = {name: value for name, value in os.environ.items() if name not in sizes}
        code = f"import sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{before}\n{RUN}"
        self.process = warm.Popen(
            [sys.executable, "-c", code, "top", "--interval", "0.05", *map(str, arguments)],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            env={**known, "TERM": "xterm", "NO_COLOR": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def resize(self, columns: int, lines: int) -> None:
        """Change the terminal's size, which signals its process."""
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.ours, keys.encode())

    def read(self, seconds: float) -> bool:
        """Read what is shown next; return whether there was any."""
        if not select.select([self.ours], [], [], seconds)[0]:
            return False
        self.shown += os.read(self.ours, 65_536)
        return True

    def frame(self) -> list[str]:
        """Return the lines of the last frame that is whole."""
        whole = self.shown.decode(errors="replace").split("\x1b[J")[-2]
        text = re.sub(r"\x1b\[[\d;]*[mKHJ]", "", whole.split("\x1b[H")[-1])
        return [line.rstrip("\r") for line in text.split("\n")]

    def until(self, shows: Callable[[list[str]], bool]) -> list[str]:
        """Wait for a frame."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            self.read(0.1)
            if b"\x1b[J" in self.shown and shows(self.frame()):
                return self.frame()
            assert self.process.poll() is None, self.shown.decode(errors="replace")
        raise AssertionError(self.frame())

    def until_shown(self, text: str) -> list[str]:
        """Wait for a frame with a text."""
        return self.until(lambda lines: any(text in line for line in lines))

    def ends(self) -> int:
        """Wait for the process; return its exit code, and check that the terminal is restored."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        while self.read(0.1):
            pass
        assert termios.tcgetattr(self.theirs) == self.settings
        assert self.shown.count(LEAVE.encode()) == self.shown.count(ENTER.encode()) > 0
        assert self.shown.rindex(LEAVE.encode()) > self.shown.rindex(ENTER.encode())
        assert self.process.returncode is not None
        return self.process.returncode


def make(path: Path, count: int = 0) -> Path:
    """Make a queue with so many messages."""
    with Queue(path, page_bytes=PAGE_BYTES) as queue:
        queue.producer().send_many([b"message"] * count)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three queues, one with a group that has dead letters, and a damaged one."""
    with Queue(make(tmp_path / "a" / "jobs", 12)) as queue:
        group = queue.group("workers", capacity=64)
        group.claim().reject()
        group.claim().ack()
        queue.consumer("billing").close()
    make(tmp_path / "b", 700)
    make(tmp_path / "broken")
    (tmp_path / "broken" / "queue-allMeta").write_bytes(b"damaged")
    return tmp_path


def call(capture: Capture, *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process, and return exit code, stdout and stderr."""
    code = main(["top", "--interval", "0.01", *map(str, arguments)])
    out, err = capture.readouterr()
    return code, out, err


def take(survey: Survey) -> dict[str, Any]:
    """Take a sample, and return its rows by the end of their directory."""
    for _ in survey.sample():
        pass
    return {os.path.basename(row.place.directory): row for row in survey.rows}


# --- once -----------------------------------------------------------------------------------------


def test_pipe_gets_one_plain_table(directory: Path) -> None:
    """With every queue, also the damaged one, which makes the exit code 1."""
    done = warm.run(
        [sys.executable, "-m", "pagequeue", "top", "--interval", "0.1", str(directory)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    titles, *rows = done.stdout.splitlines()
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert re.split("  +", titles) == ["queue", *COLUMNS, "state"]
    assert len(rows) == 4  # with the one of dead letters
    assert "queue-allMeta" in rows[0]
    jobs = next(row for row in rows if "jobs  " in row)
    # 12 sent, one done and one dead; nothing of it meanwhile
    assert re.split("  +", jobs)[1:8] == ["12", "0", "0", "12", "10", "0", "1"]


def test_json_has_the_same_figures(directory: Path, capfd: Capture) -> None:
    """One object a line, a problem in place of the figures."""
    code, out, _ = call(capfd, directory, "--json", "--sort", "messages")
    rows = list(map(json.loads, out.splitlines()))
    assert code == 1
    assert [row.get("messages") for row in rows] == [None, 700, 12, 1]
    assert (rows[2]["largest_lag"], rows[2]["ready"], rows[2]["dead_letters"]) == (12, 10, 1)
    assert "queue-allMeta" in rows[0]["problem"]


def test_directory_without_queues_and_one_that_is_missing(tmp_path: Path, capfd: Capture) -> None:
    """Nothing found is no error; what cannot be listed is."""
    assert call(capfd, tmp_path) == (0, "", "pagequeue: no queue found\n")
    code, out, _ = call(capfd, tmp_path / "missing", tmp_path)
    assert code == 1
    assert "No such file or directory" in out


# --- samples --------------------------------------------------------------------------------------


def test_rates_are_those_between_two_samples(tmp_path: Path) -> None:
    """In: sent; out: acknowledged by all consumers and groups."""
    with Queue(make(tmp_path / "q", 10)) as queue:
        consumer, group = queue.consumer("c"), queue.group("g", capacity=64)
        survey = Survey([str(tmp_path)], ())
        assert take(survey)["q"].rates is None
        queue.producer().send_many([b"more"] * 30)
        for _ in range(5):
            consumer.receive()
            group.take()
        consumer.ack()
        rates = take(survey)["q"].rates
    assert rates.sent * rates.seconds == pytest.approx(30)
    assert COLUMNS["out/s"].value(survey.rows[0]) * rates.seconds == pytest.approx(10)


def test_queues_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is called so once; one that is gone for a while."""
    survey = Survey([str(tmp_path)], ())
    assert take(survey) == {}
    make(tmp_path / "old", 5)
    survey = Survey([str(tmp_path)], ())
    assert take(survey)["old"].state == ""
    make(tmp_path / "q")
    assert take(survey)["q"].state == "new"
    assert take(survey)["q"].state == ""
    (tmp_path / "old").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    assert take(survey)["old"].state == "gone"
    make(tmp_path / "old")  # with fewer messages
    found = take(survey)["old"]
    assert (found.state, found.rates) == ("new", None)
    assert take(survey)["old"].rates.sent == 0
    for file in (tmp_path / "old").iterdir():
        file.unlink()
    assert take(survey)["old"].state == "gone"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + GONE_SECONDS + 1)
    assert "old" not in take(survey)
    assert "old" not in take(survey)


def test_queue_below_two_directories_is_one_row(tmp_path: Path) -> None:
    """Also by another path."""
    make(tmp_path / "a" / "q")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    survey = Survey([str(tmp_path), str(tmp_path / "a"), str(tmp_path / "link")], ())
    assert len(take(survey)) == len(survey.rows) == 1


@pytest.mark.slow
def test_many_queues_need_few_open_files(tmp_path: Path) -> None:
    """100 queues with 64 descriptors; none is open between two samples."""
    for number in range(100):
        make(tmp_path / str(number), 1)
    survey, limits = Survey([str(tmp_path)], ()), resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from pagequeue.cli.survey import Survey\n"
        "survey = Survey([sys.argv[1]], ()); list(survey.sample())\n"
        "before = os.listdir('/proc/self/fd'); list(survey.sample())\n"
        "assert os.listdir('/proc/self/fd') == before\n"
        "print(sum(row.stats is not None and not row.state for row in survey.rows))"
    )
    done = warm.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert done.stdout == "100\n"
    assert len(take(survey)) == 100
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


# --- order and widths -----------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_rows_are_in_order_of_each_column(directory: Path, sort: str) -> None:
    """What cannot be read first, then the largest; a name is in order of the alphabet."""
    survey = Survey([str(directory)], ())
    take(survey)
    take(survey)
    rows = ordered(survey.rows, sort, reverse=False)
    assert ordered(rows, sort, reverse=True) == rows[::-1]
    if sort == "queue":
        assert [row.place for row in rows] == sorted(row.place for row in rows)
        return
    assert rows[0].stats is None
    values = [COLUMNS[sort].value(row) for row in rows[1:]]
    known = [-1 if value is None else value for value in values]
    assert known == sorted(known, reverse=True)


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("columns", [20, 60, 80, 104, 120, 200])
@pytest.mark.parametrize("sort", SORTS)
def test_view_fits_its_width(directory: Path, columns: int, sort: str) -> None:
    """No figure is cut, the column of the order is shown, and what cannot be read has its state."""
    survey = Survey([str(directory)], ())
    take(survey)
    take(survey)
    head, titles, *rows = View(sort, reverse=False).lines(survey.rows, columns, 24, 2.0)
    assert len(rows) == 4
    if columns >= 60:
        assert sort in titles.plain.split()
        assert titles.cell_len <= columns
        assert "4 queues, 1 unreadable" in head.plain[:60]
        for row in rows:
            assert row.cell_len <= columns or "queue-allMeta: 7 bytes" in row.plain[:columns]
            assert "…" not in row.plain[len(cell("", 22)) :] or row.plain.startswith("…")
    if columns >= 104:
        assert titles.plain.split() == ["queue", *COLUMNS]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (9_999.6, "10.0k"),
        (12_345, "12.3k"),
        (99_960, "100k"),
        (999_499, "999k"),
        (999_600, "1.0M"),
        (4.1e6, "4.1M"),
        (9.9e14, "990T"),
    ],
)
def test_short_numbers(number: float, text: str) -> None:
    """At most 5 cells."""
    assert _short(number) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (1023 * 1024, "1023 KiB"),
        (102_400_000, "97.7 MiB"),
        (2**45, "32 TiB"),
    ],
)
def test_short_sizes(size: int, text: str) -> None:
    """At most 8 cells."""
    assert _short_bytes(size) == text


def test_name_that_is_too_long_loses_its_begin() -> None:
    """By cells, of which some characters take two."""
    assert cell("/srv/queues/orders", 8) == "…/orders"
    assert cell("ab", 4) == "ab  "
    assert cell("ab", 4, right=True) == "  ab"
    assert cell("日本語", 4) == "…語 "


# --- the live view --------------------------------------------------------------------------------


def test_keys_change_the_view(directory: Path) -> None:
    """Sort, reverse, help, and an end with 0."""
    with Terminal(directory) as terminal:
        assert "by lag" in terminal.until_shown("700")[0]
        terminal.type("m")
        frame = terminal.until_shown("by messages")
        assert "queue-allMeta" in frame[2]
        assert " 700 " in frame[3]
        terminal.type("R")
        frame = terminal.until_shown("reversed")
        assert "queue-allMeta" in frame[-1]
        terminal.type("?")
        frame = terminal.until_shown("this help")
        assert all(any(f"  {name}: " in line for line in frame) for name in COLUMNS)
        terminal.type("x")
        terminal.until_shown("reversed")
        terminal.type("\x1b[5~\x1b[15~n")  # known and unknown keys of several bytes
        terminal.until_shown("by queue")
        terminal.type("q")
        assert terminal.ends() == 0


def test_help_fits_into_a_narrow_terminal() -> None:
    """A line that is too long continues in the next one, and is not cut."""
    lines = View("lag", reverse=False, helps=True).lines([], 60, 24, 2.0)
    assert len(lines) <= 24
    assert max(line.cell_len for line in lines) <= 60
    text = " ".join(" ".join(line.plain.split()) for line in lines)
    assert all(f"{name}: {column.what}" in text for name, column in COLUMNS.items())


def test_rows_scroll_on_a_low_terminal(tmp_path: Path) -> None:
    """By line and page, not beyond the last row; also after the terminal has grown."""
    for number in range(9):
        make(tmp_path / f"q{number}")
    with Terminal(tmp_path, "--sort", "queue", columns=60, lines=5) as terminal:
        assert len(terminal.until_shown("/q0")) == 5
        terminal.type("j")
        terminal.until_shown("/q3")
        terminal.type("\x1b[6~\x1b[6~\x1b[6~\x1b[B")
        frame = terminal.until_shown("/q8")
        assert "/q6" in frame[2]
        terminal.type("\x1b[A")
        terminal.until_shown("/q5")
        terminal.resize(60, 24)
        assert len(terminal.until_shown("/q0")) == 11
        terminal.type("q")
        assert terminal.ends() == 0


@pytest.mark.parametrize("columns", [60, 120])
def test_frames_fit_the_terminal(directory: Path, columns: int) -> None:
    """No line wraps."""
    with Terminal(directory, columns=columns) as terminal:
        frame = terminal.until_shown("7 bytes")
        assert max(map(len, frame)) <= columns
        assert ("claimed" in frame[1]) == (columns == 120)
        terminal.type("q")
        assert terminal.ends() == 0


def test_damage_and_removal_do_not_end_it(directory: Path) -> None:
    """While it runs: a queue appears, is damaged, and goes."""
    with Terminal(directory) as terminal:
        terminal.until_shown("700")
        path = make(directory / "later", 33)
        terminal.until_shown("33")
        meta = (path / "queue-allMeta").read_bytes()
        (path / "queue-allMeta").write_bytes(b"bad")
        terminal.until_shown("queue-allMeta: 3 bytes")
        (path / "queue-allMeta").write_bytes(meta)
        terminal.until_shown("33")
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        terminal.until_shown("gone")
        terminal.type("q")
        assert terminal.ends() == 0


@pytest.mark.parametrize(
    ("end", "code"), [("\x03", 130), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_signals_restore_the_terminal(directory: Path, end: str | int, code: int) -> None:
    """Ctrl-C as a key and as a signal, and SIGTERM."""
    with Terminal(directory) as terminal:
        terminal.until_shown("700")
        if isinstance(end, str):
            terminal.type(end)
        else:
            terminal.process.send_signal(end)
        assert terminal.ends() == code


def test_exception_restores_the_terminal(directory: Path) -> None:
    """A bug, in the middle of a sample: its traceback is on the former screen."""
    before = (
        "from pagequeue.cli import survey\n"
        "def fail(*_): raise ZeroDivisionError('a bug')\n"
        "survey.Survey._row = fail"
    )
    with Terminal(directory, before=before) as terminal:
        assert terminal.ends() == 1
        assert b"a bug" in terminal.shown.partition(LEAVE.encode())[2]


def test_suspended_view_leaves_the_terminal_and_comes_back(directory: Path) -> None:
    """Ctrl-Z restores it, and the shell's `fg` continues the view."""
    with Terminal(directory) as terminal:
        terminal.until_shown("700")
        # One whose parent is in another session is not stopped by SIGTSTP: it continues at once.
        terminal.type("\x1a")
        deadline = time.monotonic() + WAIT_SECONDS
        while terminal.shown.count(ENTER.encode()) < 2 and time.monotonic() < deadline:
            terminal.read(0.1)
        assert terminal.shown.index(LEAVE.encode()) < terminal.shown.rindex(ENTER.encode())
        terminal.type("m")
        terminal.until_shown("by messages")
        terminal.type("q")
        assert terminal.ends() == 0


def test_view_ends_while_a_sample_takes_long(directory: Path, tmp_path: Path) -> None:
    """Keys are handled between two queues."""
    typed = tmp_path / "typed"
    before = (
        "import os, time\n"
        "from pagequeue.cli import survey\n"
        "row = survey.Survey._row\n"
        "def late(*a):\n"
        f"    while not os.path.exists({str(typed)!r}): time.sleep(0.01)\n"
        "    return row(*a)\n"
        "survey.Survey._row = late"
    )
    with Terminal(directory, before=before) as terminal:
        terminal.until_shown("reading")
        terminal.type("q")
        typed.touch()
        assert terminal.ends() == 0
        assert b"700" not in terminal.shown
