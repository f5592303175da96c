"""Several queues in one directory: a file belongs to the one queue that its whole name tells."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

import pytest
from support import files

from pagequeue import Queue, Retention, errors, repair_queue, salvage_queue, verify_queue
from pagequeue import format as fmt
from pagequeue.meta.ledger import published_name, publishing_name, sending_name
from pagequeue.meta.manifest import manifest_name
from pagequeue.spark.options import ReadOptions
from pagequeue.spark.path_glob import find

if TYPE_CHECKING:
    from pathlib import Path

PREFIXES = (
    "queue",
    "QUEUE",
    "queue-0000000001",
    "queue.page",
    "q",
    "queue-staged",
    "queue-allMeta",
    "queue.dead.workers",
    "queue-0000000001.page",
    "queue.lock",
    "queue-publishing",
    "queue-manifest.json",
    "queue-1.idx",
)
PAGE = 4096
COUNT = 120


def names_of(prefix: str) -> list[str]:
    """Return the names of all files that a queue can have."""
    final = [
        fmt.page_name(prefix, 1),
        fmt.index_name(prefix, 9_999_999_999),
        fmt.all_meta_name(prefix),
        fmt.write_meta_name(prefix),
        fmt.read_meta_name(prefix),
        fmt.cursor_name(prefix, "c"),
        fmt.cursor_name(prefix, "x-allMeta"),
        fmt.cursor_name(prefix, "q-0000000001.page"),
        publishing_name(prefix),
        sending_name(prefix),
        published_name(prefix, "0" * 32),
        manifest_name(prefix),
    ]
    temporary = [f"{name}.tmp-next" for name in final]
    return [*final, *temporary, fmt.spare_name(prefix), fmt.lock_name(prefix)]


def payloads(prefix: str) -> list[bytes]:
    """Return what is sent to a queue."""
    return [f"{prefix} {number} {'x' * 50}".encode() for number in range(COUNT)]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory with a queue of every prefix."""
    directory = tmp_path / "d"
    for prefix in PREFIXES:
        with Queue(directory, prefix=prefix, page_bytes=PAGE) as queue:
            with queue.producer() as producer:
                for payload in payloads(prefix):
                    producer.send(payload)
                producer.flush()
            with queue.consumer("c") as consumer:
                consumer.receive_many(50, timeout=60)
                consumer.ack()
    return directory


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_name_has_one_owner(prefix: str) -> None:
    """The whole name tells; and the patterns of one queue agree with it."""
    for name in names_of(prefix):
        assert fmt.owner_of(name) == prefix, name
    for other, name in itertools.product(PREFIXES, names_of(prefix)):
        own = other == prefix and not name.endswith(".lock")
        assert (fmt.file_pattern(other).fullmatch(name) is not None) == own, (other, name)
        if other != prefix:
            assert fmt.page_name_pattern(other).fullmatch(name) is None
            assert fmt.consumer_of(other, name) is None


@pytest.mark.parametrize(
    "name", ["README", "queue", "queue-1.page", "queue-00000000001.page", "-allMeta", "queue-x"]
)
def test_other_names_have_no_owner(name: str) -> None:
    """What no queue writes belongs to none."""
    assert fmt.owner_of(name) is None


@pytest.mark.slow
def test_queues_in_one_directory_are_no_damage_of_each_other(shared: Path, tmp_path: Path) -> None:
    """Verify finds no problem, repair takes no action, salvage copies one."""

    def lasting() -> dict[str, bytes]:
        """Return the files that repair has no reason to touch; it makes the writers' lock again."""
        return {n: data for n, data in files(shared).items() if not n.endswith("-writeMeta")}

    before = lasting()
    for prefix in PREFIXES:
        assert verify_queue(shared, prefix=prefix).problems == []
        report = repair_queue(shared, prefix=prefix)
        assert (report.actions, report.remaining) == ([], [])
        target = tmp_path / "all"  # one directory for all of the copies
        assert salvage_queue(shared, target, prefix=prefix).messages_copied == COUNT
    assert lasting() == before
    for prefix in PREFIXES:
        with Queue(target, prefix=prefix, read_only=True) as queue:
            assert [m.payload for m in queue.replay()] == payloads(prefix)


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("prefix", ["queue", "queue-0000000001", "QUEUE", "q"])
def test_no_file_of_another_queue_is_changed(shared: Path, prefix: str) -> None:
    """Retention, recovery, rolling, compressing and shipping touch the files of one queue."""
    for other in PREFIXES:  # what an interrupted maker leaves
        (shared / f"{fmt.page_name(other, 77)}.tmp-next").write_bytes(b"half")
    before = {name: data for name, data in files(shared).items() if fmt.owner_of(name) != prefix}
    meta = shared / fmt.write_meta_name(prefix)
    meta.write_bytes(meta.read_bytes()[:64] + bytes(16) + meta.read_bytes()[80:])
    with Queue(
        shared, prefix=prefix, retention=Retention(max_bytes=3 * PAGE), on_full="drop_oldest"
    ) as queue:
        with queue.producer() as producer:
            for payload in payloads(prefix):
                producer.send(payload)
            producer.flush()
        queue.compress()
        queue.trim()
        assert queue.head_sequence > 0
        queue.ship(shared.parent / "ship")
    after = {name: data for name, data in files(shared).items() if fmt.owner_of(name) != prefix}
    assert after == before


def test_misnamed_page_is_still_found(shared: Path) -> None:
    """A page whose name has other capitals is damage where no queue has these."""
    for prefix in ("QUEUE", "q"):
        for path in list(shared.iterdir()):
            if fmt.owner_of(path.name) == prefix:
                path.unlink()
    shutil.copy(shared / fmt.page_name("queue", 1), shared / fmt.page_name("QUEUE", 1))
    (problem,) = verify_queue(shared).problems
    assert problem.file == str(shared / fmt.page_name("QUEUE", 1))
    assert "never read" in problem.reason


@pytest.mark.parametrize(("first", "second"), [("queue", "queue-ship"), ("queue-ship", "queue")])
def test_prefixes_that_share_a_name_are_refused(tmp_path: Path, first: str, second: str) -> None:
    """The lock of shipping one would be the lock of the other: the error names file and remedy."""
    Queue(tmp_path, prefix=first).close()
    before = files(tmp_path)
    with pytest.raises(errors.InvalidOption, match=r"queue-ship\.lock .* choose another prefix"):
        Queue(tmp_path, prefix=second)
    assert files(tmp_path) == before
    Queue(tmp_path, prefix=first).close()


def test_ship_next_to_a_queue_that_shares_its_lock_is_refused(tmp_path: Path) -> None:
    """The target's directory is checked as well."""
    Queue(tmp_path / "to", prefix="queue-ship").close()
    with Queue(tmp_path / "from") as queue:
        queue.rotate()
        with pytest.raises(errors.InvalidOption, match="choose another prefix"):
            queue.ship(tmp_path / "to")


def test_error_for_a_wrong_prefix_lists_the_existing_ones(tmp_path: Path) -> None:
    """The error names the queues of the directory."""
    Queue(tmp_path, prefix="events").close()
    with pytest.raises(errors.QueueNotFound, match=r"one with 'events'"):
        Queue(tmp_path, create=False)


def test_glob_of_prefixes_finds_queues_and_no_consumer(tmp_path: Path) -> None:
    """A consumer's file can end as an allMeta does."""
    for prefix in ("a", "b-allMeta"):
        with Queue(tmp_path, prefix=prefix) as queue:
            queue.consumer("x-allMeta").close()
    found = find(ReadOptions((str(tmp_path),), prefix="*"))
    assert [queue.prefix for queue in found] == ["a", "b-allMeta"]
