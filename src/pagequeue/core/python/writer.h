/* What the parts of a Writer share (python/writer*.c), and one attempt under the writers' lock. */
#ifndef PAGEQUEUE_WRITER_H
#define PAGEQUEUE_WRITER_H

#include "python/module.h"

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
    uint64_t only_at;      /* sequence + 1 that a batch must begin with, 0 = any */
    uint64_t record_bytes; /* every message has so many; 0 = any number */
    uint64_t fitting;      /* messages of the batch that was too large that fit into a page */
    int64_t lock_timeout;  /* ns */
    PyObject *clock;       /* None = the system's */
    unsigned fork_count;
    int closed;
    int inside; /* threads that are in an attempt without the GIL */
} Writer;

typedef enum { PQ_DO_APPEND, PQ_DO_ROLL, PQ_DO_FREEZE, PQ_DO_BULK_COMMIT } pq_writer_do;

typedef struct {
    pq_writer_do what;
    pq_place at; /* a copy: another thread may attach the next page meanwhile */
    pq_lock *lock;
    const pq_batch *batch;
    int64_t now; /* PQ_TIMESTAMP_NOW = take it when the lock is held */
    int64_t exact;
    Region *meta, *page;
    Region *next_page;     /* roll, bulk commit */
    const uint8_t *header; /* of the next page */
    pq_tail *end;          /* freeze: gets the end of the page */
    const pq_tail *beyond; /* bulk commit: publishes all pages up to there, the next page first */
    Region *taker;
    uint64_t taker_limit, only_at;
    pq_appended out;
    pq_append_result result;
} attempt;

/* One attempt; returns a pq_append_result, or -1 with an exception set. */
int pq_writer_run(Writer *self, attempt *try, int free_gil);
/* Whether it can be used now; 0 = raised. */
int pq_writer_ready(Writer *self);
/* Append a batch, whatever that takes; -1 = raised. The checksums of what is fixed are computed. */
int pq_writer_append(Writer *self, pq_batch *batch, pq_payload *items, int64_t exact,
                     pq_appended *out);
/* python/writer_payloads.c */
PyObject *pq_writer_send(Writer *self, PyObject *const *args, Py_ssize_t arg_count,
                         PyObject *names);
PyObject *pq_writer_send_many(Writer *self, PyObject *args);
/* python/writer_arrays.c */
PyObject *pq_writer_send_rows(Writer *self, PyObject *args);
PyObject *pq_writer_send_spans(Writer *self, PyObject *args);
/* Times as int64 in a bytes object, or None: NULL, and no error, for None. */
int pq_times_of(PyObject *object, size_t count, const int64_t **times);
/* Append, and return the first sequence and the count; None for none. */
PyObject *pq_writer_sent(Writer *self, pq_batch *batch, pq_payload *items);
PyObject *pq_writer_bind(Writer *self, PyObject *args);
/* python/writer_bulk.c */
PyObject *pq_writer_freeze(Writer *self, PyObject *unused);
PyObject *pq_writer_leap(Writer *self, PyObject *args);

/* Whether another one's flush made all before a sequence durable: waits while one is under way. */
int pq_writer_is_durable(Writer *self, uint64_t sequence);

#endif
