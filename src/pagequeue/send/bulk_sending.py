"""What a producer needs to send messages of several pages; the package `bulk` provides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.send.producer import Producer
    from pagequeue.store.store import Store


class PayloadWriter(Protocol):
    """A message that is written as a binary file, and sent when that is closed.

    Attributes:
        sequence: of the message, once it is sent; None before.
    """

    sequence: int | None

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Append bytes to the payload; return how many."""

    def close(self) -> None:
        """Send the message."""

    def discard(self) -> None:
        """Send nothing."""

    def abandon(self) -> None:
        """Send nothing, because the producer is closed."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


class BulkSending(Protocol):
    """Sends what does not fit into one page."""

    def append(
        self,
        store: Store,
        payloads: Any,  # noqa: ANN401 - or columns
        times: bytes | None,
        *,
        at: int | None,
        timeout: float | None,
        check: Callable[[], None] | None,
        synced: bool,
        unless_one: bool,
    ) -> range | None:
        """Send messages of any size, all or none, unless one page takes them; return sequences."""

    def open(
        self, producer: Producer, store: Store, timestamp: int | None, *, synced: bool
    ) -> PayloadWriter:
        """Return a file whose content is sent as one message when it is closed."""
