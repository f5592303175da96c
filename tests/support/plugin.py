"""What several test files share: a queue's directory that can be read and damaged."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from loops import LOOPS
from spark_support import start_session, why_not
from support import SMALL, Clock, files
from tiers import examples, mark_cases
from tools import is_required, lacking, missing

from pagequeue import Queue
from pagequeue import format as fmt
from stress.driver import scratch_directory
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # If the tests run in the shell's background, its children ignore Ctrl-C, which is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile(
    "pagequeue",
    deadline=None,
    max_examples=examples(100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pagequeue")

# Without byte code each of some thousand processes would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The second thread of NumPy's OpenBLAS spins for some 70 ms of processor time in each process that
# imports NumPy. No test computes with it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# In memory, where there is room and programs run, a queue is made in half the processor time, and
# no sync waits. A run with another value is on a disk, as the step `coverage` is.
if not os.statvfs(scratch_directory()).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", scratch_directory())

MESSAGES = [bytes([65 + n]) * 1300 for n in range(8)]
"""Three of them fit into a page of 4096 bytes: pages of 3, 3 and 2."""
START = 1_700_000_000_000_000_000
SEED_VARIABLE = "PAGEQUEUE_SEED"
HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}
SPARK_TESTS = "tests/spark/"
STEPS = ".ci/steps.py"
LONGEST = (
    "spark",
    "tests/docs/test_readme.py",
    "tests/cli/test_cli_endings.py",
    "stress/tests/test_cut_simulator.py",
    "stress/tests/test_disks.py",
    "tests/multiprocessing/test_multiprocessing_machine.py",
    "tests/multiprocessing/test_multiprocessing_stdlib.py",
    "tests/maintenance/test_compress_failing.py",
)
"""Files, and all of Spark's as one, that processes begin with: one left for last is waited for."""
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x20000
"""Of linux/fs.h, as most processors have them; what `chattr +T` calls."""
PAGE_NUMBER_AT = 192
DURABLE_SEQUENCE_AT = 256
DURABLE_PAGE_AT = DURABLE_SEQUENCE_AT + 8
MESSAGES_FIRST_PAGE = 3


def slow_crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes, bit by bit, independently of the package."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Frame(NamedTuple):
    """One frame as it is in a page."""

    position: int
    word: int
    checksum: int
    timestamp: int
    payload: bytes
    queue_id: bytes

    def checksum_for(self, sequence: int) -> int:
        """Return what the checksum must be."""
        rest = struct.pack("<qQI", self.timestamp, sequence, self.word)
        return slow_crc32c(self.queue_id + self.payload + rest)


def frames_of(page: bytes) -> list[Frame]:
    """Return all frames of a page, its end-of-page mark included, without checking them."""
    frames = []
    position = 64
    while position + 16 <= len(page):
        word, checksum, timestamp = struct.unpack_from("<IIq", page, position)
        if word == 0:
            break
        length = word & 0x3FFFFFFF
        payload = page[position + 16 : position + length]
        frames.append(Frame(position, word, checksum, timestamp, payload, page[24:40]))
        if word >> 31:
            break
        position += (length + 7) // 8 * 8
    return frames


@dataclass
class Disk:
    """One queue directory with pages of 4096 bytes, and what can befall it."""

    directory: Path
    page_bytes: int = 4096
    clock: Clock = field(default_factory=lambda: Clock(START, 1000))

    def open(self, **options: object) -> Queue:
        """Open the queue with this disk's clock and page size."""
        return Queue(self.directory, page_bytes=self.page_bytes, clock=self.clock, **options)

    def send(self, *payloads: bytes, flush: bool = False) -> None:
        """Open the queue, send messages one by one, close it."""
        with self.open() as queue, queue.producer() as producer:
            for payload in payloads:
                producer.send(payload)
            if flush:
                producer.flush()

    def payloads(self, **options: object) -> list[bytes]:
        """Return all messages' payloads; opening recovers."""
        with self.open(**options) as queue:
            return [message.payload for message in queue.replay()]

    def path(self, name: str) -> Path:
        """Return `queue-NAME`."""
        return self.directory / f"queue-{name}"

    def page(self, number: int) -> Path:
        """Return the path of a page."""
        return self.path(f"{number:010d}.page")

    def index(self, number: int) -> Path:
        """Return the path of an index."""
        return self.path(f"{number:010d}.idx")

    def frames(self, number: int) -> list[Frame]:
        """Return the frames of a page."""
        return frames_of(self.page(number).read_bytes())

    def poke(self, path: Path, at: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        overwrite(path, at, data)

    def cut_power(self, durable: int | None = None) -> None:
        """Make the shared words those of an earlier boot, perhaps with an older durable mark."""
        assert pretend_power_cut(self.directory)
        if durable is not None:
            self.poke(self.path("writeMeta"), DURABLE_SEQUENCE_AT, struct.pack("<Q", durable))
            if durable <= MESSAGES_FIRST_PAGE:
                self.poke(self.path("writeMeta"), DURABLE_PAGE_AT, struct.pack("<Q", 1))

    def tear(self, page: int, ordinal: int) -> int:
        """Damage the payload of one frame; return the frame's position."""
        position = self.frames(page)[ordinal].position
        self.poke(self.page(page), position + 20, b"\xfe")
        return position

    def zero(self, page: int, ordinal: int) -> int:
        """Zero a page from a frame on, as if that was never written; return its position."""
        position = self.frames(page)[ordinal].position
        self.poke(self.page(page), position, bytes(self.page_bytes - position))
        return position

    def contents(self) -> dict[str, bytes]:
        """Return every file's bytes."""
        return files(self.directory)


@pytest.fixture(params=LOOPS, ids=lambda loop: loop.__name__)
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return what runs a coroutine, on each kind of event loop that is installed."""
    return request.param  # type: ignore[no-any-return]


def pytest_configure(config: pytest.Config) -> None:
    """Register this, once: the conftest of each folder of tests has this name too.

    A shell starts what runs in the background with signals ignored, and each child inherits that.
    """
    module = sys.modules[__name__]
    for number, handler in HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if not config.pluginmanager.is_registered(module):
        config.pluginmanager.register(module, "shared by all tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases by their tier."""
    mark_cases(items)


def pytest_collection_finish() -> None:
    """Let collections look at what tests make only: not at each test and module, for 0.2 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return what `-n auto` is: two more than there are cores, because many tests wait.

    xdist asks before `pytest_configure`, so the conftest itself has this hook too.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist takes that
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - xdist's
    """Give each test process whole files, and one process all of `tests/spark`: one session.

    Fixtures of a file are made once, and tests of a file may build on each other. The marks for
    `--dist loadgroup` would do the same, but xdist 3.8 reads them in a way that pytest 9.2 ended.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only where tests are shared

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file == STEPS:
                return nodeid  # commands that share no fixture
            return "spark" if file.startswith(SPARK_TESTS) else file

        def _assign_work_unit(self, node: Any) -> None:  # noqa: ANN401 - xdist's
            for file in reversed(LONGEST):
                if file in self.workqueue:
                    self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a tool that is not installed, or Spark; fail where it is required."""
    for mark in item.iter_markers("tool"):
        programs = lacking(mark.args[0])
        if programs:
            missing(mark.args[0], f"{', '.join(programs)} not installed")
    if item.get_closest_marker("spark") and (reason := why_not()):
        (pytest.fail if is_required("spark") else pytest.skip)(f"needs Spark: {reason}")


def spread(directory: Path) -> None:
    """Make ext4 place each directory that is made here in another group of inodes.

    Without a journal, ext4 does not use an inode again for minutes after it was removed, and passes
    all of them in the directory's group for each file that is made. In the one group of all tests
    that was 16 % of their processor time. Other file systems have no such flag, or no use for it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = bytearray(8)
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, flags)
            old = int.from_bytes(flags[:4], sys.byteorder)
            new = (old | FS_TOPDIR_FL).to_bytes(4, sys.byteorder)
            fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, new)
    finally:
        os.close(descriptor)


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """Return pytest's own, whose directories are spread over the file system."""
    spread(tmp_path_factory.getbasetemp())
    return tmp_path_factory


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of all tests."""
    started = start_session()
    yield started
    started.stop()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Random:
    """Randomness whose seed a failure prints, with the command that repeats it alone."""
    seed = os.environ.get(SEED_VARIABLE) or str(SystemRandom().getrandbits(32))
    print(f"again: {SEED_VARIABLE}={seed} python -m pytest -m '' '{request.node.nodeid}'")
    return Random(seed)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A directory where no queue was made yet."""
    return Disk(tmp_path / "events")


@pytest.fixture
def clock() -> Clock:
    """A clock that does not advance."""
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> Iterator[Queue]:
    """A queue of the smallest pages, open for writing."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        yield queue


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory on a disk, for what is written there and when."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that every user can reach, not only its owner."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def written(disk: Disk) -> Disk:
    """Eight messages on three pages, the first four of them flushed, then a power cut."""
    disk.send(*MESSAGES[:4], flush=True)
    disk.send(*MESSAGES[4:])
    disk.cut_power()
    return disk


def check_recovered(disk: Disk, expected: list[bytes]) -> None:
    """Check that a queue reads as expected, verifies, and takes the next message."""
    with disk.open() as queue:
        assert not queue.recovery.scanned
        assert [m.payload for m in queue.replay()] == expected
        assert [m.sequence for m in queue.replay()] == list(range(len(expected)))
        assert queue.durable_sequence == len(expected)
        report = queue.verify()
        assert report.problems == []
        with queue.producer() as producer:
            assert producer.send(b"next") == len(expected)
        assert queue.last(1)[0].payload == b"next"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of tests are small, and have several blocks when they are compressed all the same."""
    monkeypatch.setattr(fmt, "COMPRESSED_BLOCK_TARGET_BYTES", 1024)
