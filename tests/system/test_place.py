"""A queue is the directory that was opened: handles say when the path leads elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safely import NOBODY, user
from support import LONG, until

import pagequeue.multiprocessing as drop_in
from pagequeue import Queue, Retention, errors, merge
from pagequeue.logging import QueueHandler
from pagequeue.queue.queue import internals
from pagequeue.system.directory import Directory
from pagequeue.tasks import TaskStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest import MonkeyPatch  # noqa: PT013 - a type

SMALL = 4096
LARGE = bytes(5 * SMALL)
HOW = ["moved", "removed", "recreated", "covered by a link"]


def id_of(queue: Queue[Any]) -> str:
    """Return a queue's id, as errors name it."""
    return internals(queue).store.meta.queue_id.hex()


def displace(path: Path, how: str) -> None:
    """Make a path lead elsewhere."""
    if how == "removed":
        shutil.rmtree(path)
        return
    path.rename(path.with_name("old"))
    if how == "recreated":
        Queue(path, page_bytes=SMALL).close()
    elif how == "covered by a link":
        Queue(path.with_name("other"), page_bytes=SMALL).close()
        path.symlink_to(path.with_name("other"))


def files(directory: Path) -> list[str]:
    """Return the paths of all files below a directory."""
    return sorted(str(path) for path in directory.rglob("*"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the queue is."""
    return tmp_path / "events"


@pytest.fixture
def queue(path: Path) -> Iterator[Queue[Any]]:
    """A queue with one message, in pages of 4 KiB."""
    with Queue(path, page_bytes=SMALL) as opened:
        opened.producer().send(b"first")
        yield opened


def again(use: Callable[[], object], ends: list[float] | None = None) -> None:
    """Use a handle until that raises; note when each use began, the last one included."""
    while True:
        if ends is not None:
            ends.append(time.monotonic())
        use()


# --- each operation that makes a file, or is the first of its handle ------------------------------


@pytest.mark.parametrize("how", HOW)
def test_every_operation_says_that_the_path_leads_elsewhere(
    queue: Queue[Any], path: Path, how: str
) -> None:
    """Nothing is read from what took the place, and nothing is made there."""
    producer, other = queue.producer(), queue.producer()
    group, waiting = queue.group("workers"), queue.group("waiting", latest=True)
    claim = group.claim(timeout=0)
    file = other.open()
    file.write(LARGE)
    consumer, reader = queue.consumer(latest=True), queue.consumer(latest=True)
    mine = id_of(queue)
    displace(path, how)
    there = files(path)
    calls: list[Callable[[], object]] = [
        lambda: producer.send(b"x"),
        lambda: producer.send(LARGE),
        lambda: producer.send_many([b"x"] * 1000),
        other.rotate,
        file.close,
        consumer.poll,
        lambda: reader.receive(timeout=LONG),
        lambda: claim.reject("not mine"),
        lambda: waiting.claim(timeout=LONG),
        queue.producer,
        queue.trim,
        queue.compress,
    ]
    for call in calls:
        with pytest.raises(errors.QueueReplaced, match="open it again where it is") as caught:
            call()
        error = caught.value
        assert (error.path, error.queue_id) == (str(path), mine)
        assert mine in str(error)
        if how == "removed":
            assert error.found_id is None
            assert "was removed" in str(error)
        else:
            assert str(path.with_name("old")) in str(error)
        if how in {"recreated", "covered by a link"}:
            with Queue(os.path.realpath(path), read_only=True) as found:
                assert error.found_id == id_of(found)
                assert error.found_id in str(error)
    queue.close()
    assert files(path) == there
    if how != "removed":
        with Queue(path.with_name("old")) as old:
            assert [m.payload for m in old.replay()] == [b"first"]
            assert old.group("workers").lag == 1
            assert not list(old.group("workers").dead_letters())


def test_a_directory_that_is_still_there_by_another_way_is_no_other_queue(
    queue: Queue[Any], path: Path
) -> None:
    """A link to the directory itself leads to the same queue."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))
    queue.producer().send(LARGE)
    assert len(queue) == 2


def test_a_bind_mount_leads_to_the_same_queue(tmp_path: Path) -> None:
    """One volume at two paths: two names of one directory, not two queues."""
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    mount = ["mount", "--bind", str(real), str(other)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("bind mounts need root")
    try:
        with (
            Queue(real / "q", page_bytes=SMALL) as one,
            Queue(other / "q") as two,
            one.consumer("c"),
        ):
            for queue in (one, two, one, two):
                queue.producer().send_many([bytes(1000)] * 5)
                queue.rotate()
                queue.trim()
            with pytest.raises(errors.ConsumerInUse):
                two.consumer("c")
            claim = one.group("g").claim(timeout=0)
            assert two.group("g").claim(timeout=0).message.sequence == 1
            claim.ack()
            assert [len(one), len(two), two.group("g").lag] == [20, 20, 19]
            assert one.verify().ok
    finally:
        subprocess.run(["umount", "-l", str(other)], check=True)


@pytest.mark.parametrize("moves", [False, True])
def test_a_copy_has_the_same_id_and_is_another_place(path: Path, moves: bool) -> None:
    """A backup beside its original is used on its own; in its place it is noticed."""
    with Queue(path, page_bytes=SMALL) as queue:
        queue.producer().send_many([b"first", b"second"])
        with queue.consumer("c") as consumer, queue.group("g") as group:
            consumer.receive(timeout=0)
            consumer.ack()
            group.claim(timeout=0).ack()
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    if moves:
        with Queue(path) as queue, queue.consumer("c") as consumer:
            path.rename(path.with_name("old"))
            copy.rename(path)
            with pytest.raises(errors.QueueReplaced) as caught:
                again(lambda: consumer.receive(timeout=LONG))
            assert caught.value.queue_id == caught.value.found_id == id_of(queue)
        return
    with Queue(path) as one, Queue(copy) as two:
        for queue, payload in ((one, b"one"), (two, b"two")):
            queue.producer().send(payload)
            with queue.consumer("c") as consumer, queue.group("g") as group:
                found = [message.payload for message in consumer.receive_many(5, timeout=0)]
                assert found == [b"second", payload]
                consumer.ack()
                assert group.lag == 2
                assert group.claim(timeout=0).message.payload == b"second"


def test_a_queue_whose_path_this_process_may_not_enter_any_more_goes_on(tmp_path: Path) -> None:
    """Programs give up rights once their files are open; that replaces no queue."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o711)
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o1777)
    with user(NOBODY), Queue(home / "events") as queue:
        os.seteuid(0)
        home.chmod(0o700)
        os.seteuid(NOBODY)
        with pytest.raises(PermissionError):
            (home / "events").stat()
        queue.producer().send(b"x")
        assert queue.consumer().receive(timeout=0).payload == b"x"


def test_a_process_that_changes_its_root_keeps_its_queue(tmp_path: Path) -> None:
    """After chroot the path means another place; the open directory is still the queue."""
    if os.geteuid():
        pytest.skip("only root can chroot")
    with Queue(tmp_path / "events", read_only=False):
        pass
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            queue = Queue(tmp_path / "events")
            os.chroot(tmp_path)
            queue.producer().send(b"x")
            if queue.consumer().receive(timeout=0).payload == b"x":
                status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- what waits, and what is in use ---------------------------------------------------------------


def test_all_that_waits_is_told_within_a_second(path: Path, tmp_path: Path) -> None:
    """Consumers, groups, merges, flows, stores and senders, blocking and in coroutines."""
    with contextlib.ExitStack() as held:
        queue = held.enter_context(Queue(path, page_bytes=SMALL))
        reader = held.enter_context(Queue(path, read_only=True))
        other = held.enter_context(Queue(tmp_path / "other"))
        full = Retention(max_bytes=2 * SMALL)
        bound = held.enter_context(
            Queue(path, prefix="full", page_bytes=SMALL, retention=full, on_full="block")
        )
        store = held.enter_context(TaskStore(path, prefix="tasks"))
        joinable: Any = drop_in.JoinableQueue(directory=path, prefix="items")
        limited: Any = drop_in.Queue(1, directory=path, prefix="limited")
        empty: Any = drop_in.Queue(directory=path, prefix="empty")
        joinable.put(1)
        limited.put(1)
        empty.put(empty.put(1))
        assert [empty.get(), empty.get()] == [1, None]
        held.enter_context(bound.consumer("slow"))
        sender = held.enter_context(bound.producer())
        with contextlib.suppress(errors.QueueFull):
            while True:
                sender.send(bytes(1000), timeout=0)

        async def async_waits() -> list[object]:
            flow = queue.persist(never(), "async-flow")
            waits = [
                queue.consumer(latest=True).receive_async(),
                reader.consumer(latest=True).receive_async(),
                queue.group("async", latest=True).claim_async(),
                anext(aiter(merge([queue, other], follow=True))),
                bound.producer().send_async(bytes(3000)),
                store.claim_async("nothing"),
                anext(aiter(flow)),
            ]
            return await asyncio.gather(*waits, return_exceptions=True)

        waits: dict[str, Callable[[], object]] = {
            "consumer": lambda: queue.consumer(latest=True).receive(),
            "batch": lambda: queue.consumer(latest=True).receive_many(),
            "named": lambda: queue.consumer("named", latest=True).receive(),
            "reader": lambda: reader.consumer(latest=True).receive(),
            "durable": lambda: queue.consumer(durable_only=True).receive(),
            "group": lambda: queue.group("one", latest=True).claim(),
            "group take": lambda: queue.group("two", latest=True).take(),
            "merge": lambda: next(iter(merge([queue, other], follow=True))),
            "room": lambda: sender.send(bytes(3000)),
            "task": lambda: store.claim("nothing"),
            "join": joinable.join,
            "put": lambda: limited.put(2),
            "get": empty.get,
        }
        waits["asyncio"] = lambda: asyncio.run(async_waits())
        ends: dict[str, object] = {}
        threads = [
            threading.Thread(target=ended, args=(ends, name, wait), daemon=True)
            for name, wait in waits.items()
        ]
        for thread in threads:
            thread.start()
        until(lambda: ends or (asleep(queue) >= 4 and asleep(reader)))
        assert not ends
        path.rename(path.with_name("old"))
        for thread in threads:
            thread.join(LONG)
        found: Any = ends.pop("asyncio")
        assert {type(end) for end in ends.values()} == {errors.QueueReplaced}
        assert len(ends) == len(waits) - 1
        assert [type(end) for end in found] == [errors.QueueReplaced] * 7


def asleep(queue: Queue[Any]) -> int:
    """Return how many coroutines and threads wait for the notifier of a queue."""
    return len(queue._store.notifier._waiters)


async def never() -> Any:  # noqa: ANN401 - an upstream
    """Yield nothing, for ever."""
    await asyncio.Event().wait()
    yield b""


def ended(ends: dict[str, object], name: str, wait: Callable[[], object]) -> None:
    """Note how a wait ends."""
    try:
        ends[name] = wait()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        ends[name] = error


def test_handles_in_use_are_told_within_a_second(queue: Queue[Any], path: Path) -> None:
    """Not "with the next page": small messages may take days to fill it."""
    producer, consumer, group = queue.producer(), queue.consumer("named"), queue.group("workers")
    producer.send(b"x")
    consumer.receive(timeout=0)
    consumer.ack()
    claims = [group.claim(timeout=0)]
    shutil.rmtree(path)
    removed = time.monotonic()
    for use in (
        lambda: producer.send(b"x"),
        lambda: consumer.ack(0),
        lambda: claims[-1].extend(30.0),
    ):
        ends: list[float] = []
        with pytest.raises(errors.QueueReplaced):
            again(use, ends)
        assert all(began - removed < 1.0 for began in ends[:-1])


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("kind", ["consumer", "group"])
def test_the_file_of_an_open_consumer_that_is_replaced_is_noticed(
    queue: Queue[Any], path: Path, kind: str, how: str
) -> None:
    """Its place is in the file; the next process of that name would find another one."""
    handle: Any = queue.consumer("c") if kind == "consumer" else queue.group("c")
    file = path / "queue-readMeta.c"
    data = file.read_bytes()
    file.unlink()
    if how == "replaced":
        file.write_bytes(data)
    receive = handle.receive if kind == "consumer" else handle.claim
    with pytest.raises(errors.LockReplaced, match="replaced or removed while it was open") as error:
        again(lambda: receive(timeout=LONG))
    assert error.value.path == str(file)
    with pytest.raises(errors.ClosedError):
        receive(timeout=0)


def test_a_page_that_went_with_its_directory_is_not_called_missing(tmp_path: Path) -> None:
    """The remedy of a damaged queue would be the wrong one."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([bytes(1000)] * 20)
        with Queue(tmp_path / "q", read_only=True) as reader, reader.replay() as replay:
            next(replay)
            shutil.rmtree(tmp_path / "q")
            with pytest.raises(errors.QueueReplaced):
                list(replay)


def test_a_file_that_cannot_be_made_says_that_its_directory_is_gone(path: Path) -> None:
    """The system only says that something is not there, which is not the queue's name."""
    folder = Directory(str(path), create=True)
    staged = Directory(str(path / "staged"), create=True, within=folder)
    shutil.rmtree(path)
    for each in (folder, staged):
        for make in (
            lambda at: at.make("page", b"", size_bytes=SMALL),
            lambda at: at.open("lock", writable=True, make=True),
            lambda at: at.rename("old", "new"),
        ):
            with pytest.raises(errors.QueueReplaced) as caught:
                make(each)
            assert caught.value.path == str(path)
        each.close()


def test_a_send_that_was_done_when_its_queue_moved_is_not_called_refused(path: Path) -> None:
    """The message is in the queue, wherever that is now: sending it again would double it."""
    with Queue(path, sync="always") as queue:
        found: dict[str, object] = {}
        sender = threading.Thread(
            target=ended, args=(found, "send", lambda: queue.producer().send(b"sent"))
        )
        with internals(queue).store.flusher.lock.exclusive(LONG, "keeping others from flushing"):
            sender.start()
            until(lambda: queue.tail_sequence == 1)
            path.rename(path.with_name("old"))
            with pytest.raises(errors.QueueReplaced):
                queue.trim()
        sender.join()
        error: Any = found["send"]
        assert isinstance(error, errors.NotDurable)
        assert isinstance(error.__cause__, errors.QueueReplaced)
        with pytest.raises(errors.QueueReplaced):
            queue.close()
    with Queue(path.with_name("old")) as queue:
        assert [message.payload for message in queue.replay()] == [b"sent"]


# --- what opens the queue again -------------------------------------------------------------------


def forked(do: Callable[[], bool]) -> bool:
    """Return what a call in a forked child returns."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if do() else 1
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def record(text: str) -> Any:  # noqa: ANN401 - of the standard library
    """Return a log record."""
    import logging  # noqa: PLC0415 - the module of the same name is imported above

    return logging.makeLogRecord({"msg": text})


def test_a_child_logs_to_the_directory_that_was_named(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """A relative path is of the directory in which the handler was made, as of a FileHandler."""
    monkeypatch.chdir(tmp_path)
    handler = QueueHandler("log")
    (tmp_path / "elsewhere").mkdir()

    def log() -> bool:
        os.chdir("elsewhere")
        handler.emit(record("child"))
        return handler.dropped == 0

    assert forked(log)
    handler.close()
    assert not (tmp_path / "elsewhere" / "log").exists()
    with Queue(tmp_path / "log", read_only=True) as queue:
        assert b"child" in queue.last(1)[0].payload


@pytest.mark.parametrize("how", HOW[:3])
def test_a_handler_says_that_its_log_is_another_one(path: Path, how: str) -> None:
    """Records are counted as dropped, and no other queue gets them, also not from a child."""
    handler = QueueHandler(path, page_bytes=SMALL)
    reported: list[object] = []
    handler.handleError = reported.append  # type: ignore[method-assign, assignment]
    displace(path, how)
    there = files(path)

    def log() -> bool:
        handler.emit(record("lost"))
        return handler.dropped == 1 and len(reported) == 1

    assert forked(log)
    assert log()
    handler.close()
    assert files(path) == there


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("was_used", [False, True])
def test_a_drop_in_whose_directory_is_gone_makes_no_empty_one(
    tmp_path: Path, given: bool, was_used: bool
) -> None:
    """Only the maker makes a private directory; nobody a queue that another one has used."""
    queue: Any = drop_in.Queue(directory=tmp_path / "jobs") if given else drop_in.Queue()
    directory = Path(queue.directory)
    if was_used:
        queue.put("job")
    shutil.rmtree(directory, ignore_errors=True)

    def get() -> bool:
        try:
            queue.get(timeout=LONG)
        except errors.QueueReplaced:
            return not directory.exists()
        return False

    if given and not was_used:
        assert forked(queue.empty)  # it makes it: there was none
    else:
        assert forked(get)
        with pytest.raises(errors.QueueReplaced):
            queue.get(timeout=LONG)
    queue.close()


def test_a_drop_in_whose_queue_was_made_anew_is_not_the_same(tmp_path: Path) -> None:
    """The handle that was handed over knows the queue's id."""
    queue: Any = drop_in.Queue(directory=tmp_path / "jobs")
    queue.put("old")
    shutil.rmtree(tmp_path / "jobs")
    other: Any = drop_in.Queue(directory=tmp_path / "jobs")
    other.put("new")

    def get() -> bool:
        try:
            queue.get(timeout=0)
        except errors.QueueReplaced as error:
            return error.queue_id is not None and error.found_id is not None
        return False

    assert forked(get)
    assert other.get(timeout=0) == "new"
    other.close()
    queue.close()


# --- a file system that gives a file other bytes --------------------------------------------------


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Path]:
    """A directory of overlayfs, in whose lower layer is a queue."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    with Queue(tmp_path / "lower" / "events", page_bytes=SMALL) as made:
        made.producer().send(b"built")
    places = ",".join(
        f"{kind}dir={tmp_path / name}"
        for kind, name in (("lower", "lower"), ("upper", "upper"), ("work", "work"))
    )
    merged = str(tmp_path / "merged")
    mount = ["mount", "-t", "overlay", "-o", places, "overlay", merged]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting overlayfs needs root")
    yield tmp_path / "merged" / "events"
    subprocess.run(["umount", "-l", merged], check=True)


def test_a_reader_that_came_before_the_first_writer_is_told(layers: Path) -> None:
    """The writer's opening copies the files; those of the lower layer stay mapped."""
    with Queue(layers, read_only=True) as reader, reader.consumer() as consumer:
        assert consumer.receive(timeout=0).payload == b"built"
        with Queue(layers) as writer:
            waiting = writer.consumer(latest=True)
            writer.producer().send(b"news")
            assert waiting.receive(timeout=LONG).payload == b"news"
        with pytest.raises(errors.LockReplaced, match="overlayfs copied it") as caught:
            again(lambda: consumer.receive(timeout=LONG))
        assert caught.value.path == str(layers / "queue-writeMeta")
    with Queue(layers, read_only=True) as reader:
        assert [message.payload for message in reader.replay()] == [b"built", b"news"]
