"""Closing concurrently with every call: an operation keeps its files; no wait is endless."""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import support
from support import own_thread
from tiers import slow_but

from pagequeue import Queue, RepairReport, Retention, _core, errors
from pagequeue import format as fmt
from pagequeue.queue import lifecycle
from pagequeue.queue.lifecycle import OpenQueue
from pagequeue.store.flush import Flusher
from pagequeue.system import directory as files
from pagequeue.system.descriptors import owned
from pagequeue.util.single_thread import SingleThread
from pagequeue.util.wakeup import Wakeup
from pagequeue.util.worker import Background
from stress.no_close_harms_or_hangs import may_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

SMALL = 4096
WIDE = bytes(3900)
SECONDS = 60.0


def open_in(directory: Path) -> list[str]:
    """Return what this process has open in a directory."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if Path(path.removesuffix(" (deleted)")).is_relative_to(directory):
            found.append(path)
    return found


def await_closed(directory: Path) -> None:
    """Wait until this process has nothing open there: closing waits for threads only so long."""
    support.until(lambda: open_in(directory) == [])


def identities(directory: Path) -> dict[str, tuple[int, int]]:
    """Return which files have which names, and when each was changed."""
    return {e.name: (e.inode(), e.stat().st_mtime_ns) for e in os.scandir(directory)}


def in_thread(do: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Do something in a thread; return it, and what came of it."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(do())
        except BaseException as error:  # noqa: BLE001 - checked by the test
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


def ended(do: Callable[[], object]) -> object:
    """Do something that must not hang; return what came of it."""
    thread, came = in_thread(do)
    thread.join(SECONDS)
    assert not thread.is_alive(), "it hangs"
    return came[0]


# --- descriptors ----------------------------------------------------------------------------------


def test_descriptor_is_closed_by_the_last_operation(tmp_path: Path) -> None:
    """An operation that has begun keeps it, may contain others, and none begins after that."""
    descriptor = owned(os.open(tmp_path, os.O_RDONLY), "here")
    order: list[str] = []
    with descriptor as fd:
        assert descriptor.is_inside
        assert not descriptor.others
        assert not descriptor.close(lambda: order.append("released"))
        with descriptor as again:
            assert again == fd
        refused = ended(descriptor.__enter__)
        assert isinstance(refused, errors.ClosedError)
        assert ended(lambda: descriptor.others) == 1
        assert os.fstat(fd)
        assert order == []
    assert order == ["released"]
    assert open_in(tmp_path) == []
    with pytest.raises(errors.ClosedError):
        descriptor.check()
    assert descriptor.close()


def test_release_that_was_interrupted_is_called_again(tmp_path: Path) -> None:
    """The descriptor stays until it worked."""
    descriptor = owned(os.open(tmp_path, os.O_RDONLY), "here")
    tries = iter([KeyboardInterrupt, None])

    def release() -> None:
        with descriptor:  # it may use what it releases
            if (error := next(tries)) is not None:
                raise error

    with pytest.raises(KeyboardInterrupt):
        descriptor.close(release)
    assert open_in(tmp_path) == [str(tmp_path)]
    assert descriptor.close(release)
    assert open_in(tmp_path) == []


def test_dropped_descriptor_is_closed(tmp_path: Path) -> None:
    """No descriptor outlives its owner."""
    descriptor = owned(os.open(tmp_path, os.O_RDONLY), "here")
    del descriptor
    assert open_in(tmp_path) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_child_of_a_fork_has_no_file_open_and_closes_none_of_the_parents(tmp_path: Path) -> None:
    """It raises ForkedError; a descriptor number that the child reused stays open."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"1")
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            code = 1
            try:
                code = 2 * bool(open_in(tmp_path))
                numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
                for call in (queue.info, queue.trim, queue.consumer, queue.rotate):
                    try:
                        call()
                        code = 3
                    except errors.ForkedError:
                        pass
                queue._store.close()
                queue.close()
                del queue, producer
                gc.collect()
                for number in numbers:
                    os.fstat(number)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.send(WIDE)
        assert len(queue) == 2


# --- operations during closing --------------------------------------------------------------------


@pytest.fixture
def held_creation(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Stop a thread that creates a file, in the call that uses the directory's descriptor."""
    gate = SimpleNamespace(reached=threading.Event(), goes_on=threading.Event(), stops=False)

    def make(*args: Any) -> _core.Region:  # noqa: ANN401 - the core's own
        if gate.stops and not gate.reached.is_set():
            gate.reached.set()
            assert gate.goes_on.wait(SECONDS)
        return _core.Region.make(*args)

    core = SimpleNamespace(Region=SimpleNamespace(make=make), identity=_core.identity)
    monkeypatch.setattr(files, "_core", core)
    yield gate
    gate.goes_on.set()


@pytest.mark.parametrize("way", ["send", "rotate", "send_many"])
def test_page_created_during_closing_is_not_put_into_another_directory(
    tmp_path: Path, held_creation: SimpleNamespace, way: str
) -> None:
    """I10: the queue that is opened next would have the same number for its directory."""
    other = tmp_path / "other"
    with Queue(other, page_bytes=SMALL) as queue, queue.producer() as producer:
        for _ in range(5):
            producer.send(WIDE)
    before = identities(other)
    queue = Queue(tmp_path / "q", page_bytes=SMALL, lock_timeout=0.2)
    producer = queue.producer()
    producer.send(WIDE)
    held_creation.stops = True
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(WIDE),
        "send_many": lambda: producer.send_many([WIDE]),
        "rotate": queue.rotate,
    }
    thread, came = in_thread(calls[way])
    assert held_creation.reached.wait(SECONDS)
    queue.close()  # stops waiting after `lock_timeout`, and leaves the files to the thread
    assert open_in(tmp_path / "q")
    with Queue(other, read_only=True):
        held_creation.goes_on.set()
        thread.join(SECONDS)
    assert isinstance(came[0], errors.ClosedError) or way == "rotate"  # which is done by then
    assert identities(other) == before
    await_closed(tmp_path)
    with Queue(tmp_path / "q") as queue:
        assert len(queue) == 1
        assert queue.verify().problems == []


def test_closing_waits_for_operations_of_other_threads(
    tmp_path: Path, held_creation: SimpleNamespace
) -> None:
    """When it returns, another process can open the queue alone."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    producer = queue.producer()
    producer.send(WIDE)
    held_creation.stops = True
    _, came = in_thread(lambda: producer.send(WIDE))
    assert held_creation.reached.wait(SECONDS)
    threading.Timer(0.2, held_creation.goes_on.set).start()
    queue.close()
    assert open_in(tmp_path) == []
    del came


def send_each(queue: Queue[Any], count: int) -> None:
    """Send messages that take a page each."""
    with queue.producer() as producer:
        for _ in range(count):
            producer.send(WIDE)


@pytest.mark.parametrize("is_ring", [False, True])
def test_closing_leaves_no_page_below_the_head(tmp_path: Path, is_ring: bool) -> None:
    """It begins while the first of a page's two files is removed, and waits for the other."""
    size = 6 * fmt.files_bytes(SMALL)
    with Queue(tmp_path / "q", page_bytes=SMALL, ring=size if is_ring else None) as queue:
        send_each(queue, 6)
    queue = Queue(tmp_path / "q", retention=None if is_ring else Retention(max_bytes=size // 2))
    closing: list[threading.Thread] = []

    def close(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove" and ".page" in str(arguments[0]) and not closing:
            closing.append(in_thread(queue.close)[0])
            support.until(lambda: queue._store.is_closed)

    sys.addaudithook(close)  # for ever: it does nothing after this
    with contextlib.suppress(errors.ClosedError):
        queue.trim()
        send_each(queue, 2)
    closing[0].join(SECONDS)
    with Queue(tmp_path / "q") as queue:
        assert queue.head_sequence > 0
        assert queue.recovery.actions == []


def test_queue_that_is_dropped_during_an_operation_stays_until_it_ends(
    tmp_path: Path, held_creation: SimpleNamespace
) -> None:
    """The garbage collector does not wait, and closes no file in use."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    queue.producer().send(WIDE)
    held_creation.stops = True
    queue._store.roller.prepare(2, reach=SMALL, filled_bytes=0, frame_bytes=1.0)
    assert held_creation.reached.wait(SECONDS)
    del queue
    gc.collect()
    assert open_in(tmp_path / "q")
    held_creation.goes_on.set()
    await_closed(tmp_path)


def test_closing_from_within_an_operation_leaves_the_files_to_it(tmp_path: Path) -> None:
    """A progress callback, as a signal handler, does not wait for what it interrupts."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    with queue.producer() as producer:
        for _ in range(4):
            producer.send(bytes(3900))
    store = queue._store
    with store.folder.descriptor:
        queue.close()
        assert store.folder.names()
        with pytest.raises(errors.ClosedError):
            store.folder.descriptor.check()
    assert open_in(tmp_path) == []
    for call in (queue.info, queue.trim, queue.compress, queue.stats, lambda: queue.tail_sequence):
        with pytest.raises(errors.ClosedError):
            call()
    with pytest.raises(errors.ClosedError):
        _ = store.write_meta
    with pytest.raises(errors.ClosedError):
        store.page(1)


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("seed", range(3))
def test_threads_that_use_a_queue_get_typed_errors_when_it_is_closed(
    tmp_path: Path, seed: int
) -> None:
    """In any call, and no file stays open; another queue's files are unaffected."""
    other = tmp_path / "other"
    with Queue(other, page_bytes=SMALL) as queue, queue.producer() as producer:
        for _ in range(40):
            producer.send(WIDE)
    before = identities(other)
    deadline = time.monotonic() + 1.5
    for number in itertools.count():
        queue = Queue(
            tmp_path / f"q{number}",
            page_bytes=SMALL,
            sync=3,
            lock_timeout=SECONDS,
            retention=Retention(max_bytes=20 * SMALL, keep_unacked=False),
        )
        uses: list[Callable[[Queue], object]] = [
            lambda q: q.producer().send(WIDE),
            lambda q: q.producer().send_many([WIDE]),
            lambda q: (q.rotate(), q.trim(), q.info(), q.stats()),
            lambda q: q.consumer().receive(0.01),
            lambda q: q.consumer(f"c{threading.get_ident()}").ack(durable=True),
            lambda q: q.group("g").claim(0.01).ack(),
            lambda q: list(q.replay(sequence=q.tail_sequence)),
        ]

        def use(what: Callable[[Queue], object], queue: Queue = queue) -> errors.PageQueueError:
            while True:
                try:
                    what(queue)
                except errors.ClosedError as error:
                    return error
                except (errors.RetryError, errors.SeekError):
                    continue

        running = [in_thread(lambda what=what: use(what)) for what in uses]  # type: ignore[misc]
        time.sleep(0.002 * (1 + (seed + number) % 7))
        queue.close()
        with Queue(other, read_only=True):
            for thread, came in running:
                thread.join(SECONDS)
                assert not thread.is_alive()
                assert isinstance(came[0], errors.ClosedError), came
        assert open_in(tmp_path) == []
        assert identities(other) == before
        if time.monotonic() > deadline:
            break


# --- handles that are created during closing ------------------------------------------------------

MADE: dict[str, Callable[[Queue], object]] = {
    "producer": lambda queue: queue.producer(),
    "consumer": lambda queue: queue.consumer(),
    "named": lambda queue: queue.consumer("name"),
    "group": lambda queue: queue.group("group"),
    "replay": lambda queue: queue.replay(),
    "paced": lambda queue: queue.replay(speed=1.0),
    "batches": lambda queue: queue.batches(),
    "flow": lambda queue: queue.persist([b"element"], "flow"),
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("how", ["closed", "repaired"])
def test_handle_created_during_closing_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    """Or it would wait for ever: closing did not know of it."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    made: list[Any] = []
    keep = OpenQueue.keep

    def late(self: OpenQueue, handle: Any, store: Any) -> Any:  # noqa: ANN401 - the library's own
        made.append(handle)
        if len(made) == 1:
            queue.close() if how == "closed" else queue.repair()
        return keep(self, handle, store)

    monkeypatch.setattr(OpenQueue, "keep", late)
    assert isinstance(ended(lambda: MADE[kind](queue)), errors.ClosedError)
    handle = made[0]
    use = {"flow": lambda: next(handle), "group": lambda: handle.claim(None)}.get(
        kind, lambda: handle.receive() if kind != "producer" else handle.send(b"1")
    )
    assert isinstance(ended(use), errors.ClosedError)
    queue.close()
    assert open_in(tmp_path) == []


def test_message_that_was_sent_before_the_queue_was_closed_is_not_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending it again would duplicate it: NotDurable means that it was sent."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL, sync=1)
    producer = queue.producer()
    flush = Flusher.flush

    def late(self: Flusher, timeout: float | None, end: int | None = None) -> int:
        monkeypatch.undo()
        queue._store.close()
        return flush(self, timeout, end)

    monkeypatch.setattr(Flusher, "flush", late)
    with pytest.raises(errors.NotDurable, match="sent and visible"):
        producer.send(b"once")
    queue.close()
    with Queue(tmp_path / "q") as queue:
        assert [m.payload for m in queue.replay()] == [b"once"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, errors.LockTimeout])
def test_repair_that_was_interrupted_leaves_a_closed_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """What comes then is ClosedError, and closing is fine."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL, sync=1)

    def failing(*_: object, **__: object) -> None:
        raise error("held")

    monkeypatch.setattr("pagequeue.queue.lifecycle.repair_queue", failing)
    with pytest.raises(error):
        queue.repair()
    with pytest.raises(errors.ClosedError):
        queue.info()
    queue.close()
    assert open_in(tmp_path) == []


def test_queue_that_is_closed_while_it_is_repaired_stays_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing saw the store of before; the one that repair opens then is closed as well."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    repair = lifecycle.repair_queue

    def late(*args: Any, **options: Any) -> RepairReport:  # noqa: ANN401 - the library's own
        thread, came = in_thread(queue.close)
        thread.join(SECONDS)
        assert came == [None]
        return repair(*args, **options)

    monkeypatch.setattr(lifecycle, "repair_queue", late)
    assert isinstance(queue.repair(), RepairReport)
    assert open_in(tmp_path) == []
    with pytest.raises(errors.ClosedError):
        queue.info()


def test_retention_in_the_background_does_not_warn_of_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A roll requested it, and the queue was closed first: that is not an error."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL, retention=Retention(max_bytes=4 * SMALL))
    upkeep, store = queue._opened.upkeep, queue._store
    queue.close()
    assert upkeep is not None
    assert store.is_closed
    assert not upkeep.trimmer.trim_quietly(store)
    assert caplog.messages == []


# --- threads in the background --------------------------------------------------------------------


def workers(but: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Return the background threads of all queues, but for those that were there before.

    One of these can be that of a queue of another test, and end at any time.
    """
    found = [thread for thread in threading.enumerate() if thread.name == "pagequeue"]
    return [thread for thread in found if thread not in but]


def test_first_jobs_of_many_threads_start_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ending it ends all there is."""
    before = workers()
    background, begin = Background(), threading.Barrier(6)
    real = threading.Thread.__init__
    done: list[int] = []

    def slow(self: threading.Thread, *args: Any, **options: Any) -> None:  # noqa: ANN401
        real(self, *args, **options)
        if options.get("name") == "pagequeue":
            time.sleep(0.05)

    def submit() -> None:
        begin.wait()
        background.submit(lambda: done.append(1))

    submitting = [in_thread(submit)[0] for _ in range(6)]
    monkeypatch.setattr(threading.Thread, "__init__", slow)
    for thread in submitting:
        thread.join()
    assert len(workers(but=before)) == 1
    background.end()
    background.await_end(SECONDS)
    assert workers(but=before) == []
    assert len(done) == 6


def test_handler_that_submits_while_the_worker_is_started_starts_no_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a signal handler does that makes a producer."""
    before = workers()
    background = Background()
    real, inner = threading.Thread.__init__, [True]

    def interrupted(self: threading.Thread, *args: Any, **options: Any) -> None:  # noqa: ANN401
        if inner and options.get("name") == "pagequeue":
            inner.pop()
            background.submit(int)
        real(self, *args, **options)

    monkeypatch.setattr(threading.Thread, "__init__", interrupted)
    background.submit(int)
    assert len(workers(but=before)) == 1
    background.end()
    background.await_end(SECONDS)
    assert workers(but=before) == []


def test_job_submitted_during_the_end_is_dropped_with_its_references() -> None:
    """No reference outlives closing."""
    background = Background()
    background.submit(int)
    background.end()
    background.await_end(SECONDS)
    background.submit(int)
    assert background._jobs.get_nowait() is None
    never = Background()
    never._closed = False
    never._jobs.put(int)
    never.end()
    assert never._jobs.get_nowait() is None


def test_interrupted_start_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an exception from a signal handler no state claims that the thread runs."""
    runs: list[int] = []
    single = SingleThread("pagequeue-test", lambda: runs.append(1))
    real = threading.Thread.start

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        single.start()
    assert not single.is_there
    single.await_end(1)
    monkeypatch.setattr(threading.Thread, "start", real)
    single.start()
    single.await_end(SECONDS)
    assert runs == [1]


def test_wakeup_ends_waits_until_it_is_cleared() -> None:
    """Set again and again, it is set once."""
    wakeup = Wakeup()
    assert not wakeup.wait(0)
    wakeup.set()
    wakeup.set()
    assert wakeup.wait(60)
    assert wakeup.wait(60)
    wakeup.clear()
    assert not wakeup.wait(0)


# --- Ctrl-C ---------------------------------------------------------------------------------------


def interrupted_at(number: int, do: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt where the n-th signal could be noticed; return whether there was."""
    left = [number]

    seen: dict[FrameType, str] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as in Python's docs
        frame.f_trace_opcodes = True
        if event == "call":
            left[0] -= 1
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            left[0] -= may_interrupt(seen.get(frame, ""), name)
            seen[frame] = name
        if left[0] == 0 and event in {"call", "opcode"}:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        seen.clear()  # else the frames that were left would wait for the garbage collector
    return left[0] <= 0  # raised where Python ignores it, as in a finalizer


def closing_interrupted_at(number: int, directory: Path, *, drops: bool) -> bool:
    """Interrupt closing where the n-th signal could be noticed, then end it in another thread."""
    queue = Queue(directory, page_bytes=SMALL, lock_timeout=2.0)
    handles = [queue.producer(), queue.consumer("c"), queue.group("g"), queue.replay()]
    handles[0].send(WIDE)  # type: ignore[attr-defined]
    queue._store.background.submit(int)
    with own_thread() as run:
        came = run(partial(interrupted_at, number, queue.close))
        if drops:
            holder: list[object] = [queue, *handles]
            del queue, handles

            def drop() -> None:
                holder.clear()
                gc.collect()

            ended(drop)
        else:
            assert ended(queue.close) is None
            for handle in handles:
                assert ended(handle.close) is None
    return came


@pytest.mark.quick_each(4)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("drops", slow_but([False], [False, True]))
@pytest.mark.parametrize("part", range(4))
def test_closing_that_was_interrupted_anywhere_is_continued(
    tmp_path: Path, drops: bool, part: int
) -> None:
    """Closing again, or a finalizer, never waits for what the interrupted call left."""
    number = 1 + part
    while closing_interrupted_at(number, tmp_path / "q", drops=drops):
        await_closed(tmp_path)
        number += 4
    await_closed(tmp_path)
    assert number > 20


def test_handler_may_close_the_queue_that_it_interrupts(tmp_path: Path) -> None:
    """At any moment; then the interrupted call ends in ClosedError, or is done."""
    for number in range(40):
        queue = Queue(tmp_path / "q", page_bytes=SMALL, lock_timeout=5.0)
        before = signal.signal(signal.SIGALRM, lambda *_, queue=queue: queue.close())
        signal.setitimer(signal.ITIMER_REAL, 0.0001 * (1 + number % 20))
        try:
            while True:
                queue.producer().send(WIDE)
                queue.rotate()
        except errors.ClosedError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        queue.close()
        await_closed(tmp_path)


# --- few descriptors ------------------------------------------------------------------------------

USES: dict[str, Callable[[Queue, Path], object]] = {
    "open": lambda _, path: Queue(path / "q").close(),
    "read": lambda _, path: Queue(path / "q", read_only=True).close(),
    "new": lambda _, path: Queue(path / "new", page_bytes=SMALL).close(),
    "producer": lambda queue, _: queue.producer().send(WIDE),
    "flush": lambda queue, _: queue.producer().flush(),
    "rotate": lambda queue, _: (queue.producer().send(b"1"), queue.rotate()),
    "consumer": lambda queue, _: queue.consumer("c").close(),
    "group": lambda queue, _: queue.group("g").close(),
    "flow": lambda queue, _: queue.persist([b"e"], "f").close(),
    "trim": lambda queue, _: queue.trim(),
    "compress": lambda queue, _: queue.compress(),
    "info": lambda queue, _: queue.info(),
    "consumers": lambda queue, _: queue.consumers(),
    "ship": lambda queue, path: queue.ship(path / "ship"),
    "verify": lambda queue, _: queue.verify(),
    "replay": lambda queue, _: list(queue.replay()),
}


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("kind", slow_but(["open", "producer", "replay"], USES))
def test_without_descriptors_every_call_ends_in_a_typed_error_and_leaks_nothing(
    tmp_path: Path, kind: str
) -> None:
    """And works once there are some again."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    with queue.producer() as producer:
        for _ in range(4):
            producer.send(b"%d" % len(queue) * 2000)
    USES["info"](queue, tmp_path)  # what is imported at first use
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    failed = False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        for free in range(14):
            queue._store.flusher.forget_page()
            before = open_in(tmp_path)
            while True:
                try:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
            for _ in range(min(free, len(taken))):
                os.close(taken.pop())
            try:
                USES[kind](queue, tmp_path)
            except errors.RetryError:
                failed = True
            while taken:
                os.close(taken.pop())
            gc.collect()
            queue._store.flusher.forget_page()
            assert sorted(open_in(tmp_path)) == sorted(before), free
            names = {e.name for e in os.scandir(tmp_path / "q")}
            assert not [name for name in names if ".tmp-" in name], free
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while taken:
            os.close(taken.pop())
    assert failed or kind == "replay"
    USES[kind](queue, tmp_path)
    queue.close()
    assert open_in(tmp_path) == []
