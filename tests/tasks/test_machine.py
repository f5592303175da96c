"""The state machine of task stores against a model of a few lines, and what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec.msgpack
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from task_model import Job, Model
from tiers import examples

from pagequeue.errors import Conflict, InvalidOption, Stale
from pagequeue.tasks import machine as codes
from pagequeue.tasks import plan
from pagequeue.tasks import state as states
from pagequeue.tasks.machine import InvalidEntry, TaskMachine
from pagequeue.tasks.plan import Change, Insertion, Transaction
from pagequeue.tasks.task import Modified, task_of
from pagequeue.util.retry import Retry
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from pagequeue.tasks.state import Moment, State

QUEUES = ("a", "b", "c")
LEASE = 10
RULES = (
    Retry(3, 0.0, 0.0),
    Retry(None, 0.0, 0.0),
    Retry(3, 4e-9, 12e-9),
    Retry(None, 8e-9, 8e-9),
)
RETRY = RULES[2]
PAYLOADS = st.binary(max_size=4)
TIMES = st.none() | st.integers(-5, 30)


class Tasks(RuleBasedStateMachine):
    """Transactions on a state, which is now and then dumped, loaded and replayed from scratch."""

    @initialize()
    def begin(self) -> None:
        """Begin with an empty state, and with heaps that are filtered often."""
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(states, "HEAP_MIN", 1)
        self.machine = TaskMachine()
        self.state = self.machine.initial()
        self.other = self.machine.initial()
        self.model = Model()
        self.elapsed, self.ahead, self.boots = 100, 1000, 0
        self.log: list[bytes] = []
        self.refs: list[tuple[int, int]] = [(1, 1)]
        self.write([*self.moment, [codes.CODEC, "bytes"]])

    @property
    def now(self) -> int:
        """What the clock shows."""
        return self.elapsed + self.ahead

    @property
    def moment(self) -> Moment:
        """What both clocks show."""
        return self.now, self.elapsed

    def teardown(self) -> None:
        """Undo what was patched."""
        if hasattr(self, "patch"):
            self.patch.undo()

    def write(self, entry: list[Any]) -> None:
        """Apply an entry as the handle that wrote it does, and as all others do."""
        payload = msgspec.msgpack.encode(entry)
        self.log.append(payload)
        self.last = self.elapsed
        self.machine.apply_own(self.state, entry, self.now)
        self.machine.apply(self.other, msgspec.msgpack.decode(payload), self.now)
        assert list(self.machine.dump(self.other)) == list(self.machine.dump(self.state))

    @rule(seconds=st.integers(0, 15))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.elapsed += seconds

    @rule(seconds=st.sampled_from((-200, -7, 7, 200)))
    def set_clock(self, seconds: int) -> None:
        """The clock is set, ahead or back: what is to last so long lasts so long."""
        self.ahead += seconds

    @rule(seconds=st.integers(0, 20))
    def reboot(self, seconds: int) -> None:
        """Another even clock: nothing waits for longer than it was to wait at the last entry."""
        before, self.elapsed = self.elapsed, seconds
        self.ahead += before
        for job in self.model.jobs.values():
            if job.due:
                left = min(max(0, job.at - self.now), max(0, job.due - self.last))
                job.at, job.due = self.now + left, self.elapsed + left if left else 0
        self.boots += 1
        self.write([*self.moment, [codes.BOOT, b"%d" % self.boots]])

    @rule(data=st.data())
    def modify(self, data: st.DataObject) -> None:
        """A transaction of many parts, some of which name old versions."""
        current = [(number, job.version) for number, job in self.model.jobs.items()]
        old = self.refs[-2:] if not current or data.draw(st.integers(0, 4)) == 0 else []
        ref = st.sampled_from([*current[-6:], *old])
        chosen = data.draw(st.lists(ref, max_size=4, unique_by=lambda one: one[0]))
        kinds = [data.draw(st.sampled_from(("change", "delete", "depend"))) for _ in chosen]
        changes = {
            one: Change(
                data.draw(st.none() | st.sampled_from(QUEUES)),
                data.draw(st.none() | PAYLOADS),
                self.later(data.draw(TIMES), data.draw(st.booleans())),
                data.draw(st.none() | st.integers(-2, 2)),
            )
            for one, kind in zip(chosen, kinds, strict=True)
            if kind == "change"
        }
        keys = st.none() | st.sampled_from(("k", "l"))
        inserts = [
            Insertion(
                data.draw(st.sampled_from(QUEUES)),
                data.draw(PAYLOADS),
                self.later(data.draw(TIMES), data.draw(st.booleans())),
                data.draw(st.integers(-2, 2)),
                data.draw(keys),
            )
            for _ in range(data.draw(st.integers(0, 3)))
        ]
        deleted = [one for one, kind in zip(chosen, kinds, strict=True) if kind == "delete"]
        depended = [one for one, kind in zip(chosen, kinds, strict=True) if kind == "depend"]
        wanted = Transaction(inserts, list(changes.items()), deleted, depended)
        try:
            plan.check(wanted)
        except InvalidOption:
            keys_given = [new.key for new in inserts if new.key]
            assert len(set(keys_given)) < len(keys_given)
            return
        self.commit(wanted)

    def later(self, seconds: int | None, is_delay: bool) -> int | None:
        """Return a time from now, as operations have it."""
        if seconds is None or not is_delay:
            return None if seconds is None else max(0, self.now + seconds)
        return -seconds - 1 if seconds > 0 else codes.AT_ONCE

    def at(self, at: int | None) -> tuple[int, int | None]:
        """Return when a task is to be claimed, by both clocks."""
        if at in {None, codes.AT_ONCE}:
            return self.now, 0
        assert at is not None
        return (at, None) if at >= 0 else (self.now - at, self.elapsed - at)

    def commit(self, wanted: Transaction) -> None:
        """Do a transaction on both."""
        model = self.model
        refs = [*wanted.finish, *wanted.delete, *wanted.depend, *(ref for ref, _ in wanted.change)]
        wrong = [
            Conflict(n, v, model.jobs[n].version if n in model.jobs else None)
            for n, v in refs
            if n not in model.jobs or model.jobs[n].version != v
        ]
        wrong += [
            Conflict(number, None, model.jobs[number].version, new.key)
            for new in wanted.insert
            if (number := model.key_of(new.key)) is not None
        ]
        before = list(self.machine.dump(self.state))
        if wrong:
            with pytest.raises(Stale) as raised:
                plan.modify(self.state, self.moment, wanted, "there")
            assert list(raised.value.conflicts) == wrong
            self.check_one(wanted, None, None)
            assert list(self.machine.dump(self.state)) == before
            return
        entry, result = plan.modify(self.state, self.moment, wanted, "there")
        assert list(self.machine.dump(self.state)) == before
        if len(entry) == 2:
            return
        self.check_one(wanted, entry, result)
        self.write(entry)
        for number, _ in (*wanted.finish, *wanted.delete):
            del model.jobs[number]
        for (number, version), change in wanted.change:
            job = model.jobs[number]
            given = {name: value for name, value in change._asdict().items() if value is not None}
            at = given.pop("at", None)
            job = model.jobs[number] = replace(job, **given, version=version + 1)
            if at is not None or change.queue is not None:
                job.at, job.due = self.at(at)
                job.worker, job.reason, job.deliveries, job.dead = None, None, 0, False
        for new in wanted.insert:
            model.made += 1
            at, due = self.at(new.at)
            job = Job(1, new.queue, new.payload, at, new.priority, new.key, due=due)
            model.jobs[model.made] = job
        for task in (*result.inserted, *result.changed):
            assert task == task_of(self.state.tasks[task.id], "bytes", self.moment)
            self.refs.append(task.ref)

    def check_one(
        self, wanted: Transaction, entry: list[Any] | None, result: Modified | None
    ) -> None:
        """What is written for one task in a shorter way is the same, or refused as well."""
        if sum(map(len, wanted)) != 1:
            return
        if wanted.finish:
            try:
                same = plan.finish_one(self.state, self.moment, *wanted.finish[0], "there")
            except Stale:
                assert entry is None
                return
            assert msgspec.msgpack.encode(same) == msgspec.msgpack.encode(entry)
        if wanted.insert and wanted.insert[0].key is None:
            same, task = plan.insert_one(self.state, self.moment, *wanted.insert[0][:4])
            assert msgspec.msgpack.encode(same) == msgspec.msgpack.encode(entry)
            assert result is not None
            assert result.inserted == (task,)

    @rule(
        queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3).map(tuple),
        limit=st.integers(1, 3),
        retry=st.sampled_from(RULES),
    )
    def claim(self, queues: tuple[str, ...], limit: int, retry: Retry) -> None:
        """Claim, which buries what was delivered too often, and lets wait what just failed."""
        before = list(self.machine.dump(self.state))
        claims = plan.claim(
            self.state,
            self.moment,
            queues,
            lease_ns=LEASE,
            worker="w",
            retry=retry,
            limit_count=limit,
        )
        assert list(self.machine.dump(self.state)) == before
        if limit == 1:
            one = plan.claim_one(
                self.state, self.moment, queues, lease_ns=LEASE, worker="w", retry=retry
            )
            first = self.model.next(queues, *self.moment)
            job = None if first is None else self.model.jobs[first]
            is_other = job is None or job.worker is not None or retry.is_spent(job.deliveries)
            assert (one is None) == is_other
            if one is not None:
                assert one[1:] == (claims.tasks[0],)
                assert msgspec.msgpack.encode(one[0]) == msgspec.msgpack.encode(claims.entry)
        if claims.entry is not None:
            self.write(claims.entry)
        is_last = False
        for place, task in enumerate(claims.tasks):
            assert not is_last
            self.model.settle(queues, *self.moment, retry)
            number = self.model.next(queues, *self.moment)
            assert number == task.id
            job = self.model.jobs[number]
            is_last = self.model.is_alone(job)
            assert not (is_last and place)
            job.version += 1
            job.deliveries += 1
            job.at, job.due, job.worker = self.now + LEASE, self.elapsed + LEASE, "w"
            assert task == task_of(self.state.tasks[number], "bytes", self.moment)
            self.refs.append(task.ref)
        if len(claims.tasks) < limit and not is_last:
            self.model.settle(queues, *self.moment, retry)
            following = self.model.next(queues, *self.moment)
            assert following is None or (
                claims.tasks and self.model.is_alone(self.model.jobs[following])
            )
        if not claims.tasks:
            left = self.model.left(queues, *self.moment)
            assert claims.seconds_left == (None if left is None else left / NS_PER_S)

    @rule(queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3).map(tuple))
    def be_overtaken(self, queues: tuple[str, ...]) -> None:
        """A plan whose entry is not appended has no effect."""
        plan.claim(
            self.state,
            self.moment,
            queues,
            lease_ns=LEASE,
            worker="w",
            retry=RETRY,
            limit_count=3,
        )

    @rule(data=st.data(), kind=st.sampled_from(("finish", "nack", "extend", "undo")))
    def use(self, data: st.DataObject, kind: str) -> None:
        """Use a claim, perhaps one that another worker took over."""
        claimed = [(n, job.version) for n, job in self.model.jobs.items() if job.worker]
        old = self.refs[-2:] if not claimed or data.draw(st.integers(0, 4)) == 0 else []
        ref = data.draw(st.sampled_from([*claimed, *old]))
        job = self.model.jobs.get(ref[0])
        if kind == "finish":
            new = [Insertion("b", b"successor", None, 0, None)] * data.draw(st.integers(0, 1))
            self.commit(Transaction(insert=new, finish=[ref]))
            return
        if job is None or job.version != ref[1]:
            assert plan.conflicts(self.state, [ref])
            return
        assert not plan.conflicts(self.state, [ref])
        if job.worker is None:
            return
        job.version += 1
        self.refs.append((ref[0], job.version))
        if kind == "extend":
            job.at, job.due = self.now + 2 * LEASE, self.elapsed + 2 * LEASE
            self.write(plan.extend(self.moment, ref, job.at))
            return
        job.worker = None
        if kind == "undo":
            self.write(plan.undo(self.moment, [ref]))
            job.deliveries -= 1
            job.at, job.due = self.now, 0
            return
        delay, retry = data.draw(st.sampled_from((0, 5, None))), data.draw(st.sampled_from(RULES))
        given = plan.nack(self.state, self.moment, [ref], delay_ns=delay, reason="no", retry=retry)
        self.write(given)
        job.reason = "no"
        if retry.is_spent(job.deliveries):
            job.dead = True
        else:
            waits = retry.delay_ns(ref[0], job.deliveries) if delay is None else delay
            self.model.wait(job, *self.moment, waits)

    @rule()
    def dump_and_load(self) -> None:
        """A snapshot is the state: its dump is equal, and so are the results of later entries."""
        chunks = list(self.machine.dump(self.state))
        self.state = self.machine.load(chunks, self.machine.version)
        self.other = self.machine.load(chunks, self.machine.version)
        assert list(self.machine.dump(self.state)) == chunks

    @rule()
    def replay(self) -> None:
        """From scratch, it is the same state."""
        state = self.machine.initial()
        for payload in self.log:
            self.machine.apply(state, msgspec.msgpack.decode(payload), 0)
        assert list(self.machine.dump(state)) == list(self.machine.dump(self.state))

    @invariant()
    def agrees(self) -> None:
        """Model and state have the same tasks, and the indexes count them."""
        if not hasattr(self, "model"):
            return
        found = {
            number: Job(
                one.version,
                one.queue,
                one.payload,
                one.at,
                one.priority,
                one.key,
                one.deliveries,
                one.worker,
                one.reason,
                one.is_dead,
                one.due,
            )
            for number, one in self.state.tasks.items()
        }
        assert found == self.model.jobs
        assert self.state.keys == {job.key: n for n, job in self.model.jobs.items() if job.key}
        for name, lane in self.state.lanes.items():
            jobs = [job for job in self.model.jobs.values() if job.queue == name]
            assert lane.size == len(jobs)
            assert lane.dead == sum(job.dead for job in jobs)
            valid = [entry[2] for entry in lane.ready if entry[4].version == entry[3]]
            later = [*lane.scheduled, *lane.waiting]
            valid += [entry[1] for entry in later if entry[3].version == entry[2]]
            assert len(valid) == len(jobs) - lane.dead


TestTasks = Tasks.TestCase
TestTasks.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking these takes minutes
)


@pytest.fixture
def store() -> tuple[TaskMachine, State]:
    """A machine and its state with a ready task, a claimed one, and a dead one with a key."""
    machine = TaskMachine()
    state = machine.initial()
    machine.apply(state, [5, 5, [codes.CODEC, "json"]], 5)
    for key in (None, None, "k"):
        machine.apply(state, [10, 10, [codes.INSERT, "q", b"1", None, 0, key]], 10)
    machine.apply(state, [10, 10, [codes.CLAIM, 2, 1, 40, "w"]], 10)
    machine.apply(state, [10, 10, [codes.BURY, 3, 1, "tired"]], 10)
    return machine, state


WRONG: list[Any] = [
    None,
    7,
    b"",
    {},
    [],
    [1],
    ["now", 1, [codes.FINISH, 1, 1]],
    [True, 1, [codes.FINISH, 1, 1]],
    [1, 1, []],
    [1, 1, [codes.BOOT]],
    [1, 1, [codes.BOOT, "text"]],
    [1, 1, [codes.BOOT, b""]],
    [1, 1],
    [1, 1, 5],
    [1, [codes.FINISH, 1, 1]],
    [1, None, [codes.FINISH, 1, 1]],
    [1, True, [codes.FINISH, 1, 1]],
    [1, 1, [99]],
    [1, 1, ["x"]],
    [1, 1, [True, 1, 1]],
    [1, 1, [codes.FINISH]],
    [1, 1, [codes.FINISH, 1]],
    [1, 1, [codes.FINISH, 1, 1, 1]],
    [1, 1, [codes.FINISH, 1, 2]],
    [1, 1, [codes.FINISH, 4, 1]],
    [1, 1, [codes.FINISH, "1", 1]],
    [1, 1, [codes.FINISH, [1], 1]],
    [1, 1, [codes.FINISH, 1, True]],
    [1, 1, [codes.DELETE, 1, 2]],
    [1, 1, [codes.DEPEND, 1, 2]],
    [1, 1, [codes.INSERT, "q", b"1", None, 0, "k"]],
    [1, 1, [codes.INSERT, "q", "text", None, 0, None]],
    [1, 1, [codes.INSERT, 5, b"", None, 0, None]],
    [1, 1, [codes.INSERT, "q", b"", 0.5, 0, None]],
    [1, 1, [codes.INSERT, "q", b"", None, None, None]],
    [1, 1, [codes.CLAIM, 1, 1, None, "w"]],
    [1, 1, [codes.CLAIM, 1, 1, 9, None]],
    [1, 1, [codes.CLAIM, 3, 2, 9, "w"]],
    [1, 1, [codes.BURY, 3, 2, "again"]],
    [1, 1, [codes.NACK, 1, 1, 5, None]],
    [1, 1, [codes.EXTEND, 1, 1, 5]],
    [1, 1, [codes.CODEC, "bytes"]],
    [1, 1, [codes.CHANGE, 1, 1, "q", None, None, None]],
    [1, 1, [codes.CHANGE, 1, 1, None, "text", None, None]],
    [1, 1, [codes.FINISH, 1, 1], [codes.FINISH, 1, 1]],
    [1, 1, [codes.FINISH, 1, 1], [codes.FINISH, 2, 1]],
    [1, 1, [codes.FINISH, 1, 1], [codes.NACK, 2, 2, None, 5]],
    [1, 1, [codes.INSERT, "q", b"", None, 0, "m"], [codes.INSERT, "q", b"", None, 0, "m"]],
]


@pytest.mark.parametrize("entry", WRONG, ids=repr)
def test_entry_that_does_not_fit_is_refused_and_has_no_effect(
    store: tuple[TaskMachine, State], entry: object
) -> None:
    """Whatever another program wrote there: no half of an entry takes effect."""
    machine, state = store
    before = list(machine.dump(state))
    heaps = copy.deepcopy([(lane.size, lane.dead) for lane in state.lanes.values()])
    with pytest.raises(InvalidEntry):
        machine.apply(state, entry, 1)  # type: ignore[arg-type]
    assert list(machine.dump(state)) == before
    assert [(lane.size, lane.dead) for lane in state.lanes.values()] == heaps


def test_state_of_another_version_or_of_other_bytes_is_refused(
    store: tuple[TaskMachine, State],
) -> None:
    """A snapshot that another program wrote, or that lost a part, is not taken for a state."""
    machine, state = store
    chunks = list(machine.dump(state))
    with pytest.raises(InvalidEntry):
        machine.load(chunks, machine.version + 1)
    wrong: list[list[bytes]] = [
        [],
        chunks[:1],
        [b"\xc1"],
        [*chunks, b"\xc1"],
        [*chunks, b"\x91\x01"],
    ]
    wrong.append([chunks[0], msgspec.msgpack.encode([[1, 1, "q", "text", 0, 0, 0, 0, 0, 0, 0, 0]])])
    for bad in wrong:
        with pytest.raises(InvalidEntry):
            machine.load(bad, machine.version)


def test_heaps_stay_in_proportion_to_the_tasks() -> None:
    """An entry that became invalid does not stay for ever: not under a claim that blocks the top.

    The first claim is never finished and has the shortest lease, so that the first entry of the
    heap is always valid, and all others become invalid after it.
    """
    machine = TaskMachine()
    state = machine.initial()
    machine.apply(state, [1, 1, [codes.INSERT, "q", b"", None, 0, None]], 1)
    machine.apply(state, [1, 1, [codes.CLAIM, 1, 1, 10**6, "w"]], 1)
    for number in range(2, 3000):
        machine.apply(state, [2, 2, [codes.INSERT, "q", b"", None, 0, None]], 2)
        machine.apply(state, [2, 2, [codes.CLAIM, number, 1, 10**9, "w"]], 2)
        machine.apply(state, [2, 2, [codes.FINISH, number, 2]], 2)
    (lane,) = state.lanes.values()
    assert len(lane.waiting) <= states.HEAP_MIN + 2
    assert len(lane.ready) <= states.HEAP_MIN + 2
    (task,) = plan.claim(state, (10**6, 10**6), ["q"], lease_ns=1, worker="w", retry=RULES[1]).tasks
    assert task.id == 1


def test_names_of_task_queues_that_are_empty_are_forgotten() -> None:
    """A queue for each customer must not grow the state for ever."""
    machine = TaskMachine()
    state = machine.initial()
    for number in range(1, 5 * states.EMPTY_LANES_MAX):
        machine.apply(state, [1, 1, [codes.INSERT, f"q{number}", b"", None, 0, None]], 1)
        machine.apply(state, [1, 1, [codes.DELETE, number, 1]], 1)
    assert len(state.lanes) <= 2 * states.EMPTY_LANES_MAX
