"""Hostile arguments of every public call: a typed error that names the argument, nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import re
import threading
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from support import SMALL, payloads, until

from pagequeue import (
    Claim,
    Consumer,
    Flow,
    Group,
    Merge,
    NamedConsumer,
    Pace,
    Producer,
    Queue,
    Retention,
    RetryError,
    SequenceOutOfRange,
    merge,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue.errors import InvalidOption, InvalidType
from pagequeue.journal import Journal, journal_info
from pagequeue.logging import QueueHandler
from pagequeue.multiprocessing import JoinableQueue, SimpleQueue
from pagequeue.multiprocessing import Queue as ObjectQueue
from pagequeue.tasks import TaskClaim, TaskStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VALUES: Final[dict[str, Any]] = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-1": -1,
    "2**70": 1 << 70,
    "10**5000": 10**5000,
    "empty": "",
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "bytes": b"\xff",
    "list": [1],
    "object": object(),
    "1.5": 1.5,
    "timedelta.max": timedelta.max,
    "NumPy's nan": np.float64("nan"),
    "True": True,
}
LONG = "inf 2**70 1.5"
KINDS: Final = {
    "seconds": (LONG, "timeout full_timeout lock_timeout"),
    "span": ("1.5", "lease delay seconds patience"),
    "whole": ("", "page_bytes file_mode compress_level limit_count capacity ring unfinished_max"),
    "limit": ("", "max_deliveries piece"),
    "pair": ("", "backoff"),
    "many": ("2**70 10**5000", "count compress_after snapshots task_id max_bytes"),
    "any": ("-1 True", "priority"),
    "size": ("-1", "maxsize"),
    "sequence": ("", "sequence at message_or_sequence"),
    "later": ("", "after"),
    "time": ("-1", "since until moment"),
    "stamp": ("", "timestamp"),
    "stamps": ("", "timestamps"),
    "speed": ("2**70 1.5", "speed"),
    "path": ("", "directory target to"),
    "name": ("", "prefix name consumer"),
    "choice": ("", "codec trust on_sync_failure on_full on_expired commit status"),
    "object": ("", "retention dtype machine"),
    "text": ("empty NUL", "worker key queue"),
    "reason": ("empty NUL surrogate", "reason"),
    "writer": ("NUL", "writer"),
    "sync": ("", "sync"),
    "age": ("timedelta.max", "max_age max_idle"),
}
"""What a parameter is, the values above that it takes, and the names of such parameters."""
KIND_OF: Final = {name: kind for kind, (_, names) in KINDS.items() for name in names.split()}
KIND_AT: Final = {
    "tasks.insert.at": "time",
    "queue.as_of.timestamps": "time",
    "task.nack.reason": "text",
    "tasks.claim.queues": "text",
    "tasks.claim_many.queues": "text",
    "merge.queues": "object",
    "queue.persist.source": "object",
    "TaskStore.worker": "text",
    "queue.publish.writer": "writer",
}
"""Where a parameter is not what others of its name are."""
UNTRIED: Final = {
    "path": {"bytes"},
    "stamps": {"list", "bytes"},  # ints, all too early, which has a test of its own
    "object": {"list", "empty", "bytes", "surrogate", "NUL"},
}
"""What is right, or another mistake."""
TAKEN_HERE: Final = {
    "queue.as_of.timestamps": {"list"},
    "group.requeue_dead_letters.limit_count": {"2**70", "10**5000"},
    "tasks.get.task_id": {"-1"},
    "tasks.get_async.task_id": {"-1"},
    "Queue.compress_level": {"-1"},
    "pipe.get.timeout": {"-1", "-inf"},  # as multiprocessing has it
    "pipe.put.timeout": {"-1", "-inf"},
}
"""Values that only this call takes."""
OTHERS: Final = {
    "self",
    "create",
    "read_only",
    "clock",
    "progress",
    "latest",
    "durable_only",
    "payload",
    "payloads",
    "durable",
    "times",
    "copy",
    "follow",
    "block",
    "obj",
    "value",
    "decide",
    "query",
    "keep_unacked",
    "keep_partial",
    "drop_acknowledged",
    "ctx",
    "compact_on_open",
    "names",
    "insert",
    "change",
    "delete",
    "depend",
    "tasks",
    "sleep",
    "level",
    "check",
}
"""Flags, functions, what is sent, and what the tests of tasks and of logging try."""
INTERNAL: Final = {
    "check_open",
    "flush_if_asked",
    "freeze",
    "seal",
    "begin_flow",
    "createLock",
    "emit",
    "filter",
    "format",
    "handle",
    "handleError",
    "addFilter",
    "removeFilter",
    "setFormatter",
    "setLevel",
    "set_name",
    "left_ns",
}


class Total:
    """A machine that adds."""

    version = 1

    def initial(self) -> int:
        """Return zero."""
        return 0

    def apply(self, state: int, entry: int, _timestamp_ns: int, /) -> int:
        """Add."""
        return state + entry

    def dump(self, state: int, /) -> list[bytes]:
        """Return the digits."""
        return [b"%d" % state]

    def load(self, chunks: Any, _version: int, /) -> int:  # noqa: ANN401
        """Return the number."""
        return int(b"".join(chunks))


class Stage:
    """What calls are made on; each property is ready for a call that need not wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue = Queue(path / "q", page_bytes=SMALL)
        self.producer = self.queue.producer()
        self.producer.send_many([b"a", b"b", b"c"])
        self._consumer = self.queue.consumer("c")
        self._group = self.queue.group("g")
        self._tasks = TaskStore(path / "tasks", page_bytes=SMALL, worker="w")
        self.journal = Journal(path / "journal", Total(), page_bytes=SMALL)
        self.journal.update(lambda _state: 1)
        self._pipe: Any = ObjectQueue(3, directory=path / "objects", page_bytes=SMALL)
        self._fresh = count()

    @property
    def consumer(self) -> Consumer:
        """A consumer with messages to receive."""
        self._consumer.seek(sequence=0)
        return self._consumer

    @property
    def group(self) -> Group:
        """A group with a message to claim."""
        self.producer.send(b"to claim")
        return self._group

    @property
    def claim(self) -> Claim:
        """A live claim."""
        return self.group.claim(0)

    @property
    def tasks(self) -> TaskStore:
        """A store with a task to claim."""
        self._tasks.insert("mail", b"to claim")
        return self._tasks

    @property
    def task(self) -> TaskClaim:
        """A live claim of a task."""
        return self.tasks.claim("mail", 1000.0, 0)

    @property
    def merge(self) -> Merge:
        """A merge with messages."""
        return merge([self.queue])

    @property
    def pipe(self) -> ObjectQueue[int]:
        """A queue of one object."""
        with contextlib.suppress(Exception):
            while True:
                self._pipe.get_nowait()
        self._pipe.put(1)
        self._pipe.flush()
        return self._pipe  # type: ignore[no-any-return]

    def good(self, label: str, public: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return arguments for all parameters that have no default."""
        fresh = next(self._fresh)
        found = {
            "directory": self.path / f"new{fresh}",
            "target": self.path / f"target{fresh}",
            "to": self.path / f"replica{fresh}",
            "payload": b"x",
            "payloads": [b"x"],
            "writer": "w",
            "piece": fresh,
            "name": f"name{fresh}",
            "limit_count": 1,
            "queues": "mail",
            "queue": "mail",
            "value": b"x",
            "obj": 1,
            "count": 1,
            "task_id": 1,
            "decide": lambda _state: None,
            "query": lambda state: state,
            "seconds": 5,
            "speed": 1,
            "source": lambda _last: iter(()),
            "moment": timedelta(0),
            "machine": Total(),
            "timestamps": 1,
            "tasks": [],
            "after": 0,
        }
        if label in {"verify_queue", "repair_queue", "salvage_queue", "journal_info"}:
            name = {"journal_info": "journal", "repair_queue": "closed"}.get(label, "q")
            found["directory"] = self.path / name
        if label == "merge":
            found["queues"] = [self.queue]
        if label.startswith("journal.wait"):
            return {"after": 0}
        waits = {"timeout": 0} if label.startswith("tasks.claim") else {}
        return waits | {
            name: found[name]
            for name, parameter in inspect.signature(public).parameters.items()
            if parameter.default is parameter.empty and name != "self"
        }

    def close(self) -> None:
        """Close all of it."""
        self._pipe.close()
        self._pipe.join_thread()
        for opened in (self.journal, self._tasks, self.queue):
            opened.close()


OWNERS: Final = {
    "queue": Queue,
    "producer": Producer,
    "consumer": NamedConsumer,
    "group": Group,
    "claim": Claim,
    "merge": Merge,
    "tasks": TaskStore,
    "task": TaskClaim,
    "journal": Journal,
    "pipe": ObjectQueue,
}
FUNCTIONS: Final = (
    Queue,
    Retention,
    Pace,
    merge,
    verify_queue,
    repair_queue,
    salvage_queue,
    TaskStore,
    Journal,
    journal_info,
    QueueHandler,
    ObjectQueue,
    JoinableQueue,
    SimpleQueue,
)


def calls() -> Iterator[tuple[str, Any, Callable[[Stage], Any]]]:
    """Yield each public callable with parameters: its name, itself, and where it is."""
    for owner, cls in OWNERS.items():
        for name in dir(cls):
            public = getattr(cls, name)
            if not name.startswith("_") and callable(public) and name not in INTERNAL:
                yield (
                    f"{owner}.{name}",
                    public,
                    lambda stage, o=owner, n=name: getattr(getattr(stage, o), n),
                )
    for function in FUNCTIONS:
        label = function.__name__ + ("OfObjects" if function is ObjectQueue else "")
        yield label, function, lambda _stage, f=function: f


def kind_of(label: str, name: str) -> str | None:
    """Return what a parameter is; None: it is not tried."""
    if name in OTHERS and f"{label}.{name}" not in KIND_AT:
        return None
    return KIND_AT.get(f"{label.removesuffix('_async')}.{name}") or KIND_OF[name]


TRIED: Final = [
    pytest.param(label, public, found, name, id=f"{label}-{name}")
    for label, public, found in calls()
    for name, parameter in inspect.signature(public).parameters.items()
    if parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    and kind_of(label, name) is not None
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Return what all calls are made on, and check at the end that it is whole."""
    path = tmp_path_factory.mktemp("stage")
    Queue(path / "closed", page_bytes=SMALL).close()
    (path / "here").mkdir()
    stage = Stage(path)
    with contextlib.chdir(path / "here"):  # where a path that is not absolute leads
        yield stage
    assert payloads(stage.queue.replay())[:3] == [b"a", b"b", b"c"]
    assert stage.queue.verify().ok
    assert stage.journal.verify().ok
    stage.close()


def left(path: Path) -> tuple[set[str], int, int]:
    """Return what a call can leave: names of files, descriptors and threads.

    A queue's worker thread starts when the good calls need the next page. Those of coroutines stay
    for the next ones, as long as their loop.
    """
    names = {str(found.relative_to(path)) for found in path.rglob("*")}
    names = {name for name in names if not name.endswith((".page", ".idx"))}  # of the good calls
    threads = [each.name for each in threading.enumerate()]
    others = [name for name in threads if not name.startswith("pagequeue")]
    return names, len(os.listdir("/proc/self/fd")), len(others)


def made(call: Any, arguments: dict[str, Any]) -> object:  # noqa: ANN401
    """Return the result of a call; a coroutine is run."""
    first = [
        arguments.pop(name)
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY and name in arguments
    ]
    result = call(*first, **arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def let_go(result: object) -> None:
    """Give back and close what a call made."""
    for one in result if isinstance(result, list) else [result]:
        if isinstance(one, Claim | TaskClaim):
            one.nack()
        elif isinstance(one, Flow):
            asyncio.run(one.aclose())
        elif hasattr(one, "close"):
            one.close()


def complaint(call: Any, arguments: dict[str, Any], name: str) -> str | None:  # noqa: ANN401
    """Return what is wrong with the error that a call raises; None: nothing."""
    try:
        let_go(made(call, arguments))
    except (InvalidOption, InvalidType, SequenceOutOfRange) as error:
        is_named = re.search(rf"\b{name}\b", error.problem) is not None
        return None if is_named else f"does not name it: {error}"
    except RetryError:
        return "taken"  # and nothing to claim, say
    except Exception as error:  # noqa: BLE001 - that is the question
        return f"{type(error).__name__}: {str(error)[:100]}"
    return "taken"


@pytest.mark.quick_each(3)
@pytest.mark.parametrize(("label", "public", "found", "name"), TRIED)
def test_hostile_argument_is_a_typed_error_and_leaves_nothing(
    stage: Stage,
    label: str,
    public: Any,  # noqa: ANN401
    found: Callable[[Stage], Any],
    name: str,
) -> None:
    """I8: the error is of this package, names the argument, and the call had no effect."""
    kind = kind_of(label, name)
    assert kind is not None
    taken = set(KINDS[kind][0].split()) | TAKEN_HERE.get(f"{label}.{name}", set())
    hostile = [what for what in VALUES if what not in taken | UNTRIED.get(kind, set())]
    found(stage)
    names = left(stage.path)[0]
    complaint(found(stage), stage.good(label, public) | {name: VALUES[hostile[0]]}, name)
    before = (names, *left(stage.path)[1:])
    wrong = {
        what: complaint(found(stage), stage.good(label, public) | {name: VALUES[what]}, name)
        for what in hostile
    }
    assert {what: complained for what, complained in wrong.items() if complained} == {}
    until(lambda: left(stage.path) == before)  # a thread may be about to end
    for what in taken:
        assert (
            complaint(found(stage), stage.good(label, public) | {name: VALUES[what]}, name)
            == "taken"
        )
