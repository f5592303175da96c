"""Bugs of the drop-in that are planted in Python; `patches.py` offers them by name."""

from __future__ import annotations

from pagequeue import multiprocessing
from pagequeue.group import group
from pagequeue.multiprocessing import large_objects
from stress.plants.rewrite import rewrite


def done_when_got() -> None:
    """An object is acknowledged when it is got, and task_done has no effect."""
    rewrite(
        multiprocessing.JoinableQueue,
        "_get",
        ("message = claim.message", "message = claim.message\n    claim.ack()"),
    )
    never_done()


def never_done() -> None:
    """An object stays unacknowledged when it is done."""
    rewrite(multiprocessing.JoinableQueue, "task_done", ("claim.ack()", "pass"))


def wrong_one_done() -> None:
    """The object that was got last is acknowledged, and not the first."""
    rewrite(multiprocessing.JoinableQueue, "task_done", ("mine.popleft()", "mine.pop()"))


def dead_workers_unnoticed() -> None:
    """The check of owners takes them all for living."""
    rewrite(
        group.Group,
        "_release_dead_owners",
        ("owner != self._owner and not self._owner_lock.is_held(owner)", "False"),
    )


def large_gone_when_got() -> None:
    """A large object's file is removed when it is got, and not when it is done."""
    rewrite(
        multiprocessing.JoinableQueue,
        "_get",
        (
            "self._files[message.sequence] = message.payload",
            "self._open().large.forget(message.payload)",
        ),
    )


def large_swept_while_others_read() -> None:
    """An opener removes large files that no message names, though other processes have it open."""
    rewrite(
        large_objects.LargeObjects, "__init__", ("if _try_lock(fd):", "if _try_lock(fd) or True:")
    )


def large_left_for_ever() -> None:
    """Large files that no message names are never removed."""
    rewrite(large_objects.LargeObjects, "__init__", ("if _try_lock(fd):", "if False:"))
