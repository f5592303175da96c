"""How often a group delivers a message again, and how long it waits in between.

Twice as long after each failed delivery, up to a bound: others are delivered meanwhile, and one
that always fails costs ever less. Task stores and `JoinableQueue` do not have this rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import _core
from pagequeue.util.arguments import number, type_error, value_error, whole

if TYPE_CHECKING:
    from pagequeue.util.literals import Backoff

DELIVERIES_MAX: Final = 20
BACKOFF: Final = (0.1, 600.0)
"""Seconds after the first failed delivery, and at most. Twenty deliveries then take some 70 min: a
service that is away for an hour costs no message."""
SECONDS_MAX: Final = 1e9


class Retry(NamedTuple):
    """What becomes of a message whose deliveries fail.

    Attributes:
        deliveries_max: so many, then it is delivered no more; None: any number.
        first: seconds that it waits after the first one.
        most: seconds that it waits at most.
    """

    deliveries_max: int | None
    first: float
    most: float

    def delay_ns(self, number: int, deliveries: int) -> int:
        """Return how long it waits after so many failed deliveries, in ns.

        Args:
            number: sequence of the message: up to a quarter of the delay is left out by it, so that
                those that failed together do not come back together.
            deliveries: so far.
        """
        return _core.retry_delay(self.first, self.most, number, min(deliveries, (1 << 32) - 1))

    def is_spent(self, deliveries: int) -> bool:
        """Return whether it was delivered as often as it may be."""
        return self.deliveries_max is not None and deliveries >= self.deliveries_max


def check_retry(max_deliveries: int | None, backoff: Backoff, *, path: str) -> Retry:
    """Return the two options of a group.

    Raises:
        InvalidOption, InvalidType: one of them is invalid.
    """
    if max_deliveries is not None:
        remedy = "give 1 to 2**32 - 1, or None"
        max_deliveries = whole(
            "max_deliveries", max_deliveries, 1, (1 << 32) - 1, path=path, remedy=remedy
        )
    if backoff is None:
        return Retry(max_deliveries, 0.0, 0.0)
    remedy = "give two numbers of seconds, the first delay and the longest one, or None"
    given: object = backoff
    if not isinstance(given, tuple) or len(given) != 2:
        raise type_error(
            "backoff", given, "two numbers of seconds, the first delay and the longest"
        )
    first, most = (number("backoff", value, remedy, path=path) for value in given)
    if not 0 <= first <= most <= SECONDS_MAX:
        raise value_error("backoff", backoff, remedy, path=path)
    return Retry(max_deliveries, first, most)
