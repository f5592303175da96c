"""Noticing that a file was replaced while it was open, and stopping all who write then."""

from __future__ import annotations

import weakref
from typing import Protocol

from pagequeue import errors

Identity = tuple[int, int]
"""Device and inode: which file it is, whatever its name."""


class Stoppable(Protocol):
    """Something that writes, and can be stopped from any thread at any time."""

    def _detach(self) -> None: ...


class FileIdentityGuard:
    """The part of a `Directory` that knows which files its names must stand for."""

    def __init__(self) -> None:
        self._writers: weakref.WeakValueDictionary[int, Stoppable] = weakref.WeakValueDictionary()
        self._watched: dict[str, Identity] = {}
        self._replaced = ""

    def full(self, name: str) -> str:
        """Return the path of a file."""
        raise NotImplementedError

    def identity(self, name: str) -> Identity | None:
        """Return which file has this name now; None when there is none."""
        raise NotImplementedError

    def watch(self, name: str, identity: Identity | None) -> None:
        """From now on this name must stand for this file: `check` looks."""
        self._watched[name] = identity or (0, 0)

    def admit(self, writer: Stoppable) -> None:
        """Let somebody write who is stopped when a watched file is found replaced.

        Raises:
            LockReplaced: one is already.
        """
        self._writers[id(writer)] = writer
        self.check()

    @property
    def is_replaced(self) -> bool:
        """Whether a watched file was found to be another one: nothing more may be written."""
        return bool(self._replaced)

    def check(self) -> None:
        """Raise if a watched file is another one than it was, and stop all who write.

        Whoever opens the queue meanwhile locks the new file and believes to be alone.

        Raises:
            LockReplaced: one is, or was at an earlier look.
        """
        for name, identity in self._watched.items():
            if not self._replaced and self.identity(name) != identity:
                self._replaced = name
                for reference in self._writers.valuerefs():  # whoever comes later checks itself
                    if (writer := reference()) is not None:
                        writer._detach()  # noqa: SLF001 - the core's, safe from any thread
        if self._replaced:
            raise errors.LockReplaced(
                "it was replaced or removed while the queue was open, so that another process "
                "could believe to be alone with it: close the queue everywhere, then open it again",
                path=self.full(self._replaced),
            )
