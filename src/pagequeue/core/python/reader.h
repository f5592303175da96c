/* What python/reader.c and python/reader_batch.c share: a Reader, and how it reaches the next
 * message. */
#ifndef PAGEQUEUE_READER_H
#define PAGEQUEUE_READER_H

#include "python/module.h"

#define PQ_HOLE_POLLS 1023 /* of so many empty polls one checks for a hole */

typedef struct {
    PyObject_HEAD
    Region *meta, *page;
    uint64_t position, sequence;
    uint64_t page_number;
    uint64_t end_sequence; /* stops before it */
    uint64_t limit;        /* messages from here on do not exist yet: asks first */
    uint64_t empty_polls, asked; /* the sequence + 1 for which the tail words were asked */
    int64_t since;         /* older messages are passed over */
    int64_t until;         /* stops at it; INT64_MIN = no end, because any time may come */
    int64_t spin_ns;       /* how long spinning lately paid off */
    int64_t checked_at;    /* when an empty poll last had the names checked */
    PyObject *decoder;     /* of every message's value; NULL = that is the payload */
    unsigned fork_count;
    char durable_only; /* hand out only messages on stable storage */
    char registers; /* may write that it sleeps */
    char waits;     /* iterating waits for ever */
    char busy, closed, stuck;
} Reader;

typedef enum { READ_TAKEN, READ_EMPTY, READ_ENDED, READ_RAISED } reading;

/* Acquire the reader (sets `busy`). Returns 1, or 0 with an exception set. */
int pq_reader_begin(Reader *self);
/* Find the next wanted message, without taking it; `payload` is its checked copy, or NULL: it is
 * checked in place. */
reading pq_reader_reach(Reader *self, int64_t timeout, pq_frame *frame, PyObject **payload);
/* A new reference to the message of whose payload the frame is the head; `whole`: its payload is in
 * memory then, and not only found. NULL = raised. */
PyObject *pq_reader_large(Reader *self, const pq_frame *frame, int whole);
/* Continue after `count` messages, which end at a position. */
void pq_reader_step(Reader *self, uint64_t position, uint64_t count);
/* Raise that no message came in time, unless an exception is set already. */
PyObject *pq_reader_timed_out(Reader *self, int64_t timeout);
PyObject *pq_reader_read_many(PyObject *self, PyObject *args);

/* The first sequence that may not be handed out yet. */
static inline uint64_t pq_reader_limit(const Reader *self) {
    uint64_t durable = self->durable_only
                           ? pq_load_u64(self->meta->base + PQ_WRITE_META_DURABLE_SEQUENCE)
                           : UINT64_MAX;
    return durable < self->limit ? durable : self->limit;
}

#endif
