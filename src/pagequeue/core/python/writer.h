/* What the parts of a Writer share (python/writer*.c), and one attempt under the writers' lock. */
#ifndef PAGEQUEUE_WRITER_H
#define PAGEQUEUE_WRITER_H

#include "python/clock.h"
#include "python/module.h"

/* A page, and what a producer has to know of it. */
typedef struct {
    Region *page, *index;
    unsigned long long number, first_sequence;
    unsigned long long ahead_at; /* position from which the next page should be made ready */
    unsigned long long page_reserved, index_reserved; /* bytes that have blocks, 0 = all */
} pq_attachment;

/* A next page that is mapped, with all that a roll and the producer after it need. */
typedef struct {
    pq_attachment to; /* its page is NULL: there is none */
    uint8_t header[PQ_PAGE_HEADER_BYTES]; /* without what only the roll knows */
    PyObject *folder;  /* the owner of the directory's descriptor */
    PyObject *watched; /* tuples of a name, a device and an inode, which must still belong together */
} pq_ready_page;

typedef struct {
    PyObject_HEAD
    Region *meta, *page, *index;
    Region *group_file;         /* the file of a group, NULL = none */
    uint64_t group_limit;  /* most messages that it may have before it */
    pq_place at;
    pq_lock lock;
    uint64_t ahead_at;     /* position from which the next page should be made ready */
    uint64_t sync_every;   /* messages, 0 = never */
    uint64_t unsynced;     /* messages since the last sync was asked for */
    uint64_t record_bytes; /* every message has so many; 0 = any number */
    int64_t lock_timeout;  /* ns */
    int64_t checked_at;    /* when the names were last checked, by the system's clock */
    int64_t full_timeout;  /* ns that a call without a timeout of its own may be blocked */
    PyObject *clock;       /* None = the system's, as it is */
    Clock *even;           /* the same, if it is one that looks at its readings; else NULL */
    unsigned fork_count;
    int closed;
    int inside; /* threads that are in an attempt without the GIL */
    pq_ready_page ready; /* where a roll continues without a call of Python */
} Writer;

/* A call loses so many pages whatever its timeout: one that does not wait at all sends all the same
 * beside busy senders. */
#define PQ_LOSSES_MIN 16

/* What a caller asks for besides the messages. */
typedef struct {
    int64_t exact;    /* timestamp of the first message; PQ_TIMESTAMP_NOW = now */
    uint64_t only_at; /* sequence + 1 that it must get, else nothing is sent; 0 = any */
    int64_t timeout;  /* ns to wait for room; -1 = as long as the queue's `full_timeout` */
    int never_blocks; /* what could block is deferred: this is an event loop's thread */
} pq_terms;

typedef enum { PQ_DO_APPEND, PQ_DO_ROLL, PQ_DO_FREEZE, PQ_DO_BULK_COMMIT } pq_writer_do;

typedef struct {
    pq_writer_do what;
    pq_place at; /* a copy: another thread may attach the next page meanwhile */
    pq_lock *lock;
    const pq_batch *batch;
    int64_t now; /* PQ_TIMESTAMP_NOW = take it when the lock is held, ... */
    int64_t from, late; /* ... if it is in this window of the clock, else use `late` */
    uint64_t span;
    const pq_terms *terms; /* append */
    Region *meta, *page;
    Region *next_page;     /* roll, bulk commit */
    const uint8_t *header; /* of the next page */
    pq_tail *end;          /* freeze: gets the end of the page */
    const pq_tail *beyond; /* bulk commit: publishes all pages up to there, the next page first */
    Region *group_file;
    uint64_t group_limit;
    pq_appended out;
    pq_append_result result;
} attempt;

/* One attempt; returns a pq_append_result, or -1 with an exception set. */
int pq_writer_run(Writer *self, attempt *try, int free_gil);
/* Whether it can be used now; 0 = raised. */
int pq_writer_ready(Writer *self);
/* Append a batch, whatever that takes; -1 = raised. The checksums of what is fixed are computed. */
int pq_writer_append(Writer *self, pq_batch *batch, pq_payload *items, const pq_terms *terms,
                     pq_appended *out);
/* Attach to a page; takes references of its own. */
void pq_writer_attach(Writer *self, const pq_attachment *to);
/* python/writer_roll.c */
PyObject *pq_writer_roll(Writer *self, PyObject *args);
PyObject *pq_writer_ready_page(Writer *self, PyObject *args);
void pq_writer_unready(Writer *self);
/* Continue in the page that is ready: 1 = done, 0 = Python must do it, -1 = raised. */
int pq_writer_roll_ready(Writer *self);
/* python/writer_payloads.c */
PyObject *pq_writer_send(Writer *self, PyObject *const *args, Py_ssize_t arg_count,
                         PyObject *names);
PyObject *pq_writer_send_many(Writer *self, PyObject *args);
/* python/writer_arrays.c */
PyObject *pq_writer_send_rows(Writer *self, PyObject *args);
PyObject *pq_writer_send_spans(Writer *self, PyObject *args);
/* Times as int64 in a bytes object, or None: NULL, and no error, for None. */
int pq_times_of(PyObject *object, size_t count, const int64_t **times);
/* `at` and `timeout` as they were given, NULL or None: not at all. -1 = raised */
int pq_terms_of(PyObject *at, PyObject *timeout, pq_terms *terms);
/* Append, and return the first sequence and the count; None for none. */
PyObject *pq_writer_sent(Writer *self, pq_batch *batch, pq_payload *items, pq_terms *terms);
PyObject *pq_writer_bind(Writer *self, PyObject *args);
/* python/writer_bulk.c */
PyObject *pq_writer_freeze(Writer *self, PyObject *unused);
PyObject *pq_writer_commit_pages(Writer *self, PyObject *args);

/* Whether another one's flush made all before a sequence durable: waits while one is under way. */
int pq_writer_is_durable(Writer *self, uint64_t sequence);

#endif
