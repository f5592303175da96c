"""What a machine with Python and a C compiler may lack, and tests that need it.

A test that needs a program is marked `tool(NAME)`, and one that needs Spark and its Java `spark`.
Where it is missing, the test is skipped; where the variable `PAGEQUEUE_REQUIRED` names `tools` or
`spark`, as in `.ci/run`, it fails.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUIRED_VARIABLE: Final = "PAGEQUEUE_REQUIRED"
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "spin": ("spin",),
    "clang": ("clang",),
    "qemu": ("qemu-aarch64", "aarch64-linux-gnu-gcc"),
    "strace": ("strace",),
    "mkfs.ext4": ("mkfs.ext4",),
    "mkfs.xfs": ("mkfs.xfs",),
    "sanitizers": (),
}
"""What a mark can name, and which programs that takes; the rest shows when it is used."""
EXT4, XFS = (pytest.param(kind, marks=pytest.mark.tool(f"mkfs.{kind}")) for kind in ("ext4", "xfs"))
"""Kinds of disks as parameters, with what makes them."""


def lacking(tool: str) -> list[str]:
    """Return the programs of a tool that are not installed.

    Raises:
        KeyError: there is no such tool.
    """
    return [program for program in PROGRAMS[tool] if shutil.which(program) is None]


def is_required(what: str) -> bool:
    """Whether a test that needs this must run."""
    return what in os.environ.get(REQUIRED_VARIABLE, "").split()


def missing(tool: str, why: str) -> NoReturn:
    """Skip a test because a tool is not there or does not work; fail where it must."""
    assert tool in PROGRAMS
    reason = f"needs the tool {tool}: {why}"
    if is_required("tools"):
        pytest.fail(reason)
    pytest.skip(reason)
