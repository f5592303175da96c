/* What protocol/group_table.c and protocol/group_claims.c share: a group's words and records. */
#ifndef PAGEQUEUE_TABLE_H
#define PAGEQUEUE_TABLE_H

#include "protocol/group_claims.h"

#define META(name) (table->base + PQ_GROUP_META_##name)
#define OF(record, name) ((record) + PQ_GROUP_RECORD_##name)
#define STATE_MASK 3u
#define IN_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

static inline uint32_t get_u32(const void *at) {
    return __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
}
static inline uint64_t get_u64(const void *at) {
    return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}
static inline void put_u32(void *at, uint32_t value) {
    __atomic_store_n((uint32_t *)at, value, __ATOMIC_RELAXED);
}
static inline void put_u64(void *at, uint64_t value) {
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELAXED);
}

static inline uint8_t *record_at(const pq_table *table, uint32_t slot) {
    if (slot < table->first) {
        return table->base + PQ_GROUP_TABLE_AT + (uint64_t)slot * PQ_GROUP_RECORD_BYTES;
    }
    uint32_t part = 32 - (uint32_t)__builtin_clz(slot / table->first);
    uint32_t before = table->first << (part - 1);
    return table->base + table->part_at[part] + (uint64_t)(slot - before) * PQ_GROUP_RECORD_BYTES;
}

/* The record that a link leads to; NULL = to none. */
static inline uint8_t *linked(const pq_table *table, uint32_t link) {
    return link == 0 || link > table->capacity ? NULL : record_at(table, link - 1);
}

static inline uint64_t state_of(const uint8_t *record) {
    return get_u64(OF(record, WORD)) & STATE_MASK;
}

/* When a record that is not free can be claimed. */
static inline int64_t when_of(const uint8_t *record) {
    return (int64_t)get_u64(state_of(record) == PQ_RECORD_CLAIMED ? OF(record, LEASE_END)
                                                                  : OF(record, DUE));
}

static inline void set_word(uint8_t *record, uint64_t id, uint64_t state) {
    pq_store_u64(OF(record, WORD), id << 2 | state);
    IN_ORDER();
}

/* The words of the next new message: two pairs, used in turn. */
static inline uint8_t *new_words(const pq_table *table, uint64_t turn) {
    return turn & 1 ? META(NEW_ODD) : META(NEW_EVEN);
}

#define PLACE_BEHIND (PQ_GROUP_META_PLACE_EVEN - PQ_GROUP_META_NEW_EVEN)
_Static_assert(PQ_GROUP_META_PLACE_ODD - PQ_GROUP_META_NEW_ODD == PLACE_BEHIND,
               "a place follows its sequence");

/* Sequence and place of the next new message are these from now on. */
void pq_table_advance(pq_table *table, uint64_t sequence, uint64_t place);
void pq_table_raise_floor(pq_table *table);
/* A record may be due earlier than known. */
void pq_table_note_due(pq_table *table, uint32_t slot, const uint8_t *record, int64_t when,
                       int64_t now);
/* Link a record where its sequence belongs. */
void pq_table_link(pq_table *table, uint32_t slot, uint8_t *record);
void pq_table_unlink(pq_table *table, uint32_t slot, uint8_t *record);
/* A free record; UINT32_MAX = none. */
uint32_t pq_table_take_slot(pq_table *table);

#endif
