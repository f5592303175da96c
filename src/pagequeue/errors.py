"""Every error of the package: one base, branches by what the caller does next.

| branch | what to do |
| --- | --- |
| `RetryError` | wait, make room, or raise the limit; then call again |
| `SeekError` | move the consumer; the queue is intact |
| `DamageError` | verify, then repair or salvage; the undamaged part stays readable |
| `UpgradeError` | use a version that knows the format |
| `AccessError` | correct the path, the owner or the permissions |
| `UsageError` | correct the calling code |

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
from typing import Any, Final


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
        """The message without its remedy."""
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
    """The call had no effect and the queue is intact: the same call can succeed later."""


class NothingReceived(RetryError, TimeoutError):
    """No message came in time; the consumer has not moved."""


class TooManyClaims(NothingReceived):
    """The group's table of claimed and delayed messages is full: acknowledge some."""


class LockTimeout(RetryError, TimeoutError):
    """Another thread or process held a lock for too long; it may be a stopped process."""


class ConsumerInUse(RetryError):
    """Another thread or process has the named consumer open, until it closes it or exits."""


class NotDurable(RetryError):
    """Messages were sent and are visible, but could not be put on stable storage now.

    Call `flush` again; sending them again would duplicate them.
    """


class FlushTimeout(NotDurable, TimeoutError):
    """Another process was flushing for too long."""


class QueueFull(RetryError):
    """The queue has reached `max_bytes`; no message was sent.

    Attributes:
        held_by: names of the consumers that have not acknowledged the oldest messages.
    """

    held_by: tuple[str, ...] = ()


class DiskFull(QueueFull, OSError):
    """The file system, a quota or a file size limit leaves no room for the next page."""


class SystemLimit(RetryError, OSError):
    """The system refused a descriptor, memory or an operation; `errno` is its error number."""


class LeaseLost(RetryError):
    """A claim is no longer live: its lease expired, or its message was given to another worker.

    The call had no effect. Claim again: the message is redelivered, unless the other worker
    acknowledged it.

    Attributes:
        sequence: of the claimed message.
    """

    sequence: int


# --- move the consumer ----------------------------------------------------------------------------


class SeekError(PageQueueError):
    """The requested place is not readable."""


class Expired(SeekError):
    """Retention removed the requested place.

    Attributes:
        head_sequence: the first sequence that can still be read.
        seek_sequence: where to continue, if seeking is the remedy; else None.
    """

    head_sequence: int
    seek_sequence: int | None = None


class SequenceOutOfRange(SeekError, ValueError):
    """No message has this sequence, and it is not the next one either.

    Attributes:
        head_sequence: the first readable sequence.
        tail_sequence: the next sequence to be written.
    """

    head_sequence: int
    tail_sequence: int


# --- verify, repair, salvage ----------------------------------------------------------------------


class DamageError(PageQueueError):
    """Bytes are not what was written.

    Attributes:
        position: the place in the file, in bytes.
        reason: what is wrong there.
    """

    position: int
    reason: str


class CorruptFrame(DamageError):
    """A published frame fails its checksum or has an invalid length.

    Attributes:
        sequence: of the message that should be there.
    """

    sequence: int


class CorruptPage(DamageError):
    """A page's header or size is wrong, or it was truncated while it was open.

    Attributes:
        sequence: of the message whose read detected this; None: it was not a read.
    """

    sequence: int | None = None


class CorruptMeta(DamageError):
    """A meta file is wrong, or it was truncated while it was open."""


class MissingPage(DamageError):
    """The file of a page is missing."""


class SyncFailed(DamageError, OSError):
    """A sync failed, so what was written since the durable mark may never reach the disk.

    The queue is latched: no process can write to it any more, all can still read. The messages at
    risk are still in memory: `repair` writes them again, if it runs before a power cut.

    Attributes:
        first_sequence: the first message that may be lost.
        end_sequence: one past the last one.
    """

    first_sequence: int
    end_sequence: int


# --- upgrade --------------------------------------------------------------------------------------


class UpgradeError(PageQueueError):
    """This version or build cannot handle these files."""


class NewerFormat(UpgradeError):
    """A file was written by a newer version.

    Attributes:
        version: the file's format version.
    """

    version: int


class MissingExtra(UpgradeError, ImportError):
    """An optional package that this feature needs is not installed.

    Attributes:
        extra: the extra of pagequeue that installs it.
    """

    extra: str


class WrongJava(MissingExtra):
    """Java is missing, too old for Spark, or lacks a module.

    Attributes:
        version: of the Java that was found; None: none that runs was found.
    """

    version: int | None


class ForeignLock(UpgradeError):
    """The queue is open in a process whose C library lays out locks differently."""


# --- correct the path -----------------------------------------------------------------------------


class AccessError(PageQueueError):
    """The directory, or a file in it, is missing, unsafe or inaccessible."""


class QueueNotFound(AccessError, FileNotFoundError):
    """The directory holds no queue of this prefix.

    Attributes:
        prefix: of the queue, if the directory exists and has no queue with this prefix; else None.
    """

    prefix: str | None = None


class NotADirectory(AccessError, NotADirectoryError):
    """The path is not a directory."""


class UnsafePath(AccessError):
    """Others could change the directory, its file system or a file in it, or it is not a file.

    Attributes:
        trust: the name in the option `trust` that accepts it; None: no name does.
    """

    trust: str | None = None


class LockReplaced(UnsafePath):
    """The lock file or the write meta was replaced while the queue was open.

    This process stops writing: another process may have opened the queue exclusively meanwhile.
    """


class AccessDenied(AccessError, PermissionError):
    """The permissions of the directory or of a file do not allow this."""


# --- correct the calling code ---------------------------------------------------------------------


class UsageError(PageQueueError):
    """The call is wrong, whatever the state of the queue."""


class ClosedError(UsageError, ValueError):
    """The handle was closed."""


class ForkedError(UsageError, RuntimeError):
    """The handle was inherited through fork; the child must open the queue itself."""


class ConcurrentUse(UsageError, RuntimeError):
    """Two threads used one consumer at the same time."""


class ReadOnlyQueue(UsageError, PermissionError):
    """The queue was opened with `read_only=True`."""


class InvalidOption(UsageError, ValueError):
    """An option has an invalid value."""


class ConsumerNotFound(UsageError, LookupError):
    """No consumer has this name."""


class PageSizeMismatch(InvalidOption):
    """The queue exists with another page size.

    Attributes:
        page_bytes: of the queue.
    """

    page_bytes: int


class DtypeMismatch(InvalidOption):
    """The queue has records of another dtype, or no records.

    Attributes:
        dtype: of the queue; None: messages of any size.
    """

    dtype: Any = None


class CodecMismatch(InvalidOption):
    """The queue has another codec.

    Attributes:
        codec: of the queue, by name.
    """

    codec: str


class MessageTooLarge(UsageError, ValueError):
    """A payload, or a batch as a whole, does not fit into one page.

    Attributes:
        size_bytes: of the payload or batch.
        limit_bytes: the largest size that fits.
        fitting_count: how many messages of the batch fit, from its first one on; None: no batch.
    """

    size_bytes: int
    limit_bytes: int
    fitting_count: int | None = None


class RecordSize(UsageError, ValueError):
    """A payload has another size than the requested records.

    Attributes:
        sequence: of its message; None: it was not sent.
        size_bytes: of the payload.
        record_bytes: of a record.
    """

    sequence: int | None = None
    size_bytes: int
    record_bytes: int


class NotEncodable(UsageError, TypeError, ValueError):
    """The queue's codec cannot encode this value, or the columns do not match the queue."""


class NotDecodable(UsageError, ValueError):
    """A payload is intact, but the queue's codec or dtype cannot decode it.

    Attributes:
        sequence: of its message.
    """

    sequence: int


class PickleRefused(UsageError):
    """Payloads are unpickled only if the queue was opened with `codec="pickle"`."""


class TimestampOrder(UsageError, ValueError):
    """The given timestamp is earlier than the last one in the queue.

    Attributes:
        last_timestamp: ns since 1970, UTC.
    """

    last_timestamp: int


class BadRow(UsageError, ValueError):
    """A row of an imported file is not a valid message.

    Attributes:
        row: its number, starting at 1.
    """

    row: int


class FileStands(UsageError, FileExistsError):
    """The file exists already, and overwriting it was not requested."""


class NaiveDatetime(UsageError, ValueError):
    """A datetime has no time zone, so the time it means is ambiguous."""


class SequencesExhausted(UsageError, OverflowError):
    """The queue has used all 2**63 sequences."""


def describe(error: OSError) -> str:
    """Return the system's own words for an error, without path or number."""
    return os.strerror(error.errno) if error.errno else str(error)


SETTLED: Final = (SeekError, DamageError, UpgradeError, AccessError, UsageError)
"""All but `RetryError`, which is not about the file: an inspection records these and continues."""
