"""A child that is forked while another thread imports or computes does not hang."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pagequeue
from pagequeue.util import optional
from pagequeue.util.cached import Kept
from stress import children

ROOT = Path(pagequeue.__file__).parent
SECONDS = 30.0
IMPORTING = """
import importlib.util, os, sys, threading, time
from stress import children

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            def slowly(module):
                begun.set()
                time.sleep(0.5)
                execute(module)
            spec.loader.exec_module = slowly
            return spec

begun = threading.Event()
sys.meta_path.insert(0, Slow())
import asyncio
from pagequeue import Queue
def first():
    exec(sys.argv[2], dict(globals()))
thread = threading.Thread(target=first)
thread.start()
assert begun.wait(20)
pid = os.fork()
if pid == 0:
    first()
    os._exit(0)
thread.join()
status = children.ended(pid, 20)
if status is None:
    children.kill(pid)
sys.exit("it hangs" if status is None else status)
"""
COMPRESSING = "Queue(sys.argv[3] + str(os.getpid()), page_bytes=4096, compress_after=1).close()"


@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("zstandard", COMPRESSING),
        ("pyarrow", "from pagequeue.util.optional import pyarrow; pyarrow()"),
    ],
)
def test_child_does_not_inherit_the_lock_of_an_import(
    module: str, what: str, tmp_path: Path
) -> None:
    """The fork waits until the thread has imported it, and the child has it then."""
    pytest.importorskip(module)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTING, module, what, str(tmp_path / "q")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_executors_are_imported_with_the_package() -> None:
    """Imported during a fork, their lock would be released by hooks that never acquired it."""
    code = "import sys, pagequeue; sys.exit('concurrent.futures.thread' not in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SECONDS)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_waits_for_an_import_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who forks may be inside an import that the other one waits for; child and parent go on."""
    monkeypatch.setattr(optional, "FORK_SECONDS_MAX", 0.05)
    begun, ends = threading.Event(), threading.Event()

    def load() -> None:
        with optional._loading:
            begun.set()
            ends.wait(SECONDS)

    thread = threading.Thread(target=load)
    thread.start()
    begun.wait(SECONDS)
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        os._exit(0 if optional.load("json") is not None else 1)
    assert children.ended(pid, SECONDS) == 0
    ends.set()
    thread.join()
    assert optional.load("json") is not None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_module_may_fork_while_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that forks while it is imported is imported, in the child too."""
    monkeypatch.setattr(optional, "FORK_SECONDS_MAX", 0.05)
    with optional._loading:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            os._exit(0 if optional.load("json") is not None else 1)
        assert children.ended(pid, SECONDS) == 0
    thread = threading.Thread(target=optional.load, args=("json",))
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()


class Counted:
    """Counts how often a value is computed."""

    def __init__(self) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()

    @Kept
    def value(self) -> int:
        """A value that takes its time."""
        self.begun.set()
        self.ends.wait(SECONDS)
        return id(self)


def test_one_object_does_not_wait_for_the_property_of_another() -> None:
    """There is no lock that a fork could copy; each value is kept."""
    slow, quick = Counted(), Counted()
    quick.ends.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait(SECONDS)
    assert quick.value == id(quick)
    assert not slow.ends.is_set()
    slow.ends.set()
    thread.join()
    assert vars(slow)["value"] == slow.value == id(slow)


WITH_LOCKS = {"cached_property", "import_module", "__import__", "unique"}
"""Has a lock for all objects of a class; imports; imports `numpy.ma`."""
FREE = ("cli", "demo", "spark", "util/optional.py")
"""Commands and Spark's drivers do not fork, and import on demand; the last is the fork guard."""


def test_no_module_of_the_library_uses_objects_whose_locks_a_fork_copies() -> None:
    """Each of these would be a lock that a child of a fork waits for without end."""
    found, seen = [], 0
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(FREE):
            continue
        seen += 1
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if any(map(text.__contains__, WITH_LOCKS)) else ():
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            if isinstance(node, ast.ImportFrom):
                name = next((each.name for each in node.names if each.name in WITH_LOCKS), None)
            if name in WITH_LOCKS:
                found.append(f"{place}:{node.lineno}: {name}")
    assert seen > 100
    assert not found
