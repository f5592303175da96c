"""Forbids that Spark loses, doubles, reorders or half shows a row, whichever process is killed.

A producer sends numbered messages, some larger than a page, to a queue that keeps few pages and
blocks when Spark, a named consumer, lags. A driver (`spark_driver`) copies them to another queue by
a streaming query, and writes jobs of labelled rows to the same one. Its Python workers (of tasks,
of the source, of commits) are killed at random moments, and now and then the driver itself, Java
and all; the next one continues from the checkpoint. The seed chooses the reader of the queries: the
native one, the Python source, or now one and now the other. Every other kill waits until a
micro-batch was done since the last one, so that there are rows to lose. Meanwhile a reader checks
whether it ever sees a part of a job. In the end a last driver finishes: each message must be there
once and in order, each job that was reported as done in whole, each other one in whole or not at
all, in a queue without problems; and no query may have failed with damage or a gap, which there
never was. A case is a process that was killed. Needs the extra `spark` and a Java.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from pagequeue import PageQueueError, Queue, Retention
from stress.campaign import Budget, Outcome
from stress.spark_driver import PAGE_BYTES, row_of

SHORT_SECONDS = 25.0
VIOLATIONS_MAX = 5
PAGES = 12
START_SECONDS = 300.0
END_SECONDS = 300.0
ORPHAN_SECONDS = 5.0
"""So long a Java may live on alone."""
DRIVER_SHARE = 0.12
"""So many of the kills are those of a driver."""
PATIENT_SHARE = 0.5
"""So many of the kills wait for a micro-batch."""
PATIENCE_SECONDS = 40.0
READERS = ("native", "mixed", "native", "python")
"""What reads the source: one of them in all of a run; with "mixed" each query takes its own."""
KILL_SECONDS = 0.7
"""Mean time between two kills."""
FALSE_ALARM = re.compile(
    r"pagequeue\.errors\.(Corrupt\w+|MissingPage|Expired|SequenceOutOfRange|QueueNotFound): .{,300}"
)
ROOT = Path(__file__).resolve().parent.parent


class Feeder(threading.Thread):
    """Sends numbered messages until it is told to stop."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.directory = directory
        self.stopping = threading.Event()
        self.sent = 0
        self.failure = ""

    def run(self) -> None:
        """Send; a full queue waits for Spark."""
        retention = Retention(max_bytes=PAGES * PAGE_BYTES)
        try:
            with Queue(
                self.directory, page_bytes=PAGE_BYTES, retention=retention, on_full="block"
            ) as queue:
                queue.consumer("spark").close()
                with queue.producer() as producer:
                    while not self.stopping.wait(0.03):
                        for _ in range(random.Random(self.sent).choice((1, 1, 5, 40))):
                            producer.send(row_of("s", self.sent))
                            self.sent += 1
        except PageQueueError as error:
            self.failure = f"the producer: {error}"


class Watcher(threading.Thread):
    """Polls the target all the time: no job may be seen in part."""

    def __init__(self, directory: Path, jobs: Path) -> None:
        super().__init__(daemon=True)
        self.directory = directory
        self.jobs = jobs
        self.stopping = threading.Event()
        self.looks = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        """Check, twice a second."""
        while not self.stopping.wait(0.5):
            with contextlib.suppress(PageQueueError):  # it is not made yet
                found = Counter(label_of(p) for p in payloads(self.directory))
                counts = job_counts(self.jobs)
                self.wrong += [
                    f"{label}: a reader saw {found[label]} of {count} rows"
                    for label, (count, _) in counts.items()
                    if found[label] not in {0, count}
                ]
                self.looks += 1


def payloads(directory: Path) -> list[bytes]:
    """Return all payloads, as a reader sees them."""
    with Queue(directory, read_only=True) as queue:
        return [message.payload for message in queue.replay()]


def acknowledged(directory: Path) -> int:
    """Return up to which message of the source all is done."""
    with Queue(directory, read_only=True) as queue:
        return {info.name: info.next_sequence or 0 for info in queue.consumers()}.get("spark", 0)


def label_of(payload: bytes) -> str:
    """Return what a row belongs to."""
    return payload.partition(b" ")[0].decode()


def job_counts(path: Path) -> dict[str, tuple[int, bool]]:
    """Return each job's number of rows, and whether it was reported as done."""
    jobs: dict[str, tuple[int, bool]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        word, *rest = line.split(" ", 2)
        if word in {"begin", "done"} and len(rest) == 2:
            jobs[rest[0]] = (int(rest[1]), word == "done")
    return jobs


def workers(session_id: int) -> list[int]:
    """Return the Python processes of a driver's Java, the daemon that forks them included."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes()
            if int(fields[3]) == session_id and b"pyspark" in command and b"java" not in command:
                found.append(int(path.name))
    return found


class Round:
    """One directory, driver after driver."""

    module = "stress.spark_driver"

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.rng = rng
        self.reader = rng.choice(READERS)
        self.life = 0
        self.kills: Counter[str] = Counter()
        self.batches = 0
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the next driver, in a new session; wait until it works."""
        self.life += 1
        log = (self.directory / "log").open("ab")
        self.driver = subprocess.Popen(
            [sys.executable, "-m", self.module, str(self.directory), str(self.life), self.reader],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        deadline = time.monotonic() + START_SECONDS
        while not (self.directory / f"life{self.life}").exists():
            if self.driver.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError("a driver did not start: " + self.last_words())
            time.sleep(0.1)

    def last_words(self) -> str:
        """Return the end of what drivers printed and noted."""
        parts = [self.directory / "log", self.directory / "jobs"]
        return " | ".join(path.read_text()[-1500:] for path in parts if path.exists())

    def kill_driver(self) -> None:
        """Kill the driver with its Java and all of its workers."""
        driver = self.driver
        if driver is None:
            return
        java_too = self.rng.random() < 0.7
        if java_too:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
        driver.kill()
        driver.wait()
        begun = time.monotonic()
        while left := self.left():
            for pid in left if java_too or time.monotonic() > begun + ORPHAN_SECONDS else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > begun + END_SECONDS:
                raise TimeoutError(f"processes of a killed driver do not end: {left}")
            time.sleep(0.05)
        self.driver = None

    def left(self) -> list[int]:
        """Return what is alive of the driver's session."""
        assert self.driver is not None
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.driver.pid and fields[0] != "Z":
                    found.append(int(path.name))
        return found

    def pause(self, seconds: float, deadline: float) -> None:
        """Let it work for about so long, or first until a micro-batch was done.

        The last one before the pause, perhaps: what is done is acknowledged when the next begins.
        """
        source = self.directory / "from"
        before = acknowledged(source)
        if self.rng.random() < PATIENT_SHARE:
            ends = min(deadline, time.monotonic() + PATIENCE_SECONDS)
            while acknowledged(source) == before and time.monotonic() < ends:
                time.sleep(0.05)
        time.sleep(self.rng.expovariate(1 / seconds))
        self.batches += acknowledged(source) > before

    def kill_something(self) -> None:
        """Kill a worker, or the driver; a new one is started then."""
        assert self.driver is not None
        if self.rng.random() < DRIVER_SHARE:
            self.kill_driver()
            self.kills["drivers"] += 1
            self.start()
            return
        found = workers(self.driver.pid)
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(found), signal.SIGKILL)
                self.kills["workers"] += 1

    def finish(self) -> None:
        """Have the driver do the rest, and wait for it."""
        (self.directory / "stop").touch()
        assert self.driver is not None
        try:
            code = self.driver.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            raise TimeoutError(f"the last driver did not finish ({code}): {self.last_words()}")


def false_alarms(path: Path) -> list[str]:
    """Return the errors of queries that found damage or a gap, which there never was."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = (FALSE_ALARM.search(line) for line in lines if line.startswith("failed"))
    return [f"a query failed with {match[0]}" for match in found if match]


def judge(directory: Path, sent: int) -> list[str]:
    """Return what is wrong with the rows of the target."""
    wrong = false_alarms(directory / "jobs")[:VIOLATIONS_MAX]
    there = payloads(directory / "to")
    streamed = [payload for payload in there if payload.startswith(b"s ")]
    wanted = [row_of("s", number) for number in range(sent)]
    if streamed != wanted:
        lost = len(set(wanted) - set(streamed))
        doubled = len(streamed) - len(set(streamed))
        wrong.append(f"of {sent} messages {lost} are lost, {doubled} doubled, or out of order")
    at: dict[str, list[int]] = {}
    for number, payload in enumerate(there):
        at.setdefault(label_of(payload), []).append(number)
    for label, (count, done) in job_counts(directory / "jobs").items():
        places = at.get(label, [])
        rows = [there[place] for place in places]
        whole = rows == [row_of(label, number) for number in range(count)]
        together = not places or places[-1] - places[0] == count - 1
        if (rows or done) and not (whole and together):
            wrong.append(f"{label}: {len(rows)} of {count} rows, done: {done}, whole: {whole}")
    with Queue(directory / "to") as queue:
        wrong += [f"verify: {problem}" for problem in queue.verify().problems]
    return wrong


def run(budget: Budget) -> Outcome:
    """Kill until the time is over, then finish and judge."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        left_out = {"left out": f"all: {missing[0]} is not installed"}
        return Outcome(0, ["it needs an extra: pip install 'pagequeue[spark]'"], left_out)
    deadline = time.monotonic() + budget.seconds
    rng = random.Random(budget.seed)
    directory = Path(tempfile.mkdtemp(prefix="pagequeue-spark-"))
    outcome = Outcome(0)
    this = Round(directory, rng)
    feeder = Feeder(directory / "from")
    watcher = Watcher(directory / "to", directory / "jobs")
    try:
        feeder.start()
        while not (directory / "from" / "queue-readMeta.spark").exists():
            time.sleep(0.01)
        this.start()
        watcher.start()
        limit = budget.cases or sys.maxsize
        while time.monotonic() < deadline and sum(this.kills.values()) < limit:
            this.pause(KILL_SECONDS, deadline)
            this.kill_something()
            if watcher.wrong or feeder.failure or false_alarms(directory / "jobs"):
                break
        feeder.stopping.set()
        feeder.join(END_SECONDS)  # it can be waiting for Spark, which still runs
        if not false_alarms(directory / "jobs"):  # it would have them for ever
            this.finish()
        watcher.stopping.set()
        watcher.join(END_SECONDS)
        outcome.violations = [*judge(directory, feeder.sent), *watcher.wrong[:VIOLATIONS_MAX]]
        if feeder.failure:
            outcome.violations.append(feeder.failure)
        with Queue(directory / "from", read_only=True) as queue:
            outcome.notes["retention took"] = queue.head_sequence
    except TimeoutError as error:
        outcome.violations.append(str(error))
    finally:
        feeder.stopping.set()
        watcher.stopping.set()
        this.kill_driver()
    outcome.cases = sum(this.kills.values())
    jobs = job_counts(directory / "jobs")
    done = sum(is_done for _, is_done in jobs.values())
    outcome.notes |= {
        "reader": this.reader,
        "messages": feeder.sent,
        "jobs": len(jobs),
        "of them done": done,
        "kills after a batch": this.batches,
        "checks": watcher.looks,
        **{f"killed {kind}": n for kind, n in this.kills.items()},
    }
    if outcome.violations:
        outcome.notes["directory"] = str(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome
