/* Claims: made, acknowledged, returned and extended, on top of protocol/group_table.c. All under
 * the lock.
 *
 * Each function states step by step what a death in it leaves; links it leaves wrong are rebuilt.
 */
#include "protocol/group_table.h"

/* --- claiming --------------------------------------------------------------------------------- */

static uint64_t new_id(pq_table *table) {
    uint64_t id = get_u64(META(CLAIM_ID)) + 1;
    put_u64(META(CLAIM_ID), id);
    IN_ORDER(); /* Dies after this: the id is never used. */
    return id;
}

static void finish(pq_table *table, uint32_t slot, uint8_t *record) {
    set_word(record, 0, PQ_RECORD_FREE); /* Dies after this: it is done, and links are rebuilt. */
    PQ_KILL_POINT(23);
    pq_table_unlink(table, slot, record);
    pq_table_raise_floor(table);
}

static void out_of(const uint8_t *record, uint32_t slot, uint64_t id, pq_claim *out) {
    out->slot = slot;
    out->id = id;
    out->deliveries = get_u32(OF(record, DELIVERIES));
    out->cause = get_u32(OF(record, CAUSE));
    out->sequence = get_u64(OF(record, SEQUENCE));
    out->place = get_u64(OF(record, PLACE));
}

#define SPREAD_SHIFT 2 /* up to a quarter of a delay is left out */
#define MIX 0x9e3779b97f4a7c15u

static int is_spent(const pq_retry *retry, uint32_t deliveries) {
    return retry->deliveries_max != 0 && deliveries >= retry->deliveries_max;
}

int64_t pq_retry_delay(const pq_retry *retry, uint64_t sequence, uint32_t deliveries) {
    if (deliveries == 0 || is_spent(retry, deliveries)) {
        return 0;
    }
    int64_t delay = retry->first;
    for (uint32_t i = 1; i < deliveries && delay > 0 && delay < retry->most; i++) {
        delay = delay > retry->most / 2 ? retry->most : delay * 2;
    }
    delay = delay < retry->most ? delay : retry->most;
    uint64_t mixed = ((sequence << 8) + deliveries) * MIX >> 48;
    return delay - (int64_t)(((uint64_t)delay >> (SPREAD_SHIFT + 16)) * mixed);
}

/* A claim whose lease ended waits from here on. Dies before the word: its lease ended, still. */
static void end_lease(const pq_claimant *by, uint8_t *record) {
    int64_t delay = pq_retry_delay(&by->retry, get_u64(OF(record, SEQUENCE)),
                                   get_u32(OF(record, DELIVERIES)));
    put_u64(OF(record, DUE), get_u64(OF(record, LEASE_END)) + (uint64_t)delay);
    put_u32(OF(record, CAUSE), PQ_CAUSE_LEASE);
    set_word(record, get_u64(OF(record, WORD)) >> 2, PQ_RECORD_WAITS);
    PQ_KILL_POINT(27);
}

/* Claim a record that waits and is due.
 *
 * 1. The new claim's fields. Dies here: it waits, and is due; its count may be one higher, as if the
 *    claimer had died a moment later.
 * 2. The word: it is claimed. Dies here: the lease, or the owner's death, ends it. */
static void claim_again(pq_table *table, const pq_claimant *by, uint32_t slot, uint8_t *record,
                        pq_claim *out) {
    uint64_t id = new_id(table);
    PQ_KILL_POINT(24);
    uint32_t deliveries = get_u32(OF(record, DELIVERIES));
    out->is_spent = is_spent(&by->retry, deliveries);
    put_u64(OF(record, LEASE_END), (uint64_t)by->lease_end);
    put_u64(OF(record, OWNER), by->owner);
    if (!out->is_spent && deliveries < UINT32_MAX) {
        put_u32(OF(record, DELIVERIES), deliveries + 1);
    }
    set_word(record, id, PQ_RECORD_CLAIMED);
    PQ_KILL_POINT(25);
    out_of(record, slot, id, out);
    if (by->lease_end < (int64_t)get_u64(META(SCAN_AT))) {
        put_u64(META(SCAN_AT), (uint64_t)by->lease_end);
    }
}

/* Its worker died, or hung: it may do that again, and others that were claimed with it would count
 * one more delivery each time. */
static int comes_alone(uint32_t cause) {
    return cause == PQ_CAUSE_DEATH || cause == PQ_CAUSE_LEASE;
}

/* The outstanding record with the lowest sequence that is due. Each is checked once, until time
 * has passed or one was returned: `scan_from` remembers how far, `scan_at` when to begin again. */
static pq_claim_result claim_due(pq_table *table, const pq_claimant *by, pq_claim *out) {
    uint32_t link = get_u32(META(SCAN_FROM));
    int64_t at = (int64_t)get_u64(META(SCAN_AT));
    if (by->now >= at) {
        link = get_u32(META(FIRST));
        at = INT64_MAX;
    } else if (link == 0) {
        return PQ_CLAIM_NONE;
    }
    uint8_t *record;
    for (uint32_t steps = 0; (record = linked(table, link)) != NULL; steps++) {
        if (state_of(record) == PQ_RECORD_CLAIMED && when_of(record) <= by->now) {
            end_lease(by, record);
        }
        int64_t when = when_of(record);
        if (when <= by->now || steps > table->capacity) {
            break;
        }
        at = when < at ? when : at;
        link = get_u32(OF(record, FOLLOWING));
    }
    put_u64(META(SCAN_AT), (uint64_t)at);
    if (record != NULL && by->has_others && comes_alone(get_u32(OF(record, CAUSE)))) {
        put_u32(META(SCAN_FROM), link);
        return PQ_CLAIM_ALONE;
    }
    put_u32(META(SCAN_FROM), record == NULL ? 0 : get_u32(OF(record, FOLLOWING)));
    if (record == NULL || state_of(record) == PQ_RECORD_FREE) {
        return PQ_CLAIM_NONE;
    }
    claim_again(table, by, link - 1, record, out);
    return PQ_CLAIM_DONE;
}

/* The frame of the next new message, if its page is the one that is mapped. */
static pq_claim_result find_new(pq_table *table, const pq_claimant *by, uint64_t sequence,
                                uint64_t place, pq_frame *frame) {
    uint64_t position = (place & ((1ull << PQ_PLACE_SHIFT) - 1)) * PQ_FRAME_ALIGN_BYTES;
    if (by->page == NULL || place >> PQ_PLACE_SHIFT != by->page_number) {
        return PQ_CLAIM_MOVED;
    }
    switch (pq_frame_peek(by->page, by->page_bytes, position, frame)) {
    case PQ_READ_FRAME: return PQ_CLAIM_DONE;
    case PQ_READ_NOTHING: {
        pq_tail tail;
        pq_tail_load(by->meta, &tail);
        int is_hole = tail.first_sequence + tail.count > sequence &&
                      pq_load_u32(by->page + position) == 0;
        return is_hole ? PQ_CLAIM_DAMAGED : PQ_CLAIM_NONE;
    }
    case PQ_READ_END:
        if (pq_frame_check(by->page, by->page_bytes, by->queue_state, position, sequence, frame) !=
            PQ_READ_END) {
            return PQ_CLAIM_DAMAGED;
        }
        pq_table_advance(table, sequence,
                (by->page_number + 1) << PQ_PLACE_SHIFT |
                    PQ_PAGE_HEADER_BYTES / PQ_FRAME_ALIGN_BYTES);
        return PQ_CLAIM_MOVED;
    default: return PQ_CLAIM_DAMAGED;
    }
}

/* Claim the next new message.
 *
 * 1. A free record gets the claim, its word last. Dies here: it is void, because the next new
 *    message is still this one.
 * 2. The next new message is the following one. Dies here: claimed; the lease, or the owner's
 *    death, ends it.
 * 3. Links. Dies here: they are rebuilt.
 */
static pq_claim_result claim_new(pq_table *table, const pq_claimant *by, pq_claim *out) {
    uint64_t place, sequence = pq_table_next(table, &place);
    pq_frame frame;
    pq_claim_result found = find_new(table, by, sequence, place, &frame);
    if (found != PQ_CLAIM_DONE) {
        return found;
    }
    uint64_t next_place = by->page_number << PQ_PLACE_SHIFT | frame.next / PQ_FRAME_ALIGN_BYTES;
    *out = (pq_claim){.sequence = sequence,
                      .place = place,
                      .deliveries = 1,
                      .payload_bytes = frame.payload_bytes};
    if (by->acknowledges && !pq_is_large(frame.word)) {
        pq_table_advance(table, sequence + 1, next_place);
        if (get_u32(META(OUTSTANDING)) == 0) {
            pq_store_u64(META(NEXT_SEQUENCE), sequence + 1);
        }
        return PQ_CLAIM_DONE;
    }
    uint32_t slot = pq_table_take_slot(table);
    if (slot == UINT32_MAX) {
        return PQ_CLAIM_FULL;
    }
    uint8_t *record = record_at(table, slot);
    uint64_t id = new_id(table);
    put_u64(OF(record, SEQUENCE), sequence);
    put_u64(OF(record, PLACE), place);
    put_u64(OF(record, DUE), 0);
    put_u64(OF(record, LEASE_END), (uint64_t)by->lease_end);
    put_u64(OF(record, OWNER), by->owner);
    put_u32(OF(record, DELIVERIES), 1);
    put_u32(OF(record, CAUSE), PQ_CAUSE_NONE);
    set_word(record, id, PQ_RECORD_CLAIMED);
    PQ_KILL_POINT(20);
    pq_table_advance(table, sequence + 1, next_place);
    pq_table_link(table, slot, record);
    if (get_u32(META(SCAN_FROM)) == 0 && by->lease_end < (int64_t)get_u64(META(SCAN_AT))) {
        put_u64(META(SCAN_AT), (uint64_t)by->lease_end);
    }
    out->slot = slot;
    out->id = id;
    return PQ_CLAIM_DONE;
}

static pq_claim_result claim_next(pq_table *table, const pq_claimant *by, pq_claim *out) {
    memset(out, 0, sizeof *out);
    pq_claim_result found = claim_due(table, by, out);
    return found == PQ_CLAIM_NONE ? claim_new(table, by, out) : found;
}

pq_claim_result pq_claim_some(pq_table *table, pq_claimant *by, pq_claim *got, uint32_t limit,
                              uint32_t *count) {
    pq_claim_result found = PQ_CLAIM_NONE;
    uint64_t bytes = 0;
    *count = 0;
    while (*count < limit && bytes < PQ_READ_BYTES_MAX) {
        pq_claim *out = &got[*count];
        by->has_others = *count > 0;
        found = claim_next(table, by, out);
        if (found != PQ_CLAIM_DONE) {
            break;
        }
        *count += 1;
        bytes += out->payload_bytes;
        if (!out->is_spent && comes_alone(out->cause)) {
            break;
        }
    }
    return *count > 0 ? PQ_CLAIM_DONE : found;
}

/* --- what becomes of a claim ------------------------------------------------------------------ */

/* The record of a claim, if it is live (I15). */
static uint8_t *live(pq_table *table, uint32_t slot, uint64_t id, int64_t now) {
    uint8_t *record = linked(table, slot + 1);
    if (record == NULL || get_u64(OF(record, WORD)) != (id << 2 | PQ_RECORD_CLAIMED)) {
        return NULL;
    }
    int is_over = (int64_t)get_u64(OF(record, LEASE_END)) <= now;
    return is_over && !PQ_PLANTED(late_ack) ? NULL : record;
}

pq_claim_result pq_claim_ack(pq_table *table, uint32_t slot, uint64_t id, int64_t now) {
    uint8_t *record = live(table, slot, id, now);
    if (record == NULL) {
        return PQ_CLAIM_LOST;
    }
    finish(table, slot, record);
    return PQ_CLAIM_DONE;
}

/* Let a claimed record wait. Dies before the word: it is claimed still, and its owner dead. */
static void let_wait(pq_table *table, uint32_t slot, uint8_t *record, int64_t now, int64_t due,
                     uint32_t cause) {
    put_u64(OF(record, DUE), (uint64_t)due);
    put_u32(OF(record, CAUSE), cause);
    PQ_KILL_POINT(26);
    set_word(record, get_u64(OF(record, WORD)) >> 2, PQ_RECORD_WAITS);
    pq_table_note_due(table, slot, record, due, now);
}

pq_claim_result pq_claim_nack(pq_table *table, uint32_t slot, uint64_t id, int64_t now, int64_t due,
                              uint32_t cause) {
    uint8_t *record = live(table, slot, id, now);
    if (record == NULL) {
        return PQ_CLAIM_LOST;
    }
    let_wait(table, slot, record, now, due, cause);
    return PQ_CLAIM_DONE;
}

pq_claim_result pq_claim_undo(pq_table *table, uint32_t slot, uint64_t id, int64_t now,
                              int64_t due) {
    uint8_t *record = live(table, slot, id, now);
    if (record == NULL) {
        return PQ_CLAIM_LOST;
    }
    uint32_t deliveries = get_u32(OF(record, DELIVERIES));
    put_u32(OF(record, DELIVERIES), deliveries > 0 ? deliveries - 1 : 0);
    let_wait(table, slot, record, now, due, get_u32(OF(record, CAUSE)));
    return PQ_CLAIM_DONE;
}

pq_claim_result pq_claim_extend(pq_table *table, uint32_t slot, uint64_t id, int64_t now,
                                int64_t lease_end) {
    uint8_t *record = live(table, slot, id, now);
    if (record == NULL) {
        return PQ_CLAIM_LOST;
    }
    pq_store_u64(OF(record, LEASE_END), (uint64_t)lease_end);
    pq_table_note_due(table, slot, record, lease_end, now);
    return PQ_CLAIM_DONE;
}

void pq_table_acked_at(pq_table *table, int64_t realtime) {
    put_u64(META(LAST_ACK), (uint64_t)realtime);
}

void pq_table_count(pq_table *table, uint32_t word_at, uint64_t more) {
    uint8_t *word = table->base + word_at;
    put_u64(word, get_u64(word) + more);
}

int pq_table_restore(pq_table *table, const pq_claim *message, int64_t due) {
    uint32_t slot = pq_table_take_slot(table);
    if (slot == UINT32_MAX) {
        return 0;
    }
    uint8_t *record = record_at(table, slot);
    put_u64(OF(record, SEQUENCE), message->sequence);
    put_u64(OF(record, PLACE), message->place);
    put_u64(OF(record, DUE), (uint64_t)due);
    put_u32(OF(record, DELIVERIES), message->deliveries);
    put_u32(OF(record, CAUSE), message->cause);
    set_word(record, new_id(table), PQ_RECORD_WAITS);
    pq_table_link(table, slot, record);
    pq_table_note_due(table, slot, record, due, due);
    pq_table_raise_floor(table);
    return 1;
}

void pq_table_end_leases(pq_table *table, int64_t now) {
    uint32_t steps = 0;
    uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && steps <= table->capacity;
         link = get_u32(OF(record, FOLLOWING)), steps++) {
        if (state_of(record) == PQ_RECORD_CLAIMED && (int64_t)get_u64(OF(record, LEASE_END)) > now) {
            put_u64(OF(record, LEASE_END), (uint64_t)now);
            pq_table_note_due(table, link - 1, record, now, now);
        }
    }
}

uint32_t pq_table_release(pq_table *table, uint64_t owner, const pq_retry *retry, int64_t now) {
    uint32_t count = 0, steps = 0;
    uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && steps <= table->capacity;
         link = get_u32(OF(record, FOLLOWING)), steps++) {
        if (state_of(record) == PQ_RECORD_CLAIMED && get_u64(OF(record, OWNER)) == owner) {
            int64_t delay = pq_retry_delay(retry, get_u64(OF(record, SEQUENCE)),
                                           get_u32(OF(record, DELIVERIES)));
            let_wait(table, link - 1, record, now, now + delay, PQ_CAUSE_DEATH);
            count += 1;
        }
    }
    return count;
}

int pq_table_set_place(pq_table *table, uint64_t sequence, uint64_t place) {
    uint64_t known, next = pq_table_next(table, &known);
    if (next == sequence) {
        pq_table_advance(table, sequence, place);
    }
    return next == sequence;
}

int pq_table_skip(pq_table *table, uint64_t sequence, uint64_t place) {
    uint64_t known, next = pq_table_next(table, &known);
    if (next >= sequence) {
        return 0;
    }
    pq_table_count(table, PQ_GROUP_META_MISSED, sequence - next);
    pq_table_advance(table, sequence, place);
    pq_table_raise_floor(table);
    return 1;
}
