"""pagequeue: a persistent, memory-mapped, fixed-page queue for Python processes on one host.

from pagequeue import Queue

with Queue("events") as queue, queue.producer() as producer:
    producer.send(b"hello")
"""

from pagequeue._core import Claim, Message
from pagequeue.batch import Batch
from pagequeue.batches import Batches
from pagequeue.compress import CompressReport
from pagequeue.consumer import Consumer
from pagequeue.dead import DeadLetter
from pagequeue.errors import (
    AccessDenied,
    AccessError,
    BadRow,
    ClosedError,
    CodecMismatch,
    ConcurrentUse,
    ConsumerInUse,
    ConsumerNotFound,
    CorruptFrame,
    CorruptMeta,
    CorruptPage,
    DamageError,
    DiskFull,
    DtypeMismatch,
    Expired,
    FileStands,
    FlushTimeout,
    ForeignLock,
    ForkedError,
    InvalidOption,
    LeaseLost,
    LockReplaced,
    LockTimeout,
    MessageTooLarge,
    MissingExtra,
    MissingPage,
    NaiveDatetime,
    NewerFormat,
    NotADirectory,
    NotDecodable,
    NotDurable,
    NotEncodable,
    NothingReceived,
    PageQueueError,
    PageSizeMismatch,
    PickleRefused,
    QueueFull,
    QueueNotFound,
    ReadOnlyQueue,
    RecordSize,
    RetryError,
    SeekError,
    SequenceOutOfRange,
    SequencesExhausted,
    SyncFailed,
    SystemLimit,
    TimestampOrder,
    TooManyClaims,
    UnsafePath,
    UpgradeError,
    UsageError,
    WrongJava,
)
from pagequeue.flow import Flow
from pagequeue.group import Group
from pagequeue.info import Info
from pagequeue.listing import ConsumerInfo, GroupInfo
from pagequeue.merge_open import merge
from pagequeue.merged import Merged, MergedBatch
from pagequeue.merging import Merge
from pagequeue.named import NamedConsumer
from pagequeue.pacing import Pace
from pagequeue.problem import Problem
from pagequeue.producer import Producer
from pagequeue.queue import Queue
from pagequeue.recovery_report import RecoveryReport
from pagequeue.repair import RepairReport, repair_queue
from pagequeue.replay import Replay
from pagequeue.retention import Retention, TrimReport
from pagequeue.salvage import Loss, Repeat, Run, SalvageReport, salvage_queue
from pagequeue.ship import ShipReport
from pagequeue.stats import ConsumerStats, Rates, Stats, rates
from pagequeue.verify import VerifyReport, verify_queue

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
    "Consumer",
    "ConsumerInUse",
    "ConsumerInfo",
    "ConsumerNotFound",
    "ConsumerStats",
    "CorruptFrame",
    "CorruptMeta",
    "CorruptPage",
    "DamageError",
    "DeadLetter",
    "DiskFull",
    "DtypeMismatch",
    "Expired",
    "FileStands",
    "Flow",
    "FlushTimeout",
    "ForeignLock",
    "ForkedError",
    "Group",
    "GroupInfo",
    "Info",
    "InvalidOption",
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
    "NotDecodable",
    "NotDurable",
    "NotEncodable",
    "NothingReceived",
    "Pace",
    "PageQueueError",
    "PageSizeMismatch",
    "PickleRefused",
    "Problem",
    "Producer",
    "Queue",
    "QueueFull",
    "QueueNotFound",
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
    "SeekError",
    "SequenceOutOfRange",
    "SequencesExhausted",
    "ShipReport",
    "Stats",
    "SyncFailed",
    "SystemLimit",
    "TimestampOrder",
    "TooManyClaims",
    "TrimReport",
    "UnsafePath",
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
