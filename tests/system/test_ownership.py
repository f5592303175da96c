"""Whose the files are that root, or another user, makes in a queue's directory."""

from __future__ import annotations

import ctypes
import os
import stat
import traceback
from typing import TYPE_CHECKING

import pytest
from safely import NOBODY, STRANGER, user
from support import SMALL, payloads

from pagequeue import AccessDenied, Queue, Retention, errors, repair_queue, salvage_queue
from pagequeue.system.directory import directory_mode
from pagequeue.tasks import NewTask, TaskStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root")
GROUP = 54322
TRUST = ("other_owner",)
CAP_CHOWN = 0
CAPABILITIES_VERSION = 0x20080522


def made_by_nobody(directory: Path, file_mode: int = 0o600) -> Queue:
    """Return a queue of an application, which has it open; all is of its group."""
    directory.mkdir(exist_ok=True)
    directory.chmod(directory_mode(file_mode))
    os.chown(directory, NOBODY, GROUP)
    with user(NOBODY):
        queue = Queue(directory, page_bytes=SMALL, file_mode=file_mode)
        queue.producer().send(b"of the application")
    for path in (directory, *directory.iterdir()):
        os.chown(path, -1, GROUP)
    return queue


def send_pages(queue: Queue, count: int) -> None:
    """Send so many pages of three messages each."""
    with queue.producer() as producer:
        for _ in range(3 * count):
            producer.send(bytes(1300))


def found(directory: Path) -> set[tuple[int, int, str]]:
    """Return whose all files and directories are, the directory itself included, and modes."""
    paths = [directory, *directory.rglob("*")]
    status = [path.stat(follow_symlinks=False) for path in paths]
    return {(one.st_uid, one.st_gid, stat.filemode(one.st_mode)) for one in status}


def in_child(body: Callable[[], None]) -> None:
    """Run a body in a child, which may become another user."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- root -----------------------------------------------------------------------------------------


def send_and_keep(directory: Path) -> None:
    """Send over several pages, in all ways, with what consumers and groups leave."""
    with Queue(directory, trust=TRUST, retention=Retention(max_bytes=1 << 20)) as queue:
        with queue.producer() as producer:
            for number in range(12):
                producer.send(b"x" * 1300 + b"%d" % number)
            producer.send(b"large" * 4000)
            producer.flush()
            with producer.open() as file:
                file.write(b"larger" * 4000)
        queue.publish("root", 1, [b"z" * 1300] * 8)
        with queue.consumer("reader") as consumer:
            consumer.receive(timeout=0)
            consumer.ack()
        with queue.group("workers") as group:
            group.claim(timeout=0).reject("of no use")
        queue.compress()
        queue.rotate()
        queue.trim()


def test_what_root_makes_belongs_to_the_queues_owner(reachable: Path) -> None:
    """Pages, indexes, meta, cursors, groups, dead letters, staged pages and the ledger."""
    for file_mode, shown in ((0o600, "-rw-------"), (0o660, "-rw-rw----")):
        directory = reachable / f"{file_mode:o}"
        service = made_by_nobody(directory, file_mode)
        before = found(directory)
        send_and_keep(directory)
        assert found(directory) == before
        assert (NOBODY, GROUP, shown) in before
        assert len(before) == 2
        with user(NOBODY):
            with service.producer() as producer:
                producer.send_many([b"goes on" * 100] * 12)
            assert len(payloads(service.replay())) == 35
            service.close()
            with Queue(directory) as again, Queue(directory, prefix="queue.dead.workers") as dead:
                assert (len(again), len(dead)) == (35, 1)
                assert again.verify().ok


def test_root_makes_a_queue_in_the_directory_of_another_user(reachable: Path) -> None:
    """It is that user's, who needs no trust to use it."""
    directory = reachable / "queue"
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, GROUP)
    with Queue(directory, trust=TRUST, page_bytes=SMALL) as queue:
        send_pages(queue, 2)
    assert found(directory) == {(NOBODY, GROUP, "drwx------"), (NOBODY, GROUP, "-rw-------")}
    with user(NOBODY), Queue(directory) as queue:
        assert len(queue) == 6


def test_queue_of_a_user_in_a_directory_of_root_stays_that_users(reachable: Path) -> None:
    """The queue's own file says whose it is where the directory is for all."""
    directory = reachable / "shared"
    made_by_nobody(directory).close()
    os.chown(directory, 0, 0)
    directory.chmod(0o1777)
    with pytest.raises(errors.UnsafePath):
        Queue(directory)
    with Queue(directory, trust=TRUST) as queue:
        send_pages(queue, 3)
    assert found(directory) == {(0, 0, "drwxrwxrwt"), (NOBODY, GROUP, "-rw-------")}


def test_own_queue_of_root_is_as_it_was_asked_for(reachable: Path) -> None:
    """Neither the owner nor the mode of what root makes for itself changes."""
    with Queue(reachable / "queue", page_bytes=SMALL) as queue:
        send_pages(queue, 1)
    with Queue(reachable / "queue", file_mode=0o640) as queue:
        send_pages(queue, 1)
    modes = {mode for _, _, mode in found(reachable / "queue")}
    assert modes == {"drwx------", "-rw-------", "-rw-r-----"}


def test_repair_by_root_leaves_the_queue_usable(reachable: Path) -> None:
    """Files that are made again are the owner's, too."""
    directory = reachable / "queue"
    made_by_nobody(directory).close()
    before = found(directory)
    (directory / "queue-readMeta").write_bytes(b"damaged")
    (directory / "queue-0000000001.idx").unlink()
    assert repair_queue(directory, trust=TRUST).ok
    assert found(directory) == before
    with user(NOBODY), Queue(directory) as queue:
        assert len(queue) == 1


def test_ship_by_root_into_the_directory_of_another_user(reachable: Path) -> None:
    """The replica can be read by its owner."""
    made_by_nobody(reachable / "queue").close()
    replica = reachable / "replica"
    replica.mkdir(mode=0o700)
    os.chown(replica, STRANGER, GROUP)
    with Queue(reachable / "queue", trust=TRUST) as queue:
        send_pages(queue, 3)
        queue.ship(replica)
    assert found(replica) == {(STRANGER, GROUP, "drwx------"), (STRANGER, GROUP, "-rw-------")}
    with user(STRANGER), Queue(replica, read_only=True) as copy:
        assert len(copy) > 0


def test_snapshots_by_root_belong_to_the_journals_owner(reachable: Path) -> None:
    """Their directories, too: compaction by a timer of root does not stop the service."""
    directory = reachable / "tasks"
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, GROUP)
    with user(NOBODY), TaskStore(directory) as store:
        store.insert("mail", 1)
    with TaskStore(directory, trust=TRUST) as store:
        store.claim("mail", timeout=0).ack(insert=[NewTask("mail", 2)])
        store.compact()
    assert {owner for owner, _, _ in found(directory)} == {NOBODY}
    assert {mode for _, _, mode in found(directory)} == {"drwx------", "-rw-------"}
    with user(NOBODY), TaskStore(directory) as store:
        assert [task.value for task in store.tasks()] == [2]
        store.compact()


def test_salvage_by_root_into_the_directory_of_another_user(reachable: Path) -> None:
    """What it copies as it is, snapshots, belongs to that user as well."""
    with TaskStore(reachable / "tasks") as store:
        store.modify(insert=[NewTask("mail", number) for number in range(9)])
        store.compact()
        store.insert("mail", 9)
    target = reachable / "saved"
    target.mkdir(mode=0o700)
    os.chown(target, NOBODY, GROUP)
    salvage_queue(reachable / "tasks", target, trust=TRUST)
    assert list(target.glob("queue-journal/snapshot-*/*"))
    assert found(target) == {(NOBODY, GROUP, "drwx------"), (NOBODY, GROUP, "-rw-------")}
    with user(NOBODY), TaskStore(target) as store:
        assert [task.value for task in store.tasks()] == list(range(10))


def drop_capability(number: int) -> None:
    """Give a capability of this process up, as `docker run --cap-drop` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    for word in (0, 1):
        data[word] &= ~(1 << number)
    assert libc.capset(header, data) == 0


@pytest.mark.parametrize("has_queue", [True, False])
def test_root_that_may_not_give_files_away_is_refused_first(
    reachable: Path, *, has_queue: bool
) -> None:
    """The error comes before a byte is written; reading needs no file."""
    directory = reachable / "queue"
    made_by_nobody(directory).close()
    if not has_queue:
        for path in directory.iterdir():
            path.unlink()
    before = {path: path.read_bytes() for path in directory.iterdir()}

    def body() -> None:
        drop_capability(CAP_CHOWN)
        with pytest.raises(AccessDenied, match=r"user and group .*as the user to whom"):
            Queue(directory, trust=TRUST)
        if has_queue:
            with pytest.raises(AccessDenied):
                repair_queue(directory, trust=TRUST)
            with Queue(directory, read_only=True) as queue:
                assert len(queue) == 1

    in_child(body)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_root_without_that_right_may_use_what_all_may_write_to(reachable: Path) -> None:
    """As in a container in whose user namespace the owner has no id; its files have that mode."""
    directory = reachable / "queue"
    made_by_nobody(directory, 0o666).close()

    def body() -> None:
        drop_capability(CAP_CHOWN)
        with Queue(directory, trust=TRUST) as queue:
            send_pages(queue, 3)

    in_child(body)
    assert found(directory) == {
        (NOBODY, GROUP, "drwxrwxrwt"),
        (NOBODY, GROUP, "-rw-rw-rw-"),
        (0, 0, "-rw-rw-rw-"),
    }
    with user(NOBODY), Queue(directory) as queue:
        assert len(queue) == 10
        send_pages(queue, 1)


# --- other users ----------------------------------------------------------------------------------


def become(number: int, groups: list[int]) -> None:
    """Be another user from now on."""
    os.setgroups(groups)
    os.setgid(number)
    os.setuid(number)


def test_member_of_the_queues_group_makes_what_its_owner_can_use(reachable: Path) -> None:
    """Without a `file_mode`: the queue's own is known."""
    directory = reachable / "queue"
    made_by_nobody(directory, 0o660).close()

    def member() -> None:
        become(STRANGER, [GROUP])
        with Queue(directory, trust=TRUST) as queue:
            send_pages(queue, 3)
            with queue.consumer("reader") as consumer:
                consumer.receive(timeout=0)
                consumer.ack()

    def owner() -> None:
        become(NOBODY, [GROUP])
        with Queue(directory, trust=TRUST) as queue, queue.consumer("reader") as consumer:
            assert len(queue) == 10
            assert consumer.lag == 9
            send_pages(queue, 1)

    in_child(member)
    assert found(directory) == {
        (NOBODY, GROUP, "drwxrwx---"),
        (NOBODY, GROUP, "-rw-rw----"),
        (STRANGER, GROUP, "-rw-rw----"),
    }
    in_child(owner)


def test_user_outside_of_the_queues_group_is_refused_first(reachable: Path) -> None:
    """It may write, but its files would be closed to those with whom the owner shares the queue."""
    directory = reachable / "queue"
    made_by_nobody(directory, 0o660).close()
    directory.chmod(0o1777)
    for path in directory.iterdir():
        path.chmod(0o664 if path.name == "queue-allMeta" else 0o666)
    before = found(directory)

    def body() -> None:
        become(STRANGER, [])
        with pytest.raises(AccessDenied, match="cannot get its group"):
            Queue(directory, trust=TRUST)

    in_child(body)
    assert found(directory) == before
