"""The peers of durable sending, each as fast as plain Python allows, with the syncs listed here.

| peer | what makes a message durable |
| --- | --- |
| pagequeue | `sync="always"`, `flush()`, or `sync=timedelta` |
| plain file | `writev` for each message, then `fdatasync` |
| plain file, one write | messages joined, one `write` for all up to the `fdatasync` |
| plain file, preallocated | blocks reserved before the start; then the same as the first |
| SQLite | WAL, `synchronous=FULL`; a transaction for each block |
| LMDB | all syncs on; a transaction for each block |
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pagequeue import Queue
from stress.bench.peers.base import Peer, no_flush
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.store.flush import Sync

    Durable = tuple[Callable[[bytes], object], Callable[[], object]]

PREFIX_BYTES = 4
MS_PER_S = 1000
prefix_of = struct.Struct("<I").pack


class DurableQueue(Peer):
    """pagequeue through its public names only; threads share the queue, each has a producer."""

    gives_messages = True
    _queue: Queue | None = None

    def _sync(self) -> Sync:
        if "interval_ms" in self.plan.options:
            return timedelta(milliseconds=self.plan.options["interval_ms"])
        return "always" if self.plan.options["every"] == 1 else "none"

    def _open(self) -> Queue:
        if self._queue is None:
            shape: dict[str, Any] = {}
            if "page_mb" in self.plan.options:
                shape["page_bytes"] = self.plan.options["page_mb"] << 20
            queue = Queue(self.plan.directory / "queue", sync=self._sync(), **shape)
            self._queue = self.stack.enter_context(queue)
        return self._queue

    def leave_first_page(self) -> None:
        """Begin the second page; the message that is sent first is not replayed."""
        queue = self._open()
        with queue.producer() as producer:
            producer.send(b"left")
        queue.rotate()

    def open_durable(self) -> Durable:
        """Return `send` of a queue that syncs automatically, or `send` and `flush`."""
        self._queue = self._open()
        producer = self.stack.enter_context(self._queue.producer())
        return producer.send, producer.flush if self._sync() == "none" else no_flush

    def open_stream(self) -> Any:  # noqa: ANN401 - messages
        """Return a replay of all."""
        queue = self.stack.enter_context(Queue(self.plan.directory / "queue"))
        return queue.replay(sequence=self.plan.options.get("left", 0))


class SyncedFile(Peer):
    """Length-prefixed messages in one file."""

    def _descriptor(self, flags: int) -> int:
        fd = os.open(self.plan.directory / "messages", flags | os.O_CREAT, 0o600)
        self.stack.callback(os.close, fd)
        return fd

    def open_durable(self) -> Durable:
        """Return an append by one `writev`, and `fdatasync`."""
        fd, writev = self._descriptor(os.O_WRONLY | os.O_APPEND), os.writev

        def send(payload: bytes) -> None:
            length = len(payload)
            if writev(fd, (prefix_of(length), payload)) != length + PREFIX_BYTES:
                raise CheckFailed("a short write")

        if "interval_ms" in self.plan.options:
            self._sync_now_and_then(fd, self.plan.options["interval_ms"] / MS_PER_S)
            return send, no_flush
        return send, lambda: os.fdatasync(fd)

    def _sync_now_and_then(self, fd: int, seconds: float) -> None:
        """Sync in a thread, so often that no written message stays unsynced longer than this."""
        ended = threading.Event()

        def body() -> None:
            while not ended.wait(seconds / 2):
                os.fdatasync(fd)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(ended.set)

    def open_stream(self) -> Iterator[bytes]:
        """Return the messages of the file."""
        with open(self.plan.directory / "messages", "rb") as file:
            while prefix := file.read(PREFIX_BYTES):
                length = int.from_bytes(prefix, "little")
                if length == 0:
                    return  # reserved and not used
                yield file.read(length)


class JoinedFile(SyncedFile):
    """The same, written by one `write` when it is to be durable; no reader sees it before."""

    def open_durable(self) -> Durable:
        """Return what keeps messages, and what writes and syncs them."""
        fd = self._descriptor(os.O_WRONLY | os.O_APPEND)
        held: list[bytes] = []

        def send(payload: bytes) -> None:
            held.append(prefix_of(len(payload)))
            held.append(payload)

        def flush() -> None:
            data = b"".join(held)
            held.clear()
            if os.write(fd, data) != len(data):
                raise CheckFailed("a short write")
            os.fdatasync(fd)

        return send, flush


class ReservedFile(SyncedFile):
    """The same as the first, in blocks that were reserved before."""

    def open_durable(self) -> Durable:
        """Return a `pwritev` at the end of the file, and `fdatasync`."""
        plan = self.plan
        fd, pwritev = self._descriptor(os.O_RDWR), os.pwritev
        os.posix_fallocate(fd, 0, plan.count * (plan.size_bytes + PREFIX_BYTES) + PREFIX_BYTES)
        os.fsync(fd)
        at = 0

        def send(payload: bytes) -> None:
            nonlocal at
            length = len(payload)
            if pwritev(fd, (prefix_of(length), payload), at) != length + PREFIX_BYTES:
                raise CheckFailed("a short write")
            at += length + PREFIX_BYTES

        return send, lambda: os.fdatasync(fd)


class SqliteFull(Peer):
    """One table; the row id is the sequence."""

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.plan.directory / "messages.db", isolation_level=None)
        self.stack.callback(connection.close)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS m (n INTEGER PRIMARY KEY, payload BLOB)")
        return connection

    def open_durable(self) -> Durable:
        """Return an insert, and a commit where several are to be durable at once."""
        connection = self._connection()
        execute = connection.execute
        if self.plan.options["every"] == 1:
            return lambda payload: execute(
                "INSERT INTO m (payload) VALUES (?)", (payload,)
            ), no_flush
        held: list[tuple[bytes]] = []

        def flush() -> None:
            execute("BEGIN")
            connection.executemany("INSERT INTO m (payload) VALUES (?)", held)
            execute("COMMIT")
            held.clear()

        return lambda payload: held.append((payload,)), flush

    def open_stream(self) -> Iterator[bytes]:
        """Return all rows."""
        for (payload,) in self._connection().execute("SELECT payload FROM m ORDER BY n"):
            yield payload
