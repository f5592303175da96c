"""The recorder of trees, and the states that its cutter makes of what it recorded."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

from stress.cut.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = 60


def write(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Write a file, and sync it perhaps."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, data, 0)
    if synced:
        os.fsync(fd)
    os.close(fd)


def sync(path: Path) -> None:
    """Sync a directory."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def states(tree: Tree, target: Path, moment: int) -> set[str]:
    """Return what cuts at a time leave, as text."""
    found = set()
    for seed in range(SEEDS):
        tree.cut(target, lambda _: moment, random.Random(seed))
        found.add(
            " ".join(
                f"{path.relative_to(target)}={path.read_bytes()[:1].decode()}{path.stat().st_size}"
                for path in sorted(target.rglob("*"))
                if path.is_file()
            )
        )
        shutil.rmtree(target)
    return found


def test_synced_file_keeps_its_content_and_not_its_name(tmp_path: Path) -> None:
    """Until its directory is synced, too."""
    root = tmp_path / "root"
    root.mkdir()
    tree = Tree(root)
    with tree.recording():
        write(root / "a", b"1", synced=True)
        tree.observe()
        before = tree.now
        sync(root)
        after = tree.now
        write(root / "a", b"2")
    assert states(tree, tmp_path / "cut", before) == {"", "a=11"}
    assert states(tree, tmp_path / "cut", after) == {"a=11"}
    assert states(tree, tmp_path / "cut", tree.now) == {"a=11", "a=21"}


def test_file_that_was_never_synced_can_be_anything_that_it_was(tmp_path: Path) -> None:
    """No size, or zeros where it was written."""
    root = tmp_path / "root"
    root.mkdir()
    tree = Tree(root)
    with tree.recording():
        write(root / "a", b"1")
        sync(root)
    assert states(tree, tmp_path / "cut", tree.now) == {"a=0", "a=\x001", "a=11"}


def test_directory_that_is_renamed_is_there_by_any_of_its_names(tmp_path: Path) -> None:
    """By the new one only when its parent was synced; with all that was durable in it."""
    root = tmp_path / "root"
    (root / "old").mkdir(parents=True)
    write(root / "old" / "a", b"1")
    tree = Tree(root)
    with tree.recording():
        os.rename(root / "old", root / "new")
        before = tree.now
        sync(root)
    old, new = "old/a=11", "new/a=11"
    assert states(tree, tmp_path / "cut", before) == {"", old, new, f"{new} {old}"}
    assert states(tree, tmp_path / "cut", tree.now) == {new}


def test_two_directories_can_be_cut_at_two_times(tmp_path: Path) -> None:
    """As on two disks, or one that lies about syncs."""
    root = tmp_path / "root"
    for name in ("log", "rest"):
        (root / name).mkdir(parents=True)
        write(root / name / "a", b"1")
    tree = Tree(root)
    with tree.recording():
        begun = tree.now
        for name in ("log", "rest"):
            write(root / name / "a", b"2", synced=True)
    target = tmp_path / "cut"
    tree.cut(target, lambda below: begun if below == "log" else tree.now, random.Random(1))
    assert [(target / name / "a").read_bytes() for name in ("log", "rest")] == [b"1", b"2"]
