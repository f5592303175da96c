"""Every public class, function, method and property has an example that prints its output."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import json
import logging as standard_logging
import os
import re
import shutil
import time
import types
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from support import flip

import pagequeue
from pagequeue import Pace, Queue, journal, logging, merge, multiprocessing, tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

PARSER: Final = doctest.DocTestParser()
CHECKER: Final = doctest.OutputChecker()
FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
AWAITS: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
PAYLOADS: Final = [b"one", b"two", b"three", b"four", b"five"]
PAIR: Final = [b"a", b"b"]
RECORDS: Final = [np.int64(number).tobytes() for number in (1, 2, 3)]


DROP_IN: Final = "multiprocessing."
JOURNAL: Final = "journal."
TASKS: Final = "tasks."
LOGGING: Final = "logging."
MODULES: Final = {
    pagequeue: "",
    multiprocessing: DROP_IN,
    journal: JOURNAL,
    tasks: TASKS,
    logging: LOGGING,
}
STANDARD: Final = (multiprocessing.Empty, multiprocessing.Full)
"""Public names that are the standard library's own."""


# --- that there is one ----------------------------------------------------------------------------


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties of a class, those that it inherits from ours too."""
    seen = set()
    for owner in kind.__mro__:
        for name, value in vars(owner).items() if owner.__module__.startswith("pagequeue") else ():
            called = getattr(value, "__func__", value)  # of a class method
            described = isinstance(value, property | types.GetSetDescriptorType)
            if (described or inspect.isroutine(called)) and not name.startswith("_"):
                if name not in seen:
                    yield f"{owner.__name__}.{name}", inspect.getdoc(value) or ""
                seen.add(name)


def documented() -> dict[str, str]:
    """Return the docstring of each public class, function, method and property."""
    found: dict[str, str] = {}
    for module, prefix in MODULES.items():
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and thing not in STANDARD:
                found[prefix + name] = inspect.getdoc(thing) or ""
                inside = members(thing) if isinstance(thing, type) else ()
                found |= {prefix + path: text for path, text in inside}
    return found


DOCSTRINGS: Final = documented()
EXAMPLES: Final = {name: PARSER.get_examples(text) for name, text in DOCSTRINGS.items()}


def test_everything_public_has_an_example() -> None:
    """Also what is added later."""
    assert [name for name, examples in EXAMPLES.items() if not examples] == []


def test_everything_public_is_told_in_one_line_first() -> None:
    """What `help` and an editor show of it: one sentence, then an empty line."""
    lines = {name: text.splitlines() for name, text in DOCSTRINGS.items()}
    assert [
        name
        for name, (first, *rest) in lines.items()
        if not first.endswith(".") or (rest and rest[0])
    ] == []


def undescribed(path: str, call: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters that a docstring neither lists under Args nor names in its text."""
    text = inspect.getdoc(call) or ""
    for name in inspect.signature(call).parameters:
        listed = rf"^ +(?:\*{{0,2}}\w+, )*\*{{0,2}}{name}(?:, \*{{0,2}}\w+)*: |`{name}`"
        if name not in {"self", "cls"} and not re.search(listed, text, re.MULTILINE):
            yield f"{path}({name})"


def calls(module: types.ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions and methods of a module."""
    for name in module.__all__:
        thing = getattr(module, name)
        if not isinstance(thing, type):
            if callable(thing):
                yield name, thing
            continue
        for owner in thing.__mro__ if thing not in STANDARD else ():
            for inside, value in vars(owner).items() if owner.__module__.startswith("page") else ():
                called = getattr(value, "__func__", value)
                if inspect.isroutine(called) and not inside.startswith("_"):
                    yield f"{owner.__name__}.{inside}", called


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_each_parameter_is_described(module: types.ModuleType) -> None:
    """In the docstring of its own function, because `help` shows no other."""
    found = dict(calls(module))
    assert found
    assert [lack for path, call in found.items() for lack in undescribed(path, call)] == []


def test_parameter_without_description_is_seen() -> None:
    """Words of the text that happen to be its name are none."""

    def call(limit: int, *names: str, timeout: float, **others: int) -> None:  # noqa: D417
        """Do it to the limit.

        Args:
            timeout: seconds.
            *names: of queues.
        """

    assert list(undescribed("call", call)) == ["call(limit)", "call(others)"]


def test_what_has_to_have_an_example_is_found() -> None:
    """Of each kind: a class, a function, a method and a property, of Python and of the core."""
    kinds = {
        "Queue",
        "merge",
        "Queue.last",
        "Queue.tail_sequence",
        "Claim.ack",
        "Message.time",
        "multiprocessing.Queue.put",
        "multiprocessing.Base.directory",
        "Stale",
        "journal.Journal.read",
        "tasks.TaskStore.claim",
        "logging.QueueHandler.emit",
    }
    assert kinds <= set(DOCSTRINGS)


# --- that it runs ---------------------------------------------------------------------------------

EMPTY: Final = {
    "Flow",
    "Producer",
    "Producer.open",
    "Queue",
    "Queue.persist",
    "Queue.producer",
    "Producer.send_async",
    "Producer.send_many",
    "Producer.send_many_async",
    "Writer.send",
    "journal.Journal.update",
    "journal.Journal.update_async",
    "tasks.Task",
    "tasks.TaskStore.insert",
    "tasks.TaskStore.insert_async",
}
"""Examples that begin with an empty queue."""
NAMED: Final = {"Consumer.ack_async", "NamedConsumer"}
"""Examples, or classes, whose consumer has a name."""
WITH_CURSOR: Final = {"ConsumerInfo", "ConsumerStats", "Queue.consumers", "Queue.remove_consumer"}
DAMAGED: Final = {"CorruptFrame", "DamageError", "Loss", "Problem"}
WITHOUT_INDEX: Final = {"RepairReport", "repair_queue"}
EXTRAS: Final = {
    "pyarrow": {
        "Batch.to_arrow",
        "Batches",
        "Batches.schema",
        "Batches.to_arrow",
        "Merge.to_arrow",
        "MergedBatch.to_arrow",
        "MissingExtra",
    },
    "zstandard": {"CompressReport", "Queue.compress"},
}


ENTRIES: Final = 1000
"""Of the journal that examples have."""


class Accounts:
    """The machine of the journal that examples have: the balance of each account."""

    version = 1

    def initial(self) -> dict[str, int]:
        """Return no accounts."""
        return {}

    def apply(self, state: dict[str, int], entry: dict[str, Any], timestamp_ns: int) -> None:
        """Add an amount, in place."""
        del timestamp_ns
        state[entry["account"]] = state.get(entry["account"], 0) + entry["amount"]

    def dump(self, state: dict[str, int]) -> Iterator[bytes]:
        """Yield each account."""
        for name in sorted(state):
            yield f"{name} {state[name]}".encode()

    def load(self, chunks: Iterable[bytes], version: int) -> dict[str, int]:
        """Return what was dumped."""
        del version
        pairs = (chunk.decode().split() for chunk in chunks)
        return {name: int(amount) for name, amount in pairs}


class Scene:
    """What the examples of one docstring use, each made when it is named in them."""

    def __init__(self, name: str, closing: contextlib.ExitStack) -> None:
        self.name = name
        self.module, prefix = next(
            (module, prefix)
            for module, prefix in reversed(MODULES.items())
            if name.startswith(prefix)
        )
        self.owner = name.removeprefix(prefix).partition(".")[0]
        self.closing = closing
        self.names: dict[str, Any] = {
            **{name: getattr(self.module, name) for name in self.module.__all__},
            "asyncio": asyncio,
            "os": os,
            "path": "copy",
            "shutil": shutil,
            "time": time,
            "timedelta": timedelta,
            "json": json,
            "logging": standard_logging,
            "lines": [b"one", b"two"],
            "Accounts": Accounts,
        }
        source = "".join(example.source for example in EXAMPLES[name])
        code = compile(source, name, "exec", AWAITS | ast.PyCF_ONLY_AST)
        found = [node for node in ast.walk(code) if isinstance(node, ast.Name)]
        made = {node.id for node in found if isinstance(node.ctx, ast.Store)}
        for used in dict.fromkeys(node.id for node in found):
            if used not in made and hasattr(self, f"_{used}"):
                self.need(used)
        if '"accounts"' in source and name != "journal.Journal":
            self.need("journal")
        if '"events"' in source and "queue" not in self.names:
            self._queue().close()
            if name in DAMAGED:
                page = "events/queue-0000000001.page"
                with open(page, "rb") as file:
                    flip(page, file.read().index(b"three"))
            if name in WITHOUT_INDEX:
                os.unlink("events/queue-0000000001.idx")

    def need(self, name: str) -> Any:  # noqa: ANN401 - any of them
        """Return what has a name; make it if this is the first time."""
        if name not in self.names:
            self.names[name] = getattr(self, f"_{name}")()
        return self.names[name]

    def _sent(self, path: str, payloads: list[bytes], timestamps: list[int] | None = None) -> Queue:
        queue = self.closing.enter_context(Queue(path, page_bytes=1 << 16))
        if payloads:
            queue.producer().send_many(payloads, timestamps=timestamps)
        return queue

    def _queue(self) -> Any:  # noqa: ANN401 - Queue, of one of the modules
        if self.module is multiprocessing:
            kind = self.names.get(self.owner)
            if kind is None or issubclass(kind, BaseException):
                kind = multiprocessing.Queue
            return self.closing.enter_context(contextlib.closing(kind()))
        payloads = RECORDS if self.name == "Batch.to_numpy" else PAYLOADS
        if self.name in EMPTY or self.owner == "Flow":
            payloads = []
        elif self.name == "Batch":
            payloads = PAIR
        queue = self._sent("events", payloads)
        if self.name in WITH_CURSOR:
            with queue.consumer("billing") as consumer:
                consumer.receive()
                consumer.ack()
        if self.name == "GroupInfo":
            self.closing.enter_context(queue.group("workers")).claim_many(3)
        return queue

    def _producer(self) -> Any:  # noqa: ANN401 - Producer
        return self.need("queue").producer()

    def _consumer(self) -> Any:  # noqa: ANN401 - Consumer or NamedConsumer
        is_named = self.owner in NAMED or self.name in NAMED
        return self.need("queue").consumer("billing" if is_named else None)

    def _message(self) -> Any:  # noqa: ANN401 - Message
        if self.owner == "Flow":
            return next(self.need("flow"))
        return self.need("consumer").receive(0)

    def _group(self) -> Any:  # noqa: ANN401 - Group
        if self.owner != "DeadLetter" and not self.name.endswith("dead_letters"):
            return self.need("queue").group("workers")
        group = self.need("queue").group("workers", max_deliveries=1)
        group.claim(0).nack()
        group.claim(0).ack()
        return group

    def _dead_queue(self) -> Queue:
        return self.closing.enter_context(
            Queue("events", prefix=self.need("group").dead_letter_prefix)
        )

    def _claim(self) -> Any:  # noqa: ANN401 - Claim or TaskClaim
        if self.module is tasks:
            return self.need("store").claim("mail")
        return self.need("group").claim(0)

    def _claims(self) -> Any:  # noqa: ANN401 - a list of TaskClaim
        return self.need("store").claim_many("mail", 2)

    def _journal(self) -> Any:  # noqa: ANN401 - Journal
        made = self.closing.enter_context(
            journal.Journal("accounts", Accounts(), page_bytes=1 << 16)
        )
        if self.name not in EMPTY:
            for number in range(ENTRIES):
                entry = {"account": "ann" if number == 0 else "ben", "amount": 5}
                made.update(lambda _, entry=entry: entry)
        return made

    def _handler(self) -> Any:  # noqa: ANN401 - QueueHandler
        return self.closing.enter_context(contextlib.closing(logging.QueueHandler("log")))

    def _store(self) -> Any:  # noqa: ANN401 - TaskStore
        made = self.closing.enter_context(tasks.TaskStore("tasks", page_bytes=1 << 16))
        for name in () if self.name in EMPTY else ("ann", "ben"):
            made.insert("mail", {"to": name})
        return made

    def _batch(self) -> Any:  # noqa: ANN401 - Batch or MergedBatch
        if self.owner == "MergedBatch":
            return self.need("merged").receive_many(2)
        return self.need("queue").consumer().receive_many()

    def _flow(self) -> Any:  # noqa: ANN401 - Flow
        return self.closing.enter_context(self.need("queue").persist([b"one", b"two"], "elements"))

    def _first(self) -> Queue:
        return self._sent("first", [b"a"], [1])

    def _second(self) -> Queue:
        return self._sent("second", [b"b"], [2])

    def _merged(self) -> Any:  # noqa: ANN401 - Merge
        return self.closing.enter_context(merge([self.need("first"), self.need("second")]))

    def _pace(self) -> Pace:
        return Pace(10.0)

    def _before(self) -> Any:  # noqa: ANN401 - Stats
        return self.need("queue").stats()

    def _pyarrow(self) -> Any:  # noqa: ANN401 - a module
        return pytest.importorskip("pyarrow")


def printed(
    example: doctest.Example, names: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> str:
    """Run one example, which may await, and return what it prints."""
    code = compile(example.source, "an example", "single", AWAITS)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = eval(code, names)
        if inspect.iscoroutine(result):
            loop.run_until_complete(result)
    return out.getvalue()


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("name", [name for name, examples in EXAMPLES.items() if examples])
def test_example_prints_its_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An example that does not run misleads its readers."""
    for library, users in EXTRAS.items():
        if name in users:
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    loop = asyncio.new_event_loop()
    with contextlib.closing(loop), contextlib.ExitStack() as closing:
        names = Scene(name, closing).names
        for example in EXAMPLES[name]:
            found = printed(example, names, loop)
            assert CHECKER.check_output(example.want, found, FLAGS), (example.source, found)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
