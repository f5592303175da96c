"""Appender: the producer of a journal, which sends payloads that are encoded already."""

from __future__ import annotations

from pagequeue import errors
from pagequeue.producer.producer import Producer


class Appender(Producer):
    """Appends entries to a journal's queue, for the journal alone."""

    __slots__ = ()

    def _on_overtaken(self, tail_sequence: int) -> None:
        """Raise Overtaken, with less text: there can be many, and the journal catches them."""
        raise errors.Overtaken("another handle appended first", tail_sequence=tail_sequence)

    def flush_sent(self, end_sequence: int) -> None:
        """Flush all entries below a sequence, which were appended.

        Raises:
            NotDurable: the flush failed; the entries are visible.
        """
        self._check_open()
        self._flush_sent(end_sequence)
