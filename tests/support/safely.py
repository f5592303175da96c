"""What the tests of safe files share: opening as another user, and exchanging files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import warm

from pagequeue import Queue, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65534
STRANGER = 54321
META = ["queue-allMeta", "queue-writeMeta", "queue-readMeta"]
PAGE, INDEX, LOCK = "queue-0000000001.page", "queue-0000000001.idx", "queue.lock"
WIDE = b"x" * 1300
"""Three messages of this fit into a page."""

OPEN_AS = """
import concurrent.futures.thread, encodings.ascii, json, os, pwd, sys  # while they may be read
from pagequeue import Queue, errors
directory, user, options = json.loads(sys.argv[1])
os.umask(options.pop("umask", 0o022))
os.setgroups([])
os.setgid(user)
os.setuid(user)
try:
    Queue(directory, **options).close()
except errors.PageQueueError as error:
    print(type(error).__name__)
else:
    print("open")
"""


def outcome(directory: Path, **options: Any) -> str:  # noqa: ANN401 - whatever Queue takes
    """Return how an opening ends: "open", or the name of the error."""
    try:
        Queue(directory, **options).close()
    except errors.PageQueueError as error:
        return type(error).__name__
    return "open"


@contextlib.contextmanager
def user(number: int) -> Iterator[None]:
    """Be another user for as long as the block runs; who is not root stays who it is."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(before)


def as_user(user: int, directory: Path, **options: object) -> str:
    """Return how an opening in a process of another user ends; that needs root."""
    travel = json.dumps([str(directory), user, options])
    result = warm.run(
        [sys.executable, "-c", OPEN_AS, travel],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def replace(path: Path, how: str) -> None:
    """Remove a file, or put a copy in its place."""
    data = path.read_bytes()
    path.unlink()
    if how == "replaced":
        path.with_name("copy").write_bytes(data)
        path.with_name("copy").rename(path)
