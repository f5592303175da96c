"""Kind: what the messages of a queue hold: bytes, values of a codec, or records of one dtype.

It is fixed at creation and stands in the options of allMeta. Payloads are bytes whatever the kind
is; the kind says what a message's `value` is, and what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import errors
from pagequeue.schema import codec as codecs
from pagequeue.schema import dtype_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import DTypeLike
    from typing_extensions import Buffer

DTYPE: Final = "dtype"
CODEC: Final = "codec"


@dataclass(frozen=True)
class Schema:
    """What the messages of a queue hold.

    Attributes:
        dtype: of its records; None: messages are of any size.
        codec: name of what makes payloads of objects; "bytes": they are payloads already.
        unpickles: whether whoever opened the queue asked for pickle by its name.
        path: of the queue, for errors.
    """

    dtype: np.dtype[np.void] | None = None
    codec: str = codecs.BYTES
    unpickles: bool = False
    path: str | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Schema:
        """Return what the options of a queue say.

        Raises:
            ValueError: they say nothing that can be.
        """
        codec = options.get(CODEC, codecs.BYTES)
        if not isinstance(codec, str) or codec not in codecs.NAMES:
            raise ValueError(f"a codec {codec!r} is not known")
        if DTYPE not in options:
            return cls(codec=codec)
        if codec != codecs.BYTES:
            raise ValueError("records have no codec")
        return cls(dtype_json.parse(options[DTYPE]))

    def options(self) -> dict[str, object]:
        """Return the options that say this; none for plain bytes."""
        if self.dtype is not None:
            return {DTYPE: dtype_json.describe(self.dtype)}
        return {} if self.codec == codecs.BYTES else {CODEC: self.codec}

    def __str__(self) -> str:
        return f"codec {self.codec!r}" if self.dtype is None else f"records of dtype {self.dtype}"

    @property
    def is_plain(self) -> bool:
        """Whether payloads are all there is to its messages."""
        return self.dtype is None and self.codec == codecs.BYTES

    @property
    def record_bytes(self) -> int:
        """How many bytes every message has; 0: any number."""
        return 0 if self.dtype is None else self.dtype.itemsize

    @property
    def decoder(self) -> Callable[[bytes, int], Any] | None:
        """What makes values of payloads; None: nothing need be done."""
        return None if self.is_plain else self.decode

    def encode(self, value: Any) -> Buffer:  # noqa: ANN401 - any object at all
        """Return the payload of a value.

        Raises:
            NotEncodable: it has none.
            MissingExtra: the codec's library is not installed.
        """
        codec = codecs.codec_of(self.codec)
        try:
            return codec.encode(value)
        except MemoryError:
            raise
        except Exception as error:
            raise errors.NotEncodable(
                f"codec {self.codec!r} has no payload for this {type(value).__name__} ({error}): "
                "send what it can hold; nothing was sent",
                path=self.path,
            ) from error

    def decode(self, payload: bytes, sequence: int) -> Any:  # noqa: ANN401 - any object at all
        """Return the value of a message.

        Raises:
            NotDecodable: its payload holds none.
            PickleRefused: pickle was not asked for by its name.
            MissingExtra: the codec's library is not installed.
        """
        if self.codec == codecs.PICKLE and not self.unpickles:
            raise errors.PickleRefused(
                "its values are pickles, which can run any code: open it with codec='pickle' if "
                "you trust everybody who can write there, or take the payload",
                path=self.path,
            )
        if self.dtype is not None:
            if len(payload) != self.dtype.itemsize:
                raise self._not_decodable(
                    sequence, f"it has {len(payload)} bytes, a record {self.dtype.itemsize}"
                )
            return np.frombuffer(payload, self.dtype)[0]
        codec = codecs.codec_of(self.codec)
        try:
            return codec.decode(payload)
        except MemoryError:
            raise
        except Exception as error:
            raise self._not_decodable(sequence, f"{type(error).__name__}: {error}") from error

    def _not_decodable(self, sequence: int, why: str) -> errors.NotDecodable:
        what = f"codec {self.codec!r}" if self.dtype is None else "a record"
        return errors.NotDecodable(
            f"message {sequence} is not what {what} holds ({why}): take its payload, and look for "
            "who sent it",
            path=self.path, sequence=sequence,
        )  # fmt: skip


@dataclass(frozen=True)
class RequestedSchema:
    """What an opener says of a queue's kind; None takes what stands there."""

    dtype: np.dtype[np.void] | None = None
    codec: str | None = None

    def made(self) -> Schema:
        """Return the kind of a new queue."""
        return Schema(self.dtype, self.codec or codecs.BYTES)

    def agrees(self, kind: Schema) -> bool:
        """Whether a queue of this kind is what was asked for."""
        dtype_agrees = self.dtype is None or self.dtype == kind.dtype
        return dtype_agrees and self.codec in {None, kind.codec}

    def opened(self, kind: Schema, path: str) -> Schema:
        """Return the kind of a queue for this opener.

        Raises:
            DtypeMismatch, CodecMismatch: another one was asked for.
        """
        if self.dtype is not None and self.dtype != kind.dtype:
            raise errors.DtypeMismatch(
                f"the queue has {kind}, not records of dtype {self.dtype}: leave dtype out, or "
                "choose another directory or prefix",
                path=path, dtype=kind.dtype,
            )  # fmt: skip
        if self.codec not in {None, kind.codec}:
            raise errors.CodecMismatch(
                f"the queue has {kind}, not codec {self.codec!r}: leave codec out, or choose "
                "another directory or prefix",
                path=path, codec=kind.codec,
            )  # fmt: skip
        return Schema(kind.dtype, kind.codec, self.codec == codecs.PICKLE, path)


ANY_KIND: Final = RequestedSchema()


def asked_kind(dtype: DTypeLike | None, codec: str | None, path: str) -> RequestedSchema:
    """Return what the options `dtype` and `codec` ask for.

    Raises:
        InvalidOption: they cannot be.
    """
    if codec is not None and codec not in codecs.NAMES:
        names = ", ".join(map(repr, codecs.NAMES))
        raise errors.InvalidOption(f"codec is {codec!r}: give one of {names}", path=path)
    if dtype is None:
        return RequestedSchema(None, codec)
    if codec not in {None, codecs.BYTES}:
        raise errors.InvalidOption(
            f"records of a dtype have no codec {codec!r}: give one of the two", path=path
        )
    try:
        return RequestedSchema(dtype_json.record_dtype(dtype), codec)
    except (TypeError, ValueError) as error:
        raise errors.InvalidOption(f"dtype: {error}", path=path) from error
