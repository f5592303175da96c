/* Writer, continued: many messages at once, in one page or in pages that were laid down before.
 *
 * What is published under a condition is published at a sequence that was named before, or not at
 * all: so that whoever wrote that down can tell afterwards whether it was done.
 */
#include "writer.h"

int pq_payload_of(PyObject *object, pq_payload *item, Py_buffer *view, int *viewed) {
    *viewed = 0;
    item->later = 0;
    item->fixed = PyBytes_CheckExact(object);
    if (item->fixed) {
        item->data = PyBytes_AsString(object);
        item->bytes = (size_t)PyBytes_Size(object);
        return 0;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            /* A buffer that is not contiguous is a BufferError: the same mistake to the caller. */
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "a payload is a C-contiguous bytes-like object, not %R",
                         (PyObject *)Py_TYPE(object));
        }
        return -1;
    }
    *viewed = 1;
    item->data = view->buf;
    item->bytes = (size_t)view->len;
    return 0;
}

typedef struct {
    PyObject *held;
    pq_payload *items;
    Py_buffer *view;
    Py_ssize_t count, views;
} batch;

static void batch_release(batch *all) {
    while (all->views > 0) {
        PyBuffer_Release(&all->view[--all->views]);
    }
    PyMem_Free(all->view);
    PyMem_Free(all->items);
    Py_XDECREF((PyObject *)all->held);
}

/* 1 = there, 0 = raised; to be released either way. */
static int batch_take(batch *all, PyObject *payloads) {
    all->held = PySequence_Tuple(payloads);
    if (all->held == NULL) {
        return 0;
    }
    all->count = PyTuple_Size(all->held);
    all->items = PyMem_Malloc((size_t)(all->count + 1) * sizeof *all->items);
    if (all->items == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < all->count; i++) {
        PyObject *item = PyTuple_GetItem(all->held, i);
        int viewed;
        if (all->view == NULL && !PyBytes_CheckExact(item)) {
            all->view = PyMem_Malloc((size_t)(all->count - i) * sizeof *all->view);
            if (all->view == NULL) {
                PyErr_NoMemory();
                return 0;
            }
        }
        Py_buffer *view = all->view == NULL ? NULL : &all->view[all->views];
        if (pq_payload_of(item, &all->items[i], view, &viewed) < 0) {
            return 0;
        }
        all->views += viewed;
    }
    return 1;
}

/* (first sequence, count), or None for no payloads at all */
PyObject *pq_writer_send_many(Writer *self, PyObject *payloads) {
    batch all = {0};
    pq_appended out = {0};
    int good = batch_take(&all, payloads);
    Py_ssize_t count = all.count;
    if (good && count > 0) {
        good = pq_writer_append(self, all.items, (size_t)count, PQ_TIMESTAMP_NOW, 0, &out) == 0;
    } else if (good) {
        good = pq_writer_ready(self);
    }
    batch_release(&all);
    if (!good) {
        return NULL;
    }
    if (count == 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(Kn)", (unsigned long long)out.sequence, count);
}

/* One batch, whose messages have times of their own, as the messages from a sequence on.
 *
 * Returns False when another one has that sequence by now, or a later time: nothing was sent. */
PyObject *pq_writer_send_at(Writer *self, PyObject *args) {
    PyObject *payloads;
    unsigned long long sequence;
    Py_buffer times;
    batch all = {0};
    pq_appended out;
    if (!PyArg_ParseTuple(args, "OKy*:_send_at", &payloads, &sequence, &times)) {
        return NULL;
    }
    int result = -1, good = batch_take(&all, payloads);
    if (good && (all.count == 0 || times.len != all.count * 8 ||
                 (uintptr_t)times.buf % sizeof(int64_t) != 0)) {
        PyErr_SetString(PyExc_ValueError, "one time for each payload, of which there is one");
        good = 0;
    }
    const int64_t *at = times.buf;
    for (Py_ssize_t i = 0; good && i < all.count; i++) {
        all.items[i].later = at[i] - at[0];
        if (at[0] < 0 || at[i] < at[i > 0 ? i - 1 : 0]) {
            PyErr_SetString(PyExc_ValueError, "times are ns since 1970, in order");
            good = 0;
        }
    }
    if (good) {
        result = pq_writer_append(self, all.items, (size_t)all.count, at[0], sequence + 1, &out);
    }
    batch_release(&all);
    PyBuffer_Release(&times);
    return result < 0 ? NULL : PyBool_FromLong(result == 0);
}

/* (pq_append_result, page number, position, count, first sequence, last timestamp) */
PyObject *pq_writer_freeze(Writer *self, PyObject *Py_UNUSED(unused)) {
    pq_tail tail = {0};
    attempt try = {.freeze = &tail};
    int result = pq_writer_ready(self) ? pq_writer_run(self, &try, 1) : -1;
    return result < 0 ? NULL
                      : Py_BuildValue("(iKKKKL)", result, (unsigned long long)tail.page_number,
                                      (unsigned long long)tail.position,
                                      (unsigned long long)tail.count,
                                      (unsigned long long)tail.first_sequence,
                                      (long long)tail.last_timestamp);
}

/* Returns a pq_append_result. */
PyObject *pq_writer_leap(Writer *self, PyObject *args) {
    Region *next_page;
    Py_buffer header;
    unsigned long long number, position, count, first_sequence;
    long long last_timestamp;
    if (!PyArg_ParseTuple(args, "O!y*(KKKKL):_leap", pq_region_type, &next_page, &header, &number,
                          &position, &count, &first_sequence, &last_timestamp)) {
        return NULL;
    }
    pq_tail beyond = {.page_number = number, .position = position, .count = count,
                      .first_sequence = first_sequence, .last_timestamp = last_timestamp};
    int result = -1;
    if (header.len != (Py_ssize_t)PQ_PAGE_HEADER_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a page header has another size");
    } else if (pq_region_check(next_page, PQ_PAGE_BYTES_MIN, 0, "next page") == 0 &&
               pq_writer_ready(self)) {
        attempt try = {.next_page = next_page, .header = header.buf, .beyond = &beyond};
        result = pq_writer_run(self, &try, 1);
    }
    PyBuffer_Release(&header);
    return result < 0 ? NULL : PyLong_FromLong(result);
}

/* How many frames were right: all of them, or the page is damaged. */
PyObject *pq_core_restamp(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *page, *index;
    unsigned long long old, count, first_sequence, done = 0;
    long long timestamp;
    if (!PyArg_ParseTuple(args, "O!O!KKKL:restamp", pq_region_type, &page, pq_region_type, &index,
                          &old, &count, &first_sequence, &timestamp) ||
        pq_region_check(page, PQ_PAGE_BYTES_MIN, 1, "page") < 0 ||
        pq_region_check(index, PQ_INDEX_RECORD_BYTES, 1, "index") < 0) {
        return NULL;
    }
    pq_place at = {.page = page->base, .page_bytes = page->bytes, .first_sequence = old,
                   .index = index->base, .index_capacity = index->bytes / PQ_INDEX_RECORD_BYTES};
    uint64_t good = 0;
    Py_BEGIN_ALLOW_THREADS
    if (pq_restamp(&at, count, first_sequence, timestamp < 0 ? PQ_TIMESTAMP_NOW : timestamp,
                   &good) < 0 && good == count) {
        good = UINT64_MAX; /* all frames, and then something that should not be there */
    }
    Py_END_ALLOW_THREADS
    done = good;
    return PyLong_FromUnsignedLongLong(done);
}
