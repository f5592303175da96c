"""What a task store is, by scans of a dict."""

from __future__ import annotations

from dataclasses import dataclass, field


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


@dataclass
class Model:
    """What a task store is, by scans of a dict."""

    jobs: dict[int, Job] = field(default_factory=dict)
    made: int = 0

    def key_of(self, key: str | None) -> int | None:
        """Return the job that has a key."""
        return next((n for n, job in self.jobs.items() if key and job.key == key), None)

    def next(self, queues: tuple[str, ...], now: int) -> int | None:
        """Return the job that is claimed next."""
        due = [
            (-job.priority, job.at, number)
            for number, job in self.jobs.items()
            if job.queue in queues and job.at <= now and not job.dead
        ]
        return min(due)[2] if due else None

    def next_time(self, queues: tuple[str, ...], now: int) -> int | None:
        """Return when the next job can be claimed."""
        later = [job.at for job in self.jobs.values() if job.queue in queues and not job.dead]
        return min((at for at in later if at > now), default=None)
