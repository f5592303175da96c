"""Sealed: the page that a rotation sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagequeue import format as fmt

if TYPE_CHECKING:
    from pagequeue.meta.write_meta import Tail
    from pagequeue.store.store import Store


@dataclass(frozen=True)
class Sealed:
    """A page that was sealed: no message is added to it any more.

    Attributes:
        page_number: of the page.
        first_sequence: of its first message.
        end_sequence: one past its last message.
        path: of its file, absolute; retention can remove it, and compressing replace it.

    Example:
        >>> sealed = queue.rotate()
        >>> range(sealed.first_sequence, sealed.end_sequence)
        range(0, 5)
    """

    page_number: int
    first_sequence: int
    end_sequence: int
    path: str


def sealed_page(store: Store, before: Tail, end_sequence: int | None) -> Sealed:
    """Return the page that was active at a tail, and has been sealed since.

    Args:
        store: of the queue.
        before: the tail.
        end_sequence: of the page; None: find it.

    Raises:
        Expired: retention has removed it and the page after it, so its end is not known.
    """
    number = before.page_number
    return Sealed(
        number,
        before.first_sequence,
        store.first_sequence(number + 1) if end_sequence is None else end_sequence,
        store.folder.full(fmt.page_name(store.prefix, number)),
    )
