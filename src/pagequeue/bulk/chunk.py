"""Messages that are written to staged pages: payloads in any form, their sizes and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from pagequeue.columns.inputs import COLUMNS

if TYPE_CHECKING:
    import contextlib
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


def chunk_of(
    payloads: Iterable[Buffer], times: NDArray[np.int64] | None, copied_bytes: int = 0
) -> Chunk:
    """Return payloads as a chunk.

    Args:
        payloads: bytes-like objects.
        times: of each, as in Chunk.
        copied_bytes: those that are not bytes objects are copied if they have no more than this.

    Raises:
        TypeError: a payload is not bytes-like.
    """
    given = payloads if type(payloads) is list else list(payloads)
    items, lengths = _core.measured(given, copied_bytes)
    return Chunk(items, np.frombuffer(lengths, np.int64), times)


def fixed_chunk(
    meta: AllMeta,
    payloads: Any,  # noqa: ANN401 - an iterable of bytes-like objects, or columns
    times: NDArray[np.int64] | None,
    held: contextlib.ExitStack,
) -> Chunk:
    """Return payloads as a chunk whose lengths stay, whatever other threads do to their memory.

    Small ones are copied. Large ones keep their size until `held` is left, as in `file.write`.

    Raises:
        TypeError: a payload is not bytes-like.
    """
    if isinstance(payloads, COLUMNS):
        payloads = payloads.fixed()
        return Chunk(payloads, payloads.lengths, times)
    limit = fmt.payload_bytes_max(meta.page_bytes)
    chunk = chunk_of(payloads, times, limit)
    given = chunk.payloads
    large = np.flatnonzero(chunk.lengths > limit).tolist()
    views = {i: _held_view(given[i], held) for i in large if type(given[i]) is not bytes}
    if not views:
        return chunk
    lengths = chunk.lengths.copy()
    lengths[list(views)] = [len(view) for view in views.values()]
    return Chunk(tuple(views.get(i, item) for i, item in enumerate(given)), lengths, times)


def _held_view(payload: Any, held: contextlib.ExitStack) -> bytes | memoryview:  # noqa: ANN401
    """Return a view of a payload's bytes; a copy where its format has none."""
    if isinstance(payload, np.ndarray):
        payload = payload.reshape(-1).view(np.uint8)
    try:
        return held.enter_context(held.enter_context(memoryview(payload)).cast("B"))
    except (TypeError, ValueError):
        return _core.payload(payload)


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
