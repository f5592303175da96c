"""What the command line owes people: examples, suggestions, tables, colours, empty results."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import urllib.request
from typing import TYPE_CHECKING

import click
import pytest
import warm
from commands import names
from safely import STRANGER, user

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.cli.app import application
from pagequeue.tasks import TaskStore

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
ESCAPE = "\x1b["
WAIT_SECONDS = 60.0
GROUPS = {name.split()[0] for name in names() if " " in name}
"""Of commands."""


def call(capture: Capture, *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process, and return exit code, stdout and stderr."""
    code = main([str(argument) for argument in arguments])
    out, err = capture.readouterr()
    return code, out, err


def on_terminal(
    *arguments: object, columns: int = 80, typed: bytes = b"", **environment: str
) -> str:
    """Run the command on a terminal so many columns wide, and return what it shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}
    }
    with warm.Popen(
        [sys.executable, "-m", "pagequeue", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**known, "TERM": "xterm", **environment},
    ) as process:
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the terminal has no other end any more
                break
            if not piece:
                break
            shown += piece
        process.wait(WAIT_SECONDS)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue with a consumer and a group."""
    path = tmp_path / "events"
    with Queue(path, page_bytes=65_536) as queue, queue.producer() as producer:
        producer.send_many([b"%d" % number for number in range(10)])
        queue.consumer("billing").close()
        queue.group("mailers", capacity=64).close()
    return path


def command_of(name: str) -> click.Command:
    """Return a command by its whole name."""
    found: click.Command = application
    for word in name.split():
        assert isinstance(found, click.Group)
        command = found.get_command(click.Context(found), word)
        assert command is not None
        found = command
    return found


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*names(), *sorted(GROUPS)])
def test_help_of_every_command_has_an_example(name: str) -> None:
    """Of that command, with only options that it has."""
    command = command_of(name)
    text = command.help or ""
    start = "pagequeue completion" if name == "completion" else f"pagequeue {name}"
    examples = [line for line in text.splitlines() if start in line]
    assert examples
    known = {option for parameter in command.params for option in parameter.opts}
    if isinstance(command, click.Group):  # its examples are those of its commands
        assert all(
            example.split()[2] in command.list_commands(click.Context(command))
            for example in examples
        )
        return
    for example in examples:
        own = example.partition(" | ")[0].partition(" -- ")[0].partition(start)[2]
        assert set(re.findall(r"(?<=\s)--[\w-]+", own)) <= known, example


def test_misspelled_command_is_answered_with_similar_ones(capfd: Capture) -> None:
    """Also in a group of commands; one that resembles none is refused as before."""
    code, _, err = call(capfd, "recieve", "events")
    assert code == 2
    assert "did you mean receive?" in err
    assert "did you mean requeue?" in call(capfd, "group", "requeu", "events", "x")[2]
    assert "did you mean" not in call(capfd, "zzzzzz")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_of_the_shell(capfd: Capture, shell: str) -> None:
    """It asks this program for the words."""
    code, out, _ = call(capfd, "completion", shell)
    assert code == 0
    assert "_PAGEQUEUE_COMPLETE" in out


def test_completion_of_a_word_gives_the_commands() -> None:
    """What the script calls."""
    done = warm.run(
        [sys.executable, "-c", "from pagequeue.cli import main; main()"],
        env={
            **os.environ,
            "_PAGEQUEUE_COMPLETE": "bash_complete",
            "COMP_WORDS": "pagequeue rec",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.stdout.split() == ["plain,receive"]


# --- send and receive -----------------------------------------------------------------------------


def test_messages_of_the_command_line_are_sent_as_they_are(tmp_path: Path, capfd: Capture) -> None:
    """In their order, each one message, whatever it holds."""
    arguments = ("send", tmp_path / "q", "--page-bytes", 65_536, "hello", "two\nlines", "")
    assert call(capfd, *arguments) == (0, "", "")
    assert call(capfd, "send", tmp_path / "q", "--", "--dash")[0] == 0
    with Queue(tmp_path / "q") as queue:
        assert [m.payload for m in queue.replay()] == [b"hello", b"two\nlines", b"", b"--dash"]


@pytest.mark.parametrize(
    "options",
    [
        ["x", "--file", "lines"],
        ["x", "--null"],
        ["x", "--length-prefixed"],
        ["--null", "--length-prefixed"],
        ["--codec", "msgpack"],
        ["--codec", "pickle", "x"],
        ["--codec", "json", "{"],
        ["--page-bytes", "5", "x"],
        ["--page-bytes", "many"],
        ["--prefix", "a/b", "x"],
        ["--codec", "none", "x"],
    ],
)
def test_usage_error_leaves_no_queue(tmp_path: Path, capfd: Capture, options: list[str]) -> None:
    """Not even the directory."""
    code, _, err = call(capfd, "send", tmp_path / "new", *options)
    assert code == 2, err
    assert list(tmp_path.iterdir()) == []


def test_terminal_is_told_that_messages_are_read_from_it(tmp_path: Path) -> None:
    """Waiting without a word looks like hanging; a pipe gets no hint."""
    shown = on_terminal("send", tmp_path / "q", typed=b"typed\n\x04")
    assert "reading messages from the terminal" in shown
    with Queue(tmp_path / "q") as queue:
        assert queue.last(9).payloads == [b"typed"]
    assert "reading messages" not in on_terminal("send", tmp_path / "q", "given")


def test_count_ends_a_range_and_a_consumer_acknowledges_no_more(
    directory: Path, capfd: Capture
) -> None:
    """Over the end of the queue too, and while following."""
    assert call(capfd, "receive", directory, "--count", 2)[:2] == (0, "0\n1\n")
    assert call(capfd, "receive", directory, "--sequence", 8, "--count", 5)[1] == "8\n9\n"
    assert call(capfd, "receive", directory, "--follow", "--count", 10)[1].count("\n") == 10
    consumer = ("receive", directory, "--consumer", "billing")
    assert call(capfd, *consumer, "--count", 3)[1] == "0\n1\n2\n"
    with Queue(directory) as queue:
        assert queue.consumers()[0].next_sequence == 3
    assert call(capfd, *consumer, "--follow", "--count", 7)[1] == "3\n4\n5\n6\n7\n8\n9\n"
    assert call(capfd, *consumer, "--count", 1)[:2] == (0, "")


def test_empty_results_say_so(tmp_path: Path, capfd: Capture) -> None:
    """On stderr, so that a program reads an empty list."""
    Queue(tmp_path / "q", page_bytes=65_536).close()
    for words, text in (
        (("consumers", tmp_path / "q"), "no named consumer or group"),
        (("group", "ls", tmp_path / "q"), "no group"),
        (("ls", tmp_path / "elsewhere"), ""),
        (("compress", tmp_path / "q"), "--rotate"),
        (("trim", tmp_path / "q", "--max-bytes", "1G"), "--rotate"),
        (("ship", tmp_path / "q", "--to", tmp_path / "ship"), "--rotate"),
    ):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        code, _, err = call(capfd, *words)
        assert code == 0, err
        assert (text or "no queue below") in err
    assert "no message yet" in on_terminal("receive", tmp_path / "q")


@pytest.mark.parametrize("words", [[], ["group"], ["tasks"], ["journal"], ["spark"]])
def test_help_cuts_no_summary(words: list[str], capfd: Capture) -> None:
    """The first sentence of each command is shown to its end, on as many lines as it takes."""
    found = command_of(" ".join(words))
    assert isinstance(found, click.Group)
    shown = " ".join(call(capfd, *words, "--help")[1].split("Commands:")[1].split())
    context = click.Context(found)
    for name in found.list_commands(context):
        command = found.get_command(context, name)
        assert command is not None
        first = " ".join((command.help or "").split("\n\n")[0].split()).partition(". ")[0]
        assert f"{name} {first.removesuffix('.')}" in shown


# --- tables and colours ---------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["consumers"], ["ls"]])
def test_table_is_cut_nowhere(directory: Path, words: list[str]) -> None:
    """Lines on a wide terminal, blocks on one of 60 columns, and the same lines in a pipe."""
    done = warm.run(
        [sys.executable, "-m", "pagequeue", *words, str(directory)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    wide = on_terminal(*words, directory, columns=400, NO_COLOR="1")
    narrow = on_terminal(*words, directory, columns=60, NO_COLOR="1")
    if words != ["ls"]:  # which tells an age
        assert done.stdout == wide
    titles = re.split("  +", wide.splitlines()[0])
    assert all(line == line.rstrip() for line in wide.splitlines())
    assert len(narrow.splitlines()) > len(wide.splitlines())
    for title in filter(None, map(str.strip, titles[1:])):
        assert f"\n  {title} " in narrow


def test_long_text_on_a_narrow_terminal_ends_its_lines_between_words(tmp_path: Path) -> None:
    """No word is cut, but one that is longer than a line."""
    reason = "smtp 451 greylisted by mx.example.org, try again later"
    with Queue(tmp_path / "q", page_bytes=65_536) as queue:
        queue.producer().send_many([b"word " * 8, b"x" * 58])
        with queue.group("mailers", max_deliveries=1) as group:
            for claim in group.claim_many(2, timeout=0):
                claim.reject(reason)
    shown = on_terminal("group", "dead", tmp_path / "q", "mailers", columns=60, NO_COLOR="1")
    lines = shown.splitlines()
    assert "  reason      smtp 451 greylisted by mx.example.org, try" in lines
    assert "              again later" in lines
    assert sum(line.count("word") for line in lines) == 8
    assert "x" * 58 in shown


def test_no_reason_moves_the_cursor_or_breaks_a_row(tmp_path: Path, capfd: Capture) -> None:
    """A reason and a value come from other processes, with whatever characters they hold."""
    with TaskStore(tmp_path / "store", page_bytes=65_536, max_deliveries=1) as store:
        store.insert("mail", "a\nb")
        store.claim("mail").nack(reason="line\nline\x1b[2J")
    code, out, _ = call(capfd, "tasks", "ls", tmp_path / "store")
    assert (code, len(out.splitlines())) == (0, 2)
    assert out.splitlines()[1].endswith(r"line\nline\x1b[2J")


def test_queues_below_a_directory_are_found(directory: Path, capfd: Capture) -> None:
    """With other prefixes, also damaged ones, which are reported and make the exit code 1."""
    Queue(directory, prefix="other", page_bytes=65_536).close()
    Queue(directory.parent / "a" / "deep", page_bytes=65_536).close()
    code, out, _ = call(capfd, "ls", directory.parent, "--json")
    rows = {(row["directory"], row["prefix"]): row for row in map(json.loads, out.splitlines())}
    assert code == 0
    assert list(rows) == [
        (str(directory.parent / "a" / "deep"), "queue"),
        (str(directory), "other"),
        (str(directory), "queue"),
    ]
    found = rows[str(directory), "queue"]
    assert (found["messages"], found["consumers"], found["largest_lag"]) == (10, 2, 10)
    (directory / "other-allMeta").write_bytes(b"damaged")
    code, out, _ = call(capfd, "ls", directory.parent)
    assert code == 1
    assert "other-allMeta" in next(line for line in out.splitlines() if "--prefix other" in line)


def test_directory_that_cannot_be_listed_hides_no_queue(reachable: Path, capfd: Capture) -> None:
    """It is a row with its problem; the directory that was asked for is an error."""
    for name in ("a", "c"):
        Queue(reachable / name, page_bytes=65_536, file_mode=0o644).close()
    (reachable / "b").mkdir(mode=0)
    call(capfd, "ls", reachable)  # all is imported before
    with user(STRANGER):
        code, out, _ = call(capfd, "ls", reachable, "--trust", "other_owner")
        rows = call(capfd, "ls", reachable, "--trust", "other_owner", "--json")[1]
        whole = call(capfd, "ls", reachable / "b")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        str(reachable / name) for name in "acb"
    ]
    assert out.splitlines()[-1].endswith("Permission denied")
    assert [row.get("messages") for row in map(json.loads, rows.splitlines())] == [0, 0, None]
    assert json.loads(rows.splitlines()[-1]) == {
        "directory": str(reachable / "b"),
        "prefix": None,
        "problem": "Permission denied",
    }
    assert whole[:2] == (1, "")
    assert "b: Permission denied" in whole[2]


def test_colours_are_for_terminals_that_want_them(directory: Path) -> None:
    """NO_COLOR and TERM=dumb switch them off, in results, tables and errors."""
    assert ESCAPE in on_terminal("receive", directory)
    assert ESCAPE not in on_terminal("receive", directory, NO_COLOR="1")
    assert ESCAPE not in on_terminal("consumers", directory, TERM="dumb")
    assert ESCAPE not in on_terminal("info", directory, NO_COLOR="1")
    assert ESCAPE not in on_terminal("info", directory / "none", NO_COLOR="1")


def test_watch_shows_each_sample_on_a_dumb_terminal(directory: Path) -> None:
    """There a live display would show only the last one."""
    watch = ("info", directory, "--watch", "--interval", 0.01, "--count", 3)
    assert on_terminal(*watch, TERM="dumb").count("not durable") == 3


@pytest.mark.parametrize("columns", [40, 80])
def test_watch_cuts_no_figure_on_a_narrow_terminal(directory: Path, columns: int) -> None:
    """Each consumer is a block of lines where its line does not fit."""
    watch = ("info", directory, "--watch", "--interval", 0.01, "--count", 2)
    shown = on_terminal(*watch, columns=columns, NO_COLOR="1")
    assert "…" not in shown
    last = [line.strip() for line in shown.split("not durable")[-1].splitlines()]
    if columns == 40:
        for words in ("mailers", "lag       10", "acked/s   0", "state     group, not open"):
            assert words in last
    else:
        assert any(re.match("mailers +10 .* group, not open$", line) for line in last)


def test_info_shows_a_line_for_each_consumer(directory: Path, capfd: Capture) -> None:
    """Name, position and lag, not every field of the object."""
    out = call(capfd, "info", directory)[1]
    assert re.search(r"\nconsumers +billing: next 0, lag 10\n +group mailers: next 0, lag 10$", out)
    assert "capacity" not in out
    with Queue(directory.parent / "new", page_bytes=65_536):
        assert re.search(r"\nconsumers +-$", call(capfd, "info", directory.parent / "new")[1])


# --- upkeep ---------------------------------------------------------------------------------------


def test_rotate_and_trim_remove_what_all_have_acknowledged(directory: Path, capfd: Capture) -> None:
    """A page that a consumer needs stays, and its name is told."""
    assert call(capfd, "rotate", directory)[1] == "sealed page 1 with messages 0 to 9\n"
    assert "empty" in call(capfd, "rotate", directory)[1]
    assert json.loads(call(capfd, "rotate", directory, "--json")[1]) is None
    code, out, _ = call(capfd, "trim", directory, "--acknowledged")
    assert (code, out) == (0, "0 pages removed with 0 messages, 0 B\n")
    with Queue(directory) as queue:
        queue.remove_consumer("mailers")
    call(capfd, "receive", directory, "--consumer", "billing")
    code, out, _ = call(capfd, "trim", directory, "--acknowledged", "--json")
    assert json.loads(out)["messages"] == 10
    assert call(capfd, "trim", directory)[0] == 2


def test_trim_by_age_names_who_keeps_pages(directory: Path, capfd: Capture) -> None:
    """Unless they are to be dropped."""
    trim = ("trim", directory, "--max-bytes", "128K")
    with Queue(directory) as queue, queue.producer() as producer:
        for _ in range(3):
            queue.rotate()
            producer.send(b"more")
    code, _, err = call(capfd, *trim)
    assert code == 0
    assert "kept for billing, mailers" in err or "kept for mailers, billing" in err
    assert call(capfd, *trim, "--drop-unacked")[1].startswith(("1 page", "2 pages", "3 pages"))


def test_trim_by_age_takes_the_active_page(directory: Path, capfd: Capture) -> None:
    """Or a timer would do nothing for years where few messages come."""
    trim = ("trim", directory, "--max-age", "1us", "--drop-unacked")
    assert call(capfd, "trim", directory, "--max-age", "1d")[:2] == (
        0,
        "0 pages removed with 0 messages, 0 B\n",
    )
    assert call(capfd, *trim)[1].startswith("1 page removed with 10 messages")
    assert call(capfd, *trim)[1] == "0 pages removed with 0 messages, 0 B\n"


# --- metrics --------------------------------------------------------------------------------------


def ups(text: str) -> list[str]:
    """Return the values of pagequeue_up in metrics."""
    return re.findall(r"^pagequeue_up\{.*\} (.*)$", text, re.MULTILINE)


def test_metrics_of_good_and_bad_queues(directory: Path, tmp_path: Path, capfd: Capture) -> None:
    """The good one's are printed or written; the bad one is 0, named, and the exit code is 1."""
    pytest.importorskip("prometheus_client")
    bad = tmp_path / "bad"
    code, out, err = call(capfd, "metrics", bad, directory)
    assert (code, ups(out)) == (1, ["0.0", "1.0"])
    assert "pagequeue_messages{" in out
    assert "1 of 2 queues could not be read" in err
    assert str(bad) in err
    file = tmp_path / "metrics.prom"
    assert call(capfd, "metrics", bad, directory, "--textfile", file)[0] == 1
    assert ups(file.read_text()) == ["0.0", "1.0"]
    Queue(bad, page_bytes=65_536).close()
    assert call(capfd, "metrics", bad, directory)[0] == 0


def test_metrics_on_a_port_include_a_queue_that_appears_later(
    directory: Path, tmp_path: Path
) -> None:
    """Each scrape tries again; a port that is in use is named."""
    pytest.importorskip("prometheus_client")
    bad = tmp_path / "bad"
    start = [sys.executable, "-m", "pagequeue", "metrics", str(bad), str(directory), "--port"]
    with warm.Popen([*start, "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert str(bad) in process.stderr.readline()
            address = process.stderr.readline().split()[-1]
            with urllib.request.urlopen(address, timeout=WAIT_SECONDS) as answer:
                assert ups(answer.read().decode()) == ["0.0", "1.0"]
            Queue(bad, page_bytes=65_536).close()
            with urllib.request.urlopen(address, timeout=WAIT_SECONDS) as answer:
                assert ups(answer.read().decode()) == ["1.0", "1.0"]
            port = address.split(":")[-1].partition("/")[0]
            done = warm.run(
                [*start, port], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
            )
            assert done.returncode == 1
            assert f"127.0.0.1:{port}" in done.stderr
        finally:
            process.kill()


@pytest.mark.parametrize("command", ["verify", "repair", "salvage"])
def test_progress_shows_no_unknown_count(tmp_path: Path, command: str) -> None:
    """Nothing reads "0/?" before the first page: the number of pages is not known yet."""
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
        queue.producer().send_many([b"x" * 1000] * 200)
    more = ["--to", tmp_path / "copy"] if command == "salvage" else []
    shown = on_terminal(command, tmp_path / "q", *more, columns=100)
    assert "0/?" not in shown
    assert re.search(r"\b(\d)/\1\b", shown)
    assert "200 messages" in shown or command == "repair"
