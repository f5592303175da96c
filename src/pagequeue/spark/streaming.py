"""The streaming read: an offset is a sequence and a queue's id, for each queue, by its name.

Checkpoints that were written before offsets had ids have sequences alone; they get the ids of the
queues that are there when the query continues. A queue that was removed and made again is another
one: its messages have the same sequences, so a query would go on in the middle of it. So would it
in one that was restored to an earlier state, which has its id: an offset also has the time of the
message before it, which is later if that message was sent again.
A queue that appears later joins at its head: first its offset alone, in a micro-batch without its
rows, so that every row lies between two offsets that a checkpoint holds, and a restart reads
exactly the same. With a consumer's name progress is acknowledged, and retention waits for it; only
that handle writes to the queue. The native reader's streams have their offsets from here, too, so a
checkpoint of one reader is one of the other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pagequeue import errors
from pagequeue.meta.all_meta import another_queue
from pagequeue.queue.queue import Queue, internals, opened_again
from pagequeue.spark.error_text import noted
from pagequeue.spark.path_glob import Found, end_of, find, id_of, open_each
from pagequeue.spark.planning import Part, plan_ranges
from pagequeue.spark.reading import read_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import InputPartition

    from pagequeue.receive.consumer import Consumer
    from pagequeue.spark.columns import Table
    from pagequeue.spark.options import ReadOptions
    from pagequeue.store.store import Store

Offsets = dict[str, Any]
"""As Spark keeps them, in JSON: of each queue `{"sequence": 13, "id": "...", "time": ...}`, or 13
alone."""
NEW_CHECKPOINT = (
    "begin with a new checkpoint; or, where others match the same glob, move this queue to another "
    "path, where it joins the stream from its head"
)


class Mark(NamedTuple):
    """Where a query is in one queue.

    Attributes:
        sequence: of the next message.
        queue_id: in hexadecimal; empty: the checkpoint does not tell it.
        time: of the message before it, ns since 1970; 0: it was there before the query, or it is
            not known.
    """

    sequence: int
    queue_id: str
    time: int = 0


Marks = dict[str, Mark]


def marks_of(offsets: Offsets) -> Marks:
    """Return what offsets mean.

    Raises:
        InvalidOption: they are not offsets of this source.
    """
    return {name: _mark_of(name, offset) for name, offset in offsets.items()}


def _mark_of(name: str, offset: object) -> Mark:
    if type(offset) is int:
        return Mark(offset, "")
    if isinstance(offset, dict):
        sequence, queue_id = offset.get("sequence"), offset.get("id", "")
        last = offset.get("time", 0)
        if type(sequence) is int and isinstance(queue_id, str) and type(last) is int:
            return Mark(sequence, queue_id, last)
    raise errors.InvalidOption(
        f"the checkpoint has the offset {offset!r}, which is none of this source",
        path=name,
        remedy="begin with a new checkpoint",
    )


def offsets_of(marks: Marks) -> Offsets:
    """Return marks as Spark keeps them."""
    return {name: _offset_of(mark) for name, mark in marks.items()}


def _offset_of(mark: Mark) -> object:
    if not mark.queue_id:
        return mark.sequence
    offset = {"sequence": mark.sequence, "id": mark.queue_id}
    return {**offset, "time": mark.time} if mark.time else offset


def _moved(mark: Mark, queue: Queue, sequence: int) -> Mark:
    """Return the mark of a queue that a query has moved to a sequence."""
    if sequence == mark.sequence:  # else Spark would take it for a change
        return mark._replace(queue_id=id_of(queue))
    return Mark(sequence, id_of(queue), time_before(queue, sequence))


def time_before(queue: Queue, sequence: int) -> int:
    """Return the time of the last message before a sequence; 0: it cannot be told."""
    if not queue.head_sequence < sequence <= queue.tail_sequence:
        return 0
    try:
        return next(queue.replay(sequence=sequence - 1)).timestamp
    except errors.PageQueueError:  # retention took it, or it is damaged: reading will say so
        return 0


class StreamOffsets:
    """Where the micro-batches of one query begin and end; lives in the driver.

    Args:
        options: which queues, and how.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: Marks | None = None  # of a query that ends
        self._kept: dict[str, tuple[Queue, Consumer]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Executors get no open handle."""
        return {**self.__dict__, "_kept": {}}

    @noted()
    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's
        """Return where a query begins that has no checkpoint."""
        each = open_each(self._options)
        marks = {found.name: Mark(self._start(queue), found.queue_id) for found, queue in each}
        self._keep(marks)
        return offsets_of(marks)

    def _start(self, queue: Queue) -> int:
        starting = self._options.starting
        if starting == "latest":
            return end_of(queue, self._options)
        if isinstance(starting, int):
            return internals(queue).store.seek_since(starting).sequence
        return queue.head_sequence

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Store the end of a query with the trigger AvailableNow."""
        self._target = marks_of(self.reportLatestOffset())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return the limit of a micro-batch that the options set."""
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @noted()
    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - Spark's
        """Return where all queues end, as of now."""
        options = self._options
        each = open_each(options)
        ends = {found.name: Mark(end_of(queue, options), found.queue_id) for found, queue in each}
        return offsets_of(ends)

    @noted()
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's
        """Return where the next micro-batch ends."""
        begin = marks_of(start)
        end = dict(begin)
        there: Marks = {}
        ready: list[tuple[Found, int, int]] = []
        for found, queue in open_each(self._options):
            stop = end_of(queue, self._options)
            name, head = found.name, queue.head_sequence
            if self._target is not None:
                stop = min(stop, self._target[name].sequence if name in self._target else 0)
            if name not in begin:
                if self._target is None or name in self._target:
                    end[name] = there[name] = Mark(head, found.queue_id)
                continue
            self._check(found, begin[name], queue)
            first = max(begin[name].sequence, head)
            there[name] = Mark(first, found.queue_id)
            if first < stop:
                ready.append((found, first, stop))
            # Else retention took all of it, and that is to be skipped.
            end[name] = _moved(begin[name], queue, max(begin[name].sequence, stop))
        self._keep(there)
        self.commit(start)  # what comes before it is done: else Spark would not have come here
        if not isinstance(limit, ReadAllAvailable):
            stops = self._admitted(ready)
            for found, _, stop in ready:
                if stops[found.name] < stop:
                    with found.open() as queue:
                        end[found.name] = _moved(begin[found.name], queue, stops[found.name])
        return offsets_of(end)

    def _check(self, found: Found, mark: Mark, queue: Queue) -> None:
        """Raise if reading is unable to continue at the offset."""
        sequence, tail, head = mark.sequence, queue.tail_sequence, queue.head_sequence
        if mark.queue_id not in {"", found.queue_id}:
            raise another_queue(
                found.directory,
                f"the checkpoint, at message {sequence},",
                mark.queue_id,
                found.queue_id,
                NEW_CHECKPOINT,
            )
        if sequence > tail:
            raise errors.SequenceOutOfRange(
                f"the checkpoint is at message {sequence}, the queue ends at {tail}: it is another "
                "queue, or an older copy; begin with a new checkpoint",
                path=found.directory,
                head_sequence=head,
                tail_sequence=tail,
            )
        if mark.time and time_before(queue, sequence) > mark.time:
            raise errors.SequenceOutOfRange(
                f"message {sequence - 1}, the last one before the checkpoint, was sent again since "
                "then: the queue was restored to an earlier state; begin with a new checkpoint",
                path=found.directory,
                head_sequence=head,
                tail_sequence=tail,
            )
        if sequence < head and not self._options.skips_expired:
            raise errors.Expired(
                f"retention removed messages {sequence} to {head - 1} before this query read them",
                path=found.directory,
                head_sequence=head,
                remedy="give the option consumer, so that retention waits, or onExpired=skip to "
                "continue",
            )

    def _admitted(self, ready: list[tuple[Found, int, int]]) -> dict[str, int]:
        """Share what a micro-batch may have among the queues, the shortest first."""
        rows, room = self._options.records_max, self._options.bytes_max
        ends: dict[str, int] = {}
        waiting = sorted(ready, key=lambda item: item[2] - item[1])
        while waiting:
            found, first, end = waiting.pop(0)
            count = end - first
            if rows is not None:
                count = min(count, -(-rows // (len(waiting) + 1)))
            if room is not None:
                share = -(-room // (len(waiting) + 1))
                count, used = _fitting(found, first, first + count, share)
                room = max(0, room - used)
            if rows is not None:
                rows -= min(rows, count)
            ends[found.name] = first + count
        if all(ends[found.name] == first for found, first, _ in ready) and ready:
            found, first, _ = ready[0]
            ends[found.name] = first + 1  # one message that is larger than all of the room
        return ends

    def ranges(self, start: Offsets, end: Offsets) -> list[tuple[Found, int, int]]:
        """Return the sequences of each queue that a micro-batch reads.

        Raises:
            QueueNotFound: one of the queues is gone.
        """
        there = {found.name: found for found in find(self._options)}
        begin = marks_of(start)
        ranges = []
        for name, stop in marks_of(end).items():
            first = begin.get(name, stop)
            if first.sequence < stop.sequence:
                if name not in there:
                    raise errors.QueueNotFound(
                        f"messages {first.sequence} to {stop.sequence - 1} of this queue are to be "
                        "read, and it is gone: put it back, or begin with a new checkpoint",
                        path=name,
                    )
                found = there[name]._replace(queue_id=stop.queue_id or first.queue_id)
                if not found.queue_id:  # all of the plan is about the one that is there now
                    with found.open() as queue:
                        found = found.known(queue)
                ranges.append((found, first.sequence, stop.sequence))
        return ranges

    # --- acknowledging ----------------------------------------------------------------------------

    def _keep(self, marks: Marks) -> None:
        """Open the named consumers, so that retention waits from the beginning on."""
        name = self._options.consumer
        if name is None:
            return
        for found in find(self._options):
            if found.name in marks and found.name not in self._kept:
                mark = marks[found.name]
                queue = self._writable(found, mark.queue_id)
                try:
                    self._kept[found.name] = (queue, _consumer(queue, name, mark.sequence))
                except BaseException:
                    queue.close()
                    raise

    def _writable(self, found: Found, queue_id: str) -> Queue:
        """Open a queue to acknowledge in it; it was open before, to read."""
        opened = partial(Queue, found.directory, prefix=found.prefix, trust=found.trust)
        return opened_again(opened, bytes.fromhex(queue_id), "the checkpoint", NEW_CHECKPOINT)

    def commit(self, end: Offsets) -> None:
        """Acknowledge what is done with."""
        marks = marks_of(end)
        for name, (_, consumer) in self._kept.items():
            if name in marks and marks[name].sequence > consumer.acknowledged:  # type: ignore[attr-defined]
                consumer.seek(sequence=marks[name].sequence)

    def stop(self) -> None:
        """Close the consumers; their positions stay."""
        while self._kept:
            _, (queue, _) = self._kept.popitem()
            queue.close()


class StreamReader(StreamOffsets, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues as they grow, for Spark's Python data source.

    Args:
        options: which queues, and how.
        table: the columns that are wanted.
    """

    def __init__(self, options: ReadOptions, table: Table) -> None:
        super().__init__(options)
        self._table = table

    @noted()
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return what each task of a micro-batch reads."""
        ranges = self.ranges(start, end)
        return plan_ranges(ranges, self._options, self._table) if ranges else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Give the record batches of one partition."""
        assert isinstance(partition, Part)
        return read_part(partition, self._table, self._options)


def _consumer(queue: Queue, name: str, sequence: int) -> Consumer:
    """Open a named consumer; a new one starts at `sequence`."""
    names = [info.name for info in queue.consumers()]
    return queue.consumer(name, on_expired="skip", sequence=None if name in names else sequence)


def _fitting(found: Found, first: int, end: int, room_bytes: int) -> tuple[int, int]:
    """Return how many messages from one on fit into so many bytes, and how many they take.

    By the positions of frames, so headers count, and no payload is touched.
    """
    with found.open() as queue:
        store = internals(queue).store
        low, high = first, end
        begin = _bytes_before(store, first)
        while low < high:
            middle = (low + high + 1) // 2
            if _bytes_before(store, middle) - begin <= room_bytes:
                low = middle
            else:
                high = middle - 1
        return low - first, _bytes_before(store, low) - begin


def _bytes_before(store: Store, sequence: int) -> int:
    """Return the bytes of the queue's pages before a message."""
    place = store.seek_sequence(sequence)
    return place.page.number * store.meta.page_bytes + place.position
