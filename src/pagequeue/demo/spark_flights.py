"""The worked example: the flights that left New York in 2013, from queues to a chart.

Three processes, one for each airport, send their flights in order to queues of their own; the
queues are archived while they do; the table is joined with the weather of the hour in which a
flight was to leave. What comes out is compared with the same computed by pandas from the source,
number by number: every figure is a whole one.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f

from pagequeue import errors
from pagequeue.demo import flights as demo_flights
from pagequeue.plot import figures as plotting
from pagequeue.spark.pipeline.archiving import archive
from pagequeue.util.optional import library

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from pyspark.sql import DataFrame, SparkSession

FLIGHT: Final = (
    "row int, scheduled string, carrier string, number int, origin string, destination string, "
    "departure_delay int, arrival_delay int"
)
ZONE: Final = "America/New_York"
FIGURES: Final = (
    "flights",
    "departed",
    "delay",
    "known_weather",
    "wet",
    "wet_departed",
    "wet_delay",
)
"""By hour and carrier: how many flights, those that left, minutes of delay of all of them; flights
with known weather, in rain or snow, those of them that left, their minutes of delay."""
Answer = dict[tuple[int, str], tuple[int, ...]]


class Example(NamedTuple):
    """What came out.

    Attributes:
        answer: by hour of the day in New York and carrier the numbers of `FIGURES`.
        messages: in the table.
        files: of it.
    """

    answer: Answer
    messages: int
    files: int


def run(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    limit_count: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Example:
    """Send, archive and join; and check all of it.

    Args:
        spark: a session.
        directory: for the queues, in `queues/`, and the table, in `table`; a new or empty one.
        limit_count: only so many rows of the source.
        progress: told how many flights are archived, of how many.

    Raises:
        SourceError: the data is not installed.
        UsageError: the result differs from the source, or the directory is not empty.
    """
    source = demo_flights.source_path()
    queues, table = (os.path.join(os.fspath(directory), name) for name in ("queues", "table"))
    if os.path.exists(queues) or os.path.exists(table):
        raise errors.UsageError("an example was here before: give a new directory", path=queues)
    wanted = expected(limit_count)
    total = sum(figures[0] for figures in wanted.values())
    messages = 0

    def advanced(done: int, _total: int) -> None:
        if progress is not None:
            progress(messages + done, total)

    producers, over = _stream(queues, str(source), limit_count)
    everything = os.path.join(queues, "*")
    live = archive(
        spark, everything, table, every=0.5, consumer="archive", stop=over, progress=advanced
    )
    messages += live.messages
    if any(producer.exitcode for producer in producers):
        raise errors.UsageError("a producer failed; its output above has the reason", path=queues)
    messages += archive(spark, everything, table, consumer="archive", progress=advanced).messages
    answer = by_hour_and_carrier(spark, table)
    if messages != total or answer != wanted:
        raise errors.UsageError(_difference(messages, total, answer, wanted), path=table)
    files = sum(name.endswith(".parquet") for _, _, names in os.walk(table) for name in names)
    return Example(answer, messages, files)


def _stream(
    queues: str, source: str, limit_count: int | None
) -> tuple[list[BaseProcess], threading.Event]:
    """Start a producer for each airport; return them, and what is set when all have ended."""
    context = multiprocessing.get_context("spawn")
    producers: list[BaseProcess] = [
        context.Process(
            target=demo_flights.send_flights,
            args=(os.path.join(queues, origin), origin, source, limit_count),
            daemon=True,
        )
        for origin in demo_flights.ORIGINS
    ]
    over = threading.Event()

    def join() -> None:
        for producer in producers:
            producer.join()
        over.set()

    for producer in producers:
        producer.start()
    threading.Thread(target=join, daemon=True).start()
    return producers, over


def by_hour_and_carrier(spark: SparkSession, table: str) -> Answer:
    """Return the answer by Spark: the table, joined with the weather."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    payload = f.col("payload").cast("string")
    flights = session.read.parquet(table).select(f.from_json(payload, FLIGHT).alias("flight"))
    scheduled = f.to_timestamp("flight.scheduled", "yyyy-MM-dd'T'HH:mmX")
    flights = flights.select(
        "flight.*",
        f.date_trunc("hour", scheduled).alias("time_hour"),
        f.hour(f.from_utc_timestamp(scheduled, ZONE)).alias("hour"),
    )
    joined = flights.join(f.broadcast(_weather(session)), ["origin", "time_hour"], "left")
    is_wet = f.col("precip") > 0
    delay = f.col("departure_delay")
    found = joined.groupBy("hour", "carrier").agg(
        f.count("*").alias("flights"),
        f.count(delay).alias("departed"),
        f.coalesce(f.sum(delay), f.lit(0)).alias("delay"),
        f.count("precip").alias("known_weather"),
        f.count(f.when(is_wet, 1)).alias("wet"),
        f.count(f.when(is_wet, delay)).alias("wet_departed"),
        f.coalesce(f.sum(f.when(is_wet, delay)), f.lit(0)).alias("wet_delay"),
    )
    return {
        (row["hour"], row["carrier"]): tuple(row[name] for name in FIGURES)
        for row in found.collect()
    }


def _weather(session: SparkSession) -> DataFrame:
    """Return how much fell at each airport in each hour; one hour is there twice."""
    rows = session.read.csv(
        str(demo_flights.weather_path()), header=True, nullValue="NA", inferSchema=True
    )
    return rows.groupBy("origin", f.col("time_hour").cast("timestamp").alias("time_hour")).agg(
        f.max("precip").alias("precip")
    )


def expected(limit_count: int | None = None) -> Answer:
    """Return the answer by pandas, from the source itself.

    Raises:
        MissingExtra: pandas is not installed.
        SourceError: the data is not.
    """
    pandas: Any = library("pandas", "demo", "the example's figures")
    columns = ["hour", "carrier", "origin", "time_hour", "dep_delay"]
    path = str(demo_flights.source_path())
    flights = pandas.read_csv(path, usecols=columns, nrows=limit_count)
    weather = pandas.read_csv(
        str(demo_flights.weather_path()), usecols=["origin", "time_hour", "precip"]
    )
    weather = weather.groupby(["origin", "time_hour"], as_index=False)["precip"].max()
    joined = flights.merge(weather, "left", on=["origin", "time_hour"])
    joined["is_wet"] = joined["precip"] > 0
    joined["wet_delay"] = joined["dep_delay"].where(joined["is_wet"])
    found = joined.groupby(["hour", "carrier"]).agg(
        flights=("origin", "size"),
        departed=("dep_delay", "count"),
        delay=("dep_delay", "sum"),
        known_weather=("precip", "count"),
        wet=("is_wet", "sum"),
        wet_departed=("wet_delay", "count"),
        wet_delay=("wet_delay", "sum"),
    )
    return {
        (int(hour), str(carrier)): tuple(int(value) for value in row)
        for (hour, carrier), *row in found[list(FIGURES)].itertuples()
    }


def _difference(messages: int, total: int, answer: Answer, wanted: Answer) -> str:
    """Return where the result differs from the source."""
    other = [key for key in answer.keys() | wanted.keys() if answer.get(key) != wanted.get(key)]
    where = f"; hour and carrier {min(other)} is the first" if other else ""
    return (
        f"{messages} of {total} flights in the table, {len(other)} of {len(wanted)} figures differ "
        f"from those of the source{where}: report this, with the directory"
    )


def delays_by(answer: Answer, place: int) -> dict[Any, float]:
    """Return the mean delay in minutes by hour (place 0) or carrier (place 1)."""
    sums: dict[Any, list[int]] = {}
    for key, figures in answer.items():
        entry = sums.setdefault(key[place], [0, 0])
        entry[0] += figures[FIGURES.index("departed")]
        entry[1] += figures[FIGURES.index("delay")]
    return {key: delay / count for key, (count, delay) in sorted(sums.items()) if count}


def draw(file: IO[bytes], answer: Answer) -> None:
    """Draw delays by hour and carrier, and by hour in dry and in wet weather, as PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure, (upper, lower) = plotting.page("Departures from New York, 2013", 2, height_inches=3.6)
    hours = sorted({hour for (hour, _), figures in answer.items() if figures[1]})
    counts: dict[str, int] = {}
    for (_, carrier), figures in answer.items():
        counts[carrier] = counts.get(carrier, 0) + figures[0]
    carriers = sorted(counts, key=lambda carrier: counts[carrier])
    nothing = (0,) * len(FIGURES)
    cells = [
        [
            row[2] / row[1] if row[1] else float("nan")
            for row in (answer.get((hour, carrier), nothing) for hour in hours)
        ]
        for carrier in carriers
    ]
    edges = [*(hour - 0.5 for hour in hours), hours[-1] + 0.5]
    colours = upper.pcolormesh(
        edges, range(len(carriers) + 1), cells, cmap="RdYlBu_r", vmin=-20, vmax=60
    )
    upper.grid(visible=False)
    names = demo_flights.carrier_names()
    upper.set_yticks(
        [place + 0.5 for place in range(len(carriers))],
        [names.get(carrier, carrier) for carrier in carriers],
        fontsize=7,
    )
    figure.colorbar(colours, ax=upper, label="mean delay, minutes", extend="both")
    for label, colour, count, delay in (
        ("dry, or not known", plotting.ORANGE, lambda r: r[1] - r[5], lambda r: r[2] - r[6]),
        ("rain or snow", plotting.BLUE, lambda r: r[5], lambda r: r[6]),
    ):
        means = []
        for hour in hours:
            rows = [figures for (at, _), figures in answer.items() if at == hour]
            flights = sum(map(count, rows))
            means.append(sum(map(delay, rows)) / flights if flights else float("nan"))
        lower.plot(hours, means, color=colour, marker="o", markersize=3, label=label)
    lower.set_ylabel("mean delay, minutes")
    lower.set_xlabel("hour in which the flight was to leave, New York")
    lower.legend(frameon=False, loc="upper left")
    figure.savefig(file, format="png")
