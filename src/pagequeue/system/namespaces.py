"""Namespaces of this process: of its thread ids, and of its clocks.

Containers share files and the kernel, and neither thread ids nor the clocks that count from the
boot. What is
written into a shared file must not depend on either: see "Locks and namespaces" in FORMAT.md.
"""

from __future__ import annotations

import os
from typing import Final

from pagequeue.system.os_errors import refuse_without_resource

NAMESPACE_BYTES: Final = 16
UNKNOWN_NAMESPACE: Final = bytes(NAMESPACE_BYTES)
NAMESPACES: Final = "/proc/self/ns"
CLOCK_OFFSETS: Final = "/proc/self/timens_offsets"


def pid_namespace() -> bytes:
    """Return the PID namespace of this process's thread ids; zeros: unknown.

    Device and inode of the namespace are unique on a host for as long as a process is in it.
    """
    try:
        status = os.stat(f"{NAMESPACES}/pid")
    except OSError:  # no /proc, or that of a namespace in which this process has no id
        return UNKNOWN_NAMESPACE
    return status.st_dev.to_bytes(8, "little") + status.st_ino.to_bytes(8, "little")


def clock_offsets() -> tuple[int, int] | None:
    """Return how many ns the monotonic and the boot clock of this process are ahead of the host's.

    None: unknown, because /proc has no entry, or because the process gave its children another time
    namespace than its own, and /proc shows theirs.

    Raises:
        SystemLimit: no descriptor is left to read it.
    """
    try:
        names = os.listdir(NAMESPACES)
        if "time" not in names:
            return 0, 0  # the kernel has one clock for all
        own, childrens = (os.stat(f"{NAMESPACES}/{name}") for name in ("time", "time_for_children"))
        with open(CLOCK_OFFSETS, "rb", 0) as file:  # as text it takes three times as long
            rows = [line.split() for line in file.read().decode("ascii").splitlines()]
        if (own.st_dev, own.st_ino) != (childrens.st_dev, childrens.st_ino):
            return None
        offsets = {name: int(seconds) * 10**9 + int(ns) for name, seconds, ns in rows}
        return offsets["monotonic"], offsets["boottime"]
    except (ValueError, KeyError):
        return None
    except OSError as error:
        refuse_without_resource(error, CLOCK_OFFSETS, "reading how the clock differs")
        return None
