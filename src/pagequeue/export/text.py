"""Messages as JSON lines and as CSV, and back, with the standard library.

A payload is text if it is UTF-8, else Base64 in another column, so that import restores its bytes.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.export.files import RowGroup
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.columns.batch import Batch
    from pagequeue.export.row_times import Layout

COLUMNS: Final = ("sequence", "timestamp", "time", "payload", "payload_base64")
PIECE_COUNT: Final = 4096
PIECE_BYTES: Final = 4 << 20
LINE_BYTES_MAX: Final = 6 * fmt.PAGE_BYTES_MAX + 4096
"""Longest possible line: a byte takes at most six characters."""
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False).encode


def json_lines(batch: Batch) -> bytes:
    """Return one JSON object for each message: `payload` if it is UTF-8, else `payload_base64`."""
    lines = []
    columns = zip(batch.sequences.tolist(), batch.timestamps.tolist(), batch.payloads, strict=True)
    for sequence, timestamp, payload in columns:
        row = {"sequence": sequence, "timestamp": timestamp, "time": iso_time(timestamp)}
        try:
            row["payload"] = payload.decode()
        except UnicodeDecodeError:
            row["payload_base64"] = base64.b64encode(payload).decode("ascii")
        lines.append(_ENCODE(row))
    return "\n".join((*lines, "")).encode()


class JsonlWriting:
    """Writes batches as lines of JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, batch: Batch) -> None:
        """Write one batch."""
        self._file.write(json_lines(batch))

    def finish(self) -> None:
        """Return at once: the format has no footer."""

    def abandon(self) -> None:
        """Return at once: batches are not buffered."""


class CsvWriting:
    """Writes batches as CSV; the first line has the names of the columns."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.write((",".join(COLUMNS) + "\n").encode())

    def write(self, batch: Batch) -> None:
        """Write one batch."""
        text = io.StringIO(newline="")
        lines = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        columns = (batch.sequences.tolist(), batch.timestamps.tolist(), batch.payloads)
        for sequence, timestamp, payload in zip(*columns, strict=True):
            lines.writerow((sequence, timestamp, iso_time(timestamp), *_csv_fields(payload)))
        self._file.write(text.getvalue().encode())

    def finish(self) -> None:
        """Return at once: the format has no footer."""

    def abandon(self) -> None:
        """Return at once: batches are not buffered."""


def _csv_fields(payload: bytes) -> tuple[str, str]:
    """Return a payload as text and Base64, one of them empty."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # many readers stop at NUL
        return "", base64.b64encode(payload).decode("ascii")
    return text, ""


# --- back -----------------------------------------------------------------------------------------


class _Rows:
    """Rows read for the next row group."""

    def __init__(self) -> None:
        self.number = 0
        self._sequences: list[int | None] = []
        self._timestamps: list[int] = []
        self._payloads: list[bytes] = []
        self._bytes = 0

    def add(self, sequence: int | None, timestamp: int, payload: bytes) -> bool:
        """Add a row; return whether the row group is large enough."""
        self._sequences.append(sequence)
        self._timestamps.append(timestamp)
        self._payloads.append(payload)
        self._bytes += len(payload)
        return len(self._payloads) >= PIECE_COUNT or self._bytes >= PIECE_BYTES

    def __len__(self) -> int:
        return len(self._payloads)

    def piece(self) -> RowGroup:
        """Return the rows, and start the next row group."""
        known = [sequence for sequence in self._sequences if sequence is not None]
        whole = len(known) == len(self._sequences)
        piece = RowGroup(
            np.array(known, np.int64) if whole else None,
            np.array(self._timestamps, np.int64),
            self._payloads,
            np.fromiter(map(len, self._payloads), np.int64, len(self._payloads)),
        )
        self._sequences, self._timestamps, self._payloads, self._bytes = [], [], [], 0
        return piece

    def time(self, layout: Layout, given: object, readable: object) -> int:
        """Return the time of the current row; `readable`: the same as text, if it has that."""
        try:
            return layout.time_of(given, readable)
        except ValueError as error:
            self.bad(str(error))

    def bad(self, why: str) -> NoReturn:
        """Raise BadRow for the current row."""
        raise errors.BadRow(f"row {self.number}: {why}", row=self.number)


def read_jsonl(file: IO[bytes], layout: Layout) -> Iterator[RowGroup]:
    """Yield the rows of JSON lines in row groups; skip empty lines.

    Args:
        file: to read.
        layout: names of the columns, and the unit of the times.

    Raises:
        BadRow: a line is invalid.
    """
    rows = _Rows()
    names = [layout.name(own) for own in COLUMNS]
    while line := file.readline(LINE_BYTES_MAX):
        rows.number += 1
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            rows.bad(f"invalid JSON ({error}): is the file complete?")
        if not isinstance(row, dict):
            rows.bad("not a JSON object")
        sequence, given, readable, text, coded = [row.get(name) for name in names]
        if sequence is not None:
            sequence = _whole(rows, sequence)
        timestamp = rows.time(layout, given, readable)
        if rows.add(sequence, timestamp, _payload(rows, text, coded)):
            yield rows.piece()
    if len(rows):
        yield rows.piece()


def _payload(rows: _Rows, text: Any, coded: Any) -> bytes:  # noqa: ANN401 - of JSON
    if (text is None) == (coded is None):
        rows.bad("give either `payload` or `payload_base64`")
    if not isinstance(text if coded is None else coded, str):
        rows.bad("the payload is not a string")
    return _bytes(rows, text, coded)


def _bytes(rows: _Rows, text: str | None, coded: str | None) -> bytes:
    try:
        return base64.b64decode(coded, validate=True) if coded else (text or "").encode()
    except ValueError as error:
        rows.bad(f"the payload is not valid Base64 or text ({error})")


def _whole(rows: _Rows, number: object) -> int:
    if type(number) is not int or not -fmt.TIMESTAMP_MAX <= number <= fmt.TIMESTAMP_MAX:
        rows.bad(f"sequence is {number!r}: give an integer of 64 bits")
    return number


def read_csv(file: IO[bytes], layout: Layout) -> Iterator[RowGroup]:
    """Yield the rows of a CSV file in row groups. The first line names the columns.

    Args:
        file: to read.
        layout: names of the columns, and the unit of the times.

    Raises:
        BadRow: a line is invalid.
    """
    rows = _Rows()
    limit = csv.field_size_limit(LINE_BYTES_MAX)
    text = io.TextIOWrapper(file, "utf-8", newline="")
    try:
        yield from _csv_pieces(rows, csv.DictReader(text, strict=True), layout)
    except (csv.Error, UnicodeDecodeError) as error:
        rows.number += 1
        rows.bad(f"not CSV in UTF-8 ({error})")
    finally:
        csv.field_size_limit(limit)
        text.detach()


def _csv_pieces(rows: _Rows, lines: csv.DictReader[str], layout: Layout) -> Iterator[RowGroup]:
    found = lines.fieldnames or ()
    names = [layout.name(own) for own in COLUMNS]
    if names[1] not in found or not set(names[3:]) & set(found):
        rows.bad(
            f"columns `{names[1]}` and `{names[3]}` are required, the file has {list(found)}: name "
            "others with --column timestamp=NAME"
        )
    for row in lines:
        rows.number += 1
        if None in row or None in row.values():
            rows.bad("it has more or fewer fields than the first line")
        sequence, given, readable, text, coded = [row.get(name) for name in names]
        if text and coded:
            rows.bad("give either `payload` or `payload_base64`")
        known = _whole(rows, _number(sequence)) if sequence else None
        time = given if layout.unit == "iso" else _number(given or "")
        timestamp = rows.time(layout, time, readable)
        if rows.add(known, timestamp, _bytes(rows, text, coded)):
            yield rows.piece()
    if len(rows):
        yield rows.piece()


def _number(text: str) -> object:
    """Return an integer, or the text if it is not one."""
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text
