"""Dtypes of records as JSON: the round trip is exact, and hostile JSON is refused."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dtype_samples import ALIGNED, NESTED, RECORD, TURNED
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiers import examples

from pagequeue import CodecMismatch, CorruptMeta, DtypeMismatch, InvalidOption, Queue
from pagequeue.meta.all_meta import AllMeta
from pagequeue.schema import dtype_json

if TYPE_CHECKING:
    from pathlib import Path


def simple_dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    """Give dtypes of single values."""
    return st.one_of(
        arrays.boolean_dtypes(),
        arrays.integer_dtypes(),
        arrays.unsigned_integer_dtypes(),
        arrays.floating_dtypes(sizes=(16, 32, 64)),
        arrays.complex_number_dtypes(sizes=(64, 128)),
        arrays.byte_string_dtypes(max_len=9),
        arrays.unicode_string_dtypes(max_len=9),
        arrays.datetime64_dtypes(),
        arrays.timedelta64_dtypes(),
        st.integers(1, 40).map(lambda size: np.dtype(f"V{size}")),
    )


def record_dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    """Give dtypes of records: nested, with arrays, and with padding."""
    made = arrays.nested_dtypes(subtype_strategy=simple_dtypes(), max_leaves=6)
    records_only = made.filter(lambda dtype: dtype.names is not None and dtype.itemsize > 0)
    return st.one_of(
        records_only, records_only.map(lambda dtype: np.dtype(dtype.descr, align=True))
    )


@pytest.mark.slow
@given(record_dtypes())
@settings(max_examples=examples(300))
def test_any_dtype_of_records_survives_json(dtype: np.dtype[Any]) -> None:
    """Fields, offsets, padding, endianness and units are kept."""
    try:
        form = dtype_json.describe(dtype_json.record_dtype(dtype))
    except ValueError:
        assert any(part.itemsize == 0 for part in parts_of(dtype)) or titles(dtype)
        return
    meta = AllMeta(bytes(16), 1, 4096, {"dtype": form})
    assert AllMeta.decode(meta.encode(), "path").schema.dtype == dtype


def parts_of(dtype: np.dtype[Any]) -> list[np.dtype[Any]]:
    """Return a dtype and all that it is made of."""
    inner = [dtype.base] if dtype.subdtype else [dtype[name] for name in dtype.names or ()]
    return [dtype, *(part for each in inner for part in parts_of(each))]


def titles(dtype: np.dtype[Any]) -> bool:
    """Whether a field has a title as well."""
    return any(len(part.fields or ()) != len(part.names or ()) for part in parts_of(dtype))


@pytest.mark.parametrize("dtype", [RECORD, NESTED, ALIGNED, TURNED], ids=str)
def test_queue_keeps_its_dtype(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """Opening without a dtype uses the stored one; giving the same one is accepted."""
    with Queue(tmp_path, dtype=dtype) as queue:
        assert queue.dtype == dtype
    with Queue(tmp_path) as queue, Queue(tmp_path, dtype=dtype) as again:
        assert queue.dtype == again.dtype == queue.info().dtype == dtype
        assert queue.codec == "bytes"
    with Queue(tmp_path, read_only=True) as queue:
        assert queue.dtype == dtype


def test_another_dtype_is_an_error_that_names_both(tmp_path: Path) -> None:
    """Records are never read with another dtype than their own."""
    Queue(tmp_path / "records", dtype=RECORD).close()
    with pytest.raises(DtypeMismatch, match=r"symbol.*alive") as caught:
        Queue(tmp_path / "records", dtype=NESTED)
    assert isinstance(caught.value, ValueError)
    assert caught.value.dtype == RECORD
    with pytest.raises(CodecMismatch, match="records of dtype"):
        Queue(tmp_path / "records", codec="json")
    Queue(tmp_path / "bytes").close()
    with pytest.raises(DtypeMismatch, match="codec 'bytes'"):
        Queue(tmp_path / "bytes", dtype=RECORD)
    pickle.loads(pickle.dumps(caught.value))


@pytest.mark.parametrize(
    "dtype",
    [
        "<f8",
        object,
        [("a", object)],
        [("a", "S0")],
        "V8",
        [("a", "<f8"), ("b", "O")],
        "none",
        [],
        np.dtype({"names": ["a", "b"], "formats": ["<i8", "<i8"], "offsets": [0, 4]}),
        [("a", np.longdouble)],
        [(("title", "name"), "<i4")],
    ],
    ids=str,
)
def test_unsupported_dtype_is_refused(tmp_path: Path, dtype: Any) -> None:  # noqa: ANN401
    """Objects, size 0, overlapping fields, and fields that are not portable."""
    with pytest.raises(InvalidOption, match="dtype"):
        Queue(tmp_path, dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def test_record_that_fits_no_page_is_refused(tmp_path: Path) -> None:
    """No message could ever be sent to such a queue."""
    with pytest.raises(InvalidOption, match="does not fit"):
        Queue(tmp_path, page_bytes=4096, dtype=[("a", "V4096")])
    with pytest.raises(InvalidOption, match="too many"):
        Queue(tmp_path, dtype=[("n" * 100 + str(i), "u1") for i in range(1000)])


HOSTILE: dict[str, object] = {
    "no object": 3,
    "a string": "<f8",
    "a name too few": {"names": [], "formats": ["<f8"], "offsets": [0], "itemsize": 8},
    "no fields": {"names": [], "formats": [], "offsets": [], "itemsize": 8},
    "objects": {"names": ["a"], "formats": ["|O"], "offsets": [0], "itemsize": 8},
    "a comma string": {"names": ["a"], "formats": ["i4,i4"], "offsets": [0], "itemsize": 8},
    "a negative place": {"names": ["a"], "formats": ["<f8"], "offsets": [-8], "itemsize": 8},
    "beyond the end": {"names": ["a"], "formats": ["<f8"], "offsets": [1], "itemsize": 8},
    "a true place": {"names": ["a"], "formats": ["|u1"], "offsets": [True], "itemsize": 8},
    "one name twice": {
        "names": ["a", "a"],
        "formats": ["|u1", "|u1"],
        "offsets": [0, 1],
        "itemsize": 2,
    },
    "an enormous array": {
        "names": ["a"],
        "formats": [["<f8", [1 << 20, 1 << 20]]],
        "offsets": [0],
        "itemsize": 8,
    },
    "an array of arrays": {
        "names": ["a"],
        "formats": [[["<f8", [1]], [1]]],
        "offsets": [0],
        "itemsize": 8,
    },
    "no bytes": {"names": ["a"], "formats": ["|S0"], "offsets": [0], "itemsize": 0},
    "endless units": {"names": ["a"], "formats": ["<M8[0s]"], "offsets": [0], "itemsize": 8},
    "a name that is not text": {"names": [3], "formats": ["|u1"], "offsets": [0], "itemsize": 1},
}


@pytest.mark.parametrize("form", HOSTILE.values(), ids=HOSTILE)
def test_hostile_dtype_is_corrupt_meta(form: object) -> None:
    """It is neither evaluated nor unpickled, and NumPy gets only validated values."""
    data = AllMeta(bytes(16), 1, 4096, {"dtype": form}).encode()
    with pytest.raises(CorruptMeta) as caught:
        AllMeta.decode(data, "path")
    assert caught.value.reason == "options"


def test_dtypes_nested_without_end_are_corrupt_meta() -> None:
    """A depth that no stack could take is refused before."""
    form: object = "<f8"
    for _ in range(200):
        form = {"names": ["a"], "formats": [form], "offsets": [0], "itemsize": 8}
    with pytest.raises(CorruptMeta):
        AllMeta.decode(AllMeta(bytes(16), 1, 4096, {"dtype": form}).encode(), "path")


@pytest.mark.parametrize(
    "options", [{"codec": "yaml"}, {"codec": 3}, {"codec": "json", "dtype": {}}]
)
def test_invalid_codec_is_corrupt_meta(options: dict[str, object]) -> None:
    """The same for codecs."""
    with pytest.raises(CorruptMeta):
        AllMeta.decode(AllMeta(bytes(16), 1, 4096, options).encode(), "path")
