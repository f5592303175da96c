"""The one Spark session that all tests share, and the reason if Spark is not available."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

MISSING = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "2",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
LOGGING = """\
rootLogger.level = off
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
"""


@functools.cache
def why_not() -> str | None:
    """Return why there can be no session here; None: there can. It starts Java, twice."""
    if MISSING:
        return f"{MISSING[0]} is not installed"
    from pagequeue import errors  # noqa: PLC0415 - found out when it is asked for
    from pagequeue.spark.java import find_java  # noqa: PLC0415 - the same

    try:
        find_java()
    except errors.WrongJava as error:
        return str(error)
    return None


def linked_home(there: Path) -> str:
    """Return a SPARK_HOME without Python's zip: workers start three times faster by byte code.

    The one that there is, if it has the jars of PySpark: an archive of classes is for one path.
    """
    import pyspark  # noqa: PLC0415 - it need not be there

    package = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    if home and os.path.realpath(f"{home}/jars") == os.path.realpath(package / "jars"):
        return home
    there.mkdir()
    for path in package.iterdir():
        if path.name != "python":
            (there / path.name).symlink_to(path)
    return str(there)


def start_session() -> SparkSession:
    """Start it: small and quiet."""
    from pagequeue.spark import session  # noqa: PLC0415 - it need not be there

    there = Path(tempfile.mkdtemp(prefix="pagequeue-spark-"))
    atexit.register(shutil.rmtree, there, ignore_errors=True)
    (there / "log4j2.properties").write_text(LOGGING)
    package_path = str(Path(importlib.util.find_spec("pyspark").origin).parent.parent)  # type: ignore[union-attr, arg-type]
    os.environ["SPARK_HOME"] = linked_home(there / "home")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package_path, str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["XDG_CACHE_HOME"] = str(there / "cache")  # the native reader's jar is built here
    options = SETTINGS["spark.driver.extraJavaOptions"]
    logging = f"-Dlog4j2.configurationFile=file:{there / 'log4j2.properties'}"
    return session(
        "tests",
        master="local[2,2]",
        settings={**SETTINGS, "spark.driver.extraJavaOptions": f"{options} {logging}"},
    )


def attempt_fails(how: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes the first attempt of each partition fail in the middle."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - it need not be there

        context = TaskContext.get()
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context is not None and context.attemptNumber() == 0:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "raised":
                    raise RuntimeError("the first attempt fails")
            yield batch.slice(batch.num_rows // 2)

    return each
