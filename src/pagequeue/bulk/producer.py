"""The producer of bulk commits: it sends on a condition, and commits staged pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.columns.inputs import COLUMNS
from pagequeue.send.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from pagequeue import _core
    from pagequeue.bulk.chunk import Chunk
    from pagequeue.meta.write_meta import Tail
    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock


class BulkProducer(Producer):
    """A producer with the steps of a bulk commit, for `bulk` alone.

    Attributes:
        mapped: pages of a temporary queue that were written to, by number; not all if there are
            many.
    """

    __slots__ = ("_check", "_is_staging", "_kept", "mapped")

    _check: Callable[[], None] | None
    _is_staging: bool
    _kept: int
    mapped: dict[int, WritablePage]

    def __new__(cls, store: Store, clock: Clock | None = None, sync_every: int = 0) -> Self:
        """Attach as `Producer` does."""
        self = super().__new__(cls, store, clock, sync_every)
        self._check = None
        self._is_staging = False
        self._kept = 0
        self.mapped = {}
        return self

    def stage_only(self, kept: int) -> None:
        """Take memory where `fill_ahead` says so only, make no page ahead, keep so many mapped."""
        self._is_staging = True
        self._kept = kept

    def fill_ahead(self, frame_bytes: int, count: int) -> None:
        """Take the memory for the next frames, `count` of them, which this thread sends then."""
        page, tail = self._page, self._store.tail
        if page is not None:
            page.fill(tail.position, frame_bytes, tail.count, count)

    def _on_ahead(self, position: int) -> None:
        if self._is_staging:  # it was filled before
            self._ahead(fmt.PAGE_BYTES_MAX)
        else:
            super()._on_ahead(position)

    def call_while_waiting(self, check: Callable[[], None] | None) -> None:
        """Call this while waiting for room; it raises when the publication is not wanted."""
        self._check = check

    def require_record_bytes(self, record_bytes: int) -> None:
        """Accept payloads of this size only; 0: of any size."""
        self._record_bytes = record_bytes

    def send_at(
        self, sequence: int, payloads: list[bytes], times: NDArray[np.int64], timeout: float | None
    ) -> bool:
        """Send a batch as the messages from a sequence on.

        Returns:
            Whether it was sent; False: that sequence is taken, or a later timestamp.
        """
        try:
            self.send_many(payloads, timestamps=times, at=sequence, timeout=timeout)
        except (errors.Overtaken, errors.TimestampOrder):
            return False
        return True

    def _roll_from(
        self,
        number: int,
        deadline: float = math.inf,
        check: Callable[[], None] | None = None,
    ) -> int | None:
        return super()._roll_from(number, deadline, check or self.check_wanted)

    def check_wanted(self) -> None:
        """Raise if the publication is not wanted any more, or the producer was closed."""
        self._check_open()
        if self._check is not None:
            self._check()

    def send_part(self, chunk: Chunk, begin: int, end: int) -> None:
        """Send messages `begin` to `end` of a chunk, which fit into one page, as a batch."""
        payloads = chunk.payloads
        times = None if chunk.times is None else chunk.times[begin:end]
        moments = None if times is None else times.tobytes()
        if type(payloads) is tuple:
            self._send_many(payloads, moments, None, None, begin, end)
        elif isinstance(payloads, COLUMNS):
            self._send_columns(payloads.part(begin, end), moments)
        else:
            self.send_many(payloads[begin:end], timestamps=times)
        page = self._page
        if page is not None and len(self.mapped) < self._kept:
            self.mapped[page.number] = page

    def roll_from(self, number: int) -> None:
        """Seal page `number`, unless that was done already, and continue in the next one."""
        self._roll_from(number)

    def seal(self) -> None:
        """Seal the active page, even an empty one."""
        self._seal()

    def freeze(self) -> Tail | None:
        """Stop all processes from writing to the active page; None: try again (M3)."""
        return self._freeze_page()

    def commit_pages(self, page: _core.Region, header: bytes, beyond: Tail) -> None:
        """Publish all pages from the next one on, up to a tail (M6 to M8).

        Raises:
            CorruptPage: other messages were appended before them. SyncFailed: the queue is latched.
        """
        self._commit_pages(page, header, beyond)

    def flush_sent(self, end_sequence: int) -> None:
        """Flush all messages below a sequence, which were sent.

        Raises:
            NotDurable: the flush failed; the messages are visible.
        """
        self._flush_sent(end_sequence)
