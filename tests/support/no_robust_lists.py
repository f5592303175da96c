"""What the tests of the writers' lock by flock run in processes of their own.

A filter makes `get_robust_list` fail, as the emulators do that have no robust mutexes. Children of
a process that has the filter have it too.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = {"x86_64": (0xC000003E, 274), "aarch64": (0xC00000B7, 100)}
"""By machine: how the kernel names it, and the call's number."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of BPF
ALLOW, ENOSYS = 0x7FFF0000, 0x00050000 | 38
SMALL = 4096
EACH = 40
HERE = str(Path(__file__).parent)


def refuse() -> bool:
    """Have the call refused from now on; return whether it is."""
    if platform.machine() not in NUMBERS:
        return False
    kind, number = NUMBERS[platform.machine()]
    program = [
        (LOAD, 0, 0, 4),
        (EQUAL, 0, 3, kind),
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 1, number),
        (RETURN, 0, 0, ENOSYS),
        (RETURN, 0, 0, ALLOW),
    ]
    steps = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in program))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    of = Program(len(program), ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(of), 0, 0) == 0
    )


def send(directory: str) -> None:
    """Send from two threads; then die without closing anything."""
    from pagequeue import Queue  # noqa: PLC0415 - with the filter

    queue = Queue(directory, page_bytes=SMALL)

    def work(thread: int) -> None:
        producer = queue.producer()
        for i in range(EACH):
            producer.send(b"%d %d" % (thread, i))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.kill(os.getpid(), signal.SIGKILL)


def use(directory: str) -> None:
    """Print which lock there is, what a process sent that died, and what waits for another."""
    if not refuse():
        print(json.dumps(None))
        return
    from pagequeue import Queue, _core, errors  # noqa: PLC0415 - with the filter

    code = f"import sys; sys.path.insert(0, {HERE!r}); import no_robust_lists; "
    command = [sys.executable, "-c", f"{code}no_robust_lists.send(sys.argv[1])", directory]
    with Queue(directory, page_bytes=SMALL) as queue:
        died = subprocess.run(command, check=False).returncode
        queue.producer().send(b"last")
        with queue.group("g") as group:
            claimed = [group.claim(0).message.payload.decode() for _ in range(2 * EACH + 1)]
        refused = []
        with Queue(directory, lock_timeout=0.2) as hasty:
            sender, worker = hasty.producer(), hasty.group("g")
            calls: dict[str, Callable[[], object]] = {
                "queue-writeMeta": lambda: sender.send(b"more"),
                "queue-readMeta.g": lambda: worker.claim(5),
            }
            for name, call in calls.items():
                with open(f"{directory}/{name}", "rb") as other:
                    fcntl.flock(other, fcntl.LOCK_EX)
                    try:
                        call()
                    except errors.LockTimeout as error:
                        refused.append(type(error).__name__)
            sender.send(b"more")
        sequences = [message.sequence for message in queue.consumer().receive_many(1000)]
        print(json.dumps([_core.LOCK_NEEDS_FD, died, claimed, refused, sequences]))
