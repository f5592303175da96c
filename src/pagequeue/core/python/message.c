/* Message: what a consumer gets. A payload, its timestamp and its sequence; read-only.
 *
 * The queue's decoder makes its value; most queues have no decoder.
 */
#include "python/module.h"

typedef struct {
    PyObject_HEAD
    PyObject *payload;
    PyObject *decoder; /* called with payload and sequence; NULL: the payload is the value */
    long long timestamp;
    unsigned long long sequence;
} Message;

static PyObject *epoch, *timedelta;

/* Messages come and go by the million: the shells of a few are kept for the next ones. */
#define KEPT_MAX 64
static Message *kept[KEPT_MAX];
static int kept_count;

int pq_message_prepare(void) {
    PyObject *datetime = PyImport_ImportModule("datetime");
    if (datetime == NULL) {
        return -1;
    }
    PyObject *zone = PyObject_GetAttrString(datetime, "timezone"), *made = NULL;
    PyObject *utc = zone == NULL ? NULL : PyObject_GetAttrString(zone, "utc");
    if (utc != NULL && (timedelta = PyObject_GetAttrString(datetime, "timedelta")) != NULL) {
        made = PyObject_CallMethod(datetime, "datetime", "iiiiiiiO", 1970, 1, 1, 0, 0, 0, 0, utc);
    }
    Py_XDECREF((PyObject *)zone);
    Py_XDECREF((PyObject *)utc);
    Py_DECREF((PyObject *)datetime);
    epoch = made;
    return made == NULL ? -1 : 0;
}

static PyObject *make(PyTypeObject *type, PyObject *payload, int64_t timestamp, uint64_t sequence,
                      PyObject *decoder) {
    Message *self;
    if (type != pq_message_type) { /* one whose payload is read when it is asked for */
        allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        self = (Message *)allocate(type, 0);
    } else if (kept_count > 0) {
        self = kept[--kept_count];
        PyObject_Init((PyObject *)self, type);
    } else {
        self = PyObject_New(Message, type);
    }
    if (self == NULL) {
        Py_DECREF((PyObject *)payload);
        return NULL;
    }
    self->payload = payload;
    Py_XINCREF(decoder);
    self->decoder = decoder;
    self->timestamp = timestamp;
    self->sequence = sequence;
    return (PyObject *)self;
}

PyObject *pq_message_new(PyObject *payload, int64_t timestamp, uint64_t sequence,
                         PyObject *decoder) {
    return make(pq_message_type, payload, timestamp, sequence, decoder);
}

static PyObject *message_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "timestamp", "sequence", "decoder", NULL};
    PyObject *payload, *decoder = Py_None;
    long long timestamp;
    unsigned long long sequence;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SLK|O:Message", names, &payload, &timestamp,
                                     &sequence, &decoder)) {
        return NULL;
    }
    Py_INCREF((PyObject *)payload);
    return make(type, payload, timestamp, sequence, decoder == Py_None ? NULL : decoder);
}

static void message_dealloc(Message *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_DECREF(self->payload);
    Py_XDECREF(self->decoder);
    if (type != pq_message_type) {
        freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
        release(self);
    } else if (kept_count < KEPT_MAX) {
        kept[kept_count++] = self;
    } else {
        PyObject_Free(self);
    }
    Py_DECREF((PyObject *)type);
}

static PyObject *message_time(Message *self, void *Py_UNUSED(closure)) {
    long long microseconds = self->timestamp / 1000;
    if (self->timestamp % 1000 < 0) {
        microseconds -= 1;
    }
    PyObject *since_epoch = PyObject_CallFunction(timedelta, "iiL", 0, 0, microseconds);
    if (since_epoch == NULL) {
        return NULL;
    }
    PyObject *result = PyNumber_Add(epoch, since_epoch);
    Py_DECREF((PyObject *)since_epoch);
    return result;
}

static PyObject *message_value(Message *self, void *Py_UNUSED(closure)) {
    if (self->decoder == NULL) {
        Py_INCREF(self->payload);
        return self->payload;
    }
    return PyObject_CallFunction(self->decoder, "OK", self->payload, self->sequence);
}

static PyObject *message_repr(Message *self) {
    return PyUnicode_FromFormat("Message(payload=%R, timestamp=%lld, sequence=%llu)",
                                self->payload, self->timestamp, self->sequence);
}

static PyObject *message_reduce(Message *self, PyObject *Py_UNUSED(unused)) {
    return Py_BuildValue("O(OLKO)", (PyObject *)Py_TYPE((PyObject *)self), self->payload,
                         self->timestamp, self->sequence,
                         self->decoder == NULL ? Py_None : self->decoder);
}

static PyObject *message_compare(PyObject *left, PyObject *right, int operation) {
    if (Py_TYPE(left) != Py_TYPE(right) || (operation != Py_EQ && operation != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    Message *a = (Message *)left, *b = (Message *)right;
    int equal = a->sequence == b->sequence && a->timestamp == b->timestamp;
    if (equal) {
        equal = PyObject_RichCompareBool(a->payload, b->payload, Py_EQ);
        if (equal < 0) {
            return NULL;
        }
    }
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t message_hash(Message *self) {
    Py_hash_t hash = PyObject_Hash(self->payload);
    if (hash != -1) {
        hash ^= (Py_hash_t)(self->sequence * 1000003u) ^ (Py_hash_t)self->timestamp;
        hash = hash == -1 ? -2 : hash;
    }
    return hash;
}

static PyMemberDef message_members[] = {
    {"payload", T_OBJECT_EX, offsetof(Message, payload), READONLY, "The bytes that were sent."},
    {"timestamp", T_LONGLONG, offsetof(Message, timestamp), READONLY, "ns since 1970, UTC."},
    {"sequence", T_ULONGLONG, offsetof(Message, sequence), READONLY, "Its number in the queue."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef message_getset[] = {
    {"time", (getter)message_time, NULL, "The timestamp as an aware datetime, in UTC."
     "\n\nExample:\n"
     "    >>> Message(b\"one\", 0, 0).time.isoformat()\n"
     "    '1970-01-01T00:00:00+00:00'\n", NULL},
    {"value", (getter)message_value, NULL,
     "The object sent: decoded on access by the codec, a record of the dtype, or the payload."
     "\n\nExample:\n"
     "    >>> Message(b\"one\", 0, 0).value\n"
     "    b'one'\n",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *message_open(Message *self, PyObject *Py_UNUSED(unused)) {
    PyObject *io = PyImport_ImportModule("io");
    PyObject *file = io == NULL ? NULL : PyObject_CallMethod(io, "BytesIO", "O", self->payload);
    Py_XDECREF(io);
    return file;
}

PyDoc_STRVAR(open_doc,
    "open($self, /)\n--\n\n"
    "Return the payload as a readable, seekable binary file.\n\n"
    "The payload of a message that is larger than a page is read and checked as the file is read,\n"
    "and is never in memory as a whole. The message and its file keep their pages mapped.\n\n"
    "Raises:\n"
    "    CorruptFrame, on reading: a part of the payload is damaged; no byte of it is returned.\n\n"
    "Example:\n"
    "    >>> with message.open() as file, open(path, \"wb\") as copy:\n"
    "    ...     shutil.copyfileobj(file, copy)");

static PyMethodDef message_methods[] = {
    {"open", (PyCFunction)message_open, METH_NOARGS, open_doc},
    {"__reduce__", (PyCFunction)message_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject *pq_message_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Message(payload, timestamp, sequence): bytes, ns since 1970 in UTC, number."
         "\n\nExample:\n"
         "    >>> message = consumer.receive(timeout=1.0)\n"
         "    >>> message.payload, message.sequence\n"
         "    (b'one', 0)\n"},
        {Py_tp_new, message_new},
        {Py_tp_dealloc, message_dealloc},
        {Py_tp_repr, message_repr},
        {Py_tp_hash, message_hash},
        {Py_tp_richcompare, message_compare},
        {Py_tp_members, message_members},
        {Py_tp_getset, message_getset},
        {Py_tp_methods, message_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Message", sizeof(Message), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (type == NULL) {
        return NULL;
    }
    PyObject *names = Py_BuildValue("(sss)", "payload", "timestamp", "sequence");
    PyObject *home = PyUnicode_FromString("pagequeue");
    if (names == NULL || home == NULL ||
        PyObject_SetAttrString((PyObject *)type, "__match_args__", names) < 0 ||
        PyObject_SetAttrString((PyObject *)type, "__module__", home) < 0) {
        Py_CLEAR(type);
    }
    Py_XDECREF((PyObject *)names);
    Py_XDECREF((PyObject *)home);
    return type;
}
