"""A copy of a good queue, and what damages do to it."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from pagequeue.meta.cursor import CursorMeta
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.system.directory import Directory
from stress.corpus.damage import Hit
from stress.corpus.shapes import PREFIX
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from stress.corpus.damage import OutcomeOf
    from stress.corpus.shapes import Original, Place

SECTOR = 512
ALL_META = fmt.all_meta_name(PREFIX)
WRITE_META = fmt.write_meta_name(PREFIX)
READ_META = fmt.read_meta_name(PREFIX)
LOCK = fmt.lock_name(PREFIX)
CONSUMER = "billing"
CURSOR = fmt.cursor_name(PREFIX, CONSUMER)


class Victim:
    """A copy of a queue's directory to be damaged, with an outside directory that must not change.

    Attributes:
        original: what it is a copy of.
        other: a good queue with another id and as many pages.
        directory: of the queue.
        outside: a directory next to it; no process may touch its contents.
        elsewhere: another one, with files that have a second name in the queue's directory.
        rng: makes the random choices of a damage.
        altered: sequences of messages that were given another time, with the checksum for that.
        outcomes: the required outcome of each interface.
        durable: the durable mark on disk, as the damage left it.
        durable_page: the page of that mark.
        compressed: by the number of a page that was compressed, the sequences of the messages that
            the damage took from it.
    """

    def __init__(self, original: Original, other: Original, base: Path, rng: random.Random) -> None:
        self.original = original
        self.other = other
        self.directory = base / "events"
        self.outside = base / "outside"
        self.elsewhere = base / "elsewhere"
        self.rng = rng
        self.altered: set[int] = set()
        self.outcomes: dict[str, OutcomeOf] = {}
        self.durable = original.durable
        self.durable_page = 0
        self.compressed: dict[int, set[int]] = {}
        self.directory.mkdir(mode=0o700)
        self.outside.mkdir(mode=0o700)
        for name, data in original.contents.items():
            self.path(name).write_bytes(data)
            self.path(name).chmod(0o600)
        (self.outside / "file").write_bytes(b"not the queue's")
        self.settle()

    # --- places -----------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The first page."""
        return self.original.head

    @property
    def inner(self) -> int:
        """A sealed page between others, if there is one."""
        return self.original.inner

    @property
    def active(self) -> int:
        """The page that is written to."""
        return self.original.active

    @property
    def roomy(self) -> int:
        """The sealed page with the most room after its end-of-page marker."""
        return min(range(self.head, self.active), key=self.end)

    def page(self, number: int) -> str:
        """Return a page's file name."""
        return fmt.page_name(PREFIX, number)

    def index(self, number: int) -> str:
        """Return an index's file name."""
        return fmt.index_name(PREFIX, number)

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.directory / name

    def places(self, number: int) -> list[Place]:
        """Return the messages of a page."""
        return self.original.of_page(number)

    def middle(self, number: int) -> Place:
        """Return a message in the middle of a page, which begins a batch."""
        places = self.places(number)
        for place in places[len(places) // 2 :] + places[1:]:
            if not self.original.places[place.sequence - 1].more and len(place.payload) >= 40:
                return place
        raise AssertionError("no such message in this shape")

    def last(self, number: int) -> Place:
        """Return the last message of a page."""
        return self.places(number)[-1]

    def end(self, number: int) -> int:
        """Return where a page's messages end: at its end-of-page marker, if it is sealed."""
        return self.original.ends[number]

    def end_sequence(self, number: int) -> int:
        """Return the sequence after a page's last message."""
        return self.last(number).sequence + 1

    def at(self, place: Place) -> Hit:
        """Return the hit of a message."""
        return Hit(self.page(place.page), place.position, place.sequence, place.page)

    def at_page(self, number: int, position: int | None = 0) -> Hit:
        """Return the hit of a page as a whole, or of its header."""
        first = self.places(number)[0].sequence
        return Hit(self.page(number), position, first, number, whole=True)

    def at_end(self, number: int) -> Hit:
        """Return the hit of a page's end-of-page marker."""
        return Hit(self.page(number), self.end(number), self.end_sequence(number), number)

    # --- bytes ------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """Return a file."""
        return self.path(name).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        """Replace the bytes of a file, in place."""
        self.path(name).write_bytes(data)

    def poke(self, name: str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        overwrite(self.path(name), position, data)

    def flip(self, name: str, position: int) -> None:
        """Change one bit of a file."""
        byte = self.read(name)[position] ^ 1 << self.rng.randrange(8)
        self.poke(name, position, bytes([byte]))

    def resize(self, name: str, size_bytes: int) -> None:
        """Cut a file, or make it longer by zeros."""
        os.truncate(self.path(name), size_bytes)

    def word(self, name: str, dtype: np.dtype[np.void], field: str, value: int) -> None:
        """Set one field of the record at the beginning of a file; its checksum stays."""
        kind = dtype[field]
        masked = value & (1 << 8 * kind.itemsize) - 1
        self.poke(name, field_of(dtype, field), masked.to_bytes(kind.itemsize, "little"))

    def field(self, name: str, dtype: np.dtype[np.void], field: str) -> int:
        """Return one field of the record at the beginning of a file."""
        return int(np.frombuffer(self.read(name), dtype, 1)[field][0])

    def header(self, number: int, **fields: int) -> None:
        """Set fields of a page header, and its checksum with them."""
        for field, value in fields.items():
            self.word(self.page(number), fmt.PAGE_HEADER, field, value)
        self.word(self.page(number), fmt.PAGE_HEADER, "checksum", 0)
        record = self.read(self.page(number))[: fmt.PAGE_HEADER_BYTES]
        self.word(self.page(number), fmt.PAGE_HEADER, "checksum", _core.crc32c(record))

    def sign_all_meta(self, data: bytes) -> None:
        """Write an allMeta with the checksum that its record and options need."""
        record = np.frombuffer(data, fmt.ALL_META, 1).copy()
        record["checksum"] = 0
        options = data[fmt.ALL_META.itemsize :]
        record["checksum"] = _core.crc32c(record.tobytes() + options)
        self.put(ALL_META, record.tobytes() + options)

    def lay(self, place: Place, *, timestamp: int | None = None) -> None:
        """Lay a message's frame down again, with another time and the checksum for that."""
        at = place.timestamp if timestamp is None else timestamp
        self.altered.add(place.sequence)
        data = self.frame(place.payload, at, place.sequence, more=place.more)
        self.poke(self.page(place.page), place.position, data)

    def end_mark(self, number: int, position: int, sequence: int) -> None:
        """Lay an end-of-page mark down that is right for this sequence."""
        timestamp = self.last(number).timestamp
        data = self.frame(b"", timestamp, sequence, end=True)
        self.poke(self.page(number), position, data)

    def tail_word(self, number: int, position: int, count: int) -> None:
        """Set the tail word that a page's number picks."""
        field = "tail_odd" if number & 1 else "tail_even"
        self.word(WRITE_META, fmt.WRITE_META, field, position << 32 | count)

    def move_head(self, first: Place) -> None:
        """Make this message, the first of its page, the head of the queue."""
        field = "head_odd" if first.page & 1 else "head_even"
        self.word(READ_META, fmt.READ_META, "head_page", first.page)
        self.word(READ_META, fmt.READ_META, field, first.sequence)

    def put_cursor(
        self, sequence: int, owner: Original | None = None, consumer: str = CONSUMER
    ) -> None:
        """Make the cursor of a named consumer, of this queue or with the id of another one."""
        with closing(Directory(str(self.directory), create=False)) as folder:
            CursorMeta.make(
                folder,
                PREFIX,
                (owner or self.original).queue_id,
                consumer,
                next_sequence=sequence,
                created=self.places(self.head)[0].timestamp,
            )

    # --- files ------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.path(name).unlink()

    def move_out(self, name: str) -> Path:
        """Move a file out of the directory, to where it may be read; return its new path."""
        self.elsewhere.mkdir(exist_ok=True)
        target = self.elsewhere / name
        shutil.move(self.path(name), target)
        return target

    # --- the shared state -------------------------------------------------------------------------

    def settle(self) -> None:
        """Mark the shared state as made in this boot, in this very file."""
        meta = self._write_meta()
        meta.region.write(WriteMeta.LOCK_KEY, meta._key)
        meta.close()

    def cut_power(self) -> bool:
        """Mark the shared state as made in another boot; False if there is no such file."""
        path = self.path(WRITE_META)
        if path.is_symlink() or not path.is_file() or path.stat().st_size < fmt.WRITE_META.itemsize:
            return False
        return pretend_power_cut(self.directory, PREFIX)

    def mark(self, word: str = "durable_sequence") -> int:
        """Return the durable mark on disk, or that of the good queue if it is missing."""
        path = self.path(WRITE_META)
        if path.is_symlink() or not path.is_file() or path.stat().st_size < fmt.WRITE_META.itemsize:
            return self.original.durable if word == "durable_sequence" else 0
        return self.field(WRITE_META, fmt.WRITE_META, word)

    def _write_meta(self) -> WriteMeta:
        with closing(Directory(str(self.directory), create=False)) as folder:
            return WriteMeta(folder, PREFIX, self.original.queue_id, writable=True)

    def frame(
        self,
        payload: bytes,
        timestamp: int,
        sequence: int,
        *,
        more: bool = False,
        end: bool = False,
    ) -> bytes:
        """Return a frame of this queue with the right checksum, without padding."""
        queue_id = self.original.queue_id
        return frame(queue_id, payload, timestamp, sequence, more=more, end=end)


def frame(
    queue_id: bytes,
    payload: bytes,
    timestamp: int,
    sequence: int,
    *,
    more: bool = False,
    end: bool = False,
) -> bytes:
    """Return a frame with the right checksum, without padding."""
    word = fmt.FRAME_HEADER_BYTES + len(payload)
    word |= fmt.MORE_OF_BATCH if more else 0
    word |= fmt.END_OF_PAGE if end else 0
    checksum = _core.frame_checksum(queue_id, payload, timestamp, sequence, word)
    head = word.to_bytes(4, "little") + checksum.to_bytes(4, "little")
    return head + timestamp.to_bytes(8, "little", signed=True) + payload
