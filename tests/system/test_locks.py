"""Locks between processes: the kernel's, never stolen, every wait with a limit."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import portalocker
import pytest
import warm
from support import SMALL, payloads, within

from pagequeue import Queue, _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.system.file_lock import LOCKER, FileLock
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60
"""Seconds in which a lock that is free is had, however busy the machine."""

HOLDER = """
import os, sys, time
from pagequeue.system.file_lock import FileLock
lock = FileLock(os.open(sys.argv[1], os.O_RDONLY), sys.argv[1])
with lock.exclusive(5, "holding"):
    print("held", flush=True)
    time.sleep(60)
"""

KIND_AT = 16 if platform.libc_ver()[0] == "glibc" and sys.maxsize > 1 << 32 else None
"""Where a mutex of glibc has its kind."""

KINDS = """
import sys
from pathlib import Path
from pagequeue import Queue, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from stress.tampering import overwrite

ELIDED = 0x100  # of no other kind, so that the invalid instruction is reached

def ends(call):
    try:
        return repr(call())
    except errors.CorruptMeta:
        return "corrupt"
    except errors.PageQueueError:
        return "typed"

path, at = sys.argv[1], int(sys.argv[2])
with Queue(path) as queue:
    producer = queue.producer()
    group = queue.group("workers")
    producer.send(b"one")
    (table,) = Path(path).glob("*workers*")
    places = [
        (table, field_of(fmt.GROUP_META, "mutex") + at),
        (Path(path, "queue-writeMeta"), field_of(fmt.WRITE_META, "mutex") + at),
    ]
    kinds = [(file, place, file.read_bytes()[place : place + 4]) for file, place in places]
    for change in (*(1 << bit for bit in range(32)), None):
        for file, place, kind in kinds:
            number = ELIDED if change is None else int.from_bytes(kind, "little") ^ change
            overwrite(file, place, number.to_bytes(4, "little"))
        print(ends(lambda: producer.send(b"two")), ends(lambda: group.take(0)))
    for file, place, kind in kinds:
        overwrite(file, place, kind)
    print(producer.send(b"two"), group.take(60).payload)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to lock."""
    made = tmp_path / "lock"
    made.write_bytes(b"")
    return made


@pytest.fixture
def holder(path: Path) -> Iterator[warm.Popen]:
    """Another process that holds the lock."""
    with warm.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=warm.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def locks(path: Path) -> Iterator[list[FileLock]]:
    """Two handles of the same file, as two processes would have them."""
    made = [FileLock(os.open(path, os.O_RDONLY), str(path)) for _ in range(2)]
    yield made
    for lock in made:
        lock.close()


def test_exclusive_lock_has_one_holder(locks: list[FileLock]) -> None:
    """Recovery runs in one process at a time."""
    first, second = locks
    assert first.try_exclusive()
    assert not second.try_exclusive()
    first.release()
    assert second.try_exclusive()


def test_shared_holders_exclude_an_exclusive_one(locks: list[FileLock]) -> None:
    """While any process has the queue open, none recovers it."""
    first, second = locks
    first.share(1)
    second.share(1)
    assert not first.try_exclusive()


def test_waiting_ends_in_a_typed_error_and_steals_no_lock(locks: list[FileLock]) -> None:
    """A lock is never taken away by time; a wait without end is found by the alarm."""
    first, second = locks
    assert first.try_exclusive()
    start = time.monotonic()
    with (
        within(PATIENCE),
        pytest.raises(errors.LockTimeout, match="stopped or hanging") as caught,
    ):
        second.share(0.05)
    assert time.monotonic() - start > 0.04
    assert caught.value.path == first.path
    with (
        pytest.raises(TimeoutError, match="while testing"),
        second.exclusive(0, "testing"),
    ):
        pass
    assert not second.try_exclusive()


def test_exclusive_lock_is_released_after_an_error(locks: list[FileLock]) -> None:
    """An error under the lock does not keep it."""
    first, second = locks
    with pytest.raises(ZeroDivisionError), first.exclusive(1, "testing"):
        _ = 1 // int(second.try_exclusive())
    with second.exclusive(0, "testing"):
        pass
    with first.exclusive(0, "testing"):
        pass


def test_threads_of_one_process_exclude_each_other(locks: list[FileLock]) -> None:
    """The kernel's lock belongs to the descriptor, so threads need one of their own."""
    lock = locks[0]
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock.exclusive(30, "testing"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    with (
        lock.exclusive(1, "testing"),
        pytest.raises(errors.LockTimeout, match="called again"),
        lock.exclusive(0.01, "testing"),
    ):
        pass


def test_killed_holder_releases_the_lock(holder: warm.Popen, locks: list[FileLock]) -> None:
    """I3: the kernel releases it when its holder dies."""
    assert not locks[0].try_exclusive()
    holder.kill()
    with locks[0].exclusive(PATIENCE, "testing"):
        pass


def test_stopped_holder_keeps_it(holder: warm.Popen, locks: list[FileLock]) -> None:
    """A stopped process could go on at any time: a timeout error, never theft."""
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(errors.LockTimeout), locks[0].exclusive(0.05, "testing"):
        pass
    holder.send_signal(signal.SIGCONT)
    assert not locks[0].try_exclusive()


def failing(*_: object) -> NoReturn:
    """Fail as portalocker does when the system fails."""
    cause = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    raise portalocker.LockException(cause) from cause


def test_lock_that_the_system_refuses_is_not_taken_for_a_lock_that_is_held(
    locks: list[FileLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free: the error has the system's text, and comes at once."""
    monkeypatch.setattr(LOCKER, "lock", failing)
    for call in (locks[0].try_exclusive, lambda: locks[0].share(60)):
        with pytest.raises(errors.SystemLimit, match="while locking") as caught:
            call()
        assert caught.value.errno == errno.ENOLCK


def test_no_choice_of_the_program_makes_another_lock_of_it(
    locks: list[FileLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of another kind: other processes would not see it, nor this one theirs."""
    monkeypatch.setattr(portalocker.portalocker, "LOCKER", fcntl.lockf)
    first, second = locks
    assert first.try_exclusive()
    monkeypatch.undo()
    assert not second.try_exclusive()
    monkeypatch.setattr(portalocker.portalocker, "LOCKER", portalocker.portalocker.LockfLocker)
    first.release()
    assert second.try_shared()
    assert not first.try_exclusive()


def test_unlocking_that_fails_is_a_typed_error_and_closing_releases_the_lock(
    locks: list[FileLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the descriptor releases it."""
    first, second = locks
    genuine = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        genuine(fd, how)

    monkeypatch.setattr(LOCKER, "unlock", failing)
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(errors.SystemLimit, match="while unlocking"), first.exclusive(1, "testing"):
        pass
    assert not second.try_exclusive()
    with pytest.raises(errors.SystemLimit):
        first.release()
    first.close()
    monkeypatch.undo()
    assert second.try_exclusive()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_child_of_a_fork_neither_unlocks_nor_keeps_the_parents_lock(
    locks: list[FileLock],
) -> None:
    """What the parent holds goes with the parent, not with its child, and not before."""
    first, second = locks
    assert first.try_exclusive()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        assert not second.try_exclusive()  # the child closed its copy; the lock stays
        first.close()
        with second.exclusive(PATIENCE, "testing"):  # the child is alive and holds no lock
            pass
    finally:
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(_core.LOCK_NEEDS_FD == 1, reason="the lock of this system is not a mutex")
@pytest.mark.parametrize("sends", ["send", "send_many", "rotate"])
def test_overwritten_writers_lock_is_a_typed_error(tmp_path: Path, sends: str) -> None:
    """An invalid writers' lock is damage of the write meta, and no message is sent."""
    path = tmp_path / "q" / "queue-writeMeta"
    with Queue(path.parent, page_bytes=SMALL) as queue:
        producer = queue.producer()
        producer.send(b"one")
        calls = {
            "send": lambda: producer.send(b"two"),
            "send_many": lambda: producer.send_many([b"two", b"three"]),
            "rotate": queue.rotate,
        }
        overwrite(path, field_of(fmt.WRITE_META, "mutex"), b"\xff" * 64)
        with pytest.raises(errors.CorruptMeta, match="writers' lock") as caught:
            calls[sends]()
        assert caught.value.path == str(path)
        assert caught.value.position == field_of(fmt.WRITE_META, "mutex")
        assert payloads(queue.replay()) == [b"one"]


@pytest.mark.skipif(KIND_AT is None, reason="not a mutex of glibc on 64 bits")
def test_lock_of_another_kind_is_a_typed_error(tmp_path: Path) -> None:
    """Glibc trusts the kind: lock elision is an invalid instruction for most processors."""
    ended = warm.run(
        [sys.executable, "-c", KINDS, str(tmp_path / "q"), str(KIND_AT)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["corrupt corrupt"] * 33 + ["1 b'one'"]


def test_thread_that_has_it_through_another_opening_is_refused_at_once(path: Path) -> None:
    """A signal handler that uses the same queue, opened again, would wait for its own thread."""
    one, other = (FileLock(os.open(path, os.O_RDONLY), str(path)) for _ in range(2))
    again = pytest.raises(errors.LockTimeout, match="called again")
    with one.exclusive(5, "holding"), within(PATIENCE):
        with again, other.exclusive(10 * PATIENCE, "waiting"):
            pass
        with again, other.attempt("trying"):
            pass
    with other.exclusive(0, "holding"):
        pass
    one.close()
    other.close()


def test_child_of_a_fork_does_not_take_itself_for_the_holder(path: Path) -> None:
    """The parent's thread has its number, and is another one."""
    lock = FileLock(os.open(path, os.O_RDONLY), str(path))
    with lock.exclusive(5, "holding"):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                again = FileLock(os.open(path, os.O_RDONLY), str(path))
                with pytest.raises(errors.LockTimeout, match="by another process"):  # noqa: SIM117
                    with again.exclusive(0.05, "taking"):
                        pass
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lock.close()
