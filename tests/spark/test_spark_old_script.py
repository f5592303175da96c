"""A script from before the native reader and sink: it runs as it is, and they do its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import Queue

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pagequeue.spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COUNT = 600
FIRST = 1_700_000_000_000_000_000

# Only names that there were before the readers could be chosen.
SCRIPT = """
clicks = (
    spark.read.format("pagequeue")
    .option("since", "2023-11-14T22:13:20.000100Z")
    .option("until", str(1_700_000_000_000_500_000))
    .option("fromSequence", 120)
    .option("toSequence", 480)
    .option("prefix", "queue")
    .option("partitionBytes", 1 << 20)
    .option("trust", "other_owner")
    .option("onDamage", "fail")
    .option("onExpired", "fail")
    .option("durableOnly", "false")
    .load(there + "/clicks")
)
found["range"] = [row.sequence for row in clicks.orderBy("sequence").collect()]
found["columns"] = clicks.columns
some = spark.read.format("pagequeue").schema("sequence bigint, payload binary")
found["some"] = some.load(there + "/clicks").selectExpr("sum(length(payload)) n").first().n
since = 1_700_000_000_000_000_000
read = pagequeue.spark.read(spark, there + "/clicks", columns=["sequence"], since=since)
found["count"] = read.count()
upper = clicks.selectExpr("upper(cast(payload as string)) payload", "timestamp_ns")
upper.write.format("pagequeue").mode("append").option("pageBytes", 65536).save(there + "/upper")
query = (
    spark.readStream.format("pagequeue")
    .option("startingOffsets", "earliest")
    .option("maxRecordsPerTrigger", 250)
    .option("consumer", "copier")
    .load(there + "/clicks")
    .selectExpr("payload")
    .writeStream.format("pagequeue")
    .option("path", there + "/copies")
    .option("pageBytes", 65536)
    .option("checkpointLocation", there + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
found["batches"] = [one["numInputRows"] for one in query.recentProgress]
found["gaps"] = pagequeue.spark.gaps(clicks).count()
"""


@pytest.mark.slow
def test_script_from_before_the_native_reader_runs_unchanged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All options and functions of then; the log says that the native ones read and wrote."""
    payloads = [b"click %d" % number for number in range(COUNT)]
    with Queue(tmp_path / "clicks", page_bytes=16_384) as queue, queue.producer() as producer:
        times = [FIRST + 1000 * number for number in range(COUNT)]
        producer.send_many(payloads, timestamps=times)
    found: dict[str, Any] = {}
    with caplog.at_level("INFO", "pagequeue"):
        names = {"spark": spark, "there": str(tmp_path), "found": found, "pagequeue": pagequeue}
        exec(SCRIPT, names)
    assert found["range"] == list(range(120, 480))
    assert found["columns"] == ["queue", "sequence", "timestamp", "timestamp_ns", "payload"]
    assert found["some"] == sum(map(len, payloads))
    assert found["count"] == COUNT
    assert found["batches"][:3] == [250, 250, 100]
    assert found["gaps"] == 0
    with Queue(tmp_path / "upper") as queue:
        sent = [(m.timestamp, m.payload) for m in queue.replay()]
    assert sent == [(times[n], payloads[n].upper()) for n in range(120, 480)]
    with Queue(tmp_path / "copies") as queue:
        assert [m.payload for m in queue.replay()] == payloads
    readers = [text for text in caplog.messages if ": read by " in text]
    assert readers
    assert all("native reader" in text for text in readers)
    sinks = [text for text in caplog.messages if ": written by " in text]
    assert len(sinks) >= 2
    assert all("native sink" in text for text in sinks)
