"""Changes of a queue's files from outside: bytes overwritten, and a pretended power cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def overwrite(path: Path | str, position: int, data: bytes) -> None:
    """Write bytes into a file, as damage would."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def pretend_power_cut(directory: Path | str, prefix: str = "queue") -> bool:
    """Give a queue's shared state another boot id; no process may have the queue open.

    Returns:
        whether there was any: a queue whose creation was interrupted has none.
    """
    from pagequeue import format as fmt  # noqa: PLC0415  a campaign chooses the core first
    from pagequeue.meta.write_meta import WriteMeta  # noqa: PLC0415

    path = os.path.join(directory, fmt.write_meta_name(prefix))
    if not os.path.exists(path):
        return False
    overwrite(path, WriteMeta.LOCK_KEY, b"\x55" * WriteMeta.LOCK_KEY_BYTES)
    return True
