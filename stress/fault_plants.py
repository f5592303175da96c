"""Bugs for the two campaigns of failing calls: each is found. See `stress/tests/test_faults.py`.

A function here is named in `PAGEQUEUE_STRESS_PATCH` and changes the library in the child only.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pagequeue.store.flush import Flusher


def forget_to_latch() -> None:
    """Report a failed sync to its caller, and to no other process."""
    from pagequeue.meta.write_meta import WriteMeta  # noqa: PLC0415  the core is chosen by now

    def latch(self: WriteMeta, number: int, page_number: int) -> None:
        del self, number, page_number

    WriteMeta.latch = latch  # type: ignore[method-assign]


def bare_errors() -> None:
    """Hand the system's errors on as they are, but for the one that the library itself needs."""
    from pagequeue.page import page  # noqa: PLC0415
    from pagequeue.system import directory, os_errors  # noqa: PLC0415

    real = os_errors.raise_typed

    def raise_typed(error: OSError, path: str, doing: str) -> NoReturn:
        if error.errno == errno.ENOENT:
            real(error, path, doing)
        raise error

    for room in (directory, page):
        vars(room)["raise_typed"] = raise_typed


def keep_descriptors() -> None:
    """Forget the descriptor of the page that was synced last, without closing it."""
    from pagequeue.store.flush import Flusher  # noqa: PLC0415

    kept: list[object] = []

    def forget_page(self: Flusher) -> None:
        kept.append(self._synced)
        self._synced = (0, None)

    Flusher.forget_page = forget_page  # type: ignore[method-assign]


def hide_full_disk() -> None:
    """Report a shortage of the system, whatever the shortage is."""
    from pagequeue.system import os_errors  # noqa: PLC0415

    os_errors.NO_RESOURCE |= os_errors.NO_ROOM
    os_errors.NO_ROOM = set()
