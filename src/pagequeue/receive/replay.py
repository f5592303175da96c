"""Replay: a finite sequence of messages, one by one or batch by batch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from pagequeue import errors
from pagequeue.receive.consumer import NO_LIMIT, PageReader
from pagequeue.util.timestamps import TimeLike, to_ns

if TYPE_CHECKING:
    from pagequeue.columns.batch import Batch
    from pagequeue.store.store import Store


class Replay(PageReader):
    """A finite iterator of messages, up to the tail as it was when the replay was made.

    Made by `Queue.replay()`.

    Example:
        >>> [message.payload for message in queue.replay(sequence=3)]
        [b'four', b'five']
    """

    __slots__ = ("_ahead_bytes",)

    _ahead_bytes: int

    def __new__(
        cls,
        store: Store,
        since: TimeLike | None,
        until: TimeLike | None,
        sequence: int | None,
        end_sequence: int | None = None,
    ) -> Self:
        """Go to the first message; with both `since` and `sequence`, the later one.

        Args:
            store: the open queue.
            since: begin with the first message that is not older.
            until: end before the first message that is not older.
            sequence: begin with this message.
            end_sequence: end before this message; None: the tail as of now.
        """
        self = super().__new__(cls, store, waits=False, kind="replay")
        self._ahead_bytes = 0
        self._begin(store, since, until, sequence, end_sequence)
        return self

    def __init__(self, *begin: object) -> None:
        """`__new__` does everything."""

    def _begin(
        self,
        store: Store,
        since: TimeLike | None,
        until: TimeLike | None,
        sequence: int | None,
        end_sequence: int | None,
    ) -> None:
        end_sequence = store.tail.sequence if end_sequence is None else end_sequence
        oldest = NO_LIMIT if since is None else to_ns(since, store.clock)
        newest = NO_LIMIT if until is None else to_ns(until, store.clock, name="until")
        if sequence is not None:
            place = store.seek_sequence(sequence)
        elif since is not None:
            place = store.seek_since(oldest)
        else:
            place = store.seek_head()
        self._go(place)
        self._bound(oldest, newest, end_sequence)

    # --- batch after batch ------------------------------------------------------------------------

    def read_batch(self, limit_count: int, bytes_max: int) -> Batch | None:
        """Return the next messages, for a reader that reads all of them; None at the end.

        Args:
            limit_count: most messages to return, 1 to 1_048_576.
            bytes_max: the batch ends after so many bytes of its page.

        Raises:
            CorruptFrame: a message is damaged.
            ClosedError, Expired: as for `Consumer.receive`.

        Example:
            >>> queue.replay().read_batch(2, 1 << 20).payloads
            [b'one', b'two']
        """
        # The page faults of a new map cost as much time as the checksums if they are taken one by
        # one, so from the second batch on they are taken for a batch at a time.
        self._populate_ahead()
        try:
            batch = self._batch(limit_count, 0, bytes_max)
        except errors.NothingReceived:
            return None  # a tail that awaits recovery
        self._ahead_bytes = bytes_max
        return batch

    def holds_over(self, size_bytes: int, sequence: int) -> bool:
        """Whether a message of its queue, from a sequence on, has more bytes than this.

        Args:
            size_bytes: of a payload.
            sequence: of the first message that counts.

        Example:
            >>> queue.replay().holds_over(1 << 20, 0)
            False
        """
        return self._store.holds_over(size_bytes, sequence)

    def _on_page_end(self) -> bool:
        has_turned = super()._on_page_end()
        self._populate_ahead()
        return has_turned

    def _populate_ahead(self) -> None:
        region, at = self._region, self._position
        if region is None or region.filler is not None or not self._ahead_bytes:
            return
        tail = self._store.tail
        end = tail.position if tail.page_number == self._page_number else len(region)
        with contextlib.suppress(OSError):  # an old kernel: faults are taken one by one
            region.ahead(at, max(0, min(self._ahead_bytes, end - at)))
