"""A standalone cluster of Spark: a master and two workers as processes, each on its own host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spark_support import linked_home

from pagequeue.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark takes them for two hosts, and a speculated task goes to another one than the first."""
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SECONDS = 90
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


def environment(there: Path) -> dict[str, str]:
    """Return the environment of all processes; no variable names the driver's directory."""
    package = Path(sys.modules["pyspark"].__file__ or "").parent
    home = there / "home"
    classes = os.environ.get("SPARK_SUBMIT_OPTS", "")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(there),
        "JAVA_HOME": find_java().home,
        "SPARK_HOME": str(home) if home.exists() else linked_home(home),
        "SPARK_SUBMIT_OPTS": classes,
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{JVM} {classes}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(package.parent),
    }


class _Process:
    """One process, in its own group, whose output goes to a file."""

    def __init__(self, there: Path, name: str, *arguments: str) -> None:
        work = there / name
        work.mkdir()
        self.log = work / "log"
        its = environment(there)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [f"{its['SPARK_HOME']}/bin/spark-class", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=work,
                env=its,
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """Wait until it prints a line; return that."""
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.log.read_text(errors="replace"))):
            alive = self._process.poll() is None
            if not alive or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.log.read_text(errors='replace')}")
            time.sleep(0.1)
        return found[0]

    def stop(self) -> None:
        """Kill it, and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def cluster(there: Path) -> Iterator[str]:
    """Run a cluster; give the address of its master."""
    with contextlib.ExitStack() as running:
        environment(there)
        master = _Process(
            there, "master", MASTER, "--host", HOSTS[0], "--port", "0", "--webui-port", "0"
        )
        running.callback(master.stop)
        address = master.wait_for(r"spark://[\d.]+:\d+")
        workers = []
        for host in HOSTS:
            arguments = ("--host", host, "--port", "0", "--webui-port", "0", "--cores", "1")
            name = f"worker-{host}"
            worker = _Process(
                there,
                name,
                WORKER,
                *arguments,
                "--memory",
                "600m",
                "--work-dir",
                str(there / name),
                address,
            )
            running.callback(worker.stop)
            workers.append(worker)
        for worker in workers:
            worker.wait_for("Successfully registered with master")
        yield address
