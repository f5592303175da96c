"""The handler: records as messages, from any process and thread; the application goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.config
import subprocess
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import warm

from pagequeue import InvalidOption, Queue, Retention, errors
from pagequeue.logging import QueueHandler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60

TAIL = """
import json, sys
from pagequeue import Queue
with Queue(sys.argv[1], read_only=True) as queue, queue.consumer() as consumer:
    for message in consumer:
        text = json.loads(message.payload)["message"]
        print(text, flush=True)
        if text == "last":
            break
"""
FORK = """
import logging, os, sys
from pagequeue.logging import QueueHandler
handler = QueueHandler(sys.argv[1])
log = logging.getLogger()
log.addHandler(handler)
log.warning("before")
for number in range(3):
    child = os.fork()
    if child == 0:
        log.warning("child %d", number)
        if number == 2 and os.fork() == 0:
            log.warning("grandchild")
            os._exit(handler.dropped)
        elif number == 2:
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]) + handler.dropped)
        logging.shutdown()
        os._exit(handler.dropped)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
log.warning("after")
sys.exit(handler.dropped)
"""

END = """
import atexit, sys

def goodbye():
    log.warning("goodbye")

atexit.register(goodbye)  # before that of logging, so it is called after it
import logging
from pagequeue.logging import QueueHandler

log = logging.getLogger("shop")
log.addHandler(QueueHandler(sys.argv[1]))

class Till:
    def __del__(self):
        log.warning("the till is closed")

till = Till()
log.warning("open")
"""


@contextlib.contextmanager
def handled(handler: QueueHandler, name: str = "shop") -> Iterator[logging.Logger]:
    """Give a logger that has only this handler, not those of pytest."""
    log = logging.Logger(name, logging.DEBUG)  # noqa: LOG001 - theirs are on the root logger
    log.addHandler(handler)
    try:
        yield log
    finally:
        handler.close()


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records in a directory."""
    with Queue(path, read_only=True) as queue:
        return [json.loads(message.payload) for message in queue.replay()]


def messages(path: Path) -> list[str]:
    """Return the text of each record in a directory."""
    return [record["message"] for record in records(path)]


def test_record_is_a_json_object_with_its_fields(tmp_path: Path) -> None:
    """Also values that JSON does not have, and text that UTF-8 does not have."""
    began = datetime.now(UTC)
    with handled(QueueHandler(tmp_path / "log")) as log:
        log.info(
            "%d of %s", 5, "m\u00fcsli \ud800", extra={"shelf": 7, "at": began, "n": float("nan")}
        )
        try:
            raise KeyError("missing")  # noqa: TRY301
        except KeyError:
            log.exception("failed", stack_info=True, extra={"big": 1 << 80, "deep": [{"a": (1,)}]})
    first, second = records(tmp_path / "log")
    assert first["message"] == "5 of m\u00fcsli \\ud800"
    assert (first["level"], first["logger"], first["function"]) == (
        "INFO",
        "shop",
        "test_record_is_a_json_object_with_its_fields",
    )
    assert first["file"] == __file__
    assert first["extra"] == {"shelf": 7, "at": str(began), "n": "nan"}
    assert began <= datetime.fromisoformat(first["time"]) <= datetime.now(UTC)
    assert {"exception", "stack"} & first.keys() == set()
    assert "KeyError: 'missing'" in second["exception"]
    assert "log.exception" in second["stack"]
    assert second["extra"] == {"big": str(1 << 80), "deep": [{"a": [1]}]}


@pytest.mark.parametrize("codec", ["utf-8", "json", "msgpack"])
def test_records_are_values_of_a_codec(tmp_path: Path, codec: str) -> None:
    """For a queue that has one."""
    pytest.importorskip("msgspec")
    with handled(QueueHandler(tmp_path / "log", codec=codec)) as log:
        log.warning("hello \ud800", extra={"n": 1 << 70})
        with Queue(tmp_path / "log") as queue:
            value = queue.last(1)[0].value
    value = json.loads(value) if codec == "utf-8" else value
    assert (value["message"], value["extra"]) == ("hello \\ud800", {"n": str(1 << 70)})


def test_formatter_and_level_are_obeyed(tmp_path: Path) -> None:
    """Configured as any handler, by a dictionary."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"short": {"format": "%(levelname)s %(message)s"}},
            "filters": {"even": {"()": lambda: lambda record: record.args[0] % 2 == 0}},
            "handlers": {
                "queue": {
                    "class": "pagequeue.logging.QueueHandler",
                    "directory": str(tmp_path / "log"),
                    "level": "INFO",
                    "formatter": "short",
                    "filters": ["even"],
                }
            },
            "loggers": {
                "configured": {"handlers": ["queue"], "level": "DEBUG", "propagate": False}
            },
        }
    )
    log = logging.getLogger("configured")
    for number in range(4):
        log.debug("debug %d", number)
        log.info("info %d", number)
    (handler,) = log.handlers
    log.removeHandler(handler)
    handler.close()
    with Queue(tmp_path / "log", read_only=True) as queue:
        assert [message.payload for message in queue.replay()] == [b"INFO info 0", b"INFO info 2"]


def test_another_process_tails_the_log(tmp_path: Path) -> None:
    """It waits for each record, and sees all of them in order."""
    with handled(QueueHandler(tmp_path / "log")) as log:
        tail = warm.Popen(
            [sys.executable, "-c", TAIL, str(tmp_path / "log")], stdout=warm.PIPE, text=True
        )
        assert tail.stdout is not None
        log.info("first")
        assert tail.stdout.readline() == "first\n"
        log.info("second")  # the tail waits for it, or is about to
        assert tail.stdout.readline() == "second\n"
        log.info("last")
        assert tail.communicate(timeout=PATIENCE) == ("last\n", None)
        assert tail.returncode == 0


def test_children_of_a_fork_log_for_themselves(tmp_path: Path) -> None:
    """The parent's handles stay as they are, and no record is dropped."""
    path = tmp_path / "log"
    done = warm.run(
        [sys.executable, "-c", FORK, str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert messages(path) == ["before", "child 0", "child 1", "child 2", "grandchild", "after"]
    assert len({record["process"] for record in records(path)}) == 5


def test_threads_share_a_handler(tmp_path: Path) -> None:
    """Each record is there once, those of a thread in its order."""
    with handled(QueueHandler(tmp_path / "log")) as log:

        def work(name: int) -> None:
            for number in range(200):
                log.info("%d", number, extra={"worker": name})

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = records(tmp_path / "log")
    for name in range(4):
        mine = [int(one["message"]) for one in found if one["extra"]["worker"] == name]
        assert mine == list(range(200))


@pytest.mark.parametrize("is_told", [True, False])
def test_record_that_cannot_be_written_does_not_raise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_told: bool,
) -> None:
    """It is counted, and told on stderr as `logging.raiseExceptions` says; others are written."""
    monkeypatch.setattr(logging, "raiseExceptions", is_told)
    handler = QueueHandler(tmp_path / "log")
    with handled(handler) as log:
        log.info("%d", "text")  # wrong arguments

        def fail() -> None:
            raise errors.DiskFull("no space", path="x")

        with monkeypatch.context() as patched:
            patched.setattr(handler, "_producer", fail)
            log.info("lost")
        log.info("written")
        assert handler.dropped == 2
    told = capsys.readouterr().err
    assert ("DiskFull" in told, "not all arguments" in told or "%d format" in told) == (
        is_told,
        is_told,
    )
    assert messages(tmp_path / "log") == ["written"]


def test_slow_consumer_does_not_block_logging(tmp_path: Path) -> None:
    """A log of limited size drops its oldest records, also those that a consumer has not read."""
    path = tmp_path / "log"
    with Queue(path, page_bytes=4096) as queue:
        queue.consumer("slow").close()
    handler = QueueHandler(path, retention=Retention(max_bytes=5 * 4096))
    with handled(handler) as log:
        for number in range(500):
            log.info("%d", number)
        assert handler.dropped == 0
    left = messages(path)
    assert left[-1] == "499"
    assert len(left) < 500


def test_what_is_logged_while_a_record_is_written_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This package logs too: no recursion, whatever logs."""
    handler = QueueHandler(tmp_path / "log")
    with handled(handler) as log:
        write = handler._producer

        def loud() -> object:
            log.warning("inside")
            return write()

        monkeypatch.setattr(handler, "_producer", loud)
        log.info("outside")
        assert handler.dropped == 1  # what the inner one logged
    assert messages(tmp_path / "log") == ["outside", "inside"]


def test_handler_that_cannot_be_made_is_not_left_behind(tmp_path: Path) -> None:
    """Configuration is checked where it is made; logging closes only handlers that were."""
    before = len(logging._handlerList)  # type: ignore[attr-defined]
    with pytest.raises(InvalidOption):
        QueueHandler(tmp_path / "log", prefix="a/b")
    assert len(logging._handlerList) == before  # type: ignore[attr-defined]


# --- the end of a program, and of a handler -------------------------------------------------------


@pytest.mark.slow
def test_records_of_the_end_of_a_program_are_written(tmp_path: Path) -> None:
    """`logging` has closed its handlers by then, and modules are going."""
    done = subprocess.run(
        [sys.executable, "-c", END, tmp_path / "log"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stderr == ""
    assert messages(tmp_path / "log") == ["open", "goodbye", "the till is closed"]


def test_record_after_closing_opens_the_log_again(tmp_path: Path) -> None:
    """As files' handlers do; closing it once more has an effect."""
    handler = QueueHandler(tmp_path / "log")
    with handled(handler) as log:
        log.info("before")
        handler.close()
        log.info("after")
        handler.close()
        assert messages(tmp_path / "log") == ["before", "after"]
    assert handler.dropped == 0


def test_no_record_of_a_thread_is_lost_beside_one_that_closes(tmp_path: Path) -> None:
    """A record meets the closed queue, and opens it again."""
    handler = QueueHandler(tmp_path / "log")
    with handled(handler) as log:
        threads = [
            threading.Thread(target=lambda: [log.info("record") for _ in range(200)])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            handler.close()
        for thread in threads:
            thread.join()
    assert handler.dropped == 0
    assert len(messages(tmp_path / "log")) == 400


@pytest.mark.parametrize(
    "more", [{}, {"level": 10}, {"format": "%(message)s", "style": "%"}], ids=str
)
def test_format_of_other_handlers_leaves_records_as_they_are(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """`basicConfig` gives one to each handler that has none."""
    handler = QueueHandler(tmp_path / "log", codec="json")
    root, before = logging.getLogger(), logging.root.handlers[:]
    root.handlers[:] = []
    try:
        logging.basicConfig(handlers=[handler], **more)
        root.warning("text", extra={"shelf": 7})
    finally:
        root.handlers[:] = before
        root.setLevel(logging.WARNING)
        handler.close()
    with Queue(tmp_path / "log") as queue:
        value = queue.last(1)[0].value
    assert (value["message"], value["extra"]) == ("text", {"shelf": 7})


def test_formatter_that_is_set_gives_the_text(tmp_path: Path) -> None:
    """And None is the format of records without one."""
    handler = QueueHandler(tmp_path / "log", codec="json")
    with handled(handler) as log:
        handler.setFormatter(logging.Formatter("%(message)s!"))
        log.info("one")
        handler.setFormatter(None)
        log.info("two")
        with Queue(tmp_path / "log") as queue:
            first, second = [message.value for message in queue.replay()]
    assert first == "one!"
    assert second["message"] == "two"
