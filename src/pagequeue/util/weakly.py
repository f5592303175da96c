"""Calls that do not keep alive what they are for."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Owner = TypeVar("Owner")


def weakly(owner: Owner, do: Callable[..., Any], *given: object) -> Callable[..., Any]:
    """Return a call of `do` with an owner and what is given; None once the owner is gone."""
    known = weakref.ref(owner)

    def call(*more: object) -> Any:  # noqa: ANN401 - whatever it returns
        alive = known()
        return None if alive is None else do(alive, *given, *more)

    return call
