"""What the driver answers to the JVM, without one: readers, filters, pages, streams, records."""

from __future__ import annotations

import json
import os
import random
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest

from pagequeue import Queue, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import itertools

from native_support import COUNT, fill, plain
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pagequeue.spark.columns import Need, schema_of
from pagequeue.spark.native.choosing import given_text, schema_answer, table_answer
from pagequeue.spark.native.column_specs import OWN, column_specs
from pagequeue.spark.native.conditions import ranges
from pagequeue.spark.native.partitions import BETWEEN
from pagequeue.spark.native.planner import BUG, Planner, answer
from pagequeue.spark.native.record_words import Unknown, record_words
from pagequeue.spark.native.streams import Streams
from pagequeue.spark.options import place_options, read_options, write_options
from pagequeue.spark.path_glob import find, one_dtype
from pagequeue.spark.pipeline.progress import watched

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = {"sequence": "s", "timestamp_ns": "t", "payload": "p"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of several pages without writers."""
    return fill(tmp_path_factory.mktemp("planner") / "q")


# --- options and paths ----------------------------------------------------------------------------


def test_options_are_text_and_none_is_guessed() -> None:
    """Names in any case; what is unknown, or has no such value, is an error."""
    options = read_options(
        {"PATH": "/a", "fromsequence": "7", "until": "5", "ondamage": "skip", "trust": ""},
        streaming=False,
    )
    assert (options.paths, options.first, options.until) == (("/a",), 7, 5)
    assert (options.skips_damage, options.skips_expired, options.reader) == (True, False, "auto")
    paths = json.dumps(["/a", "file:///b*"])
    options = read_options({"paths": paths, "startingOffsets": "latest"}, streaming=True)
    assert (options.paths, options.starting, options.is_glob) == (("/a", "/b*"), "latest", True)
    relative = place_options({"path": "a", "since": "nonsense"})
    assert relative.paths == (os.path.abspath("a"),)
    assert write_options({"path": "a", "writer": "w", "piece": "3"}).piece == 3
    refused = [
        ({"path": "a", "untill": "5"}, "'untill' is not known"),
        ({"path": "a", "until": "soon"}, "until"),
        ({"path": "a", "check": "some"}, "give one of columns, used, all"),
        ({"path": "a", "trust": "everybody"}, "trust"),
        ({"path": "a", "startingOffsets": "latest"}, "not known"),
        ({}, "path"),
    ]
    for given, text in refused:
        with pytest.raises(errors.InvalidOption, match=text):
            read_options(given, streaming=False)


def test_a_path_means_each_queue_once(tmp_path: Path) -> None:
    """A directory, a glob, both; by prefix; queues of one dtype are one table."""
    for name in ("a1", "a2"):
        fill(tmp_path / name, 3)
    with Queue(tmp_path / "a2", prefix="other", dtype=[("n", "<i4")]) as queue:
        queue.producer().send((1,))

    def found(*paths: str, **options: str) -> list[str]:
        given = json.dumps([str(tmp_path / path) for path in paths])
        options = {"paths": given, **options}
        return [one.name for one in find(place_options(options))]

    assert found("a*", "a1") == [str(tmp_path / name) for name in ("a1", "a2")]
    assert found("a2", prefix="o*") == [f"{tmp_path / 'a2'}#other"]
    assert found("none*") == []
    with pytest.raises(errors.QueueNotFound, match="check path and prefix"):
        found("none")
    both = find(place_options({"path": str(tmp_path / "a2"), "prefix": "*"}))
    with pytest.raises(errors.DtypeMismatch, match="read the queues apart"):
        one_dtype(both)


# --- which reader ---------------------------------------------------------------------------------


def chosen(path: Path, schema: StructType, why: str = "", **options: str) -> list[str]:
    """Return what the JVM is told of a table; nothing: the Python source reads."""
    words = "&".join(f"{name}={quote(value)}" for name, value in options.items())
    request = f"{schema.json()}\n{words}&path={quote(str(path), safe='')}"
    return table_answer(request, why).splitlines()


def test_the_reader_is_chosen_by_options_and_columns(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which, and why; asked for by name, what cannot be is an error."""
    schema = schema_of()
    with caplog.at_level("INFO", "pagequeue"):
        specs, size, check, given = chosen(filled, schema, check="used")
        assert (dict(word.split(":") for word in specs.split()), size, check) == (OWN, "0", "used")
        assert given.startswith(quote('{"options": {', safe=""))
        assert chosen(filled, schema, reader="python") == []
        assert chosen(filled, schema, onDamage="skip") == []
        assert chosen(filled, schema, onExpired="skip") == []
        assert chosen(filled, schema, why="no classes") == []
    by_python = f"{filled}: read by the Python source: "
    assert caplog.messages == [
        f"{filled}: read by the native reader",
        f"{by_python}the option reader says so",
        f"{by_python}it does not know onDamage=skip",
        f"{by_python}it does not know onExpired=skip",
        f"{by_python}no classes",
    ]
    with pytest.raises(errors.InvalidOption, match=r"onDamage=skip.*python.*auto"):
        chosen(filled, schema, reader="native", onDamage="skip")
    wrong = StructType([StructField("payload", StringType())])
    with pytest.raises(errors.InvalidOption, match="has type binary, not string"):
        chosen(filled, wrong)
    assert schema_answer(f"path={quote(str(filled), safe='')}") == schema.json()


def test_columns_of_records_have_their_places(tmp_path: Path) -> None:
    """What Java does not know is left out; queues of other places have no common field."""
    dtype = np.dtype([("text", "U4"), ("big", ">u8"), ("n", ">u4"), ("list", "<i4", (2,))])
    assert column_specs(dtype) == OWN | {"n": "u4>24"}
    assert column_specs(np.dtype([("sequence", "<f8")])) == (
        {"queue_sequence" if name == "sequence" else name: spec for name, spec in OWN.items()}
        | {"sequence": "f8<0"}
    )
    for name, fields in (("a", [("n", "<i4")]), ("b", [("m", "<i4"), ("n", "<i4")])):
        Queue(tmp_path / name, dtype=fields).close()
    fields = StructType(
        [StructField("n", dataType=schema_of(["n"], np.dtype([("n", "<i4")]))[0].dataType)]
    )
    assert chosen(tmp_path / "a", fields)[:2][1] == "4"
    assert chosen(tmp_path / "*", fields) == []
    assert chosen(tmp_path / "*", StructType([StructField("payload", BinaryType())]))


def test_records_are_words() -> None:
    """Places count from the record, elements from the array; what Java cannot write is named."""
    dtype = np.dtype(
        [("id", ">u4"), ("in", [("at", "<M8[us]"), ("s", "S3")]), ("list", "<i2", (2, 3))]
    )
    words = [word.rpartition(":")[0] for word in record_words(dtype)]
    assert words == [
        "u:4:>:0:id",
        "r:0:<:4:in",
        "Mus:8:<:0:in.at",
        "S:3:<:8:in.s",
        "a:2:6:15:list",
        "a:3:2:0:list",
        "i:2:<:0:list",
    ]
    with pytest.raises(Unknown, match="'half' of type float16"):
        record_words(np.dtype([("half", "<f2")]))


# --- filters --------------------------------------------------------------------------------------

TIMES = [5_000, 5_000, 6_500, 6_999, 7_000, 9_000, 9_000, 9_000, 12_345]
FIRST = 3
"""The sequence of the first of them."""


def evaluated(words: list[str], sequence: int) -> bool:
    """Take one filter from words, and return whether it holds for a message."""
    word = words.pop(0)
    if word in {"all", "none"}:
        return word == "all"
    if word == "not":
        return not evaluated(words, sequence)
    if word in {"and", "or"}:
        sides = evaluated(words, sequence), evaluated(words, sequence)
        return all(sides) if word == "and" else any(sides)
    how, count = words.pop(0), int(words.pop(0))
    values, words[:count] = words[:count], []
    if word == "q":
        return "'a+b" in values
    time = TIMES[sequence - FIRST]
    own = {"s": sequence, "t": time, "m": time // 1000}[word]
    compared = {"<": own.__lt__, "<=": own.__le__, ">": own.__gt__, ">=": own.__ge__}
    return any(compared.get(how, own.__eq__)(int(value)) for value in values)


def drawn(rng: random.Random, depth: int = 3) -> str:
    """Return a filter, as Java gives it."""
    kind = rng.choice(["and", "or", "not"] if depth and rng.random() < 0.6 else ["column"])
    if kind == "not":
        return f"not {drawn(rng, depth - 1)}"
    if kind != "column":
        return f"{kind} {drawn(rng, depth - 1)} {drawn(rng, depth - 1)}"
    column = rng.choice("sstttmmmq") if rng.random() < 0.95 else rng.choice(["all", "none"])
    if column in {"all", "none"}:
        return column
    if column == "q":
        return rng.choice(["q in 1 'a+b", "q in 2 'c 'a+b", "q in 1 'c"])
    near = {"s": range(12), "t": TIMES, "m": [5, 6, 7, 9, 12]}[column]
    edges = [-(2**63), -1, 0, 2**63 - 1] if rng.random() < 0.2 else near
    values = [str(rng.choice(edges) + rng.choice([-1, 0, 1]) * (edges is near)) for _ in "ab"]
    how = rng.choice(["<", "<=", ">", ">=", "in"])
    return f"{column} in 2 {' '.join(values)}" if how == "in" else f"{column} {how} 1 {values[0]}"


@pytest.mark.parametrize("seed", range(5))
def test_filters_are_exact_ranges(seed: int) -> None:
    """Any of them leaves the messages for which it holds, and each of several must hold."""
    rng = random.Random(seed)
    everything = range(FIRST, FIRST + len(TIMES))

    def seek(time_ns: int) -> int:
        return FIRST + sum(time < time_ns for time in TIMES)

    for _ in range(300):
        texts = [drawn(rng) for _ in range(rng.choice([1, 1, 2]))]
        found = ranges(texts, "a b", FIRST, everything.stop, seek)
        wanted = [n for n in everything if all(evaluated(text.split(), n) for text in texts)]
        assert [n for first, end in found for n in range(first, end)] == wanted, texts
        assert all(one[1] < other[0] for one, other in itertools.pairwise(found)), texts


# --- pages ----------------------------------------------------------------------------------------


def planned(path: Path, *conditions: str, retained: str = "", **wanted: Any) -> list[str]:  # noqa: ANN401
    """Return the answer to a request of `QueueScan.java`."""
    options = {"path": str(path), **wanted.pop("options", {})}
    sizes = f"{int(wanted.pop('need', Need.PAYLOADS))} {wanted.pop('limit', -1)} "
    sizes += wanted.pop("limited", "any")
    given = given_text(options, None, COLUMNS)
    lines = [given, retained, sizes, wanted.pop("aggregates", ""), *conditions]
    assert not wanted
    return answer("\n".join(lines)).split(BETWEEN)


def sequences(parts: list[str]) -> list[int]:
    """Return the sequences that partitions read, in their order."""
    lines = [line.split() for part in parts for line in part.splitlines()]
    places = {"N": 1, "T": 3, "P": 3}
    bounds = [map(int, line[places[line[0]] :][:2]) for line in lines if line[0] in places]
    return [number for both in bounds for number in range(*both)]


def test_a_plan_has_each_message_once(filled: Path) -> None:
    """Pages with their first sequences; what filters and limits leave of them; figures."""
    with Queue(filled, read_only=True) as queue:
        pages = {n: queue._store.first_sequence(n) for n in range(1, 4)}
    _, _, *parts = planned(filled)
    assert sequences(parts) == [*range(COUNT)]
    lines = [line.split() for part in parts for line in part.splitlines()]
    assert {int(line[1]): int(line[2]) for line in lines if line[0] == "P"}.items() >= pages.items()
    assert lines[0][:4] == ["Q", quote(str(filled), safe=""), "queue", lines[0][1]]
    _, size, *parts = planned(filled, options={"partitionBytes": "700"})
    assert (sequences(parts), size.split()[0]) == ([*range(COUNT)], str(COUNT))
    assert len(parts) > 10
    for need, kind in ((Need.NOTHING, "N"), (Need.TIMES, "T")):
        _, _, *parts = planned(filled, "s >= 1 40", "s < 1 250", need=need)
        assert sequences(parts) == [*range(40, 250)]
        assert {line[0] for part in parts for line in part.splitlines()} == {"Q", kind}
    for limited, wanted in (("any", [*range(7)]), ("first", [*range(7)])):
        assert sequences(planned(filled, limit=7, limited=limited)[2:]) == wanted
    assert sequences(planned(filled, limit=7, limited="last")[2:]) == [*range(COUNT - 7, COUNT)]
    table = plain(filled)
    words = "count min_s max_s min_t max_t max_m"
    _, size, found = planned(filled, "s >= 1 7", aggregates=words)
    last = table[-1][1]
    assert found == f"{COUNT - 7} 7 {COUNT - 1} {table[7][1]} {last} {last // 1000}"
    assert planned(filled, "none", aggregates="count max_s")[2] == "0 null"


def test_a_plan_is_of_what_was_there_at_first_use(tmp_path: Path) -> None:
    """Later messages are not of it; another queue in the same place is an error."""
    path = fill(tmp_path / "q", 50)
    retained = planned(path)[0]
    fill(path, 50, first=50)
    assert sequences(planned(path, retained=retained)[2:]) == [*range(50)]
    assert sequences(planned(path)[2:]) == [*range(100)]
    (tmp_path / "q").rename(tmp_path / "old")
    fill(path, 50)
    with pytest.raises(errors.QueueReplaced, match="read again"):
        planned(path, retained=retained)


def test_errors_go_to_java_as_text(tmp_path: Path) -> None:
    """Ours with their attributes, a bug with its traceback; no error is py4j's."""
    planner = Planner({})
    request = "\n".join([given_text({"path": str(tmp_path)}, None, COLUMNS), "", "2 -1 any", ""])
    told = planner.apply(request)
    first, _, attributes = told.partition("\n")
    assert first.startswith(f"!QueueNotFound: {tmp_path}: no queue with prefix")
    assert json.loads(attributes)["path"] == str(tmp_path)
    assert planner.apply("nonsense").startswith(f"{BUG}Traceback")


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_is_asked_step_by_step(tmp_path: Path) -> None:
    """Offsets, limits, partitions and acknowledgements, as `QueueStream.java` asks for them."""
    path = fill(tmp_path / "q", 100)
    streams = Streams()
    options = {"path": str(path), "maxRecordsPerTrigger": "60", "consumer": "copier"}
    given = given_text(options, None, COLUMNS)

    def ask(verb: str, first: str = "", second: str = "") -> str:
        return streams.answer(f"key\n{verb}\n{given}\n{first}\n{second}")

    start = ask("initial")
    assert ask("limit") == "rows 60"
    ask("prepare")
    fill(path, 10, first=100)
    found = []
    while (end := ask("latest", start, "limited")) != start:
        found.append(sequences(ask("parts", start, end).split(BETWEEN)))
        ask("commit", end)
        start = end
    assert found == [[*range(60)], [*range(60, 100)]]
    with Queue(path, read_only=True) as queue:
        assert [info.next_sequence for info in queue.consumers()] == [100]
    assert ask("parts", start, start) == ""
    with pytest.raises(ValueError, match="unknown request"):
        ask("nonsense")
    ask("stop")
    assert streams._running == {}
    assert ask("stop") == ""


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_told_while_a_job_runs() -> None:
    """Of the stages at work; one that ended between two questions is left out."""
    stage = SimpleNamespace(numCompletedTasks=1, numTasks=4)
    infos = {1: stage, 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2], getStageInfo=infos.get)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    told: list[tuple[int, int]] = []
    is_told = threading.Event()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        is_told.set()

    with watched(session, progress):
        assert is_told.wait(60)
    assert set(told) == {(1, 4)}
    with watched(session, None):
        pass
