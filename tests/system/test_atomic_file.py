"""Files that get their name when they are whole: without hard links, and where naming fails."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from pagequeue import AccessDenied, DiskFull, OutputExists, errors
from pagequeue.system.atomic_file import NO_LINK, whole_file

if TYPE_CHECKING:
    from pathlib import Path


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the file system refuse each hard link with this error."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)


@pytest.mark.parametrize("number", sorted(NO_LINK))
def test_file_system_without_hard_links_names_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """FAT, and some network file systems: the file is complete and the only one."""
    refuse_links(monkeypatch, number)
    with whole_file(str(tmp_path / "rows.csv"), force=False) as file:
        file.write(b"a,b")
        assert not (tmp_path / "rows.csv").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert (tmp_path / "rows.csv").read_bytes() == b"a,b"


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EACCES, AccessDenied),
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, errors.PageQueueError),
    ],
)
def test_naming_that_fails_otherwise_is_a_typed_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    """Renaming instead would replace a file that was made meanwhile, without `force`."""
    refuse_links(monkeypatch, number)
    path = tmp_path / "rows.csv"
    with pytest.raises(error, match=str(path)), whole_file(str(path), force=False) as file:
        file.write(b"a,b")
    assert list(tmp_path.iterdir()) == []


def test_forced_file_replaces_another_one_only_when_it_is_whole(tmp_path: Path) -> None:
    """Also without links: until then, and after an error, the old one is there."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="closed"), whole_file(str(path), force=True) as file:
        file.close()
    assert path.read_bytes() == b"old"
    with whole_file(str(path), force=True) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [found.name for found in tmp_path.iterdir()] == ["rows.csv"]


def test_dangling_link_is_a_file_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links too: the name is taken, and not given to another file without `force`."""
    refuse_links(monkeypatch, errno.EPERM)
    path = tmp_path / "rows.csv"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputExists), whole_file(str(path), force=False):
        pass
    assert path.is_symlink()
    assert not (tmp_path / "elsewhere").exists()
