"""The columns that the Java side can make, as it calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pagequeue.spark.columns import own_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

OWN: Final = {
    "queue": "q",
    "sequence": "s",
    "timestamp": "m",
    "timestamp_ns": "t",
    "payload": "p",
}
"""Our own columns."""
NUMBERS: Final = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "f4", "f8"}
"""The fields of records that it knows."""


def same_columns(columns: Mapping[str, str], dtypes: Sequence[np.dtype[np.void] | None]) -> bool:
    """Whether the Java side can make these columns of queues of all these dtypes.

    Args:
        columns: as it calls them.
        dtypes: of queues; the columns are those of the first one.
    """
    are_there = all(columns.items() <= column_specs(dtype).items() for dtype in dtypes[1:])
    has_fields = not set(columns.values()) <= set(OWN.values())
    return are_there and (not has_fields or len(set(map(repr, dtypes))) == 1)


def column_specs(dtype: np.dtype[np.void] | None) -> dict[str, str]:
    """Return the columns that the Java side can make of queues of a dtype, as it calls them.

    A field is its kind and size, its byte order and its place in the record.

    Example:
        >>> column_specs(numpy.dtype([("id", ">u4"), ("text", "U5")]))["id"]
        'u4>0'
    """
    specs = {own_name(name, dtype): spec for name, spec in OWN.items()}
    if dtype is None or dtype.fields is None:
        return specs
    for name, (field, offset, *_) in dtype.fields.items():
        code = f"{field.kind}{field.itemsize}"
        if field.subdtype is None and field.names is None and code in NUMBERS:
            order = ">" if field.byteorder == ">" else "<"
            specs[name] = f"{code}{order}{offset}"
    return specs
