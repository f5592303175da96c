"""The lock that keeps a page's file from being used again: shared, on whatever has it open.

A page that retention took can become the next page (I13). Whoever has it open or mapped has a
shared lock on it, which belongs to the open file: a map keeps it behind `close`, a child of a fork
inherits it, and the kernel lets go of it with the last of them, however they end. Whoever uses a
file again takes that lock alone, after the file lost its name, and without waiting.
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
"""What a file system without such locks says; on it nobody gets one alone either."""
HOLD_SECONDS: Final = 2.0
"""So long somebody else may have a page alone that still has its name."""
HOLD_STEP_SECONDS: Final = 0.001


def is_page(name: str) -> bool:
    """Whether a file of this name is a page, whatever the prefix."""
    return PAGE_FILE.fullmatch(name) is not None


def hold(fd: int) -> bool:
    """Share the lock for as long as the file is open or mapped; False: somebody has it alone.

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
