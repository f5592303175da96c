"""Bugs planted in Python: each function puts one into the library of this process.

Named by `PAGEQUEUE_STRESS_PATCH=stress.plants.patches:NAME`; called before any queue is opened.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from pagequeue import (
    background,
    files,
    flush,
    locks,
    queue,
    recover,
    roll,
    salvage,
    verify,
    watching,
    words,
)
from stress.fault_plants import (  # noqa: F401  planted by name
    bare_errors,
    forget_to_latch,
    hide_full_disk,
    keep_descriptors,
)
from stress.plants.claim_patches import (  # noqa: F401  planted by name
    dead_letter_forgotten,
    living_owners_robbed,
    only_snapshot_overwritten,
    table_of_another_boot_believed,
)
from stress.plants.compressing import (  # noqa: F401  the same
    compressing_unlocked,
    end_mark_left_out,
    first_word_not_stored,
    memory_given_twice,
    page_away_for_a_moment,
    written_and_not_compared,
)
from stress.plants.flows import (  # noqa: F401  the same
    bell_never_rings,
    flow_acks_what_it_hands_out,
    flow_ends_with_its_upstream,
    flow_forgets_the_last_message,
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
from stress.plants.keeping import (  # noqa: F401  the same
    ack_before_receive,
    cursor_not_lowered,
    cursor_not_synced_before_head,
    expired_without_head,
    head_moved_after_files,
    head_not_synced,
    head_page_first,
    lowered_cursor_not_synced,
    new_head_page_not_synced,
    page_emptied_before_it_goes,
    page_not_held,
    place_found_without_lock,
    room_never_asked_for,
    trim_without_lock,
    unacked_not_looked_at,
)
from stress.plants.leaping import (  # noqa: F401  the same
    entry_before_mark,
    given_up_and_not_synced,
    half_a_roll_believed,
    mark_before_pages,
    mark_not_looked_for,
)
from stress.plants.rewrite import rewrite

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
    """A sync that fails passes for one that worked."""
    rewrite(
        flush.Flusher,
        "_sync_page",
        ("os.fdatasync(fd)", "try:\n        os.fdatasync(fd)\n    except OSError:\n        pass"),
    )


def failed_sync_retried() -> None:
    """A sync that fails is tried again at the next flush, as if the system still had the data."""
    rewrite(
        flush.Flusher,
        "_sync_to_tail",
        ("meta.latch(error.errno or errno.EIO, number)", "raise self.failed(error.errno)"),
    )


def durable_only_ignored() -> None:
    """A consumer of what is durable gets what is not."""
    rewrite(
        queue.Queue, "consumer", ("store, durable_only=durable_only,", "store, durable_only=False,")
    )


# --- recovery -------------------------------------------------------------------------------------


def torn_tail_kept() -> None:
    """Recovery finds the true tail and leaves what is torn behind it."""
    rewrite(recover.Recovery, "_cut", ("zeroed = region.zero(scan.whole_position)", "zeroed = 0"))


def zeroing_not_synced() -> None:
    """What recovery zeroed can come back at the next power cut."""
    rewrite(
        recover.Recovery,
        "_scan",
        ("    self._sync(*self._names(number))\n    self._sync()\n", "    self._sync()\n"),
    )


def half_batch_kept() -> None:
    """Recovery keeps the whole frames of a batch whose end is lost."""
    rewrite(
        recover.Recovery,
        "_scan_page",
        (
            "return region, index, scan",
            (
                "return region, index, scan._replace(whole_position=scan.position, "
                "whole_sequence=scan.sequence, whole_timestamp=scan.timestamp)"
            ),
        ),
    )


def damage_cut_off() -> None:
    """Damage below the durable mark passes for a torn tail."""
    rewrite(recover.Recovery, "_scan_page", ("if first < durable:", "if False:"))
    rewrite(
        recover.Recovery,
        "_scan",
        ("if scan.whole_sequence < durable:", "if False:"),
    )


def temporaries_kept() -> None:
    """What an interrupted maker of a file left stays there."""
    rewrite(recover.Recovery, "_sweep", ("self.folder.remove(name)", "pass"))


# --- locks ----------------------------------------------------------------------------------------


def lock_reset_by_every_opener() -> None:
    """An opener makes the writers' lock anew although others have the queue open."""
    rewrite(
        words.WriteMeta, "check_lock", ("if self.lock_abi", "self.settle()\n    if self.lock_abi")
    )


def stale_lock_kept() -> None:
    """The lock of another boot, or of the queue that this one is a copy of, is not made anew."""
    rewrite(
        words.WriteMeta,
        "settle",
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
    rewrite(
        locks.FileLock,
        "forget",
        ("self._file.close()", "portalocker.unlock(self._file)\n    self._file.close()"),
    )


def preparation_lock_not_waited_for() -> None:
    """Whoever waited too long for a slow lock goes on without it."""
    rewrite(locks.FileLock, "_wait", ("raise errors.LockTimeout(", "return errors.LockTimeout("))


# --- pages and files ------------------------------------------------------------------------------


def next_page_remade() -> None:
    """A next page that is there is made again, though another process can have mapped it."""
    rewrite(
        roll.Roller,
        "_make",
        ("if self._folder.exists(fmt.page_name(self._prefix, number)):", "if False:"),
    )


def next_page_late() -> None:
    """The end mark leads to a page that has not got its name yet."""
    make_page = vars(roll)["make_page"]

    def late(folder: Any, prefix: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        made = make_page(folder, prefix, *args, **options)
        name = f"{prefix}-{made.number:010}.page"
        os.rename(name, f"{name}.late", src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        where = os.dup(folder.fd)

        def rename() -> None:
            os.rename(f"{name}.late", name, src_dir_fd=where, dst_dir_fd=where)
            os.close(where)

        threading.Timer(0.002, rename).start()
        return made

    setattr(roll, "make_page", late)  # noqa: B010  mypy forbids it in plain words


def symlinks_followed() -> None:
    """A symbolic link in the place of a file is followed."""
    rewrite(
        files.Folder,
        "open",
        ("os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK", "os.O_CLOEXEC | os.O_NONBLOCK"),
    )


def fifo_blocks() -> None:
    """Opening a FIFO that somebody put in the place of a file waits for its other end."""
    rewrite(
        files.Folder,
        "open",
        ("os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK", "os.O_NOFOLLOW | os.O_CLOEXEC"),
    )


def umask_kept() -> None:
    """The lock file gets the permission bits that the umask leaves."""
    rewrite(files.Folder, "_open_or_make", ("os.fchmod(fd, self._file_mode)", "pass"))


def owners_not_looked_at() -> None:
    """Files of other users are taken."""
    setattr(files, "check_file", lambda *_args, **_options: None)  # noqa: B010  the same


def replaced_lock_unnoticed() -> None:
    """A lock file that was replaced keeps nobody out, and nobody looks."""
    rewrite(watching.Watched, "check", ("if not self._replaced and", "if False and"))


def verify_skips_indexes() -> None:
    """Verify does not compare the indexes with the pages."""
    setattr(verify._Verification, "_index", lambda *_: None)  # noqa: B010  the same


def conflict_unsaid() -> None:
    """Salvage takes a message that stands there twice, and differs, for the same."""
    rewrite(
        salvage._Salvage,
        "_compare",
        (
            "noted = self.report.duplicates if same else self.report.conflicts",
            "noted = self.report.duplicates",
        ),
    )


# --- what is held for ever ------------------------------------------------------------------------


def descriptor_leak() -> None:
    """Each new page that is synced keeps a descriptor."""
    rewrite(flush.Flusher, "_forget_page", ("let_go(fd)", "pass"))


def map_leak() -> None:
    """Maps of pages that were left are never dropped."""
    kept: list[object] = []

    def keep(_self: background.Background, held: list[object]) -> None:
        kept.extend(held)

    setattr(background.Background, "drop", keep)  # noqa: B010  mypy forbids it in plain words


def thread_leak() -> None:
    """A queue that is closed leaves its worker thread behind."""
    rewrite(background.Background, "close", ("self._jobs.put(None)\n", "return\n"))
