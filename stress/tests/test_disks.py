"""Disks that power cuts hit, and the campaigns on them: each catches what is planted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tools import EXT4, XFS

from pagequeue import Queue
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.store.flush import Flusher
from pagequeue.store.power_loss_recovery import Recovery
from stress import driver
from stress.campaign import Budget
from stress.disks import Disk, Unavailable, why_not

if TYPE_CHECKING:
    from stress.campaign import Outcome

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
CUTS = "stress.no_real_cut_loses_what_was_flushed"


# --- bugs, planted by `driver.apply_patch` in the campaign's own process -------------------------


def forget_the_data() -> None:
    """Raise the durable mark without syncing any page."""
    Flusher._sync_page = lambda *_: None


def trust_the_words() -> None:
    """Trust the write meta's shared state after a power cut as after a kill."""
    WriteMeta.is_recovered = property(lambda _: True)


def keep_the_torn_rest() -> None:
    """Leave the bytes after the tail that recovery found."""
    Recovery._cut = lambda *_: None


def sync_the_last_page_only() -> None:
    """Sync only the active page, also when other processes wrote the ones before it."""
    sync = Flusher._sync_page

    def last_only(self: Flusher, number: int) -> None:
        if number == self._write_meta.tail.page_number:
            sync(self, number)

    Flusher._sync_page = last_only


def keep_the_rest_unsynced() -> None:
    """Continue after a recovery that synced no file."""
    Recovery._sync = lambda *_: None


def campaign_with(bug: str, module: str, budget: Budget) -> Outcome:
    """Run a campaign with one of the bugs above."""
    environment = {
        **os.environ,
        driver.PATCH_VARIABLE: f"{Path(__file__).stem}:{bug}",
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, SUPPORT))),
    }
    return driver.run_in(module, budget, environment)


# --- disks ---------------------------------------------------------------------------------------


def need(kind: str) -> None:
    """Skip where such a disk is not available."""
    missing = why_not(kind)
    if missing is not None:
        pytest.skip(missing)


def loop_devices_in_use() -> set[str]:
    """Return the loop devices that have a file."""
    return {path.parent.name for path in Path("/sys/block").glob("loop*/loop")}


def mounts_below(path: Path) -> list[str]:
    """Return what is mounted below a directory, for this process."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split()[1].startswith(str(path))]


@pytest.mark.parametrize("kind", [EXT4, XFS])
def test_cut_takes_what_was_not_synced_and_nothing_else(kind: str, tmp_path: Path) -> None:
    """A campaign's cut acts on a disk: synced bytes stay, others are lost, and it stays usable."""
    need(kind)
    with Disk(kind, tmp_path / "disk") as disk:
        for turn in range(3):
            path = disk.path / f"file-{turn}"
            fd = os.open(path, os.O_CREAT | os.O_RDWR)
            os.write(fd, b"a" * 4096)
            os.fsync(fd)
            os.pwrite(fd, b"b" * 4096, 4096)
            disk.cut()
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(fd)
            os.close(fd)
            disk.restart()
            assert path.read_bytes().rstrip(b"\0") == b"a" * 4096


@pytest.mark.parametrize("kind", [EXT4, XFS])
def test_page_that_becomes_the_head_has_its_size_on_the_disk(kind: str, tmp_path: Path) -> None:
    """I12: one with a part of a large message was written as a file, and perhaps not synced."""
    need(kind)
    program = """
import sys
from pagequeue import Queue, Retention
queue = Queue(sys.argv[1], page_bytes=1 << 16, retention=Retention(drop_acknowledged=True))
consumer = queue.consumer("all")
producer = queue.producer()
producer.send(b"small")
producer.flush()
producer.send(bytes(50_000))
producer.send(bytes(100_000))
consumer.receive_many(2)
consumer.ack(durable=True)
queue.trim()  # or the thread that removes pages has done it
print(queue.head_sequence, flush=True)
input()
"""
    with Disk(kind, tmp_path / "disk") as disk:
        path = disk.path / "q"
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline().split() == ["2"]
            disk.cut()
            child.kill()
        disk.restart()
        with Queue(path) as queue:
            assert queue.head_sequence == queue.tail_sequence == 2
            assert not queue.verify().problems


@pytest.mark.parametrize("kind", ["tmpfs", EXT4, XFS])
def test_disk_leaves_nothing_behind_when_an_exception_comes(kind: str, tmp_path: Path) -> None:
    """No mount, no loop device, no image; even while a file on it is still open."""
    need(kind)
    before = loop_devices_in_use()
    kept_open = []

    def fail_on_it() -> None:
        with Disk(kind, tmp_path / "disk") as disk:
            kept_open.append((disk.path / "file").open("wb"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_on_it()
    kept_open[0].close()
    assert not mounts_below(tmp_path)
    assert not list((tmp_path / "disk").iterdir())
    deadline = time.monotonic() + 60
    while loop_devices_in_use() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    # Other campaigns may run at the same time: their devices come and go.
    assert not {name for name in loop_devices_in_use() - before if is_ours(name)}


def is_ours(name: str) -> bool:
    """Whether a loop device belongs to this process."""
    return any(
        os.path.realpath(descriptor) == f"/dev/{name}"
        for descriptor in Path("/proc/self/fd").iterdir()
    )


@pytest.mark.tool("mkfs.ext4")
def test_private_mounts_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of a campaign: the kernel unmounts and releases the loop device."""
    need("ext4")
    code = (
        "import sys, time; from pathlib import Path; from stress.disks import *; private_mounts();"
        "disk = Disk('ext4', Path(sys.argv[1])); print(disk._device, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "disk")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    device = process.stdout.readline().strip()
    assert not mounts_below(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    backing = Path("/sys/block", Path(device).name, "loop/backing_file")
    deadline = time.monotonic() + 60
    while backing.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not backing.exists()


def test_missing_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root there is no disk, and the campaign reports the reason and fails."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="needs root"):
        Disk("tmpfs", tmp_path / "disk")


# --- power cuts ----------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.tool("mkfs.ext4")
@pytest.mark.tool("mkfs.xfs")
def test_no_cut_loses_what_was_flushed() -> None:
    """I5, I8: some cuts on both file systems, recovery cut as well."""
    need("ext4")
    outcome = driver.run_apart(CUTS, Budget(60.0, 30, 1))
    assert outcome.violations == []
    assert outcome.cases >= 30


@pytest.mark.nightly
@pytest.mark.tool("mkfs.ext4")
@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("forget_the_data", "messages were durable"),
        ("sync_the_last_page_only", "no frame there"),
        (
            "trust_the_words",
            "the batch at|checksum is wrong|differs from the frames|a reader found",
        ),
        ("keep_the_torn_rest", "checksum is wrong"),
        ("keep_the_rest_unsynced", "wrong magic|differs from the frames|no queue"),
    ],
)
def test_planted_bug_is_caught_by_power_cuts(bug: str, expected: str) -> None:
    """I5: a campaign that never fails would prove no property."""
    need("ext4")
    outcome = campaign_with(bug, CUTS, Budget(160.0, None, 1))
    assert any(re.search(expected, violation) for violation in outcome.violations), outcome
