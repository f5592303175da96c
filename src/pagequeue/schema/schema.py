"""Schema: what the messages of a queue hold: bytes, values of a codec, or records of one dtype.

It is fixed at creation and stored in the options of allMeta. Payloads are bytes under every schema;
the schema determines a message's `value` and what `send` accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from pagequeue import errors
from pagequeue.schema import codec as codecs
from pagequeue.schema import dtype_json
from pagequeue.util.arguments import choice, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import DTypeLike
    from typing_extensions import Buffer

    from pagequeue.util.literals import CodecName

DTYPE: Final = "dtype"
CODEC: Final = "codec"
JOURNAL: Final = "journal"


@dataclass(frozen=True)
class Schema:
    """What the messages of a queue hold.

    Attributes:
        dtype: of its records; None: messages of any size.
        codec: name of the codec; "bytes": objects are payloads already.
        unpickles: whether the opener passed codec="pickle".
        path: of the queue, for errors.
        is_journal: whether the messages are the entries of a journal, which alone appends them.

    Example:
        >>> Schema(codec="json").encode({"a": 1})
        b'{"a":1}'
    """

    dtype: np.dtype[np.void] | None = None
    codec: CodecName = codecs.BYTES
    unpickles: bool = False
    path: str | None = None
    is_journal: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Schema:
        """Return the schema in the options of a queue.

        Raises:
            ValueError: the options are invalid.
        """
        codec = options.get(CODEC, codecs.BYTES)
        if not isinstance(codec, str) or codec not in codecs.NAMES:
            raise ValueError(f"unknown codec {codec!r}")
        if options.get(JOURNAL, True) is not True:
            raise ValueError(f"{JOURNAL} is {options[JOURNAL]!r}, not true")
        is_journal = JOURNAL in options
        if DTYPE not in options:
            codec = cast("CodecName", codec)
            return cls(codec=codec, is_journal=is_journal)
        if codec != codecs.BYTES:
            raise ValueError("records have no codec")
        if is_journal:
            raise ValueError("records are not the entries of a journal")
        return cls(dtype_json.parse(options[DTYPE]))

    def options(self) -> dict[str, object]:
        """Return the options that store this schema; none for plain bytes."""
        if self.dtype is not None:
            return {DTYPE: dtype_json.describe(self.dtype)}
        stored: dict[str, object] = {} if self.codec == codecs.BYTES else {CODEC: self.codec}
        return stored | {JOURNAL: True} if self.is_journal else stored

    def __str__(self) -> str:
        told = f"codec {self.codec!r}" if self.dtype is None else f"records of dtype {self.dtype}"
        return f"{told}, entries of a journal" if self.is_journal else told

    @property
    def is_plain(self) -> bool:
        """Whether messages are payloads only, without codec or dtype."""
        return self.dtype is None and self.codec == codecs.BYTES

    @property
    def record_bytes(self) -> int:
        """The size of every message in bytes; 0: any size."""
        return 0 if self.dtype is None else self.dtype.itemsize

    @property
    def decoder(self) -> Callable[[bytes, int], Any] | None:
        """Converts payloads to values; None: values are the payloads."""
        return None if self.is_plain else self.decode

    def encode(self, value: Any) -> Buffer:  # noqa: ANN401 - any object at all
        """Return the payload of a value.

        Raises:
            NotEncodable: the codec cannot encode it.
            MissingExtra: the codec's library is not installed.
        """
        codec = codecs.codec_of(self.codec)
        try:
            return codec.encode(value)
        except MemoryError:
            raise
        except Exception as error:
            raise errors.NotEncodable(
                f"codec {self.codec!r} cannot encode this {type(value).__name__} ({error}), no "
                "message was sent",
                path=self.path,
                remedy="send a value that the codec supports",
            ) from error

    def decode(self, payload: bytes, sequence: int) -> Any:  # noqa: ANN401 - any object at all
        """Return the value of a message.

        Raises:
            NotDecodable: the codec or dtype cannot decode its payload.
            PickleRefused: the queue was opened without codec="pickle".
            MissingExtra: the codec's library is not installed.
        """
        if self.codec == codecs.PICKLE and not self.unpickles:
            raise errors.PickleRefused(
                "its values are pickles, which can execute arbitrary code",
                path=self.path,
                remedy="open it with codec='pickle' if you trust every writer, or use the payload",
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
        what = self.codec if self.dtype is None else "a record"
        return errors.NotDecodable(
            f"message {sequence} cannot be decoded as {what} ({why})",
            path=self.path,
            sequence=sequence,
            remedy="read its payload, and find its sender",
        )


@dataclass(frozen=True)
class RequestedSchema:
    """The schema that an opener requests; None accepts the queue's own.

    Attributes:
        dtype: of the records.
        codec: of the messages.
        is_journal: whether the queue must be a journal's; False accepts both.
    """

    dtype: np.dtype[np.void] | None = None
    codec: CodecName | None = None
    is_journal: bool = False

    def of_new_queue(self) -> Schema:
        """Return the schema of a queue that is created now."""
        return Schema(self.dtype, self.codec or codecs.BYTES, is_journal=self.is_journal)

    def agrees(self, schema: Schema) -> bool:
        """Whether a queue of this schema satisfies the request."""
        dtype_agrees = self.dtype is None or self.dtype == schema.dtype
        journal_agrees = schema.is_journal or not self.is_journal
        return dtype_agrees and journal_agrees and self.codec in {None, schema.codec}

    def opened(self, schema: Schema, path: str) -> Schema:
        """Return the schema of an existing queue for this opener.

        Raises:
            DtypeMismatch, CodecMismatch: the opener requested another one.
            NotAJournal: the opener requested a journal.
        """
        if self.is_journal and not schema.is_journal:
            raise errors.NotAJournal(
                "an ordinary queue, not a journal's",
                path=path,
                remedy="choose another directory or prefix for the journal",
            )
        if self.dtype is not None and self.dtype != schema.dtype:
            raise errors.DtypeMismatch(
                f"the queue has {schema}, not records of dtype {self.dtype}",
                path=path,
                dtype=schema.dtype,
                remedy="leave dtype out, or choose another directory or prefix",
            )
        if self.codec not in {None, schema.codec}:
            raise errors.CodecMismatch(
                f"the queue has {schema}, not codec {self.codec!r}",
                path=path,
                codec=schema.codec,
                remedy="leave codec out, or choose another directory or prefix",
            )
        unpickles = self.codec == codecs.PICKLE
        return Schema(schema.dtype, schema.codec, unpickles, path, schema.is_journal)


ANY_SCHEMA: Final = RequestedSchema()


def requested_schema(
    dtype: DTypeLike | None, codec: CodecName | None, path: str, *, is_journal: bool = False
) -> RequestedSchema:
    """Return the schema that the options `dtype` and `codec` request.

    Raises:
        InvalidOption: they are invalid, or exclude each other.
    """
    if codec is not None:
        choice("codec", codec, codecs.NAMES, path=path)
    if dtype is None:
        return RequestedSchema(None, codec, is_journal)
    if codec not in {None, codecs.BYTES}:
        raise errors.InvalidOption(
            f"records of a dtype have no codec {codec!r}", path=path, remedy="give one of the two"
        )
    try:
        return RequestedSchema(dtype_json.record_dtype(dtype), codec)
    except (TypeError, ValueError) as error:
        raise errors.InvalidOption(
            f"dtype is {shown(dtype)}: {error}", path=path, remedy=dtype_json.remedy_for(dtype)
        ) from error
