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
    """

    file: str
    position: int | None
    sequence: int | None
    reason: str
    kind: str = "damage"


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
    if reason is None:
        reason = "missing" if isinstance(error, errors.QueueNotFound) else _without_path(error)
    kind = "damage"
    if isinstance(error, errors.UpgradeError):
        kind = "upgrade"
    elif isinstance(error, errors.AccessError) and not isinstance(error, errors.QueueNotFound):
        kind = "access"
    return Problem(error.path or "", position, sequence, reason, kind)


def _without_path(error: errors.PageQueueError) -> str:
    return str(error).removeprefix(f"{error.path}: ")
