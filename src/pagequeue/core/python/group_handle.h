/* What python/group_handle.c, python/group_deliver.c and python/claim_object.c share: a group's
 * handle, and one attempt under its lock. */
#ifndef PAGEQUEUE_GROUP_H
#define PAGEQUEUE_GROUP_H

#include "protocol/group_claims.h"
#include "python/clock.h"
#include "python/module.h"

#define PQ_CLAIM_COUNT_MAX 1024

typedef struct {
    PyObject_HEAD
    Region *meta, *file, *page;
    pq_table table;
    uint64_t page_number, owner;
    int64_t lease, lock_timeout; /* ns */
    int64_t looked_at;           /* when the owners of claims were looked at last */
    int64_t checked_at;          /* when the names were checked last */
    int64_t spin_ns;             /* how long spinning lately paid off */
    int64_t wall_ahead, wall_until; /* the wall clock minus the monotonic one, and how long it counts */
    pq_retry retry;
    PyObject *clock, *wall;      /* None = the system's monotonic and real one */
    int wall_is_system;          /* it is the system's, perhaps one that looks at its readings */
    PyObject *decoder;           /* of every message's value; NULL = that is the payload */
    unsigned fork_count;
    int closed;
    int inside; /* threads that claim, or wait for the lock */
    int is_released; /* closed, and the last thread is out */
} Claims;

typedef struct {
    PyObject_HEAD
    Claims *group;
    PyObject *message;
    uint64_t id;
    uint64_t sequence;
    uint32_t slot, deliveries, cause;
    char settled; /* acknowledged or given back */
} Claim;

typedef enum {
    PQ_DO_CLAIM, PQ_DO_ACK, PQ_DO_NACK, PQ_DO_UNDO, PQ_DO_EXTEND, PQ_DO_RELEASE, PQ_DO_OWNERS,
    PQ_DO_PLACE, PQ_DO_SKIP, PQ_DO_RESTORE, PQ_DO_SNAPSHOT, PQ_DO_COUNT
} pq_group_do;

typedef struct {
    pq_group_do what;
    pq_table *table;
    Region *file;
    pq_claimant by;
    pq_claim *got;      /* claimed, or what is meant */
    Region *page; /* that it saw, if it acknowledges: a reference for who asked */
    uint32_t limit, count;
    int64_t until;      /* lease end, or when it is due */
    int64_t wall;
    uint64_t sequence, place;
    uint32_t counts; /* the word of the table that rises by one when it is done; 0 = none */
    uint64_t *owners;
    uint8_t *records;
    pq_claim_result result;
    int is_lost; /* the file was truncated */
} pq_group_attempt;

/* -1 = raised: its table is not in the map. */
int pq_group_file_check(Region *file, unsigned int capacity);
/* 1 = usable, 0 = raised. */
int pq_group_ready(Claims *self);
/* Have the names checked, if it is time by the monotonic clock; 0 = raised. */
int pq_group_check_place(Claims *self, int64_t now);
/* ns by the group's clock; -1 = raised. */
int64_t pq_group_now(Claims *self);
int64_t pq_group_wall(Claims *self, int64_t now);
/* No record is free: 1 = there are more now, 0 = there can be none, -1 = raised. */
int pq_group_grow(Claims *self);
/* A thread goes in, and out again; the last one out of a closed handle lets its files go. */
void pq_group_enter(Claims *self);
/* -1 = raised: a signal handler's exception came meanwhile. */
int pq_group_exit(Claims *self);
int pq_group_leave(Claims *self);
/* One attempt under the lock; 0 = raised. */
int pq_group_run(Claims *self, pq_group_attempt *try);
/* Acknowledge a claim, if it was not with its claiming, and raise a count of the table: 1 = done,
 * 0 = the claim is not live, -1 = raised. */
int pq_group_settle(Claims *self, pq_claim *got, uint32_t counts);
/* Make what was claimed into a claim, or, if it acknowledges, into its message, which is
 * acknowledged by then; NULL = raised, and it was given back. */
PyObject *pq_group_deliver(Claims *self, const pq_claim *got, int acknowledges, Region *taken_from,
                           int *is_none);
/* Claim up to `limit`: how many, 0 = none came in time, -1 = raised. With `taken_from`, a small new
 * message is acknowledged by then. It is in that page, a new reference: before it is read,
 * retention can remove the file, and another thread can map another page. */
int pq_group_claim(Claims *self, int64_t timeout, pq_claim *got, uint32_t limit,
                   Region **taken_from);
/* Give back what was claimed, or taken, and was not handed over: as if it had not been claimed.
 * Keeps an exception. */
void pq_group_undo(Claims *self, pq_claim *got, uint32_t count);
/* Whether the exception that was raised is about the message: then its delivery failed. */
int pq_group_is_of_message(Claims *self);
/* Its message; `page` is where it stands, NULL = find it. */
PyObject *pq_group_read(Claims *self, const pq_claim *got, Region *page);
PyObject *pq_claim_new(Claims *group, PyObject *message, const pq_claim *got);

/* python/group_handle_calls.c */
PyObject *pq_claims_enter(Claims *self, PyObject *args);
PyObject *pq_claims_leave(Claims *self, PyObject *unused);
PyObject *pq_claims_place(Claims *self, PyObject *args);
PyObject *pq_claims_release(Claims *self, PyObject *args);
PyObject *pq_claims_owners(Claims *self, PyObject *unused);
PyObject *pq_claims_next(Claims *self, PyObject *unused);
PyObject *pq_claims_wake_in(Claims *self, PyObject *unused);
PyObject *pq_claims_snapshot(Claims *self, PyObject *unused);
PyObject *pq_claims_settle(Claims *self, PyObject *args);
PyObject *pq_claims_read(Claims *self, PyObject *args);

#endif
