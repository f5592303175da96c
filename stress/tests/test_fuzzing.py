"""The fuzzer's target for the readers: its seeds, what it notices; opening what was mutated."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tools import missing

from stress import fuzzing, variant
from stress import no_bytes_hang_or_crash_opening as opening
from stress.campaign import Budget
from stress.corpus.shapes import SHAPES, make
from stress.mutations import CHANGES, mutate

if TYPE_CHECKING:
    from pathlib import Path

BOUNDS = [
    ("protocol/frames.c", " || position > page_bytes - HEADER", ""),
    ("protocol/frames.c", "length < HEADER || pq_aligned(length) > page_bytes - position", "0"),
    ("protocol/frames.c", "page_bytes - position - pq_aligned(length) < END_MARK_BYTES", "0"),
    (
        "protocol/index.h",
        "ordinal >= at->index_capacity) {\n        return 0;",
        "0) {\n        return 0;",
    ),
    ("protocol/scan.c", "if (ordinal > count) {", "if (0) {"),
]


@pytest.fixture(scope="module")
def _sanitizers() -> None:
    """Skip without them."""
    if not variant.can_sanitize():
        missing("sanitizers", f"{variant.compiler()[0]} cannot build under ASan and UBSan")


@pytest.mark.tool("sanitizers")
@pytest.mark.usefixtures("_sanitizers")
def test_every_kept_input_passes() -> None:
    """I9: inputs from real pages, and all that ever crashed the target."""
    assert len(fuzzing.seeds()) >= 10
    assert fuzzing.replay(fuzzing.replay_program(), fuzzing.seeds()) is None


def test_seeds_are_made_from_real_pages() -> None:
    """They are what the seeds' maker makes from pages of today's format."""
    for name, data in fuzzing.make_seeds().items():
        kept = (fuzzing.SEEDS / name).read_bytes()
        assert len(kept) == len(data) <= fuzzing.INPUT_BYTES_MAX


def mutated(rng: random.Random) -> bytes:
    """Return one of the seeds, changed here and there."""
    data = bytearray(rng.choice(fuzzing.seeds()).read_bytes())
    for _ in range(rng.randrange(6)):
        place = rng.choice((rng.randrange(16, 32), rng.randrange(len(data))))
        data[place] = rng.choice((0, 1, 2, 5, 16, 127, 128, 255))
    return bytes(data[: rng.choice((len(data), rng.randrange(112, len(data))))])


@pytest.mark.tool("sanitizers")
@pytest.mark.usefixtures("_sanitizers")
@pytest.mark.parametrize(("name", "bound", "broken"), BOUNDS)
def test_target_notices_a_bound_that_is_not_kept(
    name: str, bound: str, broken: str, tmp_path: Path
) -> None:
    """I9: even without libFuzzer, a few hundred changed seeds show each of them."""
    program = fuzzing.replay_program({name: [(bound, broken)]})
    rng = random.Random(1)
    inputs = []
    for number in range(400):
        inputs.append(tmp_path / f"input-{number}")
        inputs[-1].write_bytes(mutated(rng))
    assert fuzzing.replay(fuzzing.replay_program(), inputs) is None
    assert fuzzing.replay(program, inputs) is not None


@pytest.mark.nightly
@pytest.mark.tool("clang")
def test_libfuzzer_runs_the_target() -> None:
    """A second of it, from the seeds on; more where the machine stood still."""
    program = fuzzing.fuzz_program()
    if program is None:
        missing("clang", "it or its runtime of libFuzzer is missing")
    for seconds in (1.0, 10.0, 60.0):
        fuzzed = fuzzing.fuzz(seconds, 5, program=program)
        assert fuzzed.wrong == []
        assert fuzzed.crashes == {}
        if fuzzed.executions > 100:
            break
    assert fuzzed.executions > 100


# --- opening what was mutated --------------------------------------------------------------------


def test_mutations_are_of_every_kind_and_repeatable(tmp_path: Path) -> None:
    """A seed fixes what is done, and every kind of damage is done by some seed."""
    make(SHAPES[0], 1, tmp_path / "good")
    seen = set()
    for seed in range(80):
        for turn in range(2):
            copy = tmp_path / f"{seed}-{turn}"
            copy.mkdir()
            for path in (tmp_path / "good").iterdir():
                (copy / path.name).write_bytes(path.read_bytes())
        first = mutate(tmp_path / f"{seed}-0", random.Random(seed))
        assert first == mutate(tmp_path / f"{seed}-1", random.Random(seed))
        seen |= {text.split()[0] for text in first}
    assert seen == {change.__name__ for change in CHANGES}


@pytest.mark.nightly
def test_mutated_directories_are_opened_without_a_crash() -> None:
    """A seed's first cases, as the runner starts them."""
    outcome = opening.run(Budget(60.0, 40, 11))
    assert outcome.violations == []
    assert outcome.cases == 40


@pytest.mark.nightly
def test_core_that_does_not_check_is_found_by_mutated_directories() -> None:
    """With the comparison of checksums taken out, changed payloads are delivered."""
    defines = {"PAGEQUEUE_KILL_POINTS": "1", "PAGEQUEUE_PLANT": '"no_checksum"'}
    outcome = opening.run_with(Budget(600.0, 400, 11), defines)
    assert any("was never sent like that" in text for text in outcome.violations)
