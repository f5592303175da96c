/* Claim: one message that this handle has claimed, until it is acknowledged or given back. */
#include "python/group_handle.h"

/* Claims come and go by the million: the shells of a few are kept for the next ones. */
#define KEPT_MAX 64
#define SPAN_SECONDS_MAX 1e9
static Claim *kept[KEPT_MAX];
static int kept_count;

/* Steals the message. */
PyObject *pq_claim_new(Claims *group, PyObject *message, const pq_claim *got) {
    Claim *self;
    if (kept_count > 0) {
        self = kept[--kept_count];
        PyObject_Init((PyObject *)self, pq_claim_type);
    } else {
        self = PyObject_GC_New(Claim, pq_claim_type);
    }
    if (self == NULL) {
        Py_DECREF(message);
        return NULL;
    }
    Py_INCREF((PyObject *)group);
    self->group = group;
    self->message = message;
    self->slot = got->slot;
    self->id = got->id;
    self->sequence = got->sequence;
    self->deliveries = got->deliveries;
    self->cause = got->cause;
    self->settled = 0;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* Without tp_clear: a cycle through a claim is one through its group, which has one. */
static int claim_traverse(Claim *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->group);
    Py_VISIT(self->message);
    return 0;
}

static void claim_dealloc(Claim *self) {
    PyObject_GC_UnTrack(self);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_DECREF(self->message);
    Py_DECREF((PyObject *)self->group);
    if (kept_count < KEPT_MAX) {
        kept[kept_count++] = self;
    } else {
        PyObject_GC_Del(self);
    }
    Py_DECREF((PyObject *)type);
}

#define BY_RULE (-1) /* the delay that a failed delivery has by default */

/* 1 = done, 0 = raised. */
static int attempt_on(Claim *self, pq_group_attempt *try, int64_t delay, int settles) {
    Claims *group = self->group;
    if (!pq_group_ready(group)) {
        return 0;
    }
    if (self->settled) {
        pq_event_raise((PyObject *)group, EVENT_SETTLED, (int64_t)self->sequence);
        return 0;
    }
    pq_claim got = {.slot = self->slot, .id = self->id, .cause = PQ_CAUSE_NACK};
    try->got = &got;
    try->by.now = pq_group_now(group);
    try->wall = try->what == PQ_DO_ACK ? pq_group_wall(group, try->by.now) : 0;
    if ((try->by.now < 0 || try->wall < 0) && PyErr_Occurred()) {
        return 0;
    }
    if (group->clock == Py_None && !pq_group_check_place(group, try->by.now)) {
        return 0;
    }
    if (delay == BY_RULE) {
        delay = pq_retry_delay(&group->retry, self->sequence, self->deliveries);
    }
    try->until = delay > INT64_MAX - try->by.now ? INT64_MAX - 1 : try->by.now + delay;
    if (!pq_group_run(group, try)) {
        return 0;
    }
    if (try->result != PQ_CLAIM_DONE) {
        pq_event_raise((PyObject *)group, EVENT_LEASE_LOST, (int64_t)self->sequence);
        return 0;
    }
    self->settled = (char)(self->settled | settles);
    return 1;
}

/* The one argument that a method takes, by place or by name; NULL = not given; -1 = raised. */
static int argument(const char *method, const char *name, PyObject *const *args,
                    Py_ssize_t arg_count, PyObject *names, PyObject **value) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    if (arg_count + named > 1 ||
        (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), name) != 0)) {
        PyErr_Format(PyExc_TypeError, "%s takes one argument, %s", method, name);
        return -1;
    }
    *value = arg_count + named == 1 ? args[0] : NULL;
    return 0;
}

/* The arguments of `nack`: `delay` by place or by name, `reason` by name; -1 = raised. */
static int nack_arguments(PyObject *const *args, Py_ssize_t arg_count, PyObject *names,
                          PyObject **delay, PyObject **reason) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    if (arg_count > 1) {
        PyErr_SetString(PyExc_TypeError, "nack takes a delay, and a reason by its name");
        return -1;
    }
    *delay = arg_count == 1 ? args[0] : NULL;
    *reason = NULL;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "reason") == 0) {
            *reason = args[arg_count + i];
        } else if (PyUnicode_CompareWithASCIIString(name, "delay") == 0 && *delay == NULL) {
            *delay = args[arg_count + i];
        } else {
            PyErr_Format(PyExc_TypeError, "nack takes delay and reason, each once, not %R", name);
            return -1;
        }
    }
    return 0;
}

/* 1 = a text, 0 = none was given, -1 = raised. */
static int has_reason(PyObject *reason) {
    if (reason == NULL || reason == Py_None) {
        return 0;
    }
    if (!PyUnicode_Check(reason)) {
        pq_refuse_argument("text", "(sO)", "reason", reason);
        return -1;
    }
    return 1;
}

/* Seconds from now in ns; -1 = raised. */
static int64_t span_of(PyObject *seconds, const char *name) {
    double value = PyBool_Check(seconds) ? -1 : PyFloat_AsDouble(seconds);
    if (!(value >= 0 && value <= SPAN_SECONDS_MAX)) {
        pq_refuse_argument("seconds", "(sOd)", name, seconds, (double)SPAN_SECONDS_MAX);
        return -1;
    }
    return (int64_t)(value * 1e9);
}

static PyObject *claim_ack(Claim *self, PyObject *const *args, Py_ssize_t arg_count,
                           PyObject *names) {
    PyObject *durable = NULL;
    if ((arg_count != 0 || names != NULL) &&
        argument("ack", "durable", args, arg_count, names, &durable) < 0) {
        return NULL;
    }
    int is_durable = durable == NULL ? 0 : PyObject_IsTrue(durable);
    if (is_durable < 0) {
        return NULL;
    }
    pq_group_attempt try = {.what = PQ_DO_ACK};
    if (!attempt_on(self, &try, 0, 1)) {
        return NULL;
    }
    if (is_durable) {
        PyObject *done = PyObject_CallMethod((PyObject *)self->group, "flush", NULL);
        if (done == NULL) {
            return NULL;
        }
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

/* Move it to the dead letters, which Python sends it to; 1 = done, 0 = raised.
 *
 * 1. Its lease begins anew, so that a claim that is not live sends no message there.
 * 2. It is sent to the dead letters, and flushed. Dies here: it is claimed again, as after any death
 *    of a worker, and can be there twice.
 * 3. It is acknowledged. */
static int move_to_dead_letters(Claim *self, uint32_t cause, PyObject *reason) {
    pq_group_attempt try = {.what = PQ_DO_EXTEND};
    if (!attempt_on(self, &try, self->group->lease, 0)) {
        return 0;
    }
    PyObject *answer = PyObject_CallMethod(
        (PyObject *)self->group, "_send_to_dead_letters", "IKKOIIO", self->slot,
        (unsigned long long)self->id, (unsigned long long)self->sequence, self->message,
        self->deliveries, cause, reason == NULL ? Py_None : reason);
    if (answer == NULL) {
        return 0;
    }
    int is_done = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (is_done == 0) {
        pq_event_raise((PyObject *)self->group, EVENT_LEASE_LOST, (int64_t)self->sequence);
    }
    self->settled = (char)(self->settled | (is_done > 0));
    return is_done > 0;
}

static PyObject *claim_nack(Claim *self, PyObject *const *args, Py_ssize_t arg_count,
                            PyObject *names) {
    PyObject *seconds, *reason;
    if (nack_arguments(args, arg_count, names, &seconds, &reason) < 0) {
        return NULL;
    }
    int is_ruled = seconds == NULL || seconds == Py_None;
    int64_t delay = is_ruled ? BY_RULE : span_of(seconds, "delay");
    int is_told = delay < 0 && !is_ruled ? -1 : has_reason(reason);
    if (is_told < 0) {
        return NULL;
    }
    uint32_t most = self->group->retry.deliveries_max;
    if (is_told && most != 0 && self->deliveries >= most) { /* the table has no room for a text */
        if (!move_to_dead_letters(self, PQ_CAUSE_NACK, reason)) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    pq_group_attempt try = {.what = PQ_DO_NACK};
    if (!attempt_on(self, &try, delay, 1)) {
        return NULL;
    }
    pq_wake(self->group->meta->base); /* a sleeping worker can have it now */
    Py_RETURN_NONE;
}

static PyObject *claim_reject(Claim *self, PyObject *const *args, Py_ssize_t arg_count,
                              PyObject *names) {
    PyObject *reason = NULL;
    if (argument("reject", "reason", args, arg_count, names, &reason) < 0 ||
        has_reason(reason) < 0 || !move_to_dead_letters(self, PQ_CAUSE_REJECT, reason)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *claim_enter(Claim *self, PyObject *unused) {
    (void)unused;
    Py_INCREF((PyObject *)self);
    return (PyObject *)self;
}

static PyObject *claim_exit(Claim *self, PyObject *args) {
    PyObject *type, *error, *trace;
    if (!PyArg_ParseTuple(args, "OOO:__exit__", &type, &error, &trace)) {
        return NULL;
    }
    if (!self->settled && error == Py_None) {
        pq_group_attempt try = {.what = PQ_DO_ACK};
        if (!attempt_on(self, &try, 0, 1)) {
            return NULL;
        }
    } else if (!self->settled) {
        PyObject *answer =
            PyObject_CallMethod((PyObject *)self->group, "_give_back", "OO", self, error);
        if (answer == NULL) {
            return NULL;
        }
        Py_DECREF(answer);
    }
    Py_RETURN_FALSE;
}

static PyObject *claim_enter_async(Claim *self, PyObject *unused) {
    (void)unused;
    return PyObject_CallMethod((PyObject *)self->group, "_begin_async", "O", self);
}

static PyObject *claim_exit_async(Claim *self, PyObject *args) {
    PyObject *type, *error, *trace;
    if (!PyArg_ParseTuple(args, "OOO:__aexit__", &type, &error, &trace)) {
        return NULL;
    }
    return PyObject_CallMethod((PyObject *)self->group, "_end_async", "OO", self, error);
}

static PyObject *claim_extend(Claim *self, PyObject *seconds) {
    int64_t span = span_of(seconds, "seconds");
    pq_group_attempt try = {.what = PQ_DO_EXTEND};
    if (span < 0 || !attempt_on(self, &try, span, 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *claim_repr(Claim *self) {
    return PyUnicode_FromFormat("Claim(%R, deliveries=%u)", self->message, self->deliveries);
}

#define LEASE_ERRORS \
    "Raises:\n" \
    "    LeaseLost: its lease ended, or another worker has it; no change was made.\n" \
    "    UsageError: it was acknowledged or given back before.\n" \
    "    ClosedError, ForkedError: the group's handle is closed, or the parent's."

PyDoc_STRVAR(ack_doc,
    "ack($self, /, durable=False)\n--\n\n"
    "Acknowledge the message: no worker gets it again.\n\n"
    "Args:\n"
    "    durable: return when the acknowledgement is on stable storage.\n\n" LEASE_ERRORS "\n"
    "    SyncFailed: with `durable`: it is acknowledged, but a power cut can take that back."
    "\n\nExample:\n"
    "    >>> claim.ack()\n");
PyDoc_STRVAR(nack_doc,
    "nack($self, /, delay=None, *, reason=None)\n--\n\n"
    "Return the message to the group, which delivers it again.\n\n"
    "With a reason, a message that was delivered `max_deliveries` times goes to the dead letters at\n"
    "once, with the reason; this waits for the disk.\n\n"
    "Args:\n"
    "    delay: seconds before it can be claimed again. None: as long as the group's `backoff` says,\n"
    "        longer after each failed delivery.\n"
    "    reason: why, as `DeadLetter.reason` shows it; at most 1024 bytes of UTF-8 are kept.\n\n"
    LEASE_ERRORS "\n"
    "    DiskFull, SyncFailed: with a reason: moving it failed; it is still claimed."
    "\n\nExample:\n"
    "    >>> claim.nack(delay=5.0, reason=\"the server is down\")\n");
PyDoc_STRVAR(reject_doc,
    "reject($self, /, reason=None)\n--\n\n"
    "Move the message to the dead letters now, however often it was delivered.\n\n"
    "For a message that no worker can ever handle. It returns when the dead letter is on stable\n"
    "storage, and the message is acknowledged.\n\n"
    "Args:\n"
    "    reason: why, as `DeadLetter.reason` shows it; at most 1024 bytes of UTF-8 are kept.\n\n"
    LEASE_ERRORS "\n"
    "    DiskFull, SyncFailed: moving it failed; it is still claimed, for one lease from now."
    "\n\nExample:\n"
    "    >>> claim.reject(\"not a picture\")\n"
    "    >>> next(group.dead_letters()).reason\n"
    "    'not a picture'\n");
PyDoc_STRVAR(extend_doc,
    "extend($self, seconds, /)\n--\n\n"
    "Extend the lease: it now ends so many seconds from now.\n\n"
    "Args:\n"
    "    seconds: 0 to 1e9.\n\n" LEASE_ERRORS
    "\n\nExample:\n"
    "    >>> claim.extend(60.0)\n");

static PyMethodDef claim_methods[] = {
    {"ack", (PyCFunction)(void (*)(void))claim_ack, METH_FASTCALL | METH_KEYWORDS, ack_doc},
    {"nack", (PyCFunction)(void (*)(void))claim_nack, METH_FASTCALL | METH_KEYWORDS, nack_doc},
    {"reject", (PyCFunction)(void (*)(void))claim_reject, METH_FASTCALL | METH_KEYWORDS,
     reject_doc},
    {"__enter__", (PyCFunction)claim_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)claim_exit, METH_VARARGS, NULL},
    {"__aenter__", (PyCFunction)claim_enter_async, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)claim_exit_async, METH_VARARGS, NULL},
    {"extend", (PyCFunction)claim_extend, METH_O, extend_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef claim_members[] = {
    {"message", T_OBJECT_EX, offsetof(Claim, message), READONLY, "What was claimed."},
    {"deliveries", T_UINT, offsetof(Claim, deliveries), READONLY,
     "How often it was claimed so far, this time included."},
    {"_is_settled", T_BOOL, offsetof(Claim, settled), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject *pq_claim_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "One message that was claimed. Made by `Group.claim`.\n\n"
         "A `with` block acknowledges it at its end. If the block raises, the message is given\n"
         "back with the error as the reason, and the error propagates; an exception that only stops\n"
         "the worker, as KeyboardInterrupt, gives no reason. A block that settled the claim itself\n"
         "is left as it is. If the lease ended meanwhile, the end of the block raises `LeaseLost`,\n"
         "or adds that as a note to the error of the block. `async with` does the same.\n\n"
         "Example:\n"
         "    >>> claim = group.claim(timeout=1.0)\n"
         "    >>> claim.message.payload, claim.deliveries\n"
         "    (b'one', 1)\n"
         "    >>> claim.ack()\n"
         "    >>> with group.claim(timeout=1.0) as claim:\n"
         "    ...     claim.message.payload\n"
         "    b'two'\n"},
        {Py_tp_dealloc, claim_dealloc},
        {Py_tp_traverse, claim_traverse},
        {Py_tp_repr, claim_repr},
        {Py_tp_methods, claim_methods},
        {Py_tp_members, claim_members},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Claim", sizeof(Claim), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                   Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
