/* Many messages at once: the frames that stand in one page from a reader's place on, as columns. */
#include "reader.h"

typedef struct {
    pq_frame *frames;
    Py_ssize_t count;
} gathered;

/* The frames that stand in this page from here on, unchecked but inside the page. */
static void gather(const Reader *self, Py_ssize_t limit, gathered *run) {
    uint64_t position = self->position, start = position;
    uint64_t allowed = pq_reader_limit(self);
    uint64_t end = self->end_sequence < allowed ? self->end_sequence : allowed;
    run->count = 0;
    while (run->count < limit && self->sequence + (uint64_t)run->count < end &&
           position - start < PQ_READ_BYTES_MAX) {
        pq_frame *frame = &run->frames[run->count];
        if (pq_frame_look(self->page->base, self->page->bytes, position, frame) != PQ_READ_FRAME ||
            (self->until != INT64_MIN && frame->timestamp >= self->until)) {
            break;
        }
        position = frame->next;
        run->count += 1;
    }
}

static PyObject *gathered_payloads(const Reader *self, gathered *run) {
    PyObject *list = PyList_New(run->count);
    for (Py_ssize_t i = 0; list != NULL && i < run->count; i++) {
        int good;
        PyObject *payload = pq_payload_copy(&run->frames[i], self->sequence + (uint64_t)i, &good);
        if (payload == NULL) {
            Py_CLEAR(list);
        } else if (good) {
            PyList_SetItem(list, i, payload);
        } else {
            /* Hand out what is good; the next read starts at the damage and says so. */
            Py_DECREF((PyObject *)payload);
            if (PyList_SetSlice(list, i, run->count, NULL) < 0) {
                Py_CLEAR(list);
            }
            run->count = i;
        }
    }
    return list;
}

/* (payloads, first sequence, timestamps as bytes, lengths as bytes) */
static PyObject *gathered_columns(Reader *self, gathered *run) {
    PyObject *payloads = gathered_payloads(self, run);
    PyObject *times = PyBytes_FromStringAndSize(NULL, run->count * 8);
    PyObject *lengths = PyBytes_FromStringAndSize(NULL, run->count * 8);
    PyObject *result = NULL;
    if (payloads != NULL && times != NULL && lengths != NULL) {
        char *time = PyBytes_AsString(times), *length = PyBytes_AsString(lengths);
        for (Py_ssize_t i = 0; i < run->count; i++) {
            int64_t bytes = run->frames[i].payload_bytes;
            memcpy(time + 8 * i, &run->frames[i].timestamp, 8);
            memcpy(length + 8 * i, &bytes, 8);
        }
        result = Py_BuildValue("(OKOO)", payloads, (unsigned long long)self->sequence, times,
                               lengths);
    }
    if (result != NULL && run->count > 0) {
        pq_reader_step(self, &run->frames[run->count - 1], (uint64_t)run->count);
    }
    Py_XDECREF((PyObject *)payloads);
    Py_XDECREF((PyObject *)times);
    Py_XDECREF((PyObject *)lengths);
    return result;
}

static PyObject *read_many(Reader *self, Py_ssize_t limit, int64_t timeout) {
    /* The first message is reached the ordinary way: that waits, turns pages, passes over old ones
     * and says what is wrong. When it is gone at the second look, that is done again. */
    PyObject *result = NULL;
    Py_ssize_t count = 0;
    while (count == 0) {
        pq_frame frame;
        PyObject *payload = NULL;
        reading found = pq_reader_reach(self, timeout, &frame, &payload);
        if (found == READ_ENDED) {
            Py_RETURN_NONE;
        }
        if (found != READ_TAKEN) {
            return pq_reader_timed_out(self, timeout);
        }
        Py_DECREF((PyObject *)payload);
        gathered run = {.frames = PyMem_Malloc((size_t)limit * sizeof(pq_frame))};
        if (run.frames == NULL) {
            return PyErr_NoMemory();
        }
        gather(self, limit, &run);
        result = gathered_columns(self, &run);
        count = result == NULL ? -1 : run.count;
        PyMem_Free(run.frames);
        if (count == 0) {
            Py_CLEAR(result);
        }
    }
    return result;
}

PyObject *pq_reader_read_many(PyObject *object, PyObject *args) {
    Reader *self = (Reader *)object;
    Py_ssize_t limit;
    PyObject *seconds;
    if (!PyArg_ParseTuple(args, "nO:_read_many", &limit, &seconds)) {
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
    PyObject *result = read_many(self, limit, timeout);
    self->busy = 0;
    return result;
}
