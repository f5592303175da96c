"""How the payload of a large message is written to its staged pages."""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import DiskFull, Queue, _core
from pagequeue.bulk.staged_fragments import OS_PAGE_BYTES, RESERVE_BYTES, WRITE_BYTES
from pagequeue.page.fragments import fragment_count

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES = 4 << 20
PAYLOAD = random.Random(1).randbytes(9 << 20)


def pieces(size: int) -> list[bytes]:
    """Return the payload in pieces of a size."""
    return [PAYLOAD[at : at + size] for at in range(0, len(PAYLOAD), size)]


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("size", [1000, 1 << 14, 1 << 16, 300_001, 1 << 20, 5 << 20])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_stream_is_written_up_to_boundaries_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, size: int
) -> None:
    """Whatever the pieces: a write that ends inside of a folio makes the next ones small."""
    ends = []

    def pwritev(fd: int, parts: list[Any], position: int) -> int:
        done = real_pwritev(fd, parts, position)
        ends.append(position + done)
        return done

    real_pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", pwritev)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        with producer.open() as file:
            for piece in pieces(size):
                given = kind(piece)
                assert file.write(given) == len(piece)
                if kind is bytearray:
                    given[:] = bytes(len(given))  # its memory is the caller's again
            assert file.tell() == len(PAYLOAD)
        monkeypatch.undo()
        (message,) = queue.replay()
        assert message.payload == PAYLOAD
    assert [end for end in ends if end % WRITE_BYTES] == ends[-1:]
    assert len(ends) <= len(PAYLOAD) // WRITE_BYTES + fragment_count(PAGE_BYTES, len(PAYLOAD))


@pytest.mark.parametrize("streamed", [False, True])
def test_blocks_that_were_reserved_ahead_are_given_back(tmp_path: Path, *, streamed: bool) -> None:
    """The file of a fragment has blocks only for its content and its last byte."""
    page_bytes = 4 * RESERVE_BYTES
    payload = bytes(page_bytes + RESERVE_BYTES // 2)
    with Queue(tmp_path / "q", page_bytes=page_bytes) as queue, queue.producer() as producer:
        if streamed:
            with producer.open() as file:
                for at in range(0, len(payload), WRITE_BYTES):
                    file.write(payload[at : at + WRITE_BYTES])
        else:
            producer.send(payload)
        assert len(queue.last(1)[0].payload) == len(payload)
        pages = [path.stat() for path in sorted((tmp_path / "q").glob("queue-*.page"))]
    second = pages[2]  # after the empty one that the queue was made with
    assert second.st_size == page_bytes
    assert second.st_blocks * 512 <= RESERVE_BYTES // 2 + 32 * OS_PAGE_BYTES


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_a_message_is_written_where_nothing_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Reserving only saves time: whether there is room, the write tells."""

    def reserve(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"first")
        monkeypatch.setattr(_core, "reserve", reserve)
        with producer.open() as file:
            file.write(PAYLOAD)
        monkeypatch.undo()
        assert queue.last(1)[0].payload == PAYLOAD


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a signal or a limit ends a call."""

    def pwritev(fd: int, parts: list[Any], position: int) -> int:
        return os.pwrite(fd, b"".join(parts)[:100_001], position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        with producer.open() as file:
            for piece in pieces(1 << 19):
                file.write(piece)
        monkeypatch.undo()
        assert queue.last(1)[0].payload == PAYLOAD


@pytest.mark.parametrize("again", ["write", "close"])
def test_nothing_is_sent_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """A caller that continues after the error gets it again: the file lacks bytes."""
    real_pwritev = os.pwritev

    def pwritev(fd: int, parts: list[Any], position: int) -> int:
        if position > 2 * WRITE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_pwritev(fd, parts, position)

    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        file = producer.open()
        monkeypatch.setattr(os, "pwritev", pwritev)
        with pytest.raises(DiskFull):
            file.write(PAYLOAD)
        monkeypatch.undo()
        with pytest.raises(DiskFull):
            getattr(file, again)(*([b"more"] if again == "write" else []))
        file.discard()
        producer.send(b"next")
        assert [message.payload for message in queue.replay()] == [b"next"]
        assert os.listdir(tmp_path / "q" / "queue-staged") == []
