"""Shipped pages on a cluster: a master and two workers as processes, and a separate driver.

Only the paths are the same for driver and tasks: they are other processes, in other working
directories, on what Spark takes for other hosts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagequeue import Queue

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from spark_cluster import HOSTS, cluster, environment
from spark_cluster_driver import SLOW_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.nightly]
SHIPPING = 3
COUNT = 2000


def ship_all(there: Path) -> dict[str, int]:
    """Make a queue for each of several hosts, and ship it in two calls; return their bytes."""
    sizes = {}
    for host in range(SHIPPING):
        name = f"host-{host}"
        with Queue(there / name, page_bytes=16384) as queue:
            for half in range(2):
                with queue.producer() as producer:
                    for number in range(half * COUNT, (half + 1) * COUNT):
                        producer.send(b"%d of %d" % (number, host))
                queue.rotate()
                if host == 1 and half == 0:
                    queue.compress()
                queue.ship(there / "ships" / name)
            sizes[name] = sum(len(message.payload) for message in queue.replay())
    return sizes


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a driver found on a cluster; both are gone."""
    pytest.importorskip("zstandard")
    there = tmp_path_factory.mktemp("cluster")
    sizes = ship_all(there)
    script = Path(__file__).parents[1] / "support" / "spark_cluster_driver.py"
    (there / "driver").mkdir()
    with cluster(there) as master:
        run = subprocess.run(
            [sys.executable, str(script), master, str(there)],
            cwd=there / "driver",
            env=environment(there),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return {**found, "there": there, "sizes": sizes}


def test_ships_of_many_hosts_are_one_table(done: dict[str, Any]) -> None:
    """Every message once, by a glob, compressed ones too."""
    queues = done["read"]["queues"]
    assert sorted(queues) == sorted(done["sizes"])
    for name, row in queues.items():
        assert (row["rows"], row["first"], row["last"]) == (2 * COUNT, 0, 2 * COUNT - 1)
        assert row["size_bytes"] == done["sizes"][name]


def test_tasks_run_where_the_driver_is_not(done: dict[str, Any]) -> None:
    """On both workers, in working directories of their own."""
    assert done["read"]["partitions"] > 2
    folders = done["read"]["folders"]
    assert len(folders) == len(HOSTS)
    for host in HOSTS:
        assert any(f"worker-{host}" in folder for folder in folders)


def test_a_speculated_write_has_its_rows_once(done: dict[str, Any]) -> None:
    """The first attempt hangs in the middle of its rows, a second one wins; in order, each once."""
    write = done["write"]
    assert "0-0.begun" in write["marks"]
    assert "0-0.done" not in write["marks"]
    assert "0-1.done" in write["marks"]
    assert write["seconds"] < SLOW_SECONDS
    with Queue(done["there"] / "written") as queue:
        assert queue.verify().ok
        assert [m.payload for m in queue.replay()] == [b"%d" % n for n in range(5000)]


def test_a_streamed_write_survives_its_executor(done: dict[str, Any]) -> None:
    """It is killed in the middle of its rows; the other one does them, and each is there once."""
    assert done["stream"]["killed"]
    with Queue(done["there"] / "streamed") as queue:
        assert queue.verify().ok
        found = sorted(message.payload for message in queue.replay())
    assert found == sorted(
        b"%d of %d" % (number, host) for host in range(SHIPPING) for number in range(2 * COUNT)
    )
