"""NATS JetStream over loopback: one server, started here, with streams in files.

Its Python client is a coroutine's: each call runs the event loop until it is done. A batch is as
many publications at once.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from stress.bench.peers import server
from stress.bench.peers.base import Peer, one_at_a_time
from stress.bench.wire import BATCH_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan

server.need("nats-server")

PAYLOAD_BYTES_MAX = 8 << 20
PENDING_BYTES_MAX = 4 << 30


class NatsJetStream(Peer):
    """One client and its event loop; a stream for each channel."""

    lacks: ClassVar[Mapping[str, str]] = {
        "large": "a message has at most 64 MB",
        "poll": "a poll is a call of the server: measured sleeping",
        "seek": "the server sets the times",
        "seek far": "the server sets the times",
        "durable": "syncs by time only",
    }
    _loop: asyncio.AbstractEventLoop | None = None

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> server.Server:
        """Start the server at a port that is free."""
        del context
        place = plan.directory / "nats"
        place.mkdir(exist_ok=True)
        for old in place.glob("*.ports"):
            old.unlink()
        (place / "server.conf").write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{place}"\nmax_payload: {PAYLOAD_BYTES_MAX}\n'
            f'jetstream {{ store_dir: "{place}", max_file_store: {1 << 40} }}\n',
            encoding="utf-8",
        )

        def address() -> str | None:
            for path in place.glob("*.ports"):
                text = path.read_text(encoding="utf-8")
                if text.endswith("}"):
                    found: str = json.loads(text)["nats"][0]
                    return found
            return None

        return server.start(
            ["nats-server", "-c", str(place / "server.conf")], place / "log", address
        )

    @staticmethod
    def unshare(shared: server.Server) -> None:
        """Stop the server."""
        server.stop(shared)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - its result
        assert self._loop is not None
        return self._loop.run_until_complete(work)

    async def _end(self) -> None:
        """Close the client, and end the tasks that it leaves."""
        await self._client.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _stream(self, channel: str) -> Any:  # noqa: ANN401 - untyped
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._client = self._run(nats.connect(self.shared.address))
            self.stack.callback(lambda: self._run(self._end()))
        stream = self._client.jetstream()
        with one_at_a_time(self.plan.directory):
            self._run(stream.add_stream(name=channel, subjects=[channel], storage=StorageType.FILE))
        return stream

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return a publication that is acknowledged."""
        publish, run = self._stream(channel).publish, self._run
        return lambda payload: run(publish(channel, payload))

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return publications that are sent at once, and acknowledged."""
        publish, run = self._stream("main").publish, self._run

        async def publish_all(payloads: list[bytes]) -> None:
            await asyncio.gather(*[publish("main", payload) for payload in payloads])

        return lambda payloads: run(publish_all(payloads))

    def _one_by_one(self, channel: str) -> Callable[[], bytes]:
        stream, run, seconds = self._stream(channel), self._run, self.plan.stall_seconds
        subscription = run(
            stream.subscribe(channel, ordered_consumer=True, pending_bytes_limit=PENDING_BYTES_MAX)
        )
        receive = subscription.next_msg

        def receive_payload() -> bytes:
            payload: bytes = run(receive(seconds)).data
            return payload

        return receive_payload

    def _in_lists(self) -> Callable[[], list[bytes]]:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        stream, run, seconds = self._stream("main"), self._run, self.plan.stall_seconds
        fetch = run(stream.pull_subscribe("main", config=config)).fetch

        def receive_many() -> list[bytes]:
            return [message.data for message in run(fetch(BATCH_COUNT, timeout=seconds))]

        return receive_many

    def _count(self) -> int:
        found: int = self._run(self._stream("main").stream_info("main")).state.messages
        return found

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what waits for the next message of a subscription."""
        return self._one_by_one(channel)

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return a fetch of what is there."""
        return self._in_lists()

    def open_stream(self) -> Iterator[bytes]:
        """Return all messages of the stream."""
        receive = self._one_by_one("main")
        for _ in range(self._count()):
            yield receive()

    def open_batches(self) -> Iterator[list[bytes]]:
        """Return all messages of the stream, in lists."""
        receive_many, left = self._in_lists(), self._count()
        while left > 0:
            payloads = receive_many()
            left -= len(payloads)
            yield payloads

    def counts(self) -> dict[str, int]:
        """Return the memory of the server."""
        return {"server_bytes": self.shared.peak_bytes()}
