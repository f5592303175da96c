"""Every error of the package: one base, branches by what the caller does next.

| branch | what to do |
| --- | --- |
| `RetryError` | wait, make room, or raise the limit; then call again |
| `SeekError` | move the consumer; the queue is intact |
| `DamageError` | verify, then repair or salvage; the undamaged part stays readable |
| `UpgradeError` | use a version that knows the format |
| `AccessError` | correct the path, the owner or the permissions |
| `UsageError` | correct the calling code |

An argument of a wrong type is `InvalidType`, which is a `TypeError` too. An invalid value is
`InvalidOption`, a `ValueError` too, or an error of its own such as `MessageTooLarge`; a sequence
that the queue does not have is `SequenceOutOfRange`. The message names the argument, and the call
had no effect. Only what Python itself checks, such as a keyword that a call does not have, is a
plain `TypeError`.

An error with a builtin counterpart inherits from that too. Each carries its numbers as attributes,
and its message ends with the remedy, which is also an attribute: a program with a remedy of its
own, such as the command line, shows `problem` and that remedy.

Example:
    >>> try:
    ...     producer.send(item)
    ... except RetryError as error:
    ...     print(error.path, error.problem, error.remedy)
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple


def _rebuild(cls: type[PageQueueError], text: str, state: dict[str, Any]) -> PageQueueError:
    """Make an error again from its pickled parts, without running its own constructor."""
    error = cls.__new__(cls)
    Exception.__init__(error, text)
    for name, value in state.items():
        setattr(error, name, value)
    return error


class PageQueueError(Exception):
    """Base of all errors of this package.

    Args:
        text: the problem.
        path: the file or directory that it is about.
        remedy: what the caller can do; the message ends with it, after a colon.
        numbers: attributes that the class documents.

    Attributes:
        path: the file or directory that it is about, or None.
        remedy: what the caller can do, or None where the message has no separate remedy.

    Example:
        >>> try:
        ...     Queue("nowhere", create=False)
        ... except PageQueueError as error:
        ...     print(error.remedy)
        check the path, or create the queue by opening it for writing
    """

    path: str | None = None
    remedy: str | None = None

    def __init__(
        self, text: str, *, path: str | None = None, remedy: str | None = None, **numbers: object
    ) -> None:
        parts = (path, text, remedy)
        super().__init__(": ".join(part for part in parts if part is not None))
        self.path = path
        self.remedy = remedy
        self.__dict__.update(numbers)

    @property
    def problem(self) -> str:
        """The message without its remedy.

        Example:
            >>> error = PageQueueError("the disk is slow", path="events", remedy="be patient")
            >>> str(error), error.problem
            ('events: the disk is slow: be patient', 'events: the disk is slow')
        """
        return str(self) if self.remedy is None else str(self).removesuffix(f": {self.remedy}")

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if isinstance(self, OSError):  # these three are not in __dict__
            state.update(errno=self.errno, strerror=self.strerror, filename=self.filename)
        return _rebuild, (type(self), str(self), state)


# --- wait, then call again ------------------------------------------------------------------------


class RetryError(PageQueueError):
    """The call had no effect and the queue is intact: the same call can succeed later.

    Example:
        >>> try:
        ...     message = queue.consumer(latest=True).receive(timeout=0)
        ... except RetryError as error:
        ...     print("later:", type(error).__name__)
        later: NothingReceived
    """


class NothingReceived(RetryError, TimeoutError):
    """No message came in time; the consumer has not moved.

    Example:
        >>> try:
        ...     message = queue.consumer(latest=True).receive(timeout=0)
        ... except NothingReceived:
        ...     print("no message yet")
        no message yet
    """


class TooManyClaims(NothingReceived):
    """So many messages are claimed or delayed as the group's `capacity` allows: acknowledge some.

    Example:
        >>> try:
        ...     claims = group.claim_many(3)
        ... except TooManyClaims as error:
        ...     print(error.remedy)
    """


class LockTimeout(RetryError, TimeoutError):
    """Another thread or process held a lock for too long; it may be a stopped process.

    Example:
        >>> try:
        ...     sequence = producer.send(b"six")
        ... except LockTimeout as error:
        ...     print(error.remedy)
    """


class ConsumerInUse(RetryError):
    """Another thread or process has the named consumer open, until it closes it or exits.

    Example:
        >>> with queue.consumer("billing"):
        ...     try:
        ...         queue.consumer("billing")
        ...     except ConsumerInUse:
        ...         print("one at a time")
        one at a time
    """


class NotDurable(RetryError):
    """Messages were sent and are visible, but could not be put on stable storage now.

    Call `flush` again; sending them again would duplicate them.

    Example:
        >>> sequence = producer.send(b"six")
        >>> try:
        ...     durable = producer.flush()
        ... except NotDurable:
        ...     durable = producer.flush()  # the message is in the queue: do not send it again
    """


class FlushTimeout(NotDurable, TimeoutError):
    """Another process was flushing for too long.

    Example:
        >>> try:
        ...     durable = producer.flush()
        ... except FlushTimeout as error:
        ...     print(error.remedy)
    """


class Overtaken(RetryError):
    """Another sequence is next than the one that `at` gave, so nothing was sent.

    Mostly another producer sent first: receive what it sent, decide again, and send at
    `tail_sequence`.

    Example:
        >>> try:
        ...     producer.send(b"six", at=3)
        ... except Overtaken as error:
        ...     print(error.tail_sequence)
        5

    Attributes:
        tail_sequence: the sequence that the next message gets, as of that comparison.
    """

    tail_sequence: int


class QueueFull(RetryError):
    """The queue has reached `max_bytes`, or others took each page first; no message was sent.

    Example:
        >>> with Queue("small", page_bytes=4096, retention=Retention(max_bytes=8192)) as small:
        ...     small.consumer("slow").close()
        ...     with small.producer() as producer:
        ...         try:
        ...             while True:
        ...                 sequence = producer.send(bytes(1000))
        ...         except QueueFull as error:
        ...             print(error.held_by)
        ('slow',)

    Attributes:
        held_by: names of the consumers that have not acknowledged the oldest messages.
    """

    held_by: tuple[str, ...] = ()


class DiskFull(QueueFull, OSError):
    """The file system, a quota or a file size limit leaves no room for the next page.

    Example:
        >>> try:
        ...     sequence = producer.send(b"six")
        ... except DiskFull as error:
        ...     print(error.path, error.errno)
    """


class SystemLimit(RetryError, OSError):
    """The system refused a descriptor, memory or an operation; `errno` is its error number.

    Example:
        >>> try:
        ...     consumer = queue.consumer("billing")
        ... except SystemLimit as error:
        ...     print(os.strerror(error.errno))
    """


class UpdateTimeout(RetryError, TimeoutError):
    """Other handles of a journal appended first for as long as the timeout; nothing was written.

    Example:
        >>> from pagequeue.tasks import TaskStore
        >>> with TaskStore("tasks") as store:
        ...     try:
        ...         task = store.insert("mail", "hello")
        ...     except UpdateTimeout as error:
        ...         print(error.remedy)
    """


class LeaseLost(RetryError):
    """A claim is no longer live: its lease expired, or its message was given to another worker.

    The call had no effect. Claim again: the message is redelivered, unless the other worker
    acknowledged it.

    Example:
        >>> claim = group.claim(timeout=0)
        >>> try:
        ...     claim.ack()
        ... except LeaseLost as error:
        ...     print(error.sequence, "was given to another worker")

    Attributes:
        sequence: of the claimed message.
    """

    sequence: int


class Conflict(NamedTuple):
    """A task that is not as a transaction expected it.

    Example:
        >>> Conflict(id=7, version=2, actual_version=3).actual_version
        3

    Attributes:
        id: of the task.
        version: that the transaction named; None: it wanted to insert a task with `key`.
        actual_version: the current one; None: the task is not in the store any more.
        key: that is in use, else None.
    """

    id: int
    version: int | None
    actual_version: int | None
    key: str | None = None


class Stale(RetryError):
    """A task of a transaction has another version, or a key is in use; nothing was written.

    Another transaction changed or removed the task since it was read. Read the tasks again and
    decide anew. If it was this worker's claim, its lease ended and another worker has the task.

    Example:
        >>> from pagequeue.tasks import TaskStore
        >>> with TaskStore("tasks") as store:
        ...     ref = store.insert("mail", "hello").ref
        ...     deleted = store.modify(delete=[ref])
        ...     try:
        ...         store.modify(delete=[ref])
        ...     except Stale as error:
        ...         print(error.conflicts[0].actual_version)
        None

    Attributes:
        conflicts: each task that is not as the transaction expected it.
    """

    conflicts: tuple[Conflict, ...] = ()


# --- move the consumer ----------------------------------------------------------------------------


class SeekError(PageQueueError):
    """The requested place is not readable.

    Example:
        >>> try:
        ...     consumer.seek(sequence=99)
        ... except SeekError as error:
        ...     print(type(error).__name__)
        SequenceOutOfRange
    """


class Expired(SeekError):
    """Retention removed the requested place.

    Example:
        >>> try:
        ...     message = consumer.receive(timeout=0)
        ... except Expired as error:
        ...     consumer.seek(sequence=error.head_sequence)

    Attributes:
        head_sequence: the first sequence that can still be read.
        seek_sequence: where to continue, if seeking is the remedy; else None.
    """

    head_sequence: int
    seek_sequence: int | None = None


class SequenceOutOfRange(SeekError, ValueError):
    """No message has this sequence, and it is not the next one either.

    Example:
        >>> try:
        ...     consumer.seek(sequence=99)
        ... except SequenceOutOfRange as error:
        ...     print(error.head_sequence, error.tail_sequence)
        0 5

    Attributes:
        head_sequence: the first readable sequence.
        tail_sequence: the next sequence to be written.
    """

    head_sequence: int
    tail_sequence: int


# --- verify, repair, salvage ----------------------------------------------------------------------


class DamageError(PageQueueError):
    """Bytes are not what was written.

    Example:
        >>> with Queue("events", read_only=True) as queue:
        ...     try:
        ...         payloads = [message.payload for message in queue.replay()]
        ...     except DamageError as error:
        ...         print(error.path.endswith(".page"), error.position, error.reason)
        True 112 its checksum is wrong

    Attributes:
        position: the place in the file, in bytes.
        reason: what is wrong there.
    """

    position: int
    reason: str


class CorruptFrame(DamageError):
    """A published frame fails its checksum or has an invalid length.

    Example:
        >>> with Queue("events", read_only=True) as queue:
        ...     try:
        ...         payloads = [message.payload for message in queue.replay()]
        ...     except CorruptFrame as error:
        ...         print(error.sequence)
        2

    Attributes:
        sequence: of the message that should be there.
    """

    sequence: int


class CorruptPage(DamageError):
    """A page's header or size is wrong, or it was truncated while it was open.

    Example:
        >>> try:
        ...     message = consumer.receive(timeout=0)
        ... except CorruptPage as error:
        ...     print(error.path, error.position, error.reason)

    Attributes:
        sequence: of the message whose read detected this; None: it was not a read.
    """

    sequence: int | None = None


class CorruptMeta(DamageError):
    """A meta file is wrong, or it was truncated while it was open.

    Example:
        >>> with open("events/queue-allMeta", "wb"):
        ...     pass  # now it is empty
        >>> try:
        ...     Queue("events")
        ... except CorruptMeta as error:
        ...     print(error.remedy)
        repair the queue, or restore the file from a copy
    """


class MissingPage(DamageError):
    """The file of a page is missing.

    Example:
        >>> os.unlink("events/queue-0000000001.page")
        >>> try:
        ...     Queue("events", read_only=True).last(1)
        ... except MissingPage as error:
        ...     print(error.reason)
        missing page
    """


class CorruptSnapshot(DamageError):
    """A journal's snapshot is not the state after the entries before it, or none can be read.

    Example:
        >>> from pagequeue.tasks import TaskStore
        >>> try:
        ...     TaskStore("tasks").close()
        ... except CorruptSnapshot as error:
        ...     print(error.sequence, error.reason)

    Attributes:
        sequence: of the first entry that the snapshot does not include.
    """

    sequence: int


class SyncFailed(DamageError, OSError):
    """A sync failed, so what was written since the durable mark may never reach the disk.

    The queue is latched: no process can write to it any more, all can still read. The messages at
    risk are still in memory: `repair` writes them again, if it runs before a power cut.

    Example:
        >>> try:
        ...     durable = producer.flush()
        ... except SyncFailed as error:
        ...     print(error.first_sequence, error.end_sequence)

    Attributes:
        first_sequence: the first message that may be lost.
        end_sequence: one past the last one.
    """

    first_sequence: int
    end_sequence: int


# --- upgrade --------------------------------------------------------------------------------------


class UpgradeError(PageQueueError):
    """This version or build cannot handle these files.

    Example:
        >>> try:
        ...     Queue("events").close()
        ... except UpgradeError as error:
        ...     print(error.remedy)
    """


class NewerFormat(UpgradeError):
    """A file was written by a newer version.

    Example:
        >>> try:
        ...     Queue("events").close()
        ... except NewerFormat as error:
        ...     print(error.version)

    Attributes:
        version: the file's format version.
    """

    version: int


class MissingExtra(UpgradeError, ImportError):
    """An optional package that this feature needs is not installed.

    Example:
        >>> try:
        ...     table = queue.last(2).to_arrow()
        ... except MissingExtra as error:
        ...     print("pip install pagequeue[%s]" % error.extra)

    Attributes:
        extra: the extra of pagequeue that installs it.
    """

    extra: str


class WrongJava(MissingExtra):
    """Java is missing, too old for Spark, or lacks a module.

    Example:
        >>> error = WrongJava("Java 11 is too old", extra="spark", version=11)
        >>> error.version
        11

    Attributes:
        version: of the Java that was found; None: none that runs was found.
    """

    version: int | None


class ForeignLock(UpgradeError):
    """The queue is open in a process whose C library lays out locks differently.

    Example:
        >>> try:
        ...     Queue("events").close()
        ... except ForeignLock as error:
        ...     print(error.remedy)
    """


# --- correct the path -----------------------------------------------------------------------------


class AccessError(PageQueueError):
    """The directory, or a file in it, is missing, unsafe or inaccessible.

    Example:
        >>> try:
        ...     Queue("nowhere", create=False)
        ... except AccessError as error:
        ...     print(type(error).__name__)
        QueueNotFound
    """


class QueueNotFound(AccessError, FileNotFoundError):
    """The directory holds no queue of this prefix.

    Example:
        >>> try:
        ...     Queue("events", prefix="audit", create=False)
        ... except QueueNotFound as error:
        ...     print(error.prefix)
        audit

    Attributes:
        prefix: of the queue, if the directory exists and has no queue with this prefix; else None.
    """

    prefix: str | None = None


class NotADirectory(AccessError, NotADirectoryError):
    """The path is not a directory.

    Example:
        >>> open("file", "w").close()
        >>> try:
        ...     Queue("file")
        ... except NotADirectory as error:
        ...     print(os.path.basename(error.path))
        file
    """


class UnsafePath(AccessError):
    """Others could change the directory, its file system or a file in it, or it is not a file.

    Example:
        >>> os.mkdir("shared")
        >>> os.chmod("shared", 0o777)
        >>> try:
        ...     Queue("shared")
        ... except UnsafePath as error:
        ...     print(error.trust)
        world_writable

    Attributes:
        trust: the name in the option `trust` that accepts it; None: no name does.
    """

    trust: str | None = None


class QueueReplaced(UnsafePath):
    """The path leads to another queue, or to none, than what is open or a place was kept of.

    The directory was moved or removed, another one was put in its place, or the queue was removed
    and created again. Nothing is read from the other queue, and nothing written to it.

    Example:
        >>> os.rename("events", "events.old")
        >>> try:
        ...     message = queue.consumer(latest=True).receive()
        ... except QueueReplaced as error:
        ...     print(error.found_id)
        None

    Attributes:
        queue_id: of the queue that is open, or was meant, in hexadecimal; None: it is not known.
        found_id: of the queue to which the path leads now; None: there is none, or it is not known.
    """

    queue_id: str | None = None
    found_id: str | None = None


class LockReplaced(QueueReplaced):
    """A file of the queue was replaced or removed while it was open.

    If it is the lock file or the write meta, this process stops writing: another process may have
    opened the queue exclusively meanwhile. If it is the file of a consumer or a group, its handle
    is closed: other processes may have another file of that name.

    Example:
        >>> try:
        ...     sequence = producer.send(b"six")
        ... except LockReplaced:
        ...     queue.close()  # and find out who replaced it, before it is opened again
    """


class AccessDenied(AccessError, PermissionError):
    """The permissions of the directory or of a file do not allow this.

    Example:
        >>> try:
        ...     Queue("events").close()
        ... except AccessDenied as error:
        ...     print(error.path)
    """


# --- correct the calling code ---------------------------------------------------------------------


class UsageError(PageQueueError):
    """The call is wrong, whatever the state of the queue.

    Example:
        >>> try:
        ...     Queue("events", page_bytes=1000)
        ... except UsageError as error:
        ...     print(type(error).__name__)
        InvalidOption
    """


class ClosedError(UsageError, ValueError):
    """The handle was closed.

    Example:
        >>> queue.close()
        >>> try:
        ...     queue.producer()
        ... except ClosedError:
        ...     print("closed")
        closed
    """


class ForkedError(UsageError, RuntimeError):
    """The handle was inherited through fork; the child must open the queue itself.

    Example:
        >>> if os.fork() == 0:
        ...     try:
        ...         producer.send(b"six")
        ...     except ForkedError:
        ...         os._exit(7)
        ...     os._exit(0)
        >>> os.waitstatus_to_exitcode(os.wait()[1])
        7
    """


class ConcurrentUse(UsageError, RuntimeError):
    """Two threads used one consumer at the same time.

    Example:
        >>> try:
        ...     message = consumer.receive(timeout=0)
        ... except ConcurrentUse as error:
        ...     print(error.remedy)
    """


class ReadOnlyQueue(UsageError, PermissionError):
    """The queue was opened with `read_only=True`.

    Example:
        >>> with Queue("events", read_only=True) as readable:
        ...     try:
        ...         readable.producer()
        ...     except ReadOnlyQueue as error:
        ...         print(error.remedy)
        open it for writing to send
    """


class InvalidOption(UsageError, ValueError):
    """An argument has an invalid value: NaN, below 0, an empty name; the message names it.

    Example:
        >>> try:
        ...     Queue("events", page_bytes=1000)
        ... except InvalidOption as error:
        ...     print(error.remedy)
        give a multiple of 4096 from 4096 to 1073741824
    """


class InvalidType(UsageError, TypeError):
    """An argument has a wrong type; the message names it.

    Example:
        >>> try:
        ...     queue.last("two")
        ... except InvalidType as error:
        ...     print(error.problem)
        count must be an int, not str
    """


class JournalOnly(UsageError):
    """Only a journal may append to this queue and remove from it: its entries are its state.

    Example:
        >>> from pagequeue.tasks import TaskStore
        >>> with TaskStore("tasks") as store:
        ...     try:
        ...         store.journal.queue.producer().send(b"not an entry")
        ...     except JournalOnly as error:
        ...         print(error.remedy)
        open it with pagequeue.journal.Journal and call update, or send to another queue
    """


class PoisonEntry(UsageError):
    """A journal's machine raised while it applied an entry; the state is that before the entry.

    The entry stays in the log, so every process stops there until its machine accepts the entry.

    Example:
        >>> from pagequeue.tasks import TaskStore
        >>> with TaskStore("tasks") as store:
        ...     try:
        ...         tasks = store.tasks()
        ...     except PoisonEntry as error:
        ...         print(error.sequence)

    Attributes:
        sequence: of the entry.
    """

    sequence: int


class ConsumerNotFound(UsageError, LookupError):
    """No consumer has this name.

    Example:
        >>> try:
        ...     queue.remove_consumer("nobody")
        ... except ConsumerNotFound as error:
        ...     print(error.remedy)
        queue.consumers() lists them
    """


class NotAJournal(InvalidOption):
    """The queue exists and is not a journal's.

    Example:
        >>> from pagequeue.tasks import TaskStore
        >>> try:
        ...     TaskStore("events")
        ... except NotAJournal as error:
        ...     print(error.remedy)
        choose another directory or prefix for the journal
    """


class PageSizeMismatch(InvalidOption):
    """The queue exists with another page size.

    Example:
        >>> try:
        ...     Queue("events", page_bytes=4096)
        ... except PageSizeMismatch as error:
        ...     print(error.page_bytes)
        65536

    Attributes:
        page_bytes: of the queue.
    """

    page_bytes: int


class DtypeMismatch(InvalidOption):
    """The queue has records of another dtype, or no records.

    Example:
        >>> try:
        ...     Queue("events", dtype=[("value", "<i8")])
        ... except DtypeMismatch as error:
        ...     print(error.dtype)
        None

    Attributes:
        dtype: of the queue; None: messages of any size.
    """

    dtype: Any = None


class CodecMismatch(InvalidOption):
    """The queue has another codec.

    Example:
        >>> try:
        ...     Queue("events", codec="json")
        ... except CodecMismatch as error:
        ...     print(error.codec)
        bytes

    Attributes:
        codec: of the queue, by name.
    """

    codec: str


class MessageTooLarge(UsageError, ValueError):
    """Messages can never be in this queue together, or a copy of them for Arrow is too large.

    `max_bytes` does not allow them, or one exceeds 2**40 bytes.

    Example:
        >>> with Queue("small", page_bytes=4096, retention=Retention(max_bytes=8192)) as small:
        ...     try:
        ...         small.producer().send(bytes(10_000))
        ...     except MessageTooLarge as error:
        ...         print(error.size_bytes, error.limit_bytes)
        10000 8192

    Attributes:
        size_bytes: of the payloads.
        limit_bytes: the largest size that is possible.
    """

    size_bytes: int
    limit_bytes: int


class RecordSize(UsageError, ValueError):
    """A payload has another size than the requested records.

    Example:
        >>> try:
        ...     queue.last(1).to_numpy("<i8")
        ... except RecordSize as error:
        ...     print(error.sequence, error.size_bytes, error.record_bytes)
        4 4 8

    Attributes:
        sequence: of its message; None: it was not sent.
        size_bytes: of the payload.
        record_bytes: of a record.
    """

    sequence: int | None = None
    size_bytes: int
    record_bytes: int


class NotEncodable(UsageError, TypeError, ValueError):
    """The queue's codec cannot encode this value, or the columns do not match the queue.

    Example:
        >>> with Queue("values", codec="json") as values:
        ...     try:
        ...         values.producer().send(object())
        ...     except NotEncodable as error:
        ...         print(error.remedy)
        send a value that the codec supports
    """


class NotDecodable(UsageError, ValueError):
    """A payload is intact, but the queue's codec or dtype cannot decode it.

    Example:
        >>> try:
        ...     message = consumer.receive(timeout=0)
        ... except NotDecodable as error:
        ...     consumer.seek(sequence=error.sequence + 1)

    Attributes:
        sequence: of its message.
    """

    sequence: int


class PickleRefused(UsageError):
    """Payloads are unpickled only if the queue was opened with `codec="pickle"`.

    Example:
        >>> with Queue("objects", codec="pickle") as objects:
        ...     sequence = objects.producer().send({"user": 1})
        >>> with Queue("objects") as objects:
        ...     try:
        ...         objects.last(1)[0].value
        ...     except PickleRefused as error:
        ...         print(error.remedy)
        open it with codec='pickle' if you trust every writer, or use the payload
    """


class TimestampOrder(UsageError, ValueError):
    """The given timestamp is earlier than the last one in the queue.

    Example:
        >>> last = queue.last(1)[0]
        >>> try:
        ...     producer.send(b"six", timestamp=1)
        ... except TimestampOrder as error:
        ...     print(error.last_timestamp == last.timestamp)
        True

    Attributes:
        last_timestamp: ns since 1970, UTC.
    """

    last_timestamp: int


class BadRow(UsageError, ValueError):
    """A row of an imported file is not a valid message.

    Example:
        >>> error = BadRow("no column 'payload'", path="rows.csv", row=3)
        >>> error.row
        3

    Attributes:
        row: its number, starting at 1.
    """

    row: int


class OutputExists(UsageError, FileExistsError):
    """The file exists already, and overwriting it was not requested.

    Example:
        >>> error = OutputExists("the file exists", path="rows.csv", remedy="choose another name")
        >>> print(error)
        rows.csv: the file exists: choose another name
    """


class NaiveDatetime(UsageError, ValueError):
    """A datetime has no time zone, so the time it means is ambiguous.

    Example:
        >>> from datetime import datetime
        >>> try:
        ...     queue.replay(since=datetime(2026, 1, 1))
        ... except NaiveDatetime as error:
        ...     print(error.remedy)
        add tzinfo=datetime.UTC, or call .astimezone()
    """


class SequencesExhausted(UsageError, OverflowError):
    """The queue has used all 2**63 sequences.

    Example:
        >>> try:
        ...     sequence = producer.send(b"six")
        ... except SequencesExhausted as error:
        ...     print(error.path)
    """


def describe(error: OSError) -> str:
    """Return the system's own words for an error, without path or number."""
    return os.strerror(error.errno) if error.errno else str(error)


NOT_RETRYABLE: Final = (SeekError, DamageError, UpgradeError, AccessError, UsageError)
"""All but `RetryError`, which is not about the file: an inspection records these and continues."""
