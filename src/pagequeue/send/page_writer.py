"""PageWriter: writes messages to a page that only its caller knows of, and that is in no queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from pagequeue import _core
from pagequeue import format as fmt
from pagequeue.columns.inputs import COLUMNS, FixedRows, columns_of
from pagequeue.meta.write_meta import Tail
from pagequeue.page.page import lost_page

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pagequeue.columns.inputs import ColumnInput
    from pagequeue.page.page import WritablePage

LOCK_SECONDS: Final = 1.0
"""No other thread takes the lock of a page's own writers."""


def send_columns(
    writer: _core.Writer,
    columns: ColumnInput,
    times: bytes | None,
    at: int | None = None,
    timeout: float | None = None,
) -> tuple[int, int] | None:
    """Send columns by a writer; return the first sequence and the number of messages."""
    if isinstance(columns, FixedRows):
        return writer._send_rows(columns.columns, columns.row_bytes, times, at, timeout)  # noqa: SLF001
    return writer._send_spans(columns.parts, columns.count, times, at, timeout)  # noqa: SLF001


class PageWriter(_core.Writer):
    """The writer of one page, whose fields of the write meta are its own.

    The caller knows that its messages fit, and that their times are in order. Sequences are counted
    from 0, and messages without times have time 0, until the commit assigns both.

    Attributes:
        page: that is written to.
    """

    __slots__ = ("_fields", "_path", "page")

    page: WritablePage
    _fields: _core.Region
    _path: str

    def __new__(cls, page: WritablePage, path: str) -> Self:
        """Attach to an empty page, of a file with this path."""
        fields = _core.Region(-1, fmt.WRITE_META.itemsize, True)
        _core.reset_lock(fields)
        _core.set_tail(fields, (page.number, fmt.PAGE_HEADER_BYTES, 0, 0, 0))
        self = super().__new__(cls, fields, -1, False, LOCK_SECONDS, _no_time, 0)
        self.page, self._fields, self._path = page, fields, path
        reserved = page.reserved_bytes
        self._attach(page.region, page.index, page.number, 0, fmt.PAGE_BYTES_MAX, *reserved)
        return self

    @property
    def tail(self) -> Tail:
        """Where the messages end."""
        return Tail(*_core.tail(self._fields))

    def fill(self, frame_bytes: int, count: int) -> None:
        """Take the memory for the next messages."""
        tail = self.tail
        self.page.fill(tail.position, frame_bytes, tail.count, count)
        self._reserved(*self.page.reserved_bytes)

    def write(self, payloads: Any, times: NDArray[np.int64] | None, begin: int, end: int) -> None:  # noqa: ANN401
        """Write some messages of a `Chunk`."""
        told = None if times is None else times[begin:end].tobytes()
        columns = None
        if isinstance(payloads, COLUMNS):
            columns = payloads.part(begin, end)
        elif type(payloads) is not tuple:
            payloads = payloads[begin:end]
            columns, begin, end = columns_of(payloads), 0, end - begin
        if columns is None:
            self._send_many(payloads, told, None, None, begin, end)
        else:
            send_columns(self, columns, told)

    # --- events of the core -----------------------------------------------------------------------

    def _on_place(self) -> None:
        """Check no name: the caller has the directory open."""

    def _on_unreserved(self, frames_bytes: int) -> None:
        self.page.reserve(self.tail.position + frames_bytes + fmt.FRAME_HEADER_BYTES)
        self._reserved(*self.page.reserved_bytes)

    def _on_lost(self) -> None:
        raise lost_page(self._path, self.page.region.lost_at)


def _no_time() -> int:
    return 0
