"""What is done to an open queue: each operation ends in its result, or in an error that is allowed.

An operation that closing may interrupt may end in `ClosedError` and in no other error; where
retention can pass a reader, `Expired` is allowed; and so on. Any other error is a violation.
Results are checked at once where that is possible, and recorded for the judge.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import traceback
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pagequeue import (
    ClosedError,
    ConcurrentUse,
    ConsumerInUse,
    Expired,
    LeaseLost,
    LockTimeout,
    NothingReceived,
    Queue,
    QueueFull,
    QueueReplaced,
    SystemLimit,
    TooManyClaims,
    merge,
)
from stress.combined.ground import (
    ACKED,
    ACKING,
    CLOSED,
    DONE,
    PAGE_BYTES,
    READER,
    RECEIVED,
    REFUSED,
    REJECTED,
    REJECTING,
    Ground,
    Handled,
    Spec,
    check_sound,
    crew_of,
    is_poison,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from pagequeue import Merged, Message
    from pagequeue.util.closing import Closing

READER_MARK: Final = 0
WAIT_SECONDS: Final = 0.005
MERGED_MAX: Final = 1000
SHIPS: Final = 30
PART_BYTES: Final = 1500
ACCOMPANIED_SHARE: Final = 0.4


class Over(Exception):
    """The queue was closed, or a violation was found: the script on it ends."""


class Opening:
    """One open queue that several threads use until one of them closes it.

    Attributes:
        queue: as it was opened; None: it was dropped.
        syncs: whether a send may return only after a flush.
        closing: whether a thread began to close it, so that `ClosedError` is allowed.
        few: whether descriptors are few, so that `SystemLimit` is allowed.
    """

    def __init__(self, ground: Ground, spec: Spec, queue: Queue, *, read_only: bool) -> None:
        self.ground = ground
        self.spec = spec
        self.queue: Queue | None = queue
        self.read_only = read_only
        self.syncs = queue._opened.flushes_on_close
        self.closing = False
        self.few = False

    @property
    def got(self) -> Queue:
        """The queue.

        Raises:
            Over: it was dropped.
        """
        queue = self.queue
        if queue is None:
            raise Over
        return queue

    @contextlib.contextmanager
    def doing(self, kind: str, *allowed: type[Exception]) -> Iterator[None]:
        """Note one operation, and judge how it ends.

        Raises:
            Over: no more is to be done with this queue.
        """
        number = self.spec.number
        try:
            yield
        except Over:
            raise
        except allowed:
            self.ground.note(kind, number, REFUSED)
        except ClosedError as error:
            if self.closing:
                self.ground.note(kind, number, CLOSED)
            else:
                self.ground.wrong(kind, number, f"closed by no thread: {error}")
            raise Over from None
        except (QueueReplaced, SystemLimit) as error:
            if not (self.few if isinstance(error, SystemLimit) else self.spec.is_moved):
                self.ground.wrong(kind, number, traced(error))
            self.ground.note(kind, number, REFUSED)
            raise Over from None
        except Exception as error:  # noqa: BLE001  any other exception is a violation
            self.ground.wrong(kind, number, traced(error))
            raise Over from None
        else:
            self.ground.note(kind, number, DONE)

    @property
    def passed(self) -> tuple[type[Exception], ...]:
        """The errors allowed to a reader for which retention keeps no pages."""
        return (Expired,) if self.spec.drops else ()

    def check(self, kind: str, messages: Iterable[Message], begin: int | None = None) -> int:
        """Check messages that follow one another; return how many there were."""
        count, expected = 0, begin
        for message in messages:
            wrong = check_sound(message, self.spec)
            if not wrong and expected is not None and message.sequence != expected:
                wrong = f"message {message.sequence} comes where {expected} should"
            if wrong:
                self.ground.wrong(kind, self.spec.number, wrong)
                raise Over
            expected, count = message.sequence + 1, count + 1
            if len(message.payload) > PAGE_BYTES:
                self.check_file(message)
        return count

    def check_file(self, message: Message) -> None:
        """Compare what the file of a large message gives, part by part, with its payload."""
        parts = []
        with message.open() as file:
            while part := file.read(PART_BYTES):
                parts.append(part)
        if b"".join(parts) != message.payload:
            text = f"the file of message {message.sequence} is not its payload"
            self.ground.wrong("message file", self.spec.number, text)
            raise Over
        self.ground.note("message file", self.spec.number)


def traced(error: BaseException) -> str:
    """Return an error with its last calls."""
    return "".join(traceback.format_exception(error)[-4:])[-1200:]


# --- upkeep ---------------------------------------------------------------------------------------


def flush(opening: Opening, rng: random.Random) -> None:
    """Flush; what comes back covers what was there before."""
    with opening.doing("flush"):
        queue = opening.got
        tail = queue.tail_sequence
        with contextlib.closing(queue.producer()) as producer:
            durable = producer.flush()
        if durable < tail:
            opening.ground.wrong("flush", opening.spec.number, f"{durable} durable of {tail}")
    del rng


def rotate(opening: Opening, rng: random.Random) -> None:
    """End the page early."""
    with opening.doing("rotate", QueueFull):
        sealed = opening.got.rotate()
        if sealed is not None and sealed.first_sequence >= sealed.end_sequence:
            opening.ground.wrong("rotate", opening.spec.number, f"no message in {sealed}")
    del rng


def trim(opening: Opening, rng: random.Random) -> None:
    """Apply retention, if this opening has one."""
    with opening.doing("trim"):
        opening.got.trim()
    del rng


def compress(opening: Opening, rng: random.Random) -> None:
    """Compress sealed pages, of queues where that is done."""
    if not opening.spec.compresses:
        return rotate(opening, rng)
    with opening.doing("compress"):
        opening.got.compress()
    return None


def ship(opening: Opening, rng: random.Random) -> None:
    """Copy sealed pages to another directory."""
    path = rng.choice(ship_paths(opening.ground, opening.spec))
    other = threading.Thread(target=ship_to, args=(opening, path), daemon=True)
    is_accompanied = not opening.few and rng.random() < ACCOMPANIED_SHARE
    if is_accompanied:
        other.start()
    try:
        ship_to(opening, path)
    finally:
        if is_accompanied:
            other.join()


def ship_to(opening: Opening, path: str) -> None:
    """Copy sealed pages there, also while another thread does the same."""
    with contextlib.suppress(Over), opening.doing("ship", *opening.passed):
        opening.got.ship(path)


def ship_paths(ground: Ground, spec: Spec) -> list[str]:
    """Return where the pages of a queue are shipped to."""
    return [os.path.join(ground.base, f"ship-{spec.number}-{i}") for i in range(SHIPS)]


def look(opening: Opening, rng: random.Random) -> None:
    """Ask the queue about itself."""
    with opening.doing("inspect", *opening.passed):
        queue = opening.got
        what: Callable[[], object] = rng.choice(
            (
                queue.info,
                queue.stats,
                queue.consumers,
                queue.times,
                queue.pages,
                queue.__repr__,
                queue.__len__,
            )
        )
        what()
        if queue.head_sequence > queue.tail_sequence:
            opening.ground.wrong("inspect", opening.spec.number, "the head is after the tail")


def verify(opening: Opening, rng: random.Random) -> None:
    """Check all of it while others write."""
    with opening.doing("verify"):
        report = opening.got.verify()
        if not report.ok:
            opening.ground.wrong("verify", opening.spec.number, str(report.problems[:3]))
    del rng


# --- readers for which retention keeps no pages ---------------------------------------------------


def replay(opening: Opening, rng: random.Random) -> None:
    """Read what is there, from some place on."""
    with opening.doing("replay", *opening.passed):
        queue = opening.got
        begin = rng.randint(queue.head_sequence, queue.tail_sequence)
        if rng.random() < 0.3:
            opening.check("replay", queue.replay(since=timedelta(seconds=rng.random())))
        else:
            opening.check("replay", queue.replay(sequence=begin), begin)


def batches(opening: Opening, rng: random.Random) -> None:
    """Read in columns."""
    with opening.doing("batches", *opening.passed):
        queue = opening.got
        begin = rng.randint(queue.head_sequence, queue.tail_sequence)
        for batch in queue.batches(sequence=begin, limit_count=rng.randint(1, 90)):
            begin += opening.check("batches", batch, begin)
        opening.check("batches", queue.last(rng.randint(1, 40)))


def peek(opening: Opening, rng: random.Random) -> None:
    """Wait for what comes, with a consumer that has no name."""
    with (
        opening.doing("unnamed consumer", NothingReceived, *opening.passed),
        contextlib.closing(opening.got.consumer(latest=rng.random() < 0.5)) as consumer,
    ):
        for _ in range(rng.randint(1, 12)):
            begin = consumer.sequence
            found = [consumer.receive(timeout=rng.random() * WAIT_SECONDS)]
            opening.check("unnamed consumer", found, begin)


def merged(opening: Opening, rng: random.Random, others: list[Opening]) -> None:
    """Read several queues in one order."""
    chosen = rng.sample(others, rng.randint(1, len(others)))
    with opening.doing("merge", *{error for each in chosen for error in each.passed}):
        try:
            with merge([each.got for each in chosen]) as stream:
                check_merge(opening, chosen, stream)
        except ClosedError:
            if any(each.closing for each in chosen):
                opening.ground.note("merge", opening.spec.number, CLOSED)
                raise Over from None
            raise
        except QueueReplaced:
            if any(each.spec.is_moved for each in chosen):
                opening.ground.note("merge", opening.spec.number, REFUSED)
                raise Over from None
            raise


def check_merge(opening: Opening, chosen: list[Opening], stream: Iterable[Merged]) -> None:
    """Check that messages are whole, and in the order of their times."""
    last = 0
    for merged_ in itertools.islice(stream, MERGED_MAX):
        wrong = check_sound(merged_.message, chosen[merged_.queue].spec)
        if merged_.message.timestamp < last:
            wrong = wrong or f"a message of {merged_.message.timestamp} comes after one of {last}"
        if wrong:
            opening.ground.wrong("merge", opening.spec.number, wrong)
            raise Over
        last = merged_.message.timestamp


# --- a named consumer and a group -----------------------------------------------------------------


def checksum(payload: bytes) -> int:
    """Return what the judge compares a message by."""
    return zlib.crc32(payload)


def read(opening: Opening, rng: random.Random, limit: int = 30) -> None:
    """Continue with the named consumer: record what it receives, then acknowledge it."""
    ground, number = opening.ground, opening.spec.number
    marked = ground.marked(number, READER_MARK)
    with (
        opening.doing("consumer receive", ConsumerInUse, NothingReceived),
        contextlib.closing(opening.got.consumer(READER)) as consumer,
    ):
        begin = consumer.sequence
        if begin < marked:
            ground.wrong(
                "consumer receive",
                number,
                f"the consumer begins with {begin}, though all below {marked} was acknowledged",
            )
            raise Over
        for _ in range(rng.randint(1, limit)):
            if rng.random() < 0.5:
                found = [consumer.receive(timeout=rng.random() * WAIT_SECONDS)]
            else:
                found = list(consumer.receive_many(50, timeout=rng.random() * WAIT_SECONDS))
            begin += opening.check("consumer receive", found, begin)
            for message in found:
                ground.read[number].put(
                    Handled(message.sequence, checksum(message.payload), RECEIVED)
                )
            if rng.random() < 0.8:
                consumer.ack(durable=rng.random() < 0.05)
                ground.mark(number, READER_MARK, begin)


def work(opening: Opening, rng: random.Random, limit: int = 20) -> None:
    """Claim for the group; acknowledge most; give back, reject or keep the others.

    Some fail each time.
    """
    ground, number = opening.ground, opening.spec.number
    log = ground.worked[number]
    none = (NothingReceived, TooManyClaims, LeaseLost)
    with (
        opening.doing("group claim", *none),
        contextlib.closing(crew_of(opening.got)) as group,
    ):
        for _ in range(rng.randint(1, limit)):
            for claim in group.claim_many(rng.randint(1, 8), rng.random() * WAIT_SECONDS):
                message = claim.message
                opening.check("group claim", [message])
                log.put(Handled(message.sequence, checksum(message.payload), RECEIVED))
                draw = rng.random()
                if is_poison(message.payload):
                    with contextlib.suppress(ValueError), claim:
                        raise ValueError("poison")
                    ground.note("group poison", number)
                elif draw < 0.8:
                    log.put(Handled(message.sequence, 0, ACKING))
                    claim.ack()
                    log.put(Handled(message.sequence, 0, ACKED))
                elif draw < 0.9:
                    claim.nack(rng.choice((0.0, 0.0, 0.002)))
                    ground.note("group nack", number)
                elif draw < 0.93:
                    log.put(Handled(message.sequence, 0, REJECTING))
                    claim.reject()
                    log.put(Handled(message.sequence, 0, REJECTED))
                    ground.note("group reject", number)


# --- by signals -----------------------------------------------------------------------------------

SIGNAL_ALLOWED: Final = (LockTimeout, ConcurrentUse)
"""Where a handler interrupts what makes a page or flushes in its own thread: see README.md."""


def close_by_handler(opening: Opening, rng: random.Random) -> None:
    """Close the queue, or something that was made from it, inside whatever call of this thread."""
    queue = opening.queue
    if queue is None:
        return
    opening.closing = True
    handles: list[Closing] = list(queue._opened.handles.values())
    with contextlib.suppress(Over), opening.doing("handler closes", *SIGNAL_ALLOWED):
        rng.choice([queue, *handles]).close()


UPKEEP: Final = (flush, rotate, trim, compress, ship, look, verify)
READING: Final = (replay, batches, peek)
