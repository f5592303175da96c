"""The planted bugs: what is wrong, what it breaks, which campaigns must catch it in what time."""

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
OPENING = "no_bytes_hang_or_crash_opening"

PATCHES_MODULE = "stress.plants.patches"


@dataclass(frozen=True)
class Plant:
    """One bug.

    Attributes:
        name: by which it is asked for; a Python patch is the function of that name.
        wrong: what is wrong, in a sentence.
        breaks: the trap of the field, or the invariant of FORMAT.md.
        by: the campaigns that must catch it, each with its budget in seconds.
        changes: of the C core's sources; None where the bug is none of the core's.
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
        """Say where it is planted."""
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


WEAK_MEMORY = "weak memory, which x86 hides"

MODELS = (
    in_model(
        "publish_relaxed", "the length is not stored with release order", WEAK_MEMORY,
        "publish", "WEAK_LENGTH",
    ),
    in_model(
        "poll_relaxed", "the length is not loaded with acquire order", WEAK_MEMORY,
        "publish", "WEAK_ACQUIRE",
    ),
    in_model(
        "unlock_relaxed", "the lock goes on before its last holder's stores are visible",
        WEAK_MEMORY, "publish", "WEAK_UNLOCK",
    ),
    in_model(
        "no_fence_before_sleep", "no full fence between saying that one sleeps and looking again",
        "I7, a lost wake-up", "doorbell", "NO_CONSUMER_FENCE",
    ),
    in_model(
        "no_fence_before_wake", "no full fence between publishing and looking for sleepers",
        "I7, a lost wake-up", "doorbell", "NO_PRODUCER_FENCE",
    ),
    in_model(
        "settled_by_frames", "a dead holder's batch is settled frame by frame",
        "I3, a replay ends inside a batch", "publish", "SETTLE_BY_FRAME", "TAIL_READER",
    ),
)  # fmt: skip

PUBLISHING = (
    switched(
        "no_zero_next", "the commit word behind a new frame is not zeroed first",
        "I4, a dirty tail shows garbage as a length", {STEP: 15.0},
    ),
    switched(
        "length_first", "the length is stored before the payload", "I2", {STEP: 15.0},
    ),
    switched(
        "batch_first_length_first", "the first length of a batch is not stored last", "I8",
        {STEP: 15.0},
    ),
    switched(
        "no_checksum", "the checksum is not checked", "a length on disk without its payload",
        {DAMAGE: 30.0},
    ),
    in_c(
        "split_tail", "position and count are advanced in two stores", "I3, they drift apart",
        {STEP: 15.0},
        {"frames.c": [(
            "    tail_advance(at, end, count + item_count);",
            ("    tail_advance(at, end, count);\n    PQ_KILL_POINT(7);\n"
            "    tail_advance(at, end, count + item_count);"),
        )]},
    ),
    in_c(
        "tail_first", "the tail is advanced before the frames are published",
        "I3, a hole that no reader passes", {STEP: 15.0},
        {"frames.c": [(
            "    PQ_KILL_POINT(4);\n",
            "    tail_advance(at, end, count + item_count);\n    PQ_KILL_POINT(4);\n",
        )]},
    ),
    in_c(
        "dead_not_settled", "what a dead holder published is laid over", "I3", {STEP: 15.0},
        {"frames.c": [(
            "        if (found == PQ_READ_NOTHING) {\n            break;",
            "        if (found != PQ_READ_END) {\n            break;",
        )]},
    ),
    in_c(
        "half_batch_page_kept", "the page in which a dead holder left half a batch is gone on with",
        "I8", {CUT: 40.0},
        {"frames.c": [(
            ("    if (pq_load_u64(at->meta + PQ_WRITE_META_BATCH_OPEN) > "
            "at->first_sequence + *count) {"),
            "    if (0) {",
        )]},
    ),
    in_c(
        "clock_trusted", "a timestamp is now, also when the clock was set back", "I1",
        {KILL: 30.0},
        {"frames.c": [("exact : now > last ? now : last;", "exact : now;")]},
    ),
    in_c(
        "next_header_half", "a next page's header that a killed roll left half written is kept",
        "a page that cannot be opened", {STEP: 60.0},
        {"frames.c": [("checksum == header_checksum(found) &&", "")]},
    ),
    in_c(
        "end_mark_first", "the end mark is published before the next page has its header", "I10",
        {STEP: 30.0},
        {"frames.c": [(
            "    PQ_KILL_POINT(11);\n",
            ("    uint32_t early = PQ_END_OF_PAGE | END_MARK_BYTES;\n"
            "    uint32_t early_sum = pq_frame_checksum(PQ_CRC_START, last, sequence, early);\n"
            "    memcpy(at->page + position + PQ_FRAME_CHECKSUM, &early_sum, 4);\n"
            "    memcpy(at->page + position + PQ_FRAME_TIMESTAMP, &last, 8);\n"
            "    pq_store_u32(at->page + position, early);\n"
            "    PQ_KILL_POINT(11);\n"),
        )]},
    ),
    in_c(
        "end_mark_without_room", "a frame may take the room of the end mark", "I9",
        {BYTES: 15.0},
        {"frames.c": [("end + END_MARK_BYTES > at->page_bytes", "end > at->page_bytes")]},
    ),
    in_c(
        "length_not_bounded", "a length that leads out of the page is believed", "I9",
        {BYTES: 15.0},
        {"frames.c": [("pq_aligned(length) > page_bytes - position", "0")]},
    ),
    in_c(
        "index_trusted", "what the index leads to need not prove itself", "I6", {DAMAGE: 30.0},
        {"scan.c": [(
            ("    if (pq_frame_check(at->page, at->page_bytes, *position, "
            "at->first_sequence + known, &frame) !=\n            PQ_READ_FRAME ||\n"
            "        frame.timestamp != timestamp) {"),
            ("    if (pq_frame_look(at->page, at->page_bytes, *position, &frame) !="
            " PQ_READ_FRAME) {"),
        )]},
    ),
)  # fmt: skip

LOCKS = (
    in_c(
        "lock_stolen", "the writers' lock is taken from its holder after a timeout",
        "an overwritten message", {STOP: 15.0},
        {"attempt.c": [(
            "            return LOCK_TIMEOUT;",
            "            pq_lock_reset(lock->mutex);\n            start = now;",
        )]},
    ),
    in_c(
        "lock_not_robust", "the writers' lock is not released when its holder dies",
        "a wait without end", {STEP: 30.0},
        {"lock.c": [(
            "pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST)", "0"
        )]},
    ),
    in_c(
        "lock_not_made_consistent", "a dead holder's lock is taken over without saying so",
        "nobody can lock any more", {STEP: 30.0},
        {"lock.c": [(
            "error = pthread_mutex_consistent((pthread_mutex_t *)lock->mutex);", "error = 0;"
        )]},
    ),
    in_python(
        "lock_reset_by_every_opener", "the writers' lock is made anew while others have it open",
        "two producers at once", {STOP: 15.0},
    ),
    in_python(
        "stale_lock_kept", "the lock of another boot or of a copied directory is kept",
        "a wait without end", {STOP: 20.0},
    ),
    in_python(
        "fork_unlocks", "a forked child's clean-up unlocks the parent's queue.lock",
        "flock goes with any descriptor", {KILL: 15.0},
    ),
    in_python(
        "preparation_lock_not_waited_for", "a slow lock is ignored after its timeout",
        "two makers of one page", {STOP: 30.0},
    ),
)  # fmt: skip

DURABILITY = (
    in_python(
        "own_page_synced_only", "a flush syncs the active page only",
        "I5, another's messages are lost", {CUT: 15.0},
    ),
    in_python("mark_before_data", "the durable mark is raised before the data", "I5", {CUT: 20.0}),
    in_python(
        "directory_not_synced", "a new page's name is not synced", "I5", {SIM: 30.0},
    ),
    in_python(
        "sync_error_ignored", "a sync that fails passes for one that worked", "I5",
        {FAILED_SYNC: 20.0},
    ),
    in_python(
        "failed_sync_retried", "a sync that failed is tried again", "I5, the data is gone by then",
        {FAILED_SYNC: 20.0},
    ),
    in_python(
        "group_commit_too_early", "a flush comes back when another one is under way", "I5",
        {KILL: 15.0},
    ),
    in_python(
        "durable_only_ignored", "a consumer of what is durable gets what is not", "I5",
        {KILL: 15.0},
    ),
)  # fmt: skip

RECOVERING = (
    in_python(
        "torn_tail_kept", "what is torn is not zeroed", "I4, garbage behind the next frame",
        {STEP: 20.0},
    ),
    in_python(
        "zeroing_not_synced", "what was zeroed is not synced", "I5, it comes back", {CUT: 60.0},
    ),
    in_python("half_batch_kept", "an incomplete batch is kept", "I8", {CUT: 40.0}),
    in_python(
        "damage_cut_off", "damage below the durable mark passes for the tail",
        "acknowledged messages vanish", {DAMAGE: 30.0},
    ),
    in_python(
        "temporaries_kept", "what an interrupted maker left is not removed",
        "400 kills left 45 files", {STEP: 15.0},
    ),
)  # fmt: skip

FILES = (
    in_python(
        "next_page_remade", "a next page is made again though others have mapped it",
        "I10, messages in a file without a name", {STEP: 15.0},
    ),
    in_python(
        "next_page_late", "the end mark leads to a page that has no name yet", "I10", {KILL: 15.0},
    ),
    in_c(
        "sparse_pages", "pages are made without blocks", "SIGBUS on a full disk", {FULL: 20.0},
        {"region.c": [(
            "error = posix_fallocate(fd, (off_t)from, (off_t)(wanted->bytes - from));",
            "error = ftruncate(fd, (off_t)wanted->bytes) == 0 ? 0 : errno;",
        )]},
    ),
    in_c(
        "partial_file_left", "a page that could not be made leaves a part of itself",
        "a full disk stays full", {FULL: 30.0},
        {"region.c": [("        unlinkat(folder, temporary, 0);\n", "")]},
    ),
    in_python("symlinks_followed", "a symbolic link is followed", "safe files", {DAMAGE: 30.0}),
    in_python("fifo_blocks", "opening a FIFO blocks", "safe files", {DAMAGE: 30.0}),
)  # fmt: skip

GROWING = (
    in_c(
        "memory_leak", "the payloads of a batch are never let go", "soak", {GROWTH: 60.0},
        {"batch.c": [("    Py_XDECREF((PyObject *)payloads);\n", "")]},
    ),
    in_python("descriptor_leak", "each roll keeps a descriptor", "soak", {GROWTH: 20.0}),
    in_python("map_leak", "pages that were left stay mapped", "soak", {GROWTH: 20.0}),
    in_python("thread_leak", "a closed queue keeps its thread", "soak", {GROWTH: 20.0}),
)  # fmt: skip

ALL = (*MODELS, *PUBLISHING, *LOCKS, *DURABILITY, *RECOVERING, *FILES, *GROWING)
PLANTS = tuple(plant for plant in ALL if not set(plant.by) & {SIM, DAMAGE})


def named(name: str) -> Plant:
    """Return the bug of that name.

    Raises:
        KeyError: there is none.
    """
    return {plant.name: plant for plant in PLANTS}[name]
