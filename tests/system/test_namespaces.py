"""Containers: equal thread ids, other clocks, no /proc; locks and leases are right all the same."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from containers import CLOCK_AHEAD, IDS, MOUNTS, start, why_not
from support import SMALL, finish, payloads, ready, until_asleep

from pagequeue import Queue, _core, errors, repair_queue
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.system import namespaces
from pagequeue.system.atomic_file import whole_file
from stress import no_container_is_robbed as apart
from stress.campaign import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warm import Popen

    from pagequeue import Producer

MARK = 0x3FFFFFFE
MUTEX = field_of(fmt.WRITE_META, "mutex")
LOCKED_BYTE = 1 << 39
SHORT = 0.1
"""Seconds to wait for a lock that stays taken."""
PATIENCE = 60.0
"""Seconds to wait for what comes, however busy the machine."""

mutexes = pytest.mark.skipif(
    _core.LOCK_NEEDS_FD == 1, reason="the lock of this system is not a mutex"
)


@pytest.fixture
def own_ids() -> None:
    """Skip where no namespace of thread ids can be made."""
    skip_without(IDS)


@pytest.fixture
def own_clock() -> None:
    """Skip where none with another clock can be made."""
    skip_without(CLOCK_AHEAD)


@pytest.fixture
def own_mounts() -> None:
    """Skip where none with other mounts can be made."""
    skip_without(MOUNTS)


@functools.cache
def skip_without(kind: str) -> None:
    """Skip a test where the system does not allow such a namespace."""
    why = why_not(kind)
    if why:
        pytest.skip(f"no namespace can be made here: {why}")


def child_of(process: Popen) -> int:
    """Return this namespace's id of the process that is inside."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@pytest.fixture
def lock_timeout() -> float:
    """Seconds that both of them wait for a lock."""
    return SHORT


@pytest.fixture
def foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock_timeout: float
) -> Iterator[Producer]:
    """A producer that believes to be in another namespace than the mutex."""
    with Queue(tmp_path / "q", page_bytes=SMALL, lock_timeout=lock_timeout) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(WriteMeta, "is_foreign", True)
            producer = queue.producer()
        yield producer


@pytest.fixture
def queue(foreign: Producer, lock_timeout: float) -> Iterator[Queue]:
    """The same queue, opened once more, by a process in the mutex's namespace."""
    with Queue(foreign._store.folder.path, lock_timeout=lock_timeout) as opened:
        yield opened


def owner_word(queue: Queue) -> int:
    """Return who has the writers' lock."""
    return queue._store.write_meta.region.load_half(MUTEX)


def set_owner_word(queue: Queue, value: int) -> None:
    """Store a value in the field that names the owner of the writers' lock."""
    queue._store.write_meta.region.store_half(MUTEX, value)


def lock_byte(fd: int, kind: int) -> None:
    """Lock the byte as a process of another namespace does, or unlock it."""
    record = struct.pack("hhqqi4x", kind, os.SEEK_SET, LOCKED_BYTE, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, record)


# --- the two kinds together -----------------------------------------------------------------------


@mutexes
def test_first_opener_s_namespace_has_the_mutex(tmp_path: Path) -> None:
    """It is recorded, and each later process compares."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        meta = queue._store.write_meta
        record = meta.region.read(meta.LOCK_NAMESPACE, namespaces.NAMESPACE_BYTES)
        assert record == namespaces.pid_namespace() != namespaces.UNKNOWN_NAMESPACE
        assert not meta.is_foreign
        meta.region.write(meta.LOCK_NAMESPACE, bytes(reversed(record)))
        assert meta.is_foreign


@mutexes
def test_unknown_namespace_has_no_mutex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the namespace of a thread id is unknown."""
    monkeypatch.setattr(namespaces, "NAMESPACES", str(tmp_path / "none"))
    for _ in range(2):
        with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
            assert queue._store.write_meta.is_foreign
            producer.send(b"sent")


def test_stale_record_does_not_prevent_use_of_the_mutex(tmp_path: Path) -> None:
    """A process that opens the queue exclusively records its own namespace."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL) as queue:
        meta = queue._store.write_meta
        meta.region.write(meta.LOCK_NAMESPACE, b"\x55" * namespaces.NAMESPACE_BYTES)
    with Queue(path) as queue:
        assert not queue._store.write_meta.is_foreign


@mutexes
def test_foreign_producer_finds_the_mutex_taken(foreign: Producer, queue: Queue) -> None:
    """A thread's id in the word is a holder, also one that is stopped."""
    set_owner_word(queue, 12345)
    with pytest.raises(errors.LockTimeout, match="look for a stopped process"):
        foreign.send(b"robbed")
    set_owner_word(queue, 0)
    assert foreign.send(b"mine") == 0
    assert owner_word(queue) == 0


@mutexes
def test_mutex_user_finds_the_foreign_holder_and_notices_its_death(queue: Queue) -> None:
    """The mark counts while its byte is locked; then it is a dead one's, and is removed."""
    with (
        open(queue._store.write_meta.path, "r+b") as file,
        queue.producer() as producer,
    ):
        lock_byte(file.fileno(), fcntl.F_WRLCK)
        set_owner_word(queue, MARK)
        with pytest.raises(errors.LockTimeout):
            producer.send(b"robbed")
        assert owner_word(queue) == MARK
        lock_byte(file.fileno(), fcntl.F_UNLCK)
        assert producer.send(b"after its death") == 0
        assert owner_word(queue) == 0


@mutexes
def test_foreign_producer_takes_over_a_dead_one_s_mark(foreign: Producer, queue: Queue) -> None:
    """Also a mutex that the kernel released for a dead thread."""
    for number, word in enumerate((MARK, 0x40000000)):
        set_owner_word(queue, word)
        assert foreign.send(b"next") == 2 * number
        with queue.producer() as producer:
            assert producer.send(b"and a mutex user") == 2 * number + 1


@mutexes
def test_two_foreign_producers_exclude_each_other(foreign: Producer, queue: Queue) -> None:
    """The byte belongs to one open file; a mark without it excludes no other."""
    with open(queue._store.write_meta.path, "r+b") as file:
        lock_byte(file.fileno(), fcntl.F_WRLCK)
        with pytest.raises(errors.LockTimeout):
            foreign.send(b"robbed")
    assert foreign.send(b"mine") == 0


@pytest.mark.parametrize("lock_timeout", [PATIENCE])
def test_threads_share_a_foreign_producer_with_a_concurrent_mutex_user(
    foreign: Producer, queue: Queue
) -> None:
    """One sequence for each message, none lost, none twice."""
    with queue.producer() as other:

        def send(producer: Producer) -> None:
            sent.extend([producer.send(b"%d" % number) for number in range(200)])

        sent: list[int] = []
        threads = [threading.Thread(target=send, args=(one,)) for one in (foreign, other) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(sent) == list(range(800))
    assert len(payloads(queue.replay())) == 800


def test_child_of_a_fork_does_not_keep_the_lock(foreign: Producer) -> None:
    """The child closes its copy of the descriptor, so the parent's death releases the lock."""
    with foreign._lock_file.descriptor as fd:
        pass
    pid = os.fork()
    if pid == 0:
        try:
            os.fstat(fd)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_closed_producer_and_group_leave_no_descriptor(tmp_path: Path) -> None:
    """Each has its own descriptor for the lock."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().close()
        queue.group("workers").close()
        before = set(os.listdir("/proc/self/fd"))
        for _ in range(3):
            producer, group = queue.producer(), queue.group("workers")
            producer.close()
            group.close()
        assert set(os.listdir("/proc/self/fd")) == before


def test_group_closed_under_a_waiting_thread_closes_its_files_afterwards(tmp_path: Path) -> None:
    """Another file could get the descriptor's number while a thread still locks by it."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        group = queue.group("workers")
        said: list[BaseException] = []

        def wait() -> None:
            try:
                group.claim()
            except errors.ClosedError as error:
                said.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until_asleep(thread)
        group.close()
        thread.join(PATIENCE)
        assert len(said) == 1
        assert group._owner_lock.descriptor.is_closed


# --- real namespaces ------------------------------------------------------------------------------

SENDER = """
import sys
from pagequeue import Queue
with Queue(sys.argv[1]) as queue, queue.producer() as producer:
    print(queue._store.write_meta.is_foreign, flush=True)
    for number in range(int(sys.argv[2])):
        producer.send(sys.argv[3].encode() + b"%d" % number)
    sys.stdin.read()
"""

HOLDER = """
import sys
from pagequeue import Queue
with Queue(sys.argv[1]) as queue, queue.producer() as producer:
    print("up", flush=True)
    while True:
        producer.send(b"B" * 4_000_000)
"""

TRYING = """
import sys
from pagequeue import LockTimeout, Queue
with Queue(sys.argv[1], lock_timeout=1e-6) as queue, queue.producer() as producer:
    print("up", flush=True)
    while True:
        try:
            producer.send(b"A")
        except LockTimeout:
            pass
"""


@pytest.mark.usefixtures("own_ids")
@mutexes
def test_containers_and_the_host_send_into_one_queue(tmp_path: Path) -> None:
    """All of them have threads of the id 1; no message is lost or duplicated."""
    with Queue(tmp_path / "q", page_bytes=64 << 10) as queue, queue.producer() as producer:
        senders = [start(IDS, SENDER, tmp_path / "q", 2000, name) for name in "ab"]
        assert [ready(sender) for sender in senders] == ["True", "True"]
        for number in range(2000):
            producer.send(b"h%d" % number)
        for sender in senders:
            finish(sender)
        got = payloads(queue.replay())
        assert len(got) == 6000
        for name in (b"a", b"b", b"h"):
            mine = [payload for payload in got if payload[:1] == name]
            assert mine == [b"%s%d" % (name, number) for number in range(2000)]


@pytest.mark.slow
@pytest.mark.usefixtures("own_ids")
@mutexes
def test_stopped_holder_in_a_container_is_not_robbed_and_a_dead_one_is_noticed(
    tmp_path: Path,
) -> None:
    """Neither by the death of one that tries in another container, nor by any time."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=64 << 20, lock_timeout=SHORT) as queue:
        holder = start(IDS, HOLDER, path)
        ready(holder)
        pid = child_of(holder)
        for _ in range(2000):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.002)
            if owner_word(queue) & 0x3FFFFFFF:
                break
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.003)
        assert owner_word(queue) == MARK
        for _ in range(5):
            trying = start(IDS, TRYING, path)
            ready(trying)
            os.kill(child_of(trying), signal.SIGKILL)
            trying.communicate()
            assert owner_word(queue) == MARK
        with queue.producer() as producer:
            with pytest.raises(errors.LockTimeout):
                producer.send(b"robbed")
            os.kill(pid, signal.SIGKILL)
            holder.communicate()
            sequence = producer.send(b"after its death")
            assert sequence == queue.tail_sequence - 1
        assert queue.verify().ok


@pytest.mark.nightly
@pytest.mark.usefixtures("own_ids")
@mutexes
def test_no_container_is_robbed_in_a_few_cases() -> None:
    """I3, I4, I15: stops of the writers' lock and of a group's, with kills of those who try."""
    outcome = apart.run(Budget(60.0, 3, 5))
    assert outcome.violations == []
    assert outcome.cases == 3


CLAIMER = """
import sys, time
from pagequeue import Queue
with Queue(sys.argv[1]) as queue, queue.group("workers", lease=600.0, backoff=None) as group:
    print([group.claim(timeout=60).message.payload for _ in range(3)], flush=True)
    sys.stdin.read()
"""


@pytest.mark.usefixtures("own_ids")
def test_dead_worker_of_a_container_is_noticed_at_once(tmp_path: Path) -> None:
    """Its claims come again though its lease is long, and its process id is the host's as well."""
    path = tmp_path / "q"
    with (
        Queue(path, page_bytes=SMALL) as queue,
        queue.producer() as producer,
        queue.group("workers", lease=600.0, backoff=None) as group,
    ):
        producer.send_many([b"0", b"1", b"2", b"3"])
        worker = start(IDS, CLAIMER, path)
        assert ready(worker) == "[b'0', b'1', b'2']"
        assert group.claim(timeout=PATIENCE).message.payload == b"3"
        os.kill(child_of(worker), signal.SIGKILL)
        worker.communicate()
        found = [group.claim(timeout=PATIENCE).message.sequence for _ in range(3)]
        assert found == [0, 1, 2]


MOUNTED_APART = """
import sys
from pagequeue import NothingReceived, Queue
with Queue(sys.argv[1]) as queue, queue.group("workers", backoff=None) as group:
    found = []
    try:
        while True:
            found.append(group.claim(timeout=0))
    except NothingReceived:
        print([[claim.message.sequence, claim.deliveries] for claim in found])
"""


@pytest.mark.usefixtures("own_mounts")
@pytest.mark.parametrize("flushed_after", [None, 10])
def test_acknowledgements_hold_in_a_container_with_another_mount(
    tmp_path: Path, flushed_after: int | None
) -> None:
    """The queue was closed in this one: only what was not acknowledged is delivered, and once."""
    path = tmp_path / "q"
    with (
        Queue(path, page_bytes=SMALL) as queue,
        queue.producer() as producer,
        queue.group("workers", backoff=None) as group,
    ):
        producer.send_many([b"%d" % i for i in range(100)])
        for count, claim in enumerate(group.claim_many(60)):
            if claim.message.sequence % 6:
                claim.ack()
            else:
                claim.nack()
            if count == flushed_after:
                group.flush()
    wanted = [(i, 2) for i in range(0, 60, 6)] + [(i, 1) for i in range(60, 100)]
    for further in range(3):  # each container closes the queue for the next one
        found = finish(start(MOUNTS, MOUNTED_APART, path))
        assert sorted(json.loads(found)) == [[i, count + further] for i, count in wanted]


LATER = """
import sys
from pagequeue import NothingReceived, Queue
with Queue(sys.argv[1]) as queue, queue.group("workers", backoff=None) as group:
    try:
        print(group.claim(timeout=0.3).message.payload)
    except NothingReceived:
        print("nothing")
"""


@pytest.mark.usefixtures("own_clock")
def test_lease_lasts_as_long_in_another_time_namespace(tmp_path: Path) -> None:
    """Its monotonic clock is a day ahead; leases end by the host's."""
    with (
        Queue(tmp_path / "q", page_bytes=SMALL) as queue,
        queue.producer() as producer,
        queue.group("workers", lease=600.0, backoff=None) as group,
    ):
        producer.send(b"claimed")
        claim = group.claim(timeout=PATIENCE)
        assert finish(start(CLOCK_AHEAD, LATER, tmp_path / "q")) == "nothing"
        claim.ack()


FORKED_APART = """
import ctypes, os, sys
from pagequeue import ForkedError, Queue
queue = Queue(sys.argv[1])
producer = queue.producer()
assert ctypes.CDLL(None).unshare(0x20000000) == 0
pid = os.fork()
if pid == 0:
    assert os.getpid() == 1
    try:
        producer.send(b"the child's")
    except ForkedError:
        pass
    else:
        os._exit(2)
    queue.close()
    os._exit(0 if queue._store.is_forked else 3)
assert os.getpid() == 1
assert os.waitpid(pid, 0)[1] == 0
producer.send(b"the parent's")
queue.close()
"""


@pytest.mark.usefixtures("own_ids")
def test_child_with_its_parent_s_process_id_is_a_child(tmp_path: Path) -> None:
    """Process 1 that forks into a new namespace has a child that is process 1 too."""
    finish(start(IDS, FORKED_APART, tmp_path / "q"))
    with Queue(tmp_path / "q") as queue:
        assert payloads(queue.replay()) == [b"the parent's"]


# --- what /proc tells -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "names", "expected"),
    [
        ("monotonic   0   0\nboottime 0 0\n", ("time", "time_for_children"), (0, 0)),
        (
            "monotonic -2 500000000\nboottime 5 0\n",
            ("time", "time_for_children"),
            (-1_500_000_000, 5_000_000_000),
        ),
        ("monotonic 1 0\n", ("time", "time_for_children"), None),
        ("", ("time", "time_for_children"), None),
        ("monotonic 1 x\n", ("time", "time_for_children"), None),
        ("", ("pid",), (0, 0)),
        (None, ("time", "time_for_children"), None),
    ],
)
def test_offsets_of_the_clocks_are_read_or_not_known(
    offsets: str | None,
    names: tuple[str, ...],
    expected: tuple[int, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel without time namespaces has one for all; what is not read is never taken for 0."""
    (tmp_path / "same").touch()
    (tmp_path / "ns").mkdir()
    for name in names:
        os.link(tmp_path / "same", tmp_path / "ns" / name)
    if offsets is not None:
        (tmp_path / "offsets").write_text(offsets)
    monkeypatch.setattr(namespaces, "NAMESPACES", str(tmp_path / "ns"))
    monkeypatch.setattr(namespaces, "CLOCK_OFFSETS", str(tmp_path / "offsets"))
    assert namespaces.clock_offsets() == expected


def test_group_is_refused_where_its_clock_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases would end at the wrong time. Sending and reading work."""
    monkeypatch.setattr(namespaces, "NAMESPACES", str(tmp_path / "none"))
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        with pytest.raises(errors.SystemLimit, match="started in its time namespace"):
            queue.group("workers")
        producer.send(b"sent")
        assert payloads(queue.replay()) == [b"sent"]


def test_unreadable_boot_id_refuses_writers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With zeros each boot would equal the last one, and a power cut would go unnoticed."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"sent")
    monkeypatch.setattr("pagequeue.meta.write_meta.BOOT_ID_PATH", str(tmp_path / "none"))
    for write in (Queue, repair_queue):
        with pytest.raises(errors.SystemLimit, match="mount /proc"):
            write(path)
    with Queue(path, read_only=True) as queue:
        assert payloads(queue.replay()) == [b"sent"]


def test_two_processes_of_one_id_export_to_one_path(tmp_path: Path) -> None:
    """Each has its own temporary file."""
    path = str(tmp_path / "out")
    with whole_file(path, force=True) as first, whole_file(path, force=True) as second:
        first.write(b"first")
        second.write(b"second")
    assert Path(path).read_bytes() == b"first"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("path", ["boot_id", "timens_offsets"])
def test_without_descriptors_the_boot_id_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, path: str
) -> None:
    """The remedy is to close files; no process writes without knowing the boot id."""
    with Queue(tmp_path / "q") as queue:
        queue.group("g").close()
        real = open

        def refusing(file: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
            if str(file).endswith(path):
                raise OSError(number, os.strerror(number))
            return real(file, *args, **options)

        monkeypatch.setattr("builtins.open", refusing)
        for read_only in (False, True):
            with pytest.raises(errors.SystemLimit, match="raise the limit or close something"):
                Queue(tmp_path / "q", read_only=read_only)
        if path == "boot_id":
            for name in ("g", "other"):
                with pytest.raises(errors.SystemLimit, match="raise the limit or close something"):
                    queue.group(name)
        monkeypatch.undo()
        queue.group("g").close()
        queue.group("other").close()
    assert Queue(tmp_path / "q").verify().ok
