/* protocol/group_claims.c: the table of a group, which records who has claimed what. It uses no
 * Python, no file and no clock. */
#ifndef PAGEQUEUE_CLAIMS_H
#define PAGEQUEUE_CLAIMS_H

#include "protocol/protocol.h"

#define PQ_GROUP_PARTS_MAX 23 /* GROUP_CAPACITY_MAX is 2^22 */

/* Its records are in parts of the file: the first has `first` of them, and each later one as many as
 * all before it. */
typedef struct {
    uint8_t *base; /* the group's file, mapped beyond its end: it grows */
    uint32_t first, parts; /* so many parts are in the map */
    uint32_t capacity;     /* records of the parts that exist; read again under the lock */
    uint64_t part_at[PQ_GROUP_PARTS_MAX];
    pq_lock lock;
} pq_table;

typedef enum {
    PQ_CLAIM_DONE = 0,
    PQ_CLAIM_NONE,    /* no message can be claimed now */
    PQ_CLAIM_MOVED,   /* the next message is in another page, or its page is not known */
    PQ_CLAIM_DAMAGED, /* the bytes at the next place are not a frame */
    PQ_CLAIM_ALONE,   /* the next one may have killed its worker: it comes without others */
    PQ_CLAIM_FULL,    /* no record is free */
    PQ_CLAIM_LOST,    /* this claim is not live any more */
    PQ_CLAIM_MEMORY,  /* out of memory */
    PQ_CLAIM_BEYOND,  /* the table grew beyond the map */
} pq_claim_result;

typedef struct {
    uint32_t slot, deliveries, cause;
    uint64_t id, sequence, place; /* id 0 = it was acknowledged at once and has no record */
    uint32_t payload_bytes;       /* of a new one */
    int is_spent; /* delivered as often as it may be: it goes to the dead letters */
} pq_claim;

/* What becomes of a message whose deliveries fail. */
typedef struct {
    uint32_t deliveries_max; /* then it goes to the dead letters; 0 = any number */
    int64_t first, most;     /* ns that it waits after the first one, and at most */
} pq_retry;

/* What a claim is made with. */
typedef struct {
    uint8_t *meta; /* the write meta */
    const uint8_t *page; /* the page that the caller has mapped, NULL = none */
    uint64_t page_bytes, page_number;
    uint32_t queue_state; /* from which its frames' checksums start */
    int64_t now, lease_end;
    uint64_t owner;
    pq_retry retry;
    int has_others; /* claimed by the same call */
    /* At once, if all of it is in the page that is mapped: of others retention could remove pages
     * before they are read. Those are claimed, to be acknowledged then. */
    int acknowledges;
} pq_claimant;

/* How long a message waits, in ns, after so many deliveries of it failed: twice as long each time,
 * less up to a quarter, so that messages which came back together are not claimed together again:
 * one that kills its worker then does so alone. One that is spent does not wait. */
int64_t pq_retry_delay(const pq_retry *retry, uint64_t sequence, uint32_t deliveries);

/* Without the lock. */
uint64_t pq_table_next(const pq_table *table, uint64_t *place);
int pq_table_has_work(const pq_table *table, const pq_claimant *by);
int64_t pq_table_wake_at(const pq_table *table);

/* The table of a file whose first part has so many records, and of which so much is mapped. */
void pq_table_init(pq_table *table, uint8_t *base, uint64_t bytes, uint32_t first);
/* Messages that can be outstanding; without the lock. */
uint32_t pq_table_limit(const pq_table *table);

/* All that follow need the lock. `begin` repairs what a dead holder left; PQ_CLAIM_DONE, or what
 * keeps it from that. */
pq_claim_result pq_table_begin(pq_table *table);
void pq_table_end(pq_table *table);
/* Up to `limit`, one after the other: `count` of them, and PQ_CLAIM_DONE if there are any. */
pq_claim_result pq_claim_some(pq_table *table, pq_claimant *by, pq_claim *got, uint32_t limit,
                              uint32_t *count);
pq_claim_result pq_claim_ack(pq_table *table, uint32_t slot, uint64_t id, int64_t now);
pq_claim_result pq_claim_nack(pq_table *table, uint32_t slot, uint64_t id, int64_t now, int64_t due,
                              uint32_t cause);
/* As if it had not been claimed, because it was not handed over: it waits until then. */
pq_claim_result pq_claim_undo(pq_table *table, uint32_t slot, uint64_t id, int64_t now,
                              int64_t due);
pq_claim_result pq_claim_extend(pq_table *table, uint32_t slot, uint64_t id, int64_t now,
                                int64_t lease_end);
void pq_table_acked_at(pq_table *table, int64_t realtime);
/* Raises a word that counts. */
void pq_table_count(pq_table *table, uint32_t word_at, uint64_t more);
/* Make an acknowledged message, or one of a snapshot, wait again; 0 = no record is free. */
int pq_table_restore(pq_table *table, const pq_claim *message, int64_t due);
/* No lease is longer than until now. */
void pq_table_end_leases(pq_table *table, int64_t now);
/* Whatever an owner has claimed is to be claimed again. */
uint32_t pq_table_release(pq_table *table, uint64_t owner, const pq_retry *retry, int64_t now);
uint32_t pq_table_owners(const pq_table *table, uint64_t *owners, uint32_t limit);
/* 1 = set, 0 = the next one is not `sequence` any more. */
int pq_table_set_place(pq_table *table, uint64_t sequence, uint64_t place);
int pq_table_skip(pq_table *table, uint64_t sequence, uint64_t place);
/* Records for a snapshot, in order of sequence, up to a limit; returns how many there are. */
uint32_t pq_table_snapshot(const pq_table *table, int64_t now, int64_t realtime, uint8_t *records,
                           uint32_t limit, uint64_t *sequence);

#endif
