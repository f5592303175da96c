"""The core under AddressSanitizer and UndefinedBehaviorSanitizer, alone and below Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import missing

from stress import no_bytes_break_the_core as campaign
from stress import variant
from stress.campaign import Budget, Outcome

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("libasan.so", "libubsan.so")


@pytest.fixture(scope="module")
def _sanitizers() -> None:
    """Skip without them."""
    if not variant.can_sanitize():
        missing("sanitizers", f"{variant.compiler()[0]} cannot build under ASan and UBSan")


def runtime(name: str) -> str:
    """Return where the compiler has a sanitizer's runtime."""
    command = [*variant.compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.nightly
@pytest.mark.tool("sanitizers")
@pytest.mark.usefixtures("_sanitizers")
def test_no_bytes_lead_the_core_out_of_its_memory() -> None:
    """I9: hostile lengths, positions and tails, right against OS pages without access."""
    outcome = campaign.run(Budget(3.0, 30_000, 7))
    assert outcome.violations == []
    assert outcome.cases >= 30_000


@pytest.mark.tool("sanitizers")
@pytest.mark.usefixtures("_sanitizers")
@pytest.mark.parametrize(
    ("file", "bound", "broken"),
    [
        ("protocol/frames.c", "length < HEADER || pq_aligned(length) > page_bytes - position", "0"),
        ("protocol/frames.c", "page_bytes - position - pq_aligned(length) < END_MARK_BYTES", "0"),
        ("protocol/frames.c", "end + END_MARK_BYTES > at->page_bytes", "end > at->page_bytes"),
        ("protocol/bulk_commit.c", "(beyond->page_number - at->page_number) % 2 == 0", "0"),
        (
            "protocol/bulk_commit.c",
            "sequence, &frame) == PQ_READ_END",
            "sequence, &frame) != PQ_READ_NOTHING",
        ),
        ("protocol/assign_sequences.c", "? (size_t)(count - i) : ", "? 4 : "),
    ],
)
def test_harness_notices_a_bound_that_is_not_kept(file: str, bound: str, broken: str) -> None:
    """I9: the harness sees what it is there to see."""
    program = variant.build_program(
        [campaign.HOSTILE, campaign.HARNESS / "main.c"],
        [*variant.SANITIZE, campaign.INCLUDE],
        replacements={file: [(bound, broken)]},
    )
    _, wrong = campaign.executed([program, "1", "20000"])
    assert wrong is not None
    assert "of seed 1" in wrong


@pytest.mark.tool("qemu")
def test_aarch64_computes_the_same_and_falls_back_to_flock() -> None:
    """Another CPU's checksum agrees; where robust mutexes are missing, flock is used."""
    outcome = Outcome(0)
    campaign.emulate(11, outcome)
    if outcome.cases == 0 and not outcome.violations:
        missing("qemu", outcome.notes["aarch64"])
    assert outcome.violations == []
    assert "checksum by streams, lock flock" in outcome.notes["aarch64"]


@pytest.mark.tool("sanitizers")
@pytest.mark.usefixtures("_sanitizers")
def test_extension_runs_clean_below_python() -> None:
    """Sending, receiving, replaying, rolling, threads, misuse and damage: no sanitizer objects."""
    core = variant.build({}, variant.SANITIZE)
    environment = {
        **os.environ,
        **campaign.SANITIZER_OPTIONS,
        variant.CORE_VARIABLE: str(core),
        "LD_PRELOAD": " ".join(runtime(name) for name in LIBRARIES),
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, "-m", "stress.smoke"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "smoke: all passed\n"
