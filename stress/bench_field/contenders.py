"""Who takes part: the adapter of each peer, and how many messages it gets.

A measurement is to take about a second, so a slow peer gets fewer messages. What a peer reaches in
a second is here in rough figures; they set counts, and are compared with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stress.bench.peers.base import Peer

OURS = "pagequeue"
OUR_RING = "pagequeue, ring"
ZEROMQ = "ZeroMQ"
ICEORYX = "iceoryx2"
RING = "shared-memory ring"


@dataclass(frozen=True)
class Pace:
    """Roughly what is done in a second: messages of 100 B, in lists, bytes, and round trips."""

    calls: int
    listed: int = 0
    bytes: int = 1_000_000_000
    trips: int = 10_000


@dataclass(frozen=True)
class Contender:
    """A peer of the field.

    Attributes:
        adapter: the module of `stress.bench.peers` and its class; None: there is none.
        durable: the same for the cases in which each message is to be durable.
        why_not: why there is none of either.
        libraries: what it needs from the package index.
    """

    adapter: tuple[str, str] | None
    pace: Pace
    durable: tuple[str, str] | None = None
    why_not: str = "does not sync"
    libraries: tuple[str, ...] = ()


MILLION = 1_000_000
GB = 1_000_000_000

CONTENDERS: dict[str, Contender] = {
    OURS: Contender(
        ("ours", "PageQueue"),
        Pace(4 * MILLION, 8 * MILLION, 3 * GB, 400_000),
        ("durable", "DurableQueue"),
        libraries=("pagequeue",),
    ),
    OUR_RING: Contender(
        ("our_ring", "OurRing"), Pace(3 * MILLION, bytes=4 * GB), why_not="keeps nothing for long"
    ),
    "multiprocessing.Queue": Contender(
        ("mp_queue", "MultiprocessingQueue"), Pace(150_000, bytes=GB // 2), why_not="stores nothing"
    ),
    "Pipe": Contender(("pipe", "Pipe"), Pace(400_000), why_not="stores nothing"),
    ZEROMQ: Contender(
        ("zeromq", "ZeroMQ"),
        Pace(MILLION, trips=20_000),
        why_not="stores nothing",
        libraries=("pyzmq",),
    ),
    "faster-fifo": Contender(
        ("fast_fifo", "FasterFifo"),
        Pace(200_000, 600_000, 2 * GB),
        why_not="stores nothing",
        libraries=("faster-fifo",),
    ),
    ICEORYX: Contender(
        ("iceoryx", "Iceoryx2"),
        Pace(250_000, bytes=4 * GB, trips=50_000),
        why_not="stores nothing",
        libraries=("iceoryx2",),
    ),
    RING: Contender(
        ("shared_ring", "SharedRing"),
        Pace(700_000, bytes=4 * GB, trips=100_000),
        why_not="stores nothing",
    ),
    "LMDB": Contender(
        ("lmdb_store", "LmdbStore"),
        Pace(400_000, MILLION, GB // 2, 100_000),
        ("durable_lmdb", "LmdbSync"),
        libraries=("lmdb",),
    ),
    "SQLite": Contender(
        ("sqlite_store", "SqliteStore"),
        Pace(40_000, 300_000, GB // 5, 20_000),
        ("durable", "SqliteFull"),
    ),
    "plain file": Contender(
        ("plain_file", "PlainFile"),
        Pace(500_000, 3 * MILLION, 2 * GB, 100_000),
        ("durable", "SyncedFile"),
    ),
    "plain files": Contender(
        ("whole_files", "WholeFiles"),
        Pace(5_000, bytes=2 * GB),
        why_not="a file for each message is for large ones",
    ),
    "persist-queue": Contender(
        ("persist_queue", "PersistQueue"),
        Pace(2_000),
        why_not="does not sync a message",
        libraries=("persist-queue",),
    ),
    "diskcache": Contender(
        ("disk_cache", "DiskCache"),
        Pace(3_000, bytes=GB // 10, trips=1_500),
        why_not="SQLite's figures",
        libraries=("diskcache",),
    ),
    "queuelib": Contender(("queue_lib", "QueueLib"), Pace(200_000), libraries=("queuelib",)),
    "Redis Streams": Contender(
        ("redis_streams", "RedisStreams"),
        Pace(6_000, 60_000, GB // 5, 2_000),
        ("redis_streams", "RedisStreams"),
        libraries=("redis",),
    ),
    "NATS JetStream": Contender(
        ("nats_jetstream", "NatsJetStream"),
        Pace(2_000, 8_000, GB // 20, 1_000),
        why_not="syncs by time only",
        libraries=("nats-py",),
    ),
    "Chronicle Queue": Contender(
        None,
        Pace(0),
        why_not="Java, whose packages are not in the package index",
    ),
}
"""By label; ours is the first, with which all are compared."""


def find(adapter: tuple[str, str]) -> tuple[type[Peer] | None, str]:
    """Return a peer's class, or None and why it cannot be run here."""
    module, name = adapter
    try:
        found: Any = getattr(import_module(f"stress.bench.peers.{module}"), name)
    except ImportError as error:
        return None, f"not installed: {error}"
    peer: type[Peer] = found
    return peer, ""
