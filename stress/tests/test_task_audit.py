"""The judge of task stores reports each violation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stress.task_audit import (
    BURY,
    CHANGE,
    CLAIM,
    CODEC,
    DELETE,
    DEPEND,
    FINISH,
    INSERT,
    STATE,
    STEPS,
    TOLD_DONE,
    TOLD_REFUSED,
    Audit,
    Note,
)


def job(step: int, name: str = "j") -> bytes:
    """Return the payload of a step."""
    return json.dumps({"job": name, "step": step}).encode()


GOOD: list[Any] = [
    [1, 1, [CODEC, "json"]],
    [1, 1, [INSERT, "a", job(0), None, 0, None]],
    [1, 1, [CLAIM, 1, 1, 9, "w"]],
    [1, 1, [FINISH, 1, 2], [INSERT, "b", job(1), None, 0, None]],
    [1, 1, [CHANGE, 2, 1, None, job(1), None, 3]],
    [1, 1, [INSERT, "gate", job(0, "gate"), None, 0, None]],
    [1, 1, [FINISH, 2, 2], [DEPEND, 3, 1], [INSERT, "c", job(2), None, 0, None]],
    [1, 1, [FINISH, 4, 1], [DELETE, 3, 1]],
]
NOTES = [
    Note(TOLD_DONE, 1, 2),
    Note(TOLD_DONE, 2, 2),
    Note(TOLD_DONE, 4, 1),
    Note(TOLD_REFUSED, 1, 1),
]


def judged(entries: list[Any], notes: list[Note], states: dict[int, int]) -> list[str]:
    """Return the violations of a round."""
    audit = Audit()
    for sequence, entry in enumerate(entries):
        audit.take(sequence, entry)
    audit.jobs()
    audit.notes(notes, states)
    return audit.violations


def test_sound_round_is_found_sound() -> None:
    """Each step once, and all that was told is there."""
    assert STEPS == 3
    assert judged(GOOD, [*NOTES, Note(STATE, 4, 170)], {4: 170}) == []


@pytest.mark.parametrize(
    ("place", "entry", "text"),
    [
        (2, [1, 1, [CLAIM, 1, 2, 9, "w"]], "commits version 2 of task 1, which has 1"),
        (3, [1, 1, [FINISH, 1, 2]], "not finished"),
        (6, [1, 1, [FINISH, 2, 2], [DEPEND, 3, 4], GOOD[6][4]], "depends on version 4"),
        (7, [1, 1, [INSERT, "a", job(0), None, 0, None]], "not finished"),
        (3, [1, 10, [CLAIM, 1, 2, 9, "w"]], "claims task 1 before it has waited"),
        (3, [1, 1, [BURY, 1, 2, "no"]], "makes task 1 dead after 1 deliveries"),
    ],
)
def test_entry_that_must_not_be_is_seen(place: int, entry: Any, text: str) -> None:  # noqa: ANN401
    """In place of the right one, and the entries after it as far as they can be judged."""
    found = judged([*GOOD[:place], entry], [], {})
    assert text in " ".join(found)


def test_step_that_was_done_twice_is_seen() -> None:
    """By a second task of the same step."""
    more = [[1, 1, [INSERT, "a", job(0), None, 0, None]], [1, 1, [FINISH, 5, 1]]]
    assert "has its steps [2, 1, 1] times" in judged([*GOOD, *more], [], {})[0]


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (Note(TOLD_DONE, 1, 2), "two workers were told"),
        (Note(TOLD_DONE, 9, 1), "no entry does"),
        (Note(TOLD_REFUSED, 4, 1), "and an entry finishes"),
        (Note(STATE, 3, 187), "another state than a replay"),
    ],
)
def test_what_a_worker_was_told_wrongly_is_seen(note: Note, text: str) -> None:
    """Against the entries, and against the replayed states."""
    assert text in judged(GOOD, [*NOTES, note], {3: 170})[0]
