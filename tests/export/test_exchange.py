"""Export and import: what goes out comes back as it was, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from support import HERE, SMALL
from tiers import examples

from pagequeue import DiskFull, InvalidOption, OutputExists, Queue
from pagequeue.cli import main
from pagequeue.export.files import FORMATS, SUFFIXES, format_of
from pagequeue.schema import codec
from pagequeue.system.atomic_file import whole_file
from pagequeue.util import optional
from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from collections.abc import Callable

Capture = pytest.CaptureFixture[str]
START = 1_700_000_000_000_000_000
ODD = [b"", b"\xff\x00", b'a,b"c\r\n\r', b"\0", "héß\u2028\ufeff".encode(), b"\r", b"z" * 3000]


def make(path: Path, payloads: list[bytes], **options: Any) -> None:  # noqa: ANN401 - of Queue
    """Make a queue of messages, one ns and then two after each other."""
    with Queue(path, page_bytes=SMALL, **options) as queue, queue.producer() as producer:
        for number, payload in enumerate(payloads):
            producer.send(payload, timestamp=START + number * 3 // 2)


def contents(path: Path) -> list[tuple[int, bytes]]:
    """Return all messages of a queue."""
    with Queue(path, create=False) as queue:
        return [(message.timestamp, message.payload) for message in queue.replay()]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_keeps_times_and_bytes(tmp_path: Path, suffix: str, capsys: Capture) -> None:
    """Whatever the payloads are, over many pages."""
    make(tmp_path / "a", ODD * 7)
    file = tmp_path / f"a{suffix}"
    assert main(["export", str(tmp_path / "a"), "--to", str(file)]) == 0
    assert "49 messages" in capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    arguments = [str(tmp_path / "b"), "--from", str(file), "--check", "--flush"]
    assert main(["import", *arguments, "--page-bytes", "4096", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "messages": 49,
        "payload_bytes": sum(map(len, ODD)) * 7,
        "first_sequence": 0,
    }
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", file.name, "b"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_queue_is_a_file_too(tmp_path: Path, suffix: str, capsys: Capture) -> None:
    """It comes back as an empty queue."""
    make(tmp_path / "a", [])
    file = tmp_path / f"a{suffix}"
    assert main(["export", str(tmp_path / "a"), "--to", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["first_sequence"], report["next_sequence"]) == (0, None, 0)
    assert main(["import", str(tmp_path / "b"), "--from", str(file)]) == 0
    assert contents(tmp_path / "b") == []


@pytest.mark.parametrize("name", ["rows.feather", "rows", ".arrow", "rows.parquet.gz", "arrow"])
def test_suffix_without_a_format_is_wrong_usage(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It lists the suffixes and the option; no file or queue is made, and none is read."""
    make(tmp_path / "a", [b"1"])
    file = tmp_path / name
    assert main(["export", str(tmp_path / "a"), "--to", str(file)]) == 2
    exporting = capfd.readouterr().err
    assert not file.exists()
    file.write_bytes(b"?")
    assert main(["import", str(tmp_path / "b"), "--from", str(file)]) == 2
    importing = capfd.readouterr().err
    for said in (exporting, importing):
        assert all(suffix in said for suffix in SUFFIXES)
        assert "--format" in said
        assert str(file) in said
    assert not (tmp_path / "b").exists()
    with pytest.raises(InvalidOption, match=r"\.parquet, \.arrow, \.jsonl or \.csv") as caught:
        format_of(str(file))
    assert caught.value.path == str(file)


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("name", ["rows", "rows.feather", "rows.csv"])
def test_format_option_overrides_the_suffix(tmp_path: Path, file_format: str, name: str) -> None:
    """The option goes before the suffix, out and back."""
    make(tmp_path / "a", ODD)
    file = tmp_path / name
    options = ["--format", file_format]
    assert main(["export", str(tmp_path / "a"), "--to", str(file), *options]) == 0
    begins = {"parquet": b"PAR1", "arrow": b"ARROW1", "jsonl": b"{", "csv": b"sequence,"}
    assert file.read_bytes().startswith(begins[file_format])
    assert main(["import", str(tmp_path / "b"), "--from", str(file), *options]) == 0
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_unknown_format_is_wrong_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With those that there are."""
    make(tmp_path / "a", [b"1"])
    file = str(tmp_path / "rows.csv")
    for command in (["export", "--to", file], ["import", "--from", file]):
        assert main([command[0], str(tmp_path / "a"), *command[1:], "--format", "feather"]) == 2
        said = capfd.readouterr().err
        assert all(name in said for name in FORMATS)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    payloads=st.lists(st.binary(max_size=50) | st.text(max_size=30).map(str.encode), max_size=20),
    suffix=st.sampled_from(SUFFIXES),
)
def test_any_payload_survives_export_and_import(payloads: list[bytes], suffix: str) -> None:
    """Text and bytes, in every format."""
    folder = Path(tempfile.mkdtemp())
    try:
        make(folder / "a", payloads)
        file = str(folder / f"a{suffix}")
        assert main(["export", str(folder / "a"), "--to", file]) == 0
        assert main(["import", str(folder / "b"), "--from", file]) == 0
        assert contents(folder / "b") == contents(folder / "a")
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_big_payload_survives_export_and_import(tmp_path: Path) -> None:
    """One message, in pages of any size."""
    payload = random.Random(1).randbytes(3 << 20)
    with Queue(tmp_path / "a", page_bytes=4 << 20) as queue, queue.producer() as producer:
        producer.send(payload)
    for suffix in SUFFIXES:
        file, target = str(tmp_path / f"a{suffix}"), str(tmp_path / suffix)
        assert main(["export", str(tmp_path / "a"), "--to", file]) == 0
        assert main(["import", target, "--from", file, "--page-bytes", "4M"]) == 0
        assert contents(Path(target))[0][1] == payload
        assert main(["import", f"{target}-small", "--from", file, "--page-bytes", "1M"]) == 0
        assert contents(Path(f"{target}-small"))[0][1] == payload


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--since", str(START + 3), "--until", str(START + 6)], [2, 3]),
        (["--sequence", "3"], [3, 4]),
        ([], [0, 1, 2, 3, 4]),
    ],
)
def test_part_of_a_queue_is_exported(
    tmp_path: Path, arguments: list[str], expected: list[int]
) -> None:
    """By time, or from a sequence on."""
    make(tmp_path / "a", [b"x"] * 5)
    file = tmp_path / "a.jsonl"
    assert main(["export", str(tmp_path / "a"), "--to", str(file), *arguments]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["sequence"] for row in rows] == expected
    assert rows[0]["payload"] == "x"


def test_parquet_is_readable_by_other_libraries(tmp_path: Path) -> None:
    """Typed columns; of records a column for each field, and the dtype comes back."""
    parquet = pytest.importorskip("pyarrow.parquet")
    make(tmp_path / "a", [b"x", b"\xff"])
    file = str(tmp_path / "a.parquet")
    main(["export", str(tmp_path / "a"), "--to", file])
    table = parquet.read_table(file)
    assert table.column_names == ["sequence", "timestamp", "payload"]
    assert str(table.schema.field("timestamp").type) == "timestamp[ns, tz=UTC]"
    dtype = np.dtype([("sequence", "<i4"), ("price", "<f8"), ("side", "S1")])
    with Queue(tmp_path / "r", page_bytes=SMALL, dtype=dtype) as queue:
        rows = np.array([(n, n / 4, b"B") for n in range(300)], dtype)
        for part in np.split(rows, 3):
            queue.producer().send_many(part)
    for suffix in (".parquet", ".arrow"):
        file = str(tmp_path / f"r{suffix}")
        assert main(["export", str(tmp_path / "r"), "--to", file]) == 0
        assert main(["import", str(tmp_path / suffix), "--from", file, "--check"]) == 0
        assert contents(tmp_path / suffix) == contents(tmp_path / "r")
        with Queue(tmp_path / suffix, create=False) as queue:
            assert queue.dtype == dtype
    names = parquet.read_table(str(tmp_path / "r.parquet")).column_names
    assert names == ["queue_sequence", "timestamp", "sequence", "price", "side"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_payloads_of_a_codec_are_not_encoded_again(tmp_path: Path, suffix: str) -> None:
    """Export and import copy the bytes; a new queue gets the codec that the file names."""
    with Queue(tmp_path / "a", page_bytes=SMALL, codec="json") as queue:
        queue.producer().send({"a": 1})
    file = str(tmp_path / f"a{suffix}")
    assert main(["export", str(tmp_path / "a"), "--to", file]) == 0
    if suffix in {".jsonl", ".csv"}:
        Queue(tmp_path / "b", codec="json", page_bytes=SMALL).close()
    assert main(["import", str(tmp_path / "b"), "--from", file]) == 0
    with Queue(tmp_path / "b", create=False) as queue:
        assert [message.value for message in queue.replay()] == [{"a": 1}]


def test_import_continues_after_existing_messages(tmp_path: Path, capsys: Capture) -> None:
    """Older rows end it with an error; the rows before are counted, and --skip continues."""
    rows = [{"timestamp": time, "payload": str(time)} for time in (5, 7, 7)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["import", str(tmp_path / "q"), "--from", str(file)]
    assert main(arguments) == 0
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert "0 messages imported; to continue after them: --skip 0" in told
    assert main([*arguments, "--skip", "1", "--json"]) == 0
    assert contents(tmp_path / "q") == [(t, str(t).encode()) for t in (5, 7, 7, 7, 7)]
    assert main([*arguments, "--skip", "9"]) == 0
    assert main([*arguments, "--check"]) == 1
    assert "no sequences to check" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_gap_is_found_with_check(tmp_path: Path, suffix: str, capsys: Capture) -> None:
    """With --check only; no row of that piece is sent."""
    make(tmp_path / "a", [b"x"] * 5)
    file = tmp_path / f"a{suffix}"
    assert main(["export", str(tmp_path / "a"), "--to", str(file)]) == 0
    if suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(file)
        parquet.write_table(table.take([0, 1, 3, 4]), file)
    elif suffix == ".arrow":
        pa = pytest.importorskip("pyarrow")
        table = pa.ipc.open_file(file.read_bytes()).read_all().take([0, 1, 3, 4])
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)
    else:
        lines = file.read_text().splitlines(keepends=True)
        del lines[3 if suffix == ".csv" else 2]
        file.write_text("".join(lines))
    arguments = ["import", str(tmp_path / "b"), "--from", str(file)]
    assert main([*arguments, "--check"]) == 1
    assert "row 3 has sequence 3, expected 2" in capsys.readouterr().err
    assert main(arguments) == 0
    assert len(contents(tmp_path / "b")) == 4


@pytest.mark.quick_each(5)
@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.jsonl", b'{"timestamp": 1', "row 1: invalid JSON"),
        ("a.jsonl", b"[1]\n", "not a JSON object"),
        ("a.jsonl", b'{"payload": "a"}\n', "timestamp is None"),
        ("a.jsonl", b'{"timestamp": true, "payload": "a"}\n', "timestamp is True"),
        ("a.jsonl", b'{"timestamp": 1e30, "payload": "a"}\n', "integer of 64 bits"),
        ("a.jsonl", b'{"timestamp": 1}\n', "either `payload` or"),
        ("a.jsonl", b'{"timestamp": 1, "payload": "a", "payload_base64": ""}\n', "either"),
        ("a.jsonl", b'{"timestamp": 1, "payload": 3}\n', "the payload is not a string"),
        ("a.jsonl", b'{"timestamp": 1, "payload_base64": "?"}\n', "not valid Base64 or text"),
        ("a.jsonl", b'{"timestamp": 1, "payload": "\\ud800"}\n', "not valid Base64 or text"),
        ("a.jsonl", b"\xff\n", "invalid JSON"),
        ("a.jsonl", b"[" * 100_000, "invalid JSON"),
        ("a.csv", b"", "are required"),
        ("a.csv", b"timestamp,text\n1,a\n", "are required"),
        ("a.csv", b"timestamp,payload\nx,a\n", "timestamp is 'x'"),
        ("a.csv", b"timestamp,payload\n1\n", "more or fewer fields"),
        ("a.csv", b'timestamp,payload\n1,"a\n', "not CSV in UTF-8"),
        ("a.csv", b"timestamp,payload\n1,\xff\n", "not CSV in UTF-8"),
        ("a.csv", b"timestamp,payload,payload_base64\n1,a,YQ==\n", "either"),
        ("a.parquet", b"PAR1", "incomplete, or of another format"),
        ("a.arrow", b"ARROW1", "incomplete, or of another format"),
    ],
)
def test_file_that_does_not_hold_messages_is_refused(
    tmp_path: Path, name: str, text: bytes, why: str, capsys: Capture
) -> None:
    """One line with the place and the reason; no message is sent."""
    (tmp_path / name).write_bytes(text)
    assert main(["import", str(tmp_path / "q"), "--from", str(tmp_path / name)]) == 1
    told = capsys.readouterr().err
    assert why in told
    assert "Traceback" not in told
    assert not (tmp_path / "q").exists() or contents(tmp_path / "q") == []


def test_table_with_other_columns_is_refused(tmp_path: Path, capsys: Capture) -> None:
    """Columns of unsuitable types, and times without a zone."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    naive = pa.array([1], pa.timestamp("ns"))
    for table, why in (
        (pa.table({"timestamp": [1]}), "['payload'] are missing"),
        (pa.table({"payload": ["a"]}), "['timestamp'] are missing"),
        (pa.table({"timestamp": naive, "payload": ["a"]}), "no time zone"),
        (pa.table({"timestamp": [1, None], "payload": ["a", "b"]}), "is null"),
        (pa.table({"timestamp": [1, 2], "payload": ["a", None]}), "is null"),
        (pa.table({"timestamp": ["x"], "payload": ["a"]}), "is of type string"),
    ):
        parquet.write_table(table, tmp_path / "a.parquet")
        arguments = [str(tmp_path / "q"), "--from", str(tmp_path / "a.parquet")]
        assert main(["import", *arguments]) == 1
        assert why in capsys.readouterr().err
    plain = pa.table({"timestamp": [1, 2], "payload": ["a", "b"]})
    parquet.write_table(plain, tmp_path / "a.parquet")
    assert main(["import", str(tmp_path / "q"), "--from", str(tmp_path / "a.parquet")]) == 0
    assert contents(tmp_path / "q") == [(1, b"a"), (2, b"b")]


def test_no_file_is_overwritten_unless_forced(tmp_path: Path, capsys: Capture) -> None:
    """Not even one that was created meanwhile."""
    make(tmp_path / "a", [b"x"])
    file = tmp_path / "a.csv"
    file.write_text("mine")
    arguments = ["export", str(tmp_path / "a"), "--to", str(file)]
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main([*arguments, "--force"]) == 0
    assert file.read_text().startswith("sequence,timestamp")
    other = tmp_path / "other"
    with pytest.raises(OutputExists), whole_file(str(other), force=False):
        other.write_text("mine")
    assert other.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "no room")])
def test_export_that_does_not_end_leaves_no_file(
    tmp_path: Path,
    suffix: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted, or without room: a typed error, and the name is free."""
    make(tmp_path / "a", [b"x" * 1000] * 20)
    syncs: Callable[[int], None] = os.fsync

    def failing(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".tmp"):
            raise error
        syncs(fd)

    monkeypatch.setattr(os, "fsync", failing)
    file = str(tmp_path / f"a{suffix}")
    code = main(["export", str(tmp_path / "a"), "--to", file])
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def export_with_little_room(directory: str, target: str) -> None:
    """Export where no file may be larger than 64 KiB."""
    import resource  # noqa: PLC0415 - in its own process

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    sys.exit(main(["export", directory, "--to", target, "--json"]))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_full_disk_is_a_typed_error(tmp_path: Path, suffix: str) -> None:
    """In the middle of writing; no file is left, and no other line is printed."""
    chance = random.Random(1)
    payloads = [chance.randbytes(1000) for _ in range(300)]
    make(tmp_path / "a", payloads)
    code = (
        f"import sys; sys.path[:0] = [{HERE!r}, {str(Path(__file__).parent)!r}]; "
        "import test_exchange; "
        "test_exchange.export_with_little_room(*sys.argv[1:])"
    )
    arguments = [str(tmp_path / "a"), str(tmp_path / f"a{suffix}")]
    done = warm.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["error"]["type"] == DiskFull.__name__
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_missing_extra_is_reported_before_a_file_is_created(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names it; text needs none."""
    make(tmp_path / "a", [b"x"])
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    for arguments in (
        ["export", str(tmp_path / "a"), "--to", str(tmp_path / "a.parquet")],
        ["export", str(tmp_path / "a"), "--to", str(tmp_path / "a.arrow")],
        ["import", str(tmp_path / "q"), "--from", str(tmp_path / "b.parquet")],
    ):
        assert main(arguments) == 1
        assert install_command("arrow") in capsys.readouterr().err
    assert main(["export", str(tmp_path / "a"), "--to", str(tmp_path / "a.csv")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.csv", "b.parquet"]
    assert optional.library("json", "none", "texts") is json


def test_import_for_a_codec_without_its_extra_creates_nothing(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of a queue with a codec makes one with the same codec, which needs its library."""
    with Queue(tmp_path / "a", codec="json") as queue:
        queue.producer().send({"n": 1})
    table = str(tmp_path / "a.parquet")
    assert main(["export", str(tmp_path / "a"), "--to", table]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(codec, "_known", {})
        patch.setitem(sys.modules, "msgspec", None)
        assert main(["import", str(tmp_path / "b"), "--from", table]) == 1
        assert install_command("codecs") in capsys.readouterr().err
        assert not (tmp_path / "b").exists()
    assert main(["import", str(tmp_path / "b"), "--from", table]) == 0
    with Queue(tmp_path / "b") as queue:
        assert queue.last(1)[0].value == {"n": 1}


def test_wrong_usage_is_reported(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 2, or 1 if it depends on the queue's contents."""
    make(tmp_path / "a", [b"x"])
    directory = str(tmp_path / "a")
    assert main(["export", directory, "--to", "a.xls"]) == 2
    assert "use .parquet, .arrow, .jsonl, .csv" in capsys.readouterr().err
    assert main(["import", directory, "--from", "a"]) == 2
    both = ["--since", "1", "--sequence", "1"]
    assert main(["export", directory, "--to", "a.csv", *both]) == 2
    assert main(["export", str(tmp_path / "none"), "--to", str(tmp_path / "a.csv")]) == 1
    assert main(["import", directory, "--from", str(tmp_path / "none.csv")]) == 1
    (tmp_path / "folder.csv").mkdir()
    assert main(["import", directory, "--from", str(tmp_path / "folder.csv")]) == 1
    assert main(["export", directory, "--to", str(tmp_path / "no" / "a.csv")]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_does_not_grow_with_the_queue(tmp_path: Path, suffix: str) -> None:
    """Both ways hold a batch or a row group at a time: half the memory that all would take."""
    code = (
        "import resource, sys\n"
        "from pagequeue.cli import main\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "small, large, file, target = sys.argv[1:]\n"
        "for source, name in ((small, 'small'), (large, 'large')):\n"
        "    assert main(['export', source, '--to', file, '--force']) == 0\n"
        "    arguments = [target + name, '--from', file, '--page-bytes', '4M']\n"
        "    assert main(['import', *arguments]) == 0\n"
        "    print(peak())\n"
    )
    payloads = [b"%-1000d" % number for number in range(1000)]
    for name, turns in (("small", 40), ("large", 160)):
        with Queue(tmp_path / name, page_bytes=4 << 20) as queue, queue.producer() as producer:
            for _ in range(turns):
                producer.send_many(payloads)
    file, target = str(tmp_path / f"a{suffix}"), str(tmp_path / "target-")
    arguments = [str(tmp_path / "small"), str(tmp_path / "large"), file, target]
    done = warm.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    small, large = (int(line) for line in done.stdout.split("\n") if line.isdecimal())
    assert large - small < 80


@pytest.mark.parametrize(("times", "row"), [((5, 7, 6), 3), ((1, 2, 3), 1)])
def test_row_older_than_the_one_before_is_named(
    tmp_path: Path, capsys: Capture, times: tuple[int, ...], row: int
) -> None:
    """By its number in the file, which counts skipped rows; earlier rows stay."""
    lines = [json.dumps({"timestamp": time, "payload": "x"}) for time in times]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(lines) + "\n")
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        producer.send(b"there", timestamp=4)
    assert main(["import", str(tmp_path / "q"), "--from", str(file)]) == 1
    assert f"row {row} has the timestamp {times[row - 1]}" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "q"), "--from", str(file), "--skip", "2"]) == (row == 1)


def test_python_dash_m_is_the_command() -> None:
    """`python -m pagequeue` prints the same as `pagequeue`."""
    done = warm.run(
        [sys.executable, "-m", "pagequeue", "--help"], capture_output=True, text=True, check=True
    )
    assert "export" in done.stdout


# --- times of other programs --------------------------------------------------------------------

NS = START + 123_456_789
TIME = "2023-11-14T22:13:20.123456789Z"


def imported(tmp_path: Path, rows: list[dict[str, object]], *options: str) -> list[int]:
    """Return the times of the messages that rows of JSON become."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = tmp_path / "target"
    shutil.rmtree(target, ignore_errors=True)
    code = main(["import", str(target), "--from", str(file), "--page-bytes", "4096", *options])
    return [timestamp for timestamp, _ in contents(target)] if code == 0 else []


@pytest.mark.parametrize(("unit", "ns"), [("s", 10**9), ("ms", 10**6), ("us", 1000)])
@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_import_refuses_times_of_another_unit(
    tmp_path: Path, unit: str, ns: int, form: str, capsys: Capture
) -> None:
    """It names the option; with that they are what they are."""
    file = tmp_path / f"rows.{form}"
    number = NS // ns
    if form == "jsonl":
        file.write_text(json.dumps({"timestamp": number, "payload": "a"}))
    elif form == "csv":
        file.write_text(f"timestamp,payload\n{number},a\n")
    else:
        pa = pytest.importorskip("pyarrow")
        table = pa.table({"timestamp": pa.array([number]), "payload": pa.array([b"a"])})
        pytest.importorskip("pyarrow.parquet").write_table(table, file)
    command = ["import", str(tmp_path / "q"), "--from", str(file)]
    assert main(command) == 1
    assert f"give --time-unit {unit}" in capsys.readouterr().err
    assert contents(tmp_path / "q") == []
    assert main([*command, "--time-unit", unit]) == 0
    assert contents(tmp_path / "q") == [(number * ns, b"a")]


def test_import_compares_a_row_with_its_readable_time(tmp_path: Path, capsys: Capture) -> None:
    """A contradiction is refused, with what helps; fewer digits are none."""
    row: dict[str, object] = {"timestamp": NS, "time": TIME, "payload": "a"}
    assert imported(tmp_path, [row]) == [NS]
    for time in (TIME[:-4] + "Z", TIME[:-7] + "Z", "2023-11-15T00:13:20.123+02:00", "noon"):
        assert imported(tmp_path, [row | {"time": time}]) == [NS]
    old = {"timestamp": 1_100_000_000_001, "time": "1970-01-01T00:18:20.000000001Z", "payload": ""}
    assert imported(tmp_path, [old]) == [1_100_000_000_001]
    assert imported(tmp_path, [row | {"time": "2023-11-14T22:13:22Z"}]) == []
    assert "correct one of them" in capsys.readouterr().err
    in_ms = row | {"timestamp": NS // 10**6}
    assert imported(tmp_path, [in_ms]) == []
    said = capsys.readouterr().err
    assert "give --time-unit ms" in said
    assert "--time-unit iso --column timestamp=time" in said
    assert imported(tmp_path, [in_ms], "--time-unit", "us") == []
    assert "give --time-unit ms" in capsys.readouterr().err
    assert imported(tmp_path, [in_ms], "--time-unit", "ms") == [NS // 10**6 * 10**6]
    by_text = ["--time-unit", "iso", "--column", "timestamp=time"]
    assert imported(tmp_path, [in_ms], *by_text) == [NS]
    assert imported(tmp_path, [row | {"time": "2023-11-14T22:13:22Z"}], "--column", "time=") == [NS]


def test_import_notices_integers_that_went_through_a_double(
    tmp_path: Path, capsys: Capture
) -> None:
    """As in JSON of other languages: by the readable time, or because no time has its last bits."""
    times = [START + 1_234_567_891 * n for n in range(20)]
    as_double = [int(float(ns)) for ns in times]
    shortest = [int(repr(float(ns)).replace(".", "").split("e")[0].ljust(19, "0")) for ns in times]
    for rounded in (as_double, shortest):
        assert imported(tmp_path, [{"timestamp": ns, "payload": ""} for ns in rounded]) == rounded
        assert "through a double" in capsys.readouterr().err
    for exact in (times, [ns // 1000 * 1000 for ns in times], [ns // 100 * 100 for ns in times]):
        assert imported(tmp_path, [{"timestamp": ns, "payload": ""} for ns in exact]) == exact
        assert "double" not in capsys.readouterr().err
    row = {"timestamp": int(float(NS)), "time": TIME, "payload": "a"}
    assert imported(tmp_path, [row]) == []
    assert "went through a double" in capsys.readouterr().err


def test_import_takes_columns_by_other_names(tmp_path: Path, capfd: Capture) -> None:
    """For files that no export made."""
    row: dict[str, object] = {"at": TIME, "body": "a", "payload": 7}
    names = ["--column", "timestamp=at", "--column", "payload=body"]
    assert imported(tmp_path, [row], "--time-unit", "iso", *names) == [NS]
    file = tmp_path / "rows.csv"
    file.write_text(f"at,body\n{NS // 1000},a\n")
    target = str(tmp_path / "csv")
    assert main(["import", target, "--from", str(file), "--time-unit", "us", *names]) == 0
    assert contents(tmp_path / "csv") == [(NS // 1000 * 1000, b"a")]
    assert main(["import", target, "--from", str(file)]) == 1
    assert "--column timestamp=NAME" in capfd.readouterr().err
    assert main(["import", target, "--from", str(file), "--column", "when=at"]) == 2
    assert "OWN is sequence, timestamp, time" in capfd.readouterr().err
