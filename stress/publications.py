"""Publishing as a campaign's operation: the pieces of work, and what the ledger must record.

A producer's operations are the pieces of work of one writer per producer. From the producer's uid,
the ledger tells which were done, and that is compared with the messages that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pagequeue import Producer, Queue
    from pagequeue.bulk.chunk import Chunk
    from stress.history import Sent
    from stress.traffic import Op

ATTEMPTS = 10
CHUNK_COUNT = 25


class Rows:
    """What is published at once, in chunks."""

    def __init__(self, payloads: list[bytes]) -> None:
        from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now

        self.payloads = payloads
        self.count = len(payloads)
        self.frame_bytes = sum(fmt.frame_bytes(len(payload)) for payload in payloads)

    def chunks(self) -> Iterator[Chunk]:
        """Give all of it in order."""
        from pagequeue.bulk.chunk import chunk_of  # noqa: PLC0415  the core is chosen by now

        for begin in range(0, self.count, CHUNK_COUNT):
            yield chunk_of(self.payloads[begin : begin + CHUNK_COUNT], None)


def publish(producer: Producer, uid: int, number: int, payloads: list[bytes]) -> range:
    """Publish payloads as a piece of the work of a producer; what it returns is durable.

    Every other piece that fits into a page is published as if others had overtaken it too often.
    """
    from pagequeue.bulk import publisher  # noqa: PLC0415  the core is chosen by now

    setattr(publisher, "TRIES", number % 2 * ATTEMPTS)  # noqa: B010  mypy forbids it in plain words
    with publisher.BulkPublisher(producer._store) as ledger:
        return ledger.publish(str(uid), number, Rows(payloads))


def wrong_entries(
    queue: Queue, uids: Iterable[int], op: Callable[[int, int], Op], records: list[Sent]
) -> list[str]:
    """Return where the ledger and the messages disagree.

    Args:
        queue: open for writing; none of its pages was removed.
        uids: of all producers.
        op: makes an operation again.
        records: of all operations that returned: uid, number, count, first sequence.
    """
    from pagequeue.bulk.publisher import BulkPublisher  # noqa: PLC0415  the core is chosen by now

    told = {(record[0], record[1]): record for record in records}
    ends = dict.fromkeys(uids, 0)
    for uid, number in told:
        ends[uid] = max(ends.get(uid, 0), number + 1)
    payloads = [message.payload for message in queue.replay()]
    wrong = []
    with BulkPublisher(queue._store) as ledger:
        for uid, end in ends.items():
            for number in range(max(0, end - 2), end + 1):
                piece = op(uid, number)
                if piece.publishes:
                    done = ledger.done(str(uid), number)
                    wrong += _wrong_with(
                        piece, uid, number, done, told.get((uid, number)), payloads
                    )
    return wrong


def _wrong_with(
    piece: Op,
    uid: int,
    number: int,
    done: range | None,
    told: Sent | None,
    payloads: list[bytes],
) -> list[str]:
    name = f"piece {number} of {uid}"
    if done is None:
        wrong = [f"the ledger does not have {name} as published"] if told else []
        if piece.payloads[0] in payloads:
            wrong.append(f"{name} is there, and the ledger does not have it")
        return wrong
    if told is not None and (told[3], told[2]) != (done.start, len(done)):
        return [f"the ledger records {name} as {done}, its writer was told {told[2:4]}"]
    if payloads[done.start : done.stop] != piece.payloads:
        return [f"the ledger records {name} as {done}, where other messages are"]
    return []
