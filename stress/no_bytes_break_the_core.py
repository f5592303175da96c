"""Forbids that bytes of a page, an index or a write meta lead the core out of its memory or astray.

`harness/hostile.c` lays down hostile lengths, flags, positions, tails and records, some with right
checksums, between two OS pages without access, calls everything in the core that needs no Python,
and compares what comes back with the bounds that `protocol/protocol.h` states (I9). It runs under
ASan and UBSan; with clang's libFuzzer if that is there; and, without sanitizers, as a program for
aarch64 under an emulator if there is one. `harness/readers.c` is smaller and faster: libFuzzer on
what reads pages, with the comparison of checksums taken out, from the inputs in `seeds/`. A case
is one set of files.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stress import fuzzing, variant
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT_SECONDS = 4.0

HARNESS = Path(__file__).resolve().parent / "harness"
HOSTILE = HARNESS / "hostile.c"
INCLUDE = f"-I{HARNESS}"
CHUNK_CASES = 20_000
CHUNK_SECONDS_MAX = 600.0
ARM_COMPILER = "aarch64-linux-gnu-gcc"
ARM_EMULATOR = "qemu-aarch64"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"
ARM_CASES = 5_000
FUZZ_SHARE = 0.2
READERS_SHARE = 0.4
WORKERS_SECONDS = 60.0
"""From such a budget on, the readers are fuzzed on two cores."""
FUZZ_SECONDS_MIN = 2
WORDS_LIMIT = 3000
FINDING = re.compile(r"^.*(?:ERROR: |runtime error: |must hold: )", re.MULTILINE)
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def executed(
    command: Sequence[str | Path],
    directory: str | None = None,
    limit_seconds: float = CHUNK_SECONDS_MAX,
) -> tuple[str, str | None]:
    """Run a program; return what it printed, and its error, if any."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **SANITIZER_OPTIONS},
            timeout=limit_seconds,
            cwd=directory,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no end after {limit_seconds:g} s"
    text = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return text, None
    found = FINDING.search(text)  # after a fuzzer's routine output
    words = text[found.start() :] if found else text
    return text, f"ended with {done.returncode}:\n{words[:WORDS_LIMIT]}"


def program(*, sanitized: bool = True) -> Path:
    """Build the harness for this machine."""
    flags = variant.SANITIZE if sanitized else ("-O2",)
    return variant.build_program([HOSTILE, HARNESS / "main.c"], [*flags, INCLUDE])


def arm_program() -> Path | None:
    """Build the harness for aarch64; None where it could not run."""
    if shutil.which(ARM_COMPILER) is None or shutil.which(ARM_EMULATOR) is None:
        return None
    sources = [HOSTILE, HARNESS / "main.c"]
    return variant.build_program(sources, ["-O2", INCLUDE], [ARM_COMPILER])


def fuzz_program() -> Path | None:
    """Build the harness with libFuzzer; None where clang or its runtime is missing."""
    if shutil.which("clang") is None:
        return None
    sources = [HOSTILE, HARNESS / "fuzz.c"]
    try:
        return variant.build_program(sources, [*fuzzing.FUZZER, INCLUDE], ["clang"])
    except subprocess.CalledProcessError:
        return None


def fuzz(budget: Budget, outcome: Outcome) -> None:
    """Let libFuzzer choose, for a part of the time."""
    path = fuzz_program()
    if path is None:
        outcome.notes["libFuzzer"] = "not run: install clang and its runtime (libclang-rt-*-dev)"
        return
    seconds = max(FUZZ_SECONDS_MIN, int(budget.seconds * FUZZ_SHARE))
    limits = [f"-max_total_time={seconds}", f"-seed={budget.seed % (1 << 31) or 1}"]
    if budget.cases is not None:
        limits.append(f"-runs={budget.cases}")
    with tempfile.TemporaryDirectory(prefix="pagequeue-fuzz-") as directory:
        limits += ["-print_final_stats=1", "-timeout=10"]
        text, wrong = executed([path, *limits], directory, seconds + CHUNK_SECONDS_MAX)
        found = [file for file in Path(directory).iterdir() if "-" in file.name]
        inputs = [f"{file.name}: {file.read_bytes().hex()}" for file in found]
    number = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    runs = int(number[1]) if number else 0
    outcome.cases += runs
    outcome.notes["libFuzzer"] = f"{runs} cases in {seconds} s"
    if wrong or not runs:
        outcome.violations.append("\n".join([f"libFuzzer: {wrong or 'ran no case'}", *inputs]))


def fuzz_readers(budget: Budget, outcome: Outcome) -> None:
    """Let libFuzzer choose bytes for the readers, with the checksum gate off."""
    program = fuzzing.fuzz_program()
    if program is None:
        outcome.notes["readers"] = "not run: install clang and its runtime (libclang-rt-*-dev)"
        return
    seconds = max(FUZZ_SECONDS_MIN, budget.seconds * READERS_SHARE)
    workers = min(2, os.cpu_count() or 1) if budget.seconds >= WORKERS_SECONDS else 1
    fuzzed = fuzzing.fuzz(seconds, budget.seed, workers=workers, program=program)
    outcome.cases += fuzzed.executions
    outcome.notes["readers"] = (
        f"{fuzzed.executions} executions in {fuzzed.seconds:.1f} s by {workers}, "
        f"{fuzzed.executions_per_hour / 1e6:.0f} M an hour"
    )
    for name, data in fuzzed.crashes.items():
        outcome.violations.append(f"readers: {name}, to be kept in seeds/readers: {data.hex()}")
    if fuzzed.wrong or not fuzzed.executions:
        outcome.violations += [f"readers: {text}" for text in fuzzed.wrong or ["ran no case"]]


def emulate(seed: int, outcome: Outcome) -> None:
    """Run the harness as aarch64 runs it; robust mutexes are missing in the emulator."""
    path = arm_program()
    if path is None:
        outcome.notes["aarch64"] = (
            f"not run: install {ARM_COMPILER} (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross) "
            f"and {ARM_EMULATOR} (qemu-user)"
        )
        return
    command: list[str | Path] = [ARM_EMULATOR, "-L", ARM_LIBRARIES, path, str(seed), str(ARM_CASES)]
    text, wrong = executed(command)
    outcome.notes["aarch64"] = text.strip()[-WORDS_LIMIT:]
    if wrong:
        outcome.violations.append(f"aarch64: {wrong}")
    elif not text.endswith("lock flock\n"):
        outcome.violations.append(f"aarch64: no robust mutex there, yet it prints {text.strip()!r}")
    else:
        outcome.cases += ARM_CASES


def run(budget: Budget) -> Outcome:
    """Run the harness in chunks until the budget is used up."""
    started = time.monotonic()
    rng = random.Random(budget.seed)
    outcome = Outcome(0)
    if not variant.can_sanitize():
        return Outcome(0, [f"{variant.compiler()[0]} cannot build under ASan and UBSan"])
    hostile = program()
    emulate(budget.seed % (1 << 32), outcome)
    fuzz(budget, outcome)
    fuzz_readers(budget, outcome)
    ran = 0
    while not outcome.violations:
        cases = min(CHUNK_CASES, budget.cases - ran if budget.cases is not None else CHUNK_CASES)
        if cases <= 0:
            break
        seed = rng.getrandbits(32)
        text, wrong = executed([hostile, str(seed), str(cases)])
        ran += cases
        if wrong:
            outcome.violations.append(f"`hostile {seed} {cases}` {wrong}")
        outcome.notes["sanitized"] = f"{ran} cases{text.strip().partition(' cases')[2]}"
        if time.monotonic() - started >= budget.seconds:
            break
    outcome.cases += ran
    return outcome
