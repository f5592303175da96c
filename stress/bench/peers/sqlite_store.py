"""SQLite in WAL mode without syncs: one table, whose key is the number of a message, or its time.

A statement for each message commits by itself; a batch is one transaction. A reader polls. Several
senders take the next number in the statement that inserts.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.peers.base import Peer, one_at_a_time, poll_until
from stress.bench.wire import BATCH_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INSERT = "INSERT INTO m (payload) VALUES (?)"
INSERT_AT = "INSERT INTO m (n, payload) VALUES (?, ?)"
NEXT = "SELECT n, payload FROM m WHERE n > ? ORDER BY n LIMIT ?"
ALL = "SELECT payload FROM m ORDER BY n"
SINCE = "SELECT payload FROM m WHERE n >= ? ORDER BY n LIMIT 1"
SLOW_TO_FILL = "it takes minutes to fill"
TOGETHER = 10_000
"""Rows of a transaction where only the reading is measured."""


class SqliteStore(Peer):
    """One database for each channel."""

    lacks: ClassVar[Mapping[str, str]] = {
        "block": "a reader that waits polls",
        "seek far": SLOW_TO_FILL,
    }

    def _connection(self, channel: str = "main") -> sqlite3.Connection:
        path = self.plan.directory / f"{channel}.db"
        connection = sqlite3.connect(path, self.plan.stall_seconds, isolation_level=None)
        self.stack.callback(connection.close)
        with one_at_a_time(self.plan.directory):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("CREATE TABLE IF NOT EXISTS m (n INTEGER PRIMARY KEY, payload BLOB)")
        return connection

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return an insert."""
        execute = self._connection(channel).execute
        return lambda payload: execute(INSERT, (payload,))

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return the inserts of one transaction."""
        connection = self._connection()

        def send_many(payloads: list[bytes]) -> None:
            connection.execute("BEGIN")
            connection.executemany(INSERT, [(payload,) for payload in payloads])
            connection.execute("COMMIT")

        return send_many

    def open_send_at(self) -> Callable[[bytes, int], object]:
        """Return an insert under a time; of so many together, to be done sooner."""
        connection = self._connection()
        held: list[tuple[int, bytes]] = []

        def flush() -> None:
            connection.execute("BEGIN")
            connection.executemany(INSERT_AT, held)
            connection.execute("COMMIT")
            held.clear()

        def send_at(payload: bytes, timestamp_ns: int) -> None:
            held.append((timestamp_ns, payload))
            if len(held) == TOGETHER:
                flush()

        self.stack.callback(flush)
        return send_at

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return a query for the next row."""
        execute = self._connection(channel).execute
        number = 0

        def poll() -> bytes | None:
            nonlocal number
            row = execute(NEXT, (number, 1)).fetchone()
            if row is None:
                return None
            number, payload = row
            found: bytes = payload
            return found

        return poll

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what polls until there is a next row."""
        return poll_until(self.open_poll(channel), self.plan.stall_seconds)

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return what polls until there are next rows."""
        execute = self._connection().execute
        number = 0

        def poll_many() -> list[bytes] | None:
            nonlocal number
            rows = execute(NEXT, (number, BATCH_COUNT)).fetchall()
            if not rows:
                return None
            number = rows[-1][0]
            return [payload for _, payload in rows]

        return poll_until(poll_many, self.plan.stall_seconds)

    def open_stream(self) -> Iterator[bytes]:
        """Return all rows."""
        for (payload,) in self._connection().execute(ALL):
            yield payload

    def open_batches(self) -> Iterator[list[bytes]]:
        """Return all rows, so many at a time."""
        cursor = self._connection().execute(ALL)
        while rows := cursor.fetchmany(BATCH_COUNT):
            yield [payload for (payload,) in rows]

    def open_seek(self) -> Callable[[int], Any]:
        """Return what reads the first row at or after a time."""
        execute = self._connection().execute

        def seek_and_read(since_ns: int) -> bytes:
            found: bytes = execute(SINCE, (since_ns,)).fetchone()[0]
            return found

        return seek_and_read
