"""One case of the fault matrix, played in a separate process, with every step judged.

A case is one scene of `fault_scenes.py` and one fault of `fault_matrix.py` in it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import sys
import tempfile
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from stress import shim
from stress.fault_matrix import ALARM_RAISES, points_of
from stress.fault_verdict import Interrupted, Judge, Played, descriptors, place_of, target_of
from stress.faulty_disk import Disk
from stress.history import Log, Sent
from stress.steps import MIXED, PAGE_BYTES, op_of, uid_of
from stress.traced import Ways

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from pagequeue import Producer, Queue
    from stress.fault_matrix import Case

Result = TypeVar("Result")

LOCK_TIMEOUT = 5.0
"""More than a busy machine lets a thread that prepares a page wait: no fault explains the error."""
KEPT_DISK = "disk-at-"
"""Prefix of the directories that hold the disk at the time a number of messages was durable."""


class Stage:
    """One case, played in this process: a queue, the fault around some of its calls, a verdict."""

    def __init__(self, directory: Path, case: Case, expected: list[bytes]) -> None:
        self.directory = directory
        self.case = case
        self.expected = expected
        """What a template's queue holds."""
        self.path = str(directory / "watched" / "deep" / "queue")
        self.played = Played()
        self.acked = Log(directory / "acked", Sent)
        self.queue: Queue | None = None
        self.producer: Producer | None = None
        self.error: BaseException | None = None
        self.policy = "stop"
        self._mends = False
        self._calm: list[Callable[[], None]] = []
        self._turn = self._number = self._again = 0
        self._inside = False
        self._opening_failed = self._recovery_failed = False
        self._kind = MIXED
        self._disk: Disk | None = None
        self._other_disks: list[Disk] = []
        self._own_sync_failed = False
        self._ways: Ways | None = None

    # --- before and after the fault ---------------------------------------------------------------

    def prepare(self) -> None:
        """Watch the directory, and record errors raised where no caller can catch them."""
        watched = str(self.directory / "watched")
        shim.watch(watched)
        temporary = os.path.join(watched, "tmp")
        os.makedirs(temporary)
        tempfile.tempdir = temporary
        signal.signal(signal.SIGALRM, self._alarm)
        sys.unraisablehook = self._unraisable
        threading.excepthook = self._thread_died
        self._descriptors = descriptors()

    def model_disk(self) -> None:
        """From now on model the contents of the disk; existing files count as written."""
        if os.path.isdir(self.path):
            self._disk = Disk(self.path, self.directory / "disk")
            self._disk.start()
            shim.on_sync(self._synced)

    def also_model(self, directory: str, state: Path) -> Disk:
        """Follow what is on the disk of another directory, which is about to be made."""
        self._other_disks.append(Disk(directory, state))
        return self._other_disks[-1]

    def begin(self, kind: int = MIXED) -> None:
        """From now on calls are disturbed."""
        self._kind = kind
        if self._disk is None:
            self.model_disk()
        if self._disk is None:  # the queue is about to be made
            self._disk = Disk(self.path, self.directory / "disk")
            shim.on_sync(self._synced)
        self._own_sync_failed = False
        if not self.case.how:
            shim.note_places(on=True)
            self._ways = Ways(shim.teller())
        shim.begin(self.case.order)

    def end(self) -> None:
        """The fault is gone; from here on all must work, unless a sync failed."""
        shim.end()
        if self._ways is not None:
            self._ways.end()
            self.played.points = {
                kind: [points_of(way[number], sort) for number, sort in found]
                for way in (self._ways.all(),)
                for kind, found in shim.places().items()
            }
        self.played.fired = shim.fired()
        self.played.counts = {kind: count for kind, count in shim.counts().items() if count}
        failed = self.case.fails_syncs and self.played.fired > 0
        told = failed and self._own_sync_failed and not self._mends
        self._recovery_failed = told and self._opening_failed
        self.played.latched = told and not self._opening_failed and self.policy == "stop"

    def wrong(self, sentence: str) -> None:
        """Record a violation."""
        self.played.violations.append(sentence)

    def _synced(self, _kind: str, path: str, error: int) -> int:
        assert self._disk is not None
        self._own_sync_failed |= error not in {0, errno.EINTR} and self._is_own(path)
        for disk in (self._disk, *self._other_disks):
            disk.told(path, error)
        again, self._again = self._again, 0
        return again

    def _is_own(self, path: str) -> bool:
        """Whether a sync of this latches the queue: not of a temporary file or a staged page."""
        own, staged = self.path + os.sep, f"{self.path}/queue-staged/"
        return (
            ".tmp-" not in path and f"{path}/".startswith(own) and not f"{path}/".startswith(staged)
        )

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        if shim.is_listening(frame):
            self._again = number
        elif self._inside and self.case.how.startswith(ALARM_RAISES):
            self._inside = False
            raise Interrupted

    def _unraisable(self, told: Any) -> None:  # noqa: ANN401  typeshed has no name for it at run time
        if not isinstance(told.exc_value, Interrupted):
            self.wrong(f"an unraisable error, in {told.object!r}: {told.exc_value!r}")

    def _thread_died(self, told: threading.ExceptHookArgs) -> None:
        self.wrong(f"a thread dies of {told.exc_value!r}")

    # --- steps ------------------------------------------------------------------------------------

    def attempt(self, doing: str, call: Callable[[], Result]) -> Result | None:
        """Make one call and judge how it ends; `self.error` is set if it did not succeed."""
        before = shim.fired()
        self.error = None
        try:
            self._inside = True
            result = call()
            self._inside = False
        except BaseException as error:  # noqa: BLE001  every exception is judged
            self._inside = False
            self.played.errors.append(type(error).__name__)
            judge = Judge(self.case, str(self.directory), self.policy)
            for sentence in judge.wrong_with(error, before):
                words = f"{type(error).__name__}: {error}, at {place_of(error)}"
                self.wrong(f"{doing} {sentence}: {words}")
            self.error = error.with_traceback(None)
            error.__context__ = error.__cause__ = None
            return None
        return result

    @property
    def hides_a_file(self) -> bool:
        """Whether a file could not be read so far."""
        return self.case.how == "EIO" and self.case.kind in {"open", "mmap"} and shim.fired() > 0

    @property
    def is_made(self) -> bool:
        """Whether a page size has been chosen for the queue."""
        return os.path.exists(os.path.join(self.path, "queue-allMeta"))

    # --- what scenes are made of ------------------------------------------------------------------

    def open(self, **options: Any) -> bool:  # noqa: ANN401  as Queue takes them
        """Open the queue and make a producer, unless it is opened read-only."""
        from pagequeue import Queue  # noqa: PLC0415

        self.policy = options.get("on_sync_failure", "stop")
        options.setdefault("lock_timeout", LOCK_TIMEOUT)
        if not self.is_made:
            options.setdefault("page_bytes", PAGE_BYTES)
        self.queue = self.attempt("opening", lambda: Queue(self.path, **options))
        if self.queue is None:
            self._opening_failed = True
            return False
        if not options.get("read_only"):
            self.producer = self.attempt("a new producer", self.queue.producer)
        return True

    def send(self, count: int) -> bool:
        """Send so many operations, a single one or a batch each; return whether all succeeded."""
        well = True
        for _ in range(count):
            if self.producer is None and not self._get_producer():
                return False
            well = self._send() and well
        return well

    def send_other(self, kind: int, count: int, first: int = 0) -> None:
        """Send so many operations of another kind, as another one, from number `first` on."""
        self._kind, self._number = kind, first
        self.send(count)

    def _get_producer(self) -> bool:
        if self.queue is not None:
            self.producer = self.attempt("a new producer", self.queue.producer)
        return self.producer is not None

    def _send(self) -> bool:
        from pagequeue import NotDurable, RetryError  # noqa: PLC0415

        uid = uid_of(self._kind, 10 + self._turn)
        if uid not in self.played.uids:
            self.played.uids.append(uid)
        number, producer = self._number, self.producer
        assert producer is not None
        sent = self.attempt("sending", lambda: op_of(uid, number).run(producer))
        if sent is not None:
            self.acked.put(Sent(uid, number, sent[1], sent[0]))
            self._number += 1
            if op_of(uid, number).publishes:
                self.claim_all()
                self._keep_disk()
            return True
        if isinstance(self.error, NotDurable):
            self.played.visible.append((uid, number))
        elif isinstance(self.error, RetryError):
            self.played.refused.append((uid, number))
        self._turn += 1  # this uid is not used again: it may have died in the middle
        self._number = 0
        return False

    def flush(self) -> None:
        """Flush, and record the guarantee that it reports."""
        if self.producer is not None or self._get_producer():
            assert self.producer is not None
            producer = self.producer
            durable = self.attempt("flushing", lambda: producer.flush(LOCK_TIMEOUT))
            if durable is not None and self.queue is not None:
                self.played.claims = max(self.played.claims, durable)

    def claim_all(self) -> None:
        """Hold the queue to its own word: what was sent by now survives a power cut."""
        self.played.claims = max(self.played.claims, self.tail())

    def _keep_disk(self) -> None:
        """Keep what is on the disk now: what is flushed later must not make the claim true."""
        if self._disk is not None:
            kept = self.directory / f"{KEPT_DISK}{self.played.claims}"
            self._disk.copy(kept)

    def tail(self) -> int:
        """Return the queue's tail; 0 when it is not open."""
        return 0 if self.queue is None else self.queue.tail_sequence

    def read(self, queue: Queue | None) -> None:
        """Replay all of it; what is there must be what was sent, in order."""
        if queue is None:
            return
        found = self.attempt("replaying", lambda: [m.payload for m in queue.replay()])
        if found is not None:
            self.compare("replaying", found)

    def compare(self, doing: str, found: list[bytes]) -> None:
        """Hold messages against what the template's queue holds."""
        if found[: len(self.expected)] != self.expected[: len(found)]:
            self.wrong(f"{doing} gives other messages than were sent")
        if len(found) < len(self.expected):
            self.wrong(f"{doing} gives {len(found)} messages, not {len(self.expected)}")

    def fail_a_sync(self) -> None:
        """Latch the queue, undisturbed: messages are sent, and flushing them fails."""
        from pagequeue import Queue, SyncFailed  # noqa: PLC0415  the core is chosen by now

        with Queue(self.path) as queue:
            self.queue, self.producer = queue, queue.producer()
            self.send(6)
            shim.begin(shim.Order("fdatasync", 1, error=errno.EIO))
            with contextlib.suppress(SyncFailed):
                self.producer.flush()
            shim.end()
        self.queue = self.producer = None

    def repair(self) -> None:
        """Repair the queue; once the fault is over, another repair must leave no problem."""
        from pagequeue import repair_queue  # noqa: PLC0415

        self._mends = True

        def again() -> None:
            report = repair_queue(self.path)
            if not report.ok:
                self.wrong(f"repairing leaves {report.remaining}")

        self.attempt("repairing", lambda: repair_queue(self.path, lock_timeout=LOCK_TIMEOUT))
        self.when_calm(again)

    def when_calm(self, then: Callable[[], None]) -> None:
        """Schedule a call for the time after the fault, before the queue is used again."""
        self._calm.append(then)

    def close(self) -> None:
        """Close the queue."""
        queue, self.queue, self.producer = self.queue, None, None
        if queue is not None:
            self.attempt("closing", queue.close)

    # --- when the fault is gone -------------------------------------------------------------------

    def go_on(self) -> None:
        """Use open handles, then open again: all calls must work, except those a latch forbids."""
        latched = self.played.latched
        for then in self._calm:
            self._calmly("mending", then)
        if self.queue is None or self.queue._store.read_only:
            if self.queue is not None:
                self._calmly("closing", self.queue.close)
            self._reopen()
        queue = self.queue
        if queue is None:
            return
        self.played.claims = max(self.played.claims, queue.durable_sequence)
        if self.producer is None:
            self.producer = self._calmly("a new producer", queue.producer)
        uid = uid_of(MIXED, 1 << 20)
        self.played.uids.append(uid)
        for number in range(2):
            self._go_on_sending(uid, number, latched=latched)
        count = self._calmly("replaying", lambda: sum(1 for _ in queue.replay()))
        if count is not None and count != len(queue):
            self.wrong(f"replaying gives {count} of {len(queue)} messages, later")
        if not latched and self.producer is not None:
            durable = self._calmly("flushing", self.producer.flush)
            self.played.claims = max(self.played.claims, durable or 0)
        self.producer = self.queue = None
        self._close_calmly(queue, latched=latched)

    def _close_calmly(self, queue: Queue, *, latched: bool) -> None:
        from pagequeue import SyncFailed  # noqa: PLC0415

        try:
            queue.close()
        except SyncFailed:
            if not latched:
                self.wrong("closing reports a failed sync, and none failed")
        except Exception as error:  # noqa: BLE001
            self.wrong(f"closing fails though the fault is gone: {error!r}")

    def _go_on_sending(self, uid: int, number: int, *, latched: bool) -> None:
        from pagequeue import SyncFailed  # noqa: PLC0415

        producer = self.producer
        if producer is None:
            return
        try:
            first, count = op_of(uid, number).run(producer)
        except SyncFailed as error:
            if not latched:
                self.wrong(f"sending reports a failed sync, and none failed: {error}")
        except Exception as error:  # noqa: BLE001
            self.wrong(f"sending fails though the fault is gone: {error!r}")
        else:
            self.acked.put(Sent(uid, number, count, first))
            if latched and count:
                self.wrong("a sync failed, and sending still works")

    def _reopen(self) -> None:
        from pagequeue import Queue  # noqa: PLC0415

        page_bytes = None if self.is_made else PAGE_BYTES
        if self._recovery_failed and self.is_made:
            self._mend_recovery()
        self.queue = self._calmly("opening", lambda: Queue(self.path, page_bytes=page_bytes))

    def _mend_recovery(self) -> None:
        """A sync failed in recovery: the queue stays closed until it is repaired."""
        from pagequeue import Queue, SyncFailed, repair_queue  # noqa: PLC0415

        try:
            Queue(self.path).close()
        except SyncFailed:
            report = self._calmly("repairing", lambda: repair_queue(self.path))
            if report is not None and not report.ok:
                self.wrong(f"repairing leaves {report.remaining}")

    def _calmly(self, doing: str, call: Callable[[], Result]) -> Result | None:
        try:
            return call()
        except Exception as error:  # noqa: BLE001
            self.wrong(f"{doing} fails though the fault is gone: {error!r}")
            return None

    def leave(self) -> None:
        """Record the result; no file may be left open."""
        self.queue = self.producer = self.error = None
        gc.collect()
        left = descriptors() - self._descriptors
        if left and not self.case.how.startswith(ALARM_RAISES):
            self.wrong(f"descriptors left open: {sorted(str(target_of(fd)) for fd in left)}")
        text = json.dumps(asdict(self.played))
        (self.directory / "played").write_text(text, encoding="utf-8")
