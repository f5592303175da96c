"""Prints `format.py` for other readers: the C core's `layout.h`, and the tables of FORMAT.md.

`python -m pagequeue.core_layout header` and `... tables` write to standard output.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pagequeue import format as fmt

if TYPE_CHECKING:
    import numpy as np

RECORDS: Final[dict[str, np.dtype[np.void]]] = {
    "frame": fmt.FRAME,
    "index_record": fmt.INDEX_RECORD,
    "page_header": fmt.PAGE_HEADER,
    "all_meta": fmt.ALL_META,
    "write_meta": fmt.WRITE_META,
    "read_meta": fmt.READ_META,
    "cursor_meta": fmt.CURSOR_META,
    "stored": fmt.STORED,
    "group_meta": fmt.GROUP_META,
    "group_record": fmt.GROUP_RECORD,
    "snapshot": fmt.SNAPSHOT,
    "snapshot_record": fmt.SNAPSHOT_RECORD,
    "dead_letter": fmt.DEAD_LETTER,
    "large_head": fmt.LARGE_HEAD,
    "fragment": fmt.FRAGMENT,
    "compressed_head": fmt.COMPRESSED_HEAD,
    "compressed_block": fmt.COMPRESSED_BLOCK,
    "compressed_end": fmt.COMPRESSED_END,
}

NUMBERS: Final[tuple[str, ...]] = (
    "FORMAT_VERSION",
    "COMMIT_CONTINUES",
    "END_OF_PAGE",
    "MORE_OF_BATCH",
    "LARGE_MESSAGE",
    "LENGTH_MASK",
    "FRAME_ALIGN_BYTES",
    "WRITE_META_FILE_BYTES",
    "PAGE_BYTES_MIN",
    "PAGE_BYTES_MAX",
    "UNSET_SEQUENCE",
    "SEQUENCE_MAX",
    "READ_COUNT_MAX",
    "READ_BYTES_MAX",
    "CURSOR_OF_CONSUMER",
    "CURSOR_OF_GROUP",
    "GROUP_TABLE_AT",
    "GROUP_CAPACITY_MAX",
    "PLACE_SHIFT",
    "RECORD_FREE",
    "RECORD_WAITS",
    "RECORD_CLAIMED",
    "CAUSE_NONE",
    "CAUSE_NACK",
    "CAUSE_LEASE",
    "CAUSE_DEATH",
    "CAUSE_DAMAGE",
    "CAUSE_REJECT",
    "DEAD_LETTER_FORMAT",
    "DEAD_LETTER_FORMAT_REASON",
    "METHOD_ZSTD",
    "FRAGMENT_BLOCK_BYTES",
    "LARGE_BYTES_MAX",
)


def _fields(dtype: np.dtype[np.void]) -> list[tuple[str, int, int, str]]:
    """Return name, offset, bytes and type text of every field."""
    assert dtype.fields is not None
    rows = []
    for name in dtype.names or ():
        field, offset = dtype.fields[name][:2]
        kind = "bytes" if field.kind == "V" else field.str.replace("|", "")
        rows.append((name, int(offset), field.itemsize, kind))
    return rows


def _number(name: str) -> int:
    return int(getattr(fmt, name))


def header() -> str:
    """Return the text of `core/protocol/layout.h`."""
    lines = [
        "/* Printed from format.py by `python -m pagequeue.core_layout header`; do not edit. */",
        "#ifndef PAGEQUEUE_LAYOUT_H",
        "#define PAGEQUEUE_LAYOUT_H",
        "",
    ]
    lines += [f"#define PQ_{name} {_number(name)}ull" for name in NUMBERS]
    for record, dtype in RECORDS.items():
        lines.append("")
        lines.append(f"#define PQ_{record.upper()}_BYTES {dtype.itemsize}u")
        for name, offset, _, _ in _fields(dtype):
            lines.append(f"#define PQ_{record.upper()}_{name.upper()} {offset}u")
    lines += ["", "#endif", ""]
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """Return each record's table in Markdown, by record name, and the limits as `limits`."""
    result = {}
    for record, dtype in RECORDS.items():
        lines = ["| at | bytes | type | field |", "| ---: | ---: | --- | --- |"]
        lines += [
            f"| {offset} | {size} | `{kind}` | `{name}` |"
            for name, offset, size, kind in _fields(dtype)
        ]
        lines.append(f"| {dtype.itemsize} | | | end |")
        result[record] = "\n".join(lines)
    names = (*NUMBERS, "PAGE_BYTES_DEFAULT", "PAGE_BYTES_STEP", "INDEX_BYTES_PER_RECORD")
    lines = ["| name | value |", "| --- | ---: |"]
    lines += [f"| `{name}` | {_number(name):#x} |" for name in names]
    result["limits"] = "\n".join(lines)
    return result


def main(arguments: list[str]) -> int:
    """Print what is asked for."""
    if arguments == ["header"]:
        sys.stdout.write(header())
        return 0
    if arguments == ["tables"]:
        for name, table in tables().items():
            sys.stdout.write(f"<!-- table: {name} -->\n{table}\n<!-- end -->\n\n")
        return 0
    sys.stderr.write("usage: python -m pagequeue.core_layout header|tables\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
