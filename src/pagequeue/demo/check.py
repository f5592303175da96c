"""Checks that the demo's queue kept every flight: once, in order, unchanged. Does no I/O.

What is right is worked out from the source alone, never from what went through the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue.demo import flights as demo_flights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pagequeue.demo.flights import Flight

EXAMPLES_COUNT: Final = 3
_LATE_MINUTES: Final = 15  # repeated here, independent of the checked code


class Entry(NamedTuple):
    """One message, as the event log or a replay gives it."""

    sequence: int
    timestamp: int
    payload: bytes


class Faults:
    """What was found wrong, by kind; each kind keeps its first examples and its count."""

    def __init__(self) -> None:
        self._examples: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, kind: str, example: object) -> None:
        """Note one fault."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        examples = self._examples.setdefault(kind, [])
        if len(examples) < EXAMPLES_COUNT:
            examples.append(str(example))

    def texts(self) -> list[str]:
        """Return a line for each kind."""
        texts = []
        for kind, examples in self._examples.items():
            more = self._counts[kind] - len(examples)
            rest = f"; and {more:,} more" if more else ""
            texts.append(f"{kind}: {'; '.join(examples)}{rest}")
        return texts


def read_entry(line: bytes) -> Entry:
    """Return one line of the event log."""
    sequence, timestamp, payload = line.split(b" ", 2)
    return Entry(int(sequence), int(timestamp), payload)


def check_log(
    flights: Sequence[Flight], entries: Iterable[Entry], first_sequence: int
) -> list[str]:
    """Return what is wrong with the messages, given all flights of the source.

    Each flight must be there once and unchanged, each airport's in event order; sequences must be
    consecutive, and timestamps never go back.
    """
    faults = Faults()
    by_row = {flight.row: flight for flight in flights}
    seen: set[int] = set()
    newest: dict[str, Flight] = {}  # by airport, so by producer
    sequence, timestamp = first_sequence - 1, 0
    for entry in entries:
        if entry.sequence != sequence + 1:
            faults.add("sequences not consecutive", f"{entry.sequence} comes after {sequence}")
        if entry.timestamp < timestamp:
            faults.add("timestamps go back", f"at sequence {entry.sequence}")
        sequence, timestamp = entry.sequence, entry.timestamp
        try:
            flight = demo_flights.from_payload(entry.payload)
        except ValueError:
            faults.add("not a flight", f"sequence {sequence}: {entry.payload[:40]!r}")
            continue
        if by_row.get(flight.row) != flight:
            faults.add("not as in the source", f"{flight} at sequence {sequence}")
            continue
        if flight.row in seen:
            faults.add("doubled", f"{flight} again at sequence {sequence}")
            continue
        seen.add(flight.row)
        before = newest.setdefault(flight.origin, flight)
        if demo_flights.event_order(flight) < demo_flights.event_order(before):
            faults.add("out of order", f"{flight} comes after {before} at sequence {sequence}")
        else:
            newest[flight.origin] = flight
    for row in sorted(by_row.keys() - seen):
        faults.add("missing", by_row[row])
    return faults.texts()


def expected_statistics(places: Mapping[str, int], lines: Iterable[bytes]) -> dict[str, list[int]]:
    """Return flights, departed, late ones and minutes of delay by carrier, from the source."""
    carrier_place, delay_place = places["carrier"], places["dep_delay"]
    delays: dict[bytes, list[bytes]] = {}
    for line in lines:
        fields = line.split(b",")
        delays.setdefault(fields[carrier_place], []).append(fields[delay_place])
    result = {}
    for carrier, texts in delays.items():
        minutes = [int(text) for text in texts if text not in {b"", b"NA"}]
        late = [delay for delay in minutes if delay >= _LATE_MINUTES]
        result[carrier.decode()] = [len(texts), len(minutes), len(late), sum(minutes)]
    return result


def check_statistics(
    expected: Mapping[str, list[int]], counted: Mapping[str, list[int]]
) -> list[str]:
    """Return the carriers whose counts differ from the source."""
    faults = Faults()
    for carrier in sorted(expected.keys() | counted.keys()):
        right, got = expected.get(carrier), counted.get(carrier)
        if right != got:
            faults.add("statistics differ", f"{carrier}: the source gives {right}, counted {got}")
    return faults.texts()


def check_replay(entries: Sequence[Entry], replayed: Sequence[Entry], since: int) -> list[str]:
    """Return how a replay differs from what the event log recorded from that time on."""
    faults = Faults()
    expected = [entry for entry in entries if entry.timestamp >= since]
    if len(expected) != len(replayed):
        faults.add(
            "replay differs",
            f"since {since} it gives {len(replayed):,} messages, "
            f"but {len(expected):,} were received",
        )
    for right, got in zip(expected, replayed, strict=False):
        if right != got:
            faults.add("replay differs", f"it gives {got}, received was {right}")
            break
    return faults.texts()
