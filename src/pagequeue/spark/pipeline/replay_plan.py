"""The plan of a replay, stored next to the queue before it starts, so that it can resume.

A plan names the messages by queue and sequence and cuts them into slices, by time, then queue, then
sequence. Whatever the table becomes meanwhile (it grows, it is compacted), the same command finds
its plan and does the slices that the queue's ledger does not have. A plan that does not match its
checksum is refused: other cuts would send messages twice, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.staging_directory import staged_directory
from pagequeue.meta.all_meta import another_queue
from pagequeue.spark.pipeline import table_layout
from pagequeue.system.atomic_file import whole_file
from pagequeue.system.trust import trusted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pagequeue.util.literals import Trust

VERSION: Final = 2
START: Final = "replay-"
NEVER: Final = fmt.TIMESTAMP_MAX + 1
"""After all times."""


class Cut(NamedTuple):
    """Where a slice begins, and the one before it ends.

    Attributes:
        time: ns since 1970.
        queue: of the first message of that time.
        sequence: of that message.
    """

    time: int
    queue: str = ""
    sequence: int = 0


class Unit(NamedTuple):
    """Messages that are in one slice.

    Attributes:
        begin: where they begin; they end where the next unit begins.
        messages: how many.
        size_bytes: of their payloads, or of the files that hold them.
    """

    begin: Cut
    messages: int
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a replay does.

    Attributes:
        writer: its name in the queue's ledger.
        since: the first time, ns since 1970.
        until: the end, exclusive.
        ends: the end of each queue in the table at that time, exclusive.
        slices: where slices begin and end: slice i is from cut i up to cut i + 1.
        ids: of the queues in the table at that time, in hexadecimal, by their names.
    """

    writer: str
    since: int
    until: int
    ends: dict[str, int]
    slices: list[Cut]
    ids: dict[str, str] = field(default_factory=dict)

    def check(self, table: str, path: str) -> None:
        """Raise if a table has messages of other queues by now than the plan, which is at a path.

        Raises:
            QueueReplaced: it was recreated from queues that were recreated.
        """
        found = table_layout.queue_ids(table)
        for name, queue_id in self.ids.items():
            if found.get(name, queue_id) != queue_id:
                raise another_queue(
                    name,
                    f"the replay that is planned in {path}",
                    queue_id,
                    found[name],
                    "replay the new table to another queue, or remove that plan",
                )

    def parts(self) -> Iterator[tuple[int, Cut, Cut]]:
        """Give number, begin and end of each slice."""
        for number, (begin, end) in enumerate(pairwise(self.slices)):
            yield number, begin, end


def hours_of(found: list[table_layout.Stored], since: int, until: int) -> list[Unit]:
    """Return the hours of a table that have messages of a time, as the names of files tell."""
    amounts: dict[int, tuple[int, int]] = {}
    for file in found:
        start = file.hour.start
        if start < until and start + table_layout.HOUR_NS > since:
            count, size_bytes = amounts.get(start, (0, 0))
            amounts[start] = count + file.end - file.first, size_bytes + file.size_bytes
    return [Unit(Cut(start), *amounts[start]) for start in sorted(amounts)]


def ends_of(found: list[table_layout.Stored]) -> dict[str, int]:
    """Return the end of each queue in a table, exclusive."""
    ends: dict[str, int] = {}
    for file in found:
        ends[file.hour.queue] = max(ends.get(file.hour.queue, 0), file.end)
    return ends


def make(
    writer: str,
    ends: dict[str, int],
    units: Iterable[Unit],
    since: int,
    until: int,
    slice_count: int,
    slice_bytes: int,
) -> Plan:
    """Return a plan for what is in a table.

    Args:
        writer: its name in the ledger.
        ends: of its queues.
        units: that are not cut further.
        since: the first time, ns since 1970.
        until: the end, exclusive.
        slice_count: a slice with so many messages takes no further unit.
        slice_bytes: nor does one with so many bytes.
    """
    cuts: list[Cut] = []
    count = size_bytes = 0
    for unit in sorted(units):
        if not cuts or count >= slice_count or size_bytes >= slice_bytes:
            cuts.append(max(unit.begin, Cut(since)))
            count = size_bytes = 0
        count += unit.messages
        size_bytes += unit.size_bytes
        last = unit.begin.time
    if cuts:
        cuts.append(Cut(min(last - last % table_layout.HOUR_NS + table_layout.HOUR_NS, until)))
    return Plan(writer, since, until, ends, cuts)


def path_of(
    directory: str, prefix: str, trust: tuple[Trust, ...], identity: Iterable[object]
) -> tuple[str, str]:
    """Return the path of a replay's plan, and its name in the ledger.

    Args:
        directory: of the queue.
        prefix: of its file names.
        trust: as for `Queue`.
        identity: what makes two replays the same.
    """
    text = json.dumps([str(one) for one in identity])
    name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    there = staged_directory(directory, prefix, trust=trusted(trust, directory))
    return os.path.join(there, f"{START}{name}.json"), f"replay {name}"


def load(path: str) -> Plan | None:
    """Return the stored plan, or None.

    Raises:
        CorruptMeta: it is damaged. NewerFormat: a newer version wrote it.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    text = data[8:]
    try:
        if int(data[:8], 16) != _core.crc32c(text):
            raise ValueError("wrong checksum")  # noqa: TRY301 - one answer to all that is wrong
        record: dict[str, Any] = json.loads(text)
        version = record.pop("version")
        if type(version) is not int or version < VERSION:
            raise ValueError(f"unknown version {version!r}")  # noqa: TRY301 - the same
        if version == VERSION:
            return _plan_of(**record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.CorruptMeta(
            "not a valid plan of a replay",
            path=path,
            position=0,
            reason=str(error),
            remedy="remove it, and replay --since a time after the queue's last message",
        ) from error
    raise errors.NewerFormat(
        f"written in version {version}, this is {VERSION}: upgrade pagequeue",
        path=path,
        version=version,
    )


def _plan_of(
    writer: str,
    since: int,
    until: int,
    ends: dict[str, int],
    slices: list[list[Any]],
    ids: dict[str, str] | None = None,
) -> Plan:
    """Return the plan of a record.

    Raises:
        TypeError, ValueError, AttributeError: it is not one.
    """
    cuts = [Cut(*cut) for cut in slices]
    numbers = [since, until, *ends.values(), *(cut.time for cut in cuts)]
    numbers += [cut.sequence for cut in cuts]
    ids = ids or {}
    texts = [writer, *ends, *ids, *ids.values(), *(cut.queue for cut in cuts)]
    if not (
        all(type(number) is int for number in numbers) and all(type(text) is str for text in texts)
    ):
        raise TypeError("a value of a wrong type")
    if sorted(cuts) != cuts:
        raise ValueError("slices that are not in order")
    return Plan(writer, since, until, ends, cuts, ids)


def save(path: str, plan: Plan) -> None:
    """Write a plan down, durably, whole or not at all."""
    text = json.dumps({"version": VERSION, **asdict(plan)}).encode()
    with whole_file(path, force=True, is_of_queue=True) as file:
        file.write(f"{_core.crc32c(text):08x}".encode() + text)
