"""Every error of the package: one base, branches by what the caller does next.

| branch | what to do |
| --- | --- |
| `RetryError` | wait, make room, or raise the limit; then call again |
| `SeekError` | move the consumer; nothing is broken |
| `DamageError` | verify, then repair or salvage; reading elsewhere goes on |
| `UpgradeError` | use a version that knows the format |
| `AccessError` | mend the path, the owner or the permissions |
| `UsageError` | mend the calling code |

An error that is a builtin's kind inherits from that too. Each carries its numbers as attributes,
and its message ends with the remedy, which is also an attribute: a program with other words for it,
such as the command line, shows `problem` and words of its own.
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
        remedy: what the caller can do, or None where the message does not say it apart.
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
    """Nothing is broken and nothing was done: the same call can succeed later."""


class NothingReceived(RetryError, TimeoutError):
    """No message came in time; the consumer has not moved."""


class TooManyClaims(NothingReceived):
    """As many messages of the group are claimed or delayed as there is room for: acknowledge."""


class LockTimeout(RetryError, TimeoutError):
    """A lock was held for too long, perhaps by a stopped process."""


class ConsumerInUse(RetryError):
    """Another thread or process has the named consumer open; it is free when that one ends."""


class NotDurable(RetryError):
    """Messages are sent and visible, and could not be put on stable storage now.

    Call `flush` again; to send them again would double them.
    """


class FlushTimeout(NotDurable, TimeoutError):
    """Another process was flushing for too long."""


class QueueFull(RetryError):
    """There is no room for another message; nothing was sent.

    Attributes:
        held_by: names of the consumers that have not acknowledged what would have to go.
    """

    held_by: tuple[str, ...] = ()


class DiskFull(QueueFull, OSError):
    """The file system, a quota or a file size limit leaves no room for the next page."""


class SystemLimit(RetryError, OSError):
    """The system refused a descriptor, memory or an operation; `errno` says which."""


class LeaseLost(RetryError):
    """A claim is not live any more: its time was over, or its message was given to another.

    Nothing was done. Claim again; the message comes again, or was acknowledged by the other one.

    Attributes:
        sequence: of its message.
    """

    sequence: int


# --- move the consumer ----------------------------------------------------------------------------


class SeekError(PageQueueError):
    """The place asked for is not one that can be read."""


class Expired(SeekError):
    """Retention passed this place.

    Attributes:
        head_sequence: the first sequence that can still be read.
    """

    head_sequence: int


class SequenceOutOfRange(SeekError, ValueError):
    """No message has this sequence, and none is the next to come.

    Attributes:
        head_sequence: the first sequence that can be read.
        tail_sequence: the next to be written.
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
    """A published frame fails its checksum or has a length that cannot be.

    Attributes:
        sequence: of the message that should stand there.
    """

    sequence: int


class CorruptPage(DamageError):
    """A page's header or size is wrong, or it was truncated while it was open.

    Attributes:
        sequence: of the message that was wanted when that was noticed, if one was.
    """

    sequence: int | None = None


class CorruptMeta(DamageError):
    """A meta file is wrong, or it was truncated while it was open."""


class MissingPage(DamageError):
    """A page that should be there is not."""


class SyncFailed(DamageError, OSError):
    """A sync failed, so what was written since the durable mark may never reach the disk.

    The queue is latched: nothing more can be written to it, by any process. Reading goes on. What
    is at risk is still in memory: `repair` writes it again, if it comes before a power cut.

    Attributes:
        first_sequence: the first message that may be lost.
        end_sequence: behind the last one.
    """

    first_sequence: int
    end_sequence: int


# --- upgrade --------------------------------------------------------------------------------------


class UpgradeError(PageQueueError):
    """The files are of a kind that this version or build cannot take."""


class NewerFormat(UpgradeError):
    """A file was written by a newer version.

    Attributes:
        version: the file's format version.
    """

    version: int


class MissingExtra(UpgradeError, ImportError):
    """A package is missing that this needs, and nothing else does.

    Attributes:
        extra: of this package, which brings it.
    """

    extra: str


class WrongJava(MissingExtra):
    """Spark needs a Java that is not here: it is missing, too old, or lacks a module.

    Attributes:
        version: of the one that was found; None: there is none that can be run.
    """

    version: int | None


class ForeignLock(UpgradeError):
    """The queue is open in a process whose C library lays out locks differently."""


# --- mend the path --------------------------------------------------------------------------------


class AccessError(PageQueueError):
    """The directory or a file in it cannot be used."""


class QueueNotFound(AccessError, FileNotFoundError):
    """There is no queue here."""


class NotADirectory(AccessError, NotADirectoryError):
    """The path is something else than a directory."""


class UnsafePath(AccessError):
    """The directory, its file system or a file in it could be changed by others, or is no file."""


class LockReplaced(UnsafePath):
    """The lock file or the write meta was replaced while the queue was open.

    This process writes nothing more: another one can be inside that knows nothing of it.
    """


class AccessDenied(AccessError, PermissionError):
    """The permissions of the directory or of a file do not allow this."""


# --- mend the calling code ------------------------------------------------------------------------


class UsageError(PageQueueError):
    """The call cannot be right, whatever the state of the queue."""


class ClosedError(UsageError, ValueError):
    """The handle was closed."""


class ForkedError(UsageError, RuntimeError):
    """The handle was inherited through fork; the child must open the queue itself."""


class ConcurrentUse(UsageError, RuntimeError):
    """Two threads used one consumer at a time."""


class ReadOnlyQueue(UsageError, PermissionError):
    """The queue was opened with `read_only=True`."""


class InvalidOption(UsageError, ValueError):
    """An option's value cannot be."""


class ConsumerNotFound(UsageError, LookupError):
    """No consumer has this name."""


class PageSizeMismatch(InvalidOption):
    """The queue exists with another page size.

    Attributes:
        page_bytes: what stands there.
    """

    page_bytes: int


class DtypeMismatch(InvalidOption):
    """The queue has other records, or none.

    Attributes:
        dtype: what stands there; None: messages of any size.
    """

    dtype: Any = None


class CodecMismatch(InvalidOption):
    """The queue has another codec.

    Attributes:
        codec: the name of what stands there.
    """

    codec: str


class MessageTooLarge(UsageError, ValueError):
    """A payload, or a batch as a whole, does not fit into one page.

    Attributes:
        size_bytes: of what was given.
        limit_bytes: what fits.
        fitting_count: how many messages of the batch do, from its first one on; None: no batch.
    """

    size_bytes: int
    limit_bytes: int
    fitting_count: int | None = None


class RecordSize(UsageError, ValueError):
    """A payload has another size than the records that were asked for.

    Attributes:
        sequence: of its message; None: it is not sent.
        size_bytes: of the payload.
        record_bytes: of a record.
    """

    sequence: int | None = None
    size_bytes: int
    record_bytes: int


class NotEncodable(UsageError, TypeError, ValueError):
    """The queue's codec has no payload for this, or columns are not what the queue holds."""


class NotDecodable(UsageError, ValueError):
    """A payload is whole, and is nothing that the queue's codec or dtype can hold.

    Attributes:
        sequence: of its message.
    """

    sequence: int


class PickleRefused(UsageError):
    """Nothing is unpickled for who did not open the queue with `codec="pickle"`."""


class TimestampOrder(UsageError, ValueError):
    """The timestamp asked for is earlier than the last one in the queue.

    Attributes:
        last_timestamp: ns since 1970, UTC.
    """

    last_timestamp: int


class BadRow(UsageError, ValueError):
    """A row of a file that is imported cannot be a message.

    Attributes:
        row: its number, from 1 on.
    """

    row: int


class FileStands(UsageError, FileExistsError):
    """A file would be overwritten, and that was not asked for."""


class NaiveDatetime(UsageError, ValueError):
    """A datetime without a zone does not say which moment it means: give it one."""


class SequencesExhausted(UsageError, OverflowError):
    """The queue has used all 2**63 sequences."""


def describe(error: OSError) -> str:
    """Return the system's own words for an error, without path or number."""
    return os.strerror(error.errno) if error.errno else str(error)


SETTLED: Final = (SeekError, DamageError, UpgradeError, AccessError, UsageError)
"""All but `RetryError`, which says nothing about a file: who only looks at it goes on after these,
and tells of that one."""
