"""What the table in docs/columns.md says that each library takes, tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

from pagequeue import NotDecodable, Queue
from pagequeue.producer.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Batches

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "columns.md").read_text()
ROW: Final = re.compile(r"^\| (.+?) \| (yes|no) \| (yes|no) \|$", re.MULTILINE)
COUNT: Final = 9
HALF: Final = 4


def table(batches: Batches) -> Any:  # noqa: ANN401 - pyarrow's
    """Read all with pyarrow."""
    return pa.table(batches)


def written_partitions(batches: Batches) -> int:
    """Write a file for each value of a column."""
    rows = table(batches)
    rows = rows.append_column("part", pc.bit_wise_and(rows["sequence"], 1))
    pa.dataset.write_dataset(
        rows,
        "parts",
        format="parquet",
        partitioning=["part"],
        existing_data_behavior="delete_matching",
    )
    return pa.dataset.dataset("parts", format="parquet").count_rows()


def written_and_read(batches: Batches, module: Any, name: str) -> int:  # noqa: ANN401 - a module
    """Write one file and count its rows."""
    getattr(module, f"write_{name}")(table(batches), "file")
    return len(getattr(module, f"read_{name}")("file"))


def by_duckdb(batches: Batches, query: str) -> Any:  # noqa: ANN401 - what it selects
    """Run a query that selects one value."""
    with duckdb.connect() as connection:
        connection.register("batches", batches)
        return connection.sql(query).fetchall()[0][0]


USES: Final[dict[str, tuple[Callable[[Batches], object], object]]] = {
    "pyarrow: `table`": (lambda b: len(table(b)), COUNT),
    "pyarrow: `filter`": (lambda b: len(table(b).filter(pc.field("sequence") < HALF)), HALF),
    "pyarrow: `filter` by payload": (
        lambda b: len(table(b).filter(pc.equal(table(b)["payload"], b'"0"'))),
        1,
    ),
    "pyarrow: `take`": (lambda b: table(b).take([3, 1])["sequence"].to_pylist(), [3, 1]),
    "pyarrow: `sort_by` time": (lambda b: len(table(b).sort_by("timestamp")), COUNT),
    "pyarrow: `sort_by` payload": (lambda b: len(table(b).sort_by("payload")), COUNT),
    "pyarrow: `join`": (
        lambda b: len(table(b).join(table(b).select(["sequence"]), "sequence")),
        COUNT,
    ),
    "pyarrow: `group_by` payload": (
        lambda b: len(table(b).group_by("payload").aggregate([("sequence", "max")])),
        COUNT,
    ),
    "pyarrow: `binary_length`": (
        lambda b: pc.sum(pc.binary_length(table(b)["payload"])).as_py(),
        27,
    ),
    "pyarrow: write CSV": (lambda b: written_and_read(b, pa.csv, "csv"), COUNT),
    "pyarrow: write Parquet": (lambda b: written_and_read(b, pa.parquet, "table"), COUNT),
    "pyarrow: write Feather": (lambda b: written_and_read(b, pa.feather, "feather"), COUNT),
    "pyarrow: write partitions": (written_partitions, COUNT),
    "polars: `DataFrame`": (lambda b: len(pl.DataFrame(b)), COUNT),
    "polars: `filter`, `sort`, `join`": (
        lambda b: len(
            pl.DataFrame(b)
            .filter(pl.col("sequence") < HALF)
            .sort("payload")
            .join(pl.DataFrame(b), on="sequence")
        ),
        HALF,
    ),
    "pandas: `DataFrame.from_arrow`": (lambda b: len(pd.DataFrame.from_arrow(b)), COUNT),
    "pandas: `to_pandas`": (lambda b: len(table(b).to_pandas().sort_values("payload")), COUNT),
    "DuckDB: filter and count": (
        lambda b: by_duckdb(b, f"select count(*) from batches where sequence < {HALF}"),
        HALF,
    ),
    "DuckDB: time": (lambda b: by_duckdb(b, "select max(epoch_ns(timestamp)) from batches"), 8_000),
    "DuckDB: group by payload": (
        lambda b: by_duckdb(b, "select count(distinct payload) from batches"),
        COUNT,
    ),
}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue of JSON texts, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    with Queue(tmp_path / "q", page_bytes=65_536) as queue, queue.producer() as producer:
        for number in range(COUNT):
            producer.send(b'"%d"' % number, timestamp=number * 1000)
        yield queue


def documented() -> dict[str, tuple[str, str]]:
    """Return the rows of the table: copies, views."""
    return {use: (copies, views) for use, copies, views in ROW.findall(DOCUMENT)}


def test_document_has_a_row_for_each_use() -> None:
    """And no other; copies, the default, are taken everywhere."""
    assert list(documented()) == list(USES)
    assert {copies for copies, _ in documented().values()} == {"yes"}


@pytest.mark.parametrize("use", USES)
def test_library_takes_what_the_document_says(queue: Queue, use: str) -> None:
    """A later version may take more views than it says, and never less."""
    call, expected = USES[use]
    assert call(queue.batches()) == expected
    if documented()[use][1] == "yes":
        assert call(queue.batches(copy=False)) == expected
    elif f"pyarrow {pa.__version__}" in DOCUMENT:
        with pytest.raises(Exception, match=r"view|not supported|[Uu]nsupported|implement"):
            call(queue.batches(copy=False))


@pytest.mark.parametrize("codec", ["utf-8", "json"])
def test_payloads_of_text_codecs_are_strings(tmp_path: Path, codec: str) -> None:
    """In a stream and in a batch; views are bytes."""
    if codec == "json":
        pytest.importorskip("msgspec")
    with Queue(tmp_path / "q", page_bytes=65_536, codec=codec) as queue:
        queue.producer().send("naïve")
        text = '"naïve"' if codec == "json" else "naïve"
        assert pa.table(queue.batches())["payload"].to_pylist() == [text]
        assert queue.last(1).to_arrow()["payload"].type == pa.string()
        assert pa.table(queue.batches(copy=False))["payload"].to_pylist() == [text.encode()]
        assert queue.batches().schema == pa.table(queue.batches()).schema


def test_payload_that_is_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    """A string column with other bytes would crash its reader later."""
    with Queue(tmp_path / "q", page_bytes=65_536, codec="utf-8") as queue:
        with Producer(queue._store, queue._store.clock) as producer:
            producer.send(b"\xff")
        with pytest.raises(NotDecodable, match="copy=False"):
            queue.last(1).to_arrow()
        with pytest.raises(NotDecodable, match="not UTF-8"):
            queue.batches().to_arrow().read_all()
        assert queue.last(1).to_arrow(copy=False)["payload"].to_pylist() == [b"\xff"]
