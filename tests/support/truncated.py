"""What the tests of truncated files run in processes of their own."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support import LONG, print_now, until

from pagequeue import Queue, _core, errors
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 16384
OS_PAGE = mmap.PAGESIZE
PAYLOAD = b"x" * 1500
"""Ten of them fit into a page."""
TRUNCATED = "truncated while it was open"
PLACES = ["page", "meta"]


def result(call: Callable[[], object]) -> list[object]:
    """Return the error that a call raises: kind, reason, position, sequence; or what it returns."""
    try:
        return ["returned", repr(call())[:80]]
    except errors.PageQueueError as error:
        state = error.__dict__
        return [type(error).__name__, *(state.get(n) for n in ("reason", "position", "sequence"))]


class Scene:
    """A queue of two pages, ten messages in the first and five in the second, and its files."""

    def __init__(self, directory: str) -> None:
        self.queue = Queue(directory, page_bytes=PAGE)
        self.producer = self.queue.producer()
        for _ in range(15):
            self.producer.send(PAYLOAD)
        assert self.queue.info().page_count == 2
        self.directory = Path(directory)

    def path(self, what: str) -> Path:
        """Return the path of one of the files."""
        names = {
            "sealed": fmt.page_name("queue", 1),
            "page": fmt.page_name("queue", 2),
            "index": fmt.index_name("queue", 2),
            "sealed index": fmt.index_name("queue", 1),
            "meta": fmt.write_meta_name("queue"),
            "read": fmt.read_meta_name("queue"),
        }
        return self.directory / names[what]

    def cut(self, what: str, size: int = 0) -> None:
        """Truncate one of the files."""
        os.truncate(self.path(what), size)


# --- what the processes run -----------------------------------------------------------------------


def read_cut(directory: str, what: str, size: int, read_only: bool, left_out: list[str]) -> None:
    """Read in every way after a file was cut; print what each gave."""
    scene = Scene(directory)
    with Queue(directory, read_only=read_only) as queue:
        sequence = 0 if what == "sealed" else 15
        consumers = [queue.consumer(sequence=sequence) for _ in range(5)]
        replay, batches = queue.replay(), queue.batches()
        next(replay)
        queue.last(3)
        scene.cut(what, size)
        poll, receive, many, iterate, wait = consumers

        def all_of(take: Callable[[], object]) -> Callable[[], object]:
            return lambda: [take() for _ in range(20)]

        uses: dict[str, Callable[[], object]] = {
            "poll": all_of(poll.poll),
            "receive": all_of(lambda: receive.receive(0)),
            "receive_many": all_of(lambda: many.receive_many(100, 0)),
            "next": all_of(lambda: next(iterate)),
            "wait": all_of(lambda: wait.receive(20)),
            "replay": lambda: list(replay),
            "batches": lambda: list(batches),
            "last": lambda: queue.last(15),
            "since": lambda: poll.seek(since=1),
            "info": queue.info,
        }
        print_now(
            json.dumps({name: result(use) for name, use in uses.items() if name not in left_out})
        )
        queue.close()
    scene.queue.close()


def wait_for_cut(directory: str, how: str, read_only: bool, durable_only: bool) -> None:
    """Wait at the tail; the one who started this cuts a file meanwhile."""
    with Queue(directory, read_only=read_only) as queue:
        consumer = queue.consumer(latest=True, durable_only=durable_only)
        waits: dict[str, Callable[[], object]] = {
            "receive": consumer.receive,
            "receive_many": consumer.receive_many,
            "iterate": lambda: next(consumer),
        }
        print_now("waiting")
        found = result(waits[how])
        print_now(json.dumps([found, time.monotonic()]))


def send_cut(directory: str, what: str, size: int) -> None:
    """Send in every way after a file was cut; print what each gave."""
    scene = Scene(directory)
    producer = scene.producer
    scene.cut(what, size)
    uses: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(b"a"),
        "send large": lambda: producer.send(bytes(9000)),
        "send_many": lambda: producer.send_many([b"a", b"b"]),
        "fill": lambda: [producer.send(PAYLOAD) for _ in range(20)],
        "flush": producer.flush,
        "rotate": producer.rotate,
        "rotate queue": scene.queue.rotate,
    }
    print_now(json.dumps({name: result(use) for name, use in uses.items()}))
    producer.close()
    scene.queue.close()


def send_without_index(directory: str) -> None:
    """Send on after the index was cut; print what can be read and found."""
    scene = Scene(directory)
    scene.cut("index")
    scene.cut("sealed index", 24)
    for i in range(30):
        scene.producer.send(b"%d" % i)
    scene.producer.flush()
    found = [message.payload.decode() for message in scene.queue.replay(sequence=15)]
    places = [scene.queue.consumer(sequence=n).receive(0).sequence for n in (3, 14, 15, 40)]
    since = scene.queue.last(1)[0].timestamp
    last = next(scene.queue.consumer(since=since)).sequence
    print_now(json.dumps([found, places, last, scene.queue.verify().ok]))
    scene.queue.close()


def send_until_cut(directory: str, what: str, at: float, threads: int) -> None:
    """Send from several threads until a file is cut; what was acknowledged before must be read."""
    queue = Queue(directory, page_bytes=32 << 20)
    ends: list[object] = []
    left = threading.Event()
    sending, unmapped = threading.Barrier(threads + 1), threading.Barrier(threads + 1)

    def send(size: int) -> None:
        producer = queue.producer()
        sending.wait(LONG)
        while True:
            found = result(lambda: producer.send(b"y" * size))
            if found[0] != "returned":
                ends.append(found)
                ends.append(result(lambda: producer.send(b"y")))
                break
        # When the map is gone, the thread's list of the locks that it holds must not lead there.
        left.wait(LONG)
        producer.close()
        unmapped.wait(LONG)
        with tempfile.TemporaryDirectory() as other, Queue(other, page_bytes=PAGE) as another:
            for _ in range(100):
                another.producer().send(b"another queue")

    senders = [
        threading.Thread(target=send, args=(i * 30 if what == "page" else 4 << 20,))
        for i in range(threads)
    ]
    for sender in senders:
        sender.start()
    sending.wait(LONG)
    time.sleep(at)
    name = fmt.write_meta_name("queue") if what == "meta" else fmt.page_name("queue", 1)
    os.truncate(Path(directory) / name, 0)
    until(lambda: len(ends) == 2 * threads)
    queue.close()
    left.set()
    unmapped.wait(LONG)
    for sender in senders:
        sender.join(LONG)
    assert not any(sender.is_alive() for sender in senders)
    print_now(json.dumps(ends))


def after_fork(directory: str) -> None:
    """Fork, cut a file, and read in a queue that the child opened and in an inherited map."""
    scene = Scene(directory)
    page = scene.path("page")
    with page.open("rb") as file:
        region = _core.Region(file.fileno(), PAGE, False)
    scene.queue.info()
    if (pid := os.fork()) == 0:
        with Queue(directory) as queue:
            consumer = queue.consumer(latest=True)
            scene.cut("page")
            found = result(consumer.poll)
        try:
            region.load(64)
        except OSError as error:
            found.append(error.errno)
        print_now(json.dumps([*found, region.broken]))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
    assert result(lambda: scene.producer.send(b"parent"))[0] == "CorruptPage"


def with_faulthandler(directory: str, when: str) -> None:
    """Read a page that was cut, with faulthandler enabled before or after the first map."""
    if when == "before":
        faulthandler.enable()
    scene = Scene(directory)
    consumer = scene.queue.consumer(latest=True)
    if when == "after":
        faulthandler.enable()
    scene.cut("page")
    found = [result(consumer.poll), result(lambda: scene.producer.send(b"a"))]
    scene.cut("sealed", OS_PAGE)
    found.append(result(lambda: list(scene.queue.batches())))
    print_now(json.dumps(found))


def die_elsewhere(directory: str, handler: str) -> None:
    """Open a queue, then touch a truncated map of another owner: the signal must kill."""
    if handler == "before":
        faulthandler.enable()
    scene = Scene(directory)
    if handler == "after":
        faulthandler.enable()
    if handler == "ignored":
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE)
        with mmap.mmap(file.fileno(), PAGE) as shared:
            view = (ctypes.c_char * PAGE).from_buffer(shared)
            file.truncate(0)
            print_now("touching")
            ctypes.string_at(ctypes.addressof(view), 1)
    print_now(f"survived {scene}")


def sleep_open(directory: str, handler: str) -> None:
    """Open a queue and sleep; another process sends a signal."""
    if handler == "before":
        faulthandler.enable()
    scene = Scene(directory)
    if handler == "after":
        faulthandler.enable()
    print_now("open")
    time.sleep(60)
    print_now(f"survived {scene}")


def handle_sent(directory: str, handler: str) -> None:
    """Have the signal sent before and after a fault of ours, with a handler from before."""
    found: list[int] = []
    ours = signal.SIG_IGN if handler == "ignored" else lambda number, _: found.append(number)
    signal.signal(signal.SIGBUS, ours)
    scene = Scene(directory)
    consumer = scene.queue.consumer(sequence=10)
    os.kill(os.getpid(), signal.SIGBUS)
    scene.cut("page")
    outcome = result(lambda: consumer.receive(60))
    os.kill(os.getpid(), signal.SIGBUS)
    print(json.dumps([found, outcome]))


def wrong_of(region: _core.Region) -> list[str]:
    """Return what is wrong with a map of ones whose file was cut after its first OS page."""
    wrong = []
    if region.read(8, 8) != b"\x01" * 8:
        wrong.append("what is there is not read")
    for at in (OS_PAGE, PAGE - 8, OS_PAGE):
        try:
            region.load(at)
        except OSError:
            continue
        wrong.append("a load of what is gone")
    if not region.broken or region.lost_at not in range(OS_PAGE, PAGE):
        wrong.append("broken, but whole")
    return wrong


def many_maps(directory: str) -> None:
    """Map and unmap from several threads while others fault; every cut map must report it."""
    base = Path(directory)
    wrong: list[str] = []

    def work(who: int) -> None:
        for turn in range(60):
            path = base / f"{who}-{turn}"
            path.write_bytes(b"\x01" * PAGE)
            with path.open("r+b") as file:
                kept = [_core.Region(file.fileno(), PAGE, bool(turn % 2)) for _ in range(5)]
            if any(region.broken for region in kept):
                wrong.append("whole, but broken")
            os.truncate(path, OS_PAGE)
            for region in kept:
                wrong.extend(wrong_of(region))
            path.unlink()

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print_now(json.dumps(wrong))


def threads_at_once(directory: str) -> None:
    """Many threads touch the same OS pages of one map at once, without the GIL."""
    path = Path(directory) / "file"
    size = 512 * OS_PAGE
    path.write_bytes(b"\x01" * size)
    with path.open("r+b") as file:
        region = _core.Region(file.fileno(), size, True)
    os.truncate(path, 0)
    ends: list[str] = []

    def zero() -> None:
        try:
            region.zero(0)
        except OSError as error:
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=zero) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print_now(json.dumps([ends, bytes(region) == bytes(size)]))


def import_only() -> None:
    """Import the package; print whether the signal still has no handler."""
    before = Path("/proc/self/status").read_text(encoding="ascii")
    caught = next(line for line in before.splitlines() if line.startswith("SigCgt:"))
    print_now(json.dumps(bool(int(caught.split()[1], 16) >> (signal.SIGBUS - 1) & 1)))


def every_call_on_regions(directory: str) -> None:
    """Give a map that is gone to every function of the core; print what each gave."""
    base = Path(directory)
    for name, size in (("page", PAGE), ("index", 6144), ("meta", fmt.WRITE_META_FILE_BYTES)):
        (base / name).write_bytes(bytes(size))
    maps = {}
    for path in base.iterdir():
        with path.open("r+b") as file:
            maps[path.name] = _core.Region(file.fileno(), path.stat().st_size, True)
            maps[path.name].queue_id = bytes(16)
        os.truncate(path, 0)
    page, index, meta = maps["page"], maps["index"], maps["meta"]
    calls: dict[str, Callable[[], object]] = {
        "populate": lambda: page.populate(0, PAGE),
        "read": lambda: page.read(0, 100),
        "write": lambda: page.write(0, b"abc"),
        "load": lambda: page.load(0),
        "store": lambda: page.store(0, 1),
        "load_half": lambda: page.load_half(0),
        "store_half": lambda: page.store_half(0, 1),
        "zero": lambda: page.zero(0),
        "sync": lambda: page.sync(0, PAGE),
        "scan": lambda: _core.scan(page, index, 0, 64, 0, 9, 0, _core.INDEX_WRITE),
        "find": lambda: _core.find(page, index, 0, 5, 5),
        "locate": lambda: _core.locate(page, index, 0, 5, 3),
        "look": lambda: _core.peek(page, 64, 0),
        "tail": lambda: _core.tail(meta),
        "set_tail": lambda: _core.set_tail(meta, (1, 64, 0, 0, 0)),
        "reset_lock": lambda: _core.reset_lock(meta),
    }
    outcomes = {}
    for name, call in calls.items():
        try:
            outcomes[name] = repr(call())
        except OSError as error:
            outcomes[name] = type(error).__name__
    _core.wake(meta)
    print_now(json.dumps([outcomes, bytes(index) == bytes(6144)]))
