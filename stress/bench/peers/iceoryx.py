"""iceoryx2: publish/subscribe of byte slices in shared memory, nothing dropped.

The publisher copies a message into a loaned sample, the subscriber copies it out of one. The buffer
is of 16 MiB, at most 4096 messages; a publisher that finds it full waits. Its receive returns at
once, so a receiver that waits yields the processor; one that sleeps waits for an event of a second
service. What a publisher sent is lost with its process, so all roles end together.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import iceoryx2 as iox  # type: ignore[import-not-found,import-untyped,unused-ignore]

from stress.bench.peers.base import NOT_STORED, Peer, poll_until
from stress.bench.peers.shared_ring import RING_BYTES
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan

BUFFER_COUNT_MAX = 4096
ENDS_MAX = 64


class Iceoryx2(Peer):
    """One node, with its publishers and subscribers."""

    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "a call sends one message",
        **NOT_STORED,
    }
    _is_open = False

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> Any:  # noqa: ANN401 - a tuple
        """Return the first part of the services' names, and where all roles meet at the end."""
        return f"bench-{uuid4().hex}", context.Barrier(max(map(len, plan.stages)))

    def _node(self) -> Any:  # noqa: ANN401 - untyped
        iox.set_log_level(iox.LogLevel.Error)
        self._is_open = True
        builder = iox.NodeBuilder.new()
        builder = builder.signal_handling_mode(iox.SignalHandlingMode.Disabled)
        self._last_node = builder.create(iox.ServiceType.Ipc)
        return self._last_node

    def _buffer_count(self) -> int:
        return max(2, min(BUFFER_COUNT_MAX, RING_BYTES // self.plan.size_bytes))

    def _messages(self, channel: str) -> Any:  # noqa: ANN401 - untyped
        name = iox.ServiceName.new(f"{self.shared[0]}/{channel}")
        builder = self._node().service_builder(name).publish_subscribe(iox.Slice[ctypes.c_uint8])
        builder = builder.enable_safe_overflow(False).history_size(0)
        builder = builder.subscriber_max_buffer_size(self._buffer_count())
        return builder.max_publishers(ENDS_MAX).max_subscribers(ENDS_MAX).open_or_create()

    def _events(self, channel: str) -> Any:  # noqa: ANN401 - untyped
        name = iox.ServiceName.new(f"{self.shared[0]}/{channel}/events")
        return self._node().service_builder(name).event().open_or_create()

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what copies into a sample and publishes it."""
        builder = self._messages(channel).publisher_builder()
        builder = builder.initial_max_slice_len(self.plan.size_bytes)
        builder = builder.backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered)
        self._publisher = builder.create()
        loan, copy = self._publisher.loan_slice_uninit, ctypes.memmove

        def send(payload: bytes) -> None:
            size_bytes = len(payload)
            sample = loan(size_bytes)
            copy(sample.payload_ptr, payload, size_bytes)
            sample.assume_init().send()

        return send

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return what copies out of the next sample, if there is one."""
        builder = self._messages(channel).subscriber_builder().buffer_size(self._buffer_count())
        self._subscriber = builder.create()
        receive, copy = self._subscriber.receive, ctypes.string_at

        def poll() -> bytes | None:
            sample = receive()
            if sample is None:
                return None
            payload = copy(sample.payload_ptr, sample.header.number_of_elements)
            sample.delete()
            return payload

        return poll

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what polls until there is a sample."""
        return poll_until(self.open_poll(channel), self.plan.stall_seconds)

    def open_send_waking(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what publishes, then notifies."""
        send = self.open_send(channel)
        self._notifier = self._events(channel).notifier_builder().create()
        notify = self._notifier.notify

        def send_and_notify(payload: bytes) -> None:
            send(payload)
            notify()

        return send_and_notify

    def open_receive_sleeping(self, channel: str = "main") -> Callable[..., Any]:
        """Return what waits for a notification where there is no sample."""
        poll = self.open_poll(channel)
        self._listener = self._events(channel).listener_builder().create()
        wait = self._listener.timed_wait
        longest = iox.Duration.from_secs(int(self.plan.stall_seconds))

        def receive() -> bytes:
            while (payload := poll()) is None:
                if not wait(longest):
                    raise CheckFailed("no more messages came")
            found: bytes = payload
            return found

        return receive

    def close(self) -> None:
        """Wait until all roles are done: what was sent is lost with its sender."""
        if self._is_open:
            try:
                self.shared[1].wait(self.plan.stall_seconds)
            except threading.BrokenBarrierError:
                return  # another role failed
        super().close()
