/* Region: one mapped file, or the beginning of one.
 *
 * It is unmapped when the last reference goes, without the GIL, because unmapping a page takes
 * milliseconds. The buffer it exports is read-only and holds a reference, so that a view keeps the
 * bytes mapped. Shared words are read and written here, never through a buffer: CPython's
 * struct.pack_into clears the bytes first, and readers would see that.
 */
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define ZERO_STEP_BYTES 4096u
#define FILL_BYTES (256u << 10)

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd", "length", "writable", NULL};
    int fd, writable;
    unsigned long long bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iKp:Region", names, &fd, &bytes, &writable)) {
        return NULL;
    }
    if (bytes == 0 || bytes > PQ_PAGE_BYTES_MAX) {
        PyErr_Format(PyExc_ValueError, "a region has 1 to %llu bytes, not %llu",
                     (unsigned long long)PQ_PAGE_BYTES_MAX, bytes);
        return NULL;
    }
    Region *self = PyObject_New(Region, type);
    if (self == NULL) {
        return NULL;
    }
    self->base = NULL;
    self->bytes = bytes;
    self->writable = writable;
    void *base;
    Py_BEGIN_ALLOW_THREADS
    base = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                0);
    Py_END_ALLOW_THREADS
    if (base == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    self->base = base;
    return (PyObject *)self;
}

/* What a file is made of: `data`, then zeros; the first `filled` bytes are written and not only
 * reserved, so that their memory is there: by large writes it is had at half the cost of page
 * faults. */
typedef struct {
    Py_buffer data;
    uint64_t bytes, filled;
    int mode, synced;
} content;

static int write_at(int fd, const void *data, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t step = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));
        if (step >= 0) {
            done += (size_t)step;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* Blocks for all of it: no room is an error here, never a signal later. */
static int reserve(int fd, const content *wanted) {
    uint64_t from = 0;
#if defined(__linux__)
    struct statfs system;
    if (fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC) {
        from = wanted->filled; /* there reserving costs as much as writing */
    }
#endif
    int error = 0;
    while (from < wanted->bytes) {
        error = posix_fallocate(fd, (off_t)from, (off_t)(wanted->bytes - from));
        if (error != EINTR) {
            break;
        }
    }
    return error;
}

static int fill(int fd, const content *wanted) {
    static const uint8_t zeros[FILL_BYTES];
    int error = 0;
    for (uint64_t at = 0; error == 0 && at < wanted->filled; at += FILL_BYTES) {
        uint64_t step = wanted->filled - at < FILL_BYTES ? wanted->filled - at : FILL_BYTES;
        error = write_at(fd, zeros, (size_t)step, at);
    }
    return error != 0 ? error : write_at(fd, wanted->data.buf, (size_t)wanted->data.len, 0);
}

/* Temporary name, blocks, content, map, rename. Returns an errno; nothing is left behind then. */
static int make_file(int folder, const char *temporary, const char *name, const content *wanted,
                     void **base) {
    int fd = openat(folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    wanted->mode);
    if (fd < 0) {
        return errno;
    }
    int error = fchmod(fd, (mode_t)wanted->mode) == 0 ? 0 : errno; /* whatever the umask */
    if (error == 0) {
        error = reserve(fd, wanted);
    }
    if (error == 0) {
        error = fill(fd, wanted);
    }
    if (error == 0 && wanted->synced && fsync(fd) != 0) {
        error = errno;
    }
    if (error == 0) {
        *base = mmap(NULL, (size_t)wanted->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = *base == MAP_FAILED ? errno : 0;
        if (error == 0 && renameat(folder, temporary, folder, name) != 0) {
            error = errno;
            munmap(*base, (size_t)wanted->bytes);
        }
    }
    close(fd);
    if (error != 0) {
        unlinkat(folder, temporary, 0);
    }
    return error;
}

/* All of it in one call, because a thread that shares the interpreter with a busy producer waits
 * 5 ms for the GIL after each system call: page by page that was slower than filling a page. */
static PyObject *region_make(PyTypeObject *type, PyObject *args) {
    int folder, error;
    const char *temporary, *name;
    unsigned long long bytes, filled;
    content wanted;
    void *base = NULL;
    if (!PyArg_ParseTuple(args, "issy*KKii:make", &folder, &temporary, &name, &wanted.data, &bytes,
                          &filled, &wanted.mode, &wanted.synced)) {
        return NULL;
    }
    wanted.bytes = bytes;
    wanted.filled = filled;
    Region *self = NULL;
    if (bytes == 0 || bytes > PQ_PAGE_BYTES_MAX || (uint64_t)wanted.data.len > bytes ||
        filled > bytes) {
        PyErr_SetString(PyExc_ValueError, "the content must fit into the file");
    } else {
        self = PyObject_New(Region, type);
    }
    if (self != NULL) {
        self->base = NULL;
        self->bytes = bytes;
        self->writable = 1;
        Py_BEGIN_ALLOW_THREADS
        error = make_file(folder, temporary, name, &wanted, &base);
        Py_END_ALLOW_THREADS
        if (error != 0) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            Py_DECREF((PyObject *)self);
            self = NULL;
        } else {
            self->base = base;
        }
    }
    PyBuffer_Release(&wanted.data);
    return (PyObject *)self;
}

static void region_dealloc(Region *self) {
    if (self->base != NULL) {
        void *base = self->base;
        size_t bytes = (size_t)self->bytes;
        Py_BEGIN_ALLOW_THREADS
        munmap(base, bytes);
        Py_END_ALLOW_THREADS
    }
    pq_type_free((PyObject *)self);
}

static int region_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Region *region = (Region *)self;
    return PyBuffer_FillInfo(view, self, region->base, (Py_ssize_t)region->bytes, 1, flags);
}

static Py_ssize_t region_length(PyObject *self) { return (Py_ssize_t)((Region *)self)->bytes; }

int pq_region_check(Region *region, uint64_t bytes, int writable, const char *what) {
    if (region->bytes < bytes || (writable && !region->writable)) {
        PyErr_Format(PyExc_ValueError, "the %s must be %s%llu bytes or more, not %llu", what,
                     writable ? "writable and have " : "", (unsigned long long)bytes,
                     (unsigned long long)region->bytes);
        return -1;
    }
    return 0;
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

static PyObject *region_read(Region *self, PyObject *args) {
    unsigned long long at, bytes;
    if (!PyArg_ParseTuple(args, "KK:read", &at, &bytes) || !in_bounds(self, at, bytes, 0)) {
        return NULL;
    }
    return PyBytes_FromStringAndSize((char *)self->base + at, (Py_ssize_t)bytes);
}

static PyObject *region_write(Region *self, PyObject *args) {
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
    if (!good) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *region_load(Region *self, PyObject *args) {
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "K:load", &at) || !in_bounds(self, at, 8, 1)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(pq_load_u64(self->base + at));
}

static PyObject *region_store(Region *self, PyObject *args) {
    unsigned long long at, value;
    if (!PyArg_ParseTuple(args, "KK:store", &at, &value) || !is_writable(self) ||
        !in_bounds(self, at, 8, 1)) {
        return NULL;
    }
    pq_store_u64(self->base + at, value);
    Py_RETURN_NONE;
}

static PyObject *region_load_half(Region *self, PyObject *args) {
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "K:load_half", &at) || !in_bounds(self, at, 4, 1)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(pq_load_u32(self->base + at));
}

static PyObject *region_store_half(Region *self, PyObject *args) {
    unsigned long long at;
    unsigned int value;
    if (!PyArg_ParseTuple(args, "KI:store_half", &at, &value) || !is_writable(self) ||
        !in_bounds(self, at, 4, 1)) {
        return NULL;
    }
    pq_store_u32(self->base + at, value);
    Py_RETURN_NONE;
}

/* Zero from `at` to the end, but only what is not zero yet, so that clean OS pages stay clean. */
static PyObject *region_zero(Region *self, PyObject *args) {
    static const uint8_t zeros[ZERO_STEP_BYTES];
    unsigned long long at, zeroed = 0;
    if (!PyArg_ParseTuple(args, "K:zero", &at) || !is_writable(self) ||
        !in_bounds(self, at, self->bytes > at ? self->bytes - at : 0, 0)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    while (at < self->bytes) {
        size_t step = ZERO_STEP_BYTES - (size_t)(at % ZERO_STEP_BYTES);
        step = step < self->bytes - at ? step : (size_t)(self->bytes - at);
        if (memcmp(self->base + at, zeros, step) != 0) {
            memset(self->base + at, 0, step);
            zeroed += step;
        }
        at += step;
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(zeroed);
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

static PyObject *region_populate(Region *self, PyObject *args) {
    return over_range(self, args, madvise,
                      self->writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

/* Only through a map that can be written: on any other the system does nothing, and says so to
 * nobody. */
static PyObject *region_sync(Region *self, PyObject *args) {
    if (!is_writable(self)) {
        return NULL;
    }
    return over_range(self, args, msync, MS_SYNC);
}

static PyMethodDef region_methods[] = {
    {"make", (PyCFunction)region_make, METH_VARARGS | METH_CLASS,
     "Make a file of reserved blocks under a temporary name, rename it, and map it."},
    {"read", (PyCFunction)region_read, METH_VARARGS, "Return a copy of some bytes."},
    {"write", (PyCFunction)region_write, METH_VARARGS, "Copy bytes in; not for shared words."},
    {"load", (PyCFunction)region_load, METH_VARARGS, "Load 8 bytes with acquire order."},
    {"store", (PyCFunction)region_store, METH_VARARGS, "Store 8 bytes with release order."},
    {"load_half", (PyCFunction)region_load_half, METH_VARARGS, "Load 4 bytes, acquire order."},
    {"store_half", (PyCFunction)region_store_half, METH_VARARGS, "Store 4 bytes, release order."},
    {"zero", (PyCFunction)region_zero, METH_VARARGS, "Zero to the end; return the bytes changed."},
    {"populate", (PyCFunction)region_populate, METH_VARARGS,
     "Take the page faults of a range now."},
    {"sync", (PyCFunction)region_sync, METH_VARARGS, "Put a range on stable storage."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef region_members[] = {
    {"writable", T_BOOL, offsetof(Region, writable), READONLY, "Whether bytes can be written."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject *pq_region_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A mapped file: Region(fd, length, writable)."},
        {Py_tp_new, region_new},
        {Py_tp_dealloc, region_dealloc},
        {Py_tp_methods, region_methods},
        {Py_tp_members, region_members},
        {Py_bf_getbuffer, region_getbuffer},
        {Py_sq_length, region_length},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Region", sizeof(Region), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
