"""Dtypes that several test files make queues of."""

from __future__ import annotations

import numpy as np

RECORD = np.dtype([("time", "<M8[ns]"), ("symbol", "S8"), ("price", ">f8"), ("sizes", "<i4", (2,))])
NESTED = np.dtype([("place", [("x", "<f4"), ("y", "<f4")]), ("alive", "?")])
ALIGNED = np.dtype([("flag", "u1"), ("value", "<f8")], align=True)
TURNED = np.dtype(
    {"names": ["b", "a"], "formats": ["<u2", "<i8"], "offsets": [8, 0], "itemsize": 24}
)
