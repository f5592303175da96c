"""Write an archive of the classes that Spark loads, so that the next JVMs need not load them again.

    SPARK_SUBMIT_OPTS=-XX:ArchiveClassesAtExit=FILE python .ci/share_classes.py

To load and verify them is a third of what a short session takes, and the same in each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pagequeue.spark
from pagequeue import Queue

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def use(spark: pagequeue.spark.SparkSession, there: Path) -> None:
    """Read, group, stream and write, as tests and campaigns do."""
    with Queue(there / "from") as queue, queue.producer() as producer:
        producer.send_many([b"%d" % number for number in range(1000)])
    for reader in ("native", "python"):
        table = pagequeue.spark.read(spark, there / "from", reader=reader)
        table.groupBy("payload").count().orderBy("count").collect()
        table.write.parquet(str(there / reader))
    spark.read.parquet(str(there / "native")).count()
    stream = pagequeue.spark.read_stream(spark, there / "from").select("payload")
    writer = stream.writeStream.format("pagequeue").option("path", str(there / "to"))
    writer = writer.option("checkpointLocation", str(there / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Use a session, and wait for the end of its JVM, which writes the archive."""
    spark = pagequeue.spark.session(master="local[2]", settings=SETTINGS)
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - the JVM is a process of it
    with tempfile.TemporaryDirectory(prefix="pagequeue-classes-") as there:
        use(spark, Path(there))
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
