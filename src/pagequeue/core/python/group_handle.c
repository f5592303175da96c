/* Claims: one handle of a group. The table is in protocol/group_claims.c; here it is locked and
 * waited for, and cases that only Python can resolve go to its methods (`PQ_EVENTS`).
 *
 * The lock is tried with the GIL held, because an operation under it takes less time than taking
 * the GIL back; when it is not free at once, without it. Under the lock, only the header of the
 * claimed frame is read from a page: messages are copied out afterwards (python/group_deliver.c).
 */
#include "python/group_handle.h"
#include "python/idle_strategy.h"
#include "python/locked_call.h"

#define HELD_TRIES 4
/* After the first try, and twice as many after each further one. They are long, because each change
 * of hands costs more than an operation: the words move from one processor to the other. So one
 * worker does a few in a row while another waits. */
#define PAUSES 32
#define WALL_NS 500000000

int pq_group_file_check(Region *file, unsigned int capacity) {
    if (capacity == 0 || capacity > PQ_GROUP_CAPACITY_MAX) {
        PyErr_Format(PyExc_ValueError, "the file of a group has no capacity of %u", capacity);
        return -1;
    }
    return pq_region_check(file, PQ_GROUP_TABLE_AT + (uint64_t)capacity * PQ_GROUP_RECORD_BYTES, 1,
                           "file of the group");
}

static PyObject *claims_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"meta", "file",  "capacity", "fd",   "foreign", "owner", "lease",
                            "deliveries_max", "retry_first", "retry_most", "lock_timeout",
                            "clock", "wall", NULL};
    Region *meta, *file;
    unsigned int capacity, deliveries_max;
    int fd, foreign;
    unsigned long long owner;
    double lease, first, most, lock_timeout;
    PyObject *clock, *wall;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!IipKdIdddOO:Claims", names, pq_region_type,
                                     &meta, pq_region_type, &file, &capacity, &fd, &foreign, &owner,
                                     &lease, &deliveries_max, &first, &most, &lock_timeout, &clock,
                                     &wall) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0 ||
        pq_group_file_check(file, capacity) < 0) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Claims *self = (Claims *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)meta);
    Py_INCREF((PyObject *)file);
    Py_INCREF(clock);
    Py_INCREF(wall);
    self->meta = meta;
    self->file = file;
    self->clock = clock;
    self->wall = wall;
    self->wall_is_system =
        wall == Py_None || (PyObject_TypeCheck(wall, pq_clock_type) &&
                            ((Clock *)wall)->source == Py_None);
    pq_table_init(&self->table, file->base, file->bytes, capacity);
    self->table.lock.mutex = file->base + PQ_GROUP_META_MUTEX;
    self->table.lock.fd = fd;
    self->table.lock.foreign = foreign;
    pq_guard_mutex(file->guard, PQ_GROUP_META_MUTEX);
    self->owner = owner;
    self->lease = (int64_t)(lease * 1e9);
    self->retry = (pq_retry){deliveries_max, (int64_t)(first * 1e9), (int64_t)(most * 1e9)};
    self->lock_timeout = lock_timeout < 9e9 ? (int64_t)(lock_timeout * 1e9) : INT64_MAX;
    self->spin_ns = PQ_SPIN_NS_MAX;
    self->fork_count = pq_fork_count;
    return (PyObject *)self;
}

static int claims_traverse(Claims *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->meta);
    Py_VISIT((PyObject *)self->file);
    Py_VISIT((PyObject *)self->page);
    Py_VISIT(self->clock);
    Py_VISIT(self->wall);
    Py_VISIT(self->decoder);
    return 0;
}

static int claims_clear(Claims *self) {
    pq_clear_to_none(&self->clock);
    pq_clear_to_none(&self->wall);
    self->wall_is_system = 1;
    Py_CLEAR(self->decoder);
    return 0;
}

static void claims_dealloc(Claims *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->meta);
    Py_XDECREF((PyObject *)self->file);
    Py_XDECREF((PyObject *)self->page);
    Py_XDECREF(self->clock);
    Py_XDECREF(self->wall);
    Py_XDECREF(self->decoder);
    pq_type_free((PyObject *)self);
}

int pq_group_ready(Claims *self) {
    return pq_handle_ready((PyObject *)self, self->fork_count, self->closed);
}

int pq_group_check_place(Claims *self, int64_t now) {
    return !pq_place_due(&self->checked_at, now) ||
           pq_event_raise((PyObject *)self, EVENT_PLACE, 0) >= 0;
}

int64_t pq_group_now(Claims *self) {
    return self->clock == Py_None ? pq_clock_monotonic() : pq_clock_call(self->clock);
}

/* When something is acknowledged, by the wall clock; that is only asked twice a second. */
int64_t pq_group_wall(Claims *self, int64_t now) {
    if (!self->wall_is_system || self->clock != Py_None) {
        return self->wall == Py_None ? pq_clock_realtime() : pq_clock_call(self->wall);
    }
    if (now >= self->wall_until) {
        self->wall_ahead =
            (self->wall == Py_None ? pq_clock_realtime() : pq_clock_now((Clock *)self->wall)) - now;
        self->wall_until = now + WALL_NS;
    }
    return now + self->wall_ahead;
}

/* --- under the lock --------------------------------------------------------------------------- */

static pq_claim_result apply(pq_table *table, pq_group_attempt *try) {
    pq_claim *got = try->got;
    int64_t now = try->by.now;
    switch (try->what) {
    case PQ_DO_CLAIM: return pq_claim_some(table, &try->by, got, try->limit, &try->count);
    case PQ_DO_ACK:
        pq_table_acked_at(table, try->wall);
        return pq_claim_ack(table, got->slot, got->id, now);
    case PQ_DO_COUNT: break;
    case PQ_DO_NACK: return pq_claim_nack(table, got->slot, got->id, now, try->until, got->cause);
    case PQ_DO_UNDO: return pq_claim_undo(table, got->slot, got->id, now, try->until);
    case PQ_DO_EXTEND: return pq_claim_extend(table, got->slot, got->id, now, try->until);
    case PQ_DO_RELEASE:
        try->count = pq_table_release(table, try->by.owner, &try->by.retry, now);
        break;
    case PQ_DO_OWNERS: try->count = pq_table_owners(table, try->owners, try->limit); break;
    case PQ_DO_PLACE:
        try->count = (uint32_t)pq_table_set_place(table, try->sequence, try->place);
        break;
    case PQ_DO_SKIP:
        try->count = (uint32_t)pq_table_skip(table, try->sequence, try->place);
        break;
    case PQ_DO_RESTORE: return pq_table_restore(table, got, try->until) ? PQ_CLAIM_DONE
                                                                       : PQ_CLAIM_FULL;
    case PQ_DO_SNAPSHOT:
        try->count = pq_table_snapshot(table, now, try->wall, try->records, try->limit,
                                       &try->sequence);
        break;
    }
    return PQ_CLAIM_DONE;
}

static void with_lock(void *what) {
    pq_group_attempt *try = what;
    pq_table *table = try->table;
    const uint8_t *floor_at = table->base + PQ_GROUP_META_NEXT_SEQUENCE;
    uint64_t floor = pq_load_u64(floor_at);
    try->result = pq_table_begin(table);
    if (try->result == PQ_CLAIM_DONE) {
        try->result = apply(table, try);
        if (try->counts != 0 && try->result == PQ_CLAIM_DONE) {
            pq_table_count(table, try->counts, 1);
        }
        pq_table_end(table);
    }
    pq_lock_release(&table->lock);
    if (pq_load_u64(floor_at) != floor) {
        pq_room_wake(try->by.meta, pq_load_u64(floor_at));
    }
    try->is_lost = pq_region_lost(try->file);
    if (try->is_lost) {
        pq_lock_forget(&table->lock);
    }
}

/* 1 = done, 0 = raised: the file was truncated, so that changes to it are lost, or it grew beyond
 * the map. */
static int check_lost(Claims *self, const pq_group_attempt *try) {
    if (try->is_lost) {
        pq_event_raise((PyObject *)self, EVENT_LOST, 0);
    } else if (try->result == PQ_CLAIM_BEYOND) {
        pq_event_raise((PyObject *)self, EVENT_BEYOND, 0);
        return 0;
    }
    return !try->is_lost;
}

void pq_group_enter(Claims *self) { self->inside += 1; }

/* With the GIL, so it happens once. */
int pq_group_leave(Claims *self) {
    if (!self->closed || self->inside > 0 || self->is_released) {
        return 0;
    }
    self->is_released = 1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_close_lock", NULL);
    if (done == NULL) {
        self->is_released = 0; /* interrupted: closing again calls it again */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) { /* Ctrl-C goes before what was raised */
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
            return -1;
        }
        PyErr_Clear();
    }
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
    return 0;
}

int pq_group_exit(Claims *self) {
    self->inside -= 1;
    return pq_group_leave(self);
}

int pq_group_run(Claims *self, pq_group_attempt *try) {
    Region *page = self->page;
    if (self->inside == 0 && !pq_group_ready(self)) { /* its files are closed */
        return 0;
    }
    try->by.meta = self->meta->base;
    try->by.page = page == NULL ? NULL : page->base;
    try->by.page_bytes = page == NULL ? 0 : page->bytes;
    try->by.queue_state = page == NULL ? 0 : page->queue_state;
    try->by.page_number = self->page_number;
    try->table = &self->table;
    try->file = self->file;
    if (try->by.acknowledges) {
        Py_XINCREF((PyObject *)page);
        try->page = page;
    }
    if (pq_lock_soon(&self->table.lock, HELD_TRIES, PAUSES, 2)) {
        with_lock(try);
        return check_lost(self, try);
    }
    pq_locked_call call = {.lock = &self->table.lock, .closed = &self->closed,
                           .timeout = self->lock_timeout, .used = {self->meta, self->file, page},
                           .run = with_lock, .what = try};
    Py_INCREF((PyObject *)self);
    pq_group_enter(self);
    lock_outcome outcome = pq_locked_call_run(&call);
    int done = outcome == LOCK_TAKEN && check_lost(self, try);
    pq_locked_call_raise(&call, outcome, (PyObject *)self);
    if (pq_group_exit(self) < 0) {
        done = 0;
    }
    Py_DECREF((PyObject *)self);
    return done;
}

int pq_group_grow(Claims *self) {
    uint32_t outstanding = pq_load_u32(self->table.base + PQ_GROUP_META_OUTSTANDING);
    if (outstanding >= pq_table_limit(&self->table)) {
        return 0;
    }
    return pq_event_raise((PyObject *)self, EVENT_TABLE_FULL, self->table.capacity);
}

int pq_group_settle(Claims *self, pq_claim *got, uint32_t counts) {
    pq_group_attempt try = {.what = got->id == 0 ? PQ_DO_COUNT : PQ_DO_ACK, .got = got,
                            .counts = counts};
    try.by.now = pq_group_now(self);
    try.wall = pq_group_wall(self, try.by.now);
    if (PyErr_Occurred() || !pq_group_run(self, &try)) {
        return -1;
    }
    return try.result == PQ_CLAIM_DONE;
}

/* --- what users call -------------------------------------------------------------------------- */

/* The one argument of claim and take, in ns; below -1 = raised. */
static int64_t timeout_of(const char *what, PyObject *const *args, Py_ssize_t arg_count,
                          PyObject *names) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    if (arg_count + named > 1 ||
        (named == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "timeout") != 0)) {
        PyErr_Format(PyExc_TypeError, "%s takes one argument, timeout", what);
        return -2;
    }
    return pq_timeout_ns(arg_count + named == 1 ? args[0] : Py_None);
}

/* One message, as a Claim or taken for good. */
static PyObject *one_inside(Claims *self, int64_t timeout, int acknowledges) {
    for (;;) {
        pq_claim got;
        Region *page = NULL;
        int count = pq_group_claim(self, timeout, &got, 1, acknowledges ? &page : NULL);
        if (count == 0) {
            pq_event_raise((PyObject *)self, EVENT_TIMEOUT, timeout);
        }
        if (count <= 0) {
            return NULL;
        }
        int is_none = 0;
        PyObject *made = pq_group_deliver(self, &got, acknowledges, page, &is_none);
        Py_XDECREF((PyObject *)page);
        if (!is_none) {
            return made;
        }
    }
}

static PyObject *one(Claims *self, int64_t timeout, int acknowledges) {
    Py_INCREF((PyObject *)self);
    pq_group_enter(self);
    PyObject *made = one_inside(self, timeout, acknowledges);
    if (pq_group_exit(self) < 0) {
        Py_CLEAR(made);
    }
    Py_DECREF((PyObject *)self);
    return made;
}

static PyObject *claims_claim(Claims *self, PyObject *const *args, Py_ssize_t arg_count,
                              PyObject *names) {
    int64_t timeout = timeout_of("claim", args, arg_count, names);
    return timeout < -1 ? NULL : one(self, timeout, 0);
}

static PyObject *claims_take(Claims *self, PyObject *const *args, Py_ssize_t arg_count,
                             PyObject *names) {
    int64_t timeout = timeout_of("take", args, arg_count, names);
    return timeout < -1 ? NULL : one(self, timeout, 1);
}

static PyObject *claims_many(Claims *self, PyObject *args) {
    Py_ssize_t limit;
    PyObject *seconds;
    if (!PyArg_ParseTuple(args, "nO:_claim_many", &limit, &seconds)) {
        return NULL;
    }
    int64_t timeout = pq_timeout_ns(seconds);
    if (timeout < -1) {
        return NULL;
    }
    limit = limit < PQ_CLAIM_COUNT_MAX ? limit : PQ_CLAIM_COUNT_MAX;
    Py_INCREF((PyObject *)self);
    pq_group_enter(self);
    pq_claim *got = PyMem_Malloc((size_t)limit * sizeof *got);
    PyObject *list = got == NULL ? PyErr_NoMemory() : PyList_New(0);
    while (list != NULL && PyList_Size(list) == 0) {
        int count = pq_group_claim(self, timeout, got, (uint32_t)limit, NULL);
        if (count == 0) {
            pq_event_raise((PyObject *)self, EVENT_TIMEOUT, timeout);
        }
        if (count <= 0) {
            Py_CLEAR(list);
        }
        for (int i = 0; list != NULL && i < count; i++) {
            int is_none = 0;
            PyObject *claim = pq_group_deliver(self, &got[i], 0, NULL, &is_none);
            if (!is_none && (claim == NULL || PyList_Append(list, claim) < 0)) {
                pq_group_undo(self, got + i + 1, (uint32_t)(count - i - 1));
                if (claim == NULL && PyList_Size(list) > 0 && pq_group_is_of_message(self)) {
                    PyErr_Clear(); /* those before it are delivered: it comes again later */
                    break;
                }
                pq_group_undo(self, got, (uint32_t)i + (claim != NULL));
                Py_CLEAR(list);
            }
            Py_XDECREF(claim);
        }
    }
    PyMem_Free(got);
    if (pq_group_exit(self) < 0) {
        Py_CLEAR(list);
    }
    Py_DECREF((PyObject *)self);
    return list;
}

/* Keeps I14, I15. */
#define CLAIM_ERRORS \
    "    TimeoutError: no message could be claimed in time.\n" \
    "    TooManyClaims: a TimeoutError: the table of claimed and delayed messages is full.\n" \
    "    Expired: retention passed this group; carries `head_sequence`.\n" \
    "    CorruptFrame: a frame fails its checksum; it is tried again a second later, others before.\n" \
    "    ClosedError, ForkedError: the handle is closed, or the parent's.\n\n" \
    "Source: FORMAT.md, \"Groups\"."

PyDoc_STRVAR(claim_doc,
    "claim($self, /, timeout=None)\n--\n\n"
    "Claim a message: those that came back first, then the next one; in order of sequence.\n\n"
    "Args:\n"
    "    timeout: seconds to wait; None waits for ever, 0 never waits.\n\n"
    "Raises:\n" CLAIM_ERRORS
    "\n\nExample:\n"
    "    >>> group.claim(timeout=1.0).message.payload\n"
    "    b'one'\n");

PyDoc_STRVAR(take_doc,
    "take($self, /, timeout=None)\n--\n\n"
    "Claim a message and acknowledge it at once: if this process dies with it, it is lost.\n\n"
    "A message of more than 256 pages is read into memory first: `claim` it where that is too much.\n\n"
    "Args:\n"
    "    timeout: seconds to wait; None waits for ever, 0 never waits.\n\n"
    "Raises:\n" CLAIM_ERRORS
    "\n\nExample:\n"
    "    >>> group.take(timeout=1.0).payload\n"
    "    b'one'\n");

static PyMethodDef claims_methods[] = {
    {"claim", (PyCFunction)(void (*)(void))claims_claim, METH_FASTCALL | METH_KEYWORDS, claim_doc},
    {"take", (PyCFunction)(void (*)(void))claims_take, METH_FASTCALL | METH_KEYWORDS, take_doc},
    {"_claim_many", (PyCFunction)claims_many, METH_VARARGS, NULL},
    {"_enter", (PyCFunction)pq_claims_enter, METH_VARARGS, NULL},
    {"_leave", (PyCFunction)pq_claims_leave, METH_NOARGS, NULL},
    {"_place", (PyCFunction)pq_claims_place, METH_VARARGS, NULL},
    {"_next", (PyCFunction)pq_claims_next, METH_NOARGS, NULL},
    {"_release", (PyCFunction)pq_claims_release, METH_VARARGS, NULL},
    {"_owners", (PyCFunction)pq_claims_owners, METH_NOARGS, NULL},
    {"_settle", (PyCFunction)pq_claims_settle, METH_VARARGS, NULL},
    {"_read", (PyCFunction)pq_claims_read, METH_VARARGS, NULL},
    {"_wake_in", (PyCFunction)pq_claims_wake_in, METH_NOARGS, NULL},
    {"_snapshot", (PyCFunction)pq_claims_snapshot, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef claims_members[] = {
    {"_closed", T_BOOL, offsetof(Claims, closed), READONLY, NULL},
    {"_page_number", T_ULONGLONG, offsetof(Claims, page_number), READONLY, NULL},
    {"_owner", T_ULONGLONG, offsetof(Claims, owner), READONLY, NULL},
    {"_region", T_OBJECT, offsetof(Claims, page), READONLY, NULL},
    {"_file", T_OBJECT, offsetof(Claims, file), READONLY, NULL},
    {"_decoder", T_OBJECT, offsetof(Claims, decoder), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject *pq_claims_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Claims(meta, file, capacity, fd, foreign, owner, lease, deliveries_max, "
                    "retry_first, retry_most, lock_timeout, clock, wall)"},
        {Py_tp_new, claims_new},
        {Py_tp_dealloc, claims_dealloc},
        {Py_tp_traverse, claims_traverse},
        {Py_tp_clear, claims_clear},
        {Py_tp_methods, claims_methods},
        {Py_tp_members, claims_members},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Claims", sizeof(Claims), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
