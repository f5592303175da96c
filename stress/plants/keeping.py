"""Bugs of named consumers and retention; each function plants one, as in `patches.py`."""

from __future__ import annotations

import textwrap
from typing import Any

from pagequeue.maintenance import size_limit, trim_plan, trimmer
from pagequeue.meta import cursor, read_meta
from pagequeue.receive import named_consumer
from pagequeue.store import power_loss_recovery, store
from pagequeue.system import directory
from stress.plants.plant import COMBINED, RETAIN, SKIP, in_c, in_python
from stress.plants.rewrite import rewrite

KEEPING = (
    in_python(
        "head_moved_after_files",
        "pages are removed before the head moves",
        "I12",
        {RETAIN: 25.0},
    ),
    in_c(
        "retired_page_sought",
        "a page that stays mapped is searched when retention has removed it",
        "I12",
        {RETAIN: 25.0},
        {
            "python/reader.c": [
                ("number >= pq_load_u64(head->base + PQ_READ_META_HEAD_PAGE)", "head != NULL"),
            ]
        },
    ),
    in_python(
        "head_page_first",
        "the head's page is stored before its sequence",
        "I12",
        {RETAIN: 240.0},
    ),
    in_python(
        "unacked_not_looked_at",
        "retention takes what is not acknowledged",
        "I11",
        {RETAIN: 15.0},
    ),
    in_python(
        "acknowledged_by_one",
        "what one consumer has acknowledged goes, whatever others need",
        "I11",
        {RETAIN: 60.0},
    ),
    in_python(
        "trim_is_quadratic",
        "the directory is listed for each removed page, under the lock",
        "senders get LockTimeout",
        {RETAIN: 25.0, COMBINED: 30.0},
    ),
    in_python(
        "moved_consumer_not_looked_at",
        "rewinds of consumers are not checked under the lock",
        "I11, retention passes it",
        {RETAIN: 40.0},
    ),
    in_python(
        "trim_without_lock",
        "two trim at once",
        "I12, the head gets another's sequence",
        {RETAIN: 40.0},
    ),
    in_python(
        "page_emptied_before_it_goes",
        "a retired page is truncated and then removed",
        "a reader inside does not finish",
        {RETAIN: 25.0},
    ),
    in_python(
        "room_never_asked_for",
        "the next page is made even if max_bytes forbids it",
        "the disk fills",
        {RETAIN: 25.0},
    ),
    in_python(
        "expired_without_head",
        "a consumer that lags is not told where to continue",
        "Expired",
        {RETAIN: 30.0},
    ),
    in_python(
        "ack_before_receive",
        "what is received counts as acknowledged",
        "I11, lost at a kill",
        {RETAIN: 20.0, SKIP: 25.0},
    ),
    in_python(
        "cursor_not_lowered",
        "recovery leaves a cursor ahead of the tail",
        "I11, messages are skipped",
        {SKIP: 30.0},
    ),
    in_python(
        "lowered_cursor_not_synced",
        "a cursor that was lowered can come back",
        "I11, after the next power cut",
        {SKIP: 60.0},
    ),
    in_python(
        "cursor_not_synced_before_head",
        "pages are removed for a cursor that is not on the disk",
        "I11, what comes back needs what is gone",
        {SKIP: 60.0},
    ),
    in_python(
        "head_not_synced",
        "pages are removed before the head is synced",
        "I12, a missing page",
        {SKIP: 60.0},
    ),
    in_python(
        "new_head_page_not_synced",
        "the head moves to a page that is not on the disk",
        "I12, a missing page",
        {SKIP: 60.0},
    ),
    in_python(
        "place_found_without_lock",
        "a consumer finds its place and keeps it without the lock",
        "I11, retention passes it in between",
        {RETAIN: 60.0},
    ),
    in_python(
        "page_not_held",
        "a page's file is reused while a reader has it mapped",
        "I13",
        {RETAIN: 40.0},
    ),
    in_c(
        "reused_without_lock",
        "retired pages are reused even if they are still mapped",
        "I13",
        {RETAIN: 40.0},
        {
            "python/mapped_file.c": [
                (
                    "if (error == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {",
                    "if (error == 0 && fd < 0) {",
                )
            ]
        },
    ),
    in_c(
        "reused_without_zeroing",
        "a page that is used again shows what it held",
        "I13",
        {RETAIN: 40.0},
        {"python/mapped_file.c": [("            memset(*base, 0, (size_t)wanted->bytes);\n", "")]},
    ),
    in_c(
        "reused_header_not_synced",
        "the old header can come back under the new name",
        "I13",
        {SKIP: 90.0},
        {
            "python/mapped_file.c": [
                (
                    (
                        "error = msync(*base, (size_t)sysconf(_SC_PAGESIZE), MS_SYNC) == 0 ? 0 : "
                        "errno;"
                    ),
                    "error = 0;",
                )
            ]
        },
    ),
)


def acknowledged_by_one() -> None:
    """The consumer that is furthest decides."""
    rewrite(
        trim_plan.TrimPlanner,
        "plan",
        (
            "store.tail.page_number, lambda header: first_of(header) <= needed\n",
            "store.tail.page_number, lambda header: first_of(header) <= max(positions.values())\n",
        ),
    )


def page_not_held() -> None:
    """A reader that opens a page does not lock it."""
    setattr(directory, "hold", lambda _fd: True)  # noqa: B010  mypy forbids it in plain words


def head_moved_after_files() -> None:
    """Pages are removed, and then the head moves."""
    early = (
        "for number in range(plan.head_page, plan.steps[-1].page_number if plan.steps else 0):\n"
        "                store.folder.remove(fmt.page_name(store.prefix, number))\n"
        "            removed = self._move_head"
    )
    rewrite(trimmer.Trimmer, "trim_to", ("removed = self._move_head", early))


def trim_is_quadratic() -> None:
    """Files are removed under the lock, and each time the directory is listed."""
    loop = """    for name in self._retired(store, kept):
        status = folder.status(name)
        removed += 0 if status is None else status.st_size
        folder.remove(name)
"""
    listed = loop.replace(
        "folder.remove", "retired(prefix, folder.names(), head_page); folder.remove"
    )
    locked = "with store.roller.lock.exclusive(store.lock_timeout, 'trimming the queue'):"
    rewrite(
        trimmer.Trimmer,
        "remove_retired",
        (loop, f"    {locked}\n{textwrap.indent(listed, '    ')}"),
    )


def moved_consumer_not_looked_at() -> None:
    """The cut is done as planned, even if consumers were made or moved since."""
    rewrite(
        trimmer.Trimmer,
        "_move_head",
        ("if not store.read_meta.made_none_since", "if 0 and store.read_meta.made_none_since"),
        ("if any(place.moved_back", "if False and any(place.moved_back"),
    )


def head_page_first() -> None:
    """The head's page is stored before its sequence."""
    rewrite(read_meta.ReadMeta, "advance", _swapped(read_meta.ReadMeta))


def _swapped(owner: Any) -> tuple[str, str]:  # noqa: ANN401  a class
    """Return the two stores of `advance`, and the same in the other order."""
    import inspect  # noqa: PLC0415
    import textwrap  # noqa: PLC0415

    text = textwrap.dedent(inspect.getsource(owner.advance))
    lines = [line for line in text.splitlines() if ".store(" in line]
    old = "\n".join(lines)
    return old, "\n".join(reversed(lines))


def unacked_not_looked_at() -> None:
    """Retention ignores the places of named consumers."""
    rewrite(
        trim_plan.TrimPlanner,
        "plan",
        ("needed = min(positions.values(), default=math.inf)", "needed = math.inf"),
    )


def trim_without_lock() -> None:
    """Two processes may trim at once, and neither checks for the other."""
    rewrite(
        trimmer.Trimmer,
        "_move_head",
        ('with store.roller.lock.exclusive(store.lock_timeout, "trimming the queue"):', "if True:"),
        ("store.read_meta.head_page != plan.head_page", "False"),
    )
    rewrite(read_meta.ReadMeta, "advance", ("assert (number - before) % 2 == 1", "pass"))


def page_emptied_before_it_goes() -> None:
    """A retired page is truncated, so that its room is there at once."""
    rewrite(
        trimmer.Trimmer,
        "remove_retired",
        (
            "folder.remove(name)",
            (
                "import os\n"
                "        with contextlib.suppress(FileNotFoundError):  # as `remove` does\n"
                "            os.truncate(folder.full(name), 0)\n"
                "        folder.remove(name)"
            ),
        ),
    )


def room_never_asked_for() -> None:
    """There is always room for another page."""
    rewrite(
        size_limit.SizeLimit,
        "allows",
        ("if count <= self.page_limit:", "if True:"),
    )


def expired_without_head() -> None:
    """`Expired` reports the very first message as the head."""
    rewrite(store.Store, "expired", ("head = self.read_meta.head_sequence", "head = 0"))


def ack_before_receive() -> None:
    """A named consumer's cursor advances with what it receives."""
    receive, receive_many = (
        named_consumer.NamedConsumer.receive,
        named_consumer.NamedConsumer.receive_many,
    )

    def one(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        message = receive(self, *args, **options)
        self._cursor.meta.move(self.sequence)
        return message

    def many(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        batch = receive_many(self, *args, **options)
        self._cursor.meta.move(self.sequence)
        return batch

    setattr(named_consumer.NamedConsumer, "receive", one)  # noqa: B010  mypy forbids it in plain words
    setattr(named_consumer.NamedConsumer, "receive_many", many)  # noqa: B010  the same


def cursor_not_lowered() -> None:
    """Recovery ignores cursors."""
    setattr(power_loss_recovery, "lower_cursors", lambda *_: None)  # noqa: B010  the same


def lowered_cursor_not_synced() -> None:
    """A cursor is lowered by a store, which reaches the disk at any time or never."""

    def lower(folder: Any, prefix: str, queue_id: bytes, *rest: Any) -> None:  # noqa: ANN401
        _, tail, *_ = rest
        for name in cursor.cursor_names(folder, prefix):
            words = cursor.CursorMeta(folder, prefix, queue_id, name, writable=True)
            if words.next_sequence > tail:
                words.move(tail)

    setattr(power_loss_recovery, "lower_cursors", lower)  # noqa: B010  the same


def cursor_not_synced_before_head() -> None:
    """T1 leaves the cursors out."""
    rewrite(trimmer.Trimmer, "_secure", ("sync_cursor(folder, prefix, name)", "pass"))


def head_not_synced() -> None:
    """T3 is left out."""
    rewrite(
        trimmer.Trimmer,
        "remove_retired",
        ("sync_state(folder, fmt.read_meta_name(prefix))", "pass"),
    )


def new_head_page_not_synced() -> None:
    """T1 leaves out the page that becomes the head, and its name."""
    rewrite(
        trimmer.Trimmer,
        "_secure",
        ("self._sync_header(store, header, whole=plan.has_flow)", "pass"),
        ("folder.sync()", "pass"),
    )


def place_found_without_lock() -> None:
    """Seeking finds its place, and protects it a little later."""
    rewrite(
        named_consumer.NamedConsumer,
        "seek",
        (
            'with store.roller.lock.exclusive(store.lock_timeout, "moving a consumer"):',
            "if True:",
        ),
        (
            "self._cursor.meta.seek(self.sequence, store.clock())",
            (
                "__import__('time').sleep(0.002)\n        "
                "self._cursor.meta.seek(self.sequence, store.clock())"
            ),
        ),
    )
