"""Retention: the policy of which pages a queue keeps, and the result of applying it.

`trim_plan.py` turns the policy into how far the head may move, and `trimmer.py` moves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pagequeue import errors
from pagequeue.util.arguments import type_error, whole


@dataclass(frozen=True)
class Retention:
    """What a queue keeps; whole pages are removed, oldest first, never the active one.

    Attributes:
        max_age: a page is removed when its last message is older, and the active one is sealed when
            its first message is; None: at any age.
        max_bytes: pages are removed while the page files, including the prepared one, would take
            more; at least two pages; None: unlimited. A compressed page counts with the size of
            its file. Indexes come on top, up to 3/8 of it (12 bytes a message, where pages are
            large), and the files of groups.
        keep_unacked: whether a page is kept until all named consumers have acknowledged it.
        max_idle: a named consumer that was neither opened nor acknowledged a message for longer,
            although it had some, keeps no pages; None: however long.
        drop_acknowledged: whether a page is also removed, at any age and size, once all named
            consumers and groups have acknowledged it. While there is none, or all are silent for
            longer than `max_idle`, this removes no page: create the consumers first.

    Example:
        >>> retention = Retention(max_bytes=10 << 30, max_age=timedelta(days=7))
        >>> with Queue("events", retention=retention) as queue:
        ...     queue.trim().pages
        0
        >>> jobs = Retention(drop_acknowledged=True)  # what workers have done goes
    """

    max_age: timedelta | None = None
    max_bytes: int | None = None
    keep_unacked: bool = True
    max_idle: timedelta | None = None
    drop_acknowledged: bool = False

    def __post_init__(self) -> None:
        for name in ("max_age", "max_idle"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, timedelta):
                raise type_error(name, value, "a timedelta")
            if value is not None and value <= timedelta(0):
                raise errors.InvalidOption(f"{name} is {value}", remedy="give a timedelta above 0")
        if self.max_bytes is not None:
            bytes_ = whole("max_bytes", self.max_bytes, 1, remedy="give bytes above 0")
            object.__setattr__(self, "max_bytes", bytes_)
        for name in ("keep_unacked", "drop_acknowledged"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise type_error(name, value, "a bool")
        if self.drop_acknowledged and not self.keep_unacked:
            raise errors.InvalidOption(
                "drop_acknowledged=True with keep_unacked=False",
                remedy="leave out keep_unacked: what is dropped depends on what consumers need",
            )


KEEP_ALL: Final = Retention()


@dataclass(frozen=True)
class TrimReport:
    """The result of `Queue.trim`.

    Attributes:
        pages: pages removed.
        messages: in them.
        bytes: of their page and index files.
        held_by: names of the consumers that kept pages which would have been removed otherwise.

    Example:
        >>> queue.trim()
        TrimReport(pages=0, messages=0, bytes=0, held_by=())
    """

    pages: int = 0
    messages: int = 0
    bytes: int = 0
    held_by: tuple[str, ...] = ()
