"""`pagequeue group`: listing, claiming with and without a command, dead letters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest
import warm
from support import LONG, until

from pagequeue import DeadLetter, LeaseLost, Message, Queue
from pagequeue.cli import main
from pagequeue.cli.job_runner import JobRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue import Claim

Capture = pytest.CaptureFixture[str]
WAIT_SECONDS = 60.0
COUNT = 5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue of five messages."""
    path = tmp_path / "jobs"
    with Queue(path, page_bytes=65_536) as queue, queue.producer() as producer:
        producer.send_many([b"job %d" % number for number in range(COUNT)])
    return path


def call(capture: Capture, *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process, and return exit code, stdout and stderr."""
    code = main([str(argument) for argument in arguments])
    out, err = capture.readouterr()
    return code, out, err


def acknowledged(directory: Path) -> int:
    """Return how many messages the group has acknowledged."""
    with Queue(directory, create=False, read_only=True) as queue:
        (info,) = queue.consumers()
        assert info.lag is not None
        return queue.tail_sequence - info.lag


def buried(directory: Path) -> None:
    """Move the first two messages to the dead letters."""
    with Queue(directory) as queue, queue.group("mailers", max_deliveries=1) as group:
        for claim in group.claim_many(2):
            claim.nack()
        group.claim(timeout=0).ack()  # claiming moves the spent ones


def test_claim_prints_and_acknowledges_each_message_once(directory: Path, capfd: Capture) -> None:
    """A later run continues, and an empty one prints nothing."""
    claim = ("group", "claim", directory, "mailers")
    assert call(capfd, *claim, "--count", 2)[:2] == (0, "job 0\njob 1\n")
    assert acknowledged(directory) == 2
    code, out, _ = call(capfd, *claim, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["sequence"], row["payload"], row["deliveries"]) for row in rows] == [
        (2, "job 2", 1),
        (3, "job 3", 1),
        (4, "job 4", 1),
    ]
    assert call(capfd, *claim) == (0, "", "")


def test_claim_into_a_closed_pipe_acknowledges_what_was_read(directory: Path) -> None:
    """As for `receive --consumer`: what `head` did not read is claimed by the next worker."""
    command = f'pagequeue group claim "{directory}" mailers'
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 2; exit ${{PIPESTATUS[0]}}"],
        env=warm.environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, "job 0\njob 1\n", "")
    assert acknowledged(directory) == 2


def test_command_that_fails_has_its_message_redelivered_by_a_later_run(
    directory: Path, tmp_path: Path, capfd: Capture
) -> None:
    """Each message once in a run; those that the command ended with 0 for are acknowledged."""
    seen = tmp_path / "seen"
    program = f"IFS= read -r line; echo $line >> '{seen}'; [ \"$line\" != 'job 1' ]"
    claim = ("group", "claim", directory, "mailers", "--retry-after", 0, "--", "sh", "-c", program)
    code, _, err = call(capfd, *claim)
    assert (code, seen.read_text()) == (1, "".join(f"job {n}\n" for n in range(COUNT)))
    assert "message 1: sh ended with 1, 1 delivery so far" in err
    assert acknowledged(directory) == COUNT - 1
    assert call(capfd, *claim)[0] == 1
    assert seen.read_text().splitlines()[COUNT:] == ["job 1"]


@pytest.mark.parametrize("follow", [False, True])
def test_dead_letter_tells_how_the_command_ended(
    directory: Path, capfd: Capture, *, follow: bool
) -> None:
    """The last failure is the reason."""
    limits = ["--max-deliveries", 1, *(["--follow", "--count", 1] if follow else [])]
    words = ("sh", "-c", "cat >/dev/null; exit 3")
    assert call(capfd, "group", "claim", directory, "mailers", *limits, "--", *words)[0] == 1
    out = call(capfd, "group", "dead", directory, "mailers", "--json")[1]
    letters = [json.loads(line) for line in out.splitlines()]
    assert {letter["reason"] for letter in letters} == {"sh ended with 3"}
    assert len(letters) == (1 if follow else COUNT)


def test_lease_is_extended_while_the_command_runs(tmp_path: Path) -> None:
    """A command that takes longer than the lease ends in an acknowledgement, not in LeaseLost.

    The command ends when the lease was extended, which a third of it before may be: a machine that
    stands still for some seconds is no failure.
    """
    lease, extended = 9.0, tmp_path / "extended"
    leases: list[float] = []

    class Extended:
        """A claim that notes how it is extended."""

        message = Message(b"", 0, 0)

        def extend(self, lease: float) -> None:
            leases.append(lease)
            extended.touch()

    waiting = f"i=0; while [ ! -e '{extended}' ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"
    program = f"cat >/dev/null; {waiting}; [ -e '{extended}' ]"
    with JobRunner(("sh", "-c", program), lease) as runner:
        assert runner.run(cast("Claim", Extended())) == 0
    assert set(leases) == {lease}


# --- signals --------------------------------------------------------------------------------------

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file in which commands write."""
    return tmp_path / "log"


def lines(log: Path) -> list[str]:
    """Return what commands wrote."""
    return log.read_text().splitlines() if log.exists() else []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def start(directory: Path, log: Path) -> Iterator[Callable[[str], warm.Popen]]:
    """Give what starts a worker, and waits for its command and a process that this one starts."""
    started = []

    def make(trap: str) -> warm.Popen:
        """The command ends when it finds the file `go`, or as its trap says."""
        program = (
            f"cd {log.parent}; {trap} echo begin >> log; "
            "sh -c 'echo $$ >> log; exec sleep 600' 2>/dev/null & "
            "while [ ! -e go ]; do sleep 0.05; done; kill $!; wait; echo end >> log"
        )
        arguments = ("group", "claim", str(directory), "mailers", "--follow")
        process = warm.Popen(
            [sys.executable, "-m", "pagequeue", *arguments, "--", "sh", "-c", program],
            stderr=warm.PIPE,
            text=True,
        )
        started.append(process)
        until(lambda: len(lines(log)) >= 2)
        return process

    yield make
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for line in filter(str.isdigit, lines(log)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)


@pytest.mark.parametrize("number", SIGNALS)
def test_command_may_finish_when_its_worker_is_told_to_end(
    directory: Path, log: Path, start: Callable[[str], warm.Popen], number: signal.Signals
) -> None:
    """The worker waits, settles the message, and claims no other one."""
    worker = start("")
    assert worker.stderr is not None
    worker.send_signal(number)
    assert "waiting for sh to end" in worker.stderr.readline()
    (log.parent / "go").touch()
    assert worker.wait(LONG) == 128 + number
    assert acknowledged(directory) == 1
    assert (lines(log).count("begin"), lines(log).count("end")) == (1, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_is_for_a_command_that_handles_it(
    directory: Path, log: Path, start: Callable[[str], warm.Popen], number: signal.Signals
) -> None:
    """It ends as it likes; a message that it failed for is given back at once."""
    worker = start("trap 'touch told; exit 3' TERM HUP;")
    worker.send_signal(number)
    assert worker.wait(LONG) == 128 + number
    assert (log.parent / "told").exists()
    assert worker.stderr is not None
    assert "message 0: sh ended with 3" in worker.stderr.read()
    assert acknowledged(directory) == 0
    with Queue(directory) as queue, queue.group("mailers") as group:
        assert group.outstanding == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_second_signal_is_for_the_command_and_what_it_started(
    directory: Path, log: Path, start: Callable[[str], warm.Popen], number: signal.Signals
) -> None:
    """None of it runs when the message is given back."""
    worker = start("")
    assert worker.stderr is not None
    worker.send_signal(number)
    worker.stderr.readline()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LONG) == 128 + signal.SIGTERM
    assert f"message 0: sh ended with {-signal.SIGTERM}" in worker.stderr.read()
    child = int(next(line for line in lines(log) if line.isdigit()))
    until(lambda: not is_alive(child))
    assert lines(log).count("begin") == 1
    assert acknowledged(directory) == 0


def test_command_does_not_outlive_its_worker(log: Path, start: Callable[[str], warm.Popen]) -> None:
    """SIGKILL cannot be handled; a shell in between is no shelter."""
    worker = start("trap '' TERM HUP INT QUIT;")
    worker.kill()
    worker.wait(LONG)
    child = int(next(line for line in lines(log) if line.isdigit()))
    until(lambda: not is_alive(child))
    assert "end" not in lines(log)


def test_program_that_a_command_leaves_behind_outlives_the_run(
    directory: Path, log: Path, capfd: Capture
) -> None:
    """A run that ends as it should kills nothing."""
    program = f"cat >/dev/null; sleep 600 >/dev/null 2>&1 & echo $! >> {log}"
    claim = ("group", "claim", directory, "mailers", "--count", 1, "--", "sh", "-c", program)
    assert call(capfd, *claim) == (0, "", "")
    (pid,) = map(int, lines(log))
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_command_is_told_to_end_when_its_message_is_lost(log: Path) -> None:
    """The worker was stopped past its lease: another one has the message by now."""

    class Lost:
        """A claim whose lease ended."""

        message = Message(b"", 0, 0)

        def extend(self, lease: float) -> None:
            del lease
            raise LeaseLost("too late", sequence=0)

    program = f"trap 'echo told >> {log}; exit 0' TERM; sleep 600 & wait"
    with JobRunner(("sh", "-c", program), 0.1) as runner:
        assert runner.run(cast("Claim", Lost())) is None
    assert lines(log) in (["told"], [])  # it can have been told before it set its trap


def test_ignored_signals_stay_ignored() -> None:
    """As `nohup` and a shell's `&` have it; the others are what they were afterwards."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        handlers = [signal.getsignal(number) for number in SIGNALS]
        with JobRunner(("true",), 30.0):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != handlers[0]
        assert [signal.getsignal(number) for number in SIGNALS] == handlers
    finally:
        signal.signal(signal.SIGHUP, before)


def test_program_that_does_not_exist_is_named(directory: Path, capfd: Capture) -> None:
    """The message returns to the group."""
    code, _, err = call(capfd, "group", "claim", directory, "mailers", "--", "/no/such/program")
    assert code == 1
    assert "/no/such/program: No such file" in err
    assert acknowledged(directory) == 0


def test_dead_letters_are_listed_and_requeued_once(directory: Path, capfd: Capture) -> None:
    """Requeued ones are messages of the queue again, and no dead letters."""
    buried(directory)
    name = (directory, "mailers")
    code, out, _ = call(capfd, "group", "dead", *name)
    assert code == 0
    assert out.splitlines()[0].split() == ["message", "deliveries", "moved", "reason", "payload"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["0", "1"]
    assert call(capfd, "group", "requeue", *name, "--count", 1) == (0, "1 message requeued\n", "")
    rows = [
        json.loads(line)
        for line in call(capfd, "group", "dead", *name, "--json")[1].split("\n")
        if line
    ]
    assert [(row["sequence"], row["payload"]) for row in rows] == [(1, "job 1")]
    assert call(capfd, "group", "requeue", *name)[1] == "1 message requeued\n"
    assert call(capfd, "group", "requeue", *name)[1] == "0 messages requeued\n"
    with Queue(directory) as queue:
        assert queue.last(2).payloads == [b"job 0", b"job 1"]
    assert "has no dead letter" in call(capfd, "group", "dead", *name)[2]


def test_purged_letters_are_gone_and_later_ones_are_listed(directory: Path, capfd: Capture) -> None:
    """Purging discards those of now only."""
    buried(directory)
    name = (directory, "mailers")
    assert call(capfd, "group", "dead", *name, "--purge")[1] == "2 dead letters discarded\n"
    with Queue(directory) as queue, queue.group("mailers", max_deliveries=1) as group:
        assert list(group.dead_letters()) == []
        group.claim(timeout=0).nack()
        group.claim(timeout=0).ack()
        assert [letter.sequence for letter in group.dead_letters()] == [3]
        assert group.requeue_dead_letters() == 1
        assert group.purge_dead_letters() == 0


def test_requeueing_that_dies_before_it_acknowledges_sends_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No letter is lost between the two queues."""
    buried(directory)
    with Queue(directory) as queue, queue.group("mailers") as group:
        real = DeadLetter.decode
        with monkeypatch.context() as patched:

            def decode(message: object) -> DeadLetter:
                letter = real(message)  # type: ignore[arg-type]
                if letter.sequence == 1:
                    raise KeyboardInterrupt
                return letter

            patched.setattr(DeadLetter, "decode", decode)
            with pytest.raises(KeyboardInterrupt):
                group.requeue_dead_letters()
        assert [letter.sequence for letter in group.dead_letters()] == [0, 1]
        assert group.requeue_dead_letters() == 2
        assert queue.last(3).payloads == [b"job 0", b"job 0", b"job 1"]


@pytest.mark.parametrize("name", ["dead", "requeue"])
def test_misspelled_group_is_an_error_and_not_created(
    directory: Path, capfd: Capture, name: str
) -> None:
    """Opening a group makes it; these commands must not."""
    code, _, err = call(capfd, "group", name, directory, "mialers")
    assert code == 1
    assert "there is no group 'mialers'" in err
    assert "no group" in call(capfd, "group", "ls", directory)[2]


def test_list_of_groups_has_what_a_worker_asks_for(directory: Path, capfd: Capture) -> None:
    """Consumers are none; of each group the lag, what is claimed, and what waits or is dead."""
    code, out, err = call(capfd, "group", "ls", directory)
    assert (code, out) == (0, "")
    assert "no group" in err
    buried(directory)
    with Queue(directory) as queue, queue.group("mailers", max_deliveries=1) as group:
        queue.consumer("billing").close()
        claim = group.claim(timeout=0)
        code, out, _ = call(capfd, "group", "ls", directory)
        assert code == 0
        titles, line = (text.split() for text in out.splitlines())
        assert titles[:3] == ["group", "lag", "claimed"]
        assert line[:5] == ["mailers", "2", "1", "0", "2"]
        assert line[-1] == "open"
        code, out, _ = call(capfd, "group", "ls", directory, "--json")
        (row,) = [json.loads(text) for text in out.splitlines()]
        assert (row["name"], row["lag"], row["is_open"]) == ("mailers", 2, True)
        assert (row["group"]["claimed"], row["group"]["dead_letters"]) == (1, 2)
        claim.ack()
    out = call(capfd, "group", "ls", directory)[1]
    assert out.splitlines()[1].split()[:5] == ["mailers", "1", "0", "0", "2"]
    assert out.splitlines()[1].endswith("not open")


def test_requeueing_prints_how_many_as_json(directory: Path, capfd: Capture) -> None:
    """Programs need no text to parse, also if there are none."""
    buried(directory)
    requeue = ("group", "requeue", directory, "mailers", "--json")
    assert json.loads(call(capfd, *requeue, "--count", 1)[1]) == {"requeued": 1}
    assert json.loads(call(capfd, *requeue)[1]) == {"requeued": 1}
    assert json.loads(call(capfd, *requeue)[1]) == {"requeued": 0}


def test_json_with_a_command_is_wrong_usage_and_claims_nothing(
    directory: Path, capfd: Capture
) -> None:
    """The command gets the messages, so nothing could be printed."""
    claim = ("group", "claim", directory, "mailers", "--json", "--", "cat")
    code, out, err = call(capfd, *claim)
    assert (code, json.loads(out)["error"]["type"]) == (2, "UsageError")
    assert "--json" in err
    with Queue(directory, create=False, read_only=True) as queue:
        assert queue.consumers() == []


def test_values_of_a_queue_with_a_codec_are_claimed_as_json(tmp_path: Path, capfd: Capture) -> None:
    """As `receive --format json` prints them: `value`, not the encoded payload."""
    with Queue(tmp_path / "q", page_bytes=65_536, codec="json") as queue:
        queue.producer().send({"to": "ann", "n": 1})
    out = call(capfd, "group", "claim", tmp_path / "q", "mailers", "--json")[1]
    row = json.loads(out)
    assert row["value"] == {"to": "ann", "n": 1}
    assert "payload" not in row
