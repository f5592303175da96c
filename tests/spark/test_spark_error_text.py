"""Errors of this package come back from Spark as their own classes, whichever reader read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support import flip

from pagequeue import Queue, errors
from pagequeue import format as fmt

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException, SparkRuntimeException

from pagequeue import spark as pages
from pagequeue.spark.error_text import ATTRIBUTES, attributes_of, noted, raise_own

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def line(error: errors.PageQueueError) -> str:
    """Return an error as it is in the text of Spark's."""
    return f"pagequeue.errors.{type(error).__name__}: {error}\n{ATTRIBUTES}{attributes_of(error)}"


def raised(text: str) -> errors.PageQueueError:
    """Return what is raised for an exception of Spark's with this text."""
    with pytest.raises(errors.PageQueueError) as caught:
        raise_own(PySparkException(text))
    return caught.value


def test_an_error_is_the_same_after_its_way_through_text() -> None:
    """Class, message and attributes; what is around the two lines does not matter."""
    first = errors.CorruptFrame(
        "message 3: wrong", path='a "b"\\é', position=64, sequence=3, reason="wrong", remedy="mend"
    )
    found = raised(f"Job aborted: java.lang.Exception: \n{line(first)}\n\tat Frames.java:12")
    assert (type(found), str(found)) == (type(first), str(first))
    assert vars(found) == vars(first)
    assert found.problem == first.problem
    missing = errors.QueueNotFound("not there", path="a")
    missing.errno, missing.filename = 2, "a"
    again = raised(line(missing))
    assert (again.errno, again.filename, again.path) == (2, "a", "a")  # type: ignore[attr-defined]
    full = errors.QueueFull("full", held_by=("a", "b"))
    assert raised(line(full)).held_by == ("a", "b")  # type: ignore[attr-defined]


def test_the_last_error_of_a_chain_is_raised() -> None:
    """A traceback begins with what an error was raised from."""
    cause = line(errors.CorruptPage("page", position=0, reason="x"))
    found = raised(f"{cause}\n\nDuring handling\n\n{line(errors.Expired('gone', head_sequence=4))}")
    assert type(found) is errors.Expired
    assert vars(found) == {"path": None, "remedy": None, "head_sequence": 4}


@pytest.mark.parametrize(
    "text",
    [
        "pagequeue.errors.annotations: x",
        "pagequeue.errors.Nothing: x",
        "pagequeue.errors.os: x",
        "in pagequeue.errors.Expired: x",
        "",
    ],
)
def test_other_text_is_not_an_error_of_ours(text: str) -> None:
    """Only names of our classes, at the beginning of a line."""
    raise_own(PySparkException(text))


@pytest.mark.parametrize("attributes", ["{", "{]}", '{"a": 1', "{}", '{"problem": "x"}'])
def test_attributes_that_are_none_do_not_hide_the_error(attributes: str) -> None:
    """A path can look like them."""
    found = raised(f"pagequeue.errors.Expired: gone\n{ATTRIBUTES}{attributes}")
    assert str(found) == found.problem == "gone"


def test_errors_carry_a_note_to_the_driver() -> None:
    """Also where they are raised in a function that is decorated; others carry none."""

    @noted()
    def fails(error: Exception) -> None:
        raise error

    with pytest.raises(errors.Expired) as caught:
        fails(errors.Expired("gone", head_sequence=4))
    assert caught.value.__notes__ == [
        ATTRIBUTES + '{"path": null, "remedy": null, "head_sequence": 4}'
    ]
    with pytest.raises(KeyError) as other:
        fails(KeyError("gone"))
    assert not hasattr(other.value, "__notes__")


def test_typed_errors_leaves_other_errors_alone() -> None:
    """Only what Spark raised is looked into."""
    text = line(errors.Expired("gone"))
    with pytest.raises(ValueError, match="gone") as caught, pages.typed_errors():
        raise ValueError(text)
    assert type(caught.value) is ValueError
    with pytest.raises(PySparkException, match="nothing of ours"), pages.typed_errors():
        raise PySparkException("nothing of ours")


@pytest.mark.parametrize("reader", ["python", "native"])
def test_a_damaged_frame_is_typed_whichever_reader_read(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """A task's error and planning's: Spark's own tells all as text, and ours is the class."""
    path = tmp_path / 'a ${b} <c> "%s" \\é'
    with Queue(path, page_bytes=4096) as queue, queue.producer() as producer:
        for number in range(300):
            producer.send(b"m%04d" % number * 5)
    page = path / fmt.page_name("queue", 2)
    flip(page, 64 + 20)
    with Queue(path, read_only=True) as queue, pytest.raises(errors.CorruptFrame) as plain:
        list(queue.replay())

    def typed(way: Any) -> errors.PageQueueError:  # noqa: ANN401 - a bound method
        with pytest.raises(errors.PageQueueError) as caught, pages.typed_errors():
            way()
        return caught.value

    wanted = (errors.CorruptFrame, str(plain.value), vars(plain.value))
    frame = pages.read(spark, path, reader=reader)
    found = typed(frame.collect)
    assert (type(found), str(found), vars(found)) == wanted
    cause = found.__cause__
    assert isinstance(cause, PySparkException)  # not py4j's
    assert isinstance(cause, SparkRuntimeException) == (reader == "native")
    for told in (f"pagequeue.errors.CorruptFrame: {page}", "at position 64", "repair or salvage"):
        assert told in str(cause)
    if reader == "native":  # each task of Python's that fails takes its worker along
        found = typed(lambda: list(frame.toLocalIterator()))
        assert (type(found), str(found), vars(found)) == wanted
    page.unlink()
    found = typed(pages.read(spark, path, reader=reader).collect)
    assert isinstance(found, errors.MissingPage)
    assert (found.path, found.reason) == (str(page), "missing page")
