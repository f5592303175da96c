"""The worked example: from three queues to a table to a chart, with the source's figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import Queue, errors

pytest.importorskip("pyspark")
pytest.importorskip("pandas")

from pagequeue.cli import main
from pagequeue.demo import flights as demo_flights
from pagequeue.demo import spark_flights

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

LIMIT = 300


@pytest.mark.slow
def test_each_airport_has_its_queue_in_order(tmp_path: Path) -> None:
    """What a producer sends are its flights of the source, by the time they were to leave."""
    source = demo_flights.source_path()
    sent = 0
    for origin in demo_flights.ORIGINS:
        demo_flights.send_flights(str(tmp_path / origin), origin, str(source), LIMIT)
        with Queue(tmp_path / origin, read_only=True) as queue:
            found = [demo_flights.from_payload(m.payload) for m in queue.replay()]
        assert {flight.origin for flight in found} == {origin}
        assert found == sorted(found, key=demo_flights.event_order)
        sent += len(found)
    assert sent == LIMIT


def test_the_answer_of_the_source_counts_every_flight() -> None:
    """All 336,776, each once, though an hour of the weather is there twice."""
    wanted = spark_flights.expected()
    assert sum(figures[0] for figures in wanted.values()) == 336_776
    by_name = dict(
        zip(spark_flights.FIGURES, map(sum, zip(*wanted.values(), strict=True)), strict=True)
    )
    assert by_name["departed"] == 336_776 - 8_255
    assert by_name["wet_departed"] < by_name["wet"] < by_name["known_weather"] < 336_776
    means = spark_flights.delays_by(wanted, 0)
    assert max(means, key=lambda hour: means[hour]) == 19


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_ends_with_a_chart(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sent by three processes, archived meanwhile, joined, compared; a second run needs a place."""
    del spark
    chart, kept = str(tmp_path / "delays.png"), str(tmp_path / "kept")
    arguments = ["spark", "example", "--limit", str(LIMIT), "--directory", kept]
    assert main([*arguments, "--to", chart, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["messages"] == sum(row["flights"] for row in report["rows"]) == LIMIT
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--to", chart, "--force"]) == 1
    assert "give a new directory" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.spark
def test_an_answer_that_differs_is_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wrong number, and the example fails with its place."""
    wanted = spark_flights.expected(50)
    key = min(wanted)
    monkeypatch.setattr(
        spark_flights, "expected", lambda _: wanted | {key: (*wanted[key][:-1], 12345)}
    )
    with pytest.raises(errors.UsageError, match=f"1 of .* differ .*hour and carrier .*{key[1]}"):
        spark_flights.run(spark, tmp_path, limit_count=50)
