/* Many messages at once: the frames of one page from a reader's place on, checked in place and
 * returned as columns. No object is made for a message, and no payload is copied:
 * `python/payload_spans.c` does that on demand. */
#include "python/reader.h"

#define AHEAD_LINES 8 /* of small messages, those of a check are fetched into the cache ahead of it */
#define AHEAD_BYTES 1536

typedef struct {
    int64_t *times;
    pq_span *spans;
    Py_ssize_t count;
    uint64_t next; /* position after the last one */
} gathered;

/* How many frames can come at most, so that a reader that asks for many takes no memory for them
 * in vain. */
static Py_ssize_t most(const Reader *self, Py_ssize_t limit, uint64_t bytes_max) {
    uint64_t rest = self->page->bytes - self->position;
    uint64_t count = (rest < bytes_max ? rest : bytes_max) / PQ_FRAME_BYTES + 1;
    return count < (uint64_t)limit ? (Py_ssize_t)count : limit;
}

/* The frames that validate in this page from here on: the first one was checked when it was reached.
 * The next read reports why they end. */
static void gather(const Reader *self, const pq_frame *first, Py_ssize_t limit,
                   uint64_t bytes_max, gathered *run) {
    const Region *page = self->page;
    uint64_t position = self->position, start = position, sequence = self->sequence;
    uint64_t allowed = pq_reader_limit(self);
    uint64_t end = self->end_sequence < allowed ? self->end_sequence : allowed;
    pq_frame frames[PQ_CRC_LANES] = {*first};
    size_t count = 1, taken;
    run->count = 0;
    do {
        for (taken = 0; taken < count; taken++) {
            const pq_frame *frame = &frames[taken];
            if (run->count == limit || sequence >= end || position - start >= bytes_max ||
                (run->count > 0 &&
                 ((self->until != INT64_MIN && frame->timestamp >= self->until) ||
                  pq_is_large(frame->word)))) {
                break;
            }
            pq_span span = {(uint32_t)(position + PQ_FRAME_BYTES), frame->payload_bytes};
            run->times[run->count] = frame->timestamp;
            run->spans[run->count] = span;
            position = frame->next;
            sequence += 1;
            run->count += 1;
        }
        if (taken < count) {
            break;
        }
        for (int line = 0; line < AHEAD_LINES; line++) { /* never a fault, wherever the page ends */
            __builtin_prefetch(page->base + position + AHEAD_BYTES + 64 * line);
        }
        count = pq_frames_check(page->base, page->bytes, page->queue_state, position, sequence,
                                (size_t)(limit - run->count), frames);
    } while (count > 0);
    run->next = position;
}

/* (page, first sequence, timestamps, spans); NULL without an error: none may be read any more */
static PyObject *gathered_columns(Reader *self, const pq_frame *first, Py_ssize_t limit,
                                  uint64_t bytes_max) {
    size_t room = (size_t)most(self, limit, bytes_max);
    gathered run = {.times = PyMem_Malloc(room * (sizeof(int64_t) + sizeof(pq_span)))};
    if (run.times == NULL) {
        return PyErr_NoMemory();
    }
    run.spans = (pq_span *)(run.times + room);
    gather(self, first, (Py_ssize_t)room, bytes_max, &run);
    PyObject *result = NULL;
    if (run.count > 0) {
        result = Py_BuildValue("(OKy#y#)", (PyObject *)self->page,
                               (unsigned long long)self->sequence, (char *)run.times,
                               run.count * (Py_ssize_t)sizeof(int64_t), (char *)run.spans,
                               run.count * (Py_ssize_t)sizeof(pq_span));
    }
    PyMem_Free(run.times);
    if (result != NULL) {
        pq_reader_step(self, run.next, (uint64_t)run.count);
    }
    return result;
}

static PyObject *read_many(Reader *self, Py_ssize_t limit, uint64_t bytes_max, int64_t timeout) {
    /* The first message is reached the ordinary way: that waits, turns pages, skips old ones and
     * raises errors. When the end has moved to before it meanwhile, that is repeated. */
    for (;;) {
        pq_frame frame;
        reading found = pq_reader_reach(self, timeout, &frame, NULL);
        if (found == READ_ENDED) {
            Py_RETURN_NONE;
        }
        if (found != READ_TAKEN) {
            return pq_reader_timed_out(self, timeout);
        }
        if (pq_is_large(frame.word)) { /* a batch of its own: the message */
            PyObject *message = pq_reader_large(self, &frame, 1);
            if (message == Py_None) { /* retention was faster: the reader is at the head now */
                Py_DECREF(message);
                continue;
            }
            if (message != NULL) {
                pq_reader_step(self, frame.next, 1);
            }
            return message;
        }
        PyObject *result = gathered_columns(self, &frame, limit, bytes_max);
        if (result != NULL || PyErr_Occurred()) {
            return result;
        }
    }
}

PyObject *pq_reader_read_many(PyObject *object, PyObject *args) {
    Reader *self = (Reader *)object;
    unsigned long long bytes_max;
    PyObject *count, *seconds;
    if (!PyArg_ParseTuple(args, "OOK:_read_many", &count, &seconds, &bytes_max)) {
        return NULL;
    }
    int64_t timeout = pq_timeout_ns(seconds);
    Py_ssize_t limit =
        timeout < -1 ? -1 : pq_count_of("limit_count", count, (Py_ssize_t)PQ_READ_COUNT_MAX);
    if (limit < 0) {
        return NULL;
    }
    if (!pq_reader_begin(self)) {
        return NULL;
    }
    PyObject *result = read_many(self, limit, bytes_max > 0 ? bytes_max : 1, timeout);
    self->busy = 0;
    return result;
}
