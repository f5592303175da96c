"""Reuses a retired page's file for the next page: its blocks and memory are there already.

Under the preparation lock (FORMAT.md, "Using a page's file again"; I13):

U1. Retention renames the page instead of removing it: it is the spare, a temporary file.
    Dies here: the next maker uses it, or recovery removes it.
U2. The spare gets the temporary name of the page that is made.
    Dies here: a temporary file, which the next maker removes.
U3. Its lock is taken exclusively: no process has it open or mapped, and none can find it any more.
U4. All of it is zeroed, in memory; the new header is written, and it is synced.
    Dies here: the same. Cut: the old bytes can come back under the temporary name.
U5. The lock is shared again, and the page gets its name.
    Dies here: a page that is ready. Cut: header and first OS page are right; after them old bytes
    can come back. None of them is a frame of this page, because all their sequences are older, and
    recovery zeroes the bytes after the tail.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt

if TYPE_CHECKING:
    from pagequeue import _core
    from pagequeue.system.directory import Directory

PAGE_BYTES_MIN: Final = 4 << 20
"""A smaller page is made as quickly as a sync of its header."""


def is_worth_it(page_bytes: int) -> bool:
    """Whether the files of pages of this size are reused."""
    return page_bytes >= PAGE_BYTES_MIN


def keep_spare(folder: Directory, prefix: str, page_number: int, page_bytes: int) -> bool:
    """Keep a retired page's file as the spare; False: it is unusable, and the caller removes it.

    At most one, and only until the next page is made, so that it does not increase disk usage.
    """
    spare, name = fmt.spare_name(prefix), fmt.page_name(prefix, page_number)
    if not is_worth_it(page_bytes) or folder.exists(spare):
        return False
    status = folder.status(name)
    if status is None or status.st_size != page_bytes or status.st_nlink != 1:
        return False  # a compressed page, or one with a second name
    with contextlib.suppress(errors.QueueNotFound):
        folder.rename(name, spare)
        return True
    return False


def page_from_spare(
    folder: Directory, prefix: str, name: str, data: bytes, size_bytes: int
) -> _core.Region | None:
    """Make a page from the spare, mapped for writing; None: it is missing or unusable.

    An unusable spare is removed.
    """
    if not has_spare(folder, prefix):
        return None
    return folder.make_of(fmt.spare_name(prefix), name, data, size_bytes=size_bytes)


def has_spare(folder: Directory, prefix: str) -> bool:
    """Whether a retired page waits for reuse."""
    return folder.exists(fmt.spare_name(prefix))


def drop_spare(folder: Directory, prefix: str) -> None:
    """Remove the spare, if there is one."""
    folder.remove(fmt.spare_name(prefix))
