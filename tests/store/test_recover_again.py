"""Recovery that is cut short, and reading before there was one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from plugin import MESSAGES, Disk, check_recovered

from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.store.power_loss_recovery import Recovery
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable


class PowerCut(Exception):
    """Raised in the middle of a recovery."""


STEPS = [
    (Recovery, "_sweep"),
    (ReadMeta, "make"),
    (WriteMeta, "make"),
    (Recovery, "_make"),
    (Recovery, "_apply"),
    (Recovery, "_cut"),
    (Recovery, "_remove"),
    (Directory, "remove"),
    (Directory, "sync"),
    (WriteMeta, "set_durable"),
    (WriteMeta, "sync"),
    (WriteMeta, "mark_recovered"),
]


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("where", "step"), STEPS, ids=[f"{w.__name__}.{s}" for w, s in STEPS])
@pytest.mark.parametrize("lost", ["torn", "page", "metas"])
def test_recovery_that_is_cut_short_is_finished_by_the_next(
    written: Disk, monkeypatch: pytest.MonkeyPatch, lost: str, where: type, step: str, after: bool
) -> None:
    """I5: each step can be repeated, so it may end anywhere."""
    kept = {"torn": 4, "page": 6, "metas": 7}[lost]
    if lost == "torn":
        written.tear(2, 1)
    elif lost == "page":
        written.page(3).unlink()
    else:
        written.tear(3, 1)
        written.path("writeMeta").unlink()
        written.path("readMeta").unlink()
    right = getattr(where, step)

    def cut(*arguments: object, **named: object) -> object:
        if after:
            right(*arguments, **named)
        raise PowerCut

    static = step == "make"
    monkeypatch.setattr(where, step, staticmethod(cut) if static else cut)
    try:
        written.open().close()
    except PowerCut:
        monkeypatch.undo()
        if written.path("writeMeta").exists():
            written.cut_power()
        written.open().close()
        again = written.contents()
        written.cut_power()
        written.open().close()
        for name, data in written.contents().items():  # and a second run changes no file
            assert data == again[name], name
    monkeypatch.undo()
    check_recovered(written, MESSAGES[:kept])
    assert not list(written.directory.glob("*.tmp-*"))


# --- reading before recovery ----------------------------------------------------------------------

READS: dict[str, Callable[..., list[bytes]]] = {
    "replay": lambda queue: [m.payload for m in queue.replay()],
    "batches": lambda queue: [p for batch in queue.batches() for p in batch.payloads],
    "since": lambda queue: [m.payload for m in queue.replay(since=1)],
    "sequence": lambda queue: [m.payload for m in queue.replay(sequence=0)],
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize(("page", "ordinal"), [(2, 1), (3, 0), (3, 1)])
def test_reader_gets_the_valid_prefix_and_changes_no_file(
    written: Disk, how: str, page: int, ordinal: int, caplog: pytest.LogCaptureFixture
) -> None:
    """I5: a torn tail before recovery is not damage; the reader logs it and writes to no file."""
    written.tear(page, ordinal)
    before = written.contents()
    with written.open(read_only=True) as queue:
        assert READS[how](queue) == MESSAGES[: 3 * (page - 1) + ordinal]
    assert "awaits recovery" in caplog.text
    assert written.contents() == before


@pytest.mark.parametrize("damage", ["tear", "zero"])
@pytest.mark.parametrize("index", [True, False])
def test_since_finds_its_place_in_the_valid_prefix(written: Disk, damage: str, index: bool) -> None:
    """I6: frames that the shared words promise and that are not there do not spoil the search."""
    stamps = [frame.timestamp for n in (1, 2, 3) for frame in written.frames(n)[:3]]
    getattr(written, damage)(3, 1)
    if not index:
        written.index(3).unlink()
    with written.open(read_only=True) as queue:
        for kept in range(7):
            found = [m.payload for m in queue.replay(since=stamps[kept])]
            assert found == MESSAGES[kept:7]
            assert [m.payload for m in queue.replay(sequence=kept)] == MESSAGES[kept:7]
        assert [m.payload for m in queue.replay(since=stamps[6] + 1)] == []


def test_reader_continues_when_a_writer_has_recovered(written: Disk) -> None:
    """I5: the torn bytes are zeroed in the map that the reader uses."""
    written.tear(3, 1)
    with written.open(read_only=True) as reader, reader.consumer() as consumer:
        for message in MESSAGES[:7]:
            assert consumer.receive(timeout=60).payload == message
        assert consumer.poll() is None
        written.send(b"after")
        assert consumer.receive(timeout=60).payload == b"after"
        assert consumer.sequence == 8
        assert len(reader) == 8


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("lost", ["page", "header"])
def test_lost_last_page_is_not_damage_before_recovery(written: Disk, how: str, lost: str) -> None:
    """I10: the end mark can be on disk without the next page; a reader stops there."""
    if lost == "page":
        written.page(3).unlink()
    else:
        written.poke(written.page(3), 0, bytes(64))
    before = written.contents()
    with written.open(read_only=True) as queue:
        assert READS[how](queue) == MESSAGES[:6]
    assert written.contents() == before
