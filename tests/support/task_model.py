"""What a task store is, by scans of a dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagequeue.tasks.plan import GIVEN_BACK, LEASE_ENDED

if TYPE_CHECKING:
    from pagequeue.util.retry import Retry


@dataclass
class Job:
    """A task of the model."""

    version: int
    queue: str
    payload: bytes
    at: int
    priority: int
    key: str | None
    deliveries: int = 0
    worker: str | None = None
    reason: str | None = None
    dead: bool = False
    due: int | None = None


@dataclass
class Model:
    """What a task store is, by scans of a dict."""

    jobs: dict[int, Job] = field(default_factory=dict)
    made: int = 0

    def key_of(self, key: str | None) -> int | None:
        """Return the job that has a key."""
        return next((n for n, job in self.jobs.items() if key and job.key == key), None)

    def next(self, queues: tuple[str, ...], now: int, elapsed: int = 0) -> int | None:
        """Return the job that is claimed next, by the clock and by one that runs evenly."""
        due = [
            (-job.priority, job.at, number)
            for number, job in self.jobs.items()
            if job.queue in queues and not job.dead and self._left(job, now, elapsed) <= 0
        ]
        return min(due)[2] if due else None

    def settle(self, queues: tuple[str, ...], now: int, elapsed: int, retry: Retry) -> None:
        """Bury or let wait what failed, until the next job is one that can be claimed."""
        while (number := self.next(queues, now, elapsed)) is not None:
            job = self.jobs[number]
            left = 0
            if job.worker is not None and job.due != 0:
                end = job.at if job.due is None else job.due
                left = end + retry.delay_ns(number, job.deliveries)
                left = max(0, left - (now if job.due is None else elapsed))
            if retry.is_spent(job.deliveries):
                job.reason = LEASE_ENDED if job.worker else job.reason or GIVEN_BACK
                job.dead = True
            elif left:
                self.wait(job, now, elapsed, left)
                job.reason = LEASE_ENDED
            else:
                return
            job.version, job.worker = job.version + 1, None

    def wait(self, job: Job, now: int, elapsed: int, delay: int) -> None:
        """Let a job wait for so long."""
        job.at = now + delay
        if job.due is not None:
            job.due = elapsed + delay if delay else 0

    @staticmethod
    def is_alone(job: Job) -> bool:
        """Return whether a job is claimed without others, because its worker did not return."""
        return job.worker is not None or job.reason == LEASE_ENDED

    def left(self, queues: tuple[str, ...], now: int, elapsed: int) -> int | None:
        """Return how long it is until the next job can be claimed."""
        jobs = [job for job in self.jobs.values() if job.queue in queues and not job.dead]
        return min((self._left(job, now, elapsed) for job in jobs), default=None)

    def _left(self, job: Job, now: int, elapsed: int) -> int:
        return job.at - now if job.due is None else job.due - elapsed
