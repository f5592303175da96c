"""The core's handles without the Python around them, on files in memory."""

from __future__ import annotations

import os
import random
import struct
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pagequeue import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CAPACITY = 12
TABLE_AT, RECORD_BYTES = 4096, 64
SNAPSHOT_RECORD_BYTES = 24
TURN_AT, PLACE_AT, OWNER_AT = 192, 208, 248
LINKS_AT, LINKS_END = 256, 280
PLACE = 1 << 27 | 64 // 8
"""Of the first message in page 1."""
STATES = (0, 1, 2, 3)
ID = bytes(16)
CASES = 400


class EventError(Exception):
    """What a handle could not resolve alone."""


def resolving(method: str) -> Callable[..., object]:
    """Return what resolves an event: of most it raises the method."""
    if not method.startswith("_on_"):
        raise AttributeError(method)

    def resolve(*_: int) -> bool:
        if method in {"_on_idle", "_on_ahead", "_on_place"}:
            return method == "_on_idle"
        raise EventError(method)

    return resolve


class Handle(_core.Claims):
    """A handle of a group without the Python around it: it raises whatever it is asked."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        return resolving(name)

    def _find(self, *given: object) -> None:
        raise EventError(given)

    _reopen_page = _unreadable = _large = _move_to_dead_letters = _find

    def _is_damage(self, _: object) -> bool:
        return True

    def _close_lock(self) -> None:
        pass


def page_of(frames: int, *, size: int = 4096, writable: bool = True) -> _core.Region:
    """Return a page in memory with some frames, of sequences from 0 on, with time 1."""
    page = _core.Region(-1, size, writable)
    page.queue_id = ID
    for sequence in range(frames):
        checksum = _core.frame_checksum(ID, b"payload!", 1, sequence, 24)
        page.write(64 + 24 * sequence, struct.pack("<IIq", 24, checksum, 1) + b"payload!")
    return page


def handle_of(file: _core.Region, page: _core.Region, deliveries_max: int) -> Handle:
    """Return a handle of a group that has this file, in a queue with one page."""
    meta = _core.Region(-1, 512, True)
    _core.reset_lock(meta)
    _core.set_tail(meta, (1, 64 + 24 * 9, 9, 0, 1))
    clock = iter(range(10, 10_000)).__next__
    handle = Handle(
        meta, file, CAPACITY, -1, False, 7, 1e-6, deliveries_max, 0.0, 0.0, 1.0, clock, clock
    )
    handle._enter(page, 1)
    return handle


def disturbed(rnd: random.Random) -> _core.Region:
    """Return a group's file whose words and records are near what they can be, or anything.

    One of three has a wrong link, and is right otherwise.
    """
    file = _core.Region(-1, TABLE_AT + CAPACITY * RECORD_BYTES, True)
    _core.reset_group(file, CAPACITY)
    if rnd.randrange(3) == 0:
        file.store(PLACE_AT, PLACE)
        file.store_half(rnd.randrange(LINKS_AT, LINKS_END, 4), rnd.randrange(CAPACITY + 2))
        return file
    near = [0, 1, 2, 5, CAPACITY, CAPACITY + 1, 9, 2**31, 2**32 - 1]
    far = [0, 1, 3, 9, PLACE, PLACE + 3, PLACE + 6, 2 << 27, 2**62, 2**63, 2**64 - 1]
    for at in range(TURN_AT, OWNER_AT, 8):
        file.store(at, rnd.choice(far))
    for at in range(LINKS_AT, LINKS_END, 4):
        file.store_half(at, rnd.choice(near))
    file.store(LINKS_END, rnd.choice(far))
    for slot in range(CAPACITY):
        at = TABLE_AT + slot * RECORD_BYTES
        file.store(at, rnd.randrange(4) << 2 | rnd.choice(STATES))
        for field in range(8, 48, 8):
            file.store(at + field, rnd.choice([*far, rnd.randrange(10)]))
        for field in range(48, 64, 4):
            file.store_half(at + field, rnd.choice([*near, slot, slot + 2]))
    return file


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or that it asked."""
    try:
        return call()
    except (EventError, TimeoutError) as error:
        return type(error)


def test_no_bytes_of_a_table_lead_out_of_it_or_have_no_end() -> None:
    """I9: links that lead in a circle, records of no state, counts beyond the capacity."""
    rnd = random.Random(14)
    delivered = 0
    for _ in range(CASES):
        file = disturbed(rnd)
        group = handle_of(file, page_of(9), rnd.choice([0, 1, 3]))
        calls: list[Callable[[], object]] = [
            lambda group=group: group.claim(0),
            lambda group=group: group._claim_many(20, 0.0),
            lambda group=group: group.take(0),
            lambda group=group: group._release(7),
            lambda group=group: group._release(2**64 - 1),
            lambda group=group: group._place(3, 1, 136, False),
            lambda group=group: group._place(5, 1, 184, True),
            lambda group=group: group._settle(rnd.randrange(CAPACITY + 2), 1, True),
            lambda group=group: group.claim(1e-5),
        ]
        rnd.shuffle(calls)
        for call in calls:
            found = outcome(call)
            if isinstance(found, _core.Claim):
                delivered += 1
                outcome(rnd.choice([found.ack, found.nack, partial(found.extend, 1)]))
            owners = outcome(group._owners)
            assert not isinstance(owners, list) or len(owners) <= CAPACITY + 1
            snapshot = outcome(group._snapshot)
            if isinstance(snapshot, tuple):
                assert len(snapshot[1]) <= CAPACITY * SNAPSHOT_RECORD_BYTES
            assert len(group._next()) == 3
            outcome(group._wake_in)
    assert delivered > CASES / 4


def test_free_record_that_a_link_leads_to_is_not_claimed() -> None:
    """I14: an acknowledged message is not delivered again, whatever the links say."""
    file = _core.Region(-1, TABLE_AT + CAPACITY * RECORD_BYTES, True)
    _core.reset_group(file, CAPACITY)
    file.store(PLACE_AT, PLACE)
    group = handle_of(file, page_of(9), 0)
    assert [group.claim(0).message.sequence for _ in range(3)] == [0, 1, 2]
    assert group._release(7) == 3
    file.store(TABLE_AT, file.load(TABLE_AT) & ~3)  # free, and still the first
    delivered = [group.claim(0).message.sequence for _ in range(5)]
    assert sorted(delivered) == [1, 2, 3, 4, 5]


class Sender(_core.Writer):
    """A producer without the Python around it: in page 1 of a queue in memory."""

    meta: _core.Region
    page: _core.Region
    index: _core.Region

    def __getattr__(self, name: str) -> Callable[..., object]:
        return resolving(name)


def sender_of(first_sequence: int = 0) -> Sender:
    """Return a sender whose page is empty."""
    meta, page, index = _core.Region(-1, 512, True), page_of(0), _core.Region(-1, 1200, True)
    _core.reset_lock(meta)
    _core.set_tail(meta, (1, 64, 0, first_sequence, 0))
    sender = Sender(meta, -1, False, 1.0, None, 0)
    sender.meta, sender.page, sender.index = meta, page, index
    sender._attach(page, index, 1, first_sequence, 4096, 0, 0)
    return sender


def asked(call: Callable[[], object]) -> str:
    """Return what a handle asks for in a call."""
    with pytest.raises(EventError) as raised:
        call()
    method: str = raised.value.args[0]
    return method


def test_no_message_is_sent_after_the_last_sequence() -> None:
    """I1: no number is used again; what still fits is sent, and all of a batch or nothing."""
    last = 2**63 - 1
    sender = sender_of(last - 2)
    for payloads in ([b"a", b"b", b"c"], [b"d"], [b"e", b"f"], [b"g"]):
        outcome(partial(sender._send_many, payloads, None))
    assert asked(lambda: sender.send(b"h")) == "_on_exhausted"
    assert _core.tail(sender.meta)[1:3] == (64 + 2 * 24, 2)
    assert _core.peek(sender.page, 64, last - 2)[0] == _core.READ_FRAME
    assert _core.peek(sender.page, 88, last - 1)[0] == _core.READ_FRAME
    assert sender.page.read(80, 1) + sender.page.read(104, 1) == b"dg"
    assert _core.peek(sender.page, 112, last)[0] == _core.READ_NOTHING


def test_sender_without_a_page_asks_for_one() -> None:
    """M1: it has none at first, and none after it was detached."""
    meta = _core.Region(-1, 512, True)
    _core.reset_lock(meta)
    assert asked(lambda: Sender(meta, -1, False, 1.0, None, 0).send(b"a")) == "_on_moved"


# --- a page that is ready before the active one is full ---------------------------------------

FILLED = b"x" * (4096 - 64 - 16 - 16)
"""After it there is room for an end-of-page marker, and no message."""


class Ready:
    """A sender whose page is full, and the page that is to be the next one."""

    def __init__(self, tmp_path: Path) -> None:
        self.sender = sender_of()
        self.sender.send(FILLED)
        self.page, self.index = page_of(0), _core.Region(-1, 1200, True)
        self.header = struct.pack("<QIIQ16sQqq", 7, 1, 0, 2, ID, 0, 0, 0)
        self.folder = _core.Descriptor(
            os.open(tmp_path, os.O_RDONLY), lambda _: ValueError("the folder is closed")
        )
        (tmp_path / "lock").touch()
        own = (tmp_path / "lock").stat()
        self.watched: tuple[object, ...] = ((b"lock", own.st_dev, own.st_ino),)

    def make(self, **changes: object) -> bool:
        """Give it to the sender."""
        given = {**vars(self), "number": 2, **changes}
        names = ("page", "index", "number")
        found: bool = self.sender._ready(
            *(given[name] for name in names),
            4096,
            1200,
            given["header"],
            self.folder,
            given["watched"],
        )
        return found


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    """What a producer has shortly before a roll."""
    made = Ready(tmp_path)
    yield made
    made.folder.close()


def test_full_sender_continues_in_the_ready_page_without_asking(ready: Ready) -> None:
    """R1 to R4: the marker ends the old page, and the new one begins with the next sequence."""
    assert ready.make()
    assert ready.sender.send(b"next") == 1
    assert _core.peek(ready.sender.page, 4096 - 16, 1)[0] == _core.READ_END
    assert _core.peek(ready.page, 64, 1)[0] == _core.READ_FRAME
    assert _core.tail(ready.sender.meta)[:4] == (2, 64 + 24, 1, 1)
    assert struct.unpack("<Q", ready.page.read(40, 8)) == (1,)


def test_ready_page_is_used_once(ready: Ready) -> None:
    """No other roll goes into it: the next full page has Python asked again."""
    assert ready.make()
    ready.sender.send(FILLED)
    assert asked(lambda: ready.sender.send(b"more")) == "_on_full"
    assert not ready.make()  # its number is not the next one now
    assert asked(lambda: ready.sender.send(b"more")) == "_on_full"


def _replaced(ready: Ready) -> None:
    (name, device, inode), *_ = ready.watched  # type: ignore[misc]
    assert ready.make(watched=((name, device, inode + 1),))


def _on_another_device(ready: Ready) -> None:
    (name, device, inode), *_ = ready.watched  # type: ignore[misc]
    assert ready.make(watched=((name, device + 1, inode),))


def _removed(ready: Ready) -> None:
    assert ready.make(watched=((b"none", 1, 1),))


def _malformed(ready: Ready) -> None:
    assert ready.make(watched=((b"lock",),))


def _folder_closed(ready: Ready) -> None:
    assert ready.make()
    ready.folder.close()


@pytest.mark.parametrize(
    "change", [_replaced, _on_another_device, _removed, _malformed, _folder_closed]
)
def test_sender_asks_where_a_watched_name_is_not_what_it_was(
    ready: Ready, change: Callable[[Ready], None]
) -> None:
    """I13: a queue whose lock file was replaced is not sent to; Python stops all writers."""
    change(ready)
    before = ready.page.read(0, 4096)
    assert asked(lambda: ready.sender.send(b"next")) == "_on_full"
    assert ready.page.read(0, 4096) == before


def test_sender_asks_where_another_one_has_rolled(ready: Ready) -> None:
    """M1: the page that is ready here is another process's past."""
    assert ready.make()
    _core.set_tail(ready.sender.meta, (3, 64, 0, 5, 0))
    assert asked(lambda: ready.sender.send(b"next")) == "_on_moved"
    assert ready.page.read(0, 64) == bytes(64)


@pytest.mark.parametrize(
    "change",
    [
        {"header": b"short"},
        {"page": _core.Region(-1, 4096, True)},
        {"page": page_of(0, size=2048)},
        {"page": page_of(0, writable=False)},
        {"index": _core.Region(-1, 11, True)},
        {"index": _core.Region(-1, 1200, False)},
    ],
)
def test_page_that_cannot_be_the_next_one_is_not_ready(
    ready: Ready, change: dict[str, object]
) -> None:
    """I9: of no queue, too short, read-only, or without a record's place in its index."""
    with pytest.raises(ValueError, match=r"header|page|index"):
        ready.make(**change)
    for number in (0, 1, 3):
        assert not ready.make(number=number)
    assert asked(lambda: ready.sender.send(b"next")) == "_on_full"
    assert ready.make()
    assert ready.sender.send(b"next") == 1


def test_roll_refuses_a_header_of_another_size(ready: Ready) -> None:
    """I9: its bytes would be read beyond its end."""
    with pytest.raises(ValueError, match="another size"):
        ready.sender._roll(ready.page, b"short")
    with pytest.raises(ValueError, match="next page"):
        ready.sender._roll(_core.Region(-1, 512, True), ready.header)
    assert ready.sender._roll(ready.page, ready.header) == _core.APPEND_DONE
