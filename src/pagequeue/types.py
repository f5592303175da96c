"""Types of the public signatures, for annotations of your own.

    from pagequeue.types import OnFull, Sync, TimeLike

Options are checked where they are used, whatever the annotations say.
"""

from __future__ import annotations

from pagequeue._core import Reader, Writer
from pagequeue.flow.flow import Source, Upstream
from pagequeue.meta.write_meta import Tail
from pagequeue.producer.payload_file import PayloadWriter
from pagequeue.queue.queue_options import QueueOptions
from pagequeue.receive.consumer import PageReader
from pagequeue.receive.pace import Speed
from pagequeue.schema.schema import Schema
from pagequeue.send.with_room import Many, Times
from pagequeue.store.flush import Sync
from pagequeue.tasks.plan import Ref
from pagequeue.tasks.task import TaskStatus
from pagequeue.util.literals import (
    Backoff,
    CodecName,
    CommitMode,
    OnExpired,
    OnFull,
    OnSyncFailure,
    SyncName,
    Trust,
    Trusted,
)
from pagequeue.util.timestamps import Clock, TimeLike
from pagequeue.util.wakeup import Wakeup

__all__ = [
    "Backoff",
    "Clock",
    "CodecName",
    "CommitMode",
    "Many",
    "OnExpired",
    "OnFull",
    "OnSyncFailure",
    "PageReader",
    "PayloadWriter",
    "QueueOptions",
    "Reader",
    "Ref",
    "Schema",
    "Source",
    "Speed",
    "Sync",
    "SyncName",
    "Tail",
    "TaskStatus",
    "TimeLike",
    "Times",
    "Trust",
    "Trusted",
    "Upstream",
    "Wakeup",
    "Writer",
]
