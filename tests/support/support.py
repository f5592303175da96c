"""What several tests share: clocks, other processes, and what those processes run."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import portalocker
import warm

from pagequeue import Overtaken, PageQueueError, Queue, Retention, merge
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.send.queue_end import QueueEnd
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.producer.producer import Producer

Result = TypeVar("Result")
HERE = str(Path(__file__).resolve().parent)
ROOT = str(Path(__file__).resolve().parents[2])
SMALL = 4096
"""The smallest page, so that rolls are frequent."""
WAITERS = field_of(fmt.WRITE_META, "waiters")
MUTEX = field_of(fmt.WRITE_META, "mutex")
LABEL = struct.Struct("<IIII")
"""Producer, number of the message, number of its batch, messages of the batch."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail, instead of hanging, when the block takes longer."""

    def late(*_: object) -> NoReturn:
        raise AssertionError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def own_thread() -> Iterator[Callable[[Callable[[], Result]], Result]]:
    """Give a function that runs a callable in one separate thread, which lives until the end.

    For what raises out of a trace function: in the middle of an `except` that leaves the handled
    exception in place, and all later ones of the same thread would carry it as their context.
    """

    def called(calls: list[Callable[[], Result]]) -> Result:
        return calls.pop()()  # the caller then has the only reference to the callable

    with ThreadPoolExecutor(1) as thread:
        yield lambda do: thread.submit(called, [do]).result()


class Clock:
    """A settable clock; ns since 1970.

    Args:
        now: the first value read.
        step: added by each read.
    """

    def __init__(self, now: int = 1_000_000, step: int = 0) -> None:
        self.now = now
        self.step = step

    def __call__(self) -> int:
        now = self.now
        self.now += self.step
        return now


def payloads(messages: Any) -> list[bytes]:  # noqa: ANN401 - anything that yields messages
    """Return the payloads of messages."""
    return [message.payload for message in messages]


def files(directory: Path | str) -> dict[str, bytes]:
    """Return every file of a directory."""
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


def flip(path: Path | str, position: int) -> None:
    """Change one byte of a file."""
    overwrite(path, position, bytes([Path(path).read_bytes()[position] ^ 0xFF]))


SOON = 30.0
"""Seconds that are soon, however busy the machine: what is wrong lasts 60 s, or for ever."""
LONG = 60.0
"""Seconds to wait for what happens at once unless the code is wrong, however busy the machine."""


def until(condition: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def until_asleep(who: threading.Thread | int) -> None:
    """Wait until a thread of this process, or the first one of another, waits for something.

    The kernel calls it asleep whenever it is looked at: it waits, or polls with naps in between.
    """
    is_thread = isinstance(who, threading.Thread)
    path = Path(f"/proc/self/task/{who.native_id}/stat" if is_thread else f"/proc/{who}/stat")
    states: list[str] = []

    def is_asleep() -> bool:
        states.append(path.read_text().rpartition(") ")[2][0])
        return states[-5:] == ["S"] * 5

    until(is_asleep)


def settle(queue: Queue[Any]) -> None:
    """Wait until the queue's thread in the background has done all that it was asked for.

    Twice, because a job can ask for another one.
    """
    background = queue._store.background
    for submit in (background.submit_later, background.submit) * 2:
        done = threading.Event()
        if submit(done.set):
            assert done.wait(LONG)


def at_once(directory: Path | str, pattern: str) -> list[Path]:
    """Return the files of a pattern that were all there at the same time, just now.

    A listing alone can have a file that was removed meanwhile, and the one that took its place.
    """
    return [path for path in sorted(Path(directory).glob(pattern)) if path.exists()]


# --- other processes -----------------------------------------------------------------------------


def start(
    name: str, *args: object, before: tuple[str, ...] = (), **options: object
) -> warm.Popen | subprocess.Popen[str]:
    """Run a function of this module in a process of its own; the arguments travel as JSON.

    What stands before it, as `strace` does, starts a fresh interpreter.
    """
    code = (
        f"import json, sys; sys.path[:0] = {[HERE, ROOT]!r}; import support; "
        f"args, options = json.loads(sys.argv[1]); support.{name}(*args, **options)"
    )
    travel = json.dumps([args, options], default=str)
    command = [*before, sys.executable, "-W", "error", "-c", code, travel]
    popen = subprocess.Popen if before else warm.Popen
    return popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def printed(name: str, *args: object) -> list[str]:
    """Run a function of this module in a process; return the lines it printed.

    One that neither ends well nor is killed is an error.
    """
    with start(name, *args) as process:
        out, err = process.communicate(timeout=LONG)
    assert process.returncode in {0, -signal.SIGKILL}, out + err
    return out.splitlines()


def is_locked(path: Path) -> bool:
    """Return whether another open file has, or shares, the lock of a file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def ready(process: warm.Popen | subprocess.Popen[str]) -> str:
    """Wait for the first line that a process prints, and return it."""
    assert process.stdout is not None and process.stderr is not None  # noqa: PT018
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.strip()


def finish(process: warm.Popen | subprocess.Popen[str], seconds: float = LONG) -> str:
    """Wait for the end of a process that must end well; return what it printed."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it did not end in time: {out}{err}") from None
    assert process.returncode == 0, out + err
    return out.strip()


def end(process: warm.Popen | subprocess.Popen[str]) -> None:
    """Kill a process and wait for it."""
    process.kill()
    process.communicate()


def print_now(text: object) -> None:
    """Print at once."""
    print(text, flush=True)


# --- what they run -------------------------------------------------------------------------------


def hold_writers_lock(directory: str, *, stop: bool = False) -> None:
    """Take the writers' lock as a producer does in the middle of a send; keep it until killed."""
    path = Path(directory) / fmt.write_meta_name("queue")
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), fmt.WRITE_META_FILE_BYTES)
    mutex = ctypes.c_char.from_buffer(shared, MUTEX)
    assert ctypes.CDLL(None).pthread_mutex_trylock(ctypes.byref(mutex)) == 0
    print_now("held")
    if stop:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def open_and_hold(directory: str, kind: str, name: str) -> None:
    """Open a consumer or a group, until killed."""
    queue = Queue(directory)
    opened = queue.group(name) if kind == "group" else queue.consumer(name)
    print_now("open")
    time.sleep(60)
    opened.close()


def claim_when_told(directory: str, group: str, count: int) -> None:
    """Open a group, wait for a line, claim so many messages, and print their sequences."""
    with Queue(directory) as queue, queue.group(group) as opened:
        print_now("open")
        sys.stdin.readline()
        print_now(" ".join(str(opened.claim(LONG).message.sequence) for _ in range(count)))


def hold_file_lock(path: str) -> None:
    """Lock a file alone; keep it until killed."""
    with Path(path).open("rb") as file:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE)
        print_now("held")
        time.sleep(60)


def hold_a_page(directory: str, sequence: int, *, child: bool) -> None:
    """Map a page, or have a child that inherited it; print the process, and wait to be killed."""
    queue = Queue(directory, read_only=True)
    consumer = queue.consumer(sequence=sequence)
    pid = os.fork() if child else os.getpid()
    if pid == 0:
        time.sleep(60)
    if child:
        consumer.close()
        queue.close()
    print_now(pid)
    time.sleep(60)


def flush_and_hang(directory: str, step: str) -> None:
    """Send a message whose flush prints its progress, and then hangs until killed."""

    def hang(*_: object) -> None:
        print_now(step)
        time.sleep(60)

    with Queue(directory, sync="always") as queue, queue.producer() as producer:
        flusher = queue._store.flusher
        meta = flusher._write_meta
        sync, set_durable = os.fdatasync, meta.set_durable
        if step == "begun":
            flusher.lock.attempt = hang
        elif step == "locked":
            os.fdatasync = hang
        elif step == "synced":
            os.fdatasync = lambda fd: hang(sync(fd))
        elif step == "marked":
            meta.set_durable = lambda *mark: hang(set_durable(*mark))
        else:
            flusher._end_turn = hang
        producer.send(b"l")


def send_for_ever(directory: str, acked_path: str, batch: int) -> None:
    """Send numbered messages until killed; write the count of those acknowledged to a file."""
    with Path(acked_path).open("r+b") as file:
        acked = mmap.mmap(file.fileno(), 8)
    with Queue(directory) as queue, queue.producer() as producer:
        count = 0
        while True:
            items = [
                b"%d:%d:" % (os.getpid(), count + i) + b"." * (count % 90) for i in range(batch)
            ]
            if batch == 1:
                producer.send(items[0])
            else:
                producer.send_many(items)
            count += batch
            acked[:] = count.to_bytes(8, "little")
            if count == batch:
                print_now("sending")


def open_consumer_and_hold(directory: str, name: str, *, ack: int = 0, leave: bool = False) -> None:
    """Open a named consumer, acknowledge some messages, and keep it until killed."""
    with Queue(directory) as queue:
        try:
            consumer = queue.consumer(name)
        except PageQueueError as error:
            print_now(type(error).__name__)
            return
        with consumer:
            for _ in range(ack):
                consumer.receive(10)
            consumer.ack()
            print_now("open")
            time.sleep(0 if leave else 60)


def receive_and_ack_for_ever(directory: str, name: str, out: str, *, total: int) -> None:
    """Write down each message, and acknowledge it after that, until killed or all are done."""
    with Path(out).open("a") as file, Queue(directory) as queue, queue.consumer(name) as consumer:
        print_now("open")
        while consumer.sequence < total:
            message = consumer.receive(10)
            os.write(file.fileno(), b"%d\n" % message.sequence)
            consumer.ack(message)


def use_consumer_after_fork(directory: str) -> None:
    """Fork with a named consumer open; print what each use gives in the child, which stays."""
    queue = Queue(directory)
    consumer = queue.consumer("billing")
    queue.producer().send_many([b"a", b"b", b"c"])
    consumer.receive_many(2)
    told, tell = os.pipe()
    if (pid := os.fork()) == 0:
        uses: dict[str, Callable[[], object]] = {
            "ack": consumer.ack,
            "seek": consumer.seek,
            "receive": consumer.receive,
            "consumers": queue.consumers,
            "remove": lambda: queue.remove_consumer("billing"),
            "trim": queue.trim,
        }
        print_now(json.dumps({name: outcome(use) for name, use in uses.items()}))
        consumer.close()
        for fd in (1, 2):  # a reader of the parent's output must not wait for this one
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        os.write(tell, b"1")
        time.sleep(60)
    os.close(tell)
    os.read(told, 1)  # the child has printed
    consumer.ack()
    print_now(pid)
    time.sleep(60)


def send_and_trim_for_ever(directory: str) -> None:
    """Send with a retention of six pages until killed; trim by hand as well."""
    retention = Retention(max_bytes=6 * SMALL)
    with (
        Queue(directory, retention=retention, on_full="block") as queue,
        queue.producer() as producer,
    ):
        count = 0
        while True:
            producer.send(b"%d" % count + b"." * (count % 900))
            count += 1
            if count == 100:
                print_now("sending")
            if count % 97 == 0:
                queue.trim()
                time.sleep(0.001)


def dying_at(step: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes calls deadly: this process dies right before the call of that number."""
    left = [step]

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **options)

        return instead

    return deadly


def die_while_trimming(directory: str, step: int) -> None:
    """Trim, and die right before one of the calls that change or sync something."""
    deadly = dying_at(step)
    with Queue(directory, retention=Retention(max_bytes=3 * SMALL)) as queue:
        for module, name in ((os, "fdatasync"), (os, "fsync"), (os, "unlink")):
            setattr(module, name, deadly(getattr(module, name)))
        meta = queue._store.read_meta
        store = deadly(meta.region.store)

        class Stores:
            """The region, but each store can be the last."""

            def __getattr__(self, name: str) -> Any:  # noqa: ANN401
                return store if name == "store" else getattr(region, name)

        region = meta.region
        meta.region = Stores()  # type: ignore[assignment]
        queue.trim()
        meta.region = region
        print_now("done")
        os._exit(0)


def compress_for_ever(directory: str) -> None:
    """Compress whatever is sealed, until killed."""
    with Queue(directory) as queue:
        print_now("ready")
        while True:
            queue.compress()
            time.sleep(0.002)


def die_while_compressing(directory: str, step: int) -> None:
    """Compress, and die right before one of the calls that change or sync something."""
    deadly = dying_at(step)
    fmt.COMPRESSED_BLOCK_TARGET_BYTES = 1024  # type: ignore[misc]
    with Queue(directory) as queue:
        for name in ("open", "fchmod", "pwrite", "fsync", "rename", "unlink"):
            setattr(os, name, deadly(getattr(os, name)))
        queue.compress()
        print_now("done")
        os._exit(0)


AROUND_LARGE = [b"one", bytes(range(256)) * 200, b"two"]
"""A batch whose second message is larger than a page."""


def die_while_sending_large(directory: str, step: int) -> None:
    """Send a large message, and die right before one of the calls that change or sync something."""
    with Queue(directory) as queue, queue.producer() as producer:
        deadly = dying_at(step)
        calls = "rename", "fsync", "fdatasync", "pwrite", "pwritev", "ftruncate", "unlink", "rmdir"
        for name in calls:
            setattr(os, name, deadly(getattr(os, name)))
        producer.send_many(AROUND_LARGE)
        print_now("done")
        os._exit(0)


def die_behind_the_marker(directory: str, sizes: list[int]) -> None:
    """Send messages that `lettered` gives; die where the core has kill point 34 (M7).

    They are visible by the marker, and the last step of the bulk commit is not done.
    """
    names = "page_number", "batch_open", "last_timestamp"
    words = [field_of(fmt.WRITE_META, name) for name in names]
    commit = QueueEnd._bulk_commit

    def dying(producer: Producer, *given: Any) -> NoReturn:  # noqa: ANN401 - the core's
        region = producer._store.write_meta.region
        before = [region.load(word) for word in words]
        commit(producer, *given)
        for word, value in zip(words, before, strict=True):
            region.store(word, value)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    setattr(QueueEnd, "_bulk_commit", dying)  # noqa: B010  mypy forbids it in plain words
    with Queue(directory) as queue, queue.producer() as producer:
        producer.send_many(lettered(sizes))


def lettered(sizes: list[int]) -> list[bytes]:
    """Return payloads of these sizes, each of another letter."""
    return [bytes([ord("a") + i]) * size for i, size in enumerate(sizes)]


def send_until_blocked(directory: str, count: int = 10**6) -> None:
    """Send with a retention of four pages, blocking; print the outcome."""
    retention = Retention(max_bytes=4 * SMALL)
    with Queue(directory, retention=retention, on_full="block") as queue:
        print_now("sending")
        try:
            with queue.producer() as producer:
                for _ in range(count):
                    producer.send(b"x" * 1300)
        except KeyboardInterrupt:
            print_now(json.dumps(["interrupted", queue.tail_sequence]))


def receive_and_ack(directory: str, name: str, count: int) -> None:
    """Receive so many messages as a named consumer, and acknowledge them."""
    with Queue(directory) as queue, queue.consumer(name) as consumer:
        consumer.receive_many(count)
        consumer.ack()


def ack_slowly(directory: str, name: str, count: int) -> None:
    """Receive so many messages, acknowledging every fifth a little later."""
    with Queue(directory) as queue, queue.consumer(name) as consumer:
        print_now("open")
        for number in range(count):
            assert consumer.receive(30).sequence == number
            if number % 5 == 4:
                time.sleep(0.005)
                consumer.ack()
        consumer.ack()


def send_lines(directory: str, prefix: str = "queue") -> None:
    """Send each line of the input, and print its sequence."""
    with Queue(directory, prefix=prefix) as queue, queue.producer() as producer:
        print_now("open")
        for line in sys.stdin:
            print_now(producer.send(line.strip().encode()))


def send_counted(directory: str, count: int, *, sleeper: bool) -> None:
    """Send small messages; with `sleeper`, a waiter is announced before each of them."""
    with Queue(directory) as queue, queue.producer() as producer:
        region = queue._store.write_meta.region
        for _ in range(count):
            if sleeper:
                region.store_half(WAITERS, 1)
            producer.send(b"x" * 50)


def wait_for_message(directory: str, how: str) -> None:
    """Block in one of the ways to wait, and print the outcome."""
    with Queue(directory, read_only=how == "read_only", lock_timeout=60) as queue:
        consumer = queue.consumer(latest=True)
        waits: dict[str, Callable[[], object]] = {
            "receive": consumer.receive,
            "read_only": consumer.receive,
            "receive_many": consumer.receive_many,
            "iterate": lambda: next(consumer),
            "send": lambda: queue.producer().send(b"x"),
            "merge": lambda: merge([queue, queue], follow=True).receive(),
        }
        try:
            print_now("waiting")
            waits[how]()
        except KeyboardInterrupt:
            print_now("interrupted")


def answer_commands() -> None:
    """Open a queue and send, for each line of the input: directory, payload, clock."""
    for line in sys.stdin:
        directory, text, now = json.loads(line)
        with Queue(directory, clock=Clock(now)) as queue, queue.producer() as producer:
            sequence = producer.send(bytes.fromhex(text))
        print_now(sequence)


def count_up(directory: str | Path, count: int) -> None:
    """Append the last number plus one, so often, at the place after it."""
    with Queue(directory) as queue, queue.producer() as producer:
        done = 0
        while done < count:
            last = queue.last(1)
            try:
                producer.send(b"%d" % (int(last.payloads[0]) + 1), at=int(last.sequences[0]) + 1)
            except Overtaken:
                continue
            done += 1


def publish_pieces(directory: str, count: int) -> None:
    """Publish pieces of one writer, as another process may do too; print where they are."""
    with Queue(directory) as queue:
        found = []
        for piece in range(count):
            items = [b"%d %d" % (piece, i) for i in range(piece % 3 * 200 + 1)]
            found.append(queue.publish("pieces", piece, items))
    print_now([[sequences.start, sequences.stop] for sequences in found])


def outcome(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises, or what it returns."""
    try:
        return repr(call())
    except Exception as error:  # noqa: BLE001 - that is the question
        return type(error).__name__


def use_after_fork(directory: str, leave: str) -> None:
    """Fork with everything open; print what each use gives in the child, then in the parent."""
    queue = Queue(directory, page_bytes=SMALL)
    producer, consumer = queue.producer(), queue.consumer()
    producer.send_many([b"a", b"b", b"c"])
    replay = queue.replay()
    paced, merged = queue.replay(speed=1e9), merge([queue], follow=True)
    next(paced)
    merged.receive(60)
    uses: dict[str, Callable[[], object]] = {
        "next paced": lambda: next(paced),
        "merged": merged.receive,
        "merge": lambda: merge([queue]),
        "send": lambda: producer.send(b"child"),
        "send_many": lambda: producer.send_many([b"child"]),
        "flush": producer.flush,
        "poll": consumer.poll,
        "receive": lambda: consumer.receive(0),
        "receive_many": lambda: consumer.receive_many(1, 0),
        "next": lambda: next(consumer),
        "seek": consumer.seek,
        "replay": lambda: next(replay),
        "producer": queue.producer,
        "consumer": queue.consumer,
        "batches": queue.batches,
        "last": lambda: queue.last(1),
        "len": lambda: len(queue),
        "info": queue.info,
        "verify": queue.verify,
        "rotate": queue.rotate,
        "producer.rotate": producer.rotate,
    }
    if (pid := os.fork()) == 0:
        print_now(json.dumps({name: outcome(use) for name, use in uses.items()}))
        if leave == "close":
            consumer.close()
            producer.close()
            queue.close()
        if leave == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if leave == "reopen":
            with Queue(directory) as again, again.producer() as sender:
                sender.send(b"from the child")
        sys.exit(0)  # with all that an ending interpreter does
    os.waitpid(pid, 0)
    sent = producer.send(b"parent")
    producer.flush()
    received = [consumer.receive(60).payload.decode() for _ in range(sent + 1)]
    producer.rotate()
    producer.send(b"rotated")
    received.append(consumer.receive(60).payload.decode())
    print_now(json.dumps([received, queue.verify().ok]))
    queue.close()


# --- many producers and consumers ----------------------------------------------------------------


def label(producer: int, number: int, batch: int, count: int) -> bytes:
    """Return a message labelled with its sender, with a tail derived from the label."""
    rest = bytes([(producer * 31 + number) & 0xFF]) * (number * 7 % 120)
    return LABEL.pack(producer, number, batch, count) + rest


def _produce(queue: Queue, producer: Any, who: int, count: int) -> None:  # noqa: ANN401
    number = batch = 0
    while number < count:
        size = min(who % 3 * 5 + 1, count - number)
        items = [label(who, number + i, batch, size) for i in range(size)]
        if size == 1:
            producer.send(items[0])
        else:
            producer.send_many(items)
        number, batch = number + size, batch + 1
        if number % 101 == 0:
            producer.flush()
        if number % 307 == 0:
            queue.rotate()


def _taken(consumer: Any, style: int) -> Iterator[Any]:  # noqa: ANN401
    """Yield what a consumer receives, in one of four ways."""
    while True:
        if style == 0:
            yield consumer.receive(60)
        elif style == 1:
            yield from consumer.receive_many(37, 60)
        elif style == 2:
            yield next(consumer)
        else:
            message = consumer.poll()
            if message is None:
                time.sleep(0.0005)
            else:
                yield message


def _consume(consumer: Any, total: int, style: int, path: str) -> None:  # noqa: ANN401
    rows = []
    for message in _taken(consumer, style):
        who, number, batch, size = LABEL.unpack_from(message.payload)
        assert message.payload == label(who, number, batch, size)
        rows.append((message.sequence, message.timestamp, who, number, batch, size))
        if len(rows) == total:
            break
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, np.array(rows, np.int64))
    temporary.rename(path)


def work(directory: str, out: str, me: int, processes: int, count: int) -> None:
    """Be one process of many: two threads send, three receive, one of them read-only.

    In every second process the threads that send share a producer.
    """
    total = processes * 2 * count
    with Queue(directory) as queue, Queue(directory, read_only=True) as reading:
        first = queue.producer()
        second = first if me % 2 else queue.producer()
        threads = [
            threading.Thread(target=_produce, args=(queue, sender, me * 2 + i, count))
            for i, sender in enumerate((first, second))
        ]
        for i in range(3):
            consumer = (reading if i == 2 else queue).consumer()
            path = Path(out) / f"{me}-{i}.npy"
            args = (consumer, total, (me + i) % 4, path)
            threads.append(threading.Thread(target=_consume, args=args))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def drive(method: str, directory: str, out: str, processes: int, count: int) -> None:
    """Start the processes by fork or by spawn, from a process that has no threads."""
    context = multiprocessing.get_context(method)
    Queue(directory, page_bytes=4 * SMALL).close()
    args = [(directory, out, me, processes, count) for me in range(processes)]
    children = [context.Process(target=work, args=own) for own in args]
    for child in children:
        child.start()
    for child in children:
        child.join(2 * LONG)
    sys.exit(any(child.exitcode != 0 for child in children))


def open_as_other_user() -> None:
    """Make queues as root, then become another user and try to open them; print what came."""
    if os.geteuid() != 0:
        print_now("{}")
        return
    with tempfile.TemporaryDirectory() as base:
        for name in ("closed", "readable", "listed"):
            with Queue(f"{base}/{name}", page_bytes=SMALL) as queue:
                queue.producer().send(b"a")
        for path in (base, f"{base}/readable", f"{base}/listed"):
            Path(path).chmod(0o755)
        for path in Path(base, "readable").iterdir():
            path.chmod(0o644)
        os.seteuid(65534)
        denied: dict[str, object] = {}
        for name in ("new", "closed", "readable", "listed", "closed:read", "listed:read"):
            directory, _, read = name.partition(":")
            try:
                Queue(f"{base}/{directory}", read_only=bool(read))
            except OSError as error:
                denied[name] = type(error).__name__, str(error), error.errno
        with Queue(f"{base}/readable", read_only=True) as queue:
            found = [message.payload.decode() for message in queue.replay()]
        os.seteuid(0)
        print_now(json.dumps({"denied": denied, "read": found}))
