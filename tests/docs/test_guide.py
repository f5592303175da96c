"""The programs and commands of the guide run as printed, and keep what they promise."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from documents import run

from pagequeue.tasks import TaskStore

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"```(python|bash)\n(.*?)```", re.DOTALL)
PAGES = {
    "durable-state": ["accounts.py", "bank.py", "upkeep.py"],
    "workflow": ["steps.py", "worker.py", "trouble.py", "join.py"],
    "outbox": ["orders.py", "sender.py"],
    "exactly-once": ["readings.py", "totals.py"],
}
"""The programs of each page, in their order."""
QUICK = ("outbox", "exactly-once")
KILLS_MIN = 12


def blocks(page: str) -> tuple[dict[str, str], list[str]]:
    """Return the programs of a page by name, which their first line has, and its commands."""
    found = BLOCK.findall((DOCS / f"{page}.md").read_text())
    programs = {
        text.partition("\n")[0].removeprefix("# "): text for kind, text in found if kind == "python"
    }
    return programs, [text for kind, text in found if kind == "bash"]


def written(page: str, directory: Path) -> list[str]:
    """Write the programs of a page into a directory; return their names."""
    programs, _ = blocks(page)
    for name, text in programs.items():
        (directory / name).write_text(text)
    return list(programs)


def follow(page: str, directory: Path, *freshness: bool) -> None:
    """Run the programs in their order, each in processes of its own; then the commands."""
    assert written(page, directory) == PAGES[page]
    for name in PAGES[page]:
        for is_fresh in freshness:
            run(directory, sys.executable, name, is_fresh=is_fresh)
    for text in blocks(page)[1]:
        out = run(directory, "bash", "-euo", "pipefail", "-c", text)
        assert {"workflow": "fetch", "exactly-once": "ok: "}[page] in out


@pytest.mark.parametrize("page", QUICK)
def test_programs_of_the_guide_run(page: str, tmp_path: Path) -> None:
    """Those that start no interpreters of their own."""
    follow(page, tmp_path, False)
    if page == "outbox":
        assert delivered(tmp_path) == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_programs_of_the_guide_run_again(page: str, tmp_path: Path) -> None:
    """Readers try a program twice, in the same directory, where its store then exists."""
    follow(page, tmp_path, False, False)


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_programs_of_the_guide_import_what_they_use(page: str, tmp_path: Path) -> None:
    """In fresh interpreters no module of the package is there because another program used it."""
    follow(page, tmp_path, True)


def delivered(directory: Path) -> list[int]:
    """Return the orders that the remote was told of, in their order."""
    path = directory / "remote.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[1]) for line in lines]


OUTBOX_KILLER = """
import os, random, runpy, signal, sys, time
import msgspec.msgpack
import pagequeue.tasks

def start():
    pid = os.fork()
    if pid == 0:
        random.seed()
        try:
            runpy.run_path("sender.py", run_name="__main__")
        finally:
            sys.stderr.flush()
            os._exit(int(sys.exc_info()[0] is not None))
    return pid

def order(first, count):
    pid = os.fork()
    if pid == 0:
        from pagequeue.tasks import NewTask, TaskStore
        with TaskStore("shop") as store:
            orders = range(first, first + count)
            store.modify(insert=[NewTask("outbox", {"order": order}) for order in orders])
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def delivered():
    try:
        with open("remote.txt") as file:
            return [int(line.split()[1]) for line in file]
    except FileNotFoundError:
        return []

kills, rng = 0, random.Random(int(sys.argv[1]))
count, kills_min = int(sys.argv[2]), int(sys.argv[3])
while kills < kills_min or delivered() != list(range(count)):
    if delivered() == list(range(count)):  # a machine that stood still let one sender deliver all
        order(count, 40)
        count += 40
    senders, begun, before = [start() for _ in range(2)], time.monotonic(), len(delivered())
    if rng.random() < 0.7:  # else while they start
        while time.monotonic() - begun < 10 and len(delivered()) == before:
            time.sleep(0.001)
    time.sleep(rng.random() * 0.003)
    for pid in senders:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        elif status != 0:
            sys.exit("a sender failed")
    if delivered() != list(range(len(delivered()))):
        sys.exit(f"delivered {delivered()}")
print(count)
"""
"""Starts two senders, kills both, looks at what was delivered; again, until all is, and so many
were killed. It forks them from a process that has imported everything: so a life is some
milliseconds, and not a second."""
ORDERS, KILLS_OF_SENDERS_MIN = 200, 100


@pytest.mark.slow
def test_outbox_that_is_killed_again_and_again_delivers_everything_in_order(
    tmp_path: Path,
) -> None:
    """Killed by -9 in a loop: each message once, none before an earlier one."""
    written("outbox", tmp_path)
    text = (tmp_path / "orders.py").read_text()
    (tmp_path / "orders.py").write_text(text.replace("range(40)", f"range({ORDERS})"))
    text = (tmp_path / "sender.py").read_text()
    (tmp_path / "sender.py").write_text(text.replace("main(lease=1.0)", "main(lease=0.02)"))
    (tmp_path / "killer.py").write_text(OUTBOX_KILLER)
    run(tmp_path, sys.executable, "orders.py")
    words = ("4", str(ORDERS), str(KILLS_OF_SENDERS_MIN))
    count = int(run(tmp_path, sys.executable, "killer.py", *words))
    run(tmp_path, sys.executable, "sender.py")
    assert delivered(tmp_path) == list(range(count))
    with TaskStore(tmp_path / "shop", create=False) as store:
        assert store.tasks("outbox") == []
        assert store.journal.verify().ok


@pytest.mark.slow
def test_consumer_that_is_killed_again_and_again_counts_each_message_once(tmp_path: Path) -> None:
    """The program of the guide, killed by -9 at any time while a producer sends."""
    written("exactly-once", tmp_path)
    text = (tmp_path / "readings.py").read_text().replace("import random", "import random, time")
    slowly = text.replace("producer.send(", "time.sleep(0.002); producer.send(")
    (tmp_path / "readings.py").write_text(slowly)
    text = (tmp_path / "totals.py").read_text()
    patient = text.replace("receive_many(100", "receive_many(3").replace(
        "timeout=0.5", "timeout=60"
    )
    (tmp_path / "totals.py").write_text(patient)
    producer = subprocess.Popen([sys.executable, "readings.py"], cwd=tmp_path)
    rng, kills = random.Random(5), 0
    while producer.poll() is None or kills < KILLS_MIN:
        consumer = subprocess.Popen([sys.executable, "totals.py"], cwd=tmp_path)
        time.sleep(0.3 + rng.random() * 0.5)
        consumer.kill()
        consumer.wait()
        kills += 1
    assert producer.returncode == 0
    (tmp_path / "totals.py").write_text(text)
    out = run(tmp_path, sys.executable, "totals.py")
    state = ast.literal_eval(out)
    assert (state["next"], state["count"]) == (2000, 2000)
    assert sum(state["sums"].values()) == sum(range(2000))
