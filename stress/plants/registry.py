"""The planted bugs, all of them."""

from __future__ import annotations

from stress.plants.archiving import ARCHIVING
from stress.plants.claiming import CLAIMING
from stress.plants.closings import CLOSINGS
from stress.plants.combining import COMBINING
from stress.plants.compressing import COMPRESSING
from stress.plants.flows import FLOWS
from stress.plants.items import ITEMS
from stress.plants.journaling import JOURNALING
from stress.plants.keeping import KEEPING
from stress.plants.large import LARGE
from stress.plants.lasting import LASTING
from stress.plants.leaping import LEAPING
from stress.plants.misreading import MISREADING
from stress.plants.piping import PIPING
from stress.plants.plant import (
    APART,
    CUT,
    DAMAGE,
    FAILED_SYNC,
    FAULT,
    FULL,
    GROWTH,
    KILL,
    SIM,
    STEP,
    STOP,
    STRANGER,
    Plant,
    in_c,
    in_python,
)
from stress.plants.publishing import MODELS, PUBLISHING
from stress.plants.rings import RINGS
from stress.plants.shipping import SHIPPING
from stress.plants.tasking import TASKING

LOCKS = (
    in_python(
        "replaced_lock_unnoticed",
        "a replaced lock file keeps no process out",
        "two exclusive holders",
        {STOP: 15.0},
    ),
    in_c(
        "lock_stolen",
        "the writers' lock is taken from its holder after a timeout",
        "an overwritten message",
        {STOP: 15.0},
        {
            "python/locked_call.c": [
                (
                    "            return LOCK_TIMEOUT;",
                    "            pq_lock_reset(lock->mutex);\n            start = now;",
                )
            ]
        },
    ),
    in_c(
        "lock_not_robust",
        "the writers' lock is not released when its holder dies",
        "a wait without end",
        {STEP: 30.0},
        {
            "os/writers_lock.c": [
                ("pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST)", "0")
            ]
        },
    ),
    in_c(
        "lock_not_made_consistent",
        "a dead holder's lock is taken over without saying so",
        "no process can lock any more",
        {STEP: 30.0},
        {
            "os/writers_lock.c": [
                ("error = pthread_mutex_consistent((pthread_mutex_t *)lock->mutex);", "error = 0;")
            ]
        },
    ),
    in_python(
        "lock_reset_by_every_opener",
        "the writers' lock is recreated while others have it open",
        "two producers at once",
        {STOP: 15.0},
    ),
    in_python(
        "stale_lock_kept",
        "the lock of another boot or of a copied directory is kept",
        "a wait without end",
        {STOP: 20.0},
    ),
    in_python(
        "fork_unlocks",
        "a forked child's clean-up unlocks the parent's queue.lock",
        "flock is released with any descriptor",
        {KILL: 15.0},
    ),
    in_python(
        "preparation_lock_not_waited_for",
        "a slow lock is ignored after its timeout",
        "two makers of one page",
        {STOP: 30.0},
    ),
    in_python(
        "namespaces_not_compared",
        "threads of every PID namespace use the mutex",
        "a namesake's death frees it",
        {APART: 90.0},
    ),
    in_c(
        "byte_not_locked",
        "a process of another namespace takes any mark for a dead holder's",
        "two producers at once",
        {APART: 60.0},
        {
            "os/writers_lock.c": [
                (
                    (
                        "    int error = lock_byte(lock->fd, F_WRLCK);\n    if (error == 0) {\n"
                        "        PQ_KILL"
                    ),
                    "    int error = 0;\n    if (error == 0) {\n        PQ_KILL",
                )
            ]
        },
    ),
    in_c(
        "dead_mark_kept",
        "the mark of a dead holder is never removed",
        "a wait without end",
        {APART: 60.0},
        {"os/writers_lock.c": [("!= MARK ||", "!= 1 ||")]},
    ),
)

DURABILITY = (
    in_python(
        "own_page_synced_only",
        "a flush syncs the active page only",
        "I5, another's messages are lost",
        {CUT: 15.0},
    ),
    in_python("mark_before_data", "the durable mark is raised before the data", "I5", {CUT: 20.0}),
    in_python(
        "directory_not_synced",
        "a new page's name is not synced",
        "I5",
        {SIM: 30.0},
    ),
    in_python(
        "sync_error_ignored",
        "a failed sync counts as successful",
        "I5",
        {FAILED_SYNC: 20.0},
    ),
    in_python(
        "failed_sync_retried",
        "a sync that failed is tried again",
        "I5, the data is gone by then",
        {FAILED_SYNC: 20.0},
    ),
    in_python(
        "failed_names_believed",
        "a directory whose sync failed is trusted at the next one",
        "I5, names of pages are gone by then",
        {FAILED_SYNC: 60.0},
    ),
    in_python(
        "ready_page_believed",
        "a page prepared before a failed sync is used after it",
        "I5, its name is gone by then",
        {FAILED_SYNC: 60.0},
    ),
    in_c(
        "group_commit_too_early",
        "a waiter that slept during a flush counts as covered",
        "I5",
        {KILL: 15.0},
        {
            "protocol/flush_turn.c": [
                ("failed == 0 && pq_load_u64(", "failed == 0 && deadline + pq_load_u64("),
            ]
        },
    ),
    in_c(
        "dead_flusher_waited_for",
        "a waiter for a flush never checks whether a flush is running",
        "a wait without end",
        {STEP: 40.0},
        {"protocol/flush_turn.c": [("if (now >= deadline ||", "if (ns == 0 ||")]},
    ),
    in_python(
        "durable_only_ignored",
        "a consumer of what is durable gets what is not",
        "I5",
        {KILL: 15.0},
    ),
)

RECOVERING = (
    in_python(
        "verify_skips_indexes",
        "verify does not check indexes",
        "damage that is not found",
        {DAMAGE: 30.0},
    ),
    in_python(
        "conflict_unsaid",
        "salvage takes a message that differs for the same",
        "a silent choice",
        {DAMAGE: 30.0},
    ),
    in_python(
        "torn_tail_kept",
        "torn bytes are not zeroed",
        "I4, garbage after the next frame",
        {STEP: 60.0},
    ),
    in_python(
        "zeroing_not_synced",
        "what was zeroed is not synced",
        "I5, it comes back",
        {SIM: 120.0},
    ),
    in_c(
        "half_batch_kept",
        "an incomplete batch is kept",
        "I8",
        {CUT: 40.0},
        {
            "protocol/judge.c": [
                (
                    "whole_position, verdict->first, scanned->whole_sequence,",
                    "position, verdict->first, scanned->sequence,",
                ),
            ],
        },
    ),
    in_c(
        "damage_cut_off",
        "damage below the durable mark counts as the tail",
        "acknowledged messages vanish",
        {DAMAGE: 30.0},
        {
            "protocol/judge.c": [
                ("if (scanned->whole_sequence < judge->promised || number < mark_page ||", "if ("),
            ],
        },
    ),
    in_python(
        "reader_ends_before_damage",
        "a reader takes what precedes damage for the whole queue",
        "acknowledged messages vanish",
        {DAMAGE: 30.0},
    ),
    in_python(
        "temporaries_kept",
        "what an interrupted maker left is not removed",
        "400 kills left 45 files",
        {STEP: 60.0},
    ),
)

FILES = (
    in_python(
        "lost_head_unsaid",
        "a lost read meta hides a lost first page",
        "a queue that is shorter",
        {DAMAGE: 30.0},
    ),
    in_python(
        "appended_left",
        "repair leaves what was appended to small files",
        "all files alike",
        {DAMAGE: 30.0},
    ),
    in_python(
        "other_case_is_damage",
        "pages of a queue whose prefix has other capitals count as damage",
        "a file belongs to one queue",
        {DAMAGE: 30.0},
    ),
    in_python(
        "umask_kept",
        "the lock file has the permission bits that the umask leaves",
        "safe files",
        {STRANGER: 20.0},
    ),
    in_c(
        "addresses_are_bytes",
        "a payload's format is not searched for objects and pointers",
        "payloads hold no addresses",
        {STRANGER: 20.0},
        {"python/writer_payloads.c": [('"OPX&z"', '"X&z"')]},
    ),
    in_python("owners_not_looked_at", "files of others are taken", "safe files", {STRANGER: 20.0}),
    in_python(
        "next_page_remade",
        "a next page is recreated though others have mapped it",
        "I10, messages in a file without a name",
        {STEP: 15.0},
    ),
    in_python(
        "next_page_late",
        "the marker links to a page that has no name yet",
        "I10",
        {KILL: 15.0},
    ),
    in_c(
        "sparse_pages",
        "pages are made without blocks",
        "SIGBUS on a full disk",
        {FULL: 20.0},
        {
            "python/mapped_file.c": [
                (
                    "error = posix_fallocate(fd, (off_t)from, (off_t)(wanted->bytes - from));",
                    "error = ftruncate(fd, (off_t)wanted->bytes) == 0 ? 0 : errno;",
                )
            ]
        },
    ),
    in_c(
        "partial_file_left",
        "a page that could not be made leaves a part of itself",
        "a full disk stays full",
        {FULL: 30.0},
        {"python/mapped_file.c": [("        unlinkat(folder, temporary, 0);\n", "")]},
    ),
    in_python(
        "all_meta_in_parts",
        "the allMeta is written again in place, in parts",
        "an unusable queue",
        {STEP: 300.0},
    ),
    in_python("symlinks_followed", "a symbolic link is followed", "safe files", {DAMAGE: 30.0}),
    in_python("fifo_blocks", "opening a FIFO blocks", "safe files", {DAMAGE: 30.0}),
)

GROWING = (
    in_c(
        "memory_leak",
        "the payloads of a batch are never released",
        "soak",
        {GROWTH: 60.0},
        {
            "python/payload_spans.c": [
                (
                    "if (payload == NULL || PyList_SetItem(",
                    "Py_XINCREF(payload);\n        if (payload == NULL || PyList_SetItem(",
                )
            ]
        },
    ),
    in_python("descriptor_leak", "each roll keeps a descriptor", "soak", {GROWTH: 20.0}),
    in_python("map_leak", "pages that were left stay mapped", "soak", {GROWTH: 20.0}),
    in_python(
        "fill_under_flushes",
        "memory of the next page is filled ahead also for who flushes often",
        "a flush writes a multiple of what was sent",
        {GROWTH: 20.0},
    ),
    in_python("thread_leak", "a closed queue keeps its thread", "soak", {GROWTH: 20.0}),
)

FAILING = (
    in_python(
        "forget_to_latch",
        "a failed sync stops no sender",
        "I5",
        {FAILED_SYNC: 30.0},
    ),
    in_python(
        "bare_errors",
        "errors of the system are passed on unchanged",
        "typed errors",
        {FAULT: 30.0},
    ),
    in_python("keep_descriptors", "a flush leaves a descriptor open", "limits", {FAULT: 30.0}),
    in_python(
        "hide_full_disk",
        "a full disk is reported as another error",
        "typed errors",
        {FAULT: 30.0},
    ),
)

PLANTS = (
    *MODELS,
    *PUBLISHING,
    *LOCKS,
    *DURABILITY,
    *RECOVERING,
    *FILES,
    *FAILING,
    *GROWING,
    *KEEPING,
    *CLAIMING,
    *PIPING,
    *FLOWS,
    *ITEMS,
    *COMPRESSING,
    *LEAPING,
    *SHIPPING,
    *CLOSINGS,
    *TASKING,
    *COMBINING,
    *ARCHIVING,
    *LASTING,
    *MISREADING,
    *JOURNALING,
    *LARGE,
    *RINGS,
)


def named(name: str) -> Plant:
    """Return the bug of that name.

    Raises:
        KeyError: the name is unknown.
    """
    return {plant.name: plant for plant in PLANTS}[name]
