"""What opening a queue had to do, for whoever opened it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RecoveryReport:
    """What opening the queue had to do.

    Attributes:
        scanned: whether frames were checked from the durable mark on, as after a power cut.
        messages_settled: published by a producer that was killed before it could say so.
        messages_checked: frames that validated in the scan.
        messages_dropped: whole frames of an incomplete batch, dropped.
        bytes_zeroed: of torn frames, in the last page.
        pages_removed: numbers of pages behind the true tail.
        actions: one sentence for each thing done.
    """

    scanned: bool = False
    messages_settled: int = 0
    messages_checked: int = 0
    messages_dropped: int = 0
    bytes_zeroed: int = 0
    pages_removed: list[int] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    def did(self, sentence: str) -> None:
        """Note one thing that was done."""
        self.actions.append(sentence)
