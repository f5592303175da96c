/* What a writer is given: payloads one by one, as objects with buffers.
 *
 * Buffers are held while their bytes are copied, without the GIL if there are many of them. What
 * others can change meanwhile has its checksum computed from the copy.
 */
#include "python/writer.h"

/* A lower timestamp can be a number of seconds: `pagequeue.util.arguments` tells. */
#define PLAUSIBLE_NS 1009843200000000000

/* Whether a buffer's format (PEP 3118, and what ctypes adds) has objects or pointers in it. Text
 * between colons is a field's name, and Zf, Zd, Zg are complex numbers. */
static int has_addresses(const char *format) {
    int in_name = 0;
    for (const char *at = format; at != NULL && *at != 0; at++) {
        if (*at == ':') {
            in_name = !in_name;
        } else if (!in_name && strchr("OPX&z", *at) != NULL) {
            return 1;
        } else if (!in_name && *at == 'Z' && strchr("fdg", at[1] == 0 ? 'Z' : at[1]) == NULL) {
            return 1;
        }
    }
    return 0;
}

/* Whether a NumPy array, which has no format for all of its dtypes, holds references. -1 =
 * raised. */
static int has_references(PyObject *object) {
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *found = dtype == NULL ? NULL : PyObject_GetAttrString(dtype, "hasobject");
    int has = found == NULL ? 0 : PyObject_IsTrue(found);
    if (found == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(dtype);
    Py_XDECREF(found);
    return has;
}

/* Hold a buffer of bytes; a format is asked for, because addresses of this process are not a
 * payload: they are meaningless to others, and disclose where its memory is. -1 = raised. */
static int hold_payload(PyObject *object, Py_buffer *view) {
    int has = 0;
    if (PyByteArray_CheckExact(object)) {
        return PyObject_GetBuffer(object, view, PyBUF_SIMPLE);
    }
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) == 0) {
        has = has_addresses(view->format);
    } else {
        PyErr_Clear();
        if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) {
            return -1;
        }
        has = has_references(object);
    }
    if (has != 0) {
        PyBuffer_Release(view);
    }
    if (has > 0) {
        pq_refuse_type("a payload is bytes, and this %R holds addresses of objects: send what they "
                     "point to; nothing was sent",
                     (PyObject *)Py_TYPE(object));
    }
    return has == 0 ? 0 : -1;
}

/* The error for what has no bytes, with the option of the queue that takes it. */
static void refuse_type(PyObject *object) {
    const char *remedy = "encode it, or create the queue with a codec=";
    if (PyUnicode_Check(object)) {
        remedy = "send text.encode(), or create the queue with codec='utf-8'";
    } else if (PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object)) {
        remedy = "create the queue with codec='json' for objects, or with dtype= for records";
    }
    PyObject *name = PyType_GetName(Py_TYPE(object));
    if (name != NULL) {
        pq_refuse_type("a payload is a bytes-like object, not %R: %s; nothing was sent", name,
                       remedy);
        Py_DECREF(name);
    }
}

static int buffer_of(PyObject *object, pq_payload *item, Py_buffer *view) {
    if (hold_payload(object, view) < 0) {
        if (!PyObject_CheckBuffer(object)) {
            PyErr_Clear();
            refuse_type(object);
        } else if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            /* A buffer that is not contiguous is a BufferError: the same mistake to the caller. */
            PyErr_Clear();
            pq_refuse_type("a payload is a C-contiguous bytes-like object, not %R",
                           (PyObject *)Py_TYPE(object));
        }
        return -1;
    }
    item->data = view->buf;
    item->bytes = (size_t)view->len;
    return 0;
}

/* `viewed`: a buffer is held. -1 = raised */
static inline int payload_of(PyObject *object, pq_payload *item, Py_buffer *view, int *viewed) {
    item->fixed = PyBytes_CheckExact(object);
    *viewed = !item->fixed;
    if (item->fixed) {
        item->data = PyBytes_AsString(object);
        item->bytes = (size_t)PyBytes_Size(object);
        return 0;
    }
    return buffer_of(object, item, view);
}

/* payload(object): its bytes as of now */
PyObject *pq_core_payload(PyObject *Py_UNUSED(module), PyObject *object) {
    pq_payload item;
    Py_buffer view;
    int viewed;
    if (payload_of(object, &item, &view, &viewed) < 0) {
        return NULL;
    }
    if (!viewed) {
        Py_INCREF(object);
        return object;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(item.data, (Py_ssize_t)item.bytes);
    PyBuffer_Release(&view);
    return bytes;
}

/* The items of a list in a tuple, and the lengths of those that are bytes, -1 of others, whose
 * number is returned. One pass, because each object is a cache miss; no Python code runs. */
static Py_ssize_t hold_items(PyObject *payloads, PyObject *held, int64_t *lengths) {
    Py_ssize_t count = PyTuple_Size(held), others = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GetItem(payloads, i);
        Py_INCREF(item);
        PyTuple_SetItem(held, i, item);
        int is_bytes = PyBytes_CheckExact(item);
        lengths[i] = is_bytes ? (int64_t)PyBytes_Size(item) : -1;
        others += !is_bytes;
    }
    return others;
}

/* The lengths of items that are not bytes. Those of up to `limit` bytes are replaced by copies,
 * which stay as long as they were measured, whatever other threads do. -1 = raised */
static int measure_others(PyObject *held, int64_t *lengths, Py_ssize_t others, int64_t limit) {
    for (Py_ssize_t i = 0; others > 0; i++) {
        PyObject *copy = NULL;
        pq_payload item;
        Py_buffer view;
        int viewed;
        if (lengths[i] >= 0) {
            continue;
        }
        if (payload_of(PyTuple_GetItem(held, i), &item, &view, &viewed) < 0) {
            return -1;
        }
        lengths[i] = (int64_t)item.bytes;
        others--;
        if (lengths[i] <= limit) {
            copy = PyBytes_FromStringAndSize(item.data, (Py_ssize_t)item.bytes);
        }
        if (viewed) {
            PyBuffer_Release(&view);
        }
        if (lengths[i] <= limit && (copy == NULL || PyTuple_SetItem(held, i, copy) < 0)) {
            return -1;
        }
    }
    return 0;
}

/* measured(payloads, limit): a list's items in a tuple, in which those that could change are copies
 * if they have up to `limit` bytes; and an int64 for each one's length, in a bytes object */
PyObject *pq_core_measured(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *payloads;
    long long limit;
    if (!PyArg_ParseTuple(args, "O!L:measured", &PyList_Type, &payloads, &limit)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(payloads);
    PyObject *held = PyTuple_New(count);
    while (held != NULL && PyList_Size(payloads) < count) { /* by a garbage collection */
        Py_DECREF(held);
        count = PyList_Size(payloads);
        held = PyTuple_New(count);
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *result = NULL;
    if (held != NULL && bytes != NULL) {
        int64_t *lengths = (int64_t *)PyBytes_AsString(bytes);
        Py_ssize_t others = hold_items(payloads, held, lengths);
        if (measure_others(held, lengths, others, limit) == 0) {
            result = Py_BuildValue("(OO)", held, bytes);
        }
    }
    Py_XDECREF(held);
    Py_XDECREF(bytes);
    return result;
}

int pq_terms_of(PyObject *at, PyObject *timeout, pq_terms *terms) {
    if (at != NULL && at != Py_None) {
        long long sequence = PyBool_Check(at) ? -1 : PyLong_AsLongLong(at);
        if (sequence < 0) {
            pq_refuse_argument("sequence", "(sO)", "at", at);
            return -1;
        }
        terms->only_at = (uint64_t)sequence + 1;
    }
    terms->never_blocks = timeout == pq_never_block;
    if (timeout != NULL && timeout != Py_None && !terms->never_blocks) {
        terms->timeout = pq_timeout_ns(timeout);
        if (terms->timeout < 0) { /* longer than anything is for ever */
            terms->timeout = INT64_MAX;
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    return 0;
}

/* Calls name keywords by interned strings, so that their addresses mostly tell. */
static PyObject *at_name;

static int is_at(PyObject *name) {
    return name == at_name || PyUnicode_CompareWithASCIIString(name, "at") == 0;
}

/* The keywords of `send`. -1 = raised */
static int keywords_of(PyObject *const *values, PyObject *names, pq_terms *terms) {
    PyObject *at = NULL, *timeout = NULL, *timestamp = NULL;
    if (at_name == NULL && (at_name = PyUnicode_InternFromString("at")) == NULL) {
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (is_at(name)) {
            at = values[i];
        } else if (PyUnicode_CompareWithASCIIString(name, "timestamp") == 0) {
            timestamp = values[i];
        } else if (PyUnicode_CompareWithASCIIString(name, "timeout") == 0) {
            timeout = values[i];
        } else {
            PyErr_Format(PyExc_TypeError,
                         "send takes no keyword %R, only timestamp, at and timeout", name);
            return -1;
        }
    }
    if (timestamp != NULL && timestamp != Py_None) {
        terms->exact = PyBool_Check(timestamp) ? -1 : PyLong_AsLongLong(timestamp);
        if (terms->exact < 0) {
            pq_refuse_argument("timestamp", "(sO)", "timestamp", timestamp);
            return -1;
        }
        if (terms->exact < PLAUSIBLE_NS &&
            pq_check_argument("timestamp", "timestamp", timestamp) < 0) {
            return -1;
        }
    }
    return pq_terms_of(at, timeout, terms);
}

PyObject *pq_writer_send(Writer *self, PyObject *const *args, Py_ssize_t arg_count,
                         PyObject *names) {
    pq_terms terms = {.exact = PQ_TIMESTAMP_NOW, .timeout = -1};
    if (arg_count != 1) {
        PyErr_SetString(PyExc_TypeError, "send takes one payload");
        return NULL;
    }
    if (names != NULL && keywords_of(args + 1, names, &terms) < 0) {
        return NULL;
    }
    pq_payload item;
    pq_appended out;
    Py_buffer view;
    int viewed;
    if (payload_of(args[0], &item, &view, &viewed) < 0) {
        return NULL;
    }
    if (item.bytes > self->at.page_bytes - PQ_PAGE_HEADER_BYTES - 2 * PQ_FRAME_BYTES &&
        self->record_bytes == 0) { /* it takes several pages, which Python writes */
        if (viewed) {
            PyBuffer_Release(&view);
        }
        return PyObject_CallMethod((PyObject *)self, "_send_large", "OLLLi", args[0],
                                   (long long)terms.exact, (long long)terms.only_at - 1,
                                   (long long)terms.timeout, terms.never_blocks);
    }
    pq_batch batch = {.count = 1, .items = &item};
    int result = pq_writer_append(self, &batch, &item, &terms, &out);
    if (viewed) {
        PyBuffer_Release(&view);
    }
    return result < 0 ? NULL : PyLong_FromUnsignedLongLong(out.sequence);
}

int pq_times_of(PyObject *object, size_t count, const int64_t **times) {
    *times = NULL;
    if (object == Py_None) {
        return 0;
    }
    if (!PyBytes_CheckExact(object) || (size_t)PyBytes_Size(object) != count * 8) {
        PyErr_SetString(PyExc_ValueError, "times are int64 in a bytes object, one for each");
        return -1;
    }
    *times = (const int64_t *)PyBytes_AsString(object); /* aligned: it follows the object's header */
    for (size_t i = 0; i < count; i++) {
        if ((*times)[i] < (i == 0 ? 0 : (*times)[i - 1])) {
            PyErr_Format(PyExc_ValueError, "time %zu goes back", i);
            return -1;
        }
    }
    return 0;
}

/* (first sequence, count), or None for no payloads at all */
PyObject *pq_writer_sent(Writer *self, pq_batch *batch, pq_payload *items, pq_terms *terms) {
    if (batch->count == 0) {
        if (!pq_writer_ready(self)) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    pq_appended out;
    terms->exact = batch->times == NULL ? PQ_TIMESTAMP_NOW : batch->times[0];
    if (pq_writer_append(self, batch, items, terms, &out) < 0) {
        return NULL;
    }
    return Py_BuildValue("(Kn)", (unsigned long long)out.sequence, (Py_ssize_t)batch->count);
}

/* Some payloads of a tuple, `count` from `begin` on; `*views` buffers are held. 0 = raised. */
static int payloads_of(PyObject *held, Py_ssize_t begin, Py_ssize_t count, pq_payload *items,
                       Py_buffer **view, Py_ssize_t *views) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(held, begin + i);
        int viewed;
        if (*view == NULL && !PyBytes_CheckExact(item)) {
            *view = PyMem_Malloc((size_t)(count - i) * sizeof **view);
            if (*view == NULL) {
                PyErr_NoMemory();
                return 0;
            }
        }
        Py_buffer *next = *view == NULL ? NULL : &(*view)[*views];
        if (payload_of(item, &items[i], next, &viewed) < 0) {
            return 0;
        }
        *views += viewed;
    }
    return 1;
}

PyObject *pq_writer_send_many(Writer *self, PyObject *args) {
    PyObject *payloads, *times, *at = NULL, *timeout = NULL;
    pq_terms terms = {.timeout = -1};
    Py_ssize_t begin = 0, end = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "OO|OOnn:_send_many", &payloads, &times, &at, &timeout, &begin,
                          &end) ||
        pq_terms_of(at, timeout, &terms) < 0) {
        return NULL;
    }
    PyObject *held = PySequence_Tuple(payloads), *result = NULL;
    if (held == NULL) {
        return NULL;
    }
    Py_ssize_t size = PyTuple_Size(held);
    end = end < size ? end : size;
    begin = begin < 0 || begin > end ? end : begin;
    size_t count = (size_t)(end - begin);
    pq_payload *items = PyMem_Malloc((count + 1) * sizeof *items);
    Py_buffer *view = NULL;
    Py_ssize_t views = 0;
    if (items == NULL) {
        PyErr_NoMemory();
    } else if (payloads_of(held, begin, (Py_ssize_t)count, items, &view, &views)) {
        pq_batch batch = {.count = count, .items = items};
        if (pq_times_of(times, count, &batch.times) == 0) {
            result = pq_writer_sent(self, &batch, items, &terms);
        }
    }
    while (views > 0) {
        PyBuffer_Release(&view[--views]);
    }
    PyMem_Free(view);
    PyMem_Free(items);
    Py_DECREF((PyObject *)held);
    return result;
}
