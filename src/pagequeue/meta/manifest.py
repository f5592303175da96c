"""The manifest of a replica: which sealed pages were copied here, whole and checked.

A replica is a directory of copies of a queue's sealed pages, which can be read as a queue. Readers
ignore every page that the manifest does not name. It is replaced as a whole, after all that it
names is on stable storage. It is JSON, a line for each page, so that other tools can check and copy
the files.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.write_meta import Tail

if TYPE_CHECKING:
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory

VERSION: Final = 1
BYTES_MAX: Final = 1 << 30
REMEDY: Final = "ship the queue again, into another directory"
_NUMBERS: Final = {
    "number": fmt.PAGE_NUMBER_MAX,
    "first_sequence": fmt.SEQUENCE_MAX,
    "end_sequence": fmt.SEQUENCE_MAX,
    "first_timestamp": fmt.TIMESTAMP_MAX,
    "last_timestamp": fmt.TIMESTAMP_MAX,
    "end_position": fmt.PAGE_BYTES_MAX,
    "size_bytes": fmt.PAGE_BYTES_MAX,
    "index_bytes": fmt.PAGE_BYTES_MAX,
}
_CHECKSUM: Final = re.compile(r"[0-9a-f]{8}")


def manifest_name(prefix: str) -> str:
    """Return the name of the file that makes a directory a replica."""
    return f"{prefix}-manifest.json"


def lock_name(prefix: str) -> str:
    """Return the name of the shippers' lock."""
    return f"{prefix}-ship.lock"


@dataclass(frozen=True)
class ShippedPage:
    """One page of a replica.

    Attributes:
        number: of the page.
        file: its name.
        size_bytes: of the file, which may be compressed.
        crc32c: of the file, in hexadecimal.
        index_bytes: of the index that are in use, the rest of the file is zeros; 0: the page has
            no message, or is compressed and has no index.
        index_crc32c: of these bytes, in hexadecimal.
        first_sequence: of its first message.
        end_sequence: one past its last message.
        first_timestamp: of its first message, ns since 1970, UTC.
        last_timestamp: of its last message.
        end_position: one past its last message, in the inflated page.
    """

    number: int
    file: str
    size_bytes: int
    crc32c: str
    index_bytes: int
    index_crc32c: str
    first_sequence: int
    end_sequence: int
    first_timestamp: int
    last_timestamp: int
    end_position: int


@dataclass(frozen=True)
class Manifest:
    """The contents of a replica.

    Attributes:
        queue_id: of the queue, in hexadecimal.
        host: of the original.
        directory: of the original.
        prefix: of the file names of both.
        page_bytes: of each of its pages.
        pages: in their order, without a gap.
    """

    queue_id: str
    host: str
    directory: str
    prefix: str
    page_bytes: int
    pages: tuple[ShippedPage, ...] = ()

    @property
    def tail(self) -> Tail:
        """Where the last page ends; there must be one."""
        last = self.pages[-1]
        count = last.end_sequence - last.first_sequence
        return Tail(last.number, last.end_position, count, last.first_sequence, last.last_timestamp)

    def check(self, meta: AllMeta, head: tuple[int, int], path: str) -> None:
        """Raise CorruptMeta if this is not the manifest of a queue that is read from a head on."""
        is_its = (self.queue_id, self.page_bytes) == (meta.queue_id.hex(), meta.page_bytes)
        if not is_its or not self.tail.can_be(head, meta.page_bytes):
            raise errors.CorruptMeta(
                "the manifest of another queue, or not of the other meta files here",
                path=os.path.join(path, manifest_name(self.prefix)),
                position=0,
                reason="manifest",
                remedy=REMEDY,
            )

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        told = {name: value for name, value in asdict(self).items() if name != "pages"}
        lines = ",\n".join(json.dumps(asdict(page)) for page in self.pages)
        body = f'"format": {VERSION},\n"queue": {json.dumps(told)},\n"pages": [\n{lines}\n]'
        checksum = _core.crc32c(body.encode())
        return f'{{"crc32c": "{checksum:08x}",\n{body}}}\n'.encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Return the decoded file.

        Raises:
            CorruptMeta: it is invalid. NewerFormat: a newer version wrote it.
        """
        try:
            told = json.loads(data)
            version, stated = told["format"], told["crc32c"]
            body = data[data.index(b"\n") + 1 : data.rindex(b"}")]
            if type(version) is int and version > VERSION:
                raise errors.NewerFormat(
                    f"a manifest of format {version}, this is {VERSION}",
                    path=path,
                    version=version,
                    remedy="upgrade pagequeue",
                )
            if version != VERSION or type(version) is not int:
                raise ValueError(f"unknown format {version!r}")  # noqa: TRY301 - the same
            if f"{_core.crc32c(body):08x}" != stated:
                raise ValueError("its checksum is wrong")  # noqa: TRY301 - one place for all
            found = cls(**{**told["queue"], "pages": tuple(map(_page, told["pages"]))})
            found._check()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise errors.CorruptMeta(
                f"invalid manifest ({error})",
                path=path,
                position=0,
                reason="manifest",
                remedy=REMEDY,
            ) from error
        return found

    def _check(self) -> None:
        """Raise ValueError for a contradiction."""
        texts = (self.queue_id, self.host, self.directory, self.prefix)
        if not all(isinstance(text, str) for text in texts) or type(self.page_bytes) is not int:
            raise ValueError("the queue is not described")
        before: ShippedPage | None = None
        for page in self.pages:
            follows = before is None or (
                page.number == before.number + 1
                and page.first_sequence == before.end_sequence
                and page.first_timestamp >= before.last_timestamp
            )
            count = page.end_sequence - page.first_sequence
            can_be = (
                0 <= count <= fmt.index_capacity(self.page_bytes)
                and fmt.PAGE_HEADER_BYTES <= page.end_position < self.page_bytes
                and page.file == fmt.page_name(self.prefix, page.number)
            )
            if not (follows and can_be):
                raise ValueError(f"page {page.number} contradicts the page before it or the queue")
            before = page


def _page(told: dict[str, Any]) -> ShippedPage:
    page = ShippedPage(**told)
    for name, limit in _NUMBERS.items():
        value = told[name]
        if type(value) is not int or not 0 <= value <= limit:
            raise ValueError(f"invalid {name} {value!r}")
    for checksum in (told["crc32c"], told["index_crc32c"]):
        if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
            raise ValueError(f"invalid checksum {checksum!r}")
    return page


def read_manifest(folder: Directory, prefix: str) -> Manifest | None:
    """Return the manifest of a directory; None: it is not a replica.

    Raises:
        CorruptMeta: it is invalid. NewerFormat: a newer version wrote it.
    """
    name = manifest_name(prefix)
    if not folder.exists(name):
        return None
    path = folder.full(name)
    found = Manifest.decode(folder.read(name, BYTES_MAX), path)
    if found.prefix != prefix:
        raise errors.CorruptMeta(
            f"a manifest of prefix {found.prefix!r}",
            path=path,
            position=0,
            reason="manifest",
            remedy=REMEDY,
        )
    return found


def write_manifest(folder: Directory, prefix: str, manifest: Manifest) -> None:
    """Put a manifest on stable storage, in place of the one before."""
    data = manifest.encode()
    folder.make(manifest_name(prefix), data, size_bytes=len(data), synced=True)
    folder.sync_entries()
