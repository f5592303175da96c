"""A message larger than a page: its payload as bytes, and as a file (`message.open()`).

The payload is in fragments (`fragments.py`). A block of one is checked as it is copied out of its
page, and no byte of it is returned before that.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.fragments import (
    WRONG_BLOCK,
    Fragment,
    Head,
    bad_block,
    decode_head,
    fragment_in,
)
from pagequeue.page.header import REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from typing_extensions import Buffer

KEPT_PAGES_MAX: Final = 256
"""A message of so many pages or fewer keeps them mapped, so that it outlives retention."""
READ_ALL_BYTES: Final = 4 << 20
"""Reading all that is left is done by this much, so that blocks are copied once."""
DO_NOT_ADD_UP: Final = "its fragments do not add up"


class FragmentPage(Protocol):
    """What reading a fragment needs of a page."""

    path: str

    @property
    def first_sequence(self) -> int:
        """The sequence of the page's first frame."""

    def ready(self, position: int) -> _core.Region:
        """Return the map, with the frame at a position ready to be read."""


class FoundPage:
    """A page that was mapped as a whole: what `LargePayload` needs of it."""

    def __init__(self, path: str, region: _core.Region, first_sequence: int) -> None:
        self.path = path
        self.region = region
        self.first_sequence = first_sequence

    def ready(self, position: int) -> _core.Region:
        """Return the map of the page."""
        del position
        return self.region


class LargePayload:
    """The payload of one message, in fragments.

    Args:
        page: returns a page by its number.
        number: of the page with the head.
        position: of the head in it.
        sequence: of the message.
        folder_path: of the queue, for errors.

    Raises:
        CorruptFrame: the head is damaged, or one of the fragments is missing or another one's.
        Expired, MissingPage: a page is not there.
    """

    def __init__(
        self,
        page: Callable[[int], FragmentPage],
        number: int,
        position: int,
        sequence: int,
    ) -> None:
        self._page = page
        self._number = number
        self.sequence = sequence
        first = page(number)
        region = first.ready(position)
        found, _, size, mark = _core.peek(region, position, sequence)
        head = None
        is_first = position == fmt.PAGE_HEADER_BYTES
        if is_first and found == _core.READ_FRAME and size == fmt.LARGE_HEAD.itemsize:
            self.head_bytes: bytes = region.read(position + fmt.FRAME_HEADER_BYTES, size)
            head = decode_head(self.head_bytes)
        self._page_bytes = len(region)
        if head is None or not head.has_right_count(self._page_bytes):
            raise self._damage(first.path, position, "the head of a large message is invalid")
        self.head: Head = head
        self._mark = mark
        self._fragments: list[Fragment | None] = []
        if head.fragments <= KEPT_PAGES_MAX:
            self._fragments = [None] * head.fragments
            for ordinal in range(head.fragments):
                self.fragment(ordinal)

    @property
    def is_kept(self) -> bool:
        """Whether its pages stay mapped, so that it outlives retention."""
        return bool(self._fragments)

    def __len__(self) -> int:
        return self.head.payload_bytes

    def _damage(self, path: str, position: int, reason: str) -> errors.CorruptFrame:
        return errors.CorruptFrame(
            f"message {self.sequence}, a large one, at position {position}: {reason}",
            path=path,
            position=position,
            sequence=self.sequence,
            reason=reason,
            remedy=REMEDY,
        )

    def fragment(self, ordinal: int) -> Fragment:
        """Return one fragment; its page stays mapped as long as it is referred to."""
        kept = self._fragments[ordinal] if self._fragments else None
        if kept is not None:
            return kept
        page = self._page(self._number + ordinal)
        position = fmt.PAGE_HEADER_BYTES if ordinal else self._mark
        if ordinal and page.first_sequence != self.sequence + 1:
            raise self._damage(page.path, 0, "a page between its fragments is another one's")
        found = fragment_in(page.ready(position), position, self.sequence + 1, page.path)
        if isinstance(found, str):
            raise self._damage(page.path, position, found)
        fragment, stated = found
        if stated != ordinal:
            raise self._damage(page.path, position, "a fragment is missing, doubled or another's")
        # Keeps I23 for a message that is read from its middle on: no fragment but this one is seen.
        if (fragment.offset, fragment.size) != self.head.extent(self._page_bytes, ordinal):
            raise self._damage(page.path, position, DO_NOT_ADD_UP)
        if self._fragments:
            self._fragments[ordinal] = fragment
            fragment.forget()  # what was read of each page adds up
        return fragment

    def fragments(self) -> Iterator[Fragment]:
        """Yield all fragments in order."""
        return map(self.fragment, range(self.head.fragments))

    def copy_block(self, fragment: Fragment, block: int, target: Buffer, at: int) -> int:
        """Copy one block of a fragment to an offset of a buffer; return its size in bytes.

        Raises:
            CorruptFrame: its checksum is wrong. CorruptPage: its file was truncated.
        """
        size = fragment.block_bytes(block)
        position = fragment.position + block * fmt.FRAGMENT_BLOCK_BYTES
        # Keeps I23: what was checked is the copy.
        if not _core.copy_checked(
            fragment.region, position, size, fragment.checksums[block], target, at
        ):
            raise self._damage(fragment.path, position, WRONG_BLOCK)
        return size

    def is_whole(self) -> bool:
        """Whether all fragments are there and every block is the one that was sent.

        Raises:
            CorruptFrame, CorruptPage, Expired, MissingPage: a fragment is not there.
        """
        memory = bytearray(fmt.FRAGMENT_BLOCK_BYTES)
        return all(bad_block(fragment, memory) is None for fragment in self.fragments())

    def load(self) -> bytes:
        """Return the whole payload.

        Raises:
            MemoryError: it does not fit into memory: read it through `open()`.
            CorruptFrame, CorruptPage, Expired: as for a message of one page.
        """
        for _ in self.fragments():  # before memory of the stated size is allocated
            pass
        whole = _core.new_bytes(len(self))
        at = 0
        for fragment in self.fragments():
            for block in range(len(fragment.checksums)):
                at += self.copy_block(fragment, block, whole, at)
        return whole

    def fragment_at(self, offset: int) -> Fragment:
        """Return the fragment that holds the byte at an offset of the payload."""
        return self.fragment(self.head.ordinal_at(self._page_bytes, offset))


class PayloadFile(io.RawIOBase):
    """A large payload as a readable, seekable binary file; it holds one block of it in memory."""

    def __init__(self, payload: LargePayload) -> None:
        super().__init__()
        self._payload = payload
        self._at = 0
        self._fragment: Fragment | None = None
        self._begin = self._end = 0  # offsets of the block in memory
        self._block = bytearray(min(fmt.FRAGMENT_BLOCK_BYTES, max(len(payload), 1)))

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether it can be sought: always."""
        return True

    def tell(self) -> int:
        """Return the current offset in bytes."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to an offset; return it."""
        self._check_open()
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._payload)}
        if whence not in begin:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        at = begin[whence] + offset
        if at < 0:
            raise ValueError(f"cannot seek to {at}, before the beginning")
        self._at = at
        return at

    def readinto(self, target: Any, /) -> int:  # noqa: ANN401 - any writable buffer
        """Read up to the size of a buffer into it; return how many bytes, 0 at the end.

        Raises:
            CorruptFrame: the block there is damaged; nothing of it is returned.
            CorruptPage: its file was truncated. Expired: retention removed its page.
        """
        self._check_open()
        if self._at >= len(self._payload):
            return 0
        with memoryview(target) as view, view.cast("B") as to:
            if not len(to):
                return 0
            if not self._begin <= self._at < self._end:
                size = self._read_blocks(to, len(to))
                if size:
                    self._at += size
                    return size
                self._load_block()
            with self._in_block(len(to)) as found:
                to[: len(found)] = found
                self._at += len(found)
                return len(found)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to so many bytes, none at the end; without a size all that are left.

        Raises:
            As for `readinto`.
        """
        if size is None or size < 0:
            return self.readall()
        self._check_open()
        if not size or self._at >= len(self._payload):
            return b""
        if not self._begin <= self._at < self._end:
            if size >= fmt.FRAGMENT_BLOCK_BYTES:
                data = _core.new_bytes(min(size, self._rest_of_fragment()))
                done = self._read_blocks(data, len(data))
                if done:
                    self._at += done
                    return data if done == len(data) else data[:done]
            self._load_block()
        with self._in_block(size) as found:
            self._at += len(found)
            return bytes(found)

    def readall(self) -> bytes:
        """Return all bytes that are left.

        Raises:
            As for `readinto`.
        """
        self._check_open()
        if not self._at:
            whole = self._payload.load()
            self._at = len(whole)
            return whole
        return b"".join(iter(lambda: self.read(READ_ALL_BYTES), b""))

    def _in_block(self, size: int) -> memoryview:
        """Return so many bytes at the current offset, or fewer up to the end of the block."""
        begin = self._at - self._begin
        return memoryview(self._block)[begin : min(begin + size, self._end - self._begin)]

    def _place(self) -> tuple[Fragment, int, int]:
        """Return the fragment and block that hold the current offset, and where in the block."""
        fragment = self._fragment
        if fragment is None or not fragment.offset <= self._at < fragment.end:
            if fragment is not None:
                fragment.forget()
            fragment = self._fragment = self._payload.fragment_at(self._at)
        return fragment, *divmod(self._at - fragment.offset, fmt.FRAGMENT_BLOCK_BYTES)

    def _rest_of_fragment(self) -> int:
        """Return how many bytes of the fragment there follow the current offset."""
        return self._place()[0].end - self._at

    def _read_blocks(self, to: memoryview | bytes, room: int) -> int:
        """Copy whole blocks of one fragment directly to their target; return how many bytes.

        A damaged one ends the bytes before it; its own bytes are zeroed in memory that the caller
        has, and the next call raises.
        """
        fragment, block, inside = self._place()
        position = fragment.position + block * fmt.FRAGMENT_BLOCK_BYTES
        done = 0
        while not inside and block < len(fragment.checksums):
            size = fragment.block_bytes(block)
            if size > room - done:
                break
            try:
                self._payload.copy_block(fragment, block, to, done)
            except errors.DamageError:
                if isinstance(to, memoryview):
                    to[done : done + size] = bytes(size)
                if not done:
                    raise
                break
            done += size
            block += 1
        if done and not fragment.region.writable:  # its memory is that of the file
            fragment.region.forget(position, done)
        return done

    def _load_block(self) -> None:
        fragment, block, _ = self._place()
        self._begin = self._end = 0  # an error leaves no other block in its place
        size = self._payload.copy_block(fragment, block, self._block, 0)
        begin = block * fmt.FRAGMENT_BLOCK_BYTES
        if not fragment.region.writable:  # its memory is that of the file
            fragment.region.forget(fragment.position + begin, size)
        self._begin = fragment.offset + begin
        self._end = self._begin + size

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class LargeMessage(_core.Message):
    """A message whose payload is read from its fragments when it is asked for."""

    __slots__ = ("_decoder", "_large", "_payload")

    _large: LargePayload
    _decoder: Callable[[bytes, int], object] | None
    _payload: bytes | None

    def __new__(
        cls,
        large: LargePayload,
        timestamp: int,
        decoder: Callable[[bytes, int], object] | None,
    ) -> Self:
        """Make the message of a payload that was found."""
        self = super().__new__(cls, large.head_bytes, timestamp, large.sequence)
        self._large = large
        self._decoder = decoder
        self._payload = None
        return self

    @property
    def payload(self) -> bytes:
        """The bytes that were sent, read and checked on first access, then kept."""
        payload = self._payload
        if payload is None:
            payload = self._payload = self._large.load()
        return payload

    def load(self) -> None:
        """Read and check the payload now."""
        self._payload = self._large.load()

    def keep(self) -> None:
        """Have the payload outlive retention: read it now, unless its pages stay mapped.

        Raises:
            MemoryError: it does not fit into memory. CorruptFrame, CorruptPage: it is damaged.
        """
        if not self._large.is_kept and self._payload is None:
            self.load()

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever was sent
        """The object sent: decoded by the codec, or the payload."""
        payload = self.payload
        return payload if self._decoder is None else self._decoder(payload, self.sequence)

    def open(self) -> PayloadFile | io.BytesIO:  # type: ignore[override]  # a binary file, too
        """Return the payload as a readable, seekable binary file."""
        if self._payload is not None and not self._large.is_kept:  # its pages may be gone
            return io.BytesIO(self._payload)
        return PayloadFile(self._large)

    def __repr__(self) -> str:
        return (
            f"<Message of {len(self._large)} bytes, timestamp={self.timestamp}, "
            f"sequence={self.sequence}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _core.Message):
            return NotImplemented
        return (self.sequence, self.timestamp, self.payload) == (
            other.sequence,
            other.timestamp,
            other.payload,
        )

    def __hash__(self) -> int:
        return hash((self.sequence, self.timestamp))

    def __reduce__(self) -> tuple[Any, ...]:
        return _core.Message, (self.payload, self.timestamp, self.sequence, self._decoder)


def large_message(
    page: Callable[[int], FragmentPage],
    number: int,
    position: int,
    timestamp: int,
    sequence: int,
    decoder: Callable[[bytes, int], object] | None,
) -> LargeMessage:
    """Return the message whose head is at a position of page `number`.

    Raises:
        CorruptFrame, MissingPage: it is damaged. Expired: retention removed one of its pages.
    """
    return LargeMessage(LargePayload(page, number, position, sequence), timestamp, decoder)
