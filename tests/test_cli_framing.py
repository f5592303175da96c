"""How the command line takes byte streams apart, puts them together, and reads times."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagequeue.cli.framing import Decoder, Framing, FramingError, decoder, encode
from pagequeue.cli.times import NS_PER_SECOND, iso_time, parse_duration, parse_time
from pagequeue.format import TIMESTAMP_MAX

NOW_NS = 1_800_000_000 * NS_PER_SECOND
HOUR_NS = 3_600 * NS_PER_SECOND


def taken_apart(reader: Decoder, pieces: list[bytes]) -> list[bytes]:
    """Return all messages of a stream that comes in pieces."""
    messages = [message for piece in pieces for message in reader.feed(piece)]
    return messages + reader.finish()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """Cut a stream at these places."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges) if start < end]


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(min_value=0), max_size=8))
def test_length_prefixed_messages_survive_any_cutting(
    payloads: list[bytes], places: list[int]
) -> None:
    """Whatever payloads hold and wherever reads end, the same messages come out."""
    pieces = cut(encode(Framing.LENGTH, payloads), places)
    assert taken_apart(decoder(Framing.LENGTH), pieces) == payloads


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=8))
def test_separated_messages_do_not_depend_on_where_reads_end(
    stream: bytes, places: list[int]
) -> None:
    """Any byte stream is the same lines in one piece and in many."""
    whole = stream.split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert taken_apart(decoder(Framing.NEWLINE), cut(stream, places)) == expected


@pytest.mark.parametrize(
    ("framing", "payloads"),
    [
        (Framing.NEWLINE, [b"a\0b", b"", b"c\r"]),
        (Framing.NULL, [b"a\nb", b"", b"c"]),
        (Framing.LENGTH, [b"\n", b"\0", b""]),
    ],
)
def test_payloads_without_the_separator_come_back_as_they_were(
    framing: Framing, payloads: list[bytes]
) -> None:
    """Encoding and decoding are inverse, empty payloads included."""
    assert taken_apart(decoder(framing), [encode(framing, payloads)]) == payloads


def test_last_line_needs_no_separator() -> None:
    """What stands behind the last newline is a message."""
    assert taken_apart(decoder(Framing.NEWLINE), [b"a\nb"]) == [b"a", b"b"]


def test_nothing_is_encoded_as_nothing() -> None:
    """No payload leaves no separator either."""
    assert encode(Framing.NEWLINE, []) == b""


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (b"\x01\0\0\0x\x05\0\0\0abc", "record 2: the input ends after 3 of its 5 bytes"),
        (b"\x01\0", "record 1: the input ends inside its length"),
    ],
)
def test_stream_cut_off_inside_a_record_is_an_error(stream: bytes, told: str) -> None:
    """A half record is never sent, and is named."""
    reader = decoder(Framing.LENGTH)
    reader.feed(stream)
    with pytest.raises(FramingError, match=told):
        reader.finish()


def test_decoder_tells_how_much_of_a_message_is_pending() -> None:
    """A sender can refuse a message before all of it is in memory."""
    lines, records = decoder(Framing.NEWLINE), decoder(Framing.LENGTH)
    lines.feed(b"done\nrest")
    records.feed(b"\x40\x42\x0f\0x")
    assert lines.pending_bytes == 4
    assert records.pending_bytes == 1_000_000


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("90s", 90 * NS_PER_SECOND),
        ("10m", 600 * NS_PER_SECOND),
        ("2h", 2 * HOUR_NS),
        ("1d", 24 * HOUR_NS),
        ("1h30m", HOUR_NS * 3 // 2),
        ("250ms", NS_PER_SECOND // 4),
    ],
)
def test_duration_is_a_time_that_long_ago(text: str, expected_ns: int) -> None:
    """`--since 10m` is ten minutes before now."""
    assert parse_duration(text) == expected_ns
    assert parse_time(text, NOW_NS) == NOW_NS - expected_ns


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1970-01-01T00:00:01Z", NS_PER_SECOND),
        ("1970-01-01T02:00:01+02:00", NS_PER_SECOND),
        ("1970-01-01T00:00:00.123456789Z", 123_456_789),
        ("1970-01-01 00:00:00.5+00:00", NS_PER_SECOND // 2),
        ("123456789", 123_456_789),
        ("0", 0),
        ("1969-12-31T23:59:59Z", 0),
    ],
)
def test_absolute_times_are_read_to_the_nanosecond(text: str, expected_ns: int) -> None:
    """ISO 8601 with a zone, and bare nanoseconds; what is before 1970 means from the start."""
    assert parse_time(text, NOW_NS) == expected_ns


@given(st.integers(min_value=0, max_value=TIMESTAMP_MAX))
def test_printed_time_reads_back_exactly(timestamp_ns: int) -> None:
    """What `receive --format json` prints can be given to `--since`."""
    assert parse_time(iso_time(timestamp_ns), NOW_NS) == timestamp_ns


def test_naive_time_is_refused_with_the_remedy() -> None:
    """A time without a zone could mean two moments; the error shows how to say which."""
    with pytest.raises(ValueError, match=r"does not say its time zone; write 2026-01-31T08:00:00Z"):
        parse_time("2026-01-31T08:00", NOW_NS)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10 m", "-5m", "m", "1.5h", "٣m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """The error says how a duration is written."""
    with pytest.raises(ValueError, match="write one like"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 20, "2263-01-01T00:00:00Z", "9" * 40])
def test_time_beyond_the_format_is_refused(text: str) -> None:
    """No time overflows the frame's 64-bit word."""
    with pytest.raises(ValueError, match="write"):
        parse_time(text, NOW_NS)


def test_time_far_away_is_still_a_date() -> None:
    """The latest timestamp that a frame holds can be printed."""
    assert iso_time(TIMESTAMP_MAX).startswith("2262-04-11T23:47:16.8547")
    assert datetime.fromisoformat(iso_time(0)) == datetime.fromtimestamp(0, UTC)
