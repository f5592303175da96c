"""The demo: what it checks, that it fails when it should, and that it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import warm
from rich.console import Console
from support import within

from pagequeue.cli import main
from pagequeue.demo import flights as demo_flights
from pagequeue.demo import run as demo_run
from pagequeue.demo import view
from pagequeue.demo import workers as demo_workers
from pagequeue.demo.check import (
    Entry,
    check_log,
    check_replay,
    check_statistics,
    expected_statistics,
)
from pagequeue.demo.flights import Flight, event_order, from_payload, read_flights
from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.demo.workers import Link, Plan

HEADER = "year,dep_delay,carrier,flight,origin,dest,arr_delay,minute,time_hour"
ORIGINS = ("EWR", "JFK", "LGA")
CARRIERS = ("UA", "B6", "DL", "AA")
WAIT_SECONDS = 120.0
"""In which what must come comes, however busy the machine."""
FOR_LONG = ("--seconds", "1000")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A table of 300 flights in the source's form, not in event order."""
    rows = [HEADER]
    for number in range(300):
        delay = "NA" if number % 10 == 9 else str(number % 40 - 5)
        hour = f"2013-01-{1 + number * 7 % 28:02}T{number % 24:02}:00:00Z"
        origin, carrier = ORIGINS[number % 3], CARRIERS[number % 4]
        rows.append(f"2013,{delay},{carrier},{number},{origin},EWR,NA,{number % 60},{hour}")
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(rows) + "\n")
    return path


def right_log(flights: list[Flight], first_sequence: int = 0) -> list[Entry]:
    """Return the contents of the event log after a correct run."""
    return [
        Entry(first_sequence + place, 1_000 + place // 2, flight.payload())
        for place, flight in enumerate(sorted(flights, key=event_order))
    ]


def renumbered(entries: list[Entry]) -> list[Entry]:
    """Return the entries as they would be numbered when received in this order."""
    return [Entry(place, 1_000 + place, entry.payload) for place, entry in enumerate(entries)]


class Silent:
    """Prints no progress of a run, but checks it."""

    def __init__(self) -> None:
        self.expected: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def phase(self, text: str) -> None:
        assert text

    def totals(self, counts: dict[str, int]) -> None:
        self.expected = counts

    def count(self, name: str, count: int) -> None:
        assert count >= self.seen.get(name, 0)
        self.seen[name] = count


def run(directory: Path, source: Path, **options: Any) -> demo_run.Report:  # noqa: ANN401 - passed
    """Run the demo on a small source."""
    return demo_run.run(str(directory), source, **{"display": Silent(), **options})


# --- the source -------------------------------------------------------------------------------


def test_flight_survives_encoding_and_decoding(source: Path) -> None:
    """All fields are equal, unknown delays included."""
    flights = list(read_flights(source))
    assert len(flights) == 300
    assert flights[9].departure_delay is None
    assert [from_payload(flight.payload()) for flight in flights] == flights


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"\xff", b'{"row":1}'])
def test_payload_that_is_not_a_flight_is_refused(payload: bytes) -> None:
    """A foreign payload is a ValueError, which the checks report."""
    with pytest.raises(ValueError):
        from_payload(payload)


def test_airports_share_out_the_rows(source: Path) -> None:
    """Each row belongs to exactly one producer, although every flight here goes to EWR."""
    rows = [flight.row for origin in ORIGINS for flight in read_flights(source, None, origin)]
    assert sorted(rows) == list(range(1, 301))
    assert all(flight.origin == "JFK" for flight in read_flights(source, 100, "JFK"))


def test_source_without_a_needed_column_is_an_error(tmp_path: Path) -> None:
    """A table without a column that is needed is an error with its remedy."""
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", HEADER.replace("minute", "minutes") + "\n")
    with pytest.raises(demo_flights.SourceError, match=r"no column 'minute'.*pip install"):
        list(read_flights(path))


# --- the checks -------------------------------------------------------------------------------


def test_right_log_has_no_fault(source: Path) -> None:
    """Also where a kept directory makes the sequences start later."""
    flights = list(read_flights(source))
    for first_sequence in (0, 77):
        assert check_log(flights, right_log(flights, first_sequence), first_sequence) == []


def test_missing_flight_is_named(source: Path) -> None:
    """One flight of all that is not there is found by its row."""
    flights = list(read_flights(source))
    entries = [entry for entry in right_log(flights) if from_payload(entry.payload).row != 123]
    assert check_log(flights, renumbered(entries), 0) == [f"missing: {flights[122]}"]


def test_doubled_flight_is_named(source: Path) -> None:
    """One flight that is there twice is found by its row."""
    flights = list(read_flights(source))
    entries = right_log(flights)
    again = from_payload(entries[7].payload)
    assert check_log(flights, renumbered([*entries, entries[7]]), 0) == [
        f"doubled: {again} again at sequence 300"
    ]


def test_flight_out_of_order_is_named(source: Path) -> None:
    """Two flights of one airport that changed places are found."""
    flights = list(read_flights(source, None, "JFK"))
    entries = right_log(flights)
    entries[4], entries[5] = entries[5], entries[4]
    (fault,) = check_log(flights, renumbered(entries), 0)
    assert fault.startswith(f"out of order: {from_payload(entries[5].payload)} comes after")


def test_airports_may_interleave_freely(source: Path) -> None:
    """Order is kept by each producer; between producers any order is right."""
    flights = list(read_flights(source))
    entries = right_log(flights)
    entries.sort(key=lambda entry: from_payload(entry.payload).origin)
    assert check_log(flights, renumbered(entries), 0) == []


def test_changed_and_foreign_payloads_are_named(source: Path) -> None:
    """Every field of a payload must equal the source's."""
    flights = list(read_flights(source))
    entries = right_log(flights)
    late = from_payload(entries[3].payload)._replace(arrival_delay=1_000)
    entries[3] = entries[3]._replace(payload=late.payload())
    entries.append(Entry(300, 10_000, b"what"))
    kinds = [fault.partition(":")[0] for fault in check_log(flights, entries, 0)]
    assert kinds == ["not as in the source", "not a flight", "missing"]


def test_gap_in_sequences_and_time_going_back_are_named(source: Path) -> None:
    """Sequences are consecutive, and timestamps never go back."""
    flights = list(read_flights(source))
    entries = right_log(flights)
    entries[10] = entries[10]._replace(timestamp=1)
    entries[20:] = [entry._replace(sequence=entry.sequence + 1) for entry in entries[20:]]
    assert check_log(flights, entries, 0) == [
        "timestamps go back: at sequence 10",
        "sequences not consecutive: 21 comes after 19",
    ]


def test_many_faults_are_counted_and_few_shown(source: Path) -> None:
    """A lost queue does not print a hundred thousand lines."""
    (fault,) = check_log(list(read_flights(source)), [], 0)
    assert fault.startswith("missing: row 1 (UA 0, EWR to EWR, 2013-01-01T00:00Z); row 2")
    assert fault.endswith("; and 297 more")


def test_statistics_are_computed_from_the_source(source: Path) -> None:
    """Flights, departed, late, minutes, worked out by hand for one carrier."""
    expected = expected_statistics(*demo_flights.source_lines(source, None))
    delays = [number % 40 - 5 for number in range(0, 300, 4) if number % 10 != 9]
    assert expected["UA"] == [75, 75, sum(delay >= 15 for delay in delays), sum(delays)]
    assert expected["AA"][0] - expected["AA"][1] == 15
    assert check_statistics(expected, expected) == []
    (fault,) = check_statistics(expected, {**expected, "UA": [75, 75, 1, 1]})
    assert "UA" in fault


def test_replay_must_be_the_suffix_of_the_log(source: Path) -> None:
    """Messages with the start's own timestamp belong to it, and none may be missing."""
    entries = right_log(list(read_flights(source)))
    since = entries[151].timestamp
    assert entries[150].timestamp == since
    assert check_replay(entries, entries[150:], since) == []
    assert check_replay(entries, entries[151:], since)
    assert check_replay(entries, [*entries[150:299], entries[0]], since)


# --- whole runs -------------------------------------------------------------------------------


@pytest.mark.slow
def test_five_processes_transfer_every_flight(tmp_path: Path, source: Path) -> None:
    """A run reports no errors and the source's figures; a kept directory takes two runs."""
    for _ in range(2):
        report = run(tmp_path / "q", source, display=(display := Silent()))
        assert display.seen == display.expected
        assert report.flights == 300
        assert report.airports == {"EWR": 100, "JFK": 100, "LGA": 100}
        assert report.carriers == expected_statistics(*demo_flights.source_lines(source, None))
        assert 150 <= report.replayed.count <= 300
        assert json.loads(json.dumps(report.figures()))["ok"] is True


@pytest.mark.slow
def test_spread_run_takes_its_time(tmp_path: Path, source: Path) -> None:
    """With `seconds` the flights come at their times, scaled."""
    report = run(tmp_path / "q", source, limit_count=60, seconds=1.0)
    assert (report.flights, report.sent.seconds >= 0.9) == (60, True)


def lossy(link: Link, plan: Plan, origin: str) -> dict[str, Any]:
    """Be a producer that leaves out one flight and sends another twice."""
    flights = sorted(read_flights(Path(plan.source), plan.limit_count, origin), key=event_order)
    if origin == "JFK":
        flights = [flights[0], *flights[:10], *flights[11:]]
    with demo_workers.Queue(plan.directory) as queue, queue.producer() as producer:
        link.wait_for_go()
        producer.send_many([flight.payload() for flight in flights])
    return {"count": len(flights), "bytes": 0, "started": 0.0, "ended": 1.0}


@pytest.mark.slow
def test_lost_and_doubled_flights_fail_the_run(tmp_path: Path, source: Path) -> None:
    """What one producer leaves out or doubles is named, end to end."""
    jfk = sorted(read_flights(source, None, "JFK"), key=event_order)
    with pytest.raises(demo_run.DemoError) as caught:
        run(tmp_path / "q", source, producer=lossy)
    assert f"missing: {jfk[10]}" in caught.value.faults
    assert any(fault.startswith(f"doubled: {jfk[0]}") for fault in caught.value.faults)
    assert any(fault.startswith("statistics differ") for fault in caught.value.faults)


def dying(link: Link, plan: Plan, origin: str) -> dict[str, Any]:
    """Be a producer that is killed while it sends."""
    if origin == "LGA":
        link.wait_for_go()
        os.kill(os.getpid(), signal.SIGKILL)
    return demo_workers.produce(link, plan, origin)


def failing(link: Link, plan: Plan, origin: str) -> dict[str, Any]:
    """Be a producer that fails before it is ready."""
    if origin == "EWR":
        raise RuntimeError("no such airport")
    return demo_workers.produce(link, plan, origin)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("producer", "told"),
    [(dying, "LGA died with exit code -9"), (failing, "EWR failed: RuntimeError: no such airport")],
)
def test_lost_worker_fails_the_run_at_once(
    tmp_path: Path,
    source: Path,
    producer: demo_workers.Work,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run never waits for a dead worker, and leaves no worker running."""
    monkeypatch.setattr(demo_run, "STALL_SECONDS", WAIT_SECONDS)
    with within(int(WAIT_SECONDS / 2)), pytest.raises(demo_run.DemoError, match=told):
        run(tmp_path / "q", source, producer=producer)
    assert children(os.getpid()) == []


@pytest.mark.slow
def test_lost_worker_is_reported_while_the_source_is_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a year takes long on a busy machine; the error does not wait for its end."""
    flight = next(read_flights(source))

    def endless(*_: object) -> Iterator[Flight]:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            yield flight
        raise AssertionError("the run did not poll its workers")

    monkeypatch.setattr(demo_flights, "read_flights", endless)
    with pytest.raises(demo_run.DemoError, match="EWR failed"):
        run(tmp_path / "q", source, producer=failing)


def hanging(link: Link, plan: Plan, origin: str) -> dict[str, Any]:
    """Be a producer that blocks for ever."""
    del plan, origin
    link.wait_for_go()
    while True:
        time.sleep(1.0)


@pytest.mark.slow
def test_hanging_worker_fails_the_run(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no worker makes progress any more, the error names those that the run waits for."""

    class Impatient(Silent):
        """Once all are ready, which takes a busy machine as long as it may."""

        def phase(self, text: str) -> None:
            super().phase(text)
            if text == "flying":
                monkeypatch.setattr(demo_run, "STALL_SECONDS", 1.0)

    monkeypatch.setattr(demo_run, "STALL_SECONDS", WAIT_SECONDS)
    with pytest.raises(
        demo_run.DemoError, match=r"no progress for 1 s, waiting for EWR, JFK, LGA$"
    ):
        run(tmp_path / "q", source, producer=hanging, display=Impatient())


def children(parent: int) -> list[int]:
    """Return the workers that a process has started."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    workers = []
    for pid in found:
        with contextlib.suppress(OSError):  # it has just ended
            if b"multiprocessing.spawn" in Path(f"/proc/{pid}/cmdline").read_bytes():
                workers.append(int(pid))
    return workers


def left_directories(tmp_path: Path) -> list[Path]:
    """Return the directories that a demo has left.

    Not files: a worker's tempfile tries out its directory with one, and may have died right then.
    """
    return [path for path in (tmp_path / "tmp").iterdir() if path.is_dir()]


# --- the command ------------------------------------------------------------------------------

with_data = pytest.mark.skipif(
    importlib.util.find_spec(demo_flights.PACKAGE) is None,
    reason="needs the extra 'demo'",
)


def start(tmp_path: Path, *arguments: str) -> warm.Popen:
    """Start `pagequeue demo` with its own temporary directory."""
    (temporary := tmp_path / "tmp").mkdir()
    return warm.Popen(
        [sys.executable, "-m", "pagequeue.cli", "demo", *arguments],
        stdout=warm.PIPE,
        stderr=warm.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)},
    )


@pytest.mark.slow
@with_data
def test_demo_prints_rates_and_a_chart_and_removes_its_files(tmp_path: Path) -> None:
    """On real data; the temporary directory is removed afterwards."""
    with start(tmp_path, "--limit", "3000") as process:
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert all(text in out.decode() for text in ("3,000 flights", "msg/s", "ExpressJet"))
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@with_data
def test_demo_keeps_a_directory_that_was_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """With --directory the queue stays, and --json prints one object."""
    kept = str(tmp_path / "kept")
    assert main(["demo", "--limit", "500", "--directory", kept, "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["flights"] == 500
    assert main(["receive", kept, "--last", "1"]) == 0
    assert from_payload(capfdbinary.readouterr().out.rstrip(b"\n")).row <= 500


def wait_for_children(process: warm.Popen) -> list[int]:
    """Return the five workers of a running demo."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = children(process.pid)
        if len(found) == 5:
            return found
        time.sleep(0.02)
    raise AssertionError("the workers did not start")


@pytest.mark.slow
@with_data
def test_killed_worker_fails_the_demo(tmp_path: Path) -> None:
    """Exit code 1 and who died, soon, and no process or directory left."""
    with start(tmp_path, *FOR_LONG) as process:
        workers = wait_for_children(process)
        os.kill(workers[0], signal.SIGKILL)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert b"died with exit code -9" in err
    assert b"Traceback" not in err
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert left_directories(tmp_path) == []


@with_data
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_removes_its_files(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM end all workers quietly, and the directory is removed."""
    with start(tmp_path, *FOR_LONG) as process:
        workers = wait_for_children(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, err) == (code, b"")
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert left_directories(tmp_path) == []


def test_missing_data_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Without its extra the demo prints what to install."""
    monkeypatch.setattr(demo_flights, "PACKAGE", "no_such_package_at_all")
    assert main(["demo"]) == 1
    assert install_command("demo").encode() in capfdbinary.readouterr().err


def test_phase_has_no_count_and_worker_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads "0/?": a phase is not counted."""
    out = io.StringIO()
    monkeypatch.setattr(
        view, "messages_console", lambda: Console(file=out, force_terminal=True, width=120)
    )
    with view.bars() as display:
        display.phase("reading")
        display.totals({"EWR": 20})
        display.count("EWR", 7)
    assert "?" not in out.getvalue().replace("\x1b[?25", "")
    assert "reading" in out.getvalue()
    assert "7/20" in out.getvalue()
