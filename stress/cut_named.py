"""Named consumers of a queue whose power is cut: their places, and which messages are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stress.cut_round import PROVER, TAKER

if TYPE_CHECKING:
    from pagequeue import Queue
    from stress.cut_round import Claims, Logs


@dataclass
class Named:
    """Two consumers: the prover acknowledges what was proved, the taker dies with the power.

    Attributes:
        keeps: whether this queue has them at all.
        is_keeping: whether they are there, so that retention can be at work.
        proved_to: where the prover is, durably.
        taker: where the taker was after the last cut.
    """

    keeps: bool
    is_keeping: bool = False
    proved_to: int = 0
    taker: int = 0

    def wrong(self, queue: Queue, claims: Claims, logs: Logs) -> list[str]:
        """Compare their places after a cut with what they had acknowledged."""
        if not self.is_keeping:
            return []
        places = {info.name: info.next_sequence for info in queue.consumers()}
        tail, head = queue.tail_sequence, queue.head_sequence
        if places.get(PROVER) != self.proved_to:
            return [f"the prover is at {places.get(PROVER)}, it was at {self.proved_to}"]
        least, most = claims.places(self.taker, logs)
        place = places.get(TAKER)
        if place is None or not min(least, tail) <= place <= min(most, tail):
            return [
                (
                    f"the taker is at {place} with {tail} messages there; {least} was durable, "
                    f"{most} acknowledged"
                )
            ]
        if place < head:
            return [f"the taker is at {place}, and the head is {head}"]
        self.taker = place
        return []

    def acknowledge(self, queue: Queue) -> None:
        """Acknowledge durably all that was proved; from the first time on retention is at work."""
        if not self.keeps:
            return
        if not self.is_keeping:
            queue.consumer(TAKER).close()
        with queue.consumer(PROVER) as consumer:
            while consumer.lag:
                consumer.receive_many(timeout=0)
            consumer.ack(durable=True)
            self.proved_to = consumer.sequence
        self.is_keeping = True
