/* What a writer is given as columns: no Python object for a row, one copy into the page.
 *
 * Rows of one size are assembled in the page, from one column or several. Payloads of different
 * sizes are listed first, because the sizes in foreign memory can change meanwhile; every size and
 * place is checked against its buffer (I9).
 */
#include "python/writer.h"

/* --- rows ------------------------------------------------------------------------------------- */

typedef struct {
    Py_buffer *views;
    Py_ssize_t view_count;
    pq_column *columns;
    size_t filled_bytes; /* of each row */
} held_columns;

static int column_of(PyObject *pair, pq_batch *rows, held_columns *held) {
    PyObject *object;
    unsigned long long at;
    if (!PyArg_ParseTuple(pair, "OK:_send_rows", &object, &at)) {
        return 0;
    }
    Py_buffer *view = &held->views[held->view_count];
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDED_RO) < 0) {
        return 0;
    }
    Py_ssize_t place = held->view_count++;
    if (view->ndim != 1 || view->itemsize < 1 || at > rows->row_bytes ||
        (uint64_t)view->itemsize > rows->row_bytes - at ||
        (place > 0 && (size_t)view->shape[0] != rows->count)) {
        PyErr_SetString(PyExc_ValueError, "columns are as long as each other and fit into a row");
        return 0;
    }
    rows->count = (size_t)view->shape[0];
    held->filled_bytes += (size_t)view->itemsize;
    held->columns[place] = (pq_column){.data = view->buf, .stride = view->strides[0],
                                       .bytes = (uint32_t)view->itemsize, .at = (uint32_t)at};
    return 1;
}

/* `(((buffer, place in the row), ...), bytes of a row, times, at, timeout)` */
PyObject *pq_writer_send_rows(Writer *self, PyObject *args) {
    PyObject *pairs, *times, *at = NULL, *timeout = NULL, *result = NULL;
    pq_terms terms = {.timeout = -1};
    unsigned int row_bytes;
    if (!PyArg_ParseTuple(args, "O!IO|OO:_send_rows", &PyTuple_Type, &pairs, &row_bytes, &times,
                          &at, &timeout) ||
        pq_terms_of(at, timeout, &terms) < 0) {
        return NULL;
    }
    size_t column_count = (size_t)PyTuple_Size(pairs);
    held_columns held = {.views = PyMem_Malloc((column_count + 1) * sizeof *held.views),
                         .columns = PyMem_Malloc((column_count + 1) * sizeof *held.columns)};
    pq_batch rows = {.columns = held.columns, .column_count = column_count,
                     .row_bytes = row_bytes};
    int good = held.views != NULL && held.columns != NULL;
    if (!good) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; good && i < column_count; i++) {
        good = column_of(PyTuple_GetItem(pairs, (Py_ssize_t)i), &rows, &held);
    }
    if (good && pq_times_of(times, rows.count, &rows.times) == 0) {
        rows.has_gaps = held.filled_bytes != row_bytes;
        result = pq_writer_sent(self, &rows, NULL, &terms);
    }
    while (held.view_count > 0) {
        PyBuffer_Release(&held.views[--held.view_count]);
    }
    PyMem_Free(held.views);
    PyMem_Free(held.columns);
    return result;
}

/* --- payloads of different sizes -------------------------------------------------------------- */

#define ARROW_VIEW_BYTES 16
#define ARROW_INLINE_BYTES 12

typedef struct {
    Py_buffer *views; /* of one part: the places of the payloads, then their bytes */
    Py_ssize_t view_count;
    size_t first, count;
    pq_payload *items;
} part;

static int wild(size_t i) {
    PyErr_Format(PyExc_ValueError, "value %zu is not where its array says: the array is broken", i);
    return 0;
}

static int item_at(pq_payload *item, const Py_buffer *data, int64_t at, int64_t bytes, size_t i) {
    if (at < 0 || bytes < 0 || at > data->len || bytes > data->len - at) {
        return wild(i);
    }
    *item = (pq_payload){.data = (const uint8_t *)data->buf + at, .bytes = (size_t)bytes};
    return 1;
}

/* Fixed places, filled up with zeros, as NumPy has its bytes: without the zeros at the end. */
static int list_trimmed(const part *from) {
    const Py_buffer *view = &from->views[0];
    if (from->view_count != 1 || view->ndim != 1 || (size_t)view->shape[0] != from->count) {
        return wild(0);
    }
    const uint8_t *data = view->buf;
    for (size_t i = 0; i < from->count; i++, data += view->strides[0]) {
        size_t bytes = (size_t)view->itemsize;
        while (bytes > 0 && data[bytes - 1] == 0) {
            bytes -= 1;
        }
        from->items[i] = (pq_payload){.data = data, .bytes = bytes};
    }
    return 1;
}

static int64_t offset_at(const Py_buffer *view, size_t i, int width) {
    int64_t wide;
    int32_t narrow;
    if (width == 8) {
        memcpy(&wide, (const uint8_t *)view->buf + i * 8, 8);
        return wide;
    }
    memcpy(&narrow, (const uint8_t *)view->buf + i * 4, 4);
    return narrow;
}

static int is_short(const part *from, size_t more, size_t width) {
    size_t there = (size_t)from->views[0].len / width;
    return from->first > there || from->count > there - from->first ||
           more > there - from->first - from->count;
}

/* Where each one ends the next one begins, as in Arrow's binary arrays. */
static int list_by_offsets(const part *from, int width) {
    if (from->view_count != 2 || is_short(from, 1, (size_t)width)) {
        return wild(0);
    }
    const Py_buffer *offsets = &from->views[0];
    int64_t at = offset_at(offsets, from->first, width);
    for (size_t i = 0; i < from->count; i++) {
        int64_t end = offset_at(offsets, from->first + i + 1, width);
        if (end < at || !item_at(&from->items[i], &from->views[1], at, end - at, i)) {
            return PyErr_Occurred() ? 0 : wild(i);
        }
        at = end;
    }
    return 1;
}

/* Arrow's views: a short one has its bytes next to its length, a long one has their place. */
static int list_by_views(const part *from) {
    if (from->view_count < 1 || is_short(from, 0, ARROW_VIEW_BYTES)) {
        return wild(0);
    }
    for (size_t i = 0; i < from->count; i++) {
        int64_t at = (int64_t)((from->first + i) * ARROW_VIEW_BYTES);
        int32_t words[4]; /* length, its first bytes, buffer, place in it */
        memcpy(words, (const uint8_t *)from->views[0].buf + at, sizeof words);
        const Py_buffer *data = &from->views[0];
        if (words[0] <= ARROW_INLINE_BYTES) {
            at += 4;
        } else if (words[2] >= 0 && words[2] < from->view_count - 1) {
            data = &from->views[1 + words[2]];
            at = words[3];
        } else {
            return wild(i);
        }
        if (!item_at(&from->items[i], data, at, words[0], i)) {
            return 0;
        }
    }
    return 1;
}

static int list_part(const part *from, int layout) {
    switch (layout) {
    case 'S': return list_trimmed(from);
    case 'o': return list_by_offsets(from, 4);
    case 'O': return list_by_offsets(from, 8);
    case 'v': return list_by_views(from);
    default: PyErr_SetString(PyExc_ValueError, "no such layout"); return 0;
    }
}

static int hold(PyObject *buffers, part *into) {
    Py_ssize_t count = PyTuple_Size(buffers);
    into->views = PyMem_Malloc((size_t)(count + 1) * sizeof *into->views);
    if (into->views == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    while (into->view_count < count) {
        PyObject *buffer = PyTuple_GetItem(buffers, into->view_count);
        if (PyObject_GetBuffer(buffer, &into->views[into->view_count], PyBUF_STRIDED_RO) < 0) {
            return 0;
        }
        into->view_count += 1;
    }
    return 1;
}

static int parts_of(PyObject *parts_given, part *parts, pq_payload *items, size_t count) {
    size_t done = 0;
    for (Py_ssize_t p = 0; p < PyTuple_Size(parts_given); p++) {
        int layout;
        unsigned long long first, length;
        PyObject *buffers;
        if (!PyArg_ParseTuple(PyTuple_GetItem(parts_given, p), "CKKO!:_send_spans", &layout, &first,
                              &length, &PyTuple_Type, &buffers)) {
            return 0;
        }
        if (length > count - done) {
            return wild(count);
        }
        parts[p].first = first;
        parts[p].count = length;
        parts[p].items = items + done;
        if (!hold(buffers, &parts[p]) || !list_part(&parts[p], layout)) {
            return 0;
        }
        done += length;
    }
    return done == count || wild(done);
}

/* `(((layout, first, count, buffers), ...), count of all, times, at, timeout)` */
PyObject *pq_writer_send_spans(Writer *self, PyObject *args) {
    PyObject *parts_given, *times, *at = NULL, *timeout = NULL, *result = NULL;
    pq_terms terms = {.timeout = -1};
    unsigned long long count;
    if (!PyArg_ParseTuple(args, "O!KO|OO:_send_spans", &PyTuple_Type, &parts_given, &count, &times, &at,
                          &timeout) ||
        pq_terms_of(at, timeout, &terms) < 0) {
        return NULL;
    }
    if (count > PY_SSIZE_T_MAX / sizeof(pq_payload) - 1) {
        return PyErr_NoMemory();
    }
    size_t part_count = (size_t)PyTuple_Size(parts_given);
    part *parts = PyMem_Calloc(part_count + 1, sizeof *parts);
    pq_payload *items = PyMem_Malloc((count + 1) * sizeof *items);
    pq_batch batch = {.count = count, .items = items};
    if (parts == NULL || items == NULL) {
        PyErr_NoMemory();
    } else if (parts_of(parts_given, parts, items, count) &&
               pq_times_of(times, count, &batch.times) == 0) {
        result = pq_writer_sent(self, &batch, items, &terms);
    }
    for (size_t p = 0; parts != NULL && p < part_count; p++) {
        while (parts[p].view_count > 0) {
            PyBuffer_Release(&parts[p].views[--parts[p].view_count]);
        }
        PyMem_Free(parts[p].views);
    }
    PyMem_Free(items);
    PyMem_Free(parts);
    return result;
}
