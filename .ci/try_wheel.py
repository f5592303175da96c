"""Run the README's first program and first commands with this Python's pagequeue.

    python .ci/try_wheel.py

cibuildwheel calls it for each wheel; it needs the extra `cli`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the first block of a language after the heading "Send and receive"."""
    found = re.search(
        rf"```{language}\n(.*?)```", README.partition("## Send and receive")[2], re.DOTALL
    )
    if found is None:
        raise SystemExit(f"README.md has no {language} block")
    return found[1]


def main() -> None:
    """Run both in an empty directory."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as directory:
        for command in ([sys.executable, "-c", block("python")], ["sh", "-euc", block("bash")]):
            subprocess.run(command, cwd=directory, env={**os.environ, "PATH": path}, check=True)


if __name__ == "__main__":
    main()
