"""What the producers of a campaign send, and the proof that exactly that is there.

Every operation follows from its producer's uid and its number, so that the parent can make it again
and compare byte for byte. What returned is recorded by the producer in its log.
Of each producer at most one operation may be visible without a record: the one in which it died.
"""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stress.publications import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pagequeue import Message, Producer
    from stress.history import Sent

HEADER = struct.Struct("<QIHHII")  # uid, number, place in the batch, its count, bytes, CRC-32
BLOB = random.Random(1).randbytes(1 << 18)
VIOLATIONS_MAX = 5
SMALL_BYTES_MAX = 3950
"""What has fewer bytes fits into one page, however small."""
LARGE_SENT, LARGE_STREAMED, LARGE_IN_BATCH, LARGE_BATCH, DISCARDED = range(5)
LARGE_WAYS = tuple(range(5))


class Op(NamedTuple):
    """One call: payloads to send, at once if there are several; none of them means rotate.

    Attributes:
        payloads: what is sent.
        as_rows: those of one size are sent as an array, without an object for each.
        publishes: whose piece of work it is, if it is published: uid and number.
        streams: each payload is written as a file, in parts.
        discards: bytes that are written as a file and then discarded, so that they are never sent.
    """

    payloads: list[bytes]
    as_rows: bool = False
    publishes: tuple[int, int] | None = None
    streams: bool = False
    discards: bytes = b""

    @property
    def takes_pages(self) -> bool:
        """Whether it can take several pages: a thread sends it, which cannot be stopped at once."""
        return self.streams or sum(map(len, self.payloads)) > SMALL_BYTES_MAX

    def run(self, producer: Producer) -> tuple[int, int]:
        """Do it; return the first sequence and the count."""
        if self.discards:
            file = producer.open()
            try:
                file.write(self.discards)
            finally:
                file.discard()
            return 0, 0
        if not self.payloads:
            producer.rotate()
            return 0, 0
        if self.streams:
            return streamed(producer, self.payloads[0]), 1
        if self.publishes is not None:
            published = publish(producer, *self.publishes, self.payloads)
            return published.start, len(published)
        if len(self.payloads) == 1:
            return producer.send(self.payloads[0]), 1
        batch = np.array(self.payloads, f"V{len(self.payloads[0])}") if self.as_rows else None
        sent = producer.send_many(self.payloads if batch is None else batch)
        return sent.start, len(sent)


def streamed(producer: Producer, payload: bytes) -> int:
    """Send a payload by writing it as a file in three parts; return its sequence."""
    with producer.open() as file:
        part = len(payload) // 3
        for begin, end in ((0, part), (part, 2 * part), (2 * part, len(payload))):
            file.write(payload[begin:end])
    assert file.sequence is not None
    return file.sequence


@dataclass(frozen=True)
class Shape:
    """What producers send: sizes, and how often what; the parts are of 256, of rows of batches.

    What is published is mostly more than one page of 4096 bytes holds. Of the large operations,
    each has about `large_bytes` and does not fit into one page: a message that is sent or written
    as a file, a batch with such a message in it, a batch of small ones, or a file that is
    discarded; `large_ways` are those that it can be.
    """

    payload_bytes_max: int = 8192
    batch_bytes_max: int = 24 << 10
    batch_count_max: int = 12
    batch_parts: int = 64
    rotate_parts: int = 6
    row_parts: int = 0
    publish_parts: int = 0
    publish_count_max: int = 60
    large_parts: int = 0
    large_bytes: int = 0
    large_ways: tuple[int, ...] = LARGE_WAYS

    def op(self, uid: int, number: int) -> Op:
        """Return operation `number` of producer `uid`."""
        seed = hashlib.blake2b(b"%d %d" % (uid, number), digest_size=64).digest()
        kind = seed[0]
        if seed[62] < self.large_parts:
            return self._large(uid, number, seed)
        if kind < self.rotate_parts:
            return Op([])
        if kind >= 256 - self.publish_parts:
            return self._published(uid, number, seed)
        count = 1
        if kind < self.rotate_parts + self.batch_parts:
            count = 2 + seed[1] % (self.batch_count_max - 1)
        limit = min(self.payload_bytes_max, self.batch_bytes_max // count)
        sizes = [self._size(seed, i, limit) for i in range(count)]
        as_rows = count > 1 and seed[63] < self.row_parts
        if count > 1:
            sizes[0] = max(sizes[0], HEADER.size)  # a batch carries its producer's uid
        if as_rows:
            sizes = [max(sizes)] * count
        payloads = [_payload(uid, number, i, count, size) for i, size in enumerate(sizes)]
        return Op(payloads, as_rows)

    def _published(self, uid: int, number: int, seed: bytes) -> Op:
        count = 1 + seed[1] % self.publish_count_max
        sizes = [self._size(seed, i % 12, self.payload_bytes_max) for i in range(count)]
        sizes[0] = max(sizes[0], HEADER.size)
        payloads = [_payload(uid, number, i, count, size) for i, size in enumerate(sizes)]
        return Op(payloads, publishes=(uid, number))

    def _large(self, uid: int, number: int, seed: bytes) -> Op:
        size = HEADER.size + self.large_bytes * (64 + seed[61]) // 192
        limit = min(self.payload_bytes_max, size)
        way = self.large_ways[seed[60] % len(self.large_ways)]
        if way == DISCARDED:
            return Op([], discards=_payload(uid, number, 0, 1, size))
        if way in {LARGE_SENT, LARGE_STREAMED}:
            return Op([_payload(uid, number, 0, 1, size)], streams=way == LARGE_STREAMED)
        sizes = [max(HEADER.size, self._size(seed, i, limit)) for i in range(3)]
        if way == LARGE_IN_BATCH:
            sizes[seed[59] % 3] = size
        else:
            each = max(HEADER.size, limit // 8)
            sizes = [each] * (1 + size // each)
        count = len(sizes)
        return Op([_payload(uid, number, i, count, each) for i, each in enumerate(sizes)])

    def _size(self, seed: bytes, place: int, limit: int) -> int:
        draw = seed[2 + place]
        if draw < 12:
            return 0
        if draw < 224:
            return min(HEADER.size + draw, limit)
        return HEADER.size + (seed[16 + place] << 8 | seed[40 - place]) % (limit - HEADER.size + 1)


def _payload(uid: int, number: int, place: int, count: int, size: int) -> bytes:
    if size == 0:
        return b""
    start = (uid * 7919 + number * 31 + place) % max(1, len(BLOB) - size)
    body = BLOB[start : start + size - HEADER.size]
    while len(body) < size - HEADER.size:
        body += BLOB[: size - HEADER.size - len(body)]
    head = HEADER.pack(uid, number, place, count, size, 0)[:-4]
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") + body


def sound(payload: bytes) -> int | None:
    """Return the payload's producer; None if it is not whole. Empty ones have no producer."""
    if len(payload) < HEADER.size:
        return None
    uid, _, _, _, size, checksum = HEADER.unpack_from(payload)
    body = payload[HEADER.size :]
    if size != len(payload) or zlib.crc32(body, zlib.crc32(payload[: HEADER.size - 4])) != checksum:
        return None
    return int(uid)


def chained(digest: int, message: Message) -> int:
    """Return the digest of a stream extended by this message."""
    head = struct.pack("<Qq", message.sequence, message.timestamp)
    return zlib.crc32(message.payload, zlib.crc32(head, digest))


@dataclass
class Proof:
    """Compares a replay with what was acknowledged.

    Attributes:
        op: makes an operation again, by uid and number.
        uids: of all producers there were.
        records: of all operations that returned.
        violations: one sentence for each.
        digests: by sequence, the digest of all messages before it; given for those that were
            proved before and are left out now.
        end: where a power cut may have removed messages; None: no message may be missing.
        unacknowledged: operations that are there though their producer died in them.
    """

    op: Callable[[int, int], Op]
    uids: list[int]
    records: list[Sent]
    violations: list[str] = field(default_factory=list)
    digests: list[int] = field(default_factory=lambda: [0])
    end: int | None = None
    unacknowledged: int = 0

    def __post_init__(self) -> None:
        self._first = {record[3]: record for record in self.records if record[2]}
        self._next = dict.fromkeys(self.uids, 0)
        for uid, number, *_ in self.records:
            self._next[uid] = max(self._next[uid], number + 1)
        self._died_in: set[int] = set()
        self._last_timestamp = 0

    def wrong(self, sentence: str) -> None:
        """Record a violation."""
        self.violations.append(sentence)

    def run(self, messages: Iterable[Message]) -> None:
        """Walk the queue, from the first message whose digest is not known on."""
        stream = self._counted(messages)
        for message in stream:
            payloads = self._op_at(message)
            if payloads is None:
                return
            for place, payload in enumerate(payloads):
                found = message if place == 0 else next(stream, None)
                if found is None:
                    self.wrong(f"the batch at {message.sequence} ends after {place} messages")
                    return
                if found.payload != payload:
                    self.wrong(f"message {found.sequence} is not what was sent: {_words(found)}")
                    return
        for sequence, record in self._first.items():
            if self.end is None or sequence < self.end:
                self.wrong(f"acknowledged, and not there: {sequence}, operation {record[:3]}")

    def _counted(self, messages: Iterable[Message]) -> Iterator[Message]:
        for expected, message in enumerate(messages, len(self.digests) - 1):
            if message.sequence != expected:
                self.wrong(f"sequence {message.sequence} is where {expected} should be")
                return
            if message.timestamp < self._last_timestamp:
                self.wrong(f"message {expected} is older than the one before it")
            self._last_timestamp = message.timestamp
            self.digests.append(chained(self.digests[-1], message))
            yield message

    def _op_at(self, message: Message) -> list[bytes] | None:
        """Return the operation that begins here: acknowledged, or the last of a dead process."""
        record = self._first.pop(message.sequence, None)
        if record is not None:
            return self.op(record[0], record[1]).payloads
        self.unacknowledged += 1
        if message.payload:
            uid, number = HEADER.unpack_from(message.payload.ljust(HEADER.size, b"\0"))[:2]
        else:
            uid, number = self._who_died_in_empty(), -1
        if uid not in self._next or uid in self._died_in:
            self.wrong(
                f"message {message.sequence} is of no producer, or there twice: {_words(message)}"
            )
            return None
        if number not in {-1, self._next[uid]}:
            self.wrong(
                f"message {message.sequence} is operation {number} of {uid}, which is past "
                f"or was never reached: {self._next[uid]} was next"
            )
            return None
        self._died_in.add(uid)
        return self.op(uid, self._next[uid]).payloads

    def _who_died_in_empty(self) -> int:
        for uid, number in self._next.items():
            if uid not in self._died_in and self.op(uid, number).payloads == [b""]:
                return uid
        return -1


def _words(message: Message) -> str:
    if len(message.payload) < HEADER.size:
        return f"{len(message.payload)} bytes"
    return f"{len(message.payload)} bytes, header {HEADER.unpack_from(message.payload)}"
