"""A worker of the power-cut campaign that records only runs with named consumers and retention."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import driver
from stress.cut.worker import Worker

if TYPE_CHECKING:
    from stress.campaign import Budget, Outcome

KEEPING_TURNS: Final = ("trim", "take")


def campaign(budget: Budget) -> Outcome:
    """Be one worker."""
    directory = tempfile.mkdtemp(prefix="pagequeue-cut-", dir=driver.scratch_directory())
    try:
        return Worker(budget, Path(directory), KEEPING_TURNS).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
