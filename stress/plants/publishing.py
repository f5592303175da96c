"""Bugs planted in the core's publishing and reading, and in the models of it."""

from __future__ import annotations

from stress.plants.plant import (
    BYTES,
    COMBINED,
    DAMAGE,
    KILL,
    SIM,
    STEP,
    in_c,
    in_model,
    switched,
)

WEAK_MEMORY = "weak memory, which x86 hides"

MODELS = (
    in_model(
        "publish_relaxed",
        "the length is not stored with release order",
        WEAK_MEMORY,
        "publish",
        "WEAK_LENGTH",
    ),
    in_model(
        "poll_relaxed",
        "the length is not loaded with acquire order",
        WEAK_MEMORY,
        "publish",
        "WEAK_ACQUIRE",
    ),
    in_model(
        "unlock_relaxed",
        "the lock is released before its last holder's stores are visible",
        WEAK_MEMORY,
        "publish",
        "WEAK_UNLOCK",
    ),
    in_model(
        "no_fence_before_sleep",
        "no full fence between saying that one sleeps and looking again",
        "I7, a lost wake-up",
        "doorbell",
        "NO_CONSUMER_FENCE",
    ),
    in_model(
        "no_fence_before_wake",
        "no full fence between publishing and checking for waiters",
        "I7, a lost wake-up",
        "doorbell",
        "NO_PRODUCER_FENCE",
    ),
    in_model(
        "settled_by_frames",
        "a dead holder's batch is resolved frame by frame",
        "I3, a replay ends inside a batch",
        "publish",
        "RESOLVE_BY_FRAME",
        "TAIL_READER",
    ),
    in_model(
        "page_not_frozen",
        "producers continue in a page after which pages are to be published",
        "I19, frames of other places",
        "bulk_commit",
        "NO_FREEZE",
    ),
    in_model(
        "pages_without_record",
        "pages get their names before a record assigns them to the commit",
        "I19, a producer rolls into them",
        "bulk_commit",
        "RECORD_LATE",
    ),
    in_model(
        "late_turn_stays_begun",
        "only its own process ends a turn, so a late one never ends",
        "a lost wake-up",
        "flush",
        "OWN_TURN_ONLY",
    ),
)

PUBLISHING = (
    switched(
        "no_zero_next",
        "the commit word after a new frame is not zeroed first",
        "I4, a dirty tail shows garbage as a length",
        {STEP: 30.0},
    ),
    switched(
        "length_first",
        "the length is stored before the payload",
        "I2",
        {STEP: 30.0},
    ),
    switched(
        "batch_first_length_first",
        "the first length of a batch is not stored last",
        "I8",
        {STEP: 60.0},
    ),
    switched(
        "no_checksum",
        "the checksum is not checked",
        "a length on disk without its payload",
        {DAMAGE: 30.0},
    ),
    in_c(
        "rows_first_length_first",
        "the first length of an array's rows is not stored last",
        "I8",
        {STEP: 60.0},
        {
            "protocol/frames.c": [
                (
                    "            first_length = word;\n",
                    (
                        "            first_length = word;\n"
                        "            if (batch->items == NULL) {\n"
                        "                pq_store_u32(frame, word);\n"
                        "            }\n"
                    ),
                )
            ]
        },
    ),
    in_c(
        "rows_sums_mixed",
        "the checksums of an array's rows are those of their neighbours",
        "a frame that no producer sent",
        {STEP: 30.0, BYTES: 15.0},
        {
            "protocol/crc32c.c": [
                (
                    "    four(crcs, crc, pieces[0], pieces[1], pieces[2], pieces[3], bytes);",
                    "    four(crcs, crc, pieces[0], pieces[1], pieces[1], pieces[3], bytes);",
                )
            ]
        },
    ),
    in_c(
        "split_tail",
        "position and count are advanced in two stores",
        "I3, they drift apart",
        {STEP: 30.0},
        {
            "protocol/frames.c": [
                (
                    "    tail_advance(at, end, count + item_count);",
                    (
                        "    tail_advance(at, end, count);\n    PQ_KILL_POINT(7);\n"
                        "    tail_advance(at, end, count + item_count);"
                    ),
                )
            ]
        },
    ),
    in_c(
        "tail_first",
        "the tail is advanced before the frames are published",
        "I3, a hole that no reader passes",
        {STEP: 30.0},
        {
            "protocol/frames.c": [
                (
                    "    PQ_KILL_POINT(4);\n",
                    "    tail_advance(at, end, count + item_count);\n    PQ_KILL_POINT(4);\n",
                )
            ]
        },
    ),
    in_c(
        "dead_not_settled",
        "what a dead holder published is laid over",
        "I3",
        {STEP: 30.0},
        {
            "protocol/frames.c": [
                (
                    "        if (found == PQ_READ_NOTHING) {\n            break;",
                    "        if (found != PQ_READ_END) {\n            break;",
                )
            ]
        },
    ),
    in_c(
        "half_batch_page_kept",
        "a page in which a dead holder left half a batch is still used",
        "I8",
        {SIM: 150.0},
        {
            "protocol/frames.c": [
                (
                    (
                        "    if (pq_load_u64(at->meta + PQ_WRITE_META_BATCH_OPEN) > "
                        "at->first_sequence + *count) {"
                    ),
                    "    if (0) {",
                )
            ]
        },
    ),
    in_c(
        "clock_trusted",
        "a timestamp is now, also when the clock was set back",
        "I1",
        {KILL: 30.0},
        {"protocol/frames.c": [("exact : now > last ? now : last;", "exact : now;")]},
    ),
    in_c(
        "at_compared_before_the_lock",
        "`at` is compared with the tail before the lock is taken",
        "I21, two messages sent at one place",
        {COMBINED: 120.0},
        {
            "protocol/frames.c": [("if (at->only_at != 0 &&", "if (0 &&")],
            "python/writer.c": [
                (
                    "    losses lost = {0};",
                    (
                        "    if (terms->only_at != 0 &&\n"
                        "        terms->only_at != pq_tail_sequence(self->meta->base) + 1) {\n"
                        "        pq_event_raise((PyObject *)self, EVENT_OVERTAKEN,\n"
                        "                       (int64_t)pq_tail_sequence(self->meta->base));\n"
                        "        return -1;\n"
                        "    }\n"
                        "    losses lost = {0};"
                    ),
                )
            ],
        },
    ),
    in_c(
        "next_header_half",
        "a next page's header that a killed roll left half written is kept",
        "an unreadable page",
        {STEP: 60.0},
        {"protocol/frames.c": [("checksum == header_checksum(found) &&", "")]},
    ),
    in_c(
        "end_mark_first",
        "the marker is published before the next page has its header",
        "I10",
        {STEP: 30.0},
        {
            "protocol/frames.c": [
                (
                    "    PQ_KILL_POINT(11);\n",
                    (
                        "    uint32_t early = PQ_END_OF_PAGE | END_MARK_BYTES;\n"
                        "    uint32_t early_sum = pq_frame_checksum(at->queue_state, "
                        "last, sequence, "
                        "early);\n"
                        "    memcpy(at->page + position + PQ_FRAME_CHECKSUM, &early_sum, 4);\n"
                        "    memcpy(at->page + position + PQ_FRAME_TIMESTAMP, &last, 8);\n"
                        "    pq_store_u32(at->page + position, early);\n"
                        "    PQ_KILL_POINT(11);\n"
                    ),
                )
            ]
        },
    ),
    in_c(
        "end_mark_without_room",
        "a frame may take the room of the end-of-page marker",
        "I9",
        {BYTES: 15.0},
        {"protocol/frames.c": [("end + END_MARK_BYTES > at->page_bytes", "end > at->page_bytes")]},
    ),
    in_c(
        "length_not_bounded",
        "a length that points out of the page is trusted",
        "I9",
        {BYTES: 15.0},
        {
            "protocol/frames.c": [
                ("length < HEADER || pq_aligned(length) > page_bytes - position", "0"),
            ],
        },
    ),
    in_c(
        "no_queue_in_checksum",
        "the queue's id is no part of the checksums of its frames",
        "I2, a frame of another queue validates",
        {DAMAGE: 60.0},
        {
            "protocol/crc32c.c": [
                (
                    "    return pq_crc_update(PQ_CRC_START, queue_id, PQ_QUEUE_ID_BYTES);",
                    "    return PQ_CRC_START + 0 * queue_id[0];",
                )
            ]
        },
    ),
    in_c(
        "copy_summed_from_source",
        "a payload is copied, then summed where its owner changes it",
        "I2, a checksum of other bytes than the frame has",
        {BYTES: 30.0},
        {
            "protocol/crc32c.c": [
                (
                    "    return path_for(bytes)->copy(state, to, data, bytes);",
                    (
                        "    memcpy(to, data, bytes);\n"
                        "    return path_for(bytes)->update(state, data, bytes);"
                    ),
                )
            ]
        },
    ),
    in_c(
        "frames_in_payloads_taken",
        "after damage any frame that validates is taken for a message",
        "I2, a message that was never sent",
        {DAMAGE: 60.0},
        {
            "protocol/scan.c": [
                ("    for (; ordinal < at->index_cap", "    for (; 0 && ordinal < at->index_cap"),
                ("if (led == TO_END) {", "if (1) {"),
            ]
        },
    ),
    in_c(
        "index_trusted",
        "what the index leads to need not prove itself",
        "I6",
        {DAMAGE: 30.0},
        {
            "protocol/scan.c": [
                (
                    (
                        "pq_check_at(at, *position, at->first_sequence + ordinal, frame) == "
                        "PQ_READ_FRAME &&\n"
                        "           frame->timestamp == timestamp;"
                    ),
                    "pq_frame_peek(at->page, at->page_bytes, *position, frame) == PQ_READ_FRAME;",
                )
            ]
        },
    ),
)
