"""What a planted bug is: what is wrong, what it breaks, which campaigns must catch it and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stress.variant import Changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stress.variant import Replacements

STEP = "no_step_is_deadly"
KILL = "no_kill_loses_or_tears"
STOP = "no_stopped_holder_is_robbed"
APART = "no_container_is_robbed"
BYTES = "no_bytes_break_the_core"
MODEL = "no_weak_publish_is_ever_read"
GROWTH = "no_resource_grows_without_end"
SIM = "no_simulated_cut_loses_what_was_flushed"
CUT = "no_real_cut_loses_what_was_flushed"
FULL = "no_full_disk_harms_what_was_sent"
STRANGER = "no_stranger_gets_in"
FAULT = "no_fault_goes_unsaid"
FAILED_SYNC = "no_failed_sync_is_forgotten"
DAMAGE = "no_damage_goes_unnoticed"
FLOW = "no_flow_loses"
CANCEL = "no_cancelled_wait_loses"
OPENING = "no_bytes_hang_or_crash_opening"
COMPRESSION = "no_compression_loses_or_shows_old_bytes"
RETAIN = "no_retention_takes_what_is_needed"
SKIP = "no_cursor_skips"
RING = "no_ring_overwrites_or_revives"
CLAIM = "no_claim_is_held_twice_or_lost"
PIPE = "no_pipe_takes_what_nobody_read"
ITEM = "no_item_is_lost_by_a_dead_worker"
COMBINED = "no_combination_breaks_a_promise"
CLOSE = "no_close_harms_or_hangs"
ARCHIVE = "no_archive_loses_a_row"
RECORD = "no_record_is_misread"
TASK = "no_task_is_done_twice"
JOURNAL = "no_journal_diverges"
JOURNAL_CUT = "no_cut_breaks_a_journal"

PATCHES_MODULE = "stress.plants.patches"


@dataclass(frozen=True)
class Plant:
    """One bug.

    Attributes:
        name: by which it is asked for; a Python patch is the function of that name.
        wrong: what is wrong, in a sentence.
        breaks: the trap of the field, or the invariant of FORMAT.md.
        by: the campaigns that must catch it, each with its budget in seconds.
        changes: of the C core's sources; None where the bug is in other code.
        patch: whether it is planted in Python.
        model: the weakened model and its switch, where it is one of the protocol.
    """

    name: str
    wrong: str
    breaks: str
    by: Mapping[str, float]
    changes: Changes | None = None
    patch: bool = False
    model: tuple[str, ...] = field(default=())

    @property
    def where(self) -> str:
        """Return where it is planted."""
        if self.model:
            return "model"
        return "Python" if self.patch else "C"


def in_c(
    name: str, wrong: str, breaks: str, by: Mapping[str, float], replacements: Replacements
) -> Plant:
    """Return a bug made by replacing texts in the core's sources."""
    return Plant(name, wrong, breaks, by, Changes(replacements=replacements))


def switched(name: str, wrong: str, breaks: str, by: Mapping[str, float]) -> Plant:
    """Return a bug that the core's sources have a switch for."""
    return Plant(name, wrong, breaks, by, Changes({"PAGEQUEUE_PLANT": f'"{name}"'}))


def in_python(name: str, wrong: str, breaks: str, by: Mapping[str, float]) -> Plant:
    """Return a bug that is a function of `patches.py`."""
    return Plant(name, wrong, breaks, by, patch=True)


def in_model(name: str, wrong: str, breaks: str, *model: str) -> Plant:
    """Return a bug of the protocol that no test on this machine could show."""
    return Plant(name, wrong, breaks, {MODEL: 15.0}, model=model)
