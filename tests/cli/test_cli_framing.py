"""Byte streams to messages and back: the framings, `send` as a whole, and how times are written."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import warm
from hypothesis import given
from hypothesis import strategies as st
from test_cli import PAGE_BYTES, WAIT_SECONDS, Capture, call, payloads, run, start, wait_for

from pagequeue import Queue
from pagequeue.cli.framing import Decoder, Framing, FramingError, decoder, encode
from pagequeue.format import TIMESTAMP_MAX
from pagequeue.util.time_text import NS_PER_SECOND, parse_duration, parse_time
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from pathlib import Path

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
    """Any payloads, split at any places over reads, decode to the same messages."""
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
def test_payloads_without_the_separator_survive_framing(
    framing: Framing, payloads: list[bytes]
) -> None:
    """Encoding and decoding are inverse, empty payloads included."""
    assert taken_apart(decoder(framing), [encode(framing, payloads)]) == payloads


def test_last_line_needs_no_separator() -> None:
    """The bytes after the last newline are a message."""
    assert taken_apart(decoder(Framing.NEWLINE), [b"a\nb"]) == [b"a", b"b"]


def test_empty_list_is_encoded_as_no_bytes() -> None:
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


def test_decoder_reports_how_much_of_a_message_is_pending() -> None:
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
    """A time without a zone is ambiguous; the error shows how to add one."""
    with pytest.raises(ValueError, match=r"has no time zone; write 2026-01-31T08:00:00Z"):
        parse_time("2026-01-31T08:00", NOW_NS)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10 m", "-5m", "m", "1.5h", "٣m"])
def test_invalid_duration_is_refused(text: str) -> None:
    """The error shows how to write a duration."""
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


# --- send -------------------------------------------------------------------------------------


def test_each_line_of_stdin_is_sent(tmp_path: Path) -> None:
    """Lines become messages without their newline; the last one needs none; a CR stays."""
    code, out, err = run("send", tmp_path / "q", stdin=b"a\n\nb \xff\r\nlast")
    assert (code, out, err) == (0, b"", "")
    assert payloads(tmp_path / "q") == [b"a", b"", b"b \xff\r", b"last"]


def test_file_is_sent_in_order_over_many_pages(tmp_path: Path, capfdbinary: Capture) -> None:
    """Every line of a file larger than one read arrives, whatever the size of the pages."""
    lines = [b"line %d " % number + b"x" * (number % 97) for number in range(30_000)]
    (tmp_path / "file").write_bytes(b"\n".join(lines))
    code, _, _ = call(
        capfdbinary, "send", tmp_path / "q", "--file", tmp_path / "file", "--page-bytes", "64K"
    )
    assert code == 0
    assert payloads(tmp_path / "q") == lines
    with Queue(tmp_path / "q", create=False, read_only=True) as queue:
        assert queue.info().page_bytes == PAGE_BYTES


def test_null_keeps_newlines_inside(tmp_path: Path) -> None:
    """`find -print0 | pagequeue send --null` works."""
    assert run("send", tmp_path / "q", "--null", stdin=b"a\nb\0c\0")[0] == 0
    assert payloads(tmp_path / "q") == [b"a\nb", b"c"]


def test_slow_input_is_sent_before_it_ends(tmp_path: Path) -> None:
    """`tail -f log | pagequeue send` buffers no whole line."""
    with start("send", tmp_path / "q", "--page-bytes", "64K") as process:
        assert process.stdin is not None
        for count in (1, 2):
            process.stdin.write(b"line\nhalf")
            process.stdin.flush()
            found = wait_for(tmp_path / "q", count)
        assert found == [b"line", b"halfline"]
        process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0
    assert payloads(tmp_path / "q") == [b"line", b"halfline", b"half"]


def test_too_long_line_is_named_and_the_lines_before_it_are_sent(tmp_path: Path) -> None:
    """Neither the long line nor a later one is sent; the error has the count of those sent."""
    stdin = b"a\nb\n" + b"x" * (65 << 20) + b"\nc\n"
    code, _, err = run("send", tmp_path / "q", "--page-bytes", "4096", stdin=stdin)
    assert code == 1
    assert "2 messages sent" in err
    assert "error: line 3 has 6" in err
    assert "check that the options match the framing" in err
    assert payloads(tmp_path / "q") == [b"a", b"b"]


def test_endless_line_is_refused_before_memory_is_full(tmp_path: Path) -> None:
    """A stream without separators fails after 64 MiB, not at its end."""
    with (tmp_path / "zeros").open("wb") as sparse:
        sparse.truncate(1 << 40)
    code, _, err = run("send", tmp_path / "q", "--file", tmp_path / "zeros", "--page-bytes", "64K")
    assert code == 1
    assert "line 1 has" in err
    assert payloads(tmp_path / "q") == []


def test_record_of_absurd_length_is_refused_at_its_length(tmp_path: Path) -> None:
    """Wrongly framed input is not waited for."""
    code, _, err = run("send", tmp_path / "q", "--length-prefixed", stdin=b"not framed at all")
    assert code == 1
    assert "record 1 has" in err


def test_cut_off_record_is_an_error_after_the_whole_ones(tmp_path: Path) -> None:
    """Half a record at the end is never sent."""
    stdin = b"\x01\0\0\0a\x05\0\0\0abc"
    code, _, err = run("send", tmp_path / "q", "--length-prefixed", stdin=stdin)
    assert code == 1
    assert "1 message sent" in err
    assert "record 2: the input ends after 3 of its 5 bytes" in err
    assert payloads(tmp_path / "q") == [b"a"]


def test_flush_makes_messages_durable(tmp_path: Path, capfdbinary: Capture) -> None:
    """With --flush all of it is on stable storage when the command ends."""
    (tmp_path / "file").write_bytes(b"a\nb\n")
    code, _, _ = call(capfdbinary, "send", tmp_path / "q", "--file", tmp_path / "file", "--flush")
    assert code == 0
    with Queue(tmp_path / "q", create=False, read_only=True) as queue:
        assert queue.durable_sequence == 2


def test_interrupted_sender_sends_what_it_has_read(tmp_path: Path) -> None:
    """Ctrl-C ends a sender with 130, quietly, and every whole line before it was sent."""
    with start("send", tmp_path / "q") as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        wait_for(tmp_path / "q", 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, err) == (130, b"")
    assert payloads(tmp_path / "q") == [b"a", b"b"]


def test_length_prefixed_pipe_copies_a_queue_exactly(tmp_path: Path) -> None:
    """`receive --format raw --length-prefixed | send --length-prefixed` copies every message."""
    sent = [b"", b"\n", b"\0\n\0", bytes(range(256)), b"x" * 40_000]
    with Queue(tmp_path / "a", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many(sent)
    code, stream, _ = run("receive", tmp_path / "a", "--format", "raw", "--length-prefixed")
    assert code == 0
    assert run("send", tmp_path / "b", "--length-prefixed", stdin=stream)[0] == 0
    assert payloads(tmp_path / "b") == sent


def test_closed_stdin_is_an_error_and_not_some_other_file(tmp_path: Path) -> None:
    """Descriptor 0 could be one of the queue's own files by then."""
    code = f"pagequeue send '{tmp_path / 'q'}' <&-"
    done = subprocess.run(
        ["/bin/sh", "-c", code], env=warm.environment(), capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"standard input is closed" in done.stderr


def test_missing_file_is_one_line_and_exit_code_1(tmp_path: Path, capfdbinary: Capture) -> None:
    """The operating system's errors name their file, and no queue is made."""
    code, _, err = call(capfdbinary, "send", tmp_path / "q", "--file", tmp_path / "absent")
    assert code == 1
    assert "absent: No such file or directory" in err
    assert not (tmp_path / "q").exists()


def test_page_size_that_differs_from_the_queue_is_an_error(
    tmp_path: Path, capfdbinary: Capture
) -> None:
    """A given --page-bytes is never ignored."""
    Queue(tmp_path / "q", page_bytes=PAGE_BYTES).close()
    code, _, err = call(
        capfdbinary, "send", tmp_path / "q", "--page-bytes", "1M", "--file", os.devnull
    )
    assert code == 1
    assert len(err.splitlines()) == 1
