"""The test vectors of the format say what the golden queue holds, and a foreign reader agrees."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import flip
from test_golden import GOLDEN

from pagequeue import Queue
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "0.1.0"
VECTORS = Path(__file__).resolve().parents[2] / "docs" / "vectors"
FIELDS = ("sequence", "timestamp", "page", "position", "checksum", "more_of_batch", "payload")


def node(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the reader in JavaScript."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node is not installed")
    return subprocess.run(
        [program, VECTORS / "read.mjs", directory],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def frames(directory: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield page number, position, length word and checksum of the frame of each message."""
    for path in sorted(directory.glob("*.page")):
        data, at = path.read_bytes(), fmt.PAGE_HEADER.itemsize
        while (word := int.from_bytes(data[at : at + 4], "little")) and not word & fmt.END_OF_PAGE:
            checksum = int.from_bytes(data[at + 4 : at + 8], "little")
            yield int(path.stem.rpartition("-")[2]), at, word, checksum
            at += -(-(word & fmt.LENGTH_MASK) // fmt.FRAME_ALIGN_BYTES) * fmt.FRAME_ALIGN_BYTES


def vectors(directory: Path) -> dict[str, Any]:
    """Return what the vectors say of a queue.

    To be written once for each released version, one message a line, by the command
    `python -c "from test_vectors import *; write_vectors('VERSION')"` in tests/docs.
    """
    queue_id = (directory / "queue-readMeta").read_bytes()[16:32].hex()
    with Queue(directory, read_only=True) as queue:
        found = list(zip(queue.replay(), frames(directory), strict=True))
    values = (
        (
            message.sequence,
            str(message.timestamp),
            page,
            position,
            checksum,
            bool(word & fmt.MORE_OF_BATCH),
            base64.b64encode(message.payload).decode(),
        )
        for message, (page, position, word, checksum) in found
    )
    return {"queue_id": queue_id, "messages": [dict(zip(FIELDS, v, strict=True)) for v in values]}


def write_vectors(version: str) -> None:
    """Write the vectors of the golden queue of a version."""
    found = vectors(GOLDEN / version)
    lines = ",\n".join(f"  {json.dumps(message)}" for message in found["messages"])
    text = f'{{\n "queue_id": "{found["queue_id"]}",\n "messages": [\n{lines}\n ]\n}}\n'
    (VECTORS / f"{version}.json").write_text(text)


def golden(directory: Path) -> Path:
    """Return a copy of the golden queue."""
    return Path(shutil.copytree(GOLDEN / VERSION, directory / "golden"))


def test_vectors_say_what_the_queue_holds(tmp_path: Path) -> None:
    """Every message, its place and its checksum."""
    stated = json.loads((VECTORS / f"{VERSION}.json").read_text())
    assert stated == vectors(golden(tmp_path))
    assert {message["more_of_batch"] for message in stated["messages"]} == {False, True}
    assert len({message["page"] for message in stated["messages"]}) > 1


def test_reader_in_another_language_agrees(tmp_path: Path) -> None:
    """It has nothing but FORMAT.md in common with the library."""
    done = node(golden(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((VECTORS / f"{VERSION}.json").read_text())


@pytest.mark.parametrize("number", [0, 7, 20])
def test_reader_in_another_language_sees_damage(number: int, tmp_path: Path) -> None:
    """I2: a checksum that it did not compute would agree with everything."""
    directory = golden(tmp_path)
    page, position, _, _ = list(frames(directory))[number]
    flip(directory / f"queue-{page:010}.page", position + 8)
    done = node(directory)
    assert done.returncode != 0
    assert f"damaged at {position}" in done.stderr
