/* What Python calls on whole pages: walking them, finding frames in them, looking at one place. */
#include "python/module.h"

static int place_of(PyObject *page, PyObject *index, unsigned long long first, pq_place *at) {
    if (!PyObject_TypeCheck(page, pq_region_type) ||
        (index != Py_None && !PyObject_TypeCheck(index, pq_region_type))) {
        PyErr_SetString(PyExc_TypeError, "a page and an index are regions");
        return 0;
    }
    if (!((Region *)page)->has_queue) {
        PyErr_SetString(PyExc_ValueError, "the page is of no queue: set its queue_id");
        return 0;
    }
    memset(at, 0, sizeof *at);
    at->page = ((Region *)page)->base;
    at->page_bytes = ((Region *)page)->bytes;
    at->first_sequence = first;
    at->queue_state = ((Region *)page)->queue_state;
    if (index != Py_None) {
        at->index = ((Region *)index)->base;
        at->index_capacity = ((Region *)index)->bytes / PQ_INDEX_RECORD_BYTES;
    }
    return 1;
}

/* Whether the page was there; its index is only a hint, and writes to it may be lost. A failed
 * check can be caused by the rest of an OS page in whose middle the file was cut: that shows at
 * the page's end. */
static int still_intact(PyObject *page, int found) {
    if (!found) {
        (void)pq_region_probe((Region *)page);
    }
    return pq_region_intact((Region *)page);
}

/* (position, sequence, timestamp, whole position, whole sequence, whole timestamp, wrong index
 * records, why it stopped) */
PyObject *pq_core_scan(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page, *index;
    unsigned long long first, position, sequence, end;
    long long floor;
    int use;
    pq_place at;
    if (!PyArg_ParseTuple(args, "OOKKKKLi:scan", &page, &index, &first, &position, &sequence, &end,
                          &floor, &use) ||
        !place_of(page, index, first, &at)) {
        return NULL;
    }
    if (use == PQ_INDEX_WRITE && index != Py_None && !((Region *)index)->writable) {
        PyErr_SetString(PyExc_ValueError, "the index is mapped read-only");
        return NULL;
    }
    pq_scanned out;
    Py_BEGIN_ALLOW_THREADS
    pq_scan(&at, position, sequence, end, floor, (pq_index_use)use, &out);
    Py_END_ALLOW_THREADS
    if (!still_intact(page, out.stopped == PQ_READ_END)) {
        return NULL;
    }
    return Py_BuildValue("(KKLKKLKi)", (unsigned long long)out.position,
                         (unsigned long long)out.sequence, (long long)out.timestamp,
                         (unsigned long long)out.whole_position,
                         (unsigned long long)out.whole_sequence, (long long)out.whole_timestamp,
                         (unsigned long long)out.index_wrong, (int)out.stopped);
}

/* (ordinal, position), or None: the index is wrong */
PyObject *pq_core_find(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page, *index;
    unsigned long long first, count;
    long long since;
    pq_place at;
    uint64_t ordinal, position;
    if (!PyArg_ParseTuple(args, "OOKKL:find", &page, &index, &first, &count, &since) ||
        !place_of(page, index, first, &at)) {
        return NULL;
    }
    int found = pq_find(&at, count, since, &ordinal, &position);
    if (!still_intact(page, found)) {
        return NULL;
    }
    if (!found) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KK)", (unsigned long long)ordinal, (unsigned long long)position);
}

/* position, or None: the index is wrong */
PyObject *pq_core_locate(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page, *index;
    unsigned long long first, count, ordinal;
    pq_place at;
    uint64_t position;
    if (!PyArg_ParseTuple(args, "OOKKK:locate", &page, &index, &first, &count, &ordinal) ||
        !place_of(page, index, first, &at)) {
        return NULL;
    }
    int found = pq_locate(&at, count, ordinal, &position);
    if (!still_intact(page, found)) {
        return NULL;
    }
    if (!found) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(position);
}

/* For each of some timestamps in ascending order: how many frames are not later. int64 as bytes;
 * None: the index is wrong */
PyObject *pq_core_find_many(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page, *index;
    unsigned long long first, count;
    Py_buffer timestamps;
    pq_place at;
    if (!PyArg_ParseTuple(args, "OOKKy*:find_many", &page, &index, &first, &count, &timestamps)) {
        return NULL;
    }
    PyObject *result = NULL;
    int found = 0;
    if (timestamps.len % 8 != 0 || (uintptr_t)timestamps.buf % 8 != 0) {
        PyErr_SetString(PyExc_ValueError, "timestamps are int64");
    } else if (place_of(page, index, first, &at)) {
        result = PyBytes_FromStringAndSize(NULL, timestamps.len);
    }
    if (result != NULL) {
        int64_t *ordinals = (int64_t *)(void *)PyBytes_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        found = pq_find_many(&at, count, timestamps.buf, (size_t)timestamps.len / 8, ordinals);
        Py_END_ALLOW_THREADS
        if (!still_intact(page, found)) {
            Py_CLEAR(result);
        }
    }
    PyBuffer_Release(&timestamps);
    if (result != NULL && !found) {
        Py_DECREF(result);
        Py_RETURN_NONE;
    }
    return result;
}

/* The timestamps of the frames from one ordinal up to another, as the index has them: int64 as
 * bytes; None: it is wrong */
PyObject *pq_core_times(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page, *index;
    unsigned long long first, ordinal, end;
    pq_place at;
    if (!PyArg_ParseTuple(args, "OOKKK:times", &page, &index, &first, &ordinal, &end) ||
        !place_of(page, index, first, &at)) {
        return NULL;
    }
    if (ordinal > end || end > at.index_capacity) {
        Py_RETURN_NONE;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((end - ordinal) * 8));
    if (result == NULL) {
        return NULL;
    }
    int64_t *times = (int64_t *)(void *)PyBytes_AsString(result);
    int found;
    Py_BEGIN_ALLOW_THREADS
    found = pq_times(&at, ordinal, end, times);
    Py_END_ALLOW_THREADS
    if (!still_intact(page, found)) {
        Py_CLEAR(result);
    }
    if (result != NULL && !found) {
        Py_DECREF(result);
        Py_RETURN_NONE;
    }
    return result;
}

/* (position, sequence) of the next frame or end mark that validates, or None */
PyObject *pq_core_resync(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page, *index;
    unsigned long long first, position, sequence, end, mark = 0;
    long long floor, ceiling;
    pq_place at;
    uint64_t found_position, found_sequence;
    if (!PyArg_ParseTuple(args, "OOKKKKLL|K:resync", &page, &index, &first, &position, &sequence,
                          &end, &floor, &ceiling, &mark) ||
        !place_of(page, index, first, &at)) {
        return NULL;
    }
    if (sequence < first || end < sequence || end > PQ_SEQUENCE_MAX) {
        PyErr_SetString(PyExc_ValueError, "the sequences are not in order");
        return NULL;
    }
    int found;
    Py_BEGIN_ALLOW_THREADS
    found = pq_resync(&at, position, sequence, end, mark, floor, ceiling, &found_position,
                      &found_sequence);
    Py_END_ALLOW_THREADS
    if (!found) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KK)", (unsigned long long)found_position,
                         (unsigned long long)found_sequence);
}

/* (what is there, timestamp, payload bytes, next position), checked */
PyObject *pq_core_peek(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *page;
    unsigned long long position, sequence;
    pq_place at;
    if (!PyArg_ParseTuple(args, "OKK:peek", &page, &position, &sequence) ||
        !place_of(page, Py_None, 0, &at)) {
        return NULL;
    }
    pq_frame frame;
    memset(&frame, 0, sizeof frame);
    pq_read_result found = pq_check_at(&at, position, sequence, &frame);
    if (!still_intact(page, found == PQ_READ_FRAME)) {
        return NULL;
    }
    return Py_BuildValue("(iLIK)", (int)found, (long long)frame.timestamp, frame.payload_bytes,
                         (unsigned long long)frame.next);
}
