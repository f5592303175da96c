"""One thing that is wrong with a queue, as verify, repair and salvage report it."""

from __future__ import annotations

from dataclasses import dataclass

from pagequeue import errors


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: its path.
        position: place in the file in bytes, None when the file as a whole is meant.
        sequence: of the message that should stand there, None when none is meant.
        reason: what is wrong.
        kind: what to do: "damage" is to be repaired or salvaged; "access" is mended by owner,
            permissions or the real file; "upgrade" is read by a newer version.
        remedy: what `reason` ends with, where that is something to do.
        trust: the name in the option `trust` that accepts it; None: no name does.
    """

    file: str
    position: int | None
    sequence: int | None
    reason: str
    kind: str = "damage"
    remedy: str | None = None
    trust: str | None = None


def problem_of(error: errors.PageQueueError) -> Problem:
    """Return what an error says, as a problem.

    Raises:
        RetryError, MissingExtra, ClosedError, ForkedError: that one itself, because it says nothing
            about the files.
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
