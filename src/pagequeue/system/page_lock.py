"""The lock that keeps a page's file from being reused: shared by all that have it open.

The file of a page that retention removed can become the next page (I13). Every open or mapped page
holds a shared lock, which belongs to the open file description: a map keeps it after `close`, a
child of a fork inherits it, and the kernel releases it with the last of them, however they end. A
process that reuses a file takes that lock exclusively, without waiting, after the file lost its
name.
"""

from __future__ import annotations

import errno
import fcntl
import re
from typing import Final

from pagequeue import format as fmt

PAGE_FILE: Final = re.compile(
    rf"(?!.*{re.escape(fmt.CURSOR)}).+-\d{{{fmt.PAGE_NUMBER_DIGITS}}}\.page"
)
NO_LOCKS: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""Errors of a file system without such locks; it gives no exclusive ones either."""
HOLD_SECONDS: Final = 2.0
"""How long to wait for another program's exclusive lock on a page that still has its name."""
HOLD_STEP_SECONDS: Final = 0.001


def is_page(name: str) -> bool:
    """Whether a file of this name is a page, whatever the prefix."""
    return PAGE_FILE.fullmatch(name) is not None


def hold(fd: int) -> bool:
    """Share the lock while the file is open or mapped; False: it is held exclusively.

    Raises:
        OSError: the system's own, when it has no more locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
