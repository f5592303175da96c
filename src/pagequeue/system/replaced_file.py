"""Detects that a file was replaced while it was open, and stops the writers of this process."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from pagequeue import errors

Identity = tuple[int, int]
"""Device and inode: identifies a file whatever its name."""


class Stoppable(Protocol):
    """A writer that any thread can stop at any time."""

    def _detach(self) -> None: ...


class Files(Protocol):
    """Resolves names to files, as `Directory` does."""

    def full(self, name: str) -> str:
        """Return the path of a file."""

    def identity(self, name: str) -> Identity | None:
        """Return which file has this name now; None: no file has it."""


class FileIdentityGuard:
    """The files that some names must keep referring to, and the writers to stop if they do not."""

    def __init__(self) -> None:
        self._writers: weakref.WeakValueDictionary[int, Stoppable] = weakref.WeakValueDictionary()
        self._watched: dict[str, Identity] = {}
        self._replaced = ""

    def watch(self, name: str, identity: Identity | None) -> None:
        """Require from now on that this name refers to this file."""
        self._watched[name] = identity or (0, 0)

    def add(self, writer: Stoppable) -> None:
        """Register a writer; `check` stops it when it finds a replaced file."""
        self._writers[id(writer)] = writer

    @property
    def watched(self) -> tuple[tuple[bytes, int, int], ...]:
        """The watched names, each with the device and inode of its file."""
        return tuple((os.fsencode(name), *file) for name, file in self._watched.items())

    @property
    def is_replaced(self) -> bool:
        """Whether a watched file was found replaced: writing is refused from then on."""
        return bool(self._replaced)

    def check(self, files: Files) -> None:
        """Raise if a watched file was replaced, and stop all writers.

        A process that opens the queue meanwhile locks the new file and believes that it is alone.

        Raises:
            LockReplaced: one was replaced, now or at an earlier check.
        """
        for name, identity in self._watched.items():
            if not self._replaced and files.identity(name) != identity:
                self._replaced = name
                for reference in self._writers.valuerefs():  # a later writer checks after `add`
                    if (writer := reference()) is not None:
                        writer._detach()  # noqa: SLF001 - the core's, safe from any thread
        if self._replaced:
            raise errors.LockReplaced(
                "it was replaced or removed while the queue was open, so another process could "
                "believe that it has the queue alone",
                path=files.full(self._replaced),
                remedy="close the queue everywhere, then open it again",
            )
