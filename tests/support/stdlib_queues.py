"""CPython's own tests of its queues, with our classes in their place: a program, and a list.

    python tests/support/stdlib_queues.py fork|spawn|forkserver

runs all that touch a queue, as the installed standard library has them, and prints one JSON object:
test name to "ok", "skipped: ..." or the last line of its failure. Which tests those are is found in
their code: they name a class of a queue, or call something of the module that does. Only what a
user's changed import would change is changed: the names that the tests take the classes from.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import re
import sys
import types
import unittest

import pagequeue.multiprocessing as ours

TESTS = "test._test_multiprocessing"
METHODS = ("fork", "spawn", "forkserver")
CLASSES = ("Queue", "JoinableQueue", "SimpleQueue")
NAMES = {*CLASSES, "queues"}
OTHER_TYPES = {"manager", "threads"}
"""Tests of these have queues in a manager's process, or of `queue`: those are not ours."""


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
        module = importlib.import_module(TESTS)
    except ImportError:
        return None
    changed = Changed(module.multiprocessing)
    changed.queues = Changed(module.multiprocessing.queues)
    vars(module)["multiprocessing"] = changed
    for name in CLASSES[:2]:
        setattr(module.ProcessesMixin, name, staticmethod(getattr(ours, name)))
    return module


def install(method: str) -> None:
    """Make the test classes available under this module's name, for child processes."""
    module = load()
    if module is not None:
        module.install_tests_in_module_dict(globals(), method)


def names_in(code: types.CodeType) -> set[str]:
    """Return all names that a function uses; those of functions, and of programs, in it too."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
        elif isinstance(constant, str) and "multiprocessing" in constant:
            found.update(re.findall(r"\w+", constant))
    return found


def functions_of(thing: object) -> list[types.FunctionType]:
    """Return the functions in a function, a method or a class."""
    if isinstance(thing, type):
        parts = [part for base in thing.__mro__ for part in vars(base).values()]
        return [one for part in parts if not isinstance(part, type) for one in functions_of(part)]
    function = inspect.unwrap(getattr(thing, "__func__", thing))  # type: ignore[arg-type]
    return [function] if isinstance(function, types.FunctionType) else []


def touches_queue(test: types.FunctionType, case: type) -> bool:
    """Whether a test, or what it calls of its class and module, names a class of a queue."""
    waiting, seen = functions_of(test), set()
    for thing in (case.setUp, case.setUpClass):  # type: ignore[attr-defined]
        waiting += functions_of(thing)
    while waiting:
        function = waiting.pop()
        if function in seen or function.__module__ not in {TESTS, __name__}:
            continue
        seen.add(function)
        names = names_in(function.__code__)
        if names & NAMES:
            return True
        for name in names:
            waiting += functions_of(vars(sys.modules[TESTS]).get(name))
            waiting += functions_of(getattr(case, name, None))
    return False


def cases() -> dict[str, unittest.TestCase]:
    """Return the installed tests that touch a queue, by class and name."""
    found = {}
    for class_name, case in sorted(globals().items()):
        if not (isinstance(case, type) and issubclass(case, unittest.TestCase)):
            continue
        if getattr(case, "TYPE", "processes") in OTHER_TYPES:
            continue
        for name in unittest.TestLoader().getTestCaseNames(case):
            if touches_queue(getattr(case, name), case):
                found[f"{class_name}.{name}"] = case(name)
    return found


def run() -> dict[str, str]:
    """Run all cases; return what became of each."""
    outcomes: dict[str, str] = {}
    globals()["setUpModule"]()
    for name, case in cases().items():
        result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.TestSuite([case]))
        outcomes[name] = outcome_of(result)
    globals()["tearDownModule"]()
    return outcomes


def outcome_of(result: unittest.TestResult) -> str:
    """Return the outcome of one test."""
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
