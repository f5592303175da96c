"""Checks that no file changes except by its own queue.

A bystander is a queue to which no process writes; processes open, read and close it all the time,
always without write permission. Of the bystander, and of foreign files in the queues' directories,
neither inode, size, time of change nor bytes may change. In queues that are written to, a page that
has a name keeps its inode, unless the queue is compressed. A page of a bulk commit counts once that
is published: where its publisher dies before, others remove it.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pagequeue import Queue
from pagequeue.meta.ledger import publishing_name
from stress.combined.ground import PAGE_BYTES, strangers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stress.combined.ground import Spec

BYSTANDER_PAGES: Final = 150
PAGE: Final = re.compile(r"-([0-9]{10})\.(page|idx)$")


@dataclass(frozen=True)
class Identity:
    """The properties of a file that must not change."""

    inode: int
    size: int
    changed_ns: int
    links: int


def identities(directory: str) -> dict[str, Identity]:
    """Return the identity of every file in a directory."""
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found[entry.name] = Identity(
                status.st_ino, status.st_size, status.st_mtime_ns, status.st_nlink
            )
    return found


def digest(paths: Iterable[str]) -> str:
    """Return a digest of the bytes of files."""
    whole = hashlib.blake2b()
    for path in sorted(paths):
        whole.update(Path(path).read_bytes())
    return whole.hexdigest()


def make_bystander(directory: str) -> None:
    """Make a queue of many sealed pages, with a foreign file in its directory."""
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for number in range(BYSTANDER_PAGES):
            producer.send(number.to_bytes(8, "little") + bytes(3900))
        producer.flush()
    Path(directory, "notes.txt").write_bytes(b"not a page of any queue")


class Watch:
    """Compares what is there with what was there."""

    def __init__(self, bystander: str) -> None:
        self.bystander = bystander
        self.before = identities(bystander)
        self.digest = self._digest()

    def _digest(self) -> str:
        return digest(os.path.join(self.bystander, name) for name in self.before)

    def changed(self) -> list[str]:
        """Return what changed in the bystander's directory, according to the file system."""
        now = identities(self.bystander)
        return [
            f"{self.bystander}/{name}, to which no process writes, was {self.before.get(name)}, "
            f"and is {now.get(name)}"
            for name in sorted({*now, *self.before})
            if now.get(name) != self.before.get(name)
        ]

    def changed_bytes(self) -> list[str]:
        """Return whether the bystander's bytes changed."""
        if self._digest() != self.digest:
            return [f"{self.bystander}: bytes of files changed, though no process writes to them"]
        return []


class LiveWatch:
    """Watches the directories of queues that are written to."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = specs
        self.strangers = strangers(specs)
        self.digest = digest(self.strangers)
        self.inodes: dict[tuple[str, str], int] = {}
        self.told: set[str] = set()

    def changed(self) -> list[str]:
        """Return what was never to be there, or is another file now."""
        wrong = []
        for directory in sorted({spec.directory for spec in self.specs}):
            there = identities(directory)
            # What existed before and after a moment at which no commit was pending stays.
            pending = [
                spec
                for spec in self.specs
                if os.path.exists(os.path.join(directory, publishing_name(spec.prefix)))
            ]
            again = identities(directory)
            for name, identity in there.items():
                spec = self._owner(directory, name)
                if spec is None:
                    if os.path.join(directory, name) not in self.strangers:
                        wrong.append(f"{directory}/{name}: a file of no queue")
                    continue
                if not name.endswith(".page") or spec.drops or spec.compresses:
                    continue
                is_there = name in again and again[name].inode == identity.inode
                if is_there and spec not in pending:
                    self.inodes.setdefault((directory, name), identity.inode)
                first = self.inodes.get((directory, name), identity.inode)
                if first != identity.inode:
                    wrong.append(f"{directory}/{name}: another file, inode {first} before")
            for known, name in self.inodes:
                if known == directory and name not in there:
                    wrong.append(f"{directory}/{name}: gone, though that queue is never trimmed")
        new = [text for text in wrong if text not in self.told]
        self.told.update(new)
        return new

    def _owner(self, directory: str, name: str) -> Spec | None:
        for spec in self.specs:
            if spec.directory == directory and re.fullmatch(
                re.escape(spec.prefix) + r"([-.].*)", name
            ):
                return spec
        return None

    def changed_strangers(self) -> list[str]:
        """Return whether files of strangers changed."""
        there = digest(path for path in self.strangers if os.path.exists(path))
        return [] if there == self.digest else ["a stranger's file in a queue's directory changed"]
