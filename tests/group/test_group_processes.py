"""Groups over processes and threads: owners that die or stop, forks, names and removal."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import warm
from group_support import send
from support import LONG, until_asleep

import pagequeue
from pagequeue import Queue, Retention, errors
from pagequeue import format as fmt

if TYPE_CHECKING:
    from pathlib import Path

CLAIMER = """
import sys, time
from pagequeue import Queue
with Queue(sys.argv[1]) as queue:
    group = queue.group("work", lease=float(sys.argv[2]))
    claims = group.claim_many(int(sys.argv[3]), timeout=60)
    print(len(claims), flush=True)
    time.sleep(60)
"""


def claimer(path: Path, lease: float, count: int) -> warm.Popen:
    """Start a process that claims some, and wait until it has them."""
    command = [sys.executable, "-c", CLAIMER, str(path), str(lease), str(count)]
    process = warm.Popen(command, stdout=warm.PIPE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == count
    return process


def end(process: warm.Popen, number: int = signal.SIGKILL) -> None:
    """Kill a process."""
    process.send_signal(number)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_claims_of_a_killed_process_are_redelivered_at_once(tmp_path: Path) -> None:
    """I14: no worker waits for a lease of an hour when the kernel reports its owner dead."""
    with Queue(tmp_path) as queue:
        send(queue, 4)
        process = claimer(tmp_path, 3600, 3)
        group = queue.group("work")
        assert group.claim(timeout=0).message.sequence == 3
        with pytest.raises(TimeoutError):
            group.claim(timeout=0.2)
        end(process)
        claims = [group.claim(timeout=LONG) for _ in range(3)]
        redelivered = sorted((one.message.sequence, one.deliveries) for one in claims)
        assert redelivered == [(0, 2), (1, 2), (2, 2)]


def test_a_waiting_worker_gets_the_claims_of_a_killed_one(tmp_path: Path) -> None:
    """I7: it polls for dead owners in between, and sleeps."""
    with Queue(tmp_path) as queue:
        send(queue, 1)
        process = claimer(tmp_path, 3600, 1)
        group = queue.group("work")
        got: list[pagequeue.Claim] = []
        thread = threading.Thread(target=lambda: got.append(group.claim(timeout=2 * LONG)))
        thread.start()
        until_asleep(thread)
        end(process)
        thread.join(LONG)
        assert [claim.deliveries for claim in got] == [2]


def test_claims_of_a_stopped_process_are_redelivered_when_their_lease_ends(tmp_path: Path) -> None:
    """I15: a stopped worker is not dead, so only its lease ends what it has."""
    with Queue(tmp_path) as queue:
        send(queue, 1)
        process = claimer(tmp_path, 1.0, 1)
        process.send_signal(signal.SIGSTOP)
        assert queue.group("work").claim(timeout=LONG).deliveries == 2
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
        assert not group._release_dead_owners()
        other = queue.group("work")
        assert not other._release_dead_owners()
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


@pytest.mark.slow
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
        until_asleep(thread)
        group.close()
        thread.join(LONG)
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


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with Queue(tmp_path) as queue:
        for options in (
            {"lease": 0},
            {"lease": -1},
            {"lease": float("nan")},
            {"max_deliveries": 0},
            {"capacity": 0},
            {"capacity": fmt.GROUP_CAPACITY_MAX + 1},
            {"on_expired": "x"},
            {"latest": True, "sequence": 0},
        ):
            with pytest.raises(errors.InvalidOption):
                queue.group("work", **options)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidOption, match="name of a group is 'a b'"):
            queue.group("a b")
        with pytest.raises(errors.InvalidOption):
            queue.group("x" * 99, max_deliveries=1)
        assert queue.consumers() == []
        with pytest.raises(errors.InvalidOption):
            queue.group("work").claim_many(0)


def test_start_position_applies_to_a_new_group_only(tmp_path: Path) -> None:
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
    """A handle that has claims must not lose its group."""
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


@pytest.mark.parametrize("seconds", [-1.0, 1e10, math.inf, math.nan])
def test_span_of_a_claim_has_a_limit(tmp_path: Path, seconds: float) -> None:
    """An invalid number parks no message for ever; the claim is unchanged."""
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        producer.send(b"x")
        with queue.group("g") as group:
            claim = group.claim(timeout=60)
            with pytest.raises(ValueError, match=r"delay is .*: give seconds, 0 to 1e\+09"):
                claim.nack(delay=seconds)
            with pytest.raises(ValueError, match=r"seconds is .*: give seconds, 0 to 1e\+09"):
                claim.extend(seconds)
            claim.ack()


def test_group_behind_retention_gets_the_remedy(tmp_path: Path) -> None:
    """A group has no seek: the error names the option that continues, and it works."""
    retention = Retention(max_bytes=16_384, keep_unacked=False)
    with Queue(tmp_path / "q", page_bytes=4096, retention=retention) as queue:
        queue.group("g").close()
        with queue.producer() as producer:
            for _ in range(50):
                producer.send(bytes(1000))
        queue.trim()
        with queue.group("g") as group, pytest.raises(errors.Expired, match="on_expired='skip'"):
            group.claim(timeout=0)
        with queue.group("g", on_expired="skip") as group:
            assert group.claim(timeout=60).message.sequence == queue.head_sequence


def test_capacity_is_that_which_was_given_last(tmp_path: Path) -> None:
    """It can be raised and lowered; a handle that gives none leaves it as it is."""
    with Queue(tmp_path) as queue:
        send(queue, 40)
        group = queue.group("work", capacity=16)
        assert len(group.claim_many(100, timeout=0)) == 16
        with pytest.raises(errors.TooManyClaims, match="16 messages are claimed or delayed"):
            group.claim(timeout=0)
        other = queue.group("work", capacity=20)
        assert len(group.claim_many(100, timeout=0)) == 4
        queue.group("work", capacity=10).close()
        for handle in (group, other, queue.group("work")):
            with pytest.raises(errors.TooManyClaims, match="10 messages are claimed or delayed"):
                handle.claim(timeout=0)
        found = queue.consumers()[0].group
        assert found is not None
        assert found.capacity == 10
