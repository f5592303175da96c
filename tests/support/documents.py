"""Code blocks of documents, and running what they print, as their reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def blocks(*pages: str) -> list[tuple[str, str, str]]:
    """Return the code blocks of pages, given below the root: mark, language, text."""
    return BLOCK.findall("\n".join((ROOT / page).read_text() for page in pages))


def run(directory: Path, *command: str, is_fresh: bool = False) -> str:
    """Run a command that must end well; return what it printed.

    Args:
        directory: the command's.
        command: Python's, or a shell's, which finds `python` and `pagequeue`.
        is_fresh: whether each process starts its interpreter, so that a name which only another
            import brings is missed; else they are forked, which takes a tenth.
    """
    is_forked = command[0] == sys.executable and not is_fresh
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = (warm if is_forked else subprocess).run(
        command,
        cwd=directory,
        env={**os.environ, "PATH": path} if is_fresh else warm.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
