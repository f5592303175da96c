/* Descriptor: an open file or directory that is closed by the last operation that uses it.
 *
 * `with descriptor as fd:` is an operation. One that has begun keeps the number open until its
 * block ends, whatever thread closes meanwhile; after closing none begins, but an operation of a
 * thread that is inside already may contain others. Everything that a signal handler or a finalizer
 * could interrupt is one call into C: no lock is taken, and an exception out of a handler leaves
 * no operation counted that has ended.
 */
#include "python/module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define STANDARD_MAX 2 /* the number of the last standard stream */

typedef struct {
    unsigned long thread;
    Py_ssize_t depth;
} operation;

typedef struct {
    PyObject_HEAD
    int fd;            /* -1 = closed, or none */
    PyObject *refused; /* called with whether this process is a fork; returns the error to raise */
    PyObject *release; /* called by the last one out before `fd` is closed; or NULL */
    operation *inside; /* one for each thread */
    Py_ssize_t count, room;
    PyObject *weak; /* all that are open are known, for the child of a fork */
    unsigned fork_count;
    char closed;
} Descriptor;

static PyObject *descriptor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd", "refused", NULL};
    int fd;
    PyObject *refused;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO:Descriptor", names, &fd, &refused)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Descriptor *self = (Descriptor *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->fd = fd;
    Py_INCREF(refused);
    self->refused = refused;
    self->fork_count = pq_fork_count;
    return (PyObject *)self;
}

/* open(opener, ...): own what `opener(...)` opens. No signal handler runs between the two, so that
 * an exception out of one leaves no file open. In a process whose standard streams are closed it
 * does not get the number of one: a later print would write into it. */
static PyObject *descriptor_open(Descriptor *self, PyObject *args, PyObject *options) {
    if (PyTuple_Size(args) < 1 || self->fd >= 0 || self->closed) {
        PyErr_SetString(PyExc_TypeError, "open(opener, ...), of a descriptor that has no file yet");
        return NULL;
    }
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_Size(args));
    PyObject *opened = rest == NULL ? NULL : PyObject_Call(PyTuple_GetItem(args, 0), rest, options);
    Py_XDECREF(rest);
    if (opened == NULL) {
        return NULL;
    }
    int fd = (int)PyLong_AsLong(opened);
    Py_DECREF(opened);
    if (fd < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "the opener returned no open file");
        }
        return NULL;
    }
    if (fd <= STANDARD_MAX) {
        int above = fcntl(fd, F_DUPFD_CLOEXEC, STANDARD_MAX + 1);
        int error = errno;
        close(fd);
        if (above < 0) {
            errno = error;
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        fd = above;
    }
    self->fd = fd;
    Py_RETURN_NONE;
}

static void close_number(Descriptor *self) {
    int fd = self->fd;
    self->fd = -1;
    if (fd >= 0) {
        Py_BEGIN_ALLOW_THREADS
        close(fd); /* the number is free even if that fails */
        Py_END_ALLOW_THREADS
    }
}

static int descriptor_traverse(Descriptor *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->refused);
    Py_VISIT(self->release);
    return 0;
}

static int descriptor_clear(Descriptor *self) {
    pq_clear_to_none(&self->refused);
    Py_CLEAR(self->release);
    return 0;
}

static void descriptor_dealloc(Descriptor *self) {
    PyObject_GC_UnTrack(self);
    if (self->fork_count == pq_fork_count) { /* else the child closed it, and may have another */
        close_number(self);
    }
    PyObject_ClearWeakRefs((PyObject *)self);
    Py_XDECREF(self->refused);
    Py_XDECREF(self->release);
    free(self->inside);
    pq_type_free((PyObject *)self);
}

static operation *mine(Descriptor *self) {
    unsigned long thread = PyThread_get_thread_ident();
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (self->inside[i].thread == thread) {
            return &self->inside[i];
        }
    }
    return NULL;
}

static PyObject *refuse(Descriptor *self) {
    PyObject *forked = self->fork_count != pq_fork_count ? Py_True : Py_False;
    PyObject *error = PyObject_CallFunctionObjArgs(self->refused, forked, NULL);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

static int begin(Descriptor *self) {
    operation *own = mine(self);
    if (own == NULL) {
        if (self->count == self->room) {
            Py_ssize_t room = self->room + 4;
            operation *more = realloc(self->inside, (size_t)room * sizeof(operation));
            if (more == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            self->inside = more;
            self->room = room;
        }
        own = &self->inside[self->count++];
        own->thread = PyThread_get_thread_ident();
        own->depth = 0;
    }
    own->depth += 1;
    return 0;
}

/* 1 = that was the last operation of all threads */
static int end(Descriptor *self) {
    operation *own = mine(self);
    if (own != NULL && --own->depth == 0) {
        *own = self->inside[--self->count];
    }
    return self->count == 0;
}

/* No thread is inside, and none can enter. If it is interrupted, the next close calls `release`
 * again. The descriptor is not kept alive for that: its owner would live as long as the process. */
static int finish(Descriptor *self) {
    PyObject *release = self->release;
    self->release = NULL;
    if (release != NULL) {
        int begun = begin(self); /* it may use what it releases */
        PyObject *done = begun < 0 ? NULL : PyObject_CallNoArgs(release);
        if (begun == 0) {
            end(self);
        }
        Py_DECREF(release);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    Py_CLEAR(self->release); /* of a handler that closed meanwhile */
    close_number(self);
    return 0;
}

static PyObject *descriptor_enter(Descriptor *self, PyObject *Py_UNUSED(unused)) {
    if (self->fork_count != pq_fork_count || (self->closed && mine(self) == NULL)) {
        return refuse(self);
    }
    return begin(self) < 0 ? NULL : PyLong_FromLong(self->fd);
}

static PyObject *descriptor_exit(Descriptor *self, PyObject *Py_UNUSED(args)) {
    if (self->fork_count == pq_fork_count && end(self) && self->closed && finish(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *descriptor_close(Descriptor *self, PyObject *args) {
    PyObject *release = Py_None;
    if (!PyArg_ParseTuple(args, "|O:close", &release)) {
        return NULL;
    }
    if (self->fork_count != pq_fork_count) {
        Py_RETURN_TRUE; /* the parent's: the child closed its copy when it began */
    }
    if (self->fd >= 0 && self->release == NULL && release != Py_None) {
        Py_INCREF(release);
        self->release = release;
    }
    self->closed = 1;
    if (self->count == 0 && finish(self) < 0) {
        return NULL;
    }
    return PyBool_FromLong(self->count == 0);
}

static PyObject *descriptor_forget(Descriptor *self, PyObject *Py_UNUSED(unused)) {
    close_number(self);
    Py_RETURN_NONE;
}

static PyObject *descriptor_check(Descriptor *self, PyObject *Py_UNUSED(unused)) {
    if (self->closed || self->fork_count != pq_fork_count) {
        return refuse(self);
    }
    Py_RETURN_NONE;
}

static PyObject *descriptor_closed(Descriptor *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(self->closed || self->fork_count != pq_fork_count);
}

static PyObject *descriptor_is_inside(Descriptor *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(mine(self) != NULL);
}

static PyObject *descriptor_others(Descriptor *self, void *Py_UNUSED(unused)) {
    if (self->fork_count != pq_fork_count) {
        return PyLong_FromLong(0);
    }
    return PyLong_FromSsize_t(self->count - (mine(self) != NULL));
}

static PyMethodDef descriptor_methods[] = {
    {"open", (PyCFunction)(void (*)(void))descriptor_open, METH_VARARGS | METH_KEYWORDS,
     "Own what an opener opens, and not as the number of a standard stream."},
    {"__enter__", (PyCFunction)descriptor_enter, METH_NOARGS, "Begin an operation."},
    {"__exit__", (PyCFunction)descriptor_exit, METH_VARARGS, "End it; the last one out closes."},
    {"close", (PyCFunction)descriptor_close, METH_VARARGS,
     "Refuse new operations; release and close when no thread is inside: is that now?"},
    {"forget", (PyCFunction)descriptor_forget, METH_NOARGS, "Close it in the child of a fork."},
    {"check", (PyCFunction)descriptor_check, METH_NOARGS, "Raise if it was closed."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef descriptor_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Descriptor, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef descriptor_getset[] = {
    {"is_closed", (getter)descriptor_closed, NULL, "Whether no operation can begin.", NULL},
    {"is_inside", (getter)descriptor_is_inside, NULL, "Whether this thread is inside.", NULL},
    {"others", (getter)descriptor_others, NULL, "How many other threads are inside.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject *pq_descriptor_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "An open file or directory: Descriptor(fd, refused); -1 = `open` opens it."},
        {Py_tp_new, descriptor_new},
        {Py_tp_dealloc, descriptor_dealloc},
        {Py_tp_traverse, descriptor_traverse},
        {Py_tp_clear, descriptor_clear},
        {Py_tp_methods, descriptor_methods},
        {Py_tp_members, descriptor_members},
        {Py_tp_getset, descriptor_getset},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Descriptor", sizeof(Descriptor), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
