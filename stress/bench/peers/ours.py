"""pagequeue itself, through its public names only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagequeue import Queue
from stress.bench.peers.base import Peer
from stress.bench.wire import BATCH_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from pagequeue import Consumer


class PageQueue(Peer):
    """A queue directory for each direction, opened by path in every process."""

    gives_messages = True

    def _first_sequence(self) -> int:
        return self.plan.options.get("left", 0)

    def leave_first_page(self) -> None:
        """Begin the second page of each channel; readers begin after the message that is sent."""
        for channel in self.plan.channels:
            queue = self._queue(channel)
            with queue.producer() as producer:
                producer.send(b"left")
            queue.rotate()

    def _queue(self, channel: str = "main") -> Queue:
        page_bytes = self.plan.options.get("page_bytes")
        queue = Queue(self.plan.directory / channel, page_bytes=page_bytes)
        self._last_queue = self.stack.enter_context(queue)
        return self._last_queue

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return a producer's `send`."""
        return self.stack.enter_context(self._queue(channel).producer()).send

    def open_send_at(self) -> Callable[[bytes, int], object]:
        """Return a producer's `send` with a timestamp."""
        send = self.stack.enter_context(self._queue().producer()).send

        def send_at(payload: bytes, timestamp_ns: int) -> None:
            send(payload, timestamp=timestamp_ns)

        return send_at

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return a producer's `send_many`."""
        return self.stack.enter_context(self._queue().producer()).send_many

    def _consumer(self, channel: str = "main") -> Consumer:
        consumer = self._queue(channel).consumer(sequence=self._first_sequence())
        return self.stack.enter_context(consumer)

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return a consumer's `receive`."""
        self.receive_argument = self.plan.stall_seconds
        return self._consumer(channel).receive

    def open_send_stream(self, channel: str = "main") -> Callable[[], AbstractContextManager[Any]]:
        """Return a producer's `open`."""
        return self.stack.enter_context(self._queue(channel).producer()).open

    def open_receive_stream(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what opens what a consumer's `receive` gives."""
        receive, timeout = self.open_receive(), self.plan.stall_seconds
        return lambda: receive(timeout).open()

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return what gives the payloads of a consumer's `receive_many`."""
        consumer = self._consumer()
        timeout = self.plan.stall_seconds
        return lambda: consumer.receive_many(BATCH_COUNT, timeout).payloads

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return a consumer's `poll`."""
        return self._consumer(channel).poll

    def open_stream(self) -> Iterable[Any]:
        """Return a replay of all."""
        return self._queue().replay(sequence=self._first_sequence())

    def open_batches(self) -> Iterator[list[bytes]]:
        """Return the payloads of all, in lists."""
        for batch in self._queue().batches(sequence=self._first_sequence()):
            yield batch.payloads

    def open_seek(self) -> Callable[[int], Any]:
        """Return what seeks to a time and polls."""
        consumer = self._consumer()
        seek, poll = consumer.seek, consumer.poll

        def seek_and_read(since_ns: int) -> Any:  # noqa: ANN401 - a Message
            seek(since=since_ns)
            return poll()

        return seek_and_read

    def counts(self) -> dict[str, int]:
        """Return how many pages the queue has now."""
        return {"pages": len(list(self.plan.directory.glob("*/queue-*.page")))}
