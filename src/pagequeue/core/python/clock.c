/* Clock: the time of messages, in ns since 1970.
 *
 * A reading inside of the window that the last look gave is the time: one comparison. Any other one
 * is looked at by the Python method `_look`, which returns the time, and opens the next window.
 */
#include "python/clock.h"

static PyObject *clock_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *source = args == NULL || PyTuple_Size(args) < 1 ? Py_None : PyTuple_GetItem(args, 0);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Clock *self = (Clock *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(source);
    self->source = source;
    return (PyObject *)self;
}

static int clock_traverse(Clock *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->source);
    return 0;
}

static int clock_clear(Clock *self) {
    pq_clear_to_none(&self->source);
    return 0;
}

static void clock_dealloc(Clock *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->source);
    pq_type_free((PyObject *)self);
}

int64_t pq_clock_look(Clock *self, int64_t reading) {
    PyObject *found = PyObject_CallMethod((PyObject *)self, "_look", "L", (long long)reading);
    long long now = found == NULL ? -1 : PyLong_AsLongLong(found);
    Py_XDECREF(found);
    return now;
}

static PyObject *clock_call(Clock *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs)) {
    int64_t now = pq_clock_now(self);
    return now < 0 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(now);
}

/* Readings of so many ns from one on need no look. */
static PyObject *clock_window(Clock *self, PyObject *args) {
    long long from;
    unsigned long long span;
    if (!PyArg_ParseTuple(args, "LK:_window", &from, &span)) {
        return NULL;
    }
    self->span = 0; /* another thread is not to see the new beginning with the old span */
    self->from = from;
    self->span = span;
    Py_RETURN_NONE;
}

static PyMethodDef clock_methods[] = {
    {"_window", (PyCFunction)clock_window, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject *pq_clock_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Clock(source): ns since 1970; None: the system's clock."},
        {Py_tp_new, clock_new},
        {Py_tp_dealloc, clock_dealloc},
        {Py_tp_traverse, clock_traverse},
        {Py_tp_clear, clock_clear},
        {Py_tp_call, clock_call},
        {Py_tp_methods, clock_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Clock", sizeof(Clock), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
