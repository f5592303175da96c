"""A property that is computed once for each object, without a lock.

`functools.cached_property` of Python 3.11 has one lock for all objects of a class. A child that is
forked while another thread computes inherits the locked lock, and waits for it for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Kept(Generic[T]):
    """Stores a method's result in the object, under the method's name."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: object, owner: type[object]) -> T:
        value = self._compute(instance)
        instance.__dict__[self._compute.__name__] = value
        return value
