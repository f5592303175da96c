"""Base of every handle: a context manager that closes itself; and how a dropped one is closed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

Owner = TypeVar("Owner")


def finalizer(close: Callable[[Owner], None]) -> Callable[[Owner], None]:
    """Return a `__del__` that says nothing where the interpreter has taken its modules away.

    What it would release goes with the process.
    """
    is_ending = sys.is_finalizing  # kept here: the names of modules are None by then

    def finalize(self: Owner) -> None:
        try:
            close(self)
        except Exception:
            if not is_ending():
                raise

    return finalize


class Closing:
    """A context manager that closes itself."""

    __slots__ = ()

    def close(self) -> None:
        """Release all resources; closing again has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
