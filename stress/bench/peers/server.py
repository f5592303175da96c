"""A server that a peer needs: started for a stage, stopped after it; its files are the run's."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stress.bench.large_loops import resident_bytes
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

START_SECONDS = 60.0  # one that loads what it stored before
PAUSE_SECONDS = 0.01
_running: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Server:
    """A running server, as every process of the stage gets it."""

    pid: int
    address: str

    def peak_bytes(self) -> int:
        """Return the most memory that it had."""
        return resident_bytes(self.pid)


def need(program: str) -> None:
    """Raise where a program is not installed, as for a module that is missing."""
    if shutil.which(program) is None:
        raise ImportError(f"{program} is not installed")


def start(command: Sequence[str], log: Path, address_of: Callable[[], str | None]) -> Server:
    """Start a server and wait for its address, which is None until it answers there."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    _running[process.pid] = process
    deadline = time.monotonic() + START_SECONDS
    while (address := address_of()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            stop(Server(process.pid, ""))
            end = log.read_text(encoding="utf-8", errors="replace")[-500:]
            raise CheckFailed(f"{command[0]} did not start: {end}")
        time.sleep(PAUSE_SECONDS)
    return Server(process.pid, address)


def stop(server: Server) -> None:
    """Let it write what it has and end."""
    process = _running.pop(server.pid)
    process.terminate()
    try:
        process.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
