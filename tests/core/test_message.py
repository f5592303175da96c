"""Message: an immutable payload, timestamp and sequence."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from pagequeue import Message

MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
MOMENT_NS = 1_709_209_815_123_456_789


def test_message_carries_payload_timestamp_and_sequence() -> None:
    """The three attributes are what was given."""
    message = Message(b"abc", 7, 9)
    assert (message.payload, message.timestamp, message.sequence) == (b"abc", 7, 9)


def test_time_is_aware_utc_and_cut_to_microseconds() -> None:
    """`time` names the same moment as `timestamp`, rounded down."""
    message = Message(b"", MOMENT_NS, 0)
    assert message.time == MOMENT
    assert message.time.utcoffset() == timedelta(0)


@pytest.mark.parametrize("timestamp", [0, 999, 1000, 2**63 - 1])
def test_time_covers_every_valid_timestamp(timestamp: int) -> None:
    """Every valid timestamp of a frame fits into a datetime."""
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp // 1000)
    assert Message(b"", timestamp, 0).time == expected


def test_time_before_1970_is_rounded_down_too() -> None:
    """A hand-made message of 1 ns before 1970 belongs to the microsecond before it."""
    assert Message(b"", -1, 0).time == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)


@pytest.mark.parametrize("name", ["payload", "timestamp", "sequence", "time", "other"])
def test_message_attributes_are_read_only(name: str) -> None:
    """A received message stays as it was sent."""
    with pytest.raises(AttributeError):
        setattr(Message(b"a", 1, 2), name, 3)


def test_messages_are_equal_when_all_three_parts_are() -> None:
    """Equality and hash go by payload, timestamp and sequence."""
    message = Message(b"a", 1, 2)
    assert message == Message(b"a", 1, 2)
    assert hash(message) == hash(Message(b"a", 1, 2))
    others = [Message(b"b", 1, 2), Message(b"a", 2, 2), Message(b"a", 1, 3)]
    assert all(message != other for other in others)
    assert len({message, Message(b"a", 1, 2), *others}) == 4


def test_a_message_is_not_a_tuple_and_is_not_orderable() -> None:
    """Order is the queue's: comparing messages is meaningless."""
    assert Message(b"a", 1, 2) != (b"a", 1, 2)
    with pytest.raises(TypeError):
        sorted([Message(b"a", 1, 2), Message(b"a", 1, 1)])  # type: ignore[type-var]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_message_survives_pickling_and_copying(protocol: int) -> None:
    """A message can be handed to another process."""
    message = Message(bytes(range(256)), MOMENT_NS, 2**63 - 1)
    assert pickle.loads(pickle.dumps(message, protocol)) == message
    assert copy.deepcopy(message) == message


def test_message_matches_by_position() -> None:
    """A match statement takes payload, timestamp, sequence."""
    match Message(b"a", 1, 2):
        case Message(payload, timestamp, sequence):
            assert (payload, timestamp, sequence) == (b"a", 1, 2)


def test_repr_shows_every_part() -> None:
    """A message in a log can be read, and typed in again."""
    text = repr(Message(b"a'\x00", 1, 2))
    assert text == 'Message(payload=b"a\'\\x00", timestamp=1, sequence=2)'
    assert eval(text) == Message(b"a'\x00", 1, 2)


@pytest.mark.parametrize(
    "args", [("text", 1, 2), (bytearray(b"a"), 1, 2), (b"a", "1", 2), (b"a", 1, 2.5), (b"a", 1)]
)
def test_message_of_wrong_types_is_refused(args: tuple[object, ...]) -> None:
    """The payload is bytes, the numbers are ints."""
    with pytest.raises(TypeError):
        Message(*args)  # type: ignore[arg-type]


def test_value_is_the_payload_unless_there_is_a_decoder() -> None:
    """A message of a plain queue costs no more; the decoder runs at each access."""
    plain = Message(b"abc", 7, 9)
    assert plain.value is plain.payload
    decoded = Message(b"abc", 7, 9, lambda payload, sequence: [payload, sequence])
    assert decoded.value == [b"abc", 9]
    assert decoded.value is not decoded.value
    assert decoded == plain
    assert hash(decoded) == hash(plain)
