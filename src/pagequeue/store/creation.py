"""Creates a queue: the order of its first files, and the removal of an unfinished queue.

The allMeta comes first, and its name is on stable storage before any page is made: pages without it
are refused, because they are a user's data. The recovery of a queue that has only an allMeta makes
the other files.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.meta.all_meta import ORIGIN, RING, AllMeta, read_all_meta, write_all_meta
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.listing import page_numbers
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from pagequeue.schema.schema import Schema
    from pagequeue.system.directory import Directory


def refuse_confusion(folder: Directory, prefix: str) -> None:
    """Raise if a new queue would have a file of the same name as another queue in the directory.

    Raises:
        InvalidOption: shipping one of them takes the lock of the other.
    """
    other = fmt.confused_with(prefix, folder.names())
    if other is not None:
        raise errors.InvalidOption(
            f"prefix {prefix!r}: {fmt.lock_name(max(prefix, other))} would be a file of this queue "
            f"and of {other!r}, which is here",
            path=folder.path,
            remedy="choose another prefix or directory",
        )


class Creation:
    """The creation of one queue; its caller has `queue.lock` exclusively."""

    def __init__(self, folder: Directory, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix

    def begin(
        self,
        created: int,
        page_bytes: int,
        schema: Schema,
        ring_bytes: int | None = None,
        origin: bytes | None = None,
    ) -> AllMeta:
        """Make the allMeta.

        Dies after it: a queue without pages, which the next opener completes or recreates.
        """
        folder, prefix = self._folder, self._prefix
        options = schema.options() | ({} if ring_bytes is None else {RING: ring_bytes})
        options |= {} if origin is None else {ORIGIN: origin.hex()}
        meta = AllMeta(uuid.uuid4().bytes, created, page_bytes, options, schema)
        if len(meta.encode()) > fmt.ALL_META_MAX_BYTES:
            raise errors.InvalidOption(
                "dtype: its names and fields are too many", path=folder.path, remedy="give fewer"
            )
        folder.sync_name()
        write_all_meta(folder, prefix, meta)
        try:
            folder.sync()
        except OSError as error:
            # The next opener makes it again: a later sync could succeed without this name.
            folder.remove(fmt.all_meta_name(prefix))
            raise_typed(error, folder.path, "syncing the directory")
        return meta

    def is_unfinished(self) -> bool:
        """Whether a queue's creation was begun here and no page made: no message was ever sent."""
        folder, prefix = self._folder, self._prefix
        names = folder.names()
        cursors = fmt.cursor_name(prefix, "")
        if (
            fmt.all_meta_name(prefix) not in names
            or page_numbers(prefix, names)
            or any(name.startswith(cursors) for name in names)
        ):
            return False
        try:
            queue_id = read_all_meta(folder, prefix).queue_id
            if fmt.read_meta_name(prefix) in names:
                read = ReadMeta(folder, prefix, queue_id, writable=False)
                if read.head != (fmt.FIRST_PAGE, 0):
                    return False
            if fmt.write_meta_name(prefix) in names:
                write = WriteMeta(folder, prefix, queue_id, writable=False)
                return write.tail.page_number == 0 and write.durable_page == 0
        except errors.PageQueueError:
            return False
        return True

    def is_empty(self) -> bool:
        """Whether no message ever was in these pages.

        A power cut while a queue is made can leave the name of a page and not those of the meta
        files, which are all on stable storage before anything is sent.
        """
        numbers = page_numbers(self._prefix, self._folder.names())
        if not set(numbers) <= {fmt.FIRST_PAGE, fmt.FIRST_PAGE + 1}:
            return False
        return all(self._is_blank(number) for number in numbers)

    def _is_blank(self, number: int) -> bool:
        """Whether no frame begins in a page."""
        try:
            with self._folder.opened(fmt.page_name(self._prefix, number), writable=False) as fd:
                word = os.pread(fd, fmt.FRAME_HEADER_BYTES, fmt.PAGE_HEADER_BYTES)
        except (OSError, errors.PageQueueError):
            return False
        return not any(word)

    def abandon(self) -> None:
        """Remove the files of an unfinished queue, the allMeta last.

        Dies or fails in between: it is still unfinished, and the next opener handles it.
        """
        prefix = self._prefix
        with contextlib.suppress(errors.PageQueueError):
            for name in (
                fmt.page_name(prefix, fmt.FIRST_PAGE),
                fmt.index_name(prefix, fmt.FIRST_PAGE),
                fmt.write_meta_name(prefix),
                fmt.read_meta_name(prefix),
                fmt.all_meta_name(prefix),
            ):
                self._folder.remove(name)
