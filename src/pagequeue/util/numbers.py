"""Checks of numeric arguments; their errors name the option."""

from __future__ import annotations

import operator
from numbers import Real


def whole(name: str, value: object) -> int:
    """Return an option's whole number; raise TypeError, which names the option, for others."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


def number(name: str, value: object) -> float:
    """Return an option's number; raise TypeError, which names the option, for others."""
    if isinstance(value, bool) or not (isinstance(value, Real) or hasattr(value, "__index__")):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)
