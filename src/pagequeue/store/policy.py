"""Policy: what is asked about a queue that an open store does not decide.

How many pages there may be, who waits for room, what follows a roll, and whether a failed sync
stops the queue. A store is born with its policy and passes itself to each call, so that a policy
refers to no store. `maintenance/upkeep.py` has that of a queue's options.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store


class Limits(NamedTuple):
    """The limits of one opened queue.

    Attributes:
        pages: how many pages retention allows.
        idle_ns: a consumer that was silent for longer keeps no pages; None: however long.
        wait_seconds: how long a call may wait for room or lose pages to others; None: for ever.
        blocks: whether a call waits for room, when the queue is full.
    """

    pages: float = math.inf
    idle_ns: int | None = None
    wait_seconds: float | None = None
    blocks: bool = False

    def deadline(self, timeout: float | None = None) -> float:
        """Return until when a call may wait for room, in seconds of the monotonic clock.

        Args:
            timeout: of this call, in seconds; None: `wait_seconds`.
        """
        timeout = self.wait_seconds if timeout is None else timeout
        return math.inf if timeout is None else time.monotonic() + timeout


class Policy(Protocol):
    """What a store asks; the default is `Unlimited`.

    Attributes:
        limits: of the queue.
        resumes: whether the queue continues after a failed sync, by `rewrite`.
    """

    limits: Limits
    resumes: bool

    def make_room(
        self, store: Store, number: int, check: Callable[[], None] | None, deadline: float
    ) -> None:
        """Make room for a page before it is created.

        Args:
            store: of the queue.
            number: of the page; of a bulk commit its last one.
            check: raises when the page is not needed any more; None: no sender waits for it.
            deadline: until when to block, in seconds of the monotonic clock.

        Raises:
            QueueFull: the limit is reached.
        """

    def has_room(self, store: Store, number: int) -> bool:
        """Whether a page of this number fits without removing one."""

    def renew(self, store: Store, number: int, *, is_held: bool = False) -> WritablePage | None:
        """Make a page of a ring of its oldest one; None: it must be made otherwise.

        Args:
            store: of the ring.
            number: of the page.
            is_held: whether the caller has the preparation lock.
        """

    def rolled(self, store: Store) -> None:
        """Have done in the background what follows a roll."""

    def rewrite(self, store: Store) -> object:
        """Put all that is published on stable storage in another way, after a failed sync."""


class Unlimited:
    """Keeps all, makes room for all, and stops after a failed sync."""

    limits: Limits = Limits()
    resumes: bool = False

    def make_room(self, *_: object) -> None:
        """There is room."""

    def has_room(self, store: Store, number: int) -> bool:  # noqa: ARG002 - as any policy's
        """Whether it is no ring: its limit is not known here."""
        return not store.meta.is_ring

    def renew(self, *_: object, is_held: bool = False) -> None:
        """Return None: it must be made otherwise."""

    def rolled(self, store: Store) -> None:
        """Do nothing."""

    def rewrite(self, store: Store) -> None:
        """Never called: the queue stops."""
