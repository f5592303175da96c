"""What `tests/core/test_no_memory.py` runs in a process of its own: allocations that fail."""

from __future__ import annotations

import json
import struct
from _testcapi import remove_mem_hooks, set_nomemory
from importlib.machinery import ExtensionFileLoader
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Any

from pagequeue import Queue, _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = 1 << 16
ALLOCATIONS = 60
QUIET = 8
"""After so many calls without an error there is no allocation left that could fail."""


def swept(
    make: Callable[[], Callable[[], Any]],
    keep: Callable[[Any], object] | None = None,
    most: int = ALLOCATIONS,
) -> tuple[int, int]:
    """Call with the first allocation failing, then with the second, and so on.

    Args:
        make: returns what is called.
        keep: called with what a call returned, when allocations work again.
        most: how many calls at most.

    Returns:
        How many calls raised MemoryError, and how many returned.
    """
    raised = returned = quiet = 0
    for at in range(most):
        call = make()
        set_nomemory(at, at + 1)
        try:
            result = call()
        except (MemoryError, SystemError) as error:
            remove_mem_hooks()
            # Of CPython 3.11, whose PyType_FromSpec can fail without an exception.
            if isinstance(error, SystemError) and "failed without" not in str(error):
                raise
            raised, quiet = raised + 1, 0
        else:
            remove_mem_hooks()
            returned, quiet = returned + 1, quiet + 1
            if keep is not None:
                keep(result)
        if quiet == QUIET:
            break
    return raised, returned


def sweep_import(_: str) -> None:
    """Sweep the module's initialisation; print how often it failed, and what it made at last."""
    loader = ExtensionFileLoader("_core", str(_core.__file__))
    names = iter(range(10_000))  # another name each time: a module that is there is not made again

    def make() -> Callable[[], object]:
        spec = spec_from_file_location(f"n{next(names)}._core", _core.__file__, loader=loader)
        assert spec is not None
        return lambda: loader.create_module(spec)

    made: list[Any] = []
    raised, _ = swept(make, made.append, 10_000)
    assert vars(made[-1]).keys() >= vars(_core).keys() - {"__loader__", "__spec__", "__file__"}
    print(json.dumps(raised))


def always(call: Callable[[], object]) -> Callable[[], Callable[[], object]]:
    """Return what makes the same call each time."""
    return lambda: call


def functions(page: _core.Region, index: _core.Region, meta: _core.Region) -> dict[str, Any]:
    """Return calls of the core's functions, by name; the page has ten messages of 100 bytes."""
    spans = b"".join(struct.pack("<II", 64 + 120 * i + 16, 100) for i in range(10))
    times = struct.pack("<3q", 5, 6, 7)
    target = bytearray(2000)
    payloads = (b"a", bytearray(b"b"), memoryview(b"c"))
    return {
        "payloads": lambda: _core.payloads(page, spans, 0),
        "views": lambda: _core.views(page, spans, 0, 0),
        "pack": lambda: _core.pack(page, spans, 0, target, 0),
        "check_intact": lambda: _core.check_intact(page, spans, 0),
        "measured": lambda: _core.measured(list(payloads), 10),
        "payload": lambda: _core.payload(payloads[1]),
        "scan": lambda: _core.scan(page, None, 0, 64, 0, 9, 0, 0),
        "find": lambda: _core.find(page, index, 0, 10, 1),
        "find_many": lambda: _core.find_many(page, index, 0, 10, times),
        "times": lambda: _core.times(page, index, 0, 0, 10),
        "locate": lambda: _core.locate(page, index, 0, 10, 3),
        "peek": lambda: _core.peek(page, 64, 0),
        "resync": lambda: _core.resync(page, index, 0, 64, 0, 9, 0, 2**62),
        "tail": lambda: _core.tail(meta),
        "crc32c_copy": lambda: _core.crc32c_copy(spans),
        "new_bytes": lambda: _core.new_bytes(100),
        "copy_checked": lambda: _core.copy_checked(page, 64, 8, 0, target, 0),
        "identity": lambda: _core.identity(0, "/"),
        "monotonic": _core.monotonic,
        "doorbell": lambda: _core.doorbell(meta, True),
        "room_bell": lambda: _core.room_bell(meta, 1),
        "Region": lambda: _core.Region(-1, 4096, True),
        "Descriptor": lambda: _core.Descriptor(-1, ValueError),
        "Message": lambda: _core.Message(b"a", 1, 2),
        "Reader": lambda: _core.Reader(meta, True, False),
        "Writer": lambda: _core.Writer(meta, -1, False, 1.0, None, 0),
        "region.read": lambda: page.read(0, 2000),
        "region.load": lambda: page.load(0),
        "region.ahead": lambda: page.ahead(0, 4096),
        "time": lambda: _core.Message(b"a", 10**18, 2).time,
        "repr": lambda: repr(_core.Message(b"a", 1, 2)),
        "hash": lambda: hash(_core.Message(b"a", 10**18, 2)),
        "open": lambda: _core.Message(b"a", 1, 2).open(),
    }


def sweep_functions(path: str) -> None:
    """Sweep the functions and the types' constructors; print what each did."""
    with Queue(path, page_bytes=PAGE) as queue, queue.producer() as producer:
        for _ in range(10):
            producer.send(bytes(100))
        store = queue._store
        consumer = queue.consumer()
        consumer.receive(0)
        page = consumer._region
        assert page is not None
        index = _core.Region(-1, 12 * 100, True)
        index.queue_id = bytes(16)
        _core.scan(page, index, 0, 64, 0, 10, 0, _core.INDEX_WRITE)
        calls = functions(page, index, store.write_meta.region)
        before = {name: repr(call()) for name, call in calls.items() if name in SAME}
        found = {name: swept(always(call)) for name, call in calls.items()}
        assert {name: repr(calls[name]()) for name in SAME} == before
    print(json.dumps(found))


SAME = ["payloads", "views", "pack", "scan", "find", "find_many", "times", "locate", "peek", "tail"]


def sweep_sending(path: str) -> None:
    """Sweep what sends and receives; then each message is there, whole and once."""
    found = {}
    rows = memoryview(struct.pack("<4q", 1, 2, 3, 4)).cast("q")
    spans = (("o", 0, 2, (struct.pack("<3i", 0, 3, 5), b"abcde")),)
    with Queue(path, page_bytes=PAGE) as queue, queue.producer() as producer:
        sends = {
            "send": lambda: producer.send(b"one"),
            "send bytearray": lambda: producer.send(bytearray(b"two")),
            "send at": lambda: producer.send(b"at", at=None, timestamp=2**62, timeout=60),
            "_send_many": lambda: producer._send_many([b"a", bytearray(b"b")], None),
            "_send_rows": lambda: producer._send_rows(((rows, 0),), 8, None),
            "_send_spans": lambda: producer._send_spans(spans, 2, None),
        }
        returned = 0
        for name, call in sends.items():
            found[name] = swept(always(call))
            returned += found[name][1] * {"_send_many": 2, "_send_rows": 4, "_send_spans": 2}.get(
                name, 1
            )
        consumer = queue.consumer()
        reads = {
            "poll": consumer.poll,
            "receive": lambda: consumer.receive(0),
            "_read_many": lambda: consumer._read_many(3, 0.0, 1000),
        }
        for name, call in reads.items():

            def again(call: Callable[[], object] = call) -> Callable[[], object]:
                consumer.seek(sequence=3)
                return call

            found[name] = swept(again)
        consumer.seek(sequence=0)
        sequences = [message.sequence for message in consumer.receive_many(10_000)]
        assert sequences == [*range(len(sequences))]
        assert len(sequences) >= returned
        found |= sweep_claims(queue, len(sequences))
    print(json.dumps(found))


def sweep_claims(queue: Queue, sent: int) -> dict[str, tuple[int, int]]:
    """Sweep a group's calls; no message is lost then, or delivered twice."""
    found = {}
    group = queue.group("g", max_deliveries=None, backoff=None)
    # The first claim runs Python code, to find its page. CPython 3.13 itself crashes there.
    held: list[Any] = [group.claim(0)]
    done: list[int] = []
    calls: dict[str, tuple[Callable[[], Any], Callable[[Any], object] | None]] = {
        "claim": (lambda: group.claim(0), held.append),
        "_claim_many": (lambda: group._claim_many(3, 0.0), held.extend),
        "take": (lambda: group.take(0), lambda message: done.append(message.sequence)),
        "_owners": (group._owners, None),
        "_snapshot": (group._snapshot, None),
        "_next": (group._next, None),
        "_wake_in": (group._wake_in, None),
    }
    for name, (call, keep) in calls.items():
        found[name] = swept(always(call), keep)
    for how, given in (("extend", (100,)), ("nack", (0,)), ("ack", ())):
        claims = iter(held)

        def settle(
            how: str = how, given: tuple[object, ...] = given, claims: Iterator[Any] = claims
        ) -> Callable[[], object]:
            method = getattr(next(claims), how)
            return lambda: method(*given)

        found[how] = swept(settle)
        if how == "nack":
            held = [claim for claim in held if not claim._is_settled]
    for claim in held:
        if not claim._is_settled:
            claim.ack()
        done.append(claim.message.sequence)
    while True:
        try:
            with group.claim(0) as claim:
                done.append(claim.message.sequence)
        except TimeoutError:
            break
    assert sorted(done) == [*range(sent)], sorted(done)
    return found
