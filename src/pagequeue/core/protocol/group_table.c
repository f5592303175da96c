/* The table of a group: which messages are claimed, by whom, until when, and which wait again.
 *
 * A message is done if and only if it is below the next new one and has no record. A record is
 * created, changes state and is freed by ONE aligned 8-byte store, of its `word`; the next new
 * message moves by one store, of `turn`. All else (links, free records, floor, where to search)
 * follows from these; the next holder of the lock rebuilds it if it finds `changing` set, because
 * the last one died:
 *
 * - a record at or after the next new message is void: its claimer died before it had the message,
 *   and the message is claimed as a new one;
 * - every other record is outstanding, whatever was being done to it.
 *
 * So a kill loses no message and never makes two claims of one (I14, I15). A store is not
 * overtaken by a later one here: the fences hold the compiler, and stores that a processor had not
 * yet made in order when it stopped were visible to no other. Links lead to bounds-checked slots,
 * whatever the file has (I9).
 */
#include "protocol/group_table.h"

#include <stdlib.h>

/* --- the next new message --------------------------------------------------------------------- */

uint64_t pq_table_next(const pq_table *table, uint64_t *place) {
    uint64_t turn, sequence;
    do {
        turn = pq_load_u64(META(TURN));
        sequence = pq_load_u64(new_words(table, turn));
        *place = pq_load_u64(new_words(table, turn) + PLACE_BEHIND);
    } while (pq_load_u64(META(TURN)) != turn);
    return sequence;
}

/* 1. Write the pair that is not in use. Dies here: the next new message has not moved.
 * 2. Store the turn. Dies here: all below is claimed or done; `rebuild` derives the rest. */
void pq_table_advance(pq_table *table, uint64_t sequence, uint64_t place) {
    uint64_t turn = get_u64(META(TURN)) + 1;
    put_u64(new_words(table, turn), sequence);
    put_u64(new_words(table, turn) + PLACE_BEHIND, place);
    PQ_KILL_POINT(21);
    pq_store_u64(META(TURN), turn);
    IN_ORDER();
    PQ_KILL_POINT(22);
}

/* --- parts -------------------------------------------------------------------------------------- */

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + PQ_GROUP_TABLE_AT - 1) / PQ_GROUP_TABLE_AT * PQ_GROUP_TABLE_AT;
}

void pq_table_init(pq_table *table, uint8_t *base, uint64_t bytes, uint32_t first) {
    table->base = base;
    table->first = table->capacity = first;
    table->parts = 0;
    uint64_t at = PQ_GROUP_TABLE_AT;
    for (uint32_t part = 0; part < PQ_GROUP_PARTS_MAX; part++) {
        uint64_t records = part == 0 ? first : (uint64_t)first << (part - 1);
        uint64_t all = (uint64_t)first << part;
        table->part_at[part] = at;
        uint64_t records_end = at + records * PQ_GROUP_RECORD_BYTES;
        if (all > PQ_GROUP_CAPACITY_MAX || records_end > bytes) {
            break;
        }
        table->parts = part + 1;
        at += whole_pages(records * PQ_GROUP_RECORD_BYTES) +
              2 * whole_pages(PQ_SNAPSHOT_BYTES + all * PQ_SNAPSHOT_RECORD_BYTES);
    }
}

uint32_t pq_table_limit(const pq_table *table) {
    uint32_t limit = get_u32(META(LIMIT));
    return limit == 0 || limit > PQ_GROUP_CAPACITY_MAX ? PQ_GROUP_CAPACITY_MAX : limit;
}

/* --- links ------------------------------------------------------------------------------------ */

void pq_table_raise_floor(pq_table *table) {
    const uint8_t *first = linked(table, get_u32(META(FIRST)));
    uint64_t place;
    uint64_t floor =
        first != NULL ? get_u64(OF(first, SEQUENCE)) : pq_table_next(table, &place);
    pq_store_u64(META(NEXT_SEQUENCE), floor);
}

/* A record may be due earlier than known: set `scan_from` back to it, or `scan_at` to its time. */
void pq_table_note_due(pq_table *table, uint32_t slot, const uint8_t *record, int64_t when,
                     int64_t now) {
    const uint8_t *from = linked(table, get_u32(META(SCAN_FROM)));
    if (from != NULL && get_u64(OF(from, SEQUENCE)) <= get_u64(OF(record, SEQUENCE))) {
        return; /* the search reaches it */
    }
    if (when <= now) {
        put_u32(META(SCAN_FROM), slot + 1);
    } else if (when < (int64_t)get_u64(META(SCAN_AT))) {
        put_u64(META(SCAN_AT), (uint64_t)when);
    }
}

/* Link a record where its sequence belongs: nearly always after the last. */
void pq_table_link(pq_table *table, uint32_t slot, uint8_t *record) {
    uint64_t sequence = get_u64(OF(record, SEQUENCE));
    uint32_t prior = get_u32(META(LAST)), steps = 0;
    uint8_t *before;
    while ((before = linked(table, prior)) != NULL &&
           get_u64(OF(before, SEQUENCE)) > sequence && steps++ < table->capacity) {
        prior = get_u32(OF(before, PRIOR));
    }
    uint32_t following = before == NULL ? get_u32(META(FIRST)) : get_u32(OF(before, FOLLOWING));
    uint8_t *later = linked(table, following);
    put_u32(OF(record, PRIOR), before == NULL ? 0 : prior);
    put_u32(OF(record, FOLLOWING), later == NULL ? 0 : following);
    put_u32(before == NULL ? META(FIRST) : OF(before, FOLLOWING), slot + 1);
    put_u32(later == NULL ? META(LAST) : OF(later, PRIOR), slot + 1);
    put_u32(META(OUTSTANDING), get_u32(META(OUTSTANDING)) + 1);
}

void pq_table_unlink(pq_table *table, uint32_t slot, uint8_t *record) {
    uint32_t prior = get_u32(OF(record, PRIOR)), following = get_u32(OF(record, FOLLOWING));
    uint8_t *before = linked(table, prior), *later = linked(table, following);
    put_u32(before == NULL ? META(FIRST) : OF(before, FOLLOWING), following);
    put_u32(later == NULL ? META(LAST) : OF(later, PRIOR), prior);
    put_u32(META(OUTSTANDING), get_u32(META(OUTSTANDING)) - 1);
    if (get_u32(META(SCAN_FROM)) == slot + 1) {
        put_u32(META(SCAN_FROM), following);
    }
    put_u32(OF(record, FOLLOWING), get_u32(META(FREE)));
    put_u32(META(FREE), slot + 1);
}

/* A free record; UINT32_MAX = none. */
uint32_t pq_table_take_slot(pq_table *table) {
    uint32_t free = get_u32(META(FREE)), used = get_u32(META(USED));
    if (get_u32(META(OUTSTANDING)) >= pq_table_limit(table)) {
        return UINT32_MAX;
    }
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

/* Make links, free list and floor from the records. A death in here leaves a state from which it
 * can run again: of its inputs it only changes void records, which it frees. */
static int rebuild(pq_table *table) {
    /* Raised before the record after it gets its word, so none is beyond it. */
    uint32_t reached = get_u32(META(USED));
    reached = reached < table->capacity ? reached : table->capacity;
    ordered *found = malloc((size_t)reached * sizeof *found + 1);
    if (found == NULL) {
        return -1;
    }
    uint64_t place, next = pq_table_next(table, &place);
    uint32_t count = 0, used = 0;
    for (uint32_t slot = 0; slot < reached; slot++) {
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
        pq_table_link(table, found[i].slot, record_at(table, found[i].slot));
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
    put_u64(META(SCAN_AT), (uint64_t)INT64_MAX);
    put_u32(META(SCAN_FROM), get_u32(META(FIRST)));
    pq_table_raise_floor(table);
    return 0;
}

pq_claim_result pq_table_begin(pq_table *table) {
    uint32_t grown = get_u32(META(GROWN)); /* G2: its part was there before */
    if (grown >= table->parts) {
        return PQ_CLAIM_BEYOND;
    }
    table->capacity = table->first << grown;
    if (get_u64(META(CHANGING)) != 0 && !PQ_PLANTED(no_rebuild) && rebuild(table) < 0) {
        return PQ_CLAIM_MEMORY;
    }
    put_u64(META(CHANGING), 1);
    IN_ORDER();
    return PQ_CLAIM_DONE;
}

void pq_table_end(pq_table *table) {
    IN_ORDER();
    pq_store_u64(META(CHANGING), 0);
}

/* --- reading all of it ------------------------------------------------------------------------ */

/* Owners of claims, each once; as many as there is room for. */
uint32_t pq_table_owners(const pq_table *table, uint64_t *owners, uint32_t limit) {
    uint32_t count = 0, steps = 0;
    const uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && steps <= table->capacity && count < limit;
         link = get_u32(OF(record, FOLLOWING)), steps++) {
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

uint32_t pq_table_snapshot(const pq_table *table, int64_t now, int64_t realtime, uint8_t *records,
                           uint32_t limit, uint64_t *sequence) {
    uint64_t place;
    *sequence = pq_table_next(table, &place);
    uint32_t count = 0;
    const uint8_t *record;
    for (uint32_t link = get_u32(META(FIRST));
         (record = linked(table, link)) != NULL && count < limit;
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

/* The time at which a record may be due; INT64_MIN = search now. */
int64_t pq_table_wake_at(const pq_table *table) {
    return get_u32(META(SCAN_FROM)) != 0 ? INT64_MIN : (int64_t)get_u64(META(SCAN_AT));
}

/* Whether it is worth taking the lock. */
int pq_table_has_work(const pq_table *table, const pq_claimant *by) {
    if (pq_table_wake_at(table) <= by->now) {
        return 1;
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
