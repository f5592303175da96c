"""A file that is truncated while it is open: a typed error, whatever was under way, no signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import warm
from support import HERE, SOON, end, ready, until_asleep
from tiers import slow_but_rows
from truncated import OS_PAGE, PLACES, TRUNCATED, Scene

if TYPE_CHECKING:
    from pathlib import Path


def child(
    name: str, *args: object, is_fresh: bool = False, module: str = "truncated"
) -> warm.Popen | subprocess.Popen[str]:
    """Run a function of a module of `tests/support` in its own process.

    One that is fresh imports the package itself.
    """
    code = (
        f"import json, sys; sys.path.insert(0, {HERE!r}); import {module}; "
        f"{module}.{name}(*json.loads(sys.argv[1]))"
    )
    command = [sys.executable, "-W", "error", "-c", code, json.dumps(args, default=str)]
    popen = subprocess.Popen if is_fresh else warm.Popen
    return popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(
    process: warm.Popen | subprocess.Popen[str], seconds: float = 60.0
) -> tuple[int, str, str]:
    """Wait for a process; return how it ended and what it wrote."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        raise AssertionError("it did not end in time") from None
    return process.returncode, out, err


def output_of(name: str, *args: object, is_fresh: bool = False, module: str = "truncated") -> Any:  # noqa: ANN401 - JSON
    """Run a function in a process that must end well; return what it printed last."""
    code, out, err = ended(child(name, *args, is_fresh=is_fresh, module=module))
    if code != 0:  # in whole: an assertion's own words are cut short
        pytest.fail(f"{name} ended with {code}\n{out}\n{err}", pytrace=False)
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("size", [0, OS_PAGE, OS_PAGE + 700])
def test_readers_of_a_truncated_sealed_page_get_an_error(
    tmp_path: Path, size: int, read_only: bool
) -> None:
    """Messages before the cut are read; then every way to read reports the truncation."""
    found = output_of("read_cut", tmp_path, "sealed", size, read_only, [])
    whole = (min(size, OS_PAGE) - 64) // 1520 if size else 0
    error = ["CorruptPage", TRUNCATED, size]
    for name in ("poll", "receive", "receive_many", "next", "wait"):
        assert found[name][:3] == error, name
        assert found[name][3] in {whole, whole + 1}, name
    for name in ("batches", "last", "since", "info"):
        assert found[name][:3] == error, name
    assert found["replay"][:3] == error


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("size", [0, OS_PAGE])
def test_readers_of_a_truncated_active_page_get_an_error(
    tmp_path: Path, size: int, read_only: bool
) -> None:
    """A reader at the tail reports the truncation; it does not take zeros for an empty slot."""
    found = output_of("read_cut", tmp_path, "page", size, read_only, [])
    for name in ("poll", "receive", "receive_many", "next", "wait"):
        assert found[name] == ["CorruptPage", TRUNCATED, size, 15], name
    for name in ("replay", "batches", "last"):
        assert found[name][:3] == ["CorruptPage", TRUNCATED, size], name


def test_readers_of_a_truncated_read_meta_get_an_error(tmp_path: Path) -> None:
    """Reading further needs no read meta; seeking does, and raises."""
    found = output_of("read_cut", tmp_path, "read", 0, False, ["next", "wait"])
    assert found["poll"][0] == "returned"
    for name in ("last", "since", "info"):
        assert found[name][:2] == ["CorruptMeta", TRUNCATED], name


@pytest.mark.parametrize("size", [0, 1, 200])
def test_users_of_a_truncated_write_meta_get_an_error(tmp_path: Path, size: int) -> None:
    """A part of an OS page reads as zeros without any fault; that is noticed all the same."""
    found = output_of("read_cut", tmp_path, "meta", size, False, [])
    for name in ("wait",) if size else ("wait", "last", "since", "info"):
        assert found[name][:3] == ["CorruptMeta", TRUNCATED, size], name


WAITS = [
    ("receive", False, False),
    ("receive_many", True, False),
    ("iterate", False, True),
    ("receive", True, True),
]
CUTS = [("page", 0), ("meta", 64), ("page", 2 * OS_PAGE + 9), ("meta", 0)]
EACH = [(*wait, *cut) for wait in WAITS for cut in CUTS]
PAIRS = [EACH[at] for at in (0, 1, 6, 7, 8, 9, 14, 15)]
"""Each way to wait with a cut page and a cut meta, and each cut with two ways."""


@pytest.mark.parametrize(
    ("how", "read_only", "durable_only", "what", "size"), slow_but_rows(PAIRS, EACH)
)
def test_a_waiting_consumer_is_woken_by_truncation(
    tmp_path: Path, how: str, read_only: bool, durable_only: bool, what: str, size: int
) -> None:
    """I7: no wait is endless if the message can never arrive."""
    scene = Scene(str(tmp_path))
    process = child("wait_for_cut", tmp_path, how, read_only, durable_only)
    ready(process)
    until_asleep(process.pid)
    then = time.monotonic()
    scene.cut(what, size)
    code, out, err = ended(process)
    assert code == 0, err
    found, when = json.loads(out)
    assert found[0] == ("CorruptPage" if what == "page" else "CorruptMeta")
    assert found[1] == TRUNCATED
    assert when - then < SOON


@pytest.mark.parametrize(
    ("what", "size"), [("page", 0), ("page", 2 * OS_PAGE + 9), ("meta", 0), ("meta", 64)]
)
def test_no_acknowledgement_is_written_to_a_truncated_file(
    tmp_path: Path, what: str, size: int
) -> None:
    """I1: not even where the file ends inside an OS page whose rest is still writable."""
    found = output_of("send_cut", tmp_path, what, size)
    error = "CorruptPage" if what == "page" else "CorruptMeta"
    for name, outcome in found.items():
        assert outcome[:3] == [error, TRUNCATED, size], name


def test_a_truncated_index_harms_no_message(tmp_path: Path) -> None:
    """I6: an index is only a hint; it is rebuilt from the frames on demand."""
    found, places, last, whole = output_of("send_without_index", tmp_path)
    assert found == [str(i) for i in range(30)]
    assert places == [3, 14, 15, 40]
    assert last == 44
    assert whole


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("threads", [1, 3])
def test_producers_survive_a_cut_at_any_instruction(
    tmp_path: Path, what: str, threads: int
) -> None:
    """The writers' lock is released correctly, even if its file is truncated while it is held."""
    for turn in range(3):
        directory = tmp_path / str(turn)
        ends = output_of("send_until_cut", directory, what, 0.05 + turn * 0.003, threads)
        error = "CorruptPage" if what == "page" else "CorruptMeta"
        assert [found[:2] for found in ends] == [[error, TRUNCATED]] * (2 * threads)


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_works_together_with_faulthandler(tmp_path: Path, when: str) -> None:
    """Whichever came first: ours takes what is ours."""
    found = output_of("with_faulthandler", tmp_path, when)
    assert [outcome[0] for outcome in found] == ["CorruptPage"] * 3


@pytest.mark.parametrize("handler", ["none", "before", "after", "ignored"])
def test_a_fault_elsewhere_still_kills(tmp_path: Path, handler: str) -> None:
    """Only maps of the core are guarded; faulthandler still prints the traceback."""
    code, out, err = ended(child("die_elsewhere", tmp_path, handler))
    assert code == -signal.SIGBUS, (code, out, err)
    assert out == "touching\n"
    assert ("Fatal Python error: Bus error" in err) == (handler in {"before", "after"})


@pytest.mark.parametrize("handler", ["none", "before", "after"])
def test_a_signal_that_was_sent_still_kills(tmp_path: Path, handler: str) -> None:
    """`kill -BUS` keeps its meaning."""
    process = child("sleep_open", tmp_path, handler)
    ready(process)
    process.send_signal(signal.SIGBUS)
    code, out, err = ended(process)
    assert code == -signal.SIGBUS, (code, out, err)


@pytest.mark.parametrize(("handler", "calls"), [("ignored", 0), ("own", 2)])
def test_a_signal_that_was_sent_goes_to_the_handler_before(
    tmp_path: Path, handler: str, calls: int
) -> None:
    """A program that ignores or handles `kill -BUS` still does, and faults in maps are ours."""
    found, outcome = output_of("handle_sent", tmp_path, handler)
    assert found == [signal.SIGBUS] * calls
    assert outcome[:3] == ["CorruptPage", TRUNCATED, 0]


def test_it_works_after_a_fork(tmp_path: Path) -> None:
    """The child inherits the handler and what it knows."""
    found = output_of("after_fork", tmp_path)
    assert found == ["CorruptPage", TRUNCATED, 0, 15, 5, True]


def test_maps_are_created_and_removed_while_others_fault(tmp_path: Path) -> None:
    """A map that goes is never taken for one that comes."""
    assert output_of("many_maps", tmp_path) == []


def test_threads_fault_concurrently(tmp_path: Path) -> None:
    """Each thread continues, and each gets the error."""
    assert output_of("threads_at_once", tmp_path) == [["OSError"] * 8, True]


def test_importing_installs_no_handler() -> None:
    """Only who maps a file needs it."""
    assert output_of("import_only") is False


def test_no_function_of_the_core_dies_or_trusts_zeros(tmp_path: Path) -> None:
    """Each raises; populate raises the system's error; writes to a lost index have no effect."""
    outcomes, index = output_of("every_call_on_regions", tmp_path)
    assert outcomes == dict.fromkeys(outcomes, "OSError")
    assert index
