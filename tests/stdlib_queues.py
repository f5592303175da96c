"""CPython's own tests of its queues, with our classes in their place: a program, and a list.

    python tests/stdlib_queues.py fork|spawn|forkserver

runs those that touch a queue, as the installed standard library has them, and prints one JSON
object: test name to "ok", "skipped: ...", "not in this Python" or the last line of its failure.
Only what a user's changed import would change is changed: the names that the tests take the classes
from.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import types
import unittest

import pagequeue.multiprocessing as ours

METHODS = ("fork", "spawn", "forkserver")
CASES = {
    "WithProcessesTestQueue": (
        "test_put",
        "test_get",
        "test_fork",
        "test_qsize",
        "test_task_done",
        "test_no_import_lock_contention",
        "test_timeout",
        "test_queue_feeder_donot_stop_onexc",
        "test_queue_feeder_on_queue_feeder_error",
        "test_closed_queue_put_get_exceptions",
        "test_closed_queue_empty_exceptions",
    ),
    "TestSimpleQueue": ("test_empty", "test_close", "test_closed"),
    "TestStartMethod": ("test_mixed_startmethod", "test_nested_startmethod"),
    "TestStdinBadfiledescriptor": ("test_queue_in_process",),
    "WithProcessesTestProcess": (
        "test_args_argument",
        "test_process",
        "test_process_mainthread_native_id",
        "test_close",
        "test_lose_target_ref",
        "test_child_fd_inflation",
    ),
    "WithProcessesTestBarrier": ("test_wait_return",),
}
"""All of the module's tests that make a queue of theirs, but those whose queue a manager has."""
CLASSES = ("Queue", "JoinableQueue", "SimpleQueue")


class Changed(types.SimpleNamespace):
    """Something of the standard library, with our classes in it."""

    def __init__(self, real: object) -> None:
        super().__init__(real=real, **{name: getattr(ours, name) for name in CLASSES})

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def get_context(self, method: str | None = None) -> Changed:
        """Return a context that has our classes."""
        return Changed(self.real.get_context(method))


def load() -> types.ModuleType | None:
    """Return CPython's module of tests, changed; None: this Python came without its tests."""
    try:
        module = importlib.import_module("test._test_multiprocessing")
    except ImportError:
        return None
    changed = Changed(module.multiprocessing)
    changed.queues = Changed(module.multiprocessing.queues)
    vars(module)["multiprocessing"] = changed
    for name in CLASSES[:2]:
        setattr(module.ProcessesMixin, name, staticmethod(getattr(ours, name)))
    return module


def install(method: str) -> None:
    """Make the test classes under this module's name, where child processes look for them."""
    module = load()
    if module is not None:
        module.install_tests_in_module_dict(globals(), method)


def run() -> dict[str, str]:
    """Run all cases that were installed; return what became of each."""
    outcomes: dict[str, str] = {}
    globals()["setUpModule"]()
    for class_name, names in CASES.items():
        for name in names:
            case = globals().get(class_name)
            if case is None or not hasattr(case, name):
                outcomes[f"{class_name}.{name}"] = "not in this Python"
                continue
            suite = unittest.TestSuite([case(name)])
            result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
            outcomes[f"{class_name}.{name}"] = outcome_of(result)
    globals()["tearDownModule"]()
    return outcomes


def outcome_of(result: unittest.TestResult) -> str:
    """Say what became of one test."""
    wrong = [*result.errors, *result.failures]
    if wrong:
        return wrong[0][1].strip().splitlines()[-1]
    return f"skipped: {result.skipped[0][1]}" if result.skipped else "ok"


if len(sys.argv) == 2 and sys.argv[1] in METHODS:  # also in the children, which import this again
    install(sys.argv[1])
if __name__ == "__main__":
    if "setUpModule" not in globals():
        sys.exit("this Python came without its tests (test._test_multiprocessing)")
    print(json.dumps(run()))
