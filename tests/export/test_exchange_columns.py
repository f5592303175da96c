"""Import: columns that are called alike, and what is no time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import Queue
from pagequeue.cli import main
from pagequeue.columns import arrow

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow")
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "names",
    [["queue_timestamp", "x"], ["timestamp", "queue_timestamp"], ["sequence", "queue_sequence"]],
)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_field_is_never_taken_for_the_time_of_a_message(
    tmp_path: Path, names: list[str], suffix: str
) -> None:
    """The queue's own columns give way to fields, and are found again under their new names."""
    dtype = np.dtype([(name, "<i8") for name in names])
    with Queue(tmp_path / "q", dtype=dtype) as queue, queue.producer() as producer:
        producer.send_many(np.array([(5, 1), (6, 2)], dtype))
        sent = queue.last(2)
        times, records = sent.timestamps.tolist(), sent.to_numpy().tolist()
    file = str(tmp_path / f"file.{suffix}")
    assert main(["export", str(tmp_path / "q"), "--to", file]) == 0
    assert main(["import", str(tmp_path / "again"), "--from", file, "--check"]) == 0
    with Queue(tmp_path / "again") as queue:
        assert queue.last(2).timestamps.tolist() == times
        assert queue.last(2).to_numpy().tolist() == records


@pytest.mark.parametrize(
    ("columns", "names", "said"),
    [
        ([[1], [b"a"], [2]], ["timestamp", "payload", "timestamp"], "several columns are called"),
        ([[1.5], [b"a"]], ["timestamp", "payload"], "is of type double"),
        ([[-5], [b"a"]], ["timestamp", "payload"], "row 1 has the timestamp -5"),
    ],
)
def test_column_without_times_is_refused(
    tmp_path: Path, columns: list[Any], names: list[str], said: str, capsys: Capture
) -> None:
    """A clear line, and no message that was not in the file."""
    table = pa.table([pa.array(column) for column in columns], names=names)
    file = tmp_path / "file.arrow"
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
    assert main(["import", str(tmp_path / "q"), "--from", str(file)]) != 0
    assert said in capsys.readouterr().err
    with Queue(tmp_path / "q") as queue:
        assert len(queue) == 0


def test_schema_of_the_queue_is_under_the_key_of_earlier_exports(tmp_path: Path) -> None:
    """Files exported by every version keep their dtype."""
    pytest.importorskip("pyarrow")
    import pyarrow.ipc  # noqa: PLC0415 - the extra

    with Queue(tmp_path / "q", dtype=[("n", "<i8")]) as queue, queue.producer() as producer:
        producer.send_many(np.zeros(1, [("n", "<i8")]))
    path = tmp_path / "a.arrow"
    assert main(["export", str(tmp_path / "q"), "--to", str(path)]) == 0
    with pyarrow.ipc.open_file(path) as reader:
        assert list(reader.schema.metadata) == [b"pagequeue.kind"]


def test_file_of_arrow_has_large_offsets_where_a_message_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A message of more than 2 GiB comes back; Parquet has no such value, and a line says so."""
    monkeypatch.setattr(arrow, "COPY_BYTES_MAX", 20_000)
    sent = [b"a", b"b" * 20_001, b"c"]
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send_many(sent)
    file = str(tmp_path / "file.arrow")
    assert main(["export", str(tmp_path / "q"), "--to", file]) == 0
    with pa.ipc.open_file(file) as reader:
        assert reader.schema.field("payload").type == pa.large_binary()
    assert main(["import", str(tmp_path / "again"), "--from", file, "--check"]) == 0
    with Queue(tmp_path / "again") as queue:
        assert [message.payload for message in queue.replay()] == sent
    assert main(["export", str(tmp_path / "q"), "--to", str(tmp_path / "file.parquet")]) != 0
    assert "export to a file of Arrow" in capsys.readouterr().err
    assert not (tmp_path / "file.parquet").exists()
