/* The 12-byte records of one page's index: timestamp, position; position 0 = no record. */
#ifndef PAGEQUEUE_INDEX_H
#define PAGEQUEUE_INDEX_H

#include "protocol/protocol.h"

static inline void index_put(const pq_place *at, uint64_t ordinal, int64_t timestamp,
                             uint64_t position) {
    if (at->index == NULL || ordinal >= at->index_capacity) {
        return;
    }
    uint8_t *record = at->index + ordinal * PQ_INDEX_RECORD_BYTES;
    memcpy(record + PQ_INDEX_RECORD_TIMESTAMP, &timestamp, 8);
    pq_store_u32(record + PQ_INDEX_RECORD_POSITION, (uint32_t)position);
}

static inline void index_end(const pq_place *at, uint64_t ordinal) {
    if (at->index != NULL && ordinal < at->index_capacity) {
        pq_store_u32(at->index + ordinal * PQ_INDEX_RECORD_BYTES + PQ_INDEX_RECORD_POSITION, 0);
    }
}

static inline int index_has(const pq_place *at, uint64_t count) {
    return count == 0 || (at->index != NULL && count <= at->index_capacity);
}

/* Of a record that it has. */
static inline int64_t index_time(const pq_place *at, uint64_t ordinal) {
    int64_t timestamp;
    memcpy(&timestamp, at->index + ordinal * PQ_INDEX_RECORD_BYTES + PQ_INDEX_RECORD_TIMESTAMP, 8);
    return timestamp;
}

static inline int index_get(const pq_place *at, uint64_t ordinal, int64_t *timestamp,
                            uint64_t *position) {
    if (at->index == NULL || ordinal >= at->index_capacity) {
        return 0;
    }
    const uint8_t *record = at->index + ordinal * PQ_INDEX_RECORD_BYTES;
    memcpy(timestamp, record + PQ_INDEX_RECORD_TIMESTAMP, 8);
    *position = pq_load_u32(record + PQ_INDEX_RECORD_POSITION);
    return 1;
}

#endif
