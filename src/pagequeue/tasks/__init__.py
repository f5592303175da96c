"""Task stores: tasks that processes share, changed by transactions, on a journal.

from pagequeue.tasks import NewTask, TaskStore

with TaskStore("images") as store:
    store.insert("resize", {"image": "1.png"})
    claim = store.claim("resize", lease=60.0)
    claim.ack(insert=[NewTask("publish", claim.value)])
"""

from pagequeue.tasks.claim import TaskClaim
from pagequeue.tasks.store import TaskStore
from pagequeue.tasks.task import Modified, NewTask, Task, TaskQueueStats, TaskStats

__all__ = ["Modified", "NewTask", "Task", "TaskClaim", "TaskQueueStats", "TaskStats", "TaskStore"]
