"""Programs that a machine with Python, a C compiler and Java may lack, and tests that need them.

A test that needs one is marked `tool(NAME)`. Where the program is missing, the test is skipped and
counted in the closing line; `.ci/run` installs all of them, and then a skip is a failure.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REQUIRED_VARIABLE: Final = "PAGEQUEUE_TOOLS_REQUIRED"
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
PREFIX: Final = "needs the tool "
EXT4, XFS = (pytest.param(kind, marks=pytest.mark.tool(f"mkfs.{kind}")) for kind in ("ext4", "xfs"))
"""Kinds of disks as parameters, with what makes them."""


def lacking(tool: str) -> list[str]:
    """Return the programs of a tool that are not installed.

    Raises:
        KeyError: there is no such tool.
    """
    return [program for program in PROGRAMS[tool] if shutil.which(program) is None]


def missing(tool: str, why: str) -> NoReturn:
    """Skip a test because a tool is not there or does not work; fail where it must."""
    assert tool in PROGRAMS
    reason = f"{PREFIX}{tool}: {why}"
    if os.environ.get(REQUIRED_VARIABLE):
        pytest.fail(reason)
    pytest.skip(reason)


def tool_of(reason: str) -> str | None:
    """Return which tool a reason for a skip names, if any."""
    _, found, rest = reason.partition(PREFIX)
    return rest.partition(":")[0] if found else None


def closing_line(tools: Iterable[str]) -> str:
    """Return how many tests were not run, by the tools that were missing."""
    names = sorted(tools)
    counts = [f"{name} ({names.count(name)})" for name in dict.fromkeys(names)]
    named = f": {', '.join(counts)}" if counts else ""
    return f"tools: {len(names)} test{'s' * (len(names) != 1)} not run{named}"
