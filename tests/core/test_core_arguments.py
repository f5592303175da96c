"""What the core's functions and methods do not take: an error, and nothing has changed."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, cast

import pytest
from support import SMALL

from pagequeue import Queue, _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FUNCTIONS = sorted(
    name for name, found in vars(_core).items() if isinstance(found, types.BuiltinFunctionType)
)
METHODS = sorted(
    (kind, name)
    for kind, of in vars(_core).items()
    if isinstance(of, type)
    for name, found in vars(of).items()
    if isinstance(found, types.MethodDescriptorType | types.ClassMethodDescriptorType)
)
ALL_TAKEN = {("Descriptor", "__exit__")}
"""Methods that take any arguments whatever."""
ID = bytes(16)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One object of each type, by the type's name; the queue has a message left."""
    with Queue(tmp_path_factory.mktemp("q"), page_bytes=SMALL) as queue:
        producer = queue.producer()
        producer.send_many([b"a", b"b", b"c"])
        consumer, group = queue.consumer(), queue.group("g")
        yield {
            "Region": _core.Region(-1, 4096, True),
            "Clock": _core.Clock(None),
            "Descriptor": _core.Descriptor(-1, cast("Any", ValueError)),
            "Judge": _core.Judge(ID, 4096, (1, 0), (0, 0), 1, (0, 0, 0), _core.WALK_TAIL),
            "Message": consumer.receive(0),
            "Writer": producer,
            "Reader": consumer,
            "Claims": group,
            "Claim": group.claim(0),
        }
        assert consumer.receive(0).payload == b"b"
        assert group.claim(0).message.payload == b"b"
        assert producer.send(b"d") == 3


def refused(call: Callable[..., object], *, some_taken: bool = False) -> None:
    """Call with too many arguments, and with one to three of a type that is none's."""
    with pytest.raises((TypeError, ValueError)):
        call(*[object()] * 12)
    for count in () if some_taken else (1, 2, 3):
        with pytest.raises((TypeError, ValueError)):
            call(*[object()] * count)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_refuses_arguments_of_other_types(name: str) -> None:
    """I9: whatever it is called with, the core raises, and touches no memory."""
    refused(getattr(_core, name))


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_method_refuses_arguments_of_other_types(
    objects: dict[str, Any], kind: str, name: str
) -> None:
    """I9: the same of methods; the objects work afterwards."""
    if (kind, name) in ALL_TAKEN:
        return
    method = getattr(_core, kind).__dict__[name]
    if isinstance(method, types.ClassMethodDescriptorType):
        refused(getattr(objects[kind], name))
    else:
        taken = name in {"__exit__", "__aexit__", "close", "nack", "reject", "ack"}
        refused(lambda *given: method(objects[kind], *given), some_taken=taken)


@pytest.mark.parametrize("kind", ["Region", "Descriptor", "Message", "Writer", "Reader", "Claims"])
def test_constructor_refuses_arguments_of_other_types(kind: str) -> None:
    """I9: no object is made of what it cannot use."""
    refused(getattr(_core, kind))
    with pytest.raises(TypeError):
        getattr(_core, kind)(unknown=1)


META = {
    "tail": (),
    "set_tail": ((1, 64, 0, 0, 0),),
    "reset_lock": (),
    "wake": (),
    "wake_turn": (),
    "doorbell": (True,),
    "await_doorbell": (0, 0),
    "room_bell": (0,),
    "await_room": (0, 0),
    "made_room": (0,),
    "await_turn": (0, 0),
    "end_turn": (0, 0),
}
"""Functions on a write meta, and their other arguments."""
ONLY_READING = {"tail", "await_doorbell", "await_room", "wake_turn"}


@pytest.mark.parametrize("name", sorted(META))
def test_file_that_is_too_short_or_read_only_is_refused(name: str) -> None:
    """I9: no field is looked for after a file's end, and none is written through a reader's map."""
    call = getattr(_core, name)
    with pytest.raises(ValueError, match="512 bytes or more, not 511"):
        call(_core.Region(-1, 511, True), *META[name])
    call(_core.Region(-1, 512, True), *META[name])
    read_only = _core.Region(-1, 512, False)
    if name in ONLY_READING:
        call(read_only, *META[name])
    else:
        with pytest.raises(ValueError, match="must be writable"):
            call(read_only, *META[name])


def page_of(size: int = 4096, *, writable: bool = True) -> _core.Region:
    """Return memory that is a page of a queue."""
    page = _core.Region(-1, size, writable)
    page.queue_id = ID
    return page


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: _core.Region(-1, 0, True), "1 to"),
        (lambda: _core.Region(-1, 2**40, True), "1 to"),
        (lambda: _core.frame_checksum(b"short", b"", 0, 0, 0), "16 bytes, not 5"),
        (lambda: _core.choose_crc(-1), "0 to"),
        (lambda: _core.peek(_core.Region(-1, 4096, True), 64, 0), "of no queue"),
        (lambda: _core.find_many(page_of(), page_of(), 0, 0, b"odd"), "int64"),
        (lambda: _core.find_many(page_of(), page_of(), 0, 0, memoryview(bytes(9))[1:]), "int64"),
        (lambda: _core.payloads(page_of(), b"odd", 0), "spans"),
        (lambda: _core.payloads(page_of(), memoryview(bytes(9))[1:], 0), "spans"),
        (lambda: _core.views(page_of(), (4097).to_bytes(4, "little") + bytes(4), 0, 0), "spans"),
        (lambda: _core.pack(page_of(), bytes(4) + b"\xff" * 4, 0, bytearray(9), 0), "spans"),
        (lambda: _core.payloads(page_of(), b"\x50\0\0\0\xb1\x0f\0\0", 0), "spans"),  # by a byte
        (lambda: _core.pack(page_of(), b"\x50\0\0\0\x09\0\0\0", 0, bytearray(8), 0), "not fit"),
        (lambda: _core.pack(page_of(), b"\x50\0\0\0\x01\0\0\0", 0, bytearray(8), 9), "not fit"),
        (lambda: _core.check_intact(page_of(), b"odd", 0), "spans"),
        (lambda: _core.copy_checked(page_of(), 4096, 1, 0, bytearray(9), 0), "not in the page"),
        (lambda: _core.copy_checked(page_of(), 4097, 0, 0, bytearray(9), 0), "not in the page"),
        (lambda: _core.copy_checked(page_of(), 0, 9, 0, bytearray(9), 1), "the target"),
        (lambda: _core.copy_checked(page_of(), 0, 0, 0, bytearray(9), 10), "the target"),
        (lambda: _core.reset_group(_core.Region(-1, 4096, True), 1), "group"),
        (lambda: setattr(page_of(), "queue_id", b"short"), "16 bytes, not 5"),
    ],
)
def test_values_that_lead_out_of_a_buffer_are_refused(
    call: Callable[[], object], match: str
) -> None:
    """I9: each place and size is compared with its buffer before it is used."""
    with pytest.raises(ValueError, match=match):
        call()


def test_page_stays_one_of_its_queue() -> None:
    """Its id can be set, and not read, removed, or be another type than bytes."""
    page = page_of()
    with pytest.raises(AttributeError, match="stays"):
        del page.queue_id
    with pytest.raises(TypeError):
        page.queue_id = "text"  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        page.queue_id  # noqa: B018 - it raises


def test_index_without_so_many_records_finds_nothing() -> None:
    """I6: a count from elsewhere does not lead out of the index."""
    page, index = page_of(), page_of(24)
    assert _core.find(page, index, 0, 3, 0) is None
    assert _core.find(page, cast("Any", None), 0, 1, 0) is None
    assert _core.find_many(page, index, 0, 3, bytes(8)) is None
    assert _core.times(page, index, 0, 0, 3) is None
    assert _core.times(page, index, 0, 2, 1) is None
    assert _core.times(page, index, 0, 0, 2) is None  # records of nothing
    assert _core.times(page, index, 0, 1, 1) == b""


class Fickle(int):
    """A number of seconds that is negative when it is first asked for, or always an error."""

    asked = 0
    error: Exception | None = None

    def __float__(self) -> float:
        if self.error is not None:
            raise self.error
        self.asked += 1
        return -1.0 if self.asked == 1 else 1.0


def test_argument_that_is_not_the_same_twice_is_refused(objects: dict[str, Any]) -> None:
    """The core refuses it, and what words the error finds nothing wrong: an error all the same."""
    with pytest.raises(TypeError, match="not the same twice"):
        objects["Reader"].receive(Fickle())


def test_error_of_an_argument_itself_is_raised(objects: dict[str, Any]) -> None:
    """It is not replaced by one that calls the argument wrong."""
    fickle = Fickle()
    fickle.error = ZeroDivisionError("its own")
    with pytest.raises(ZeroDivisionError, match="own"):
        objects["Claims"].claim(fickle)
