"""Bugs planted in Python: each function puts one into the library of this process.

Named by `PAGEQUEUE_STRESS_PATCH=stress.plants.patches:NAME`; called before any queue is opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import Any

from pagequeue import errors
from pagequeue.integrity import inspection, repair, salvage, verify
from pagequeue.integrity import rewrite_unsynced as rewriting
from pagequeue.judge import diagnosis
from pagequeue.meta import write_meta
from pagequeue.queue import reading
from pagequeue.store import creation, flush, power_loss_recovery, roll
from pagequeue.system import descriptors, directory, file_lock, replaced_file
from pagequeue.util import worker
from stress.fault_plants import (  # noqa: F401  planted by name
    bare_errors,
    forget_to_latch,
    hide_full_disk,
    keep_descriptors,
)
from stress.plants.archiving import hour_is_one_slice  # noqa: F401  planted by name
from stress.plants.claim_patches import (  # noqa: F401  planted by name
    dead_letter_forgotten,
    living_owners_robbed,
    only_snapshot_overwritten,
    rejected_again,
    rejected_and_gone,
    rejected_twice,
    table_of_another_boot_believed,
)
from stress.plants.closings import (  # noqa: F401  planted by name
    directory_held_as_a_number,
    events_locked_by_ctrl_c,
    get_waits_in_a_closed_queue,
    opened_before_it_is_owned,
    two_workers_started,
)
from stress.plants.combining import (  # noqa: F401  the same
    clock_believed_at_once,
    closed_file_says_nothing,
    closed_is_damaged,
    imported_beside_a_fork,
    job_fails_for_ever,
    manifest_looked_for_once,
    moved_directory_unnoticed,
)
from stress.plants.compressing import (  # noqa: F401  the same
    compressing_unlocked,
    end_mark_left_out,
    first_word_not_stored,
    index_away_too_early,
    index_left_for_good,
    larger_than_its_page_is_damage,
    memory_given_twice,
    page_away_for_a_moment,
    written_and_not_compared,
)
from stress.plants.flows import (  # noqa: F401  the same
    bell_never_rings,
    flow_acks_what_it_hands_out,
    flow_ends_with_its_upstream,
    flow_forgets_the_last_message,
    last_message_not_kept,
    name_let_go_before_the_pump,
    sent_behind_a_cancellation,
    taken_before_a_suspension,
)
from stress.plants.item_patches import (  # noqa: F401  planted by name
    dead_workers_unnoticed,
    done_when_got,
    large_gone_when_got,
    large_left_for_ever,
    large_swept_while_others_read,
    never_done,
    wrong_one_done,
)
from stress.plants.journaling import (  # noqa: F401  the same
    digest_unchecked,
    log_kept_for_the_newest_only,
    pin_before_rename,
    snapshot_before_flush,
    snapshot_beyond_tail_believed,
    snapshot_not_flushed,
    update_not_conditional,
)
from stress.plants.keeping import (  # noqa: F401  the same
    ack_before_receive,
    acknowledged_by_one,
    cursor_not_lowered,
    cursor_not_synced_before_head,
    expired_without_head,
    head_moved_after_files,
    head_not_synced,
    head_page_first,
    lowered_cursor_not_synced,
    moved_consumer_not_looked_at,
    new_head_page_not_synced,
    page_emptied_before_it_goes,
    page_not_held,
    place_found_without_lock,
    room_never_asked_for,
    trim_is_quadratic,
    trim_without_lock,
    unacked_not_looked_at,
)
from stress.plants.large import (  # noqa: F401  the same
    filled_out_of_order,
    half_a_message_kept,
    live_writers_pages_removed,
    next_page_counted,
    staged_pages_not_synced,
    visible_before_its_last_fragment,
    wrong_fragment_joined,
)
from stress.plants.lasting import (  # noqa: F401  the same
    boot_not_asked_for,
    cursor_of_any_name,
    empty_page_given_up,
    group_closed_without_state,
    own_clock_believed,
    wrong_headers_passed_over,
)
from stress.plants.leaping import (  # noqa: F401  the same
    batch_sent_anywhere,
    entry_before_mark,
    fragments_end_recovery,
    given_up_and_not_synced,
    mark_at_tail_passed_over,
    mark_before_pages,
    mark_not_looked_for,
    published_again,
    tail_is_the_end,
)
from stress.plants.misreading import (  # noqa: F401  the same
    deep_record_ends_bare,
    record_believed,
)
from stress.plants.piping import (  # noqa: F401  the same
    acknowledged_before_it_is_written,
    closed_streams_left_closed,
    written_is_taken,
)
from stress.plants.rewrite import rewrite
from stress.plants.rings import (  # noqa: F401  the same
    blocks_believed,
    ring_forgets_groups,
    ring_keeps_its_old_head,
    ring_raises_no_cursor,
)
from stress.plants.shipping import (  # noqa: F401  the same
    consumer_before_manifest,
    copies_not_synced,
    manifest_before_copies,
    noted_after_a_failed_sync,
    published_and_not_flushed,
    refused_though_published,
    replica_ends_inside,
)
from stress.plants.tasking import (  # noqa: F401  the same
    claim_without_a_version,
    dead_worker_without_backoff,
    dependency_not_compared,
    lease_by_the_clock,
    snapshot_forgets_deliveries,
    successor_apart,
)

PARTS = 40
"""So many lines to die at, of some 1,700, that a short run reaches one of them."""

# --- making a queue -------------------------------------------------------------------------------


def all_meta_in_parts() -> None:
    """Only lines of one function lie between the first part and the last: dying there shows it."""
    parts = [f"        file.write(whole[{i} * size : {i + 1} * size])\n" for i in range(PARTS)]
    rewrite(
        creation.Creation,
        "begin",
        (
            "    write_all_meta(folder, prefix, meta)\n",
            (
                "    write_all_meta(folder, prefix, meta)\n"
                "    whole = meta.encode()\n"
                f"    size = len(whole) // {PARTS} + 1\n"
                "    name = fmt.all_meta_name(prefix)\n"
                '    with open(folder.full(name), "r+b", buffering=0) as file:\n'
                "        file.truncate(0)\n" + "".join(parts)
            ),
        ),
    )


# --- stable storage -------------------------------------------------------------------------------


def own_page_synced_only() -> None:
    """A flush syncs the active page, not all from the durable mark on."""
    rewrite(
        flush.Flusher,
        "_sync_to_tail",
        ("first = self._first(known)", "first = tail.page_number"),
    )


def mark_before_data() -> None:
    """The durable mark is raised before the pages are synced."""
    rewrite(
        flush.Flusher,
        "_sync_to_tail",
        ("number = first\n", "number = first\n    meta.set_durable(tail.sequence, first)\n"),
    )


def directory_not_synced() -> None:
    """New pages are synced, their names are not."""
    rewrite(flush.Flusher, "_sync_to_tail", ("self._folder.sync()", "pass"))


def sync_error_ignored() -> None:
    """A failed sync counts as successful."""
    rewrite(
        flush.Flusher,
        "_sync_page",
        (
            "        os.fdatasync(fd)",
            "        try:\n            os.fdatasync(fd)\n        except OSError:\n            pass",
        ),
    )


def failed_sync_retried() -> None:
    """A sync that fails is tried again at the next flush, as if the system still had the data."""
    rewrite(
        flush.Flusher,
        "_sync_to_tail",
        ("meta.latch(error.errno or errno.EIO, number)", "raise self.failed(error.errno)"),
    )


def failed_names_believed() -> None:
    """A sync of the directory that fails stops only the call that asked for it."""
    rewrite(directory.Directory, "sync", ("if self._failed is not None:", "if False:"))


def ready_page_believed() -> None:
    """After a failed sync, a page is used whose name that sync can have dropped."""
    rewrite(rewriting, "_try_rewrite", ("if not is_ready:", "if True:"))


def durable_only_ignored() -> None:
    """A consumer of what is durable gets what is not."""
    rewrite(
        reading, "consumer", ("store, durable_only=durable_only,", "store, durable_only=False,")
    )


# --- recovery -------------------------------------------------------------------------------------


def torn_tail_kept() -> None:
    """Recovery finds the true tail and leaves the torn bytes after it."""
    rewrite(
        power_loss_recovery.Recovery,
        "_cut",
        (
            "zeroed = zero_after(self.folder, page_name, region, position)",
            "zeroed = 0",
        ),
    )


def zeroing_not_synced() -> None:
    """What recovery zeroed can come back at the next power cut."""
    rewrite(
        power_loss_recovery.Recovery,
        "_check_frames",
        ("    self._sync(*self._files(number))\n    self._sync()\n", "    self._sync()\n"),
    )


def reader_ends_before_damage() -> None:
    """A read-only reader ends before damage, even below the durable mark."""
    rewrite(
        diagnosis.Diagnosis,
        "readable",
        (
            "        raise error_for(self.evidence, refusal)\n",
            (
                "        if not self.pages:\n"
                "            raise error_for(self.evidence, refusal)\n"
                "        page = self.pages[-1]\n"
                "        at, end, time, *_ = page.scan\n"
                "        return Tail(page.number, at, end - page.first, page.first, time)\n"
            ),
        ),
    )


def other_case_is_damage() -> None:
    """Verify takes the pages of another queue for misnamed pages of this one."""
    rewrite(inspection, "_check_names", ("or owner not in others", "or owner in others"))


def lost_head_unsaid() -> None:
    """The first page that is left counts as the beginning of the queue."""
    rewrite(
        power_loss_recovery.Recovery, "_read_meta", ("self._refuse_lost_head(head_page)", "pass")
    )


def appended_left() -> None:
    """Repair does not cut off what was appended."""
    rewrite(repair._Repair, "run", ("self._cut_appended(meta)", "pass"))


def temporaries_kept() -> None:
    """What an interrupted maker of a file left stays there."""
    rewrite(power_loss_recovery.Recovery, "_sweep", ("self.folder.remove(name)", "pass"))


# --- locks ----------------------------------------------------------------------------------------


def lock_reset_by_every_opener() -> None:
    """An opener recreates the writers' lock although other processes have the queue open."""
    rewrite(
        write_meta.WriteMeta,
        "check_lock",
        ("check_lock_abi(", "self.mark_recovered()\n    check_lock_abi("),
    )


def namespaces_not_compared() -> None:
    """A process of another PID namespace takes the mutex, as its namesakes do."""
    setattr(write_meta.WriteMeta, "is_foreign", False)  # noqa: B010  mypy forbids it in plain words


def stale_lock_kept() -> None:
    """The lock of another boot, or of the queue that this one is a copy of, is not recreated."""
    rewrite(
        write_meta.WriteMeta,
        "mark_recovered",
        (
            "_core.reset_lock(self.region)",
            (
                "if not any(self.region.read(field_of(fmt.WRITE_META, 'mutex'), 64)):\n"
                "        _core.reset_lock(self.region)"
            ),
        ),
    )


def fork_unlocks() -> None:
    """A forked child unlocks what it inherited, and by that the parent's."""
    numbers: list[int] = []
    forget_all = vars(descriptors)["_forget_all"]

    def before() -> None:
        numbers.clear()
        for descriptor in list(vars(descriptors)["_all"]):
            with contextlib.suppress(errors.PageQueueError), descriptor as fd:
                numbers.append(fd)

    def forget_and_unlock() -> None:
        for fd in numbers:
            fcntl.flock(fd, fcntl.LOCK_UN)
        forget_all()

    os.register_at_fork(before=before)
    setattr(descriptors, "_forget_all", forget_and_unlock)  # noqa: B010  mypy forbids it in plain words


def preparation_lock_not_waited_for() -> None:
    """A process that waited too long for a slow lock continues without it."""
    rewrite(
        file_lock.FileLock, "_wait", ("raise errors.LockTimeout(", "return errors.LockTimeout(")
    )


# --- pages and files ------------------------------------------------------------------------------


def next_page_remade() -> None:
    """An existing next page is recreated, though another process can have mapped it."""
    rewrite(
        roll.Roller,
        "_make",
        ("if self._folder.exists(fmt.page_name(self._prefix, number)):", "if False:"),
    )


def next_page_late() -> None:
    """The end-of-page marker links to a page that has no name yet."""
    make_page = vars(roll)["make_page"]

    def late(folder: Any, prefix: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        made = make_page(folder, prefix, *args, **options)
        name = f"{prefix}-{made.number:010}.page"
        with folder.descriptor as fd:
            os.rename(name, f"{name}.late", src_dir_fd=fd, dst_dir_fd=fd)
            where = os.dup(fd)

        def rename() -> None:
            os.rename(f"{name}.late", name, src_dir_fd=where, dst_dir_fd=where)
            os.close(where)

        threading.Timer(0.002, rename).start()
        return made

    setattr(roll, "make_page", late)  # noqa: B010  mypy forbids it in plain words


def symlinks_followed() -> None:
    """A symbolic link in the place of a file is followed."""
    rewrite(
        directory.Directory,
        "open",
        ("os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK", "os.O_CLOEXEC | os.O_NONBLOCK"),
    )


def fifo_blocks() -> None:
    """Opening a FIFO that replaced a file waits for its other end."""
    rewrite(
        directory.Directory,
        "open",
        ("os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK", "os.O_NOFOLLOW | os.O_CLOEXEC"),
    )


def umask_kept() -> None:
    """The lock file gets the permission bits that the umask leaves."""
    rewrite(directory.Directory, "_open_or_make", ("self._makes.give(fd)", "pass"))


def owners_not_looked_at() -> None:
    """Files of other users are taken."""
    setattr(directory, "check_file", lambda *_args, **_options: None)  # noqa: B010  the same


def replaced_lock_unnoticed() -> None:
    """A replaced lock file keeps no process out, and goes unchecked."""
    rewrite(replaced_file.IdentityGuard, "check", ("if self._found is None:", "if False:"))


def verify_skips_indexes() -> None:
    """Verify does not compare the indexes with the pages."""
    setattr(verify._Verification, "_index", lambda *_: None)  # noqa: B010  the same


def conflict_unsaid() -> None:
    """Salvage takes messages with one sequence and different contents for the same."""
    rewrite(
        salvage._Salvage,
        "_compare",
        (
            "noted = self.report.duplicates if same else self.report.conflicts",
            "noted = self.report.duplicates",
        ),
    )


# --- what is never released -----------------------------------------------------------------------


def descriptor_leak() -> None:
    """Each new page that is synced keeps a descriptor."""
    rewrite(
        flush.Flusher,
        "forget_page",
        ("page.close()", 'self.__dict__.setdefault("kept", []).append(page)'),
    )


def map_leak() -> None:
    """Maps of pages that were left are never dropped."""
    kept: list[object] = []

    def keep(_self: worker.Background, held: list[object]) -> None:
        kept.extend(held)

    setattr(worker.Background, "drop", keep)  # noqa: B010  mypy forbids it in plain words


def fill_under_flushes() -> None:
    """A page is filled although the durable mark moves inside the active one."""
    setattr(write_meta.WriteMeta, "is_durable_inside", lambda _self, _tail: False)  # noqa: B010


def thread_leak() -> None:
    """Closing a queue leaves its worker thread running."""
    rewrite(worker.Background, "end", ("self._jobs.put(None)\n", "return\n"))
    setattr(worker.Background, "await_end", lambda _self, _seconds: None)  # noqa: B010
