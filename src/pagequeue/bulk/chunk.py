"""Messages that are written to staged pages: payloads in any form, their sizes and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from pagequeue.columns.inputs import COLUMNS, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from pagequeue.meta.all_meta import AllMeta


UNIT_BYTES: Final = fmt.FRAME_ALIGN_BYTES
UNIT_SHIFT: Final = UNIT_BYTES.bit_length() - 1
FRAME_PAD: Final = fmt.FRAME_HEADER_BYTES + UNIT_BYTES - 1


class Chunk(NamedTuple):
    """Some payloads.

    Attributes:
        payloads: tuple or list of bytes, an Arrow array of type binary, a NumPy array of kind S or
            V, or columns.
        lengths: of each, in bytes; int64, shape (n,).
        times: of each, ns since 1970, int64, shape (n,); None: the time of the commit.
    """

    payloads: Any
    lengths: NDArray[np.int64]
    times: NDArray[np.int64] | None


def chunk_of(payloads: Iterable[Buffer], times: NDArray[np.int64] | None) -> Chunk:
    """Return payloads as a chunk.

    Raises:
        TypeError: a payload is not bytes-like.
    """
    given: Any = payloads if type(payloads) in PLAIN else tuple(payloads)
    items, lengths = _core.measured(given)
    return Chunk(items, np.frombuffer(lengths, np.int64), times)


def frame_units(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much of a page the frames of payloads take, in units of `UNIT_BYTES`."""
    # Shifted, because dividing takes ten times as long.
    return (lengths + FRAME_PAD) >> UNIT_SHIFT


def frame_bytes(lengths: NDArray[np.int64]) -> int:
    """Return how many bytes of a page the frames of payloads take."""
    return int(frame_units(lengths).sum()) * UNIT_BYTES


def fits_one_page(meta: AllMeta, lengths: NDArray[np.int64]) -> bool:
    """Whether payloads of some lengths fit into one page."""
    room = meta.page_bytes - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
    return len(lengths) <= meta.index_capacity and frame_bytes(lengths) <= room


def part_of(chunk: Chunk, begin: int, end: int) -> Chunk:
    """Return some consecutive messages of a chunk."""
    payloads = chunk.payloads
    part = payloads.part(begin, end) if isinstance(payloads, COLUMNS) else payloads[begin:end]
    times = None if chunk.times is None else chunk.times[begin:end]
    return Chunk(part, chunk.lengths[begin:end], times)


def payload_at(payloads: Any, i: int) -> Buffer:  # noqa: ANN401 - as in Chunk
    """Return one payload of a chunk."""
    if isinstance(payloads, COLUMNS):
        payload: Buffer = payloads.payload(i)
    else:
        payload = payloads[i]
        if hasattr(payload, "as_buffer"):  # Arrow's
            payload = payload.as_buffer()
    return payload
