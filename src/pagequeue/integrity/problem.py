"""A problem of a queue's files, as verify, repair and salvage report it."""

from __future__ import annotations

from dataclasses import dataclass

from pagequeue import errors


@dataclass(frozen=True)
class Problem:
    """A problem of one file of a queue.

    Attributes:
        file: its path.
        position: byte position in the file, None for the file as a whole.
        sequence: of the message that belongs there, None where it concerns no single message.
        reason: what is wrong.
        kind: what to do: "damage" needs `repair_queue` or `salvage_queue`; "access" another owner,
            other permissions or the real file; "upgrade" a newer version of pagequeue.
        remedy: the end of `reason` that says what to do, None where it has none.
        trust: the name in the option `trust` that accepts it; None: no name does.

    Example:
        >>> for problem in verify_queue("events").problems:
        ...     print(problem.file, problem.position, problem.reason)
        /.../events/queue-0000000001.page 112 its checksum is wrong
    """

    file: str
    position: int | None
    sequence: int | None
    reason: str
    kind: str = "damage"
    remedy: str | None = None
    trust: str | None = None


def problem_of(error: errors.PageQueueError) -> Problem:
    """Return an error as a problem.

    Raises:
        RetryError, MissingExtra, ClosedError, ForkedError: the error itself, because it does not
            concern the files.
    """
    about_others = errors.RetryError, errors.MissingExtra, errors.ClosedError, errors.ForkedError
    if isinstance(error, about_others):
        raise error
    position = getattr(error, "position", None)
    sequence = getattr(error, "sequence", None)
    reason = getattr(error, "reason", None)
    remedy = trust = None
    if reason is None and isinstance(error, errors.QueueNotFound):
        reason = "missing"
    elif reason is None:
        reason, remedy = _without_path(error), error.remedy
        trust = getattr(error, "trust", None)
    kind = "damage"
    if isinstance(error, errors.UpgradeError):
        kind = "upgrade"
    elif isinstance(error, errors.AccessError) and not isinstance(error, errors.QueueNotFound):
        kind = "access"
    return Problem(error.path or "", position, sequence, reason, kind, remedy, trust)


def _without_path(error: errors.PageQueueError) -> str:
    return str(error).removeprefix(f"{error.path}: ")
