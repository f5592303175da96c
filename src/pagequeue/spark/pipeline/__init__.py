"""What is done with queues by Spark: an archive in Parquet, the way back, and figures.

archive(spark, "hosts/*/events", "table", consumer="archive")
replay(spark, "table", "again", since="1h")
print(profile(spark, "table").queues)
with reading("table"):  # it is not compacted meanwhile
    rows = pyarrow.parquet.read_table("table")
"""

from __future__ import annotations

from pagequeue.profile.figures import Profile, QueueProfile
from pagequeue.spark.pipeline.archiving import Archived, archive
from pagequeue.spark.pipeline.profiling import profile
from pagequeue.spark.pipeline.reading import reading
from pagequeue.spark.pipeline.replaying import Replayed, replay

__all__ = [
    "Archived",
    "Profile",
    "QueueProfile",
    "Replayed",
    "archive",
    "profile",
    "reading",
    "replay",
]
