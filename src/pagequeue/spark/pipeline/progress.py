"""Progress of a Spark job."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2


@contextlib.contextmanager
def watched(spark: SparkSession, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Tell, while the block runs, how many tasks of the stages at work are done, of how many."""
    if progress is None:
        yield
        return
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                done = sum(stage.numCompletedTasks for stage in known)
                progress(done, sum(stage.numTasks for stage in known))

    watcher = threading.Thread(target=poll, daemon=True, name="pagequeue-spark-progress")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
