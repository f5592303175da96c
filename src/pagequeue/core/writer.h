/* What writer.c and attempt.c share: a Writer, and one attempt under the writers' lock. */
#ifndef PAGEQUEUE_WRITER_H
#define PAGEQUEUE_WRITER_H

#include "objects.h"

typedef struct {
    PyObject_HEAD
    Region *meta, *page, *index;
    Region *taker;         /* the file of a group, NULL = none */
    uint64_t taker_limit;  /* most messages that it may have before it */
    pq_place at;
    pq_lock lock;
    uint64_t ahead_at;     /* position from which the next page should be made ready */
    uint64_t sync_every;   /* messages, 0 = never */
    uint64_t unsynced;     /* messages since the last sync was asked for */
    int64_t lock_timeout;  /* ns */
    PyObject *clock;       /* None = the system's */
    unsigned fork_count;
    int closed;
    int inside; /* threads that are in an attempt without the GIL */
} Writer;

typedef struct {
    pq_place at; /* a copy: another thread may attach the next page meanwhile */
    pq_lock *lock;
    const pq_payload *items;
    size_t item_count;
    int64_t now; /* PQ_TIMESTAMP_NOW = take it when the lock is held */
    int64_t exact;
    Region *meta, *page;
    Region *next_page; /* not NULL = roll instead */
    const uint8_t *header; /* of the next page */
    pq_tail *freeze;       /* not NULL = only freeze the page, and say where it ends */
    const pq_tail *beyond; /* not NULL = publish all pages up to there, the next page first */
    uint64_t only_at;      /* sequence + 1 that the first message must get, 0 = any */
    Region *taker;
    uint64_t taker_limit;
    pq_appended out;
} attempt;

/* One attempt; returns a pq_append_result, or -1 with an exception set. */
int pq_writer_run(Writer *self, attempt *try, int free_gil);
PyObject *pq_writer_bind(Writer *self, PyObject *args);

int pq_writer_ready(Writer *self);
pq_event pq_writer_event(int result);

/* 0 = done, -1 = raised, 1 = another one has the sequence, or the time is too old: only where
 * `only_at` is given. */
int pq_writer_append(Writer *self, pq_payload *items, size_t count, int64_t exact,
                     uint64_t only_at, pq_appended *out);
int pq_payload_of(PyObject *object, pq_payload *item, Py_buffer *view, int *viewed);

PyObject *pq_writer_send_many(Writer *self, PyObject *payloads);
PyObject *pq_writer_send_at(Writer *self, PyObject *args);
PyObject *pq_writer_freeze(Writer *self, PyObject *unused);
PyObject *pq_writer_leap(Writer *self, PyObject *args);

/* Whether another one's flush made all before a sequence durable: waits while one is under way. */
int pq_writer_is_durable(Writer *self, uint64_t sequence);

#endif
