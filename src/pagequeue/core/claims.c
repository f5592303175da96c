/* The table of a group: which messages are claimed, by whom, until when, and which wait again.
 *
 * A message is done if and only if it is below the next new one and no record has it. A record comes
 * into being, changes sides and goes by ONE aligned 8-byte store, of its `word`; the next new
 * message moves by one store, of `turn`. All else (links, free records, floor, where to look) follows
 * from these and is made again by whoever finds `changing` set, because a holder of the lock died:
 *
 * - a record at or behind the next new message is void: its claimer died before it had it, and the
 *   message is claimed as a new one;
 * - every other record is outstanding, whatever was being done to it.
 *
 * So a kill loses nothing and never makes two claims of one (I13, I14). A store is not overtaken by
 * a later one here: the compiler is held by the fences, and what a processor that stops had not yet
 * stored in order, nobody has seen. Links lead to bounds-checked slots, whatever the file says (I9).
 */
#include "claims.h"

#include <stdlib.h>

#define META(name) (table->base + PQ_GROUP_META_##name)
#define OF(record, name) ((record) + PQ_GROUP_RECORD_##name)
#define STATE_MASK 3u
#define IN_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

static uint32_t get_u32(const void *at) {
    return __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
}
static uint64_t get_u64(const void *at) {
    return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}
static void put_u32(void *at, uint32_t value) {
    __atomic_store_n((uint32_t *)at, value, __ATOMIC_RELAXED);
}
static void put_u64(void *at, uint64_t value) {
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELAXED);
}

static uint8_t *record_at(const pq_table *table, uint32_t slot) {
    return table->base + PQ_GROUP_TABLE_AT + (uint64_t)slot * PQ_GROUP_RECORD_BYTES;
}

/* The record that a link leads to; NULL = to none. */
static uint8_t *linked(const pq_table *table, uint32_t link) {
    return link == 0 || link > table->capacity ? NULL : record_at(table, link - 1);
}

static uint64_t state_of(const uint8_t *record) {
    return get_u64(OF(record, WORD)) & STATE_MASK;
}

/* When a record that is not free can be claimed. */
static int64_t when_of(const uint8_t *record) {
    return (int64_t)get_u64(state_of(record) == PQ_RECORD_CLAIMED ? OF(record, LEASE_END)
                                                                  : OF(record, DUE));
}

static void set_word(uint8_t *record, uint64_t id, uint64_t state) {
    pq_store_u64(OF(record, WORD), id << 2 | state);
    IN_ORDER();
}

/* --- the next new message --------------------------------------------------------------------- */

static uint8_t *new_words(const pq_table *table, uint64_t turn) {
    return turn & 1 ? META(NEW_ODD) : META(NEW_EVEN);
}

#define PLACE_BEHIND (PQ_GROUP_META_PLACE_EVEN - PQ_GROUP_META_NEW_EVEN)
_Static_assert(PQ_GROUP_META_PLACE_ODD - PQ_GROUP_META_NEW_ODD == PLACE_BEHIND,
               "a place stands behind its sequence");

uint64_t pq_table_next(const pq_table *table, uint64_t *place) {
    uint64_t turn, sequence;
    do {
        turn = pq_load_u64(META(TURN));
        sequence = pq_load_u64(new_words(table, turn));
        *place = pq_load_u64(new_words(table, turn) + PLACE_BEHIND);
    } while (pq_load_u64(META(TURN)) != turn);
    return sequence;
}

/* 1. Write the pair that is not in use. Dies here: nothing moved.
 * 2. Store the turn. Dies here: all below is claimed or done; the rest is mended (`rebuild`). */
static void advance(pq_table *table, uint64_t sequence, uint64_t place) {
    uint64_t turn = get_u64(META(TURN)) + 1;
    put_u64(new_words(table, turn), sequence);
    put_u64(new_words(table, turn) + PLACE_BEHIND, place);
    PQ_KILL_POINT(21);
    pq_store_u64(META(TURN), turn);
    IN_ORDER();
    PQ_KILL_POINT(22);
}

/* --- links ------------------------------------------------------------------------------------ */

static void raise_floor(pq_table *table) {
    const uint8_t *first = linked(table, get_u32(META(FIRST)));
    uint64_t place;
    uint64_t floor =
        first != NULL ? get_u64(OF(first, SEQUENCE)) : pq_table_next(table, &place);
    pq_store_u64(META(NEXT_SEQUENCE), floor);
}

/* A record may be due before it was thought: `look_from` leads back to it, or `look_at` is earlier. */
static void note_due(pq_table *table, uint32_t slot, const uint8_t *record, int64_t when,
                     int64_t now) {
    const uint8_t *from = linked(table, get_u32(META(LOOK_FROM)));
    if (from != NULL && get_u64(OF(from, SEQUENCE)) <= get_u64(OF(record, SEQUENCE))) {
        return; /* it will be come to */
    }
    if (when <= now) {
        put_u32(META(LOOK_FROM), slot + 1);
    } else if (when < (int64_t)get_u64(META(LOOK_AT))) {
        put_u64(META(LOOK_AT), (uint64_t)when);
    }
}

/* Link a record where its sequence belongs: nearly always behind the last. */
static void link_in_order(pq_table *table, uint32_t slot, uint8_t *record) {
    uint64_t sequence = get_u64(OF(record, SEQUENCE));
    uint32_t prior = get_u32(META(LAST)), looks = 0;
    uint8_t *before;
    while ((before = linked(table, prior)) != NULL &&
           get_u64(OF(before, SEQUENCE)) > sequence && looks++ < table->capacity) {
        prior = get_u32(OF(before, PRIOR));
    }
    uint32_t following = before == NULL ? get_u32(META(FIRST)) : get_u32(OF(before, FOLLOWING));
    uint8_t *behind = linked(table, following);
    put_u32(OF(record, PRIOR), before == NULL ? 0 : prior);
    put_u32(OF(record, FOLLOWING), behind == NULL ? 0 : following);
    put_u32(before == NULL ? META(FIRST) : OF(before, FOLLOWING), slot + 1);
    put_u32(behind == NULL ? META(LAST) : OF(behind, PRIOR), slot + 1);
    put_u32(META(OUTSTANDING), get_u32(META(OUTSTANDING)) + 1);
}

static void unlink_record(pq_table *table, uint32_t slot, uint8_t *record) {
    uint32_t prior = get_u32(OF(record, PRIOR)), following = get_u32(OF(record, FOLLOWING));
    uint8_t *before = linked(table, prior), *behind = linked(table, following);
    put_u32(before == NULL ? META(FIRST) : OF(before, FOLLOWING), following);
    put_u32(behind == NULL ? META(LAST) : OF(behind, PRIOR), prior);
    put_u32(META(OUTSTANDING), get_u32(META(OUTSTANDING)) - 1);
    if (get_u32(META(LOOK_FROM)) == slot + 1) {
        put_u32(META(LOOK_FROM), following);
    }
    put_u32(OF(record, FOLLOWING), get_u32(META(FREE)));
    put_u32(META(FREE), slot + 1);
}

/* A free record; UINT32_MAX = none. */
static uint32_t take_slot(pq_table *table) {
    uint32_t free = get_u32(META(FREE)), used = get_u32(META(USED));
    uint8_t *record = linked(table, free);
    if (record != NULL && state_of(record) == PQ_RECORD_FREE) {
        put_u32(META(FREE), get_u32(OF(record, FOLLOWING)));
        return free - 1;
    }
    if (used >= table->capacity || state_of(record_at(table, used)) != PQ_RECORD_FREE) {
        return UINT32_MAX;
    }
    put_u32(META(USED), used + 1);
    return used;
}

/* --- what a dead holder left ------------------------------------------------------------------ */

typedef struct {
    uint64_t sequence;
    uint32_t slot;
} ordered;

static int in_order(const void *left, const void *right) {
    uint64_t a = ((const ordered *)left)->sequence, b = ((const ordered *)right)->sequence;
    return a < b ? -1 : a > b;
}

/* Make links, free list and floor from the records. Dies in here: done again, because nothing that it
 * reads is changed but by making void what is void. */
static int rebuild(pq_table *table) {
    ordered *found = malloc((size_t)table->capacity * sizeof *found);
    if (found == NULL) {
        return -1;
    }
    uint64_t place, next = pq_table_next(table, &place);
    uint32_t count = 0, used = 0;
    for (uint32_t slot = 0; slot < table->capacity; slot++) {
        uint8_t *record = record_at(table, slot);
        if (get_u64(OF(record, WORD)) == 0) {
            continue;
        }
        used = slot + 1;
        if (get_u64(OF(record, SEQUENCE)) >= next || state_of(record) == PQ_RECORD_FREE) {
            set_word(record, 0, PQ_RECORD_FREE);
        } else {
            found[count++] = (ordered){get_u64(OF(record, SEQUENCE)), slot};
        }
    }
    qsort(found, count, sizeof *found, in_order);
    put_u32(META(FIRST), 0);
    put_u32(META(LAST), 0);
    put_u32(META(OUTSTANDING), 0);
    for (uint32_t i = 0; i < count; i++) {
        link_in_order(table, found[i].slot, record_at(table, found[i].slot));
    }
    free(found);
    put_u32(META(FREE), 0);
    put_u32(META(USED), used);
    for (uint32_t slot = used; slot-- > 0;) {
        uint8_t *record = record_at(table, slot);
        if (get_u64(OF(record, WORD)) == 0) {
            put_u32(OF(record, FOLLOWING), get_u32(META(FREE)));
            put_u32(META(FREE), slot + 1);
        }
    }
    put_u64(META(LOOK_AT), (uint64_t)INT64_MAX);
    put_u32(META(LOOK_FROM), get_u32(META(FIRST)));
    raise_floor(table);
    return 0;
}

int pq_table_begin(pq_table *table) {
    if (get_u64(META(CHANGING)) != 0 && !PQ_PLANTED(no_rebuild) && rebuild(table) < 0) {
        return -1;
    }
    put_u64(META(CHANGING), 1);
    IN_ORDER();
    return 0;
}

void pq_table_end(pq_table *table) {
    IN_ORDER();
    pq_store_u64(META(CHANGING), 0);
}

/* --- claiming --------------------------------------------------------------------------------- */

static uint64_t new_id(pq_table *table) {
    uint64_t id = get_u64(META(CLAIM_ID)) + 1;
    put_u64(META(CLAIM_ID), id);
    IN_ORDER(); /* Dies behind this: the id is never given. */
    return id;
}

static void finish(pq_table *table, uint32_t slot, uint8_t *record) {
    set_word(record, 0, PQ_RECORD_FREE); /* Dies behind this: it is done, and links are mended. */
    PQ_KILL_POINT(23);
    unlink_record(table, slot, record);
    raise_floor(table);
}

static void out_of(const uint8_t *record, uint32_t slot, uint64_t id, pq_claim *out) {
    out->slot = slot;
    out->id = id;
    out->deliveries = get_u32(OF(record, DELIVERIES));
    out->cause = get_u32(OF(record, CAUSE));
    out->sequence = get_u64(OF(record, SEQUENCE));
    out->place = get_u64(OF(record, PLACE));
}

/* Claim a record that is due.
 *
 * 1. Its lease ended: from here on it waits. Dies here: it waits, and is due.
 * 2. The new claim's fields. Dies here: the same; its count may be one higher, as if the claimer had
 *    died a moment later.
 * 3. The word: it is claimed. Dies here: the lease, or the owner's death, ends it. */
static void claim_again(pq_table *table, const pq_claimant *by, uint32_t slot, uint8_t *record,
                        pq_claim *out) {
    uint64_t id = new_id(table);
    if (state_of(record) == PQ_RECORD_CLAIMED) {
        put_u64(OF(record, DUE), get_u64(OF(record, LEASE_END)));
        put_u32(OF(record, CAUSE), PQ_CAUSE_LEASE);
        set_word(record, id, PQ_RECORD_WAITS);
    }
    PQ_KILL_POINT(24);
    uint32_t deliveries = get_u32(OF(record, DELIVERIES));
    out->is_spent = by->deliveries_max != 0 && deliveries >= by->deliveries_max;
    if (by->acknowledges && !out->is_spent) {
        out_of(record, slot, 0, out);
        out->deliveries = deliveries + 1;
        finish(table, slot, record);
        return;
    }
    put_u64(OF(record, LEASE_END), (uint64_t)by->lease_end);
    put_u64(OF(record, OWNER), by->owner);
    if (!out->is_spent && deliveries < UINT32_MAX) {
        put_u32(OF(record, DELIVERIES), deliveries + 1);
    }
    set_word(record, id, PQ_RECORD_CLAIMED);
    PQ_KILL_POINT(25);
    out_of(record, slot, id, out);
    if (by->lease_end < (int64_t)get_u64(META(LOOK_AT))) {
        put_u64(META(LOOK_AT), (uint64_t)by->lease_end);
    }
}

/* The outstanding record with the lowest sequence that is due. Each is looked at once, until time
 * has passed or one came back: `look_from` remembers how far, `look_at` when to begin again. */
static pq_claim_result claim_due(pq_table *table, const pq_claimant *by, pq_claim *out) {
    uint32_t link = get_u32(META(LOOK_FROM));
    int64_t at = (int64_t)get_u64(META(LOOK_AT));
    if (by->now >= at) {
        link = get_u32(META(FIRST));
        at = INT64_MAX;
    } else if (link == 0) {
        return PQ_CLAIM_NONE;
    }
    uint8_t *record;
    for (uint32_t looks = 0; (record = linked(table, link)) != NULL; looks++) {
        int64_t when = when_of(record);
        if (when <= by->now || looks > table->capacity) {
            break;
        }
        at = when < at ? when : at;
        link = get_u32(OF(record, FOLLOWING));
    }
    put_u64(META(LOOK_AT), (uint64_t)at);
    put_u32(META(LOOK_FROM), record == NULL ? 0 : get_u32(OF(record, FOLLOWING)));
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
    switch (pq_frame_look(by->page, by->page_bytes, position, frame)) {
    case PQ_READ_FRAME: return PQ_CLAIM_DONE;
    case PQ_READ_NOTHING: {
        pq_tail tail;
        pq_tail_load(by->meta, &tail);
        int is_hole = tail.first_sequence + tail.count > sequence &&
                      pq_load_u32(by->page + position) == 0;
        return is_hole ? PQ_CLAIM_DAMAGED : PQ_CLAIM_NONE;
    }
    case PQ_READ_END:
        if (pq_frame_check(by->page, by->page_bytes, position, sequence, frame) != PQ_READ_END) {
            return PQ_CLAIM_DAMAGED;
        }
        advance(table, sequence,
                (by->page_number + 1) << PQ_PLACE_SHIFT |
                    PQ_PAGE_HEADER_BYTES / PQ_FRAME_ALIGN_BYTES);
        return PQ_CLAIM_MOVED;
    default: return PQ_CLAIM_DAMAGED;
    }
}

/* Claim the next new message.
 *
 * 1. A free record gets the claim, its word last. Dies here: it is void, because the next new message
 *    is still this one.
 * 2. The next new message is the one behind it. Dies here: claimed; the lease, or the owner's death,
 *    ends it.
 * 3. Links. Dies here: they are made again. */
static pq_claim_result claim_new(pq_table *table, const pq_claimant *by, pq_claim *out) {
    uint64_t place, sequence = pq_table_next(table, &place);
    pq_frame frame;
    pq_claim_result found = find_new(table, by, sequence, place, &frame);
    if (found != PQ_CLAIM_DONE) {
        return found;
    }
    uint64_t behind = by->page_number << PQ_PLACE_SHIFT | frame.next / PQ_FRAME_ALIGN_BYTES;
    *out = (pq_claim){.sequence = sequence,
                      .place = place,
                      .deliveries = 1,
                      .payload_bytes = frame.payload_bytes};
    if (by->acknowledges) {
        advance(table, sequence + 1, behind);
        if (get_u32(META(OUTSTANDING)) == 0) {
            pq_store_u64(META(NEXT_SEQUENCE), sequence + 1);
        }
        return PQ_CLAIM_DONE;
    }
    uint32_t slot = take_slot(table);
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
    advance(table, sequence + 1, behind);
    link_in_order(table, slot, record);
    if (get_u32(META(LOOK_FROM)) == 0 && by->lease_end < (int64_t)get_u64(META(LOOK_AT))) {
        put_u64(META(LOOK_AT), (uint64_t)by->lease_end);
    }
    out->slot = slot;
    out->id = id;
    return PQ_CLAIM_DONE;
}

pq_claim_result pq_claim_next(pq_table *table, const pq_claimant *by, pq_claim *out) {
    memset(out, 0, sizeof *out);
    pq_claim_result found = claim_due(table, by, out);
    return found == PQ_CLAIM_NONE ? claim_new(table, by, out) : found;
}

/* --- what becomes of a claim ------------------------------------------------------------------ */

/* The record of a claim, if it is live (I14). */
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
    note_due(table, slot, record, due, now);
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

pq_claim_result pq_claim_extend(pq_table *table, uint32_t slot, uint64_t id, int64_t now,
                                int64_t lease_end) {
    uint8_t *record = live(table, slot, id, now);
    if (record == NULL) {
        return PQ_CLAIM_LOST;
    }
    pq_store_u64(OF(record, LEASE_END), (uint64_t)lease_end);
    note_due(table, slot, record, lease_end, now);
    return PQ_CLAIM_DONE;
}

void pq_table_acked_at(pq_table *table, int64_t realtime) {
    put_u64(META(LAST_ACK), (uint64_t)realtime);
}

int pq_table_restore(pq_table *table, const pq_claim *message, int64_t due) {
    uint32_t slot = take_slot(table);
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
    link_in_order(table, slot, record);
    note_due(table, slot, record, due, due);
    raise_floor(table);
    return 1;
}

uint32_t pq_table_release(pq_table *table, uint64_t owner) {
    uint32_t count = 0, looks = 0;
    uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && looks <= table->capacity;
         link = get_u32(OF(record, FOLLOWING)), looks++) {
        if (state_of(record) == PQ_RECORD_CLAIMED &&
            (owner == UINT64_MAX || get_u64(OF(record, OWNER)) == owner)) {
            let_wait(table, link - 1, record, 0, 0, PQ_CAUSE_DEATH);
            count += 1;
        }
    }
    return count;
}

/* Owners of claims, each once; as many as there is room for. */
uint32_t pq_table_owners(const pq_table *table, uint64_t *owners, uint32_t limit) {
    uint32_t count = 0, looks = 0;
    const uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && looks <= table->capacity && count < limit;
         link = get_u32(OF(record, FOLLOWING)), looks++) {
        uint64_t owner = get_u64(OF(record, OWNER));
        uint32_t i = count;
        while (i > 0 && owners[i - 1] != owner) {
            i--;
        }
        if (i == 0 && state_of(record) == PQ_RECORD_CLAIMED) {
            owners[count++] = owner;
        }
    }
    return count;
}

int pq_table_set_place(pq_table *table, uint64_t sequence, uint64_t place) {
    uint64_t known, next = pq_table_next(table, &known);
    if (next == sequence) {
        advance(table, sequence, place);
    }
    return next == sequence;
}

int pq_table_skip(pq_table *table, uint64_t sequence, uint64_t place) {
    uint64_t known, next = pq_table_next(table, &known);
    if (next >= sequence) {
        return 0;
    }
    put_u64(META(MISSED), get_u64(META(MISSED)) + (sequence - next));
    advance(table, sequence, place);
    raise_floor(table);
    return 1;
}

uint32_t pq_table_snapshot(const pq_table *table, int64_t now, int64_t realtime, uint8_t *records,
                           uint64_t *sequence) {
    uint64_t place;
    *sequence = pq_table_next(table, &place);
    uint32_t count = 0;
    const uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && count < table->capacity;
         link = get_u32(OF(record, FOLLOWING))) {
        uint8_t *at = records + (uint64_t)count * PQ_SNAPSHOT_RECORD_BYTES;
        int64_t due = (int64_t)get_u64(OF(record, DUE));
        /* A claim is void when this is read; what waits, waits by the clock on the wall. */
        int is_later = state_of(record) == PQ_RECORD_WAITS && due > now;
        put_u64(at + PQ_SNAPSHOT_RECORD_SEQUENCE, get_u64(OF(record, SEQUENCE)));
        put_u64(at + PQ_SNAPSHOT_RECORD_DUE, is_later ? (uint64_t)(realtime + (due - now)) : 0);
        put_u32(at + PQ_SNAPSHOT_RECORD_DELIVERIES, get_u32(OF(record, DELIVERIES)));
        put_u32(at + PQ_SNAPSHOT_RECORD_CAUSE, get_u32(OF(record, CAUSE)));
        count += 1;
    }
    return count;
}

/* --- without the lock ------------------------------------------------------------------------- */

/* The time at which a record may be due; INT64_MIN = look now. */
int64_t pq_table_wake_at(const pq_table *table) {
    return get_u32(META(LOOK_FROM)) != 0 ? INT64_MIN : (int64_t)get_u64(META(LOOK_AT));
}

/* Whether it is worth taking the lock. */
int pq_table_beckons(const pq_table *table, const pq_claimant *by, int is_full) {
    if (pq_table_wake_at(table) <= by->now) {
        return 1;
    }
    if (is_full) {
        return get_u32(META(OUTSTANDING)) < table->capacity;
    }
    uint64_t place;
    (void)pq_table_next(table, &place);
    uint64_t position = (place & ((1ull << PQ_PLACE_SHIFT) - 1)) * PQ_FRAME_ALIGN_BYTES;
    if (by->page == NULL || place >> PQ_PLACE_SHIFT != by->page_number ||
        position > by->page_bytes - PQ_FRAME_BYTES) {
        return 1;
    }
    return pq_load_u32(by->page + position) != 0;
}
