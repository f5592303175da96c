"""libFuzzer on the core's readers with the checksum gate off, its seeds, and replaying its finds.

`seeds/readers/` holds small inputs made from real pages, and every input that ever crashed the
target. They are where the fuzzer starts, and `stress/tests/test_fuzzing.py` runs each of them.
`python -m stress.fuzzing` makes the inputs from real pages again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stress import variant

if TYPE_CHECKING:
    from collections.abc import Sequence

HARNESS = Path(__file__).resolve().parent / "harness"
SEEDS = Path(__file__).resolve().parent / "seeds" / "readers"
TARGET = HARNESS / "readers.c"
FUZZER = ("-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-O1")
"""clang's flags, for each target: what is compiled with the same ones is compiled once."""
GATE_OFF = '-DPAGEQUEUE_PLANT="no_checksum"'
INPUT_BYTES_MAX = 1024
CHOICES = struct.Struct("<QqHHBBHq")
FRAGMENT_SEED_BYTES = 256
CASE_SECONDS_MAX = 60
WORDS_LIMIT = 3000
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclass
class Fuzzed:
    """Executions, seconds, libFuzzer's report of a crash, and the inputs that it wrote then."""

    executions: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    crashes: dict[str, bytes] = field(default_factory=dict)

    @property
    def executions_per_hour(self) -> float:
        """The rate."""
        return self.executions / max(self.seconds, 1e-9) * 3600


def seeds() -> list[Path]:
    """Return the inputs that are kept."""
    return sorted(path for path in SEEDS.iterdir() if path.is_file())


def fuzz_program() -> Path | None:
    """Build the target with libFuzzer; None where clang or its runtime is missing."""
    if shutil.which("clang") is None:
        return None
    try:
        return variant.build_program([TARGET], [*FUZZER, GATE_OFF], ["clang"])
    except subprocess.CalledProcessError:
        return None


def replay_program(replacements: variant.Replacements | None = None) -> Path:
    """Build the target as a program that runs files once, under sanitizers, with any compiler."""
    flags = [*variant.SANITIZE, GATE_OFF]
    return variant.build_program([TARGET, HARNESS / "replay.c"], flags, replacements=replacements)


def replay(program: Path, files: list[Path]) -> str | None:
    """Run files through the target; return the error, if any."""
    done = subprocess.run(
        [program, *files],
        capture_output=True,
        text=True,
        env={**os.environ, **SANITIZER_OPTIONS},
        timeout=CASE_SECONDS_MAX * (1 + len(files)),
        check=False,
    )
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-WORDS_LIMIT:]


def fuzz(seconds: float, seed: int, *, workers: int = 1, program: Path | None = None) -> Fuzzed:
    """Fuzz for so many seconds, in so many processes that share what they find.

    Raises:
        FileNotFoundError: there is no clang with libFuzzer.
    """
    program = program or fuzz_program()
    if program is None:
        raise FileNotFoundError("install clang and its runtime (libclang-rt-*-dev)")
    result = Fuzzed()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pagequeue-fuzz-") as directory:
        shared = Path(directory, "corpus")
        shared.mkdir()
        running = [
            _started(program, shared, directory, seconds, seed + worker)
            for worker in range(workers)
        ]
        for process in running:
            text = process.communicate(timeout=seconds + 120)[0]
            found = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
            result.executions += int(found[1]) if found else 0
            if process.returncode != 0:
                result.wrong.append(f"ended with {process.returncode}:\n{text[-WORDS_LIMIT:]}")
        for path in Path(directory).glob("finds/*"):
            result.crashes[path.name] = path.read_bytes()
    result.seconds = time.monotonic() - started
    return result


def _started(
    program: Path, shared: Path, directory: str, seconds: float, seed: int
) -> subprocess.Popen[str]:
    finds = Path(directory, "finds")
    finds.mkdir(exist_ok=True)
    limits = [
        f"-max_total_time={max(1, int(seconds))}",
        f"-seed={seed % (1 << 31) or 1}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={CASE_SECONDS_MAX}",
        f"-artifact_prefix={finds}/",
        *("-print_final_stats=1", "-reload=5", "-verbosity=0"),
    ]
    return subprocess.Popen(
        [str(program), *limits, str(shared), str(SEEDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **SANITIZER_OPTIONS},
        cwd=directory,
    )


# --- seeds from real pages ------------------------------------------------------------------------


def seed_of(page: bytes, index: bytes, first_sequence: int, count: int, since: int) -> bytes:
    """Return an input: choices, page, index."""
    records = min(len(index) // 12, 64)
    choices = CHOICES.pack(first_sequence, since, 8, count, records, 0, count // 2, (1 << 63) - 1)
    return choices + page + index[: 12 * records]


def make_seeds() -> dict[str, bytes]:
    """Return inputs made from pages of real queues, cut to the size of an input."""
    from pagequeue import format as fmt  # noqa: PLC0415 - the runner needs no library
    from stress.corpus.shapes import PREFIX, SHAPES, make  # noqa: PLC0415
    from stress.corpus.victim import frame  # noqa: PLC0415

    made = {}
    with tempfile.TemporaryDirectory() as base:
        for number, shape in enumerate(SHAPES):
            original = make(shape, 1, Path(base, str(number)))
            large = [place.page for place in original.places if place.pages > 1]
            inner = large[0] if large else original.inner
            places = original.of_page(inner)
            page = original.contents[fmt.page_name(PREFIX, inner)]
            index = original.contents[fmt.index_name(PREFIX, inner)]
            kept = [place for place in places if place.end <= INPUT_BYTES_MAX - 32 - 16 - 12 * 8]
            last = kept[-1]
            mark = frame(original.queue_id, b"", last.timestamp, last.sequence + 1, end=True)
            cut = page[: last.end] + (mark if number % 2 == 0 else bytes(16))
            if large:  # the head, the mark of its fragment, and the beginning of that
                cut = page[:FRAGMENT_SEED_BYTES]
            first = places[0].sequence
            made[f"page-{number}"] = seed_of(
                cut, index[: 12 * len(kept)], first, len(kept), kept[len(kept) // 2].timestamp
            )
            made[f"no-index-{number}"] = seed_of(cut, b"", first, len(kept), places[0].timestamp)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the seeds that are made from real pages."""
    about = "Make the inputs of seeds/readers from real pages again; others stay."
    argparse.ArgumentParser(prog="python -m stress.fuzzing", description=about).parse_args(
        arguments
    )
    SEEDS.mkdir(parents=True, exist_ok=True)
    for name, data in make_seeds().items():
        (SEEDS / name).write_bytes(data)
    print(f"{len(seeds())} files in {SEEDS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
