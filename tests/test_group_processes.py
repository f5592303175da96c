"""Groups over processes: owners that die or stop, forks, files that are damaged, retention."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support import pretend_power_cut

import pagequeue
from pagequeue import Queue, Retention, errors
from pagequeue import format as fmt
from pagequeue import format_groups as gfmt
from pagequeue.group_file import GroupFile, decode_snapshot

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES = 4096
CLAIMER = """
import sys, time
from pagequeue import Queue
with Queue(sys.argv[1]) as queue:
    group = queue.group("work", lease=float(sys.argv[2]))
    claims = group.claim_many(int(sys.argv[3]), timeout=5)
    print(len(claims), flush=True)
    time.sleep(60)
"""


def send(queue: Queue, count: int, size: int = 1) -> None:
    """Send some messages."""
    with queue.producer() as producer:
        for number in range(count):
            producer.send(b"%d" % number * size)


def claimer(path: Path, lease: float, count: int) -> subprocess.Popen[bytes]:
    """Start a process that claims some, and wait until it has them."""
    command = [sys.executable, "-c", CLAIMER, str(path), str(lease), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == count
    return process


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Kill a process."""
    process.send_signal(number)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_claims_of_a_killed_process_come_again_at_once(tmp_path: Path) -> None:
    """I14: nobody waits for a lease of an hour when the kernel says that its owner is dead."""
    with Queue(tmp_path) as queue:
        send(queue, 4)
        process = claimer(tmp_path, 3600, 3)
        group = queue.group("work")
        assert group.claim(timeout=0).message.sequence == 3
        with pytest.raises(TimeoutError):
            group.claim(timeout=0.2)
        end(process)
        claims = [group.claim(timeout=10) for _ in range(3)]
        assert [(one.message.sequence, one.deliveries) for one in claims] == [
            (0, 2), (1, 2), (2, 2),
        ]  # fmt: skip


def test_a_waiting_worker_gets_what_a_killed_one_had(tmp_path: Path) -> None:
    """I7: it looks by itself while it sleeps, and sleeping costs next to nothing."""
    with Queue(tmp_path) as queue:
        send(queue, 1)
        process = claimer(tmp_path, 3600, 1)
        group = queue.group("work")
        got: list[pagequeue.Claim] = []
        thread = threading.Thread(target=lambda: got.append(group.claim(timeout=30)))
        cpu = time.process_time()
        thread.start()
        time.sleep(1)
        assert time.process_time() - cpu < 0.5, "it does not sleep"
        began = time.monotonic()
        end(process)
        thread.join()
        assert time.monotonic() - began < 10
        assert got[0].deliveries == 2


def test_claims_of_a_stopped_process_come_again_when_their_lease_ends(tmp_path: Path) -> None:
    """I15: a stopped worker is not dead, so only its lease ends what it has."""
    with Queue(tmp_path) as queue:
        send(queue, 1)
        process = claimer(tmp_path, 1.0, 1)
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert queue.group("work").claim(timeout=20).deliveries == 2
        assert time.monotonic() - began < 15
        end(process)


def test_a_forked_child_must_open_the_group_itself(tmp_path: Path) -> None:
    """The parent's claims stay its own, also when a child that inherited them has ended."""
    with Queue(tmp_path) as queue:
        send(queue, 2)
        group = queue.group("work")
        claim = group.claim(timeout=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (claim.ack, group.claim, group.flush, lambda: group.lag):
                    with pytest.raises(errors.ForkedError):
                        call()
                group.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert not group._look_at_owners()
        other = queue.group("work")
        assert not other._look_at_owners()
        claim.ack()


def work(path: str, total: int) -> None:
    """Claim and acknowledge until all is done."""
    with Queue(path) as queue:
        group = queue.group("work", lease=20)
        seen = open(f"{path}/seen-{os.getpid()}", "w", encoding="ascii")  # noqa: SIM115
        while group.lag:
            try:
                claim = group.claim(timeout=0.05)
            except TimeoutError:
                continue
            seen.write(f"{claim.message.sequence}\n")
            claim.ack()
        seen.close()
        assert queue.tail_sequence == total


def test_processes_share_all_messages_each_once(tmp_path: Path) -> None:
    """I15: four workers together have each message exactly once."""
    total = 4000
    with Queue(tmp_path, page_bytes=65536) as queue:
        send(queue, total)
        queue.group("work").close()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(str(tmp_path), total)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    seen = [int(line) for path in tmp_path.glob("seen-*") for line in path.read_text().split()]
    assert sorted(seen) == list(range(total))


def test_threads_share_one_handle(tmp_path: Path) -> None:
    """Threads of a process claim and acknowledge through one handle, each message once."""
    total = 3000
    seen: list[int] = []
    with Queue(tmp_path, page_bytes=65536) as queue:
        send(queue, total)
        group = queue.group("work")

        def run() -> None:
            while True:
                try:
                    claim = group.claim(timeout=0.05)
                except TimeoutError:
                    return
                seen.append(claim.message.sequence)
                claim.ack()

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(total))
        assert group.lag == 0


def test_closing_ends_a_wait(tmp_path: Path) -> None:
    """A thread that waits hears of it when another closes the handle."""
    with Queue(tmp_path) as queue:
        group = queue.group("work")
        raised: list[BaseException] = []

        def run() -> None:
            try:
                group.claim()
            except errors.ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.2)
        group.close()
        thread.join(10)
        assert len(raised) == 1


# --- names, listing, removing ---------------------------------------------------------------------


def test_a_name_is_a_consumer_or_a_group(tmp_path: Path) -> None:
    """Neither opens the other's file, and neither harms it."""
    with Queue(tmp_path) as queue:
        queue.consumer("a").close()
        queue.group("b").close()
        with pytest.raises(errors.UsageError, match="is a group"):
            queue.consumer("b")
        with pytest.raises(errors.UsageError, match="is a consumer"):
            queue.group("a")
        kinds = [(one.name, one.group is not None) for one in queue.consumers()]
        assert kinds == [("a", False), ("b", True)]


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with Queue(tmp_path) as queue:
        for options in (
            {"lease": 0}, {"lease": -1}, {"lease": float("nan")}, {"max_deliveries": 0},
            {"capacity": 0}, {"capacity": gfmt.GROUP_CAPACITY_MAX + 1}, {"on_expired": "x"},
            {"latest": True, "sequence": 0},
        ):  # fmt: skip
            with pytest.raises(errors.InvalidOption):
                queue.group("work", **options)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidOption):
            queue.group("x" * 99, max_deliveries=1)
        assert queue.consumers() == []
        with pytest.raises(errors.InvalidOption):
            queue.group("work").claim_many(0)


def test_a_group_begins_where_it_is_told_and_only_once(tmp_path: Path) -> None:
    """As for a consumer: a place for a group that exists is an error."""
    with Queue(tmp_path) as queue:
        send(queue, 5)
        assert queue.group("from", sequence=3).claim(timeout=0).message.sequence == 3
        assert queue.group("last", latest=True).lag == 0
        with pytest.raises(errors.UsageError, match="exists"):
            queue.group("from", sequence=1)
        with pytest.raises(errors.SequenceOutOfRange):
            queue.group("none", sequence=6)
    with Queue(tmp_path, read_only=True) as queue, pytest.raises(errors.ReadOnlyQueue):
        queue.group("from")


def test_a_group_that_is_open_is_not_removed(tmp_path: Path) -> None:
    """Whoever has claims must not find itself alone with them."""
    with Queue(tmp_path) as queue:
        send(queue, 2)
        group = queue.group("work")
        group.claim(timeout=0)
        (info,) = queue.consumers()
        assert info.is_open
        assert info.group is not None
        assert (info.lag, info.group.claimed, info.group.waiting) == (2, 1, 0)
        with pytest.raises(errors.ConsumerInUse):
            queue.remove_consumer("work")
        group.close()
        (info,) = queue.consumers()
        assert not info.is_open
        assert info.group is not None
        assert (info.group.claimed, info.group.waiting) == (0, 1)
        queue.remove_consumer("work")
        assert queue.consumers() == []
        assert queue.group("work").claim(timeout=0).deliveries == 1


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_file_is_an_error_and_keeps_pages(tmp_path: Path) -> None:
    """Nothing says where the group stood: verify reports it, and it is left."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 500)
        queue.group("work").claim(timeout=0)
    path = tmp_path / "queue-readMeta.work"
    good = path.read_bytes()
    for damage in (
        good[:100], good[:4096], b"x" * len(good), good[:16] + b"y" * 16 + good[32:],
        good[:36] + b"\0\0\0\0" + good[40:], good[:36] + b"\xff\xff\xff\x7f" + good[40:],
    ):  # fmt: skip
        path.write_bytes(damage)
        with Queue(tmp_path) as queue:
            with pytest.raises((errors.CorruptMeta, errors.UsageError)):
                queue.group("work")
            assert queue.verify().problems
            assert queue.consumers()[0].problem
            assert queue.trim().pages == 0
    path.write_bytes(good)


def test_any_bytes_in_the_table_are_survived(tmp_path: Path) -> None:
    """I9: whatever links, slots and counts say, only the file is touched, and nobody hangs."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 200)
        queue.group("work", capacity=16).close()
    path = tmp_path / "queue-readMeta.work"
    for seed in range(30):
        noise = bytes((seed * 37 + at * at) % 256 for at in range(200, 290))
        with Queue(tmp_path) as queue:
            group = queue.group("work", lease=0.001)
            group.claim_many(5, timeout=0.1)
            with path.open("r+b") as file:
                file.seek(256 if seed % 2 else 4096 + 8 * (seed % 100))
                file.write(noise[: 32 if seed % 2 else 80])
            for _ in range(20):
                try:
                    group.claim(timeout=0).ack()
                except errors.PageQueueError:
                    continue
            queue.consumers()
        path.unlink()
        with Queue(tmp_path) as queue:
            queue.group("work", capacity=16).close()


def test_a_file_truncated_under_a_handle_is_an_error(tmp_path: Path) -> None:
    """I9: no SIGBUS, and no success that is nowhere."""
    with Queue(tmp_path) as queue:
        send(queue, 3)
        group = queue.group("work")
        claim = group.claim(timeout=0)
        os.truncate(tmp_path / "queue-readMeta.work", 0)
        for call in (claim.ack, lambda: group.claim(timeout=0), group.flush):
            with pytest.raises(errors.CorruptMeta):
                call()
        group.close()


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    """I15: two files would be two tables, and every message could be claimed twice."""
    with Queue(tmp_path) as queue:
        send(queue, 3)
        group = queue.group("work")
        group.claim(timeout=0)
        path = tmp_path / "queue-readMeta.work"
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(errors.LockReplaced):
            group._look_at_owners()
        with pytest.raises(errors.ClosedError):
            group.claim(timeout=0)
        with pytest.raises(errors.CorruptMeta, match="put there"):
            queue.group("work")


def test_a_damaged_message_stops_nobody(tmp_path: Path) -> None:
    """It is told, tried again a second later, and goes to the dead letters; others go on."""
    with Queue(tmp_path, page_bytes=PAGE_BYTES) as queue:
        send(queue, 3)
        page = tmp_path / "queue-0000000001.page"
        with page.open("r+b") as file:
            file.seek(fmt.PAGE_HEADER_BYTES + fmt.FRAME_HEADER_BYTES)
            file.write(b"?")
        group = queue.group("work", max_deliveries=1)
        with pytest.raises(errors.CorruptFrame) as told:
            group.claim(timeout=0)
        assert told.value.sequence == 0
        assert [group.claim(timeout=0).message.sequence for _ in range(2)] == [1, 2]
        with pytest.raises(TimeoutError):
            group.claim(timeout=1.5)
        (letter,) = group.dead_letters()
        assert (letter.sequence, letter.payload, letter.reason) == (0, None, "could not be read")


# --- power cuts -----------------------------------------------------------------------------------


def test_a_torn_snapshot_leaves_the_one_before(tmp_path: Path) -> None:
    """I14: two places, in turn; what was flushed is never written to."""
    with Queue(tmp_path) as queue:
        send(queue, 10)
        group = queue.group("work", capacity=16)
        for claim in group.claim_many(5, timeout=0):
            if claim.message.sequence != 0:
                claim.ack()
        group.flush()
        group.claim(timeout=0).ack()
        group.flush()
        ordinal = group._group_file.region.load(GroupFile.SNAPSHOT)
    path = tmp_path / "queue-readMeta.work"
    data = bytearray(path.read_bytes())
    at = gfmt.snapshot_at(16, ordinal)
    newest = decode_snapshot(bytes(data[at : at + gfmt.snapshot_bytes(16)]))
    assert newest is not None
    assert newest.new_sequence == 6
    data[at + 20] ^= 1
    data[80:112] = b"\x55" * 32
    path.write_bytes(data)
    pretend_power_cut(tmp_path)
    with Queue(tmp_path) as queue:
        group = queue.group("work")
        again = [group.claim(timeout=0) for _ in range(2)]
        assert [(one.message.sequence, one.deliveries) for one in again] == [(0, 2), (5, 1)]


def test_a_group_ahead_of_the_tail_is_lowered(tmp_path: Path) -> None:
    """I11: sequences that the cut took are given anew, and nobody skips them."""
    with Queue(tmp_path) as queue:
        send(queue, 4)
        group = queue.group("work", capacity=16)
        for claim in group.claim_many(4, timeout=0)[1:]:
            claim.ack()
        group.flush()
    other = tmp_path / "other"
    with Queue(other) as queue:
        send(queue, 2)
    # What is left of the queue has two messages only.
    with Queue(tmp_path) as queue:
        frame = fmt.frame_bytes(1)
    for name, size in (("page", frame), ("idx", fmt.INDEX_RECORD_BYTES)):
        start = fmt.PAGE_HEADER_BYTES if name == "page" else 0
        with (tmp_path / f"queue-0000000001.{name}").open("r+b") as file:
            file.seek(start + 2 * size)
            file.write(bytes(2 * size))
    path = tmp_path / "queue-readMeta.work"
    data = bytearray(path.read_bytes())
    data[80:112] = b"\x55" * 32
    path.write_bytes(data)
    pretend_power_cut(tmp_path)
    with Queue(tmp_path) as queue:
        assert queue.tail_sequence == 2
        send(queue, 1)
        group = queue.group("work")
        got = [group.claim(timeout=0).message.sequence for _ in range(2)]
        assert got == [0, 2]


# --- retention ------------------------------------------------------------------------------------


def test_retention_keeps_what_a_group_has_not_done(tmp_path: Path) -> None:
    """I12: claimed is not acknowledged; one message in the first page keeps all pages."""
    keep = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=keep, on_full="drop_oldest") as queue:
        group = queue.group("work", on_expired="skip")
        send(queue, 150)
        first, *others = group.claim_many(100, timeout=0)
        for claim in others:
            claim.ack()
        assert queue.trim().held_by in {("work",), ()}
        assert queue.head_sequence == 0
        first.ack()
        send(queue, 600)
        head = queue.head_sequence
        assert head > 150
        group.close()  # it could finish the page that it has mapped
        group = queue.group("work", on_expired="skip")
        assert group.claim(timeout=0).message.sequence == head
        assert group.missed == head - 100


def test_a_group_that_retention_passed_says_so(tmp_path: Path) -> None:
    """`Expired` carries the head; a claimed message that is gone as well."""
    keep = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=keep, on_full="drop_oldest") as queue:
        group = queue.group("work")
        send(queue, 20)
        claim = group.claim(timeout=0)
        send(queue, 1000)
        claim.nack()
        group.close()
        group = queue.group("work")
        for _ in range(2):
            with pytest.raises(errors.Expired) as passed:
                group.claim(timeout=0)
            assert passed.value.head_sequence == queue.head_sequence
        group.close()
        group = queue.group("work", on_expired="skip")
        time.sleep(1.1)  # what cannot be read is tried again after a second
        assert group.claim(timeout=0).message.sequence >= queue.head_sequence
        assert group.missed > 0
