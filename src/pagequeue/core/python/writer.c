/* Writer: appends messages to the active page, under the writers' lock.
 *
 * It holds three maps: the write meta, the active page and its index. It decides nothing: when the
 * page is full, another is active, or the queue failed, a Python method (`PQ_EVENTS`) resolves
 * that (by `_attach`, after `_roll`) or raises, and the writer tries again.
 *
 * Small payloads are appended with the GIL held, because taking it back costs more than they do.
 */
#include "python/writer.h"

#define FREE_GIL_BYTES (16 << 10) /* from here on copying takes longer than the GIL is worth */

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"meta", "fd", "foreign", "lock_timeout", "clock", "sync_every",
                            NULL};
    Region *meta;
    int fd, foreign;
    double lock_timeout;
    PyObject *clock;
    unsigned long long sync_every;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!ipdOK:Writer", names, pq_region_type, &meta,
                                     &fd, &foreign, &lock_timeout, &clock, &sync_every) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Writer *self = (Writer *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)meta);
    self->meta = meta;
    self->at.meta = meta->base;
    self->lock.mutex = meta->base + PQ_WRITE_META_MUTEX;
    pq_guard_mutex(meta->guard, PQ_WRITE_META_MUTEX);
    self->lock.fd = fd;
    self->lock.foreign = foreign;
    self->ahead_at = UINT64_MAX;
    self->sync_every = sync_every;
    self->full_timeout = INT64_MAX;
    self->lock_timeout = lock_timeout < 9e9 ? (int64_t)(lock_timeout * 1e9) : INT64_MAX;
    Py_INCREF((PyObject *)clock);
    self->clock = clock;
    self->even = PyObject_TypeCheck(clock, pq_clock_type) ? (Clock *)clock : NULL;
    self->fork_count = pq_fork_count;
    return (PyObject *)self;
}

static int writer_traverse(Writer *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->meta);
    Py_VISIT((PyObject *)self->page);
    Py_VISIT((PyObject *)self->index);
    Py_VISIT((PyObject *)self->group_file);
    Py_VISIT((PyObject *)self->ready.to.page);
    Py_VISIT((PyObject *)self->ready.to.index);
    Py_VISIT(self->ready.folder);
    Py_VISIT(self->ready.watched);
    Py_VISIT(self->clock);
    return 0;
}

static int writer_clear(Writer *self) {
    self->even = NULL;
    pq_clear_to_none(&self->clock);
    return 0;
}

static void writer_dealloc(Writer *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->meta);
    Py_XDECREF((PyObject *)self->page);
    Py_XDECREF((PyObject *)self->index);
    Py_XDECREF((PyObject *)self->group_file);
    Py_XDECREF((PyObject *)self->clock);
    pq_type_free((PyObject *)self);
}

/* --- appending -------------------------------------------------------------------------------- */

int pq_writer_ready(Writer *self) {
    if (!pq_handle_ready((PyObject *)self, self->fork_count, self->closed)) {
        return 0;
    }
    if (self->page == NULL) {
        return pq_event_raise((PyObject *)self, EVENT_MOVED, 0) > 0;
    }
    return 1;
}

/* Whether reading the clock runs nothing of Python's, if it runs evenly. */
static inline int is_system_clock(const Writer *self) {
    return self->even != NULL ? self->even->source == Py_None : self->clock == Py_None;
}

/* Read the clock for an attempt; `ran`: it ran Python. 0 = raised */
static inline int read_clock(Writer *self, attempt *try, int later, int *ran) {
    Clock *even = self->even;
    *ran = !is_system_clock(self);
    if (even == NULL) {
        try->now = self->clock == Py_None ? pq_clock_realtime() : pq_clock_call(self->clock);
    } else if (*ran) {
        try->now = pq_clock_now(even);
    } else {
        try->now = pq_clock_realtime();
        if (!pq_clock_is_even(try->now, even->from, even->span)) {
            *ran = 1;
            try->now = pq_clock_look(even, try->now);
        }
    }
    if (try->now < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "the clock is before 1970");
        }
        return 0;
    }
    if (later && is_system_clock(self)) {
        try->late = try->now;
        try->from = even == NULL ? 0 : even->from;
        try->span = even == NULL ? INT64_MAX : even->span;
        try->now = PQ_TIMESTAMP_NOW;
    }
    return 1;
}

/* Outside of the lock, but only for immutable payloads: a frame whose checksum was computed from
 * other bytes than were copied would be damage that we made ourselves. Larger ones are summed while
 * they are copied, which costs little more than copying. */
static inline int is_summed_first(const pq_payload *item) {
    return item->fixed && item->bytes < PQ_CRC_COPY_BYTES_MIN;
}

/* The next ones, of one size, interleaved; 0 = they are not of one size. */
static int checksum_lanes(uint32_t queue_state, pq_payload *items) {
    const uint8_t *pieces[PQ_CRC_LANES];
    uint32_t states[PQ_CRC_LANES];
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        if (!is_summed_first(&items[lane]) || items[lane].bytes != items[0].bytes) {
            return 0;
        }
        pieces[lane] = items[lane].data;
    }
    pq_crc_lanes(states, queue_state, pieces, items[0].bytes);
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        items[lane].summed = 1;
        items[lane].state = states[lane];
    }
    return 1;
}

static void checksum_fixed(uint32_t queue_state, pq_payload *items, size_t count) {
    for (size_t i = 0; items != NULL && i < count; i++) {
        if (count - i >= PQ_CRC_LANES && checksum_lanes(queue_state, &items[i])) {
            i += PQ_CRC_LANES - 1;
            continue;
        }
        items[i].summed = is_summed_first(&items[i]);
        if (items[i].summed) {
            items[i].state = pq_crc_update(queue_state, items[i].data, items[i].bytes);
        }
    }
}

static pq_event event_of(int result) {
    switch (result) {
    case PQ_APPEND_MOVED: return EVENT_MOVED;
    case PQ_APPEND_FULL: return EVENT_FULL;
    case PQ_APPEND_FAILED: return EVENT_FAILED;
    case PQ_APPEND_OLD: return EVENT_OLD_TIMESTAMP;
    case PQ_APPEND_EXHAUSTED: return EVENT_EXHAUSTED;
    case PQ_APPEND_LOST: return EVENT_LOST;
    case PQ_APPEND_OVER_LIMIT: return EVENT_OVER_LIMIT;
    case PQ_APPEND_OVERTAKEN: return EVENT_OVERTAKEN;
    case PQ_APPEND_UNRESERVED: return EVENT_UNRESERVED;
    default: return EVENT_DAMAGED;
    }
}

/* Have Python resolve what may block, or defer that. */
static int resolve(Writer *self, const pq_terms *terms, pq_event event, int64_t value) {
    int may_block = event == EVENT_FULL || event == EVENT_FAILED || event == EVENT_UNRESERVED ||
                    event == EVENT_SYNC || event == EVENT_STARVED;
    return terms->never_blocks && may_block ? pq_event_defer((PyObject *)self, event, value)
                                            : pq_event_raise((PyObject *)self, event, value);
}

/* After a message is visible: neither of these may undo it. */
static int after(Writer *self, const pq_terms *terms, const pq_appended *out, size_t count) {
    if (out->position >= self->ahead_at) {
        self->ahead_at = UINT64_MAX;
        if (pq_event_raise((PyObject *)self, EVENT_AHEAD, (int64_t)out->position) < 0) {
            return -1;
        }
    }
    if (self->sync_every != 0) {
        self->unsynced += count;
        if (self->unsynced >= self->sync_every) {
            self->unsynced = 0;
            uint64_t end = out->sequence + count;
            return pq_writer_is_durable(self, end) ||
                   resolve(self, terms, EVENT_SYNC, (int64_t)end) >= 0 ? 0 : -1;
        }
    }
    return 0;
}

/* By the reading that was made for the messages, if it is the system's. */
static inline int is_place_due(Writer *self, const attempt *try) {
    int64_t reading = try->now == PQ_TIMESTAMP_NOW ? try->late : try->now;
    return pq_place_due(&self->checked_at, is_system_clock(self) ? reading : pq_clock_realtime());
}

/* Raise if a payload, or the batch, is too large or has a wrong size; else return the bytes of all
 * frames. */
static int64_t frames_bytes(Writer *self, const pq_batch *batch) {
    uint64_t total = 0, room = self->at.page_bytes - PQ_PAGE_HEADER_BYTES - PQ_FRAME_BYTES;
    size_t checks = batch->items != NULL ? batch->count : 1; /* rows have one size */
    for (size_t i = 0; i < checks; i++) {
        uint64_t bytes = pq_batch_bytes(batch, i);
        if (bytes > room - PQ_FRAME_BYTES) {
            pq_event_raise((PyObject *)self, EVENT_TOO_LARGE, (int64_t)bytes);
            return -1;
        }
        if (self->record_bytes != 0 && bytes != self->record_bytes) {
            pq_event_raise((PyObject *)self, EVENT_WRONG_SIZE, (int64_t)bytes);
            return -1;
        }
        total += pq_aligned(PQ_FRAME_BYTES + bytes);
    }
    if (batch->items == NULL) {
        total = batch->count > (uint64_t)INT64_MAX / total ? INT64_MAX : total * batch->count;
    }
    if (total > room || batch->count > self->at.index_capacity) {
        pq_event_raise((PyObject *)self, EVENT_BATCH_TOO_LARGE, (int64_t)total);
        return -1;
    }
    return (int64_t)total;
}

/* Pages that a call found full, or that others sealed before it could write to them. */
typedef struct {
    int64_t since;
    int count;
} losses;

/* The event of an attempt that sent nothing. */
static pq_event refused(const Writer *self, const attempt *try, int result, int64_t total,
                        losses *lost, int64_t *value) {
    *value = total;
    if (result == PQ_APPEND_OLD) {
        *value = try->terms->exact;
    } else if (result == PQ_APPEND_OVERTAKEN) {
        *value = (int64_t)try->out.sequence;
    } else if (result == PQ_APPEND_FULL || result == PQ_APPEND_MOVED) {
        int64_t now = pq_clock_monotonic(), timeout = try->terms->timeout;
        timeout = timeout < 0 ? self->full_timeout : timeout;
        timeout = try->terms->never_blocks ? 0 : timeout; /* the loop counts for itself */
        lost->since = lost->count++ == 0 ? now : lost->since;
        int64_t blocked = now - lost->since;
        if (blocked > timeout && lost->count > PQ_LOSSES_MIN) {
            *value = blocked;
            return EVENT_STARVED;
        }
        *value = blocked < timeout ? timeout - blocked : 0;
    }
    return event_of(result);
}

int pq_writer_append(Writer *self, pq_batch *batch, pq_payload *items, const pq_terms *terms,
                     pq_appended *out) {
    if (!pq_writer_ready(self)) {
        return -1;
    }
    int64_t total = frames_bytes(self, batch);
    if (total < 0) {
        return -1;
    }
    int free_gil = total >= FREE_GIL_BYTES;
    uint32_t queue_state = self->at.queue_state; /* of every page of the queue the same */
    if (free_gil) {
        Py_BEGIN_ALLOW_THREADS
        checksum_fixed(queue_state, items, batch->count);
        Py_END_ALLOW_THREADS
    } else {
        checksum_fixed(queue_state, items, batch->count);
    }
    losses lost = {0};
    int64_t value;
    for (int again = 0;; again = 1) {
        attempt try = {.what = PQ_DO_APPEND, .batch = batch, .terms = terms};
        int ran;
        if (!read_clock(self, &try, free_gil, &ran)) {
            return -1;
        }
        int is_due = is_place_due(self, &try);
        if (is_due && pq_event_raise((PyObject *)self, EVENT_PLACE, 0) < 0) {
            return -1;
        }
        /* Python code or another thread may have closed it since it was found ready. */
        int same = !again && !is_due && !free_gil && !ran;
        int result = same || pq_writer_ready(self) ? pq_writer_run(self, &try, free_gil) : -1;
        if (result == PQ_APPEND_DONE) {
            *out = try.out;
            return after(self, terms, out, batch->count);
        }
        if (result < 0) {
            return -1;
        }
        if (result == PQ_APPEND_FULL) {
            int rolled = pq_writer_roll_ready(self);
            if (rolled < 0) {
                return -1;
            }
            if (rolled) {
                continue;
            }
        }
        pq_event event = refused(self, &try, result, total, &lost, &value);
        if (resolve(self, terms, event, value) <= 0) {
            return -1;
        }
    }
}

/* --- what the Python layers call -------------------------------------------------------------- */

void pq_writer_attach(Writer *self, const pq_attachment *to) {
    Region *old_page = self->page, *old_index = self->index;
    Py_INCREF((PyObject *)to->page);
    Py_INCREF((PyObject *)to->index);
    self->page = to->page;
    self->index = to->index;
    self->at.page = to->page->base;
    self->at.page_bytes = to->page->bytes;
    self->at.queue_state = to->page->queue_state;
    self->at.page_number = to->number;
    self->at.first_sequence = to->first_sequence;
    self->at.index = to->index->base;
    self->at.index_capacity = to->index->bytes / PQ_INDEX_RECORD_BYTES;
    self->at.reserved_bytes = to->page_reserved;
    self->at.reserved_records = to->index_reserved / PQ_INDEX_RECORD_BYTES;
    self->ahead_at = to->ahead_at;
    Py_XDECREF((PyObject *)old_page);
    Py_XDECREF((PyObject *)old_index);
}

static PyObject *writer_attach(Writer *self, PyObject *args) {
    pq_attachment to;
    if (!PyArg_ParseTuple(args, "O!O!KKKKK:_attach", pq_region_type, &to.page, pq_region_type,
                          &to.index, &to.number, &to.first_sequence, &to.ahead_at,
                          &to.page_reserved, &to.index_reserved) ||
        pq_page_check(to.page, 1, "page") < 0 ||
        pq_region_check(to.index, PQ_INDEX_RECORD_BYTES, 1, "index") < 0) {
        return NULL;
    }
    pq_writer_attach(self, &to);
    pq_writer_unready(self);
    Py_RETURN_NONE;
}

static PyObject *writer_ahead(Writer *self, PyObject *args) {
    unsigned long long position;
    if (!PyArg_ParseTuple(args, "K:_ahead", &position)) {
        return NULL;
    }
    self->ahead_at = position;
    Py_RETURN_NONE;
}

/* How much of the page that it is attached to, and of its index, has blocks; 0 = all. */
static PyObject *writer_reserved(Writer *self, PyObject *args) {
    unsigned long long page_bytes, index_bytes;
    if (!PyArg_ParseTuple(args, "KK:_reserved", &page_bytes, &index_bytes)) {
        return NULL;
    }
    self->at.reserved_bytes = page_bytes;
    self->at.reserved_records = index_bytes / PQ_INDEX_RECORD_BYTES;
    Py_RETURN_NONE;
}

static PyObject *writer_detach(Writer *self, PyObject *Py_UNUSED(unused)) {
    self->closed = 1; /* a thread that is inside holds references of its own */
    Py_CLEAR(self->page);
    Py_CLEAR(self->index);
    Py_CLEAR(self->meta);
    pq_writer_unready(self);
    Py_RETURN_NONE;
}

/* Keeps I1, I2, I4. */
PyDoc_STRVAR(send_doc,
    "send($self, payload, /, *, timestamp=None, at=None, timeout=None)\n--\n\n"
    "Make a message visible to every process.\n\n"
    "Args:\n"
    "    payload: a C-contiguous bytes-like object of up to 2**40 bytes.\n"
    "    timestamp: ns since 1970, UTC, for replaying history; not earlier than the last one in\n"
    "        the queue. No later message is older, so one far in the future stays the time of all\n"
    "        that follow until then. None: now, or the last one if the clock was set back.\n"
    "    at: the sequence that the message must get; if another one is next when the writers'\n"
    "        lock is held, nothing is sent. None: whichever is next.\n"
    "    timeout: seconds that this call may wait for room in a queue that was opened with\n"
    "        on_full=\"block\", or lose each page to other senders, in all; None: its\n"
    "        full_timeout.\n\n"
    "Returns:\n"
    "    Its sequence: its 0-based number in the queue.\n\n"
    "Raises:\n"
    "    TypeError: the payload is not bytes-like; no message was sent.\n"
    "    MessageTooLarge: `max_bytes` cannot hold it; nothing was sent.\n"
    "    TimestampOrder: the timestamp is earlier than the last one.\n"
    "    Overtaken: another sequence than `at` is next, `tail_sequence`; no message was sent.\n"
    "    QueueFull: max_bytes is reached, and there was no room in time, or other senders filled\n"
    "        each page first; no message was sent.\n"
    "    DiskFull: the next page does not fit on the disk; free space, then send again.\n"
    "    LockTimeout: the writers' lock was held for `lock_timeout` seconds.\n"
    "    SyncFailed: a sync failed, now or before; the queue refuses all writes. Messages are\n"
    "        visible all the same if the sync that `sync=` asked for failed.\n"
    "    ClosedError, ForkedError: the handle is closed, or the parent's.\n\n"
    "Example:\n"
    "    >>> producer.send(b\"one\", at=queue.tail_sequence)\n"
    "    0\n\n"
    "Source: FORMAT.md, \"Publishing\".");

static PyMethodDef writer_methods[] = {
    {"send", (PyCFunction)(void (*)(void))pq_writer_send, METH_FASTCALL | METH_KEYWORDS,
     send_doc},
    {"_send_many", (PyCFunction)pq_writer_send_many, METH_VARARGS, NULL},
    {"_send_rows", (PyCFunction)pq_writer_send_rows, METH_VARARGS, NULL},
    {"_send_spans", (PyCFunction)pq_writer_send_spans, METH_VARARGS, NULL},
    {"_freeze", (PyCFunction)pq_writer_freeze, METH_NOARGS, NULL},
    {"_bulk_commit", (PyCFunction)pq_writer_commit_pages, METH_VARARGS, NULL},
    {"_attach", (PyCFunction)writer_attach, METH_VARARGS, NULL},
    {"_ahead", (PyCFunction)writer_ahead, METH_VARARGS, NULL},
    {"_reserved", (PyCFunction)writer_reserved, METH_VARARGS, NULL},
    {"_roll", (PyCFunction)pq_writer_roll, METH_VARARGS, NULL},
    {"_ready", (PyCFunction)pq_writer_ready_page, METH_VARARGS, NULL},
    {"_bind", (PyCFunction)pq_writer_bind, METH_VARARGS, NULL},
    {"_detach", (PyCFunction)writer_detach, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"_page_number", T_ULONGLONG, offsetof(Writer, at.page_number), READONLY, NULL},
    {"_first_sequence", T_ULONGLONG, offsetof(Writer, at.first_sequence), READONLY, NULL},
    {"_closed", T_INT, offsetof(Writer, closed), READONLY, NULL},
    {"_inside", T_INT, offsetof(Writer, inside), READONLY, NULL},
    {"_record_bytes", T_ULONGLONG, offsetof(Writer, record_bytes), 0, NULL},
    {"_full_timeout", T_LONGLONG, offsetof(Writer, full_timeout), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject *pq_writer_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Writer(meta, fd, foreign, lock_timeout, clock, sync_every)"},
        {Py_tp_new, writer_new},
        {Py_tp_dealloc, writer_dealloc},
        {Py_tp_traverse, writer_traverse},
        {Py_tp_clear, writer_clear},
        {Py_tp_methods, writer_methods},
        {Py_tp_members, writer_members},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Writer", sizeof(Writer), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
