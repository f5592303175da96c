"""Bugs planted in publishing and rolling: what is stored, synced and written in which order."""

from __future__ import annotations

from pagequeue.bulk import publisher, staged_pages
from pagequeue.integrity import verify
from pagequeue.store import crash_recovery, pending_commit, store
from stress.plants.plant import BYTES, COMBINED, SIM, STEP, in_c, in_python
from stress.plants.rewrite import rewrite

LEAPING = (
    in_python(
        "published_again",
        "the ledger is used for the first pieces of a writer only",
        "I19, a piece of work that is there twice",
        {COMBINED: 30.0},
    ),
    in_c(
        "page_number_before_mark",
        "producers continue in the last page before the marker links it",
        "I19, unreachable messages",
        {STEP: 40.0},
        {
            "protocol/bulk_commit.c": [
                (
                    "    PQ_KILL_POINT(33);\n",
                    (
                        "    pq_store_u64(at->meta + PQ_WRITE_META_PAGE_NUMBER, "
                        "beyond->page_number);\n"
                        ""
                        "    PQ_KILL_POINT(33);\n"
                    ),
                )
            ]
        },
    ),
    in_c(
        "half_batch_passes_for_mark",
        "half a batch at the tail is taken for the end-of-page mark",
        "I19, unreachable pages",
        {BYTES: 15.0},
        {
            "protocol/bulk_commit.c": [
                (
                    (
                        "    pq_frame frame; /* no marker after a partial batch: it "
                        "is never read */\n"
                        ""
                        "    int is_marked = pq_check_at(at, position, sequence, &frame) == "
                        "PQ_READ_END;\n"
                    ),
                    "    int is_marked = pq_load_u32(at->page + position) != 0;\n",
                )
            ]
        },
    ),
    in_c(
        "frozen_page_takes_more",
        "a producer that no longer rolls continues in a frozen page",
        "I19, frames of other places",
        {BYTES: 15.0},
        {
            "protocol/bulk_commit.c": [
                (
                    "at->first_sequence + tail->count + 1);",
                    "at->first_sequence + tail->count);",
                )
            ]
        },
    ),
    in_c(
        "batches_kept_in_stamp",
        "pages get sequences that keep the batches they were staged in",
        "I8, what is lost is whole batches",
        {BYTES: 15.0},
        {
            "protocol/assign_sequences.c": [
                ("            frame->word &= ~(uint32_t)PQ_MORE_OF_BATCH;\n", ""),
            ],
        },
    ),
    in_python(
        "batch_sent_anywhere",
        "a batch is sent without the condition that it gets the sequence of its record",
        "I19, the ledger names other messages",
        {STEP: 60.0},
    ),
    in_python(
        "mark_before_pages",
        "pages are not synced before the mark that leads to them",
        "I19, a power cut leaves a part",
        {SIM: 45.0},
    ),
    in_python(
        "entry_before_mark",
        "the ledger's entry is written before its messages are published",
        "I19, a piece of work that is lost",
        {STEP: 40.0},
    ),
    in_python(
        "given_up_and_not_synced",
        "what a dead publisher left is removed, but not for good",
        "I19, a power cut publishes them after all",
        {SIM: 150.0},
    ),
    in_c(
        "half_a_roll_believed",
        "recovery begins in a page that was never rolled into",
        "I5, a false report of damage",
        {SIM: 150.0},
        {
            "protocol/judge.c": [
                ("if (promise->mark_page > 0 && promise->mark_page < last) {", "if (0) {"),
            ],
        },
    ),
    in_python(
        "mark_not_looked_for",
        "what a dead publisher had published is removed",
        "I3, messages that readers have seen are gone",
        {STEP: 40.0},
    ),
    in_python(
        "fragments_end_recovery",
        "recovery ends at a page that has a fragment and no message",
        "I19, published messages after it are taken for damage",
        {STEP: 60.0},
    ),
    in_python(
        "mark_at_tail_passed_over",
        "verify does not look for an end-of-page mark at the tail",
        "false report of damage",
        {STEP: 90.0},
    ),
    in_python(
        "tail_is_the_end",
        "a cursor after the tail words is taken for one of another file",
        "I3, acknowledged messages are received again",
        {STEP: 60.0},
    ),
)


def batch_sent_anywhere() -> None:
    """Other producers send between the record and the batch."""
    rewrite(
        publisher.BulkPublisher,
        "_send_recorded",
        (
            "end._send_many(whole.payloads, times.tobytes(), tail.sequence, left)",
            "end._send_many(whole.payloads, None, None, left)",
        ),
    )


def published_again() -> None:
    """A later piece is published again."""
    rewrite(
        publisher.BulkPublisher,
        "_publish_once",
        ("    if known is not None:\n", "    if known is not None and piece < 30:\n"),
    )


def mark_before_pages() -> None:
    """Pages are on stable storage only after a flush."""
    rewrite(staged_pages._FilledPage, "assign", ("region.sync(0, len(region))", "pass"))


def entry_before_mark() -> None:
    """The entry is there before the mark is."""
    rewrite(
        publisher.BulkPublisher,
        "_publish_staged",
        (
            "        end._commit_pages(page, header, beyond)",
            (
                "        write_down(folder, prefix, record)\n"
                "        end._commit_pages(page, header, beyond)"
            ),
        ),
    )


def given_up_and_not_synced() -> None:
    """The marker before the next page can be on the disk before the removals are."""
    rewrite(pending_commit, "remove_pages", ("    sync()", "    pass"))


def mark_not_looked_for() -> None:
    """A record always means that its pages were not published."""
    rewrite(
        pending_commit,
        "_is_marked",
        ("return scan.stopped == _core.READ_END and", "return False and"),
    )


def fragments_end_recovery() -> None:
    """The walk goes on only where a page begins with a message."""
    rewrite(
        crash_recovery.CrashRecovery,
        "_following",
        (
            "if not continues(page, header, sequence):",
            (
                "if not continues(page, header, sequence) or (\n"
                "        _core.peek(page, PAGE_START, sequence)[0] != _core.READ_FRAME\n"
                "    ):"
            ),
        ),
    )


def tail_is_the_end() -> None:
    """What a dead producer published and did not count is not looked for."""
    setattr(store.Store, "published_end", property(lambda self: self.tail.sequence))  # noqa: B010


def mark_at_tail_passed_over() -> None:
    """A page that ends in a mark counts as one to which messages can still be added."""
    rewrite(verify._Verification, "_check_frames", ("if at_tail and _core", "if False and _core"))
