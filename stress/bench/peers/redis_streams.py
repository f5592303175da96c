"""Redis Streams through a Unix socket: one server, started here, with an append-only file.

The file is synced for each command where messages are to be durable, and otherwise not at all. The
id of a message is the server's, or its time: milliseconds and the rest in nanoseconds.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import redis

from stress.bench.peers import server
from stress.bench.peers.base import Peer, no_flush
from stress.bench.plan import CheckFailed
from stress.bench.wire import BATCH_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan

server.need("redis-server")

SOCKET = "socket"
FIELD = b"p"
NS_PER_MS = 1_000_000
MS_PER_S = 1000


def _id_of(timestamp_ns: int) -> str:
    return f"{timestamp_ns // NS_PER_MS}-{timestamp_ns % NS_PER_MS}"


class RedisStreams(Peer):
    """One client; a stream for each channel."""

    lacks: ClassVar[Mapping[str, str]] = {
        "poll": "a poll is a call of the server: measured sleeping",
        "seek far": "holds all messages in memory",
    }

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> server.Server:
        """Start the server; the path of a socket is at most 107 bytes, so it is elsewhere."""
        del context
        place = plan.directory / "redis"
        place.mkdir(exist_ok=True)
        socket = Path(tempfile.mkdtemp(prefix="bench-")) / SOCKET
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "dir": str(place),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always" if "every" in plan.options else "no",
            "auto-aof-rewrite-percentage": "0",
            "loglevel": "warning",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]

        def address() -> str | None:
            try:
                with redis.Redis(unix_socket_path=str(socket)) as client:
                    client.ping()
            except redis.RedisError:
                return None
            return str(socket)

        try:
            return server.start(["redis-server", *words], place / "log", address)
        except CheckFailed:
            shutil.rmtree(socket.parent, ignore_errors=True)
            raise

    @staticmethod
    def unshare(shared: server.Server) -> None:
        """Stop the server."""
        server.stop(shared)
        shutil.rmtree(Path(shared.address).parent, ignore_errors=True)

    def _client(self) -> Any:  # noqa: ANN401 - its commands are typed for two kinds of client
        return self.stack.enter_context(redis.Redis(unix_socket_path=self.shared.address))

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return XADD."""
        execute = self._client().execute_command
        return lambda payload: execute("XADD", channel, "*", FIELD, payload)

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return a pipeline of XADD."""
        pipeline = self._client().pipeline(transaction=False)

        def send_many(payloads: list[bytes]) -> None:
            for payload in payloads:
                pipeline.execute_command("XADD", "main", "*", FIELD, payload)
            pipeline.execute()

        return send_many

    def open_durable(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        """Return XADD, which is durable when it returns, or a pipeline of it."""
        if self.plan.options["every"] == 1:
            return self.open_send(), no_flush
        pipeline = self._client().pipeline(transaction=False)

        def send(payload: bytes) -> None:
            pipeline.execute_command("XADD", "main", "*", FIELD, payload)

        return send, pipeline.execute

    def open_send_at(self) -> Callable[[bytes, int], object]:
        """Return XADD under a time; by pipelines, to be done sooner."""
        pipeline = self._client().pipeline(transaction=False)
        held = 0

        def send_at(payload: bytes, timestamp_ns: int) -> None:
            nonlocal held
            pipeline.execute_command("XADD", "main", _id_of(timestamp_ns), FIELD, payload)
            held += 1
            if held % BATCH_COUNT == 0:
                pipeline.execute()

        self.stack.callback(pipeline.execute)
        return send_at

    def _reader(self, channel: str, count: int, *, waits: bool) -> Callable[[], list[bytes]]:
        execute = self._client().execute_command
        words = ["COUNT", count]
        if waits:
            words += ["BLOCK", int(self.plan.stall_seconds * MS_PER_S)]
        last = b"0"

        def read() -> list[bytes]:
            nonlocal last
            found = execute("XREAD", *words, "STREAMS", channel, last)
            if not found:
                return []
            entries = found[0][1]
            last = entries[-1][0]
            return [fields[FIELD] for _, fields in entries]

        return read

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return XREAD of one message, which waits."""
        read = self._reader(channel, 1, waits=True)

        def receive() -> bytes:
            payloads = read()
            if not payloads:
                raise CheckFailed("no more messages came")
            return payloads[0]

        return receive

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return XREAD of what is there, which waits for the first."""
        read = self._reader("main", BATCH_COUNT, waits=True)

        def receive_many() -> list[bytes]:
            payloads = read()
            if not payloads:
                raise CheckFailed("no more messages came")
            return payloads

        return receive_many

    def open_batches(self) -> Iterator[list[bytes]]:
        """Return all messages, so many at a time."""
        read = self._reader("main", BATCH_COUNT, waits=False)
        while payloads := read():
            yield payloads

    def open_stream(self) -> Iterator[bytes]:
        """Return all messages; the client asks for many at a time."""
        for payloads in self.open_batches():
            yield from payloads

    def open_seek(self) -> Callable[[int], Any]:
        """Return XRANGE of one message from a time on."""
        execute = self._client().execute_command

        def seek_and_read(since_ns: int) -> bytes:
            entries = execute("XRANGE", "main", _id_of(since_ns), "+", "COUNT", 1)
            payload: bytes = entries[0][1][FIELD]
            return payload

        return seek_and_read

    def counts(self) -> dict[str, int]:
        """Return the memory of the server."""
        return {"server_bytes": self.shared.peak_bytes()}
