"""pagequeue: a persistent, memory-mapped, fixed-page queue for Python processes on one host.

from pagequeue import Queue

with Queue("events") as queue, queue.producer() as producer:
    producer.send(b"hello")
"""

import pagequeue.system.program  # noqa: F401 - first: for what happens during the other imports

# isort: split
from pagequeue._core import Claim, Message
from pagequeue.columns.batch import Batch
from pagequeue.errors import (
    AccessDenied,
    AccessError,
    BadRow,
    ClosedError,
    CodecMismatch,
    ConcurrentUse,
    Conflict,
    ConsumerInUse,
    ConsumerNotFound,
    CorruptFrame,
    CorruptMeta,
    CorruptPage,
    CorruptSnapshot,
    DamageError,
    DiskFull,
    DtypeMismatch,
    Expired,
    FlushTimeout,
    ForeignLock,
    ForkedError,
    InvalidOption,
    InvalidType,
    JournalOnly,
    LeaseLost,
    LockReplaced,
    LockTimeout,
    MessageTooLarge,
    MissingExtra,
    MissingPage,
    NaiveDatetime,
    NewerFormat,
    NotADirectory,
    NotAJournal,
    NotDecodable,
    NotDurable,
    NotEncodable,
    NothingReceived,
    OutputExists,
    Overtaken,
    PageQueueError,
    PageSizeMismatch,
    PickleRefused,
    PoisonEntry,
    QueueFull,
    QueueNotFound,
    QueueReplaced,
    ReadOnlyQueue,
    RecordSize,
    RetryError,
    SeekError,
    SequenceOutOfRange,
    SequencesExhausted,
    Stale,
    SyncFailed,
    SystemLimit,
    TimestampOrder,
    TooManyClaims,
    UnsafePath,
    UpdateTimeout,
    UpgradeError,
    UsageError,
    WrongJava,
)
from pagequeue.flow.flow import Flow
from pagequeue.group.dead_letters import DeadLetter
from pagequeue.group.group import Group
from pagequeue.integrity.problem import Problem
from pagequeue.integrity.repair import RepairReport, repair_queue
from pagequeue.integrity.salvage import Loss, Repeat, SalvageReport, salvage_queue
from pagequeue.integrity.salvage_beside import Run
from pagequeue.integrity.verify import VerifyReport, verify_queue
from pagequeue.maintenance.compress import CompressReport
from pagequeue.maintenance.consumers import ConsumerInfo, GroupInfo
from pagequeue.maintenance.info import Info
from pagequeue.maintenance.pages import PageInfo
from pagequeue.maintenance.retention import Retention, TrimReport
from pagequeue.maintenance.ship import ShipReport
from pagequeue.maintenance.stats import ConsumerStats, Rates, Stats, rates
from pagequeue.merge.batch import Merged, MergedBatch
from pagequeue.merge.merge import Merge
from pagequeue.merge.open import merge
from pagequeue.producer.producer import Producer
from pagequeue.queue.queue import Queue
from pagequeue.receive.batches import Batches
from pagequeue.receive.consumer import Consumer
from pagequeue.receive.named_consumer import NamedConsumer
from pagequeue.receive.pace import Pace
from pagequeue.receive.replay import Replay
from pagequeue.store.power_loss_recovery import RecoveryReport
from pagequeue.store.sealed import Sealed

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AccessError",
    "BadRow",
    "Batch",
    "Batches",
    "Claim",
    "ClosedError",
    "CodecMismatch",
    "CompressReport",
    "ConcurrentUse",
    "Conflict",
    "Consumer",
    "ConsumerInUse",
    "ConsumerInfo",
    "ConsumerNotFound",
    "ConsumerStats",
    "CorruptFrame",
    "CorruptMeta",
    "CorruptPage",
    "CorruptSnapshot",
    "DamageError",
    "DeadLetter",
    "DiskFull",
    "DtypeMismatch",
    "Expired",
    "Flow",
    "FlushTimeout",
    "ForeignLock",
    "ForkedError",
    "Group",
    "GroupInfo",
    "Info",
    "InvalidOption",
    "InvalidType",
    "JournalOnly",
    "LeaseLost",
    "LockReplaced",
    "LockTimeout",
    "Loss",
    "Merge",
    "Merged",
    "MergedBatch",
    "Message",
    "MessageTooLarge",
    "MissingExtra",
    "MissingPage",
    "NaiveDatetime",
    "NamedConsumer",
    "NewerFormat",
    "NotADirectory",
    "NotAJournal",
    "NotDecodable",
    "NotDurable",
    "NotEncodable",
    "NothingReceived",
    "OutputExists",
    "Overtaken",
    "Pace",
    "PageInfo",
    "PageQueueError",
    "PageSizeMismatch",
    "PickleRefused",
    "PoisonEntry",
    "Problem",
    "Producer",
    "Queue",
    "QueueFull",
    "QueueNotFound",
    "QueueReplaced",
    "Rates",
    "ReadOnlyQueue",
    "RecordSize",
    "RecoveryReport",
    "RepairReport",
    "Repeat",
    "Replay",
    "Retention",
    "RetryError",
    "Run",
    "SalvageReport",
    "Sealed",
    "SeekError",
    "SequenceOutOfRange",
    "SequencesExhausted",
    "ShipReport",
    "Stale",
    "Stats",
    "SyncFailed",
    "SystemLimit",
    "TimestampOrder",
    "TooManyClaims",
    "TrimReport",
    "UnsafePath",
    "UpdateTimeout",
    "UpgradeError",
    "UsageError",
    "VerifyReport",
    "WrongJava",
    "__version__",
    "merge",
    "rates",
    "repair_queue",
    "salvage_queue",
    "verify_queue",
]

_PUBLIC_MODULES = (
    "errors",
    "format",
    "journal",
    "logging",
    "metrics",
    "multiprocessing",
    "spark",
    "tasks",
    "types",
)


def __dir__() -> list[str]:
    """Return the public names, of modules those that are imported; no internal package."""
    return sorted([*__all__, *(name for name in _PUBLIC_MODULES if name in globals())])
