"""Watches a queue's files under retention, with no knowledge but that of FORMAT.md."""

from __future__ import annotations

import mmap
import os
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress.keeping import CONSUMERS, SHAPE, name_of
from stress.traffic import VIOLATIONS_MAX

if TYPE_CHECKING:
    from stress.history import Sent
    from stress.keeping import Terms

NUMBER_MASK: Final = (1 << 32) - 1
"""A payload begins with the uid of its producer, 8 bytes, and the number of its operation, 4."""


class Watcher:
    """Checks them again and again."""

    def __init__(self, path: str, terms: Terms) -> None:
        from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now
        from pagequeue.meta.cursor import CursorMeta  # noqa: PLC0415
        from pagequeue.meta.read_meta import ReadMeta  # noqa: PLC0415

        self.fmt, self.read_meta, self.next_at = fmt, ReadMeta, CursorMeta.NEXT
        self.path, self.terms = path, terms
        self.slack_pages = 0
        self.looks = 0
        with open(os.path.join(path, fmt.read_meta_name("queue")), "rb") as file:
            self._words = mmap.mmap(file.fileno(), fmt.READ_META_BYTES, prot=mmap.PROT_READ)

    def head(self) -> tuple[int, int]:
        """Return the head's page and sequence, read as FORMAT.md describes."""
        fields = self.fmt.READ_META.fields
        assert fields is not None
        while True:
            page = self._word(fields["head_page"][1])
            sequence = self._word(fields["head_odd" if page % 2 else "head_even"][1])
            if page == self._word(fields["head_page"][1]):
                return page, sequence

    def _word(self, at: int) -> int:
        return int.from_bytes(self._words[at : at + 8], "little")

    def look(self) -> list[str]:
        """Return the current violations."""
        self.looks += 1
        wrong = []
        pages = [int(n[6:16]) for n in os.listdir(self.path) if n.endswith(".page")]
        page, sequence = self.head()  # read after the listing: it can only have advanced since
        kept = sum(number >= page for number in pages)
        self.slack_pages = max(self.slack_pages, sum(number < page for number in pages))
        if self.terms.pages is not None and kept > self.terms.pages:
            wrong.append(f"{kept} pages from the head on, {self.terms.pages} are allowed")
        wrong += self._head_page(page, sequence)
        if self.terms.keeps:
            for slot in range(CONSUMERS):
                place = self.cursor(slot)
                if place < sequence:
                    wrong.append(f"the head is {sequence}, {name_of(slot)} needs {place}")
        return wrong

    def _head_page(self, page: int, sequence: int) -> list[str]:
        from pagequeue.page.header import parse_header  # noqa: PLC0415

        name = self.fmt.page_name("queue", page)
        try:
            data = Path(self.path, name).read_bytes()[: self.fmt.PAGE_HEADER_BYTES]
        except FileNotFoundError:
            return [] if self.head()[0] > page else [f"the head is page {page}, and it is gone"]
        first = parse_header(data, name).first_sequence
        if first not in {sequence, None} or (first is None and sequence):
            return [f"the head is {sequence} in page {page}, which begins with {first}"]
        return []

    def old_bytes(self, uids: list[int], records: list[Sent]) -> list[str]:
        """Return which operations of earlier pages are in the last two, which can be reused.

        In a ring they are: a page is not zeroed, and a frame there tells that it is none of it.
        """
        if self.terms.ring:
            return []
        from pagequeue import errors  # noqa: PLC0415
        from pagequeue.page.header import parse_header  # noqa: PLC0415

        names = sorted(name for name in os.listdir(self.path) if name.endswith(".page"))
        last = {  # an operation of several pages ends in a later one than it begins in
            (uid, number): first + count * SHAPE.op(uid, number).takes_pages
            for uid, number, count, first, _ in records
            if count
        }
        whose = set(uids)
        wrong = []
        for name in names[-2:]:
            try:
                data = Path(self.path, name).read_bytes()
                begins = parse_header(data[: self.fmt.PAGE_HEADER_BYTES], name).first_sequence
            except (FileNotFoundError, errors.CorruptPage):
                continue  # it was removed; or it is being rolled into
            words = array("Q", data)
            for at, uid in enumerate(words[:-1]):
                if uid in whose:
                    sequence = last.get((uid, words[at + 1] & NUMBER_MASK))
                    if sequence is not None and (begins is None or sequence < begins):
                        wrong.append(f"message {sequence} is in {name}, from {begins} on")
        return wrong[:VIOLATIONS_MAX]

    def cursor(self, slot: int) -> int:
        """Return a named consumer's place."""
        path = os.path.join(self.path, self.fmt.cursor_name("queue", name_of(slot)))
        with open(path, "rb") as file:
            file.seek(self.next_at)
            return int.from_bytes(file.read(8), "little")

    def close(self) -> None:
        """Close the map."""
        self._words.close()
