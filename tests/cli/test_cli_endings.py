"""How every command ends: closed streams, names that are not UTF-8, Ctrl-C at any time.

The list of commands is click's own, so a new command is covered without being added here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import warm
from commands import COMMANDS, WAIT_SECONDS, fill, fill_store, is_spark, names, run, words
from tiers import slow_but_rows

from pagequeue.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence

QUICK = {"send", "receive"}
"""Of the other commands too, with `-m slow`: each test here starts a process for each command."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a command's tests."""
    slow = [] if name in QUICK else [pytest.mark.slow]
    return [*slow, pytest.mark.spark] if is_spark(name) else slow


ALL = [pytest.param(name, marks=marks_of(name), id=name) for name in COMMANDS]
SPARK_COUNT = sum(map(is_spark, COMMANDS))
NIGHTLY = -1
"""None of the commands that start Spark: that takes 20 s of processor time."""


def each_with(
    turn: int,
    variants: Sequence[str],
    of_spark: Sequence[str] = (),
    spark_turn: int | None = None,
) -> list[Any]:
    """Return each command with each variant.

    A test keeps every third slow command, with one variant each in turn, and the rest is for
    campaigns: all commands end in the same code. A start of Spark takes longest, and the README's
    commands start it too: a test keeps one of the commands that do.

    Args:
        turn: 0, 1 or 2: which third of the commands this test keeps.
        variants: of most commands.
        of_spark: of those that start Spark.
        spark_turn: which of those this test keeps; None: all, because Spark does not start.
    """
    found = []
    for number, name in enumerate(COMMANDS):
        own = of_spark if is_spark(name) else variants
        for variant in own:
            is_turn = number % 3 == turn
            if is_spark(name):
                is_turn = spark_turn is None or number % SPARK_COUNT == spark_turn
            is_kept = name in QUICK or (is_turn and variant == own[number // 3 % len(own)])
            marks = [*marks_of(name), *([] if is_kept else [pytest.mark.nightly])]
            found.append(pytest.param(name, variant, marks=marks, id=f"{name}-{variant}"))
    return found


ODD = os.fsdecode(b"na\xefve [red] $x$")
"""Not UTF-8, and full of what has a meaning to rich and to matplotlib."""
SPARK_DAEMON = re.compile(
    rb"Traceback .*\n"
    rb'(?:  File "[^"]*/pyspark/daemon\.py", line \d+, in (?:manager|worker)\n(?:    .*\n)*)+'
    rb"BrokenPipeError: .*\n"
    rb"|Traceback .*\n\Z"
)
"""What PySpark's own daemon sometimes prints when the JVM ends before a worker of its.

Often it is killed after the first line; a command of ours ends by itself and prints the rest.
"""
ENDINGS = {0, 130}
EARLY = [
    (module, as_module) for as_module in (True, False) for module in ("numpy", "click", "rich")
]
INTERRUPTER = """\
import os, signal, sys, threading, time
def has_begun():  # what comes before is the interpreter's
    state = getattr(sys.modules.get("pagequeue.system.program"), "_State", None)
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return getattr(state, "has_begun", False) and not is_default
def interrupt():
    while not has_begun():
        time.sleep(0.0005)
    time.sleep(float(os.environ["INTERRUPT_AFTER"]))
    os.kill(os.getpid(), signal.SIGINT)
class Held:
    def find_spec(self, *_):
        while has_begun() and delay.is_alive():
            time.sleep(0.0005)
if "INTERRUPT_AFTER" in os.environ:
    delay = threading.Thread(target=interrupt, daemon=True)
    delay.start()
    if os.environ["INTERRUPT_AFTER"] == "0":  # else a command could end before it is sent
        sys.meta_path.insert(0, Held())
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, without a start of Spark."""
    from archives import make_table  # noqa: PLC0415 - it needs the extra 'spark'

    there = tmp_path_factory.mktemp("archive") / "table"
    make_table(there, q=(0, 100))
    return there


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A directory with everything that the commands read."""
    fill(tmp_path)
    if "spark replay" in request.node.callspec.params.values():
        shutil.copytree(request.getfixturevalue("table"), tmp_path / "table")
    return tmp_path


def test_every_command_is_here() -> None:
    """The table has the commands that click has."""
    assert list(COMMANDS) == names()


@pytest.mark.parametrize(
    ("name", "redirections"),
    each_with(0, [">&-", "<&- 2>&-", "2>&1 >/dev/null | true"], ["<&- 2>&-"], spark_turn=NIGHTLY),
)
def test_no_closed_stream_changes_an_exit_code(
    directory: Path, name: str, redirections: str
) -> None:
    """Only what claims or receives cannot do without stdout: what it printed would be lost."""
    done = run(words(name, directory), redirections)
    needs_stdout = name in {"receive", "tasks claim", "group claim"} and redirections == ">&-"
    assert done.returncode == (1 if needs_stdout else 0), done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "redirections"), each_with(1, ["2>&-", "2>/dev/full"]))
def test_no_closed_stderr_hides_that_a_command_failed(
    directory: Path, name: str, redirections: str
) -> None:
    """The exit code stays 1, even if the error message cannot reach stderr."""
    if name in {"demo", "completion"}:
        pytest.skip("it has no queue that could be missing")
    for name_of_one in ("q", "store", "journal"):
        shutil.rmtree(directory / name_of_one)
    for path in ("lines", "rows.jsonl"):
        (directory / path).unlink()
    assert main(words(name, directory)) == 1
    assert run(words(name, directory), redirections).returncode == 1


@pytest.mark.parametrize(("name", "reader"), each_with(2, ["true"], ["true"], spark_turn=1))
def test_closed_pipe_ends_a_command_quietly(directory: Path, name: str, reader: str) -> None:
    """`| true` ends in 0, or in 141 as SIGPIPE would."""
    done = run(words(name, directory), f"| {reader}")
    assert done.returncode in {0, 141}
    assert b"Traceback" not in SPARK_DAEMON.sub(b"", done.stderr), done.stderr.decode()


@pytest.mark.parametrize("name", ALL)
def test_no_name_ends_a_command_in_a_traceback(directory: Path, tmp_path: Path, name: str) -> None:
    """What is not UTF-8 is taken, printed with escapes, and valid in JSON; Spark refuses it."""
    odd = tmp_path / ODD
    odd.mkdir()
    for path in list(directory.iterdir()):
        if path != odd:
            path.rename(odd / path.name)
    more = ["--json"] if COMMANDS[name].has_json else []
    for options in (more, []):
        for path in odd.glob("new*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        fill_store(odd)
        done = run(words(name, odd, *options))
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        text = done.stdout.decode()  # strictly
        if is_spark(name):
            assert done.returncode == 1
            assert b"UTF-8" in done.stderr
        else:
            assert done.returncode == 0, done.stderr.decode()
        if options:
            for line in text.splitlines():
                assert json.loads(line)


def test_a_program_gets_the_exact_name_from_json(tmp_path: Path) -> None:
    """The escapes of JSON lead back to the file's bytes."""
    odd = tmp_path / ODD
    odd.mkdir()
    fill(odd)
    done = run(["info", str(odd / "q"), "--json"])
    assert os.fsencode(json.loads(done.stdout)["directory"]) == os.fsencode(odd / "q")


@pytest.mark.parametrize(("name", "after"), each_with(1, ["0", "0.3"], ["0"]))
def test_ctrl_c_ends_a_command_quietly_at_any_time(
    directory: Path, tmp_path: Path, name: str, after: str
) -> None:
    """Exit code 130 and no traceback, while modules are imported and while it works."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(INTERRUPTER)
    path = os.pathsep.join(filter(None, [str(tmp_path / "hook"), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "INTERRUPT_AFTER": after}
    done = run(words(name, directory), environment=environment)
    assert done.returncode in ENDINGS
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert b"xception" not in done.stderr, done.stderr.decode()
    if after == "0":
        assert done.returncode == 130


@pytest.mark.parametrize(
    ("module", "as_module"),
    slow_but_rows([EARLY[0], EARLY[-1]], EARLY),
)
def test_ctrl_c_during_an_import_is_quiet(tmp_path: Path, module: str, as_module: bool) -> None:
    """`python -m pagequeue` and the console script end with 130 while they import."""
    # One long sleep would miss a signal that comes just before it.
    sleeps = "for _ in range(6000):\n    time.sleep(0.01)"
    (tmp_path / f"{module}.py").write_text(f"import time\nprint('here', flush=True)\n{sleeps}")
    script = Path(sys.executable).parent / "pagequeue"
    if not as_module and not script.exists():
        pytest.skip("the package is not installed with its script")
    start = [sys.executable, "-m", "pagequeue"] if as_module else [str(script)]
    with subprocess.Popen(
        [*start, "info", "nowhere"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, err) == (130, b"")


def test_no_file_of_a_queue_gets_a_standard_number(tmp_path: Path) -> None:
    """Descriptors 0 to 2 are the null device when they were closed at the start."""
    fill(tmp_path)
    code = (
        "import os, sys; sys.argv = ['pagequeue', *sys.argv[1:]]\n"
        "from pagequeue.system import program\nfrom pagequeue.cli import main, options as shared\n"
        "record = lambda *_: open(sys.argv[-1] + '/seen', 'w').write(\n"
        "    ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)))\n"
        "from pagequeue.cli import receive\nreceive._warn_of_early = record\n"
        "program.begin(); main()"
    )
    subprocess.run(
        ["bash", "-c", 'python -c "$0" receive "$1" <&- >&- 2>&-', code, str(tmp_path / "q")],
        env=warm.environment(),
        check=False,
        timeout=60,
    )
    assert (tmp_path / "q" / "seen").read_text() == " ".join([os.devnull] * 3)


def test_main_leaves_a_program_that_calls_it_as_it_was(tmp_path: Path) -> None:
    """Called with arguments it changes no handler, no hook and no stream."""
    fill(tmp_path)
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook, sys.stdout.errors
    assert main(["info", str(tmp_path / "q")]) == 0
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook, sys.stdout.errors) == before
