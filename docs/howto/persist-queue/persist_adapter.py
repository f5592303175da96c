"""The queues of persist-queue on pagequeue: `Queue`, `SQLiteQueue` and `SQLiteAckQueue`.

Change `from persistqueue import ...` to `from persist_adapter import ...`. Any number of processes
can share a path. An item that was got and not finished is delivered again when its process ends.
"""

import contextlib
import io
import pickle
import tempfile
import threading
import time
from queue import Empty, Full
from types import SimpleNamespace

import pagequeue
from pagequeue.errors import NothingReceived, Overtaken

AGAIN = {"lease": 365 * 86400.0, "max_deliveries": None, "backoff": None}  # when its getter dies
POLL = 0.001  # seconds between looks for room, and in `join`
PICKLE = SimpleNamespace(
    protocol=4, load=pickle.load, dump=lambda item, file: pickle.dump(item, file, protocol=4)
)


def _deadline(block, timeout):
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    wait = threading.TIMEOUT_MAX if timeout is None else timeout
    return time.monotonic() + (wait if block else 0)


class _Base:
    """One group of a pagequeue; its claims are the items that were got and are not finished."""

    def _start(self, path, serializer, sync, claims, maxsize=0, name="default"):
        self._memory = tempfile.TemporaryDirectory() if path == ":memory:" else None
        self.path, self.maxsize, self._serializer = path, maxsize, serializer
        self._claims = claims  # whether an item that was got is claimed until it is finished
        self._got = {}  # (claim, item) by id, in the order of `get`
        self._unfinished = 0  # items that were got without a claim, and are not done
        self._guard = threading.Lock()  # of these two
        self._queue = pagequeue.Queue(
            self._memory.name if self._memory else path,
            prefix=name,
            page_bytes=4 << 20,
            sync=sync,
            retention=pagequeue.Retention(drop_acknowledged=True),
        )
        self._group = self._queue.group("persist-queue", **AGAIN)
        self._producer = self._queue.producer()

    def put(self, item, block=True, timeout=None):
        deadline = _deadline(block, timeout)
        file = io.BytesIO()
        self._serializer.dump(item, file)
        while self.maxsize > 0:
            tail = self._queue.tail_sequence
            if self.qsize() < self.maxsize:
                with contextlib.suppress(Overtaken):  # another producer has sent meanwhile
                    return self._producer.send(file.getvalue(), at=tail) + 1
            elif time.monotonic() >= deadline:
                raise Full
            else:
                time.sleep(POLL)
        return self._producer.send(file.getvalue()) + 1

    def put_nowait(self, item):
        return self.put(item, block=False)

    def get(self, block=True, timeout=None, *, raw=False):
        _deadline(block, timeout)
        wait = timeout if block else 0
        try:
            claim = self._group.claim(wait) if self._claims else None
            message = claim.message if claim else self._group.take(wait)
        except NothingReceived:
            raise Empty from None
        item, pqid = None, message.sequence + 1
        try:
            item = self._serializer.load(io.BytesIO(message.payload))
        finally:  # an item that cannot be loaded was got, too
            with self._guard:
                if claim:
                    self._got[pqid] = (claim, item)
                else:
                    self._unfinished += 1
        return {"pqid": pqid, "data": item, "timestamp": message.timestamp / 1e9} if raw else item

    def get_nowait(self, **options):
        return self.get(block=False, **options)

    def qsize(self):
        return self._group.ready

    __len__ = qsize
    size = total = property(qsize)

    def empty(self):
        return self.qsize() == 0

    def full(self):
        return 0 < self.maxsize <= self.qsize()

    def shrink_disk_usage(self):
        self._queue.rotate()
        self._queue.trim()

    def close(self):
        """Give back what was got and is not finished."""
        if "_queue" in vars(self):
            self._queue.close()
        if vars(self).get("_memory"):
            self._memory.cleanup()

    __del__ = close


class Queue(_Base):
    """`persistqueue.Queue`; `task_done` finishes one item, the oldest that was got."""

    def __init__(
        self, path, maxsize=0, chunksize=100, tempdir=None, serializer=PICKLE, autosave=False
    ):
        del chunksize, tempdir  # pages have one size, and no file is renamed over another
        self._start(path, serializer, "none", claims=not autosave, maxsize=maxsize)

    def task_done(self):
        with self._guard:
            if self._got:
                self._got.pop(next(iter(self._got)))[0].ack()
            elif self._unfinished:
                self._unfinished -= 1
            else:
                raise ValueError("task_done() called too many times.")

    def join(self):
        while self._group.lag or self._unfinished:
            time.sleep(POLL)


class SQLiteQueue(_Base):
    """`persistqueue.SQLiteQueue`: without `auto_commit`, `task_done` finishes all that was got."""

    def __init__(
        self,
        path,
        name="default",
        multithreading=False,
        timeout=10.0,
        auto_commit=True,
        serializer=PICKLE,
        db_file_name=None,
        sync="always",
    ):
        del multithreading, timeout, db_file_name  # threads can always share it
        acks = isinstance(self, SQLiteAckQueue)
        self._start(path, serializer, sync, claims=acks or not auto_commit, name=name)

    def task_done(self):
        with self._guard:
            for pqid in list(self._got):
                self._got.pop(pqid)[0].ack()


class SQLiteAckQueue(SQLiteQueue):
    """`persistqueue.SQLiteAckQueue`; `ack_failed` makes a dead letter of the group."""

    def __init__(self, path, auto_resume=True, **options):
        del auto_resume  # what a dead process did not acknowledge is always delivered again
        super().__init__(path, **options)

    def _settle(self, item, pqid, how):
        if (item is None) == (pqid is None):
            raise ValueError("Specify an id or an item, not both.")
        if isinstance(item, dict) and "pqid" in item:
            pqid = item["pqid"]
        with self._guard:
            if pqid is None:
                pqid = next((key for key, (_, got) in self._got.items() if got is item), None)
            if pqid not in self._got:
                return None  # as persist-queue: it is not an item that this handle has got
            how(self._got[pqid][0])
            del self._got[pqid]
        return pqid

    def ack(self, item=None, id=None):
        return self._settle(item, id, lambda claim: claim.ack())

    def nack(self, item=None, id=None):
        return self._settle(item, id, lambda claim: claim.nack())

    def ack_failed(self, item=None, id=None):
        return self._settle(item, id, lambda claim: claim.reject("ack_failed"))

    def task_done(self):
        """Do nothing: `ack` is enough."""

    ready_count = _Base.qsize

    def unack_count(self):
        return len(self._got)

    def active_size(self):
        return self._group.lag

    def ack_failed_count(self):
        return sum(1 for _ in self._group.dead_letters())

    def acked_count(self):
        return self._queue.tail_sequence - self._group.lag - self.ack_failed_count()


FIFOSQLiteQueue, FIFOSQLiteAckQueue = SQLiteQueue, SQLiteAckQueue
