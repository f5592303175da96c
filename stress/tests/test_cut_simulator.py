"""The power-cut simulator: what it records, which states it makes of that, and that it can fail."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagequeue import format as fmt
from pagequeue.bulk.filled_pages import FILLED_PREFIX
from pagequeue.bulk.staged_fragments import STAGED_PREFIX
from pagequeue.bulk.staged_pages import EMPTY_PREFIX
from stress import driver, variant
from stress import no_simulated_cut_loses_what_was_flushed as campaign
from stress.campaign import Budget
from stress.cut.native import MODES, RESULTS, States
from stress.cut.plan import KINDS, PUBLISH_POINTS, Plan, steps_of
from stress.cut.recording import NOWHERE, Event, Kind, Recording
from stress.cut.worker import DIE_PUBLISHING, GIVEN_UP, HALF_A_ROLL, TURNS, has
from stress.plants.registry import PLANTS
from stress.traffic import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

OLD, NEW, NEWER = (bytes([fill]) * 4096 for fill in (1, 2, 3))
ROOT = Path(__file__).resolve().parents[2]

RECORD = """
import sys
from pathlib import Path
from stress import variant
variant.bootstrap()
from stress.cut.recording import Recorder, Recording, frames_in
directory, result = Path(sys.argv[1]), Path(sys.argv[2])
recorder = Recorder()
with recorder.recording(str(directory)):
    from pagequeue import Queue
    with Queue(directory, page_bytes=4096) as queue, queue.producer() as producer:
        producer.send(b"a" * 100)
        producer.send_many([b"b" * 100, b"c" * 100])
        recorder.flushed(producer.flush())
        producer.send(b"d" * 3600)  # rolls
        with recorder.calling_at(5, 1, lambda: recorder.flushed(producer.flush())):
            producer.send(b"e" * 100)
        recorder.fail_syncs(1, 1)
        try:
            producer.flush()
        except OSError:
            pass
Recording("test", 0, recorder.log(), frames_in(directory)).save(result)
"""


def test_recorder_knows_all_names_of_staged_pages() -> None:
    """Else it does not see that they were synced before they got their names."""
    text = (ROOT / "stress" / "harness" / "recorder.c").read_text(encoding="utf-8")
    listed = text[
        text.index("const names[] = {") : text.index("};", text.index("const names[] = {"))
    ]
    prefixes = {name.removesuffix("-0") for name in re.findall(r'"([^"]*)"', listed)}
    assert prefixes == {"queue", STAGED_PREFIX, EMPTY_PREFIX, FILLED_PREFIX}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A run of five messages on two pages, flushed after three, and of four inside of the fifth."""
    directory = tmp_path_factory.mktemp("recorded")
    result = directory / "result"
    environment = {**campaign.environment({}), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RECORD, str(directory / "queue"), str(result)]
    subprocess.run(command, env=environment, check=True, timeout=600)
    return Recording.load(result)


def states_of(
    events: Iterable[Event], *, moments: int = 400, mode: int = 0, after: int = 0
) -> set[str]:
    """Return all states that some seeds lead to, as text: the first byte of each page and sizes.

    Args:
        events: the log.
        moments: so many times of cuts.
        mode: what is left or lost as a whole.
        after: of cuts after so many events, because half of all cuts are right before syncs.
    """
    recording = Recording("made", 0, b"".join(event.encode() for event in events), b"")
    states = States(recording, {})
    found = set()
    for seed in range(0, moments * 64, 3):
        states.choose(seed, mode)
        if states.check().moment < after:
            continue
        files = states.files()
        if files is None:
            found.add("gone")
            continue
        shown = {
            name: "".join(str(byte) for byte in data[::512]) if mode else f"{data[:1].hex()}{size}"
            for name, data in files.items()
            for size in (len(data),)
        }
        found.add(json.dumps(shown, sort_keys=True))
    states.close()
    return found


def later_states_of(events: list[Event], *, mode: int = 0) -> set[str]:
    """Return the states that a cut after all of these events can leave."""
    rest = [Event(Kind.POINT)] * 20000
    return states_of([*events, *rest], moments=20, mode=mode, after=len(events))


def name_event(name: bytes, file: int) -> Event:
    """Return the event that a name leads to a file now."""
    return Event(Kind.NAME, file, data=name + b"\0")


BASE = [
    Event(Kind.MADE),
    Event(Kind.SIZE, 0, 4096),
    Event(Kind.PAGE, 0, 0, data=OLD),
    name_event(b"f", 0),
    Event(Kind.BASE),
]


def test_what_is_not_synced_is_any_version() -> None:
    """An OS page is any of its versions since the last sync."""
    events = [*BASE, Event(Kind.PAGE, 0, 0, data=NEW), Event(Kind.PAGE, 0, 0, data=NEWER)]
    assert states_of(events) == {f'{{"f": "0{n}4096"}}' for n in (1, 2, 3)}


def test_half_of_the_cuts_are_right_before_syncs() -> None:
    """A name that is in doubt for one event of thousands is lost in some states."""
    rest = [Event(Kind.POINT)] * 20000
    made = [*rest, name_event(b"g", 0), Event(Kind.DIRSYNC, 0, 1 << 40), *rest]
    assert {'{"f": "014096"}', '{"f": "014096", "g": "014096"}'} == states_of([*BASE, *made])
    after = len(BASE) + len(rest) + 1
    recording = Recording("made", 0, b"".join(event.encode() for event in [*BASE, *made]), b"")
    states = States(recording, {})
    moments = []
    for seed in range(0, 400 * 64, 64):
        states.choose(seed, 0)
        moments.append(states.check().moment)
    states.close()
    assert 60 < moments.count(after) < 140
    assert 60 < moments.count(len(BASE) + len(made)) < 140


def test_a_sync_covers_what_came_before_it_began() -> None:
    """What was written while the sync ran can be lost, what was there before it cannot."""
    events = [
        *BASE,
        Event(Kind.PAGE, 0, 0, data=NEW),
        Event(Kind.PAGE, 0, 0, data=NEWER),
        Event(Kind.SYNC, 0, 6, 64),  # it began when there were six events
    ]
    found = later_states_of(events)
    assert found == {'{"f": "024096"}', '{"f": "034096"}'}


def test_a_sync_behind_a_failed_one_covers_what_was_changed_since() -> None:
    """The system forgets what it failed to write, and does not report that at the next sync."""
    events = [
        *BASE,
        Event(Kind.PAGE, 0, 0, data=NEW),
        Event(Kind.FAILED, 0),
        Event(Kind.SYNC, 0, 7, 64),
    ]
    assert later_states_of(events) == {'{"f": "014096"}', '{"f": "024096"}'}
    changed = [*events, Event(Kind.PAGE, 0, 0, data=NEWER), Event(Kind.SYNC, 0, 9, 64)]
    assert later_states_of(changed) == {'{"f": "034096"}'}


def test_a_sync_of_a_range_covers_no_other_page() -> None:
    """Msync of the first OS page guarantees no other page."""
    events = [
        *BASE,
        Event(Kind.SIZE, 0, 8192),
        Event(Kind.PAGE, 0, 1, data=NEW),
        Event(Kind.SYNC, 0, 7, 0 << 32 | 1),
        *[Event(Kind.POINT)] * 20000,
    ]
    recording = Recording("made", 0, b"".join(event.encode() for event in events), b"")
    states = States(recording, {})
    second = set()
    for seed in range(0, 40 * 64, 8):
        states.choose(seed, 0)
        if states.check().moment < len(events) - 20000:
            continue  # before the sync
        files = states.files()
        assert files is not None
        second.add(files["f"][4096:4097])
    assert second == {b"\0", b"\2"}


def test_a_synced_file_can_lose_its_name() -> None:
    """Only a sync of the directory makes a new name durable."""
    made = [
        Event(Kind.SIZE, 1, 4096),
        Event(Kind.PAGE, 1, 0, data=NEW),
        name_event(b"g", 1),
        Event(Kind.SYNC, 1, 8, 64),
    ]
    found = later_states_of([*BASE, *made])
    assert found == {'{"f": "014096"}', '{"f": "014096", "g": "024096"}'}
    synced = [*BASE, *made, Event(Kind.DIRSYNC, 0, 9)]
    assert later_states_of(synced) == {'{"f": "014096", "g": "024096"}'}


def test_a_removed_file_can_come_back() -> None:
    """So does one whose name was given to another file."""
    events = [*BASE, name_event(b"f", NOWHERE)]
    assert later_states_of(events) == {"{}", '{"f": "014096"}'}


def test_size_and_bytes_are_independent() -> None:
    """A file that was never synced is empty, or full of zeros, or right."""
    events = [
        Event(Kind.MADE),
        Event(Kind.BASE),
        Event(Kind.SIZE, 0, 4096),
        Event(Kind.PAGE, 0, 0, data=NEW),
        name_event(b"f", 0),
        Event(Kind.DIRSYNC, 0, 5),
    ]
    found = later_states_of(events)
    assert found == {'{"f": "0"}', '{"f": "004096"}', '{"f": "024096"}'}


def test_a_directory_that_is_not_synced_into_its_parent_can_be_gone() -> None:
    """What was flushed into a directory without a name is lost."""
    events = [Event(Kind.BASE), Event(Kind.MADE)]
    assert later_states_of(events) == {"gone", "{}"}
    synced = [*events[:2], Event(Kind.PARENTSYNC, 0, 2)]
    assert later_states_of(synced) == {"{}"}


def test_sectors_are_independent() -> None:
    """In one OS page some sectors are old and some are new."""
    events = [*BASE, Event(Kind.PAGE, 0, 0, data=NEW)]
    found = later_states_of(events, mode=MODES.index("sectors"))
    assert len(found) > 50
    assert all(set(json.loads(state)["f"]) <= {"1", "2"} for state in found)


def test_the_recorder_sees_all_that_happens(recorded: Recording) -> None:
    """Versions, sizes, names, syncs, points and guarantees are in the log, in order."""
    events = list(recorded.events())
    kinds = [event.kind for event in events]
    assert set(kinds) >= set(Kind) - {Kind.NOTE}
    names = [event.data.rstrip(b"\0").decode() for event in events if event.kind == Kind.NAME]
    assert "queue-0000000001.page" in names
    assert any(".page.tmp-" in name for name in names), "the temporary name was not seen"
    assert [event.a for event in events if event.kind == Kind.FLUSHED] == [3, 4]
    flushed = kinds.index(Kind.FLUSHED)
    assert Kind.SYNC in kinds[:flushed]
    inside = [event.a for event in events[flushed:] if event.kind == Kind.POINT]
    assert [point for point in range(1, 9) if point not in inside] == []


def test_a_flush_inside_of_a_send_stands_between_its_points(recorded: Recording) -> None:
    """The second flush ran after the fifth publish's point 5, and before its point 6."""
    events = list(recorded.events())
    last = max(i for i, event in enumerate(events) if event.kind == Kind.FLUSHED)
    before = [e.a for e in events[:last] if e.kind == Kind.POINT and e.a in PUBLISH_POINTS]
    after = [e.a for e in events[last:] if e.kind == Kind.POINT]
    assert before[-1] == 5
    assert after[0] == 6


def test_what_was_sent_is_known(recorded: Recording) -> None:
    """The frames are taken from the pages, with what tells batches from single messages."""
    payloads = [(payload[:1], len(payload), more) for _, payload, more in recorded.messages()]
    assert payloads == [
        (b"a", 100, False),
        (b"b", 100, True),
        (b"c", 100, False),
        (b"d", 3600, False),
        (b"e", 100, False),
    ]


def test_a_bulk_commit_continues_up_to_its_last_message() -> None:
    """I19: no frame says so, and of a large message only the head is a frame; its bytes tell."""
    small, large, last = (
        HEADER.pack(7, 1, place, 3, size, 0) + bytes(size - HEADER.size)
        for place, size in enumerate((40, 9000, 24))
    )
    other = HEADER.pack(7, 2, 0, 1, 24, 0)
    head = fmt.LARGE_MESSAGE | fmt.FRAME_HEADER_BYTES + fmt.LARGE_HEAD.itemsize
    words = [(len(small) + 16, small), (head, bytes(16)), (len(last) + 16, last), (40, other)]
    sent = b"".join(word.to_bytes(4, "little") + bytes(12) + data for word, data in words)
    recording = Recording("made", 0, b"", sent, large=[large])
    found = [(payload, more) for _, payload, more in recording.messages()]
    assert found == [(small, True), (large, True), (last, False), (other, False)]


def test_the_end_of_a_run_is_the_whole_queue(recorded: Recording) -> None:
    """Without a cut the fast engine finds every message."""
    states = States(recorded, {})
    states.choose_last()
    found = states.check()
    assert (RESULTS[found.result], found.tail) == ("fine", 5)
    states.close()


def test_a_frame_that_was_not_sent_is_noticed(recorded: Recording) -> None:
    """Another payload, another batch mark or one message too many are not what was sent."""
    sent = bytearray(recorded.sent)
    sent[20] ^= 1
    for wrong in (bytes(sent), recorded.sent[:-120]):
        states = States(Recording("", 0, recorded.log, wrong), {})
        states.choose_last()
        assert states.check().result != 0
        states.close()


def test_what_stands_in_the_padding_was_not_sent(recorded: Recording) -> None:
    """A cut can leave older bytes there: no checksum covers them, and no reader reads them."""
    sent = bytearray(recorded.sent)
    assert sent[116:120] == bytes(4), "after the header and the 100 bytes of the first message"
    sent[116:120] = b"left"
    states = States(Recording("", 0, recorded.log, bytes(sent)), {})
    states.choose_last()
    found = states.check()
    assert (RESULTS[found.result], found.tail) == ("fine", 5)
    states.close()


def test_a_promise_that_is_not_kept_is_noticed(recorded: Recording) -> None:
    """A recovery that finds less than was guaranteed has lost a message."""
    states = States(Recording("", 0, recorded.log, recorded.sent, promised=6), {})
    states.choose_last()
    assert RESULTS[states.check().result] == "lost"
    states.close()


def test_a_recording_can_be_kept(recorded: Recording, tmp_path: Path) -> None:
    """A violating state is rebuilt from its file, seed and mode."""
    path = tmp_path / "kept"
    recorded.save(path)
    assert Recording.load(path) == recorded
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not a whole recording"):
        Recording.load(path)


def test_damaged_recordings_are_refused(recorded: Recording) -> None:
    """The engine reads no offset or length that does not fit into its log."""
    for log in (recorded.log[:-1], b"\xff" * 64, recorded.log[:40], b""):
        with pytest.raises(ValueError, match="damaged"):
            States(Recording("", 0, log, recorded.sent), {})


def test_a_state_can_be_tried_again(recorded: Recording, tmp_path: Path) -> None:
    """The command that a violation prints takes a kept recording."""
    path = tmp_path / "kept"
    seed = next(seed for seed in range(100) if Plan.of(seed).page_bytes == 4096)
    dataclasses.replace(recorded, seed=seed).save(path)
    command = [sys.executable, "-m", "stress.cut", str(path), "0", "1"]
    command += ["--files", str(tmp_path / "files")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "fast engine: fine" in done.stdout, done.stderr
    assert "full engine: fine" in done.stdout
    assert done.returncode == 0


def test_plans_follow_from_their_seed() -> None:
    """The same seed is the same run; all kinds of runs come up."""
    plans = [Plan.of(seed) for seed in range(200)]
    assert plans == [Plan.of(seed) for seed in range(200)]
    assert {plan.kind for plan in plans} == set(KINDS)
    verbs = {step.verb for plan in plans for step in steps_of(plan)}
    with_consumers = {"take", "trim"}
    others = {"send", "flush", "reopen", "restart", "die", "flush inside", "fail"}
    assert verbs == others | with_consumers
    assert 8 < sum(plan.large for plan in plans) < 30
    keeping = [plan for plan in plans if plan.consumers]
    assert 30 < len(keeping) < 90
    assert any(plan.kept and plan.reuses for plan in keeping)
    assert not any(
        step.verb in with_consumers
        for plan in plans
        if not plan.consumers
        for step in steps_of(plan)
    )


@pytest.mark.parametrize("turn", [GIVEN_UP, HALF_A_ROLL, DIE_PUBLISHING, "die", "fail", "take"])
def test_plans_for_every_turn_are_found(turn: str) -> None:
    """Those of a rare death too: a worker looks at seeds until one has it."""
    seed = next(seed for seed in range(4000) if has(turn, steps_of(Plan.of(seed))))
    steps = steps_of(Plan.of(seed))
    if turn == HALF_A_ROLL:  # what has the header's sequence is flushed
        behind = [steps[at + 1 : at + 4] for at, step in enumerate(steps) if step.rotates_and_dies]
        assert ["send", "send", "flush"] in [[step.verb for step in three] for three in behind]
    assert turn in TURNS


@pytest.mark.nightly
def test_a_good_queue_survives_some_thousand_states() -> None:
    """I1, I2, I5, I8: no state that a cut can leave loses, tears or invents anything."""
    outcome = campaign.run(Budget(12.0, None, 7))
    assert outcome.violations == []
    assert outcome.cases > 5000
    for count in ("fast states", "full states", "second cuts", "recovered twice"):
        assert outcome.notes[count] > 0, count


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["mark_before_data", "directory_not_synced", "sync_error_ignored"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5, I8: the campaign sees what it is there to see; `stress.score` plants all."""
    monkeypatch.setenv(driver.PATCH_VARIABLE, f"stress.plants.patches:{bug}")
    monkeypatch.setenv(driver.FIRST_VARIABLE, "1")
    outcome = campaign.run(Budget(300.0, None, 1))
    assert outcome.violations
    assert outcome.cases > 0
    assert "python -m stress.cut " in outcome.violations[0]


@pytest.mark.nightly
def test_a_bug_in_the_core_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum decides: both engines take the core's own sources, with what is planted."""
    monkeypatch.setenv(driver.FIRST_VARIABLE, "1")
    outcome = campaign.run_with(Budget(300.0, None, 1), {"PAGEQUEUE_PLANT": '"no_checksum"'})
    assert outcome.violations
    assert outcome.cases > 0


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["half_batch_kept", "commit_not_recovered"])
def test_a_bug_in_the_judge_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8, I19: what it keeps is compared with what was sent, so it need not agree with itself."""
    (changes,) = [plant.changes for plant in PLANTS if plant.name == bug]
    assert changes is not None
    monkeypatch.setenv(variant.CHANGES_VARIABLE, changes.as_text())
    monkeypatch.setenv(driver.FIRST_VARIABLE, "1")
    outcome = campaign.run(Budget(300.0, None, 1))
    assert outcome.violations
    assert outcome.cases > 0


def test_a_worker_that_dies_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process that opens a state is killed, the campaign reports the state."""
    monkeypatch.setenv(driver.PATCH_VARIABLE, "os:abort")
    outcome = campaign.run(Budget(5.0, 10, 1))
    assert outcome.failed
    assert outcome.violations
