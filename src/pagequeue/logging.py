"""Log records as messages: a handler for the standard library's `logging`.

Every process of a program can log into one directory, and any process can tail it, or replay it
since a time. A record is in the queue when the logging call returns, also if the process is killed
right after it.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pagequeue import _core, errors
from pagequeue.queue.queue import Queue, internals, opened_again
from pagequeue.schema import codec as codecs
from pagequeue.system.directory import FILE_MODE
from pagequeue.util.arguments import absolute_path

if TYPE_CHECKING:
    import os

    from pagequeue.maintenance.retention import Retention
    from pagequeue.producer.producer import Producer
    from pagequeue.store.flush import Sync
    from pagequeue.util.literals import CodecName, Trusted

__all__ = ["QueueHandler"]

TEXT: Final = "utf-8"
LOCK_SECONDS: Final = 1.0
"""How long a record waits for a process that was stopped in the middle of a send."""
KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; other attributes came with `extra=`."""
KEPT: Final = "the log that this handler was made for"
REMEDY: Final = "make another handler"
INTEGER_BITS_MAX: Final = 63
DEPTH_MAX: Final = 8


class QueueHandler(logging.Handler):
    """Writes each record as a message of a queue, as JSON or in a format of yours.

    Without a formatter a record is a JSON object with `time` (ISO 8601, UTC), `level`, `logger`,
    `message`, `process`, `thread`, `file`, `line`, `function`, and `exception`, `stack` and `extra`
    where it has them. With a formatter that you set it is the text that this gives; one that
    `logging.basicConfig` gives to handlers that have none is for others.

    Logging neither waits for consumers nor raises: a record that cannot be written, because the
    disk is full for example, is counted in `dropped` and reported by `handleError`, which prints to
    stderr if `logging.raiseExceptions` is set. A process that was stopped while it held the
    writers' lock delays a record by `lock_timeout` at most. After a fork the child opens the queue
    itself. A log whose directory was moved, removed or replaced is such an error. The handler has
    no lock of its own; `flush` does nothing.

    Args:
        directory: of the queue; created if it does not exist.
        level: of the least important records to write.
        prefix: as for `Queue`.
        page_bytes: as for `Queue`.
        retention: what to keep; None keeps all. With `max_bytes`, the oldest records go, whether
            or not consumers with a name have them.
        codec: as for `Queue`; of a new queue `"json"` and `"msgpack"` make records values
            (`message.value`), None makes them JSON as bytes.
        sync: as for `Queue`; with another than `"none"`, logging waits for the disk.
        lock_timeout: seconds to wait for a lock that another process holds.
        file_mode: as for `Queue`.
        trust: as for `Queue`.

    Attributes:
        dropped: records that this handler could not write, in this process.

    Raises:
        As for `Queue`, when it is made; later calls do not raise.

    Example:
        >>> from pagequeue import Queue
        >>> handler = QueueHandler("log")
        >>> log = logging.getLogger("shop")
        >>> log.addHandler(handler)
        >>> log.warning("no %s left", "apples", extra={"shelf": 7})
        >>> with Queue("log", read_only=True) as queue:
        ...     record = json.loads(queue.last(1)[0].payload)
        >>> record["level"], record["message"], record["extra"]
        ('WARNING', 'no apples left', {'shelf': 7})
        >>> log.removeHandler(handler)
        >>> handler.close()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        level: int | str = logging.NOTSET,
        *,
        prefix: str = "queue",
        page_bytes: int | None = None,
        retention: Retention | None = None,
        codec: CodecName | None = None,
        sync: Sync = "none",
        lock_timeout: float = LOCK_SECONDS,
        file_mode: int = FILE_MODE,
        trust: Trusted = (),
    ) -> None:
        path = absolute_path("directory", directory)  # a child can have another current directory
        super().__init__(level)
        self.setFormatter(_FIELDS)  # `basicConfig` sets its own where there is none
        self._open = partial(
            Queue,
            path,
            prefix=prefix,
            page_bytes=page_bytes,
            retention=retention,
            codec=codec,
            sync=sync,
            lock_timeout=lock_timeout,
            file_mode=file_mode,
            trust=trust,
            on_full="drop_oldest",
        )
        self._queue_id: bytes | None = None
        self.dropped: int = 0
        self._inside = threading.local()
        # By the count of forks: what was opened before a fork is the parent's, and stays untouched.
        self._opened: dict[int, tuple[Queue, Producer]] = {}
        try:
            self._producer()
        except BaseException:
            super().close()  # else logging would close it at exit
            raise

    def createLock(self) -> None:  # noqa: N802 - the base class's name
        """Make no lock: producers are shared by threads, and a lock could be held at a fork.

        Example:
            >>> handler.createLock()
            >>> handler.lock is None
            True
        """
        self.lock: None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record if the handler's filters let it pass; return whether they do.

        Args:
            record: of the standard library's `logging`.

        Example:
            >>> handler.handle(logging.makeLogRecord({"msg": "hello"}))
            True
        """
        passed = self.filter(record)
        if isinstance(passed, logging.LogRecord):
            record = passed
        if passed:
            self.emit(record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; call `handleError` if that fails.

        What this package logs meanwhile, of the same thread, is written after the record.

        Args:
            record: of the standard library's `logging`.

        Example:
            >>> handler.emit(logging.makeLogRecord({"msg": "hello"}))
        """
        inside = self._inside
        if (waiting := getattr(inside, "waiting", None)) is not None:
            waiting.append(record)
            return
        later: list[logging.LogRecord] = []
        inside.waiting = later
        try:
            self._write(record)
            inside.waiting = []
            for nested in later:
                self._write(nested)
        finally:
            self.dropped += len(inside.waiting)  # what these logged in turn
            inside.waiting = None

    def _write(self, record: logging.LogRecord) -> None:
        try:
            while True:
                queue, producer = opened = self._producer()
                try:
                    producer.send(self._payload(queue.codec, record), timeout=0)
                except errors.ClosedError:
                    if self._opened.get(_core.fork_count()) is opened:
                        raise
                    continue  # another thread closed the handler meanwhile
                return
        except RecursionError:  # as the standard library's handlers
            raise
        except Exception:  # noqa: BLE001 - logging must not fail
            self.dropped += 1
            self.handleError(record)

    def _payload(self, codec: str, record: logging.LogRecord) -> Any:  # noqa: ANN401 - the codec's
        has_own = self.formatter is None or self.formatter is _FIELDS
        value: object = fields_of(record) if has_own else self.format(record)
        if codec not in {codecs.BYTES, TEXT}:
            return value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        payload = text.encode("utf-8", "backslashreplace")
        return payload if codec == codecs.BYTES else payload.decode()

    def _producer(self) -> tuple[Queue, Producer]:
        """Return this process's queue and producer; open them in a new one."""
        count = _core.fork_count()
        found = self._opened.get(count)
        if found is None:
            if self._queue_id is None:
                queue = self._open()
                self._queue_id = internals(queue).store.meta.queue_id
            else:
                queue = opened_again(self._open, self._queue_id, KEPT, REMEDY)
            made = queue, queue.producer()
            found = self._opened.setdefault(count, made)
            if found is not made:  # another thread was faster
                queue.close()
        return found

    def close(self) -> None:
        """Close the queue; a record that comes later opens it again.

        The standard library's handlers of files do the same: at the end of a program, after
        `logging` has closed all handlers, functions of `atexit` and finalizers still log.

        Example:
            >>> handler.close()
        """
        found = self._opened.pop(_core.fork_count(), None)
        try:
            if found is not None:
                found[0].close()
        except errors.PageQueueError:
            if logging.raiseExceptions:
                logging.getLogger("pagequeue").exception("closing the queue of a log failed")
        finally:
            super().close()


class _Fields(logging.Formatter):
    """The format of records without one: JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(fields_of(record), ensure_ascii=False)


_FIELDS: Final = _Fields()


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return a record as values of JSON.

    Example:
        >>> fields_of(logging.makeLogRecord({"msg": "hello"}))["message"]
        'hello'
    """
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
        "level": record.levelname,
        "logger": record.name,
        "message": _text(record.getMessage()),
        "process": record.process,
        "thread": record.threadName,
        "file": record.pathname,
        "line": record.lineno,
        "function": record.funcName,
    }
    formatter = logging.Formatter()
    if record.exc_info:
        fields["exception"] = _text(formatter.formatException(record.exc_info))
    elif record.exc_text:
        fields["exception"] = _text(record.exc_text)
    if record.stack_info:
        fields["stack"] = _text(formatter.formatStack(record.stack_info))
    extra = {name: value for name, value in vars(record).items() if name not in KNOWN}
    if extra:
        fields["extra"] = _plain(extra, DEPTH_MAX)
    return fields


def _text(text: str) -> str:
    """Return a text that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: object, depth: int) -> object:
    """Return a value as every codec takes it; a text for one of another type."""
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and value.bit_length() <= INTEGER_BITS_MAX:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if depth and isinstance(value, dict):
        return {_text(str(name)): _plain(inner, depth - 1) for name, inner in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_plain(inner, depth - 1) for inner in value]
    return _text(str(value))
