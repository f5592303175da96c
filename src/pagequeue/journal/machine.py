"""Machine: what a journal's entries mean, and how an entry is stored.

Every process applies the same entries in the same order, so all have the same state if the machine
is deterministic: `apply` uses only the state, the entry and its timestamp.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pagequeue import errors
from pagequeue.columns.inputs import bytes_of
from pagequeue.schema.codec import codec_of
from pagequeue.util.arguments import choice, type_error, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

State = TypeVar("State")
CODECS: Final = ("json", "msgpack", "bytes", "pickle")
VERSION_BYTES: Final = 4
"""In the codec "bytes" an entry begins with its version; in the others it is a pair."""
VERSION_MAX: Final = 2**31 - 1
_version_of: Final = struct.Struct("<I").unpack_from


class Machine(Protocol[State]):
    """A deterministic state machine: the type of a journal's second argument.

    It can also have a method `upcast(version, entry)`, which returns an entry of this version for
    one that an earlier version wrote; without it `apply` gets such entries as they are. And it can
    have a method `apply_own(state, entry, timestamp_ns)`, which the handle that appended an entry
    calls in place of `apply`, with what `decide` returned: faster, because nothing is decoded. It
    must have the same effect as `apply` with the decoded entry.

    Attributes:
        version: of its entries and snapshots, 0 or more; raise it when either changes. A process
            whose machine has a lower version than an entry or a snapshot stops there.

    Example:
        >>> class Counter:
        ...     version = 1
        ...     def initial(self): return 0
        ...     def apply(self, state, entry, timestamp_ns): return state + entry
        ...     def dump(self, state): yield str(state).encode()
        ...     def load(self, chunks, version): return int(b"".join(chunks))
    """

    version: int

    def initial(self) -> State:
        """Return the state before the first entry.

        Example:
            >>> Accounts().initial()
            {}
        """
        ...

    def apply(self, state: State, entry: Any, timestamp_ns: int, /) -> State | None:  # noqa: ANN401 - what the codec decodes
        """Return the state after an entry; None: `state` was changed in place.

        Args:
            state: before the entry.
            entry: as the codec decodes it.
            timestamp_ns: of the entry, ns since 1970, UTC, in every process the same; the time that
                the machine goes by.

        Example:
            >>> state = {"ann": 5}
            >>> Accounts().apply(state, {"account": "ann", "amount": 2}, time.time_ns())
            >>> state
            {'ann': 7}
        """
        ...

    def dump(self, state: State, /) -> Iterable[bytes]:
        """Return a state in chunks of bytes; equal states give equal chunks.

        Args:
            state: as `apply` left it.

        Example:
            >>> list(Accounts().dump({"ann": 5, "ben": 7}))
            [b'ann 5', b'ben 7']
        """
        ...

    def load(self, chunks: Iterable[bytes], version: int, /) -> State:
        """Return the state that `dump` of this or an earlier version gave.

        Args:
            chunks: what `dump` gave, in its order.
            version: of the machine that `dump` was of.

        Example:
            >>> Accounts().load([b"ann 5", b"ben 7"], version=1)
            {'ann': 5, 'ben': 7}
        """
        ...


class EntryCodec:
    """Stores entries with the version of the machine that wrote them.

    Args:
        codec: name of the journal's codec.
        machine: of the journal.
        path: of the queue, for errors.

    Attributes:
        version: of the machine.
        dumps: returns the payload of a version and an entry; raises what its library raises.
        decode: returns version and entry of a payload.

    Raises:
        InvalidOption: a journal cannot have this codec, or the machine's version is invalid.
        MissingExtra: the codec's library is not installed.
    """

    def __init__(self, codec: str, machine: Machine[Any], path: str) -> None:
        choice("codec", codec, CODECS, path=path)
        if not hasattr(machine, "version"):
            raise type_error("machine", machine, "a Machine, with a version")
        self.version: int = whole(
            "version of the machine", machine.version, 0, VERSION_MAX, path=path
        )
        self._path = path
        self._upcast: Callable[[int, Any], Any] | None = getattr(machine, "upcast", None)
        found = codec_of(codec)
        self._name = codec
        self.dumps: Callable[[tuple[int, Any]], bytes] = found.encode  # type: ignore[assignment]
        if codec == "bytes":
            self.dumps = _joined
        self.decode: Callable[[bytes], Any] = _split if codec == "bytes" else found.decode

    def encode(self, entry: Any) -> bytes:  # noqa: ANN401 - what the codec encodes
        """Return the payload of an entry.

        Raises:
            NotEncodable: the codec cannot encode it.
        """
        try:
            return self.dumps((self.version, entry))
        except MemoryError:
            raise
        except Exception as error:
            raise self.refusal(entry, error) from error

    def refusal(self, entry: Any, error: Exception) -> errors.NotEncodable:  # noqa: ANN401 - the same
        """Return the error for an entry that `dumps` did not encode."""
        return errors.NotEncodable(
            f"codec {self._name!r} cannot encode this {type(entry).__name__} ({error}); "
            "no entry was appended",
            path=self._path,
            remedy="return an entry that the codec supports",
        )

    def upcast(self, version: int, entry: Any, sequence: int) -> Any:  # noqa: ANN401 - the same
        """Return an entry of this version for one of another.

        Raises:
            NewerFormat: a later version of the machine wrote it.
        """
        if version > self.version:
            raise errors.NewerFormat(
                f"entry {sequence} was written by version {version} of the machine, this is "
                f"{self.version}",
                path=self._path,
                version=version,
                remedy="upgrade the program",
            )
        return entry if self._upcast is None else self._upcast(version, entry)


def _joined(pair: tuple[int, Any]) -> bytes:
    version, entry = pair
    return version.to_bytes(VERSION_BYTES, "little") + bytes_of(entry)


def _split(payload: bytes) -> tuple[int, bytes]:
    if len(payload) < VERSION_BYTES:
        raise ValueError(f"{len(payload)} bytes, and its version alone takes {VERSION_BYTES}")
    return _version_of(payload)[0], payload[VERSION_BYTES:]
