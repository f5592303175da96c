"""The floor: the same loops around C methods that do no work.

`send` is the bound method `[].count`: a C call of one argument that takes the message, returns an
int and has no effect. `receive(x)` is `list.pop(-1)` on a list of ready-made messages: a C call of
one number that returns an object, whose slot `payload` is read as one reads a `Message`. The list
is filled between blocks, while the clock is stopped. The time that remains is that of the
interpreter: building each message, the two calls, the checks, freeing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stress.bench.peers.base import Peer
from stress.bench.wire import pack

if TYPE_CHECKING:
    from collections.abc import Callable


class Ready:
    """A message that is already there."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


class NoOp(Peer):
    """Discards each message sent and receives prepared ones."""

    gives_messages = True
    receive_argument = -1

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return a C method that takes a message and ignores it."""
        del channel
        empty: list[bytes] = []
        return empty.count

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return a C method that returns a ready-made message."""
        del channel
        self._ready: list[Ready] = []
        return self._ready.pop

    def refill(self, first: int, last: int, tail: bytes) -> None:
        """Make messages `first` to `last` ready to be received."""
        self._ready.extend(Ready(pack(value) + tail) for value in range(last - 1, first - 1, -1))
