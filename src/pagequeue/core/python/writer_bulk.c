/* Writer, continued: pages that were staged before, and published by one store. */
#include "python/writer.h"

/* (pq_append_result, page number, position, count, first sequence, last timestamp) */
PyObject *pq_writer_freeze(Writer *self, PyObject *Py_UNUSED(unused)) {
    pq_tail tail = {0};
    attempt try = {.what = PQ_DO_FREEZE, .end = &tail};
    int result = pq_writer_ready(self) ? pq_writer_run(self, &try, 1) : -1;
    return result < 0 ? NULL
                      : Py_BuildValue("(iKKKKL)", result, (unsigned long long)tail.page_number,
                                      (unsigned long long)tail.position,
                                      (unsigned long long)tail.count,
                                      (unsigned long long)tail.first_sequence,
                                      (long long)tail.last_timestamp);
}

/* Returns a pq_append_result. */
PyObject *pq_writer_commit_pages(Writer *self, PyObject *args) {
    Region *next_page;
    Py_buffer header;
    unsigned long long number, position, count, first_sequence;
    long long last_timestamp;
    if (!PyArg_ParseTuple(args, "O!y*(KKKKL):_bulk_commit", pq_region_type, &next_page, &header,
                          &number, &position, &count, &first_sequence, &last_timestamp)) {
        return NULL;
    }
    pq_tail beyond = {.page_number = number, .position = position, .count = count,
                      .first_sequence = first_sequence, .last_timestamp = last_timestamp};
    int result = -1;
    if (header.len != (Py_ssize_t)PQ_PAGE_HEADER_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a page header has another size");
    } else if (pq_region_check(next_page, PQ_PAGE_BYTES_MIN, 0, "next page") == 0 &&
               pq_writer_ready(self)) {
        attempt try = {.what = PQ_DO_BULK_COMMIT, .next_page = next_page,
                       .header = header.buf, .beyond = &beyond};
        result = pq_writer_run(self, &try, 1);
    }
    PyBuffer_Release(&header);
    return result < 0 ? NULL : PyLong_FromLong(result);
}

/* How many frames were right: all of them, or the page is damaged. */
PyObject *pq_core_assign_sequences(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *page, *index;
    unsigned long long old, count, first_sequence, done = 0;
    long long timestamp;
    const char *queue_id;
    Py_ssize_t id_bytes;
    int one_batch;
    if (!PyArg_ParseTuple(args, "O!O!KKKLy#p:assign_sequences", pq_region_type, &page,
                          pq_region_type, &index, &old, &count, &first_sequence, &timestamp,
                          &queue_id, &id_bytes, &one_batch) ||
        pq_page_check(page, 1, "page") < 0 ||
        pq_region_check(index, PQ_INDEX_RECORD_BYTES, 1, "index") < 0) {
        return NULL;
    }
    if (id_bytes != PQ_QUEUE_ID_BYTES) {
        PyErr_SetString(PyExc_ValueError, "not a queue's id");
        return NULL;
    }
    uint32_t queue_state = pq_queue_state((const uint8_t *)queue_id);
    pq_place at = {.page = page->base, .page_bytes = page->bytes, .first_sequence = old,
                   .index = index->base, .index_capacity = index->bytes / PQ_INDEX_RECORD_BYTES,
                   .queue_state = page->queue_state};
    uint64_t good = 0;
    Py_BEGIN_ALLOW_THREADS
    if (pq_assign_sequences(&at, count, queue_state, first_sequence,
                            timestamp < 0 ? PQ_TIMESTAMP_NOW : timestamp, one_batch, &good) < 0 &&
        good == count) {
        good = UINT64_MAX; /* all frames, and then something that should not be there */
    }
    Py_END_ALLOW_THREADS
    done = good;
    return PyLong_FromUnsignedLongLong(done);
}
