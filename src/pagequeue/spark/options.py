"""The options of `format("pagequeue")`, turned from text into what they mean.

Spark gives all of them as text and their names in lower case. One that is not known is an error:
a misspelled `until` would read everything.
"""

from __future__ import annotations

import glob
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from pagequeue import errors
from pagequeue.system.trust import trusted
from pagequeue.util.time_text import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pagequeue.util.literals import Trust

Value = TypeVar("Value")
CHECKS: Final = ("columns", "used", "all")
READERS: Final = ("auto", "native", "python")
SINKS: Final = ("auto", "native", "python")
READING: Final = (
    "path",
    "paths",
    "prefix",
    "trust",
    "since",
    "until",
    "fromSequence",
    "toSequence",
    "partitionBytes",
    "onDamage",
    "onExpired",
    "durableOnly",
    "reader",
    "check",
)
STREAMING: Final = (
    "path",
    "paths",
    "prefix",
    "trust",
    "startingOffsets",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "partitionBytes",
    "onDamage",
    "onExpired",
    "durableOnly",
    "consumer",
    "reader",
)
PLACE: Final = frozenset({"path", "paths", "prefix", "trust"})
WRITING: Final = (
    "path",
    "prefix",
    "trust",
    "pageBytes",
    "writer",
    "piece",
    "sink",
    "checkpointLocation",
    "queryName",
)


@dataclass(frozen=True)
class ReadOptions:
    """What is to be read, and how.

    Attributes:
        paths: directories, or globs of them.
        prefix: of the queues' file names, or a glob.
        trust: as for `Queue`.
        since: only messages that are not older, ns since 1970; None: no bound.
        until: only messages before the first that is not older.
        first: only messages from this sequence on.
        end: only messages below this sequence.
        partition_bytes: about so much for a task; None: by the number of processors.
        skips_damage: whether damage is a counted gap, and not an error.
        skips_expired: whether what retention took is a counted gap, and not an error.
        durable_only: whether what is not known to be on stable storage is left for later.
        starting: "earliest", "latest" or ns since 1970, for streams.
        records_max: messages of a micro-batch, None: no limit.
        bytes_max: bytes of a micro-batch, None: no limit.
        consumer: the name under which progress is acknowledged, None: none.
        check: which frames of the wanted messages are read and checked: those that the "columns"
            of the frame need, those that are "used" by the query, or "all".
        reader: "python", "native", or "auto" for the native one where it can: what reads the pages.
    """

    paths: tuple[str, ...]
    prefix: str = "queue"
    trust: tuple[Trust, ...] = ()
    since: int | None = None
    until: int | None = None
    first: int | None = None
    end: int | None = None
    partition_bytes: int | None = None
    skips_damage: bool = False
    skips_expired: bool = False
    durable_only: bool = False
    starting: str | int = "earliest"
    records_max: int | None = None
    bytes_max: int | None = None
    consumer: str | None = None
    check: str = "columns"
    reader: str = "auto"

    @property
    def is_glob(self) -> bool:
        """Whether what is meant is looked for, and not named."""
        return any(map(glob.has_magic, (*self.paths, self.prefix)))


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go.

    Attributes:
        path: the directory of the queue; made if it is not there.
        prefix: of its file names.
        trust: as for `Queue`.
        page_bytes: of a new queue; None: the default, or that of the queue.
        writer: name under which the table is published; None: a job that is never repeated.
        piece: its number; each of a writer is published once, in ascending order.
        sink: where tasks write rows: "native", in the JVM; "python", in Python workers; "auto".
    """

    path: str
    prefix: str = "queue"
    trust: tuple[Trust, ...] = ()
    page_bytes: int | None = None
    writer: str | None = None
    piece: int = 0
    sink: str = "auto"


class _Given:
    """Options as given, without a record of which were read."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(self._given) - {name.lower() for name in known})
        if unknown:
            raise errors.InvalidOption(
                f"option {unknown[0]!r} is not known here: give one of {', '.join(known)}"
            )

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def parsed(self, name: str, parse: Callable[[str], Value]) -> Value | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise errors.InvalidOption(f"option {name}: {error}") from None

    def choice(self, name: str, *choices: str) -> str:
        text = self.text(name)
        if text is not None and text not in choices:
            raise errors.InvalidOption(
                f"option {name} is {text!r}: give one of {', '.join(choices)}"
            )
        return text or choices[0]

    def trust(self) -> tuple[Trust, ...]:
        names = (name.strip() for name in (self.text("trust") or "").split(","))
        checked = sorted(trusted([name for name in names if name], "option trust"))
        return cast("tuple[Trust, ...]", tuple(checked))


def _timestamp(text: str) -> int:
    return parse_time(text, time.time_ns())


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(f"{text} is below 0; give a whole number")
    return value


def _counted(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{text} is below 1; give a whole number")
    return value


def _starting(text: str) -> str | int:
    return text if text in {"earliest", "latest"} else _timestamp(text)


def _paths(given: _Given) -> tuple[str, ...]:
    """Return the paths; several arrive as JSON."""
    text = given.text("paths")
    paths = json.loads(text) if text is not None else [given.text("path")]
    found = tuple(_absolute(path) for path in paths if path)
    if not found:
        raise errors.InvalidOption("no path: give the queue's directory, or a glob, to load()")
    return found


def _absolute(path: str) -> str:
    """Return a path that stays the same when the program changes its current directory."""
    if path.startswith("file:/"):
        return "/" + path.removeprefix("file:").lstrip("/")
    here = os.getcwd()
    return path if glob.has_magic(here) else os.path.join(here, path)


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return the parsed options of a read.

    Raises:
        InvalidOption: one is unknown or invalid.
    """
    options = _Given(given, STREAMING if streaming else READING)
    return ReadOptions(
        paths=_paths(options),
        prefix=options.text("prefix") or "queue",
        trust=options.trust(),
        since=options.parsed("since", _timestamp),
        until=options.parsed("until", _timestamp),
        first=options.parsed("fromSequence", _whole),
        end=options.parsed("toSequence", _whole),
        partition_bytes=options.parsed("partitionBytes", _counted),
        skips_damage=options.choice("onDamage", "fail", "skip") == "skip",
        skips_expired=options.choice("onExpired", "fail", "skip") == "skip",
        durable_only=options.choice("durableOnly", "false", "true") == "true",
        starting=options.parsed("startingOffsets", _starting) or "earliest",
        records_max=options.parsed("maxRecordsPerTrigger", _counted),
        bytes_max=options.parsed("maxBytesPerTrigger", _counted),
        consumer=options.text("consumer"),
        check=options.choice("check", *CHECKS),
        reader=options.choice("reader", *READERS),
    )


def place_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read that name queues; ignores the others.

    Raises:
        InvalidOption: the path is missing, or trust is invalid.
    """
    return _some_options(given, PLACE)


def choosing_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options that say which reader can read a table or a stream; ignores the others.

    Raises:
        InvalidOption: one of them is invalid, or the path is missing.
    """
    return _some_options(given, PLACE | {"ondamage", "onexpired", "check", "reader"})


def _some_options(given: Mapping[str, str], names: frozenset[str]) -> ReadOptions:
    some = {name: value for name, value in given.items() if name.lower() in names}
    return read_options(some, streaming=False)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the parsed options of a write.

    Raises:
        InvalidOption: one is unknown or invalid, or the path is missing.
    """
    options = _Given(given, WRITING)
    path = options.text("path")
    if not path:
        raise errors.InvalidOption(
            "no path: give the queue's directory to save(), or to option('path', ...) of a stream"
        )
    return WriteOptions(
        path=_absolute(path),
        prefix=options.text("prefix") or "queue",
        trust=options.trust(),
        page_bytes=options.parsed("pageBytes", _counted),
        writer=options.text("writer"),
        piece=options.parsed("piece", _whole) or 0,
        sink=options.choice("sink", *SINKS),
    )


def sink_options(of_table: Mapping[str, str], given: Mapping[str, str]) -> WriteOptions:
    """Return the parsed options of a write to a table, whose own are for reading, too.

    Raises:
        InvalidOption: as for `write_options`.
    """
    known = {name.lower() for name in WRITING}
    both = {name.lower(): value for name, value in of_table.items() if name.lower() in known}
    return write_options(both | {name.lower(): value for name, value in given.items()})
