"""What a replay does, written down beside the queue before it begins, so that it can go on.

A plan names the messages by queue and sequence and cuts them into slices by time. Whatever the
table becomes meanwhile (it grows, it is compacted), the same command finds its plan and does the
slices that the queue's ledger does not have.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.exchange import whole_file
from pagequeue.publication import staged_directory
from pagequeue.spark.pipeline import layout
from pagequeue.trust import trusted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION: Final = 1
START: Final = "replay-"
NEVER: Final = fmt.TIMESTAMP_MAX + 1
"""Behind all times."""


@dataclass(frozen=True)
class Plan:
    """What a replay does.

    Attributes:
        writer: its name in the queue's ledger.
        since: the first time, ns since 1970, and `until`, behind the last.
        until: behind the last.
        ends: of each queue behind which message the table ended then.
        slices: times at which slices begin and end: slice i is from i up to i + 1.
    """

    writer: str
    since: int
    until: int
    ends: dict[str, int]
    slices: list[int]

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Give number, begin and end of each slice."""
        for number, (begin, end) in enumerate(pairwise(self.slices)):
            yield number, begin, end


def make(writer: str, found: list[layout.Stored], since: int, until: int, slice_count: int) -> Plan:
    """Return a plan for what stands in a table.

    Args:
        writer: its name in the ledger.
        found: the files of the table.
        since: the first time, ns since 1970.
        until: behind the last.
        slice_count: about so many messages for a slice; an hour is never cut.
    """
    ends: dict[str, int] = {}
    weights: dict[int, int] = {}
    for file in found:
        start = file.hour.start
        ends[file.hour.queue] = max(ends.get(file.hour.queue, 0), file.end)
        if start < until and start + layout.HOUR_NS > since:
            weights[start] = weights.get(start, 0) + file.end - file.first
    cuts: list[int] = []
    count = 0
    for start in sorted(weights):
        if not cuts or count >= slice_count:
            cuts.append(max(start, since))
            count = 0
        count += weights[start]
    if cuts:
        cuts.append(min(max(weights) + layout.HOUR_NS, until))
    return Plan(writer, since, until, ends, cuts)


def path_of(
    directory: str, prefix: str, trust: tuple[str, ...], identity: Iterable[object]
) -> tuple[str, str]:
    """Return where the plan of a replay stands, and the replay's name in the ledger.

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
    """Return a plan that was written down; None: there is none.

    Raises:
        CorruptMeta: it is damaged. NewerFormat: a newer version wrote it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
        version = record.pop("version")
        if version == VERSION:
            return Plan(**record)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.CorruptMeta(
            "is no plan of a replay: remove it, and replay --since behind the queue's last message",
            path=path, position=0, reason=str(error),
        ) from error  # fmt: skip
    raise errors.NewerFormat(
        f"written in version {version}, this is {VERSION}: upgrade pagequeue",
        path=path, version=version,
    )  # fmt: skip


def save(path: str, plan: Plan) -> None:
    """Write a plan down, durably, whole or not at all."""
    with whole_file(path, force=True) as file:
        file.write(json.dumps({"version": VERSION, **asdict(plan)}).encode())
