"""Power cuts of a group's file: what may be on the disk, and what recovery must make of it.

No process is alive, and each 512-byte sector of the file is, by chance, its version at the last
sync or its latest version. Recovery builds a table from that in a separate directory. Every message
that the table has as done must have been acknowledged or be among the dead letters; every message
acknowledged before the last flush began must be done (I14).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from stress.claim_log import ACKED, CUT, ENDING, FLUSHED, FOREVER, REJECTED, TAKEN, TAKING, Did

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

SECTOR_BYTES = 512
KEY_AT, KEY_BYTES = 80, 32
SHARES = ((0.5, 0.5), (1.0, 0.0), (1.0, 0.5), (0.0, 1.0), (0.9, 0.9))
"""How many sectors are newer: the first one, with the shared state, and those after it."""


def mixed(before: bytes, now: bytes, rng: random.Random) -> bytes:
    """Return what the disk may have, with the key of another boot."""
    head, rest = rng.choice(SHARES)
    sectors = []
    before = before.ljust(len(now), b"\0")  # what was appended since is synced before it counts
    for at in range(0, len(now), SECTOR_BYTES):
        chosen = now if rng.random() < (rest if at else head) else before
        sectors.append(chosen[at : at + SECTOR_BYTES])
    data = bytearray(b"".join(sectors))
    data[KEY_AT : KEY_AT + KEY_BYTES] = b"\x55" * KEY_BYTES
    return bytes(data)


def guarantees(rows: Sequence[Did]) -> tuple[set[int], set[int], int]:
    """Return messages that may be done, those that must be, and how many were taken unrecorded."""
    begun = {
        row.sequence for row in rows if row.kind == TAKEN or (row.kind == ENDING and row.span > 0)
    }
    flushes = [(row.before, row.after) for row in rows if row.kind == FLUSHED]
    cuts = [row.before for row in rows if row.kind == CUT]
    flushed = set()
    for row in rows:
        if row.kind in {ACKED, REJECTED}:
            cut = min((time for time in cuts if time > row.after), default=FOREVER)
            if any(before > row.after and after < cut for before, after in flushes):
                flushed.add(row.sequence)
    return begun, flushed, sum((row.kind == TAKING) - (row.kind == TAKEN) for row in rows)


def many_cuts(  # one of them is used afterwards; these are only checked
    group_file: Path,
    image: Path,
    rows: Sequence[Did],
    room: Path,
    buried: set[int],
    rng: random.Random,
    count: int,
) -> list[str]:
    """Cut the power so often, and return what is wrong with what recovery made of it."""
    from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now
    from pagequeue.meta.group_table import GroupTable, recover_groups  # noqa: PLC0415
    from pagequeue.system.directory import Directory  # noqa: PLC0415

    now, before = group_file.read_bytes(), image.read_bytes()
    begun, flushed, unrecorded = guarantees(rows)
    name = group_file.name.rpartition(".")[2]
    queue_id = now[16:32]
    wrong: list[str] = []
    for _ in range(count):
        room.mkdir()
        (room / group_file.name).write_bytes(mixed(before, now, rng))
        folder = Directory(str(room), create=False)
        recover_groups(
            folder, "queue", queue_id, 0, fmt.SEQUENCE_MAX, lambda _: None, lambda: 10**18
        )
        group = GroupTable(folder, "queue", queue_id, name, writable=False)
        table = group.records()
        waiting = set(table["sequence"][table["word"] != 0].tolist())
        floor = group.region.load(GroupTable.NEXT)
        done = set(range(group.new_sequence)) - waiting
        lost = sorted(done - begun - buried)
        if len(lost) > unrecorded:
            wrong.append(f"a power cut loses message {lost[0]}: no worker acknowledged it")
        if floor > min(waiting, default=floor):
            wrong.append(f"after a power cut the floor {floor} is above message {min(waiting)}")
        if back := sorted(flushed - done):
            wrong.append(f"a power cut takes back message {back[0]}: its end was flushed")
        group.close()
        folder.close()
        shutil.rmtree(room)
    return wrong
