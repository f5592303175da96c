"""The full engine: a state as files, opened with the library, read, verified and written to.

It runs in one process for all states. Every opening finds another boot id, as after a real power
cut, so that the library recovers. A state may be cut once more: its recovery, and what is sent
after it, is recorded like any other run, and the states of that recording are tried in turn.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stress.cut.recording import (
    PLACE_ABOUT,
    PREFIX,
    PUBLISHED,
    Recorder,
    Recording,
    frames_and_large,
)
from stress.traffic import HEADER, VIOLATIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pagequeue import ConsumerInfo, Queue
    from stress.cut.native import Found
    from stress.cut.plan import Plan
    from stress.cut.recording import Places

STRAY: Final = ".tmp-"
SENDS_AFTER: Final = 9
FLUSH_EVERY: Final = 4


class Reboots:
    """Gives the library another boot id each time."""

    def __init__(self, directory: Path) -> None:
        from pagequeue.meta import write_meta  # noqa: PLC0415  the core is chosen by now

        self._path = directory / "boot_id"
        self._numbers = itertools.count(1)
        write_meta.BOOT_ID_PATH = str(self._path)  # type: ignore[misc]
        self.reboot()

    def reboot(self) -> None:
        """Be another boot from now on."""
        self._path.write_text(str(uuid.UUID(int=next(self._numbers))), encoding="ascii")


def plan_keeps(queue: Queue) -> bool:
    """Whether this queue was opened with a retention that removes pages."""
    return queue._store.limits.pages < math.inf


def wrong_places(queue: Queue, places: Mapping[int, Places]) -> list[str]:
    """Return which named consumers are at a wrong place, or have lost messages they need."""
    found = {int(info.name[1:]): info for info in queue.consumers()}
    head, tail = queue.head_sequence, queue.tail_sequence
    wrong = [f"consumer {one} is gone" for one in places if one not in found]
    for one, info in found.items():
        place = info.next_sequence
        if place is None:
            wrong.append(f"consumer {one}: {info.problem}")
            continue
        least, most = places.get(one, (0, tail))
        if not min(least, tail) <= place <= most or place > tail:
            wrong.append(
                f"consumer {one} is at {place}, with {tail} messages there; {least} was "
                f"durable, {most} acknowledged"
            )
        if place < head:
            wrong.append(f"consumer {one} is at {place}, and the head is {head}")
    return wrong


def wrong_pieces(
    queue: Queue,
    plan: Plan,
    sent: Sequence[tuple[int, bytes, bool]],
    published: Sequence[tuple[int, int]],
) -> list[str]:
    """Return which pieces of work are not whole, or disagree with the ledger."""
    from pagequeue.bulk.publisher import BulkPublisher  # noqa: PLC0415  the core is chosen by now

    there = [message.payload for message in queue.replay()]
    pieces = {HEADER.unpack_from(one[1])[:2] for one in sent if len(one[1]) >= HEADER.size}
    wrong = []
    with BulkPublisher(queue._store) as ledger:
        for uid, number in sorted({*pieces, *published}):
            op = plan.op(uid, number)
            if not op.publishes:
                continue
            done = ledger.done(str(uid), number)
            if done is not None and there[done.start : done.stop] != op.payloads:
                wrong.append(f"piece {number} of {uid} is recorded as {done}, and is not there")
            if done is None and (uid, number) in published:
                wrong.append(f"piece {number} of {uid} was published, and the ledger has forgotten")
            if done is None and op.payloads[0] in there and op.payloads[-1] not in there:
                wrong.append(f"piece {number} of {uid} is there in part")
    return wrong


class Full:
    """Opens states with the library."""

    def __init__(self, directory: Path, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        self.directory = directory
        self.path = directory / "queue"
        self.reboots = Reboots(directory)
        self._uids = itertools.count(1 << 48)

    def place(self, files: dict[str, bytes] | None) -> None:
        """Make the files of a state, in a boot of their own."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.reboots.reboot()
        if files is None:
            return
        os.mkdir(self.path, 0o700)
        for name, data in files.items():
            fd = os.open(self.path / name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)

    # --- one state --------------------------------------------------------------------------------

    def try_state(
        self,
        plan: Plan,
        sent: Sequence[tuple[int, bytes, bool]],
        files: dict[str, bytes] | None,
        found: Found,
        places: Mapping[int, Places],
        published: Sequence[tuple[int, int]] = (),
        *,
        again: bool,
    ) -> list[str]:
        """Open a state, prove its messages, and continue; return every violation.

        Args:
            plan: of the run, for what is sent after the recovery.
            sent: all messages that may be there, in order.
            files: of the state.
            found: what the fast engine found in it.
            places: the places that named consumers may have.
            published: operations, as uid and number, that the ledger must contain.
            again: open it read-only first; recover twice, and compare.
        """
        self.place(files)
        try:
            if again:
                wrong = self._wrong_to_readers(sent, found)
                if wrong:
                    return wrong
                first = self._recovered(plan)
                self.reboots.reboot()
                if self._recovered(plan) != first:
                    return ["recovering twice gives other bytes, or another tail"]
                self.reboots.reboot()
            return self._gone_on(plan, sent, found, places, published)
        except Exception as error:  # noqa: BLE001  no power cut may cause any exception
            return [f"{type(error).__name__}: {error}"]

    def _wrong_to_readers(self, sent: Sequence[tuple[int, bytes, bool]], found: Found) -> list[str]:
        """Return what is wrong in what a read-only opener sees before a writer recovers."""
        from pagequeue import Queue, QueueNotFound  # noqa: PLC0415  the core is chosen by now

        before = self._contents()
        try:
            with Queue(self.path, read_only=True) as queue:
                seen = [(m.timestamp, m.payload) for m in queue.replay()]
                head = queue.head_sequence
        except QueueNotFound:
            seen, head = [], 0
        end = head + len(seen)
        if self._contents() != before:
            return ["a read-only opener changed a file"]
        if not found.promised <= end <= found.tail:
            return [f"a read-only opener sees messages up to {end}, recovery up to {found.tail}"]
        if seen != [one[:2] for one in sent[head:end]]:
            return ["a read-only opener sees what was not sent"]
        if seen and sent[end - 1][2]:
            return [f"a read-only opener sees a part of a batch, up to {end}"]
        return []

    def _contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.path.glob("*"))}

    def _recovered(self, plan: Plan) -> tuple[Any, dict[str, bytes]]:
        with plan.open(str(self.path)) as queue:
            tail = queue._store.tail
        pages = {path.name: path.read_bytes() for path in self.path.glob(f"{PREFIX}-0*")}
        return (tail.page_number, tail.position, tail.sequence, tail.last_timestamp), pages

    def _gone_on(
        self,
        plan: Plan,
        sent: Sequence[tuple[int, bytes, bool]],
        found: Found,
        places: Mapping[int, Places],
        published: Sequence[tuple[int, int]],
    ) -> list[str]:
        with plan.open(str(self.path)) as queue:
            wrong = self._wrong_in(queue, sent, found)
            if not wrong and plan.publishes:
                wrong = wrong_pieces(queue, plan, sent, published)
            if not wrong:
                wrong = wrong_places(queue, places)
            if not wrong:
                wrong = self._wrong_behind(queue, plan, sent)
        if not wrong:
            wrong = [f"left over: {name}" for name in os.listdir(self.path) if STRAY in name]
        return wrong[:VIOLATIONS_MAX]

    def _wrong_in(
        self, queue: Queue, sent: Sequence[tuple[int, bytes, bool]], found: Found
    ) -> list[str]:
        """Return what is wrong with a queue that was just recovered."""
        tail = queue._store.tail
        count = tail.sequence
        if count != found.tail:
            return [f"{count} messages are found, by the fast engine {found.tail}"]
        if count < found.promised:
            return [f"{found.promised} messages were guaranteed, {count} are found"]
        if count > len(sent):
            return [f"{count} messages are found, {len(sent)} were sent"]
        wrong = []
        head = queue.head_sequence
        if head and not plan_keeps(queue):
            return [f"it begins at {head}, though no page was to be removed"]
        for sequence, message in enumerate(queue.replay(), head):
            if (message.sequence, message.timestamp, message.payload) != (
                sequence,
                *sent[sequence][:2],
            ):
                return [f"message {sequence} is not what was sent: {message!r}"]
        if count and sent[count - 1][2]:
            wrong.append(f"it ends inside a batch, at {count}")
        if queue.durable_sequence != count:
            wrong.append(f"recovered up to {count}, but durable is {queue.durable_sequence}")
        wrong += [f"verify: {problem}" for problem in queue.verify().problems]
        return wrong + self._dirty_after(queue)

    def _dirty_after(self, queue: Queue) -> list[str]:
        """Return which bytes after the tail are not zero."""
        tail = queue._store.tail
        name = f"{PREFIX}-{tail.page_number:010d}"
        wrong = []
        for suffix, position in ((".page", tail.position), (".idx", tail.count * 12)):
            data = (self.path / (name + suffix)).read_bytes()[position:]
            if data.strip(b"\0"):
                wrong.append(f"{name}{suffix} is not zero after the tail, {position}")
        return wrong

    def _wrong_behind(
        self, queue: Queue, plan: Plan, sent: Sequence[tuple[int, bytes, bool]]
    ) -> list[str]:
        """Send more, flush, receive what every named consumer is due, and return what is wrong."""
        from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

        before = queue.tail_sequence
        with queue.producer() as producer:
            op = plan.op(next(self._uids), 0)
            payloads = op.payloads[: 1 if op.publishes else None] or [b"next"]
            try:
                sequences = producer.send_many(payloads)
            except QueueFull:
                payloads, sequences = [], range(before, before)
            durable = producer.flush()
        if sequences != range(before, before + len(payloads)) or durable != sequences.stop:
            return [f"sent {sequences}, durable {durable}, where {before} was the tail"]
        if [message.payload for message in queue.replay(sequence=before)] != payloads:
            return ["messages sent after the recovery are not received"]
        due = [one[1] for one in sent[:before]] + payloads
        return [wrong for info in queue.consumers() for wrong in self._wrong_due(queue, info, due)]

    def _wrong_due(self, queue: Queue, info: ConsumerInfo, due: Sequence[bytes]) -> list[str]:
        """Return what is wrong in the messages that a named consumer receives now."""
        assert info.next_sequence is not None
        with queue.consumer(info.name) as consumer:
            got = []
            while consumer.lag:
                got += [message.payload for message in consumer.receive_many(timeout=0)]
        if got != list(due[info.next_sequence :]):
            return [f"{info.name} does not receive what follows {info.next_sequence}"]
        return []

    # --- the second cut ---------------------------------------------------------------------------

    def record_recovery(
        self,
        recording: Recording,
        plan: Plan,
        files: dict[str, bytes] | None,
        found: Found,
        name: str,
    ) -> Recording:
        """Record a state's recovery and further use; there must be a recorder.

        Returns:
            a recording in which all that this recovery finds must be found by the next one.
        """
        from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

        assert self.recorder is not None
        self.place(files)
        uid = next(self._uids)
        with (
            self.recorder.recording(str(self.path)),
            plan.open(str(self.path)) as queue,
            queue.producer() as producer,
        ):
            count = queue.tail_sequence
            head_page, head = queue._store.head
            self.recorder.flushed(count)
            for info in queue.consumers():
                if info.next_sequence is not None:
                    self.recorder.note(PLACE_ABOUT, int(info.name[1:]), info.next_sequence)
            for number in range(SENDS_AFTER):
                with suppress(QueueFull):
                    op = plan.op(uid, number)
                    first, sent_count = op.run(producer)
                    if op.publishes:
                        self.recorder.note(PUBLISHED, uid, number)
                        self.recorder.flushed(first + sent_count)
                if number % FLUSH_EVERY == FLUSH_EVERY - 1:
                    self.recorder.flushed(producer.flush())
        log = self.recorder.log()
        frames, large = frames_and_large(self.path, log, head_page)
        sent = recording.first_frames(head) + frames
        return Recording(
            f"{recording.name}, {name}",
            recording.seed,
            log,
            sent,
            promised=found.promised,
            least=count,
            large=recording.first_large(head) + large,
        )
