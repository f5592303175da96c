"""The drop-in compared with the standard library's: names, signatures, types, closed queues."""

from __future__ import annotations

import inspect
import logging
import logging.config
import logging.handlers
import multiprocessing
import pickle
import sys
from multiprocessing import queues
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import multiprocessing as ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("Queue", "JoinableQueue", "SimpleQueue")


def public(cls: type) -> dict[str, Any]:
    """Return the public methods of a class."""
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


def shape(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Return what a caller sees of the parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in parameters]


@pytest.mark.parametrize("name", NAMES)
def test_public_methods_and_their_parameters_are_the_standard_librarys(name: str) -> None:
    """By name, kind, default and order; each is our own, and none is inherited by mistake."""
    theirs, mine = public(getattr(queues, name)), public(getattr(ours, name))
    assert set(mine) - set(theirs) <= {"directory", "flush"}
    for method, function in theirs.items():
        assert shape(mine[method]) == shape(function), method
        assert mine[method].__module__.startswith("pagequeue."), method


@pytest.mark.parametrize("name", NAMES)
def test_queue_is_an_instance_of_the_class_it_replaces(name: str) -> None:
    """For code that asks, as `logging.config` does; also through a context."""
    queue = getattr(ours, name)(ctx=multiprocessing.get_context("spawn"))
    assert isinstance(queue, getattr(queues, name))
    assert isinstance(ours.JoinableQueue(), queues.Queue)
    queue.close()


@pytest.fixture(params=[ours.Queue, ours.JoinableQueue], ids=["Queue", "JoinableQueue"])
def logged(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue that a logger writes to."""
    queue = request.param()
    yield queue
    logger = logging.getLogger("drop-in")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    queue.close()


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="3.12 asks for handlers of a listener, whatever queue"
)
def test_dict_config_takes_our_queue(logged: Any) -> None:  # noqa: ANN401
    """3.13 checks whether the object is a queue."""
    handler = {"class": "logging.handlers.QueueHandler", "queue": logged}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"queued": handler},
            "loggers": {"drop-in": {"handlers": ["queued"], "level": "INFO"}},
        }
    )
    logging.getLogger("drop-in").info("logged %d", 5)
    assert logged.get(timeout=10).getMessage() == "logged 5"


@pytest.mark.parametrize("used", [False, True])
def test_simple_queue_that_is_closed_raises_whether_it_was_used_or_not(used: bool) -> None:
    """CPython 3.13's `test_empty_exceptions`."""
    queue: ours.SimpleQueue[int] = ours.SimpleQueue()
    if used:
        queue.put(1)
    queue.close()
    with pytest.raises(OSError, match="is closed"):
        queue.empty()
    with pytest.raises(OSError, match="is closed"):
        queue.put(1)
    with pytest.raises(OSError, match="is closed"):
        queue.get()


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("used", [False, True])
def test_other_queues_raise_what_the_standard_library_raises(name: str, used: bool) -> None:
    """The same calls on the standard library's queues and on ours."""
    found = []
    for module in (multiprocessing, ours):
        queue = getattr(module, name)()
        if used:
            queue.put(1)
            assert queue.get(timeout=10) == 1
        queue.close()
        queue.close()
        queue.join_thread()
        kinds = []
        for call in (queue.put, queue.get, queue.empty, queue.put_nowait, queue.get_nowait):
            try:
                kinds.append(call(*[1] * call.__name__.startswith("put")))
            except (ValueError, OSError) as error:
                said = "is closed" in str(error)
                kinds.append((ValueError if isinstance(error, ValueError) else OSError, said))
        if used:
            assert kinds[2] in {(OSError, True), (ValueError, True)}  # ours is both
            kinds[2] = (OSError, True)
        found.append(kinds)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", NAMES)
def test_pickling_for_another_process_than_a_child_is_refused_alike(name: str) -> None:
    """A private queue is shared by inheritance only."""
    for module in (multiprocessing, ours):
        with pytest.raises(RuntimeError, match="inheritance"):
            pickle.dumps(getattr(module, name)())


@pytest.mark.parametrize("error", [TypeError, AttributeError])
def test_unpicklable_object_raises_though_the_inherited_hook_would_print(
    error: type[Exception],
) -> None:
    """Only a hook of a subclass takes the error."""

    class Refusing:
        def __reduce__(self) -> str:
            raise error("not this one")

    queue: ours.Queue[object] = ours.Queue()
    with pytest.raises(error, match="not this one"):
        queue.put(Refusing())
    queue.close()
