"""A Spark driver that `no_archive_loses_a_row` starts, and kills at random times.

It archives a queue until it is told to stop, then archives the rest, and replays the table, all of
which is one hour or two, to another queue in slices.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

from stress import driver

PAGE_BYTES = 16384
SLICES = 8
"""About so many: fewer than twice as many messages are in one as there would be in equal ones."""


def main(directory: str, life: int, reader: str) -> None:
    """Be a driver."""
    from pagequeue.spark import session  # noqa: PLC0415 - the campaign reports a missing extra
    from pagequeue.spark.pipeline import archive, compaction, replay, table_layout  # noqa: PLC0415 - the same
    from stress.spark_driver import SETTINGS, reader_of  # noqa: PLC0415 - the same

    driver.apply_patch()
    there = Path(directory)
    spark = session("campaign", master="local[2,6]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    (there / f"life{life}").touch()
    stop = threading.Event()
    compaction.SAVED_OPEN = 3  # type: ignore[misc]

    def look() -> None:
        while not (there / "stop").exists() and os.getppid() != 1:
            time.sleep(0.1)
        stop.set()

    threading.Thread(target=look, daemon=True).start()
    source, table = str(there / "from"), str(there / "table")
    rng = random.Random(life)
    if not stop.is_set():
        archive(
            spark,
            source,
            table,
            every=0.1,
            consumer="spark",
            stop=stop,
            maxRecordsPerTrigger=700,
            reader=reader_of(reader, rng),
        )
    archive(spark, source, table, consumer="spark", reader=reader_of(reader, rng))
    (there / "archived").touch()
    slice_count = -(-sum(table_layout.ends(table).values()) // SLICES) or 1
    replay(spark, table, there / "to", page_bytes=PAGE_BYTES, slice_count=slice_count)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
