/* Many messages at once: the frames that stand in one page from a reader's place on, checked where
 * they stand and told of as columns. No object is made for a message, and no payload is copied:
 * `columns.c` does that for whoever wants it.
 */
#include "reader.h"

typedef struct {
    PyObject *times, *spans; /* bytes: int64_t and pq_span for each message */
    Py_ssize_t count;
    uint64_t next; /* position behind the last one */
} gathered;

/* How many frames can come at most, so that a reader that asks for many takes no memory for them
 * in vain. */
static Py_ssize_t most(const Reader *self, Py_ssize_t limit, uint64_t bytes_max) {
    uint64_t rest = self->page->bytes - self->position;
    uint64_t count = (rest < bytes_max ? rest : bytes_max) / PQ_FRAME_BYTES + 1;
    return count < (uint64_t)limit ? (Py_ssize_t)count : limit;
}

/* The frames that validate in this page from here on. What stands behind the last of them is for
 * the next read to say. */
static void gather(const Reader *self, Py_ssize_t limit, uint64_t bytes_max, gathered *run) {
    int64_t *times = (int64_t *)(void *)PyBytes_AsString(run->times);
    pq_span *spans = (pq_span *)(void *)PyBytes_AsString(run->spans);
    uint64_t position = self->position, start = position, sequence = self->sequence;
    uint64_t allowed = pq_reader_limit(self);
    uint64_t end = self->end_sequence < allowed ? self->end_sequence : allowed;
    run->count = 0;
    while (run->count < limit && sequence < end && position - start < bytes_max) {
        pq_frame frame;
        if (pq_frame_check(self->page->base, self->page->bytes, position, sequence, &frame) !=
                PQ_READ_FRAME ||
            (self->until != INT64_MIN && frame.timestamp >= self->until)) {
            break;
        }
        times[run->count] = frame.timestamp;
        spans[run->count].position = (uint32_t)(position + PQ_FRAME_BYTES);
        spans[run->count].bytes = frame.payload_bytes;
        position = frame.next;
        sequence += 1;
        run->count += 1;
    }
    run->next = position;
}

/* (page, first sequence, timestamps, spans); NULL without an error: nothing stands here any more */
static PyObject *gathered_columns(Reader *self, Py_ssize_t limit, uint64_t bytes_max) {
    Py_ssize_t room = most(self, limit, bytes_max);
    gathered run = {.times = PyBytes_FromStringAndSize(NULL, room * (Py_ssize_t)sizeof(int64_t)),
                    .spans = PyBytes_FromStringAndSize(NULL, room * (Py_ssize_t)sizeof(pq_span))};
    PyObject *result = NULL;
    if (run.times != NULL && run.spans != NULL) {
        gather(self, room, bytes_max, &run);
        if (run.count > 0 &&
            _PyBytes_Resize(&run.times, run.count * (Py_ssize_t)sizeof(int64_t)) == 0 &&
            _PyBytes_Resize(&run.spans, run.count * (Py_ssize_t)sizeof(pq_span)) == 0) {
            result = Py_BuildValue("(OKOO)", (PyObject *)self->page,
                                   (unsigned long long)self->sequence, run.times, run.spans);
        }
    }
    if (result != NULL) {
        pq_reader_step(self, run.next, (uint64_t)run.count);
    }
    Py_XDECREF(run.times);
    Py_XDECREF(run.spans);
    return result;
}

static PyObject *read_many(Reader *self, Py_ssize_t limit, uint64_t bytes_max, int64_t timeout) {
    /* The first message is reached the ordinary way: that waits, turns pages, passes over old ones
     * and says what is wrong. When it is gone at the second look, that is done again. */
    for (;;) {
        pq_frame frame;
        reading found = pq_reader_reach(self, timeout, &frame, NULL);
        if (found == READ_ENDED) {
            Py_RETURN_NONE;
        }
        if (found != READ_TAKEN) {
            return pq_reader_timed_out(self, timeout);
        }
        PyObject *result = gathered_columns(self, limit, bytes_max);
        if (result != NULL || PyErr_Occurred()) {
            return result;
        }
    }
}

PyObject *pq_reader_read_many(PyObject *object, PyObject *args) {
    Reader *self = (Reader *)object;
    Py_ssize_t limit;
    unsigned long long bytes_max;
    PyObject *seconds;
    if (!PyArg_ParseTuple(args, "nOK:_read_many", &limit, &seconds, &bytes_max)) {
        return NULL;
    }
    int64_t timeout = pq_timeout_ns(seconds);
    if (timeout < -1) {
        return NULL;
    }
    if (limit < 1 || limit > (Py_ssize_t)PQ_READ_COUNT_MAX) {
        PyErr_Format(PyExc_ValueError, "limit_count is 1 to %llu, not %zd",
                     (unsigned long long)PQ_READ_COUNT_MAX, limit);
        return NULL;
    }
    if (!pq_reader_begin(self)) {
        return NULL;
    }
    PyObject *result = read_many(self, limit, bytes_max > 0 ? bytes_max : 1, timeout);
    self->busy = 0;
    return result;
}
