"""Staged rows of jobs that ended: none stays, however and whenever the tasks end."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import Queue, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa

from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.queue.queue import internals
from pagequeue.spark import staging, writing
from pagequeue.spark.columns import schema_of
from pagequeue.spark.options import write_options
from pagequeue.spark.writing import BATCH, QUERY, BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.spark
SCHEMA = schema_of(["payload"])


class Killed(BaseException):
    """The process was killed here."""


def rows(*payloads: str) -> pa.RecordBatch:
    """Return one batch."""
    return pa.RecordBatch.from_arrays([pa.array(payloads)], names=["payload"])


def left(directory: Path) -> list[str]:
    """Return what is in the staging directory, without the publishers' lock."""
    return sorted({*os.listdir(directory / "queue-staged")} - {"lock"})


def payloads(directory: Path) -> list[bytes]:
    """Return the messages."""
    with Queue(directory) as queue:
        return [message.payload for message in queue.replay()]


def table_writer(directory: Path) -> Any:  # noqa: ANN401 - its messages are not typed
    """Return a writer as the driver makes it and tasks get it."""
    made = BatchWriter(write_options({"path": str(directory)}), SCHEMA, overwrite=False)
    return pickle.loads(pickle.dumps(made))


@pytest.fixture
def stream_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], StreamWriter]:
    """Return what gives a writer whose tasks are of this query and batch."""

    def made(query: str, batch: int) -> Any:  # noqa: ANN401 - its messages are not typed
        class Context:
            @staticmethod
            def get() -> type[Context]:
                return Context

            @staticmethod
            def getLocalProperty(name: str) -> str:  # noqa: N802 - Spark's
                return {QUERY: query, BATCH: str(batch)}[name]

        monkeypatch.setattr(writing, "TaskContext", Context)
        return StreamWriter(write_options({"path": str(tmp_path / "q")}), SCHEMA, overwrite=False)

    return made


@pytest.mark.parametrize("end", ["abort", "commit"])
@pytest.mark.parametrize("count", [0, 2])
def test_a_task_that_continues_after_its_job_ended_leaves_no_file(
    tmp_path: Path, end: str, count: int
) -> None:
    """Its file is removed with the job: no file is left when the job or the task has ended."""
    writer = table_writer(tmp_path / "q")
    won = writer.write(iter([rows("won")]))
    begun, ended = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        if count:
            yield rows("a")
        begun.set()
        assert ended.wait(60)
        if count:
            yield rows("b")

    def work() -> None:
        try:
            writer.write(slow())
        except errors.AccessError as error:
            said.append(str(error))

    said: list[str] = []
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60)
        assert len(os.listdir(tmp_path / "q" / "queue-staged" / left(tmp_path / "q")[0])) == 2
        getattr(writer, end)([won])
        assert left(tmp_path / "q") == []
    finally:
        ended.set()
        thread.join()
    assert left(tmp_path / "q") == []
    assert [text for text in said if "has ended" not in text] == []
    assert payloads(tmp_path / "q") == ([b"won"] if end == "commit" else [])


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_task_that_starts_after_its_job_ended_creates_nothing(tmp_path: Path, end: str) -> None:
    """There is no directory for it any more, and it makes none."""
    writer = table_writer(tmp_path / "q")
    getattr(writer, end)([])
    with pytest.raises(errors.AccessError, match=r"has ended.*run the job again"):
        writer.write(iter([rows("late")]))
    assert left(tmp_path / "q") == []
    assert payloads(tmp_path / "q") == []


def test_a_killed_task_leaves_nothing(tmp_path: Path) -> None:
    """Its unfinished file has no message; the abort of its job takes it."""
    writer = table_writer(tmp_path / "q")
    writer.write(iter([rows("unfinished")]))
    with_another = table_writer(tmp_path / "q")
    message = with_another.write(iter([rows("kept")]))
    writer.abort([None])
    assert len(left(tmp_path / "q")) == 1
    with_another.commit([message])
    assert left(tmp_path / "q") == []
    assert payloads(tmp_path / "q") == [b"kept"]


def test_a_file_that_was_created_while_its_job_ended_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task resolved the directory before the rename, and creates its file after it."""
    writer = table_writer(tmp_path / "q")
    remove, seen = shutil.rmtree, []

    def removing(path: str, *, ignore_errors: bool) -> None:
        if not seen:
            seen.append(path)
            open(os.path.join(path, "late.arrow"), "xb").close()
            return  # the directory was not empty when it was to go
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(staging.shutil, "rmtree", removing)
    writer.abort([])
    assert len(seen) == 1
    assert left(tmp_path / "q") == []


@pytest.mark.parametrize("by", ["another job", "a publisher"])
def test_an_end_that_was_interrupted_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The driver is killed while it removes: no task adds a file, and the next one removes it."""
    writer, other = table_writer(tmp_path / "q"), table_writer(tmp_path / "q")
    writer.write(iter([rows("aborted")]))

    def dies(path: str, *, ignore_errors: bool) -> None:
        raise Killed(path, ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(staging.shutil, "rmtree", dies)
        with pytest.raises(Killed):
            writer.abort([])
    with pytest.raises(errors.AccessError, match="has ended"):
        writer.write(iter([rows("late")]))
    assert len(left(tmp_path / "q")) == 2
    if by == "another job":
        other.abort([])
        assert left(tmp_path / "q") == []
    else:
        with Queue(tmp_path / "q") as queue, BulkPublisher(internals(queue).store) as publisher:
            assert publisher.done("nobody", 0) is None
        assert [name.partition("-")[0] for name in left(tmp_path / "q")] == ["rows"]


def test_a_job_ends_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be renamed is removed as it is."""
    writer = table_writer(tmp_path / "q")
    writer.write(iter([rows("aborted")]))

    def refuses(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(staging.os, "rename", refuses)
        writer.abort([])
    assert left(tmp_path / "q") == []
    with pytest.raises(errors.AccessError, match="has ended"):
        writer.write(iter([rows("late")]))


def test_staged_files_that_cannot_be_removed_fail_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are published by then: an error would make Spark's user write them again."""
    writer = table_writer(tmp_path / "q")
    message = writer.write(iter([rows("a")]))

    def refuses(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(staging.os, "scandir", refuses)
        writer.commit([message])
    assert payloads(tmp_path / "q") == [b"a"]


def test_only_jobs_without_a_change_for_weeks_are_abandoned(tmp_path: Path) -> None:
    """The directory of a dead driver goes; a file that is still written to keeps its job."""
    now = time.time()
    old = now - staging.ABANDONED_SECONDS - 60
    for is_live in (False, True):
        writer = table_writer(tmp_path / "q")
        writer.write(iter([rows("a")]))
        (job,) = left(tmp_path / "q")
        staged = tmp_path / "q" / "queue-staged" / job
        (file,) = staged.iterdir()
        for _ in range(2):  # found to be old, and a week later again
            for path in staged.iterdir():
                os.utime(path, (now, now if is_live and path == file else old))
            os.utime(staged, (old, old))
            assert left(tmp_path / "q") == [job]
            table_writer(tmp_path / "q").abort([])
        assert left(tmp_path / "q") == ([job] if is_live else [])


def test_clock_ahead_for_a_moment_abandons_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other jobs end then, and long afterwards: it is still written to."""
    writer = table_writer(tmp_path / "q")
    message = writer.write(iter([rows("a")]))
    (job,) = left(tmp_path / "q")
    staged = tmp_path / "q" / "queue-staged" / job
    with monkeypatch.context() as wrong:
        ahead = time.time() + 2 * staging.ABANDONED_SECONDS
        wrong.setattr(staging.time, "time", lambda: ahead)
        for _ in range(3):
            table_writer(tmp_path / "q").abort([])
        assert staged.exists()
    note = staged / staging.FOUND_OLD
    old = time.time() - 60
    os.utime(note, (old, old))
    writer.write(iter([rows("killed")]))
    with monkeypatch.context() as wrong:
        ahead = time.time() + 2 * staging.ABANDONED_SECONDS
        wrong.setattr(staging.time, "time", lambda: ahead)
        table_writer(tmp_path / "q").abort([])
    writer.commit([message])
    assert payloads(tmp_path / "q") == [b"a"]


def test_rows_of_a_streams_late_tasks_go_at_its_next_commit(
    tmp_path: Path, stream_writer: Callable[[str, int], Any]
) -> None:
    """The next commit removes what a task added after an abort, and of no other query.

    An abort without messages does not know its query, and leaves all to that commit.
    """
    directory = tmp_path / "q"
    other = stream_writer("other", 3)
    message = other.write(iter([rows("other")]))
    kept = left(directory)
    writer = stream_writer("query", 3)
    won = writer.write(iter([rows("a")]))
    writer.write(iter([rows("killed")]))
    writer.abort([None, won], 3)
    assert left(directory) == kept
    writer.write(iter([rows("late")]))
    writer.abort([None], 3)
    assert left(directory) == [*kept, "rows-query-3"]
    ahead = stream_writer("query", 12)
    ahead.write(iter([rows("of a batch to come")]))
    writer = stream_writer("query", 4)
    writer.commit([writer.write(iter([rows("b")]))], 4)
    assert left(directory) == [*kept, "rows-query-12"]
    other.commit([message], 3)
    assert left(directory) == ["rows-query-12"]
    assert payloads(directory) == [b"b", b"other"]
