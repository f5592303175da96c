/* What Python reads and writes of a Region.
 *
 * Shared words are read and written here, never through a buffer: CPython's struct.pack_into
 * clears the bytes first, and readers would see that. Every access checks afterwards whether the
 * file was there.
 */
#include "python/mapped_file.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define ZERO_STEP_BYTES 4096u

static PyObject *if_intact(Region *self, PyObject *result) {
    if (result != NULL && !pq_region_intact(self)) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *done(Region *self) {
    Py_INCREF(Py_None);
    return if_intact(self, Py_None);
}

static int in_bounds(Region *self, unsigned long long at, unsigned long long bytes, int word) {
    if (at > self->bytes || bytes > self->bytes - at || (word && at % bytes != 0)) {
        PyErr_Format(PyExc_IndexError, "%llu bytes at %llu are not in a region of %llu", bytes, at,
                     (unsigned long long)self->bytes);
        return 0;
    }
    return 1;
}

static int is_writable(Region *self) {
    if (!self->writable) {
        PyErr_SetString(PyExc_ValueError, "the region is mapped read-only");
    }
    return self->writable;
}

PyObject *pq_region_read(Region *self, PyObject *args) {
    unsigned long long at, bytes;
    if (!PyArg_ParseTuple(args, "KK:read", &at, &bytes) || !in_bounds(self, at, bytes, 0)) {
        return NULL;
    }
    return if_intact(
        self, PyBytes_FromStringAndSize((char *)self->base + at, (Py_ssize_t)bytes));
}

PyObject *pq_region_write(Region *self, PyObject *args) {
    unsigned long long at;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Ky*:write", &at, &data)) {
        return NULL;
    }
    int good = is_writable(self) && in_bounds(self, at, (unsigned long long)data.len, 0);
    if (good) {
        memcpy(self->base + at, data.buf, (size_t)data.len);
    }
    PyBuffer_Release(&data);
    return good ? done(self) : NULL;
}

PyObject *pq_region_load(Region *self, PyObject *args) {
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "K:load", &at) || !in_bounds(self, at, 8, 1)) {
        return NULL;
    }
    return if_intact(self, PyLong_FromUnsignedLongLong(pq_load_u64(self->base + at)));
}

PyObject *pq_region_store(Region *self, PyObject *args) {
    unsigned long long at, value;
    if (!PyArg_ParseTuple(args, "KK:store", &at, &value) || !is_writable(self) ||
        !in_bounds(self, at, 8, 1)) {
        return NULL;
    }
    pq_store_u64(self->base + at, value);
    return done(self);
}

PyObject *pq_region_load_half(Region *self, PyObject *args) {
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "K:load_half", &at) || !in_bounds(self, at, 4, 1)) {
        return NULL;
    }
    return if_intact(self, PyLong_FromUnsignedLong(pq_load_u32(self->base + at)));
}

PyObject *pq_region_store_half(Region *self, PyObject *args) {
    unsigned long long at;
    unsigned int value;
    if (!PyArg_ParseTuple(args, "KI:store_half", &at, &value) || !is_writable(self) ||
        !in_bounds(self, at, 4, 1)) {
        return NULL;
    }
    pq_store_u32(self->base + at, value);
    return done(self);
}

/* Whether the word was the expected one, and is the new one now. */
PyObject *pq_region_swap_half(Region *self, PyObject *args) {
    unsigned long long at;
    unsigned int expected, value;
    if (!PyArg_ParseTuple(args, "KII:swap_half", &at, &expected, &value) || !is_writable(self) ||
        !in_bounds(self, at, 4, 1)) {
        return NULL;
    }
    uint32_t was = expected;
    int swapped = __atomic_compare_exchange_n((uint32_t *)(void *)(self->base + at), &was, value, 0,
                                              __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return if_intact(self, PyBool_FromLong(swapped));
}

/* Zero from `at` to an end, but only what is not zero yet, so that clean OS pages stay clean. */
PyObject *pq_region_zero(Region *self, PyObject *args) {
    static const uint8_t zeros[ZERO_STEP_BYTES];
    unsigned long long at, end = self->bytes, zeroed = 0;
    if (!PyArg_ParseTuple(args, "K|K:zero", &at, &end) || !is_writable(self) ||
        !in_bounds(self, end, 0, 0) || !in_bounds(self, at, end > at ? end - at : 0, 0)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    while (at < end) {
        size_t step = ZERO_STEP_BYTES - (size_t)(at % ZERO_STEP_BYTES);
        step = step < end - at ? step : (size_t)(end - at);
        if (memcmp(self->base + at, zeros, step) != 0) {
            memset(self->base + at, 0, step);
            zeroed += step;
        }
        at += step;
    }
    Py_END_ALLOW_THREADS
    return if_intact(self, PyLong_FromUnsignedLongLong(zeroed));
}

static uint64_t os_page_start(uint64_t at) {
    uint64_t os_page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return at - at % os_page_bytes;
}

/* madvise or msync over a range, without the GIL. */
static PyObject *over_range(Region *self, PyObject *args, int (*apply)(void *, size_t, int),
                            int how) {
    unsigned long long at, bytes;
    if (!PyArg_ParseTuple(args, "KK", &at, &bytes) || !in_bounds(self, at, bytes, 0)) {
        return NULL;
    }
    int result, error;
    uint64_t start = os_page_start(at);
    Py_BEGIN_ALLOW_THREADS
    result = apply(self->base + start, (size_t)(bytes + (at - start)), how);
    error = errno;
    Py_END_ALLOW_THREADS
    if (result != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

PyObject *pq_region_populate(Region *self, PyObject *args) {
    return over_range(self, args, madvise,
                      self->writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

/* The same for a caller that proceeds through a map from its beginning: a range that was faulted
 * in is not repeated, because checking for it takes as long. */
PyObject *pq_region_ahead(Region *self, PyObject *args) {
    unsigned long long at, bytes;
    if (!PyArg_ParseTuple(args, "KK:ahead", &at, &bytes) || !in_bounds(self, at, bytes, 0)) {
        return NULL;
    }
    unsigned long long end = at + bytes;
    at = at > self->ahead ? at : self->ahead;
    if (at >= end) {
        Py_RETURN_NONE;
    }
    self->ahead = end;
    PyObject *range = Py_BuildValue("(KK)", at, end - at);
    PyObject *result = range == NULL ? NULL : pq_region_populate(self, range);
    Py_XDECREF(range);
    return result;
}

/* Of a file: this process maps the range again when it is read. Where the system refuses, the memory
 * stays in use, and nothing else. */
PyObject *pq_region_forget(Region *self, PyObject *args) {
    if (self->writable) {
        PyErr_SetString(PyExc_ValueError, "the region can be memory without a file");
        return NULL;
    }
    PyObject *result = over_range(self, args, madvise, MADV_DONTNEED);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_OSError)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return result;
}

/* Only through a writable map: on any other the system ignores the call, without an error. */
PyObject *pq_region_sync(Region *self, PyObject *args) {
    if (!is_writable(self)) {
        return NULL;
    }
    PyObject *result = over_range(self, args, msync, MS_SYNC);
    (void)pq_region_probe(self);
    return if_intact(self, result);
}
