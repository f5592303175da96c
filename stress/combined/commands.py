"""Command lines next to all other users: senders, readers of closing pipes, pollers of the state.

They run with the same core and the same planted bug as the campaign. What is read from a pipe
before it is closed counts as seen.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress.combined.ground import SHELL, Given, Shown, operation
from stress.traffic import HEADER, sound

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.combined.ground import Ground, Spec

    Act = Callable[[Ground, Spec, random.Random], None]

CODE: Final = (
    "from stress import driver, variant; variant.bootstrap(); driver.apply_patch()\n"
    "import sys; from pagequeue.cli import main; sys.exit(main())"
)
ROOT: Final = str(Path(__file__).resolve().parents[2])
NO_PATIENCE_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.25
SENT_MAX: Final = 120


def start(spec: Spec, command: str, *options: str, bufsize: int = -1) -> subprocess.Popen[bytes]:
    """Start a command line on a queue."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, command, spec.directory, "--prefix", spec.prefix, *options],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=bufsize,
    )


def ended(
    ground: Ground, spec: Spec, kind: str, process: subprocess.Popen[bytes], codes: tuple[int, ...]
) -> None:
    """Wait for a command line's end, and judge it."""
    assert process.stderr is not None
    try:
        _, said = process.communicate(timeout=NO_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        ground.wrong(kind, spec.number, f"hangs for {NO_PATIENCE_SECONDS:g} s")
        return
    words = said.decode(errors="replace")
    if process.returncode not in codes or "Traceback" in words:
        text = f"ended with {process.returncode}: {words[-600:]}"
        ground.wrong(kind, spec.number, text)
        return
    ground.note(kind, spec.number)


def sends(ground: Ground, spec: Spec, rng: random.Random) -> None:
    """Send by a command line, which may be killed."""
    uid, count = spec.uid(rng, command=True), rng.randint(1, SENT_MAX)
    payloads = [operation(uid, number).payloads[0] for number in range(count)]
    ground.births[spec.number].put(Given(uid, count))
    process = start(spec, "send", "--length-prefixed")
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"".join(len(p).to_bytes(4, "little") + p for p in payloads))
        process.stdin.flush()
    if rng.random() < 0.2:
        time.sleep(rng.random() * 0.4)
        process.kill()
        ground.note("kill", spec.number)
    ended(ground, spec, "command sends", process, (0, -signal.SIGKILL))
    if process.returncode == 0:
        ground.ended[spec.number].put(Given(uid, count))


def receives(ground: Ground, spec: Spec, rng: random.Random, *, closes: bool) -> None:
    """Take all that the command line's own consumer has not had; or only some, and close."""
    options = ["--format", "raw", "--length-prefixed", "--consumer", SHELL]
    kind = "command with a closed pipe" if closes else "command receives"
    process = start(spec, "receive", *options, bufsize=0)  # what is read ahead counts as read
    assert process.stdout is not None
    limit = rng.randint(0, 12) if closes else 1 << 30
    log = ground.shown[spec.number]
    for _ in range(limit):
        payload = _next_payload(process.stdout.fileno())
        if payload is None:
            break
        if sound(payload) is None:
            ground.wrong(kind, spec.number, f"printed what was never sent: {payload[:40]!r}")
            break
        uid, number, place, *_ = HEADER.unpack_from(payload)
        log.put(Shown(uid, number, place))
    process.stdout.close()
    process.stdout = None
    ended(ground, spec, kind, process, (0, 1, 141, -signal.SIGPIPE) if closes else (0,))


def _next_payload(pipe: int) -> bytes | None:
    """Return one message from a pipe, and take no byte of the next."""
    size = _exactly(pipe, 4)
    return None if size is None else _exactly(pipe, int.from_bytes(size, "little"))


def _exactly(pipe: int, wanted: int) -> bytes | None:
    data = b""
    while len(data) < wanted:
        piece = os.read(pipe, wanted - len(data))
        if not piece:
            return None
        data += piece
    return data


LOOKS: Final = (
    ("info", "--json"),
    ("verify", "--json"),
    ("consumers", "--json"),
    ("metrics",),
    ("info",),
)


def looks(ground: Ground, spec: Spec, rng: random.Random) -> None:
    """Inspect a queue by a command line."""
    process = start(spec, *rng.choice(LOOKS))
    ended(ground, spec, "command inspects", process, (0,))


def shell(ground: Ground, _slot: int, uid: int) -> None:
    """Run one command line after the other, until the round ends."""
    rng = random.Random(uid)
    os.environ["PYTHONWARNINGS"] = "ignore"
    still = [spec for spec in ground.specs if not spec.is_moved]
    plain = [spec for spec in still if not spec.drops]
    # Not the ring: a command waits for room as long as it takes, and readers end before it.
    sent_to = [spec for spec in still if not spec.is_flow and spec.ring is None]
    closes, takes = partial(receives, closes=True), partial(receives, closes=False)
    acts: tuple[Act, ...] = (sends, closes, takes, looks)
    while ground.is_running:
        for act in rng.sample(acts, len(acts)):  # each in its turn: one takes long on busy cores
            if ground.is_running:
                act(ground, rng.choice(plain if act in {closes, takes} else sent_to), rng)
                time.sleep(rng.random() * 2 * PAUSE_SECONDS)
