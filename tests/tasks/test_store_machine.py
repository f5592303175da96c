"""Task stores of two processes' worth against the model: claims, compaction, reopening."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from task_model import Job, Model
from tiers import examples

from pagequeue.errors import NothingReceived, Stale
from pagequeue.tasks import NewTask, TaskStore
from pagequeue.util.retry import Retry
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from pagequeue.tasks import TaskClaim

QUEUES = ("a", "b")
LEASE = 10
RETRY = Retry(3, 1.5, 6.0)
HANDLES = st.integers(0, 1)


class Stores(RuleBasedStateMachine):
    """Two handles of one store."""

    @initialize()
    def begin(self) -> None:
        """Open both."""
        self.directory = Path(tempfile.mkdtemp())
        self.now = 1_000
        self.stores = [self.opened(), self.opened()]
        self.claims: list[tuple[int, TaskClaim]] = []
        self.model = Model()

    def opened(self, **options: Any) -> TaskStore:  # noqa: ANN401 - of TaskStore
        """Open the store."""
        return TaskStore(
            self.directory / "store",
            page_bytes=1 << 16,
            max_deliveries=RETRY.deliveries_max,
            backoff=RETRY[1:],
            clock=lambda: self.now * NS_PER_S,
            worker="w",
            **options,
        )

    def teardown(self) -> None:
        """Prove the whole log, and remove it."""
        if hasattr(self, "stores"):
            assert self.stores[0].journal.verify().ok
            for store in self.stores:
                store.close()
            shutil.rmtree(self.directory)

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.now += seconds

    @rule(
        handle=HANDLES,
        queue=st.sampled_from(QUEUES),
        later=st.sampled_from((0, 0, 5)),
        priority=st.integers(0, 1),
        key=st.sampled_from((None, None, "k")),
    )
    def insert(self, handle: int, queue: str, later: int, priority: int, key: str | None) -> None:
        """Insert a task, unless its key is in use."""
        is_used = self.model.key_of(key) is not None
        try:
            task = self.stores[handle].insert(
                queue, self.model.made, at=timedelta(seconds=later), priority=priority, key=key
            )
        except Stale:
            assert is_used
            return
        assert not is_used
        self.add(queue, task.payload, later, priority, key)
        assert task.id == self.model.made

    def add(self, queue: str, payload: bytes, later: int, priority: int, key: str | None) -> None:
        """Insert a task into the model."""
        self.model.made += 1
        at = (self.now + later) * NS_PER_S
        self.model.jobs[self.model.made] = Job(1, queue, payload, at, priority, key)

    @rule(handle=HANDLES, limit=st.integers(1, 3))
    def claim(self, handle: int, limit: int) -> None:
        """Claim what the model would."""
        try:
            found = self.stores[handle].claim_many(QUEUES, limit, LEASE, timeout=0)
        except NothingReceived:
            found = []
        now = self.now * NS_PER_S
        for one in range(limit):
            self.model.settle(QUEUES, now, now, RETRY)
            number = self.model.next(QUEUES, now)
            if number is None:
                assert len(found) == one
                break
            job = self.model.jobs[number]
            is_alone = self.model.is_alone(job)
            if is_alone and one:
                assert len(found) == one
                break
            assert found[one].id == number
            job.version, job.deliveries = job.version + 1, job.deliveries + 1
            job.at, job.worker = now + LEASE * NS_PER_S, "w"
            if is_alone:
                assert len(found) == 1
                break
        self.claims += [(handle, claim) for claim in found]

    @rule(
        data=st.data(),
        what=st.sampled_from(("ack", "ack", "nack", "extend", "save")),
        delay=st.sampled_from((None, 2.0)),
    )
    def use(self, data: st.DataObject, what: str, delay: float | None) -> None:
        """Use a claim: refused exactly if its version is not current."""
        if not self.claims:
            return
        place = data.draw(st.integers(0, len(self.claims) - 1))
        handle, claim = self.claims.pop(place)
        job = self.model.jobs.get(claim.id)
        is_current = job is not None and job.version == claim.task.version
        now = self.now * NS_PER_S
        try:
            if what == "ack":
                claim.ack(insert=[NewTask("b", "successor")])
            elif what == "nack":
                claim.nack(delay, reason="no")
            elif what == "extend":
                claim.extend(2 * LEASE)
            else:
                claim.save("saved")
        except Stale:
            assert not is_current
            return
        assert job is not None
        assert is_current
        job.version += 1
        if what == "ack":
            del self.model.jobs[claim.id]
            self.add("b", b'"successor"', 0, 0, None)
        elif what == "nack":
            self.return_(claim.id, job, "no", delay)
        else:
            self.claims.append((handle, claim))
            if what == "save":
                job.payload = b'"saved"'
            else:
                job.at = now + 2 * LEASE * NS_PER_S

    def return_(self, number: int, job: Job, reason: str | None, delay: float | None) -> None:
        """Give a job back in the model."""
        job.worker, job.reason = None, reason
        job.dead = RETRY.is_spent(job.deliveries)
        if job.dead:
            job.reason = reason or "was given back"
            return
        waits = RETRY.delay_ns(number, job.deliveries) if delay is None else int(delay * NS_PER_S)
        job.at = self.now * NS_PER_S + waits

    @rule(handle=HANDLES, data=st.data())
    def change(self, handle: int, data: st.DataObject) -> None:
        """Move a task, if another one is as it was; now and then an old version is named."""
        if len(self.model.jobs) < 2:
            return
        numbers = st.sampled_from(sorted(self.model.jobs))
        one, two = data.draw(st.lists(numbers, min_size=2, max_size=2, unique=True))
        wrong = data.draw(st.sampled_from((0, 0, 0, 1)))
        job = self.model.jobs[one]
        ref = (two, self.model.jobs[two].version - wrong)
        try:
            self.stores[handle].modify(change={(one, job.version): {"queue": "b"}}, depend=[ref])
        except Stale as error:
            assert wrong
            assert [conflict.id for conflict in error.conflicts] == [two]  # noqa: PT017
            return
        assert not wrong
        job.version, job.queue, job.at = job.version + 1, "b", self.now * NS_PER_S
        job.worker, job.reason, job.deliveries, job.dead = None, None, 0, False

    @rule(handle=HANDLES)
    def compact(self, handle: int) -> None:
        """Replace the log; the other handle continues."""
        assert self.stores[handle].compact().sequence == self.stores[handle].journal.sequence

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        """Close, which gives back the claims of this handle, and open again."""
        self.stores[handle].close()
        for owner, claim in self.claims:
            job = self.model.jobs.get(claim.id)
            if owner == handle and job is not None and job.version == claim.task.version:
                job.version += 1
                self.return_(claim.id, job, None, None)
        self.claims = [(owner, claim) for owner, claim in self.claims if owner != handle]
        self.stores[handle] = self.opened()

    @invariant()
    def agree(self) -> None:
        """Both handles and the model have the same tasks."""
        if not hasattr(self, "model"):
            return
        for store in self.stores:
            found = {
                task.id: Job(
                    task.version,
                    task.queue,
                    task.payload,
                    task.at,
                    task.priority,
                    task.key,
                    task.deliveries,
                    task.worker,
                    task.reason,
                    task.is_dead,
                )
                for task in store
            }
            assert found == self.model.jobs


TestStores = Stores.TestCase
TestStores.settings = settings(
    max_examples=examples(25),
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking these takes minutes
)
