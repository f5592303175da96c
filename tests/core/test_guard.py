"""A file that is truncated while it is open: a typed error, whatever was under way, no signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from support import HERE, SOON, end, ready
from truncated import OS_PAGE, PLACES, TRUNCATED, Scene

if TYPE_CHECKING:
    from pathlib import Path


def child(name: str, *args: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Run a function of `truncated.py` in a process of its own."""
    code = (
        f"import json, sys; sys.path.insert(0, {HERE!r}); import truncated; "
        f"truncated.{name}(*json.loads(sys.argv[1]))"
    )
    command = [sys.executable, *before, "-W", "error", "-c", code, json.dumps(args, default=str)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], seconds: float = 60.0) -> tuple[int, str, str]:
    """Wait for a process; return how it ended and what it wrote."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        raise AssertionError("it did not end in time") from None
    return process.returncode, out, err


def told(name: str, *args: object, before: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - JSON
    """Run a function in a process that must end well; return what it printed last."""
    code, out, err = ended(child(name, *args, before=before))
    if code != 0:  # in whole: an assertion's own words are cut short
        pytest.fail(f"{name} ended with {code}\n{out}\n{err}", pytrace=False)
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("size", [0, OS_PAGE, OS_PAGE + 700])
def test_readers_of_a_truncated_sealed_page_get_an_error(
    tmp_path: Path, size: int, read_only: bool
) -> None:
    """Messages in front of the cut still come; then every way to read says what happened."""
    found = told("read_cut", tmp_path, "sealed", size, read_only, [])
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
    """At the tail there is nothing, as ever; but it is not taken for nothing."""
    found = told("read_cut", tmp_path, "page", size, read_only, [])
    for name in ("poll", "receive", "receive_many", "next", "wait"):
        assert found[name] == ["CorruptPage", TRUNCATED, size, 15], name
    for name in ("replay", "batches", "last"):
        assert found[name][:3] == ["CorruptPage", TRUNCATED, size], name


def test_readers_of_a_truncated_read_meta_get_an_error(tmp_path: Path) -> None:
    """Reading on needs no read meta; seeking does, and says so."""
    found = told("read_cut", tmp_path, "read", 0, False, ["next", "wait"])
    assert found["poll"][0] == "returned"
    for name in ("last", "since", "info"):
        assert found[name][:2] == ["CorruptMeta", TRUNCATED], name


@pytest.mark.parametrize("size", [0, 1, 200])
def test_users_of_a_truncated_write_meta_get_an_error(tmp_path: Path, size: int) -> None:
    """A part of an OS page reads as zeros without any fault; that is noticed all the same."""
    found = told("read_cut", tmp_path, "meta", size, False, [])
    for name in ("wait",) if size else ("wait", "last", "since", "info"):
        assert found[name][:3] == ["CorruptMeta", TRUNCATED, size], name


@pytest.mark.parametrize(
    ("how", "read_only", "durable_only"),
    [
        ("receive", False, False),
        ("receive_many", True, False),
        ("iterate", False, True),
        ("receive", True, True),
    ],
)
@pytest.mark.parametrize(
    ("what", "size"), [("page", 0), ("page", 2 * OS_PAGE + 9), ("meta", 0), ("meta", 64)]
)
def test_a_waiting_consumer_hears_of_it(
    tmp_path: Path, how: str, read_only: bool, durable_only: bool, what: str, size: int
) -> None:
    """I7: nobody waits for ever for what cannot come."""
    scene = Scene(str(tmp_path))
    process = child("wait_for_cut", tmp_path, how, read_only, durable_only)
    ready(process)
    time.sleep(0.15)
    then = time.time()
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
def test_nothing_is_acknowledged_into_a_truncated_file(
    tmp_path: Path, what: str, size: int
) -> None:
    """I1: also where an OS page in whose middle the file ends could still be written."""
    found = told("send_cut", tmp_path, what, size)
    error = "CorruptPage" if what == "page" else "CorruptMeta"
    for name, outcome in found.items():
        assert outcome[:3] == [error, TRUNCATED, size], name


def test_a_truncated_index_harms_no_message(tmp_path: Path) -> None:
    """I6: it is only a hint; whoever needs it writes it again from the frames."""
    found, places, last, whole = told("send_without_index", tmp_path)
    assert found == [str(i) for i in range(30)]
    assert places == [3, 14, 15, 40]
    assert last == 44
    assert whole


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("threads", [1, 3])
def test_producers_survive_a_cut_at_any_instruction(
    tmp_path: Path, what: str, threads: int
) -> None:
    """The writers' lock is left behind in order, also when it is gone while it is held."""
    for turn in range(3):
        directory = tmp_path / str(turn)
        ends = told("send_until_cut", directory, what, 0.05 + turn * 0.003, threads)
        error = "CorruptPage" if what == "page" else "CorruptMeta"
        assert [found[:2] for found in ends] == [[error, TRUNCATED]] * (2 * threads)


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_works_together_with_faulthandler(tmp_path: Path, when: str) -> None:
    """Whichever came first: ours takes what is ours."""
    found = told("with_faulthandler", tmp_path, when)
    assert [outcome[0] for outcome in found] == ["CorruptPage"] * 3


@pytest.mark.parametrize("handler", ["none", "before", "after", "ignored"])
def test_a_fault_elsewhere_still_kills(tmp_path: Path, handler: str) -> None:
    """Only our own maps are guarded; faulthandler still says where it was."""
    code, out, err = ended(child("die_elsewhere", tmp_path, handler))
    assert code == -signal.SIGBUS, (code, out, err)
    assert out == "touching\n"
    assert ("Fatal Python error: Bus error" in err) == (handler in {"before", "after"})


@pytest.mark.parametrize("handler", ["none", "before", "after"])
def test_a_signal_that_was_sent_still_kills(tmp_path: Path, handler: str) -> None:
    """`kill -BUS` means what it says."""
    process = child("sleep_open", tmp_path, handler)
    ready(process)
    process.send_signal(signal.SIGBUS)
    code, out, err = ended(process)
    assert code == -signal.SIGBUS, (code, out, err)


def test_it_works_after_a_fork(tmp_path: Path) -> None:
    """The child inherits the handler and what it knows."""
    found = told("after_fork", tmp_path)
    assert found == ["CorruptPage", TRUNCATED, 0, 15, 5, True]


def test_maps_come_and_go_while_others_fault(tmp_path: Path) -> None:
    """A map that goes is never taken for one that comes."""
    assert told("many_maps", tmp_path) == []


def test_threads_fault_at_once(tmp_path: Path) -> None:
    """Each of them goes on, and each of them is told."""
    assert told("threads_at_once", tmp_path) == [["OSError"] * 8, True]


def test_importing_installs_no_handler() -> None:
    """Only who maps a file needs it."""
    assert told("import_only") is False


def test_no_function_of_the_core_dies_or_believes_zeros(tmp_path: Path) -> None:
    """Each raises; populating says what the system says; a lost index is written into nothing."""
    outcomes, index = told("every_call_on_regions", tmp_path)
    assert outcomes == dict.fromkeys(outcomes, "OSError")
    assert index
