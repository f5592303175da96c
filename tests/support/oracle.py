"""Where a queue ends after a power cut: FORMAT.md ("Opening") in the plainest words, for tests.

It reads each byte as often as it needs it, knows no compressed page, and imports the constants of
the format and a CRC-32C only, so that no mistake of the judge can be in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt

if TYPE_CHECKING:
    from pathlib import Path

FRAME, NOTHING, END, BAD = "frame", "nothing", "end", "bad"
INFINITY: Final = 1 << 64


class End(NamedTuple):
    """Where the valid prefix ends: the page, and the sequence that follows."""

    page: int
    sequence: int


class Refused(Exception):
    """Opening the queue is refused, because of what is "missing" or damaged after the prefix."""

    def __init__(self, reason: str, prefix: End | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.prefix = prefix


class Header(NamedTuple):
    """A page's header: "right", "missing", of the wrong "size", "torn", "staged" or "foreign"."""

    state: str
    first: int | None = None
    floor: int = 0
    continues: bool = False


class Walk(NamedTuple):
    """The frames of a page: where they end and why, where whole batches end, and the last time."""

    position: int
    sequence: int
    whole: int
    why: str
    time: int


class Oracle:
    """The queue in a directory, with the default prefix, as its files are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        meta = self.record(fmt.all_meta_name("queue"), fmt.ALL_META)
        self.id, self.page_bytes = bytes(meta["queue_id"]), int(meta["page_bytes"])
        write = self.record(fmt.write_meta_name("queue"), fmt.WRITE_META)
        read = self.record(fmt.read_meta_name("queue"), fmt.READ_META)
        self.head = int(read["head_page"])
        self.begin = begin = int(read["head_odd" if self.head % 2 else "head_even"])
        self.mark_page = int(write["durable_page"])  # 0: there is no mark
        self.promised = max(int(write["durable_sequence"]), begin)
        self.sure = self.promised if self.mark_page else INFINITY
        self.numbers = sorted(int(path.stem[-10:]) for path in directory.glob("queue-*.page"))

    def record(self, name: str, dtype: np.dtype[Any]) -> Any:  # noqa: ANN401 - a record
        """Return a record at the beginning of a file."""
        return np.frombuffer((self.directory / name).read_bytes(), dtype, 1)[0]

    def data(self, number: int) -> bytes:
        """Return a page."""
        return (self.directory / fmt.page_name("queue", number)).read_bytes()

    def header(self, number: int) -> Header:  # noqa: PLR0911 - what can be wrong, in order
        """Return the header of a page."""
        if number not in self.numbers:
            return Header("missing")
        data = self.data(number)
        if len(data) != self.page_bytes:
            return Header("size")
        header = np.frombuffer(data, fmt.PAGE_HEADER, 1)[0]
        first, flags = int(header["first_sequence"]), int(header["flags"])
        if bytes(header["magic"]) != fmt.PAGE_MAGIC:
            return Header("torn")
        if header["version"] != fmt.FORMAT_VERSION:
            return Header("foreign")
        if _core.crc32c(data[:12] + bytes(4) + data[16:64]) != header["checksum"]:
            return Header("torn")
        if flags & ~fmt.COMMIT_CONTINUES or fmt.SEQUENCE_MAX < first < fmt.UNSET_SEQUENCE:
            return Header("foreign")
        is_unused = first == fmt.UNSET_SEQUENCE
        if bytes(header["queue_id"]) == fmt.staged_id(self.id):
            return Header("staged")
        if bytes(header["queue_id"]) != self.id or header["page_number"] != number:
            return Header("torn" if is_unused else "foreign")
        return Header(
            "right", None if is_unused else first, int(header["floor_timestamp"]), bool(flags)
        )

    def frame(self, data: bytes, at: int, sequence: int) -> tuple[str, int, bytes, int]:
        """Return what is at a position, its length word, payload and time."""
        if at > len(data) - 16:
            return BAD, 0, b"", 0
        word, stated, time = np.frombuffer(data, fmt.FRAME, 1, at)[0].item()
        length = word & fmt.LENGTH_MASK
        is_end = word & fmt.LARGE_MESSAGE == fmt.END_OF_PAGE
        if word == 0:
            return NOTHING, 0, b"", 0
        if length < 16 or at + fmt.frame_bytes(length - 16) + 16 * (not is_end) > len(data):
            return BAD, word, b"", 0
        payload = data[at + 16 : at + length]
        rest = np.array([time, sequence], "<i8").tobytes() + np.array(word, "<u4").tobytes()
        if _core.crc32c(self.id + payload + rest) != stated:
            return BAD, word, b"", 0
        return END if is_end else FRAME, word, payload, time

    def walk(self, number: int, first: int, floor: int) -> Walk:
        """Walk the frames of a page from its first one on."""
        data, at, sequence, whole, last = self.data(number), 64, first, first, floor
        while True:
            why, word, payload, time = self.frame(data, at, sequence)
            if why != FRAME or time < last:
                return Walk(at, sequence, whole, why if why != FRAME else BAD, last)
            at, sequence, last = at + fmt.frame_bytes(len(payload)), sequence + 1, time
            if not fmt.has_more(word):
                whole = sequence

    def torn_at(self, number: int, header: Header) -> int | None:
        """Return the page where the commit that goes on in a page is torn; None: it is whole."""
        first = header.first or 0
        while True:
            if header.state != "right" or header.first != first:
                return number
            why, _, head, _ = self.frame(self.data(number), 64, first)
            if int.from_bytes(self.data(number)[64:68], "little") >= fmt.LARGE_MESSAGE:
                torn = self.large_torn_at(number, first, head) if why == FRAME else number
                if torn is not None:
                    return torn
            if not header.continues:
                return None
            found = self.walk(number, first, header.floor)
            if found.why != END or found.whole != found.sequence:
                return number
            number, first = number + 1, found.whole
            header = self.header(number)
            if header.state == "right" and header.first == first and not header.continues:
                found = self.walk(number, first, header.floor)
                if found.why != END and found.whole == first:
                    return number  # the first batch of the last page, at least

    def large_torn_at(  # noqa: PLR0911 - what can be wrong, in order
        self, number: int, sequence: int, head: bytes
    ) -> int | None:
        """Return the page where a block of a large message is not as it was sent; None: all are."""
        if len(head) != fmt.LARGE_HEAD.itemsize:
            return number
        total, count, block_bytes = np.frombuffer(head, fmt.LARGE_HEAD)[0].item()
        if block_bytes != fmt.FRAGMENT_BLOCK_BYTES or not 1 <= count <= 2 + total // 1000:
            return number
        end = 0
        for ordinal in range(count):
            page = number + ordinal
            header = self.header(page)
            if ordinal and (header.state != "right" or header.first != sequence + 1):
                return page
            data = self.data(page)
            at = 64 if ordinal else 64 + fmt.frame_bytes(len(head))
            why, _, mark, _ = self.frame(data, at, sequence + 1)
            if why != END or len(mark) < fmt.FRAGMENT.itemsize:
                return page
            offset, size, stated = np.frombuffer(mark, fmt.FRAGMENT, 1)[0].item()
            begin = at + fmt.frame_bytes(len(mark))
            if (stated, offset) != (ordinal, end) or begin + size > len(data):
                return page
            block = data[begin : begin + size]  # pages of the tests are smaller than a block
            if _core.crc32c(self.id + block) != int.from_bytes(mark[16:20], "little"):
                return page
            end += size
        return None if end == total else number

    def start(self) -> tuple[int, Header]:
        """Return the last page up to the mark's that begins below the mark; or the head."""
        found = self.head, self.header(self.head)
        if found[1].state == "missing":
            raise Refused("missing")
        if found[1].state != "right" or found[1].first != self.begin:
            raise Refused("head")
        low, high = self.head, max(min(self.numbers[-1], self.mark_page or INFINITY), self.head)
        while low < high:
            middle = (low + high + 1) // 2
            header = self.header(middle)
            first = INFINITY if header.first is None else header.first
            if first < self.promised:
                found, low = (middle, header), middle
            else:
                high = middle - 1
        return found

    def end(self) -> End:  # noqa: C901, PLR0912 - FORMAT.md's rules, one after the other
        """Return where the queue ends; Refused: something is missing that was guaranteed."""
        if not self.numbers:
            raise Refused("missing")
        number, header = self.start()
        while True:
            first = header.first or 0
            begin = End(number, first)
            torn = self.torn_at(number, header) if first >= self.promised else None
            if torn is not None:
                if not self.mark_page and self.header(torn).state == "missing":
                    raise Refused("missing")
                if number < self.mark_page:
                    raise Refused("damage")
                self.refuse_later(begin, first)
                return begin
            found = self.walk(number, first, header.floor)
            if found.why != END:
                if found.whole < self.promised or number < self.mark_page:
                    raise Refused("damage")
                self.refuse_later(End(number, found.whole), found.sequence)
                return End(number, found.whole)
            end = End(number, found.sequence)
            number, first = number + 1, found.sequence
            header = self.header(number)
            if header.state == "missing":
                if first < self.sure or number <= self.mark_page:
                    raise Refused("missing")
                return end
            if header.state != "right":
                is_size = header.state == "size"
                is_staged = header.state == "staged"
                if is_staged and number < self.mark_page:
                    raise Refused("header")
                if header.state == "foreign" or (is_size and number <= self.mark_page):
                    raise Refused("header")
                if first < self.sure:
                    raise Refused("header", end if first >= self.promised else None)
                if is_size or is_staged or number > self.mark_page:
                    return end
            elif header.first != first and first < self.sure:
                why = self.frame(self.data(number), 64, first)[0]
                is_unused = self.sure == INFINITY and why == NOTHING and header.first is None
                if why not in {FRAME, END} and not is_unused:
                    raise Refused("first sequence", end if first >= self.promised else None)
            if (header.state, header.first) != ("right", first):  # it is written again
                header = Header("right", first, found.time)

    def refuse_later(self, end: End, sequence: int) -> None:
        """Without a mark, no page after the end may have later messages."""
        for later in [n for n in self.numbers if n > end.page and not self.mark_page]:
            header = self.header(later)
            if header.state != "right" or (header.first is not None and header.first >= sequence):
                raise Refused("damage", end)

    def kept_run(self) -> list[int]:
        """Return the pages of a ring that are kept: the last run with the mark, or after it."""
        mark = int(self.record(fmt.write_meta_name("queue"), fmt.WRITE_META)["durable_sequence"])
        runs: list[list[tuple[int, int, Walk]]] = []
        for number in self.numbers:
            header = self.header(number)
            if header.state != "right" or header.first is None:
                continue
            found = self.walk(number, header.first, header.floor)
            before, _, last = runs[-1][-1] if runs else (-1, 0, found)
            is_sealed = last.why == END and last.whole == last.sequence
            if is_sealed and before + 1 == number and last.whole == header.first:
                runs[-1].append((number, header.first, found))
            else:
                runs.append([(number, header.first, found)])
        having = [run for run in runs if run[0][1] <= mark <= run[-1][2].whole]
        after = [run for run in runs if run[0][1] > mark]
        return [number for number, _, _ in (having or after or [[]])[-1]]
