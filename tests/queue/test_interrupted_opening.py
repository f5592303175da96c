"""Ctrl-C in the middle of opening: at no instruction is a descriptor open without an owner."""

from __future__ import annotations

import dis
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import SMALL, own_thread
from test_closing_concurrently import open_in

import pagequeue
from pagequeue import Queue
from pagequeue.multiprocessing.large_objects import LargeObjects
from pagequeue.system.directory import Directory, sync_directory, sync_path
from pagequeue.system.file_lock import FileLock, LivenessLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

HOME = str(Path(pagequeue.__file__).parent)


class Interrupted(BaseException):
    """What a signal handler raises."""


def interrupted(scene: Callable[[], object], at: int, *, handled: bool = False) -> bool:
    """Run a scene, raise before the instruction of this number; return whether there was one.

    `handled`: only those before which the interpreter runs signal handlers are counted.
    """
    gc.disable()  # finalizers of other tests are no part of the scene
    try:
        with own_thread() as run:
            return run(lambda: _interrupted(scene, at, handled=handled))
    finally:
        gc.enable()


def _interrupted(scene: Callable[[], object], at: int, *, handled: bool) -> bool:
    left = at
    last: dict[FrameType, str] = {}

    def opcodes(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - itself
        nonlocal left
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before, last[frame] = (
                last.get(frame, ""),
                dis.opname[frame.f_code.co_code[frame.f_lasti]],
            )
            if not handled or before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupted
        return opcodes

    sys.settrace(opcodes)
    try:
        scene()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def _folder(path: Path) -> None:
    folder = Directory(str(path), create=False)
    folder.names()
    folder.close()


def _files(path: Path) -> None:
    folder = Directory(str(path), create=False)
    with folder.opened("new", writable=True, make=True):
        pass
    with folder.opened("queue-0000000001.page", writable=False):
        pass
    folder.remove("new")
    folder.close()


def _locks(path: Path) -> None:
    folder = Directory(str(path), create=False)
    FileLock(folder.open("queue.lock", writable=True), "lock").close()
    LivenessLock(folder.open("queue.lock", writable=True), "lock").close()
    folder.close()


def _syncs(path: Path) -> None:
    sync_path(str(path / "queue.lock"))
    sync_directory(str(path))


def _large(path: Path) -> None:
    folder = Directory(str(path), create=False)
    large = LargeObjects(folder, "large", synced=False, named=tuple)
    message = large.write(b"object")
    assert large.read(message, 0) == b"object"
    large.forget(message)
    large.close()
    folder.close()


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("scene", [_folder, _files, _locks, _syncs, _large])
def test_exception_at_any_instruction_of_opening_leaves_no_file_open(
    tmp_path: Path, scene: Callable[[Path], None]
) -> None:
    """Opening is one call into C that returns, or fills, the object that closes."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send(b"a")
    at = 0
    while interrupted(lambda: scene(tmp_path / "q"), at):
        gc.collect(0)
        assert open_in(tmp_path) == [], at
        at += 1
    assert at > 20


def test_descriptor_opens_once_and_passes_on_the_openers_error(tmp_path: Path) -> None:
    """The caller gets what the opener raises, or returns instead of a number."""
    descriptor = pagequeue._core.Descriptor(-1, lambda _: RuntimeError())
    with pytest.raises(FileNotFoundError):
        descriptor.open(os.open, tmp_path / "none", os.O_RDONLY)
    for opened in (lambda: "3", lambda: -1):
        with pytest.raises(TypeError):
            descriptor.open(opened)
    with pytest.raises(TypeError):
        descriptor.open()
    descriptor.open(os.open, tmp_path, os.O_RDONLY)
    with pytest.raises(TypeError):
        descriptor.open(os.open, tmp_path, os.O_RDONLY)
    assert open_in(tmp_path) == [str(tmp_path)]
    descriptor.close()
    with pytest.raises(TypeError):
        descriptor.open(os.open, tmp_path, os.O_RDONLY)
    assert open_in(tmp_path) == []


def test_merge_that_was_interrupted_at_any_instruction_can_be_used_again(tmp_path: Path) -> None:
    """Ctrl-C leaves no lock held: the next call is not a concurrent use."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send(b"a")
        at = 0
        with pagequeue.merge([queue]) as merged:
            while interrupted(merged.poll, at, handled=True):
                merged.poll()
                at += 1
    assert at > 10
