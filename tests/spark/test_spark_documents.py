"""The blocks of docs/spark.md, run as printed; tests/docs/test_readme.py has the other pages'."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from documents import blocks, run

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyspark

from pagequeue.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
BLOCKS = {mark: text for mark, _, text in blocks("docs/spark.md") if mark}
ZONE, ROWS = "spark.sql.session.timeZone", "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.slow
def test_the_first_block_runs_by_spark_submit(tmp_path: Path) -> None:
    """As a program; what the command line says comes before the defaults of a session."""
    lines = BLOCKS["spark"].splitlines()
    assert lines[-1] == "spark.stop()"
    script = tmp_path / "first.py"
    told = f"print(spark.conf.get({ZONE!r}), spark.conf.get({ROWS!r}))"
    script.write_text("\n".join([*lines[:-1], told, lines[-1]]))
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    for setting in (
        f"{ZONE}=Europe/Berlin",
        "spark.ui.enabled=false",
        "spark.driver.host=127.0.0.1",
        "spark.sql.shuffle.partitions=1",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    ):
        command += ["--conf", setting]
    python = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, str(script)],
        cwd=tmp_path,
        env={**os.environ, **python},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "1000",
        """b'{"USER": 5, "PAGE": "/0"}'""",
        "Europe/Berlin 65536",
    ]


@pytest.mark.parametrize(
    "with_example",
    [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.nightly)],
)
def test_pipeline_block_ends_with_charts(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    with_example: bool,
) -> None:
    """From a queue to a table to charts, by the commands as printed, in one session of Spark.

    `tests/cli/test_cli_endings.py` starts a command of Spark as a process. The last command, with
    20,000 flights, is nightly: `test_spark_flights.py` runs the example with fewer.
    """
    del spark
    monkeypatch.chdir(tmp_path)
    lines = BLOCKS["pipeline"].splitlines()
    assert [line.split(maxsplit=2)[:2] for line in lines[1:]] == [["pagequeue", "spark"]] * 4
    assert lines[-1].startswith("pagequeue spark example")
    run(tmp_path, "bash", "-euo", "pipefail", "-c", lines[0])
    for line in lines[1:] if with_example else lines[1:-1]:
        assert main(shlex.split(line, comments=True)[1:]) == 0
    out = capsys.readouterr().out
    told = ["5,000 messages archived", "5,000 messages replayed"]
    for text in [*told, "20,000 flights archived"] if with_example else told:
        assert text in out
    for name in ("sales.png", "delays.png") if with_example else ("sales.png",):
        assert Path(name).read_bytes().startswith(b"\x89PNG")
