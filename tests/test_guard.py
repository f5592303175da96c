"""A file that is truncated while it is open: a typed error, whatever was under way, no signal."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import HERE, end, ready, say, until

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


def child(name: str, *args: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Run a function of this module in a process of its own."""
    code = (
        f"import json, sys; sys.path.insert(0, {HERE!r}); import test_guard; "
        f"test_guard.{name}(*json.loads(sys.argv[1]))"
    )
    command = [sys.executable, *before, "-W", "error", "-c", code, json.dumps(args, default=str)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], seconds: float = 60.0) -> tuple[int, str, str]:
    """Wait for a process; return how it ended and what it wrote."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        raise AssertionError("it did not end in time") from None
    return process.returncode, out, err


def told(name: str, *args: object, before: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - JSON
    """Run a function in a process that must end well; return what it printed last."""
    code, out, err = ended(child(name, *args, before=before))
    assert code == 0, (code, out, err)
    return json.loads(out.splitlines()[-1])


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
        say(json.dumps({name: result(use) for name, use in uses.items() if name not in left_out}))
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
        say("waiting")
        found = result(waits[how])
        say(json.dumps([found, time.time()]))


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
    say(json.dumps({name: result(use) for name, use in uses.items()}))
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
    say(json.dumps([found, places, last, scene.queue.verify().ok]))
    scene.queue.close()


def send_until_cut(directory: str, what: str, at: float, threads: int) -> None:
    """Send from several threads until a file is cut; what was acknowledged before must be read."""
    queue = Queue(directory, page_bytes=32 << 20)
    ends: list[object] = []
    left, unmapped = threading.Event(), threading.Event()

    def send(size: int) -> None:
        producer = queue.producer()
        while True:
            found = result(lambda: producer.send(b"y" * size))
            if found[0] != "returned":
                ends.append(found)
                ends.append(result(lambda: producer.send(b"y")))
                break
        # When the map is gone, the thread's list of the locks that it holds must not lead there.
        left.wait(1)
        producer.close()
        unmapped.wait(20)
        with tempfile.TemporaryDirectory() as other, Queue(other, page_bytes=PAGE) as another:
            for _ in range(100):
                another.producer().send(b"another queue")

    senders = [
        threading.Thread(target=send, args=(i * 30 if what == "page" else 4 << 20,))
        for i in range(threads)
    ]
    for sender in senders:
        sender.start()
    time.sleep(at)
    name = fmt.write_meta_name("queue") if what == "meta" else fmt.page_name("queue", 1)
    os.truncate(Path(directory) / name, 0)
    until(lambda: len(ends) == 2 * threads)
    queue.close()
    left.set()
    time.sleep(0.05)
    unmapped.set()
    for sender in senders:
        sender.join(20)
    assert not any(sender.is_alive() for sender in senders)
    say(json.dumps(ends))


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
        say(json.dumps([*found, region.broken]))
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
    say(json.dumps(found))


def die_elsewhere(directory: str, handler: str) -> None:
    """Open a queue, then touch a truncated map that is none of ours: the signal must kill."""
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
            say("touching")
            ctypes.string_at(ctypes.addressof(view), 1)
    say(f"survived {scene}")


def sleep_open(directory: str, handler: str) -> None:
    """Open a queue and sleep; somebody sends a signal."""
    if handler == "before":
        faulthandler.enable()
    scene = Scene(directory)
    if handler == "after":
        faulthandler.enable()
    say("open")
    time.sleep(60)
    say(f"survived {scene}")


def wrong_of(region: _core.Region) -> list[str]:
    """Return what is wrong with a map of ones whose file was cut behind its first OS page."""
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
    """Map and unmap from several threads while others fault; every cut map must say so."""
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
    say(json.dumps(wrong))


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
    say(json.dumps([ends, bytes(region) == bytes(size)]))


def import_only() -> None:
    """Import the package; print whether the signal is still handled by nobody."""
    before = Path("/proc/self/status").read_text(encoding="ascii")
    caught = next(line for line in before.splitlines() if line.startswith("SigCgt:"))
    say(json.dumps(bool(int(caught.split()[1], 16) >> (signal.SIGBUS - 1) & 1)))


def every_call_on_regions(directory: str) -> None:
    """Give a map that is gone to every function of the core; print what each gave."""
    base = Path(directory)
    for name, size in (("page", PAGE), ("index", 6144), ("meta", fmt.WRITE_META_FILE_BYTES)):
        (base / name).write_bytes(bytes(size))
    maps = {}
    for path in base.iterdir():
        with path.open("r+b") as file:
            maps[path.name] = _core.Region(file.fileno(), path.stat().st_size, True)
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
        "look": lambda: _core.look(page, 64, 0),
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
    say(json.dumps([outcomes, bytes(index) == bytes(6144)]))


# --- the tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("size", [0, OS_PAGE, OS_PAGE + 700])
def test_readers_of_a_truncated_sealed_page_get_an_error(
    tmp_path: Path, size: int, read_only: bool
) -> None:
    """Messages in front of the cut still come; then every way to read says what happened."""
    found = told("read_cut", tmp_path, "sealed", size, read_only, [])
    whole = (min(size, OS_PAGE) - 64) // 1520 if size else 0
    error = ["CorruptPage", TRUNCATED, size]
    for name in ("poll", "receive", "receive_many", "next", "wait"):
        assert found[name][:3] == error, name
        assert found[name][3] in {whole, whole + 1}, name
    for name in ("batches", "last", "since", "info"):
        assert found[name][:3] == error, name
    assert found["replay"][:3] == error


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("size", [0, OS_PAGE])
def test_readers_of_a_truncated_active_page_get_an_error(
    tmp_path: Path, size: int, read_only: bool
) -> None:
    """At the tail there is nothing, as ever; but it is not taken for nothing."""
    found = told("read_cut", tmp_path, "page", size, read_only, [])
    for name in ("poll", "receive", "receive_many", "next", "wait"):
        assert found[name] == ["CorruptPage", TRUNCATED, size, 15], name
    for name in ("replay", "batches", "last"):
        assert found[name][:3] == ["CorruptPage", TRUNCATED, size], name


def test_readers_of_a_truncated_read_meta_get_an_error(tmp_path: Path) -> None:
    """Reading on needs no read meta; seeking does, and says so."""
    found = told("read_cut", tmp_path, "read", 0, False, ["next", "wait"])
    assert found["poll"][0] == "returned"
    for name in ("last", "since", "info"):
        assert found[name][:2] == ["CorruptMeta", TRUNCATED], name


@pytest.mark.parametrize("size", [0, 1, 200])
def test_users_of_a_truncated_write_meta_get_an_error(tmp_path: Path, size: int) -> None:
    """A part of an OS page reads as zeros without any fault; that is noticed all the same."""
    found = told("read_cut", tmp_path, "meta", size, False, [])
    for name in ("wait",) if size else ("wait", "last", "since", "info"):
        assert found[name][:3] == ["CorruptMeta", TRUNCATED, size], name


@pytest.mark.parametrize(
    ("how", "read_only", "durable_only"),
    [
        ("receive", False, False),
        ("receive_many", True, False),
        ("iterate", False, True),
        ("receive", True, True),
    ],
)
@pytest.mark.parametrize(
    ("what", "size"), [("page", 0), ("page", 2 * OS_PAGE + 9), ("meta", 0), ("meta", 64)]
)
def test_a_waiting_consumer_hears_of_it_within_a_slice(
    tmp_path: Path, how: str, read_only: bool, durable_only: bool, what: str, size: int
) -> None:
    """I7: nobody waits for ever for what cannot come."""
    scene = Scene(str(tmp_path))
    process = child("wait_for_cut", tmp_path, how, read_only, durable_only)
    ready(process)
    time.sleep(0.15)
    then = time.time()
    scene.cut(what, size)
    code, out, err = ended(process)
    assert code == 0, err
    found, when = json.loads(out)
    assert found[0] == ("CorruptPage" if what == "page" else "CorruptMeta")
    assert found[1] == TRUNCATED
    assert when - then < 1.0


@pytest.mark.parametrize(
    ("what", "size"), [("page", 0), ("page", 2 * OS_PAGE + 9), ("meta", 0), ("meta", 64)]
)
def test_nothing_is_acknowledged_into_a_truncated_file(
    tmp_path: Path, what: str, size: int
) -> None:
    """I1: also where an OS page in whose middle the file ends could still be written."""
    found = told("send_cut", tmp_path, what, size)
    error = "CorruptPage" if what == "page" else "CorruptMeta"
    for name, outcome in found.items():
        assert outcome[:3] == [error, TRUNCATED, size], name


def test_a_truncated_index_harms_no_message(tmp_path: Path) -> None:
    """I6: it is only a hint; whoever needs it writes it again from the frames."""
    found, places, last, whole = told("send_without_index", tmp_path)
    assert found == [str(i) for i in range(30)]
    assert places == [3, 14, 15, 40]
    assert last == 44
    assert whole


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("threads", [1, 3])
def test_producers_survive_a_cut_at_any_instruction(
    tmp_path: Path, what: str, threads: int
) -> None:
    """The writers' lock is left behind in order, also when it is gone while it is held."""
    for turn in range(3):
        directory = tmp_path / str(turn)
        ends = told("send_until_cut", directory, what, 0.05 + turn * 0.003, threads)
        error = "CorruptPage" if what == "page" else "CorruptMeta"
        assert [found[:2] for found in ends] == [[error, TRUNCATED]] * (2 * threads)


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_works_together_with_faulthandler(tmp_path: Path, when: str) -> None:
    """Whichever came first: ours takes what is ours."""
    found = told("with_faulthandler", tmp_path, when)
    assert [outcome[0] for outcome in found] == ["CorruptPage"] * 3


@pytest.mark.parametrize("handler", ["none", "before", "after", "ignored"])
def test_a_fault_elsewhere_still_kills(tmp_path: Path, handler: str) -> None:
    """Only our own maps are guarded; faulthandler still says where it was."""
    code, out, err = ended(child("die_elsewhere", tmp_path, handler))
    assert code == -signal.SIGBUS, (code, out, err)
    assert out == "touching\n"
    assert ("Fatal Python error: Bus error" in err) == (handler in {"before", "after"})


@pytest.mark.parametrize("handler", ["none", "before", "after"])
def test_a_signal_that_was_sent_still_kills(tmp_path: Path, handler: str) -> None:
    """`kill -BUS` means what it says."""
    process = child("sleep_open", tmp_path, handler)
    ready(process)
    process.send_signal(signal.SIGBUS)
    code, out, err = ended(process)
    assert code == -signal.SIGBUS, (code, out, err)


def test_it_works_after_a_fork(tmp_path: Path) -> None:
    """The child inherits the handler and what it knows."""
    found = told("after_fork", tmp_path)
    assert found == ["CorruptPage", TRUNCATED, 0, 15, 5, True]


def test_maps_come_and_go_while_others_fault(tmp_path: Path) -> None:
    """A map that goes is never taken for one that comes."""
    assert told("many_maps", tmp_path) == []


def test_threads_fault_at_once(tmp_path: Path) -> None:
    """Each of them goes on, and each of them is told."""
    assert told("threads_at_once", tmp_path) == [["OSError"] * 8, True]


def test_importing_installs_no_handler() -> None:
    """Only who maps a file needs it."""
    assert told("import_only") is False


def test_no_function_of_the_core_dies_or_believes_zeros(tmp_path: Path) -> None:
    """Each raises; populating says what the system says; a lost index is written into nothing."""
    outcomes, index = told("every_call_on_regions", tmp_path)
    assert outcomes == dict.fromkeys(outcomes, "OSError")
    assert index
