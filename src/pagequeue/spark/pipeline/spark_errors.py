"""Errors of this package that come back from Spark as text, among much else."""

from __future__ import annotations

import re
from typing import Final

from pagequeue import errors

OWN: Final = re.compile(r"^(?:pagequeue\.errors\.)(\w+): (.+)$", re.MULTILINE)


def told(error: Exception) -> None:
    """Raise the error of this package that one of Spark's speaks of, if it does."""
    match = OWN.search(str(error))
    if match is None:
        return
    kind = getattr(errors, match[1], None)
    if isinstance(kind, type) and issubclass(kind, errors.PageQueueError):
        raise kind(match[2]) from error
