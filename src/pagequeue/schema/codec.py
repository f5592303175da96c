"""Codecs: objects to payloads and back, by the name that was fixed when the queue was created.

Their libraries are imported where they are used, so a queue can be read as bytes without them.
`schema.py` decides whether a payload may be unpickled: unpickling can execute arbitrary code.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final, Protocol

from pagequeue.util.optional import library, pyarrow

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

BYTES: Final = "bytes"
PICKLE: Final = "pickle"
PICKLE_PROTOCOL: Final = 5
"""Not the highest: other Python versions read the same directory."""


class Codec(Protocol):
    """Turns objects into payloads and back; raises what its library raises."""

    def encode(self, value: Any, /) -> Buffer:  # noqa: ANN401 - any object at all
        """Return the payload of an object."""

    def decode(self, payload: bytes, /) -> Any:  # noqa: ANN401 - the same
        """Return the object that a payload holds."""


class _Bytes:
    def encode(self, value: Buffer) -> Buffer:
        return value

    def decode(self, payload: bytes) -> bytes:
        return payload


class _Text:
    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"text is a str, not {type(value).__name__}")
        return value.encode()

    def decode(self, payload: bytes) -> str:
        return payload.decode()


class _Pickled:
    def encode(self, value: object) -> bytes:
        return pickle.dumps(value, PICKLE_PROTOCOL)

    def decode(self, payload: bytes) -> object:
        return pickle.loads(payload)  # noqa: S301 - the opener passed codec="pickle"


class _Tables:
    """Arrow's stream format: a schema, then record batches."""

    def __init__(self, arrow: Any) -> None:  # noqa: ANN401 - it need not be installed
        self._arrow = arrow

    def encode(self, value: Any) -> Buffer:  # noqa: ANN401 - any object with Arrow's protocol
        arrow = self._arrow
        if not isinstance(value, arrow.RecordBatch | arrow.Table):
            value = arrow.table(value)
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(sink, value.schema) as stream:
            stream.write(value)
        payload: Buffer = sink.getvalue()
        return payload

    def decode(self, payload: bytes) -> Any:  # noqa: ANN401 - a pyarrow.Table
        with self._arrow.ipc.open_stream(payload) as stream:
            table = stream.read_all()
        table.validate(full=True)  # untrusted bytes: else reading a value could leave the buffer
        return table


def _json() -> Codec:
    module = library("msgspec", "codecs", "JSON payloads").json
    return _Pair(module.Encoder().encode, module.Decoder().decode)


def _msgpack() -> Codec:
    module = library("msgspec", "codecs", "MessagePack payloads").msgpack
    return _Pair(module.Encoder().encode, module.Decoder().decode)


def _arrow() -> Codec:
    library("pyarrow.ipc", "arrow", "Arrow's tables")
    return _Tables(pyarrow())


class _Pair:
    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.encode = encode
        self.decode = decode


_MAKERS: Final[dict[str, Callable[[], Codec]]] = {
    BYTES: _Bytes,
    "utf-8": _Text,
    "json": _json,
    "msgpack": _msgpack,
    "arrow": _arrow,
    PICKLE: _Pickled,
}
NAMES: Final = tuple(_MAKERS)
_known: dict[str, Codec] = {}


def codec_of(name: str) -> Codec:
    """Return the codec of one of `NAMES`.

    Raises:
        MissingExtra: its library is not installed.

    Example:
        >>> codec_of("utf-8").encode("a")
        b'a'
    """
    codec = _known.get(name)
    if codec is None:
        codec = _known[name] = _MAKERS[name]()
    return codec
