/* Reader: polls one page after the other. It takes no lock and writes no byte of any page.
 *
 * Its place is a position in a mapped page and the sequence expected there; both only move when a
 * whole frame was taken. At the end of a page, and at damage, a Python method (`PQ_EVENTS`) enters
 * the next page (by `_enter`), raises, or returns that there is no message yet.
 *
 * A map whose file was truncated reads as zeros (os/sigbus.c), so the reader checks for that
 * whenever it finds an empty slot or a wrong frame; never after a valid frame, which proves
 * itself.
 */
#include "python/idle_strategy.h"
#include "python/reader.h"

#define SLICE_NS 100000000 /* longest sleep: covers a publisher that died before it woke anyone */
#define AHEAD_BYTES 704 /* of old messages, a few of 100 B are fetched ahead into the cache */
#define BACKOFF_NS_MIN 50000
#define BACKOFF_NS_MAX 10000000

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"meta", "waits", "durable_only", NULL};
    Region *meta;
    int waits, durable_only;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!pp:Reader", names, pq_region_type, &meta,
                                     &waits, &durable_only) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 0, "write meta") < 0) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Reader *self = (Reader *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)meta);
    self->meta = meta;
    self->registers = meta->writable;
    self->waits = (char)waits;
    self->durable_only = (char)durable_only;
    self->end_sequence = PQ_SEQUENCE_MAX;
    self->limit = UINT64_MAX;
    self->since = self->until = INT64_MIN;
    self->spin_ns = PQ_SPIN_NS_MAX;
    self->fork_count = pq_fork_count;
    return (PyObject *)self;
}

static int reader_traverse(Reader *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->meta);
    Py_VISIT((PyObject *)self->page);
    Py_VISIT(self->decoder);
    return 0;
}

static int reader_clear(Reader *self) {
    Py_CLEAR(self->decoder);
    return 0;
}

static void reader_dealloc(Reader *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->meta);
    Py_XDECREF((PyObject *)self->page);
    Py_XDECREF(self->decoder);
    pq_type_free((PyObject *)self);
}

/* --- polling ---------------------------------------------------------------------------------- */

int pq_reader_begin(Reader *self) {
    pq_event wrong;
    if (self->fork_count != pq_fork_count) {
        wrong = EVENT_FORKED;
    } else if (self->closed || self->page == NULL) {
        wrong = EVENT_CLOSED;
    } else if (self->busy) {
        wrong = EVENT_BUSY;
    } else {
        self->busy = 1;
        return 1;
    }
    pq_event_raise((PyObject *)self, wrong, 0);
    return 0;
}

/* Whether the slot is empty where the tail words tell that a message was published: a hole. They
 * are only read when it was quiet for long, when the end is known, and once at each place by a
 * reader that may not write, and so mostly reads old messages; with them the files are checked for
 * truncation. */
static int is_hole(Reader *self) {
    int is_due =
        (++self->empty_polls & PQ_HOLE_POLLS) == 0 || self->end_sequence != PQ_SEQUENCE_MAX;
    if (!is_due && (self->registers || self->asked == self->sequence + 1)) {
        return 0;
    }
    self->asked = self->sequence + 1;
    pq_tail tail;
    pq_tail_load(self->meta->base, &tail);
    pq_region_probe(self->page);
    pq_meta_probe(self->meta);
    return tail.first_sequence + tail.count > self->sequence &&
           pq_load_u32(self->page->base + self->position) == 0;
}

/* `probe`: also at the end of the page, because the rest of an OS page in whose middle a file was
 * cut reads as zeros, and that alone is no fault. */
static int is_lost(const Reader *self, int probe) {
    return (probe ? pq_region_probe(self->page) : pq_region_lost(self->page)) ||
           pq_region_lost(self->meta);
}

static reading after_event(Reader *self, pq_event event, int64_t value) {
    int more = pq_event_raise((PyObject *)self, event, value);
    return more > 0 ? READ_TAKEN : more == 0 ? READ_EMPTY : READ_RAISED;
}

/* READ_TAKEN = poll again. */
static reading not_a_frame(Reader *self, pq_read_result found, pq_frame *frame) {
    if (found == PQ_READ_NOTHING && self->page->filler != Py_None) {
        self->stuck = 1; /* a sealed page: it must be filled; no producer publishes here */
        return after_event(self, EVENT_UNFILLED, (int64_t)self->position);
    }
    self->stuck = found != PQ_READ_NOTHING;
    int hole = !self->stuck && is_hole(self);
    if (found == PQ_READ_END) {
        found = pq_frame_check(self->page->base, self->page->bytes, self->page->queue_state,
                               self->position, self->sequence, frame);
    }
    if (found == PQ_READ_END) {
        return after_event(self, EVENT_PAGE_END, found);
    }
    if (is_lost(self, self->stuck)) {
        self->stuck = 1;
        return after_event(self, EVENT_LOST, 0);
    }
    return self->stuck || hole ? after_event(self, EVENT_DAMAGED, found) : READ_EMPTY;
}

/* Find the next frame, following page ends. */
static reading poll_page(Reader *self, pq_frame *frame) {
    for (;;) {
        if (self->sequence >= self->end_sequence) {
            return READ_ENDED;
        }
        reading more;
        if (self->sequence >= self->limit) {
            self->stuck = 1;
            more = after_event(self, EVENT_LIMIT, 0);
        } else if (self->sequence >= pq_reader_limit(self)) {
            self->stuck = 0;
            (void)is_hole(self);
            more = is_lost(self, 0) ? after_event(self, EVENT_LOST, 0) : READ_EMPTY;
        } else {
            pq_read_result found =
                pq_frame_peek(self->page->base, self->page->bytes, self->position, frame);
            if (found == PQ_READ_FRAME) {
                if (frame->payload_bytes > AHEAD_BYTES) {
                    return READ_TAKEN;
                }
                const uint8_t *ahead = self->page->base + frame->next + AHEAD_BYTES;
                __builtin_prefetch(ahead); /* never a fault, wherever the page ends */
                __builtin_prefetch(ahead + 64);
                return READ_TAKEN;
            }
            more = not_a_frame(self, found, frame);
        }
        if (more != READ_TAKEN) {
            return more;
        }
    }
}

/* Whether a frame is what was sent; 0 = it is not, -1 = raised. */
static int is_good(const Reader *self, pq_frame *frame, PyObject **payload) {
    int good;
    if (payload == NULL) {
        return pq_frame_check(self->page->base, self->page->bytes, self->page->queue_state,
                              self->position, self->sequence, frame) == PQ_READ_FRAME;
    }
    *payload = pq_payload_copy(self->page, frame, self->sequence, &good);
    return *payload == NULL ? -1 : good;
}

/* Find the next wanted message: `payload` is its checked copy, if one is asked for. It only skips
 * unwanted ones; `step` takes the message itself. */
static reading reach(Reader *self, pq_frame *frame, PyObject **payload) {
    for (;;) {
        reading found = poll_page(self, frame);
        if (found != READ_TAKEN) {
            return found;
        }
        int good = is_good(self, frame, payload);
        if (good < 0) {
            return READ_RAISED;
        }
        int is_end = good && self->until != INT64_MIN && frame->timestamp >= self->until;
        if (good && !is_end && frame->timestamp >= self->since) {
            return READ_TAKEN;
        }
        if (payload != NULL) {
            Py_CLEAR(*payload);
        }
        if (is_end) {
            return READ_ENDED;
        }
        if (good) {
            self->position = frame->next;
            self->sequence += 1;
            continue;
        }
        self->stuck = 1;
        found = is_lost(self, 1) ? after_event(self, EVENT_LOST, 0)
                              : after_event(self, EVENT_DAMAGED, PQ_READ_BAD_CHECKSUM);
        if (found != READ_TAKEN) {
            return found;
        }
    }
}

void pq_reader_step(Reader *self, uint64_t position, uint64_t count) {
    self->position = position;
    self->sequence += count;
    self->since = INT64_MIN; /* time never goes back, so nothing older follows */
}

typedef struct {
    const Reader *reader;
    const Region *page;
} awaited;

static int arrived(const void *of) {
    const awaited *what = of;
    return pq_load_u32(what->page->base + what->reader->position) != 0 &&
           what->reader->sequence < pq_reader_limit(what->reader);
}

/* 1 = poll again, 0 = the deadline passed, -1 = raised. It naps where no message is awaited, or
 * where it may not write that it sleeps. */
static int pause_until(Reader *self, int64_t deadline, int64_t *backoff) {
    Region *page = self->page;
    awaited what = {self, page};
    pq_idle idle = {.arrived = arrived, .of = &what, .meta = self->meta->base,
                    .spin_ns = &self->spin_ns, .pauses = 1};
    if (!self->stuck && pq_idle_poll(&idle)) {
        return 1;
    }
    if (pq_green_sleep != NULL) {
        self->empty_polls = PQ_HOLE_POLLS;
        return pq_green_pause(deadline);
    }
    Py_INCREF((PyObject *)page);
    PyThreadState *state = PyEval_SaveThread();
    if (self->stuck || *backoff > BACKOFF_NS_MIN || !pq_idle_spin(&idle, deadline)) {
        int64_t left = deadline - pq_clock_monotonic();
        int64_t slice = left < SLICE_NS ? left : SLICE_NS;
        if (left > 0) {
            self->empty_polls = PQ_HOLE_POLLS; /* the next poll checks for a hole */
            if (self->registers && !self->stuck) {
                pq_idle_sleep(&idle, slice);
            } else {
                pq_sleep_ns(slice < *backoff ? slice : *backoff);
                *backoff = *backoff * 2 < BACKOFF_NS_MAX ? *backoff * 2 : BACKOFF_NS_MAX;
            }
        }
    }
    int64_t now = pq_clock_monotonic();
    PyEval_RestoreThread(state);
    Py_DECREF((PyObject *)page);
    return PyErr_CheckSignals() < 0 ? -1 : now < deadline;
}

/* The same; where there is no message, none may ever come: the queue can have been removed. */
static reading reach_here(Reader *self, pq_frame *frame, PyObject **payload) {
    reading found = reach(self, frame, payload);
    if (found == READ_EMPTY && pq_place_due(&self->checked_at, pq_clock_coarse()) &&
        after_event(self, EVENT_PLACE, 0) == READ_RAISED) {
        return READ_RAISED;
    }
    return found;
}

/* Reach a message, waiting for it: READ_EMPTY when none came. */
reading pq_reader_reach(Reader *self, int64_t timeout, pq_frame *frame, PyObject **payload) {
    reading found = reach_here(self, frame, payload);
    if (found != READ_EMPTY || timeout == 0) {
        return found;
    }
    int64_t deadline = pq_deadline(timeout), backoff = BACKOFF_NS_MIN;
    for (;;) {
        int more = pause_until(self, deadline, &backoff);
        if (more >= 0 && self->closed) { /* by another thread, to end this wait */
            more = pq_event_raise((PyObject *)self, EVENT_CLOSED, 0) < 0 ? -1 : 0;
        }
        if (more < 0) {
            return READ_RAISED;
        }
        found = reach_here(self, frame, payload);
        if (found != READ_EMPTY || more == 0) {
            return found;
        }
    }
}

PyObject *pq_reader_large(Reader *self, const pq_frame *frame, int whole) {
    return PyObject_CallMethod((PyObject *)self, "_large", "KKLKi",
                               (unsigned long long)self->page_number,
                               (unsigned long long)self->position, (long long)frame->timestamp,
                               (unsigned long long)self->sequence, whole);
}

static reading take(Reader *self, int64_t timeout, PyObject **message) {
    for (;;) {
        pq_frame frame;
        PyObject *payload = NULL;
        reading found = pq_reader_reach(self, timeout, &frame, &payload);
        if (found != READ_TAKEN) {
            return found;
        }
        if (pq_is_large(frame.word)) {
            Py_DECREF(payload);
            *message = pq_reader_large(self, &frame, 0);
        } else {
            *message = pq_message_new(payload, frame.timestamp, self->sequence, self->decoder);
        }
        if (*message == NULL) {
            return READ_RAISED;
        }
        if (*message != Py_None) {
            pq_reader_step(self, frame.next, 1);
            return found;
        }
        Py_DECREF(*message); /* retention was faster, and the reader is at the head now */
        *message = NULL;
    }
}

/* --- what users call -------------------------------------------------------------------------- */

static PyObject *reader_poll(Reader *self, PyObject *Py_UNUSED(unused)) {
    PyObject *message = NULL;
    if (!pq_reader_begin(self)) {
        return NULL;
    }
    reading found = take(self, 0, &message);
    self->busy = 0;
    if (found == READ_RAISED) {
        return NULL;
    }
    if (found != READ_TAKEN) {
        Py_RETURN_NONE;
    }
    return message;
}

PyObject *pq_reader_timed_out(Reader *self, int64_t timeout) {
    if (!PyErr_Occurred()) {
        pq_event_raise((PyObject *)self, EVENT_TIMEOUT, timeout);
    }
    return NULL;
}

static PyObject *reader_receive(Reader *self, PyObject *const *args, Py_ssize_t arg_count,
                                PyObject *names) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    if (arg_count + named > 1 ||
        (named == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "timeout") != 0)) {
        PyErr_SetString(PyExc_TypeError, "receive takes one argument, timeout");
        return NULL;
    }
    int64_t timeout = pq_timeout_ns(arg_count + named == 1 ? args[0] : Py_None);
    if (timeout < -1 || !pq_reader_begin(self)) {
        return NULL;
    }
    PyObject *message = NULL;
    reading found = take(self, timeout, &message);
    self->busy = 0;
    return found == READ_TAKEN ? message : pq_reader_timed_out(self, timeout);
}

static PyObject *reader_next(PyObject *object) {
    Reader *self = (Reader *)object;
    PyObject *message = NULL;
    if (!pq_reader_begin(self)) {
        return NULL;
    }
    take(self, self->waits ? -1 : 0, &message);
    self->busy = 0;
    return message;
}

/* --- what the Python layers call -------------------------------------------------------------- */

static PyObject *reader_enter(Reader *self, PyObject *args) {
    Region *page;
    unsigned long long number, position, sequence;
    if (!PyArg_ParseTuple(args, "O!KKK:_enter", pq_region_type, &page, &number, &position,
                          &sequence) ||
        pq_page_check(page, 0, "page") < 0) {
        return NULL;
    }
    if (position > page->bytes - PQ_FRAME_BYTES || position % PQ_FRAME_ALIGN_BYTES != 0) {
        PyErr_Format(PyExc_ValueError, "%llu is not a valid position of a frame", position);
        return NULL;
    }
    Region *old = self->page;
    Py_INCREF((PyObject *)page);
    self->page = page;
    self->page_number = number;
    self->position = position;
    self->sequence = sequence;
    self->stuck = 0;
    Py_XDECREF((PyObject *)old);
    Py_RETURN_NONE;
}

/* Go to the first message that is not older than a time, in a page that is known: `KnownPage` of
 * store/page_cache.py. False: look for it the long way, which also tells what is wrong; this one
 * trusts nothing that it does not check here: the head, whether the page is still the active one,
 * the index by the frames, the frames by their checksums. */
static PyObject *reader_find(Reader *self, PyObject *args) {
    long long before;
    unsigned long long number, first, count;
    PyObject *known, *when;
    int outside; /* of 64 bits */
    Region *page, *index, *head;
    if (!PyArg_ParseTuple(args, "OO!:_find", &when, &PyTuple_Type, &known) ||
        !PyArg_ParseTuple(known, "LKKKO!O!O!:_find", &before, &number, &first, &count,
                          pq_region_type, &page, pq_region_type, &index, pq_region_type, &head) ||
        pq_page_check(page, 0, "page") < 0 ||
        pq_region_check(head, PQ_READ_META_BYTES, 0, "read meta") < 0) {
        return NULL;
    }
    long long since = PyLong_AsLongLongAndOverflow(when, &outside);
    if (since == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (outside || self->fork_count != pq_fork_count || self->closed || self->busy) {
        Py_RETURN_FALSE;
    }
    pq_tail tail;
    uint64_t ordinal, position;
    pq_tail_load(self->meta->base, &tail);
    if (number == tail.page_number) {
        count = tail.count;
    }
    pq_place at = {.page = page->base, .page_bytes = page->bytes, .first_sequence = first,
                   .queue_state = page->queue_state, .index = index->base,
                   .index_capacity = index->bytes / PQ_INDEX_RECORD_BYTES};
    int found = since > before && number >= pq_load_u64(head->base + PQ_READ_META_HEAD_PAGE) &&
                pq_find(&at, count, since, &ordinal, &position) && !pq_region_lost(self->meta) &&
                !pq_region_lost(head) && position <= page->bytes - PQ_FRAME_BYTES;
    if (found) {
        Region *old = self->page;
        Py_INCREF((PyObject *)page);
        self->page = page;
        page->is_used = 1;
        self->page_number = number;
        self->position = position;
        self->sequence = first + ordinal;
        self->since = since;
        self->until = INT64_MIN;
        self->end_sequence = PQ_SEQUENCE_MAX;
        self->limit = UINT64_MAX;
        self->stuck = 0;
        Py_XDECREF((PyObject *)old);
    }
    return PyBool_FromLong(found);
}

static PyObject *reader_bound(Reader *self, PyObject *args) {
    long long since, until;
    unsigned long long end_sequence;
    if (!PyArg_ParseTuple(args, "LLK:_bound", &since, &until, &end_sequence)) {
        return NULL;
    }
    self->since = since;
    self->until = until;
    self->end_sequence = end_sequence;
    Py_RETURN_NONE;
}

static PyObject *reader_limit(Reader *self, PyObject *args) {
    unsigned long long limit;
    if (!PyArg_ParseTuple(args, "K:_limit", &limit)) {
        return NULL;
    }
    self->limit = limit;
    Py_RETURN_NONE;
}

static PyObject *reader_leave(Reader *self, PyObject *Py_UNUSED(unused)) {
    self->closed = 1;
    if (!self->busy) { /* else another thread is reading them: they go with the reader */
        Py_CLEAR(self->page);
        Py_CLEAR(self->meta);
    }
    Py_RETURN_NONE;
}

/* Keeps I1, I2, I7. */
#define READ_ERRORS \
    "    Expired: retention passed this place; carries `head_sequence`.\n" \
    "    CorruptFrame: a published frame fails its checksum; carries file, position, reason.\n" \
    "    ConcurrentUse: another thread is inside this handle.\n" \
    "    ClosedError, ForkedError: the handle is closed, or the parent's.\n\n" \
    "Source: FORMAT.md, \"Reading\"."

PyDoc_STRVAR(poll_doc,
    "poll($self, /)\n--\n\n"
    "Return the next message, or None without waiting.\n\n"
    "Raises:\n" READ_ERRORS
    "\n\nExample:\n"
    "    >>> consumer.poll().payload\n"
    "    b'one'\n");

PyDoc_STRVAR(receive_doc,
    "receive($self, /, timeout=None)\n--\n\n"
    "Return the next message, waiting for it.\n\n"
    "Args:\n"
    "    timeout: seconds to wait; None waits for ever, 0 never waits.\n\n"
    "Raises:\n"
    "    TimeoutError: no message came in time; the consumer has not moved.\n" READ_ERRORS
    "\n\nExample:\n"
    "    >>> consumer.receive(timeout=1.0).payload\n"
    "    b'one'\n");

static PyMethodDef reader_methods[] = {
    {"poll", (PyCFunction)reader_poll, METH_NOARGS,
     poll_doc},
    {"receive", (PyCFunction)(void (*)(void))reader_receive, METH_FASTCALL | METH_KEYWORDS,
     receive_doc},
    {"_read_many", pq_reader_read_many, METH_VARARGS, NULL},
    {"_enter", (PyCFunction)reader_enter, METH_VARARGS, NULL},
    {"_find", (PyCFunction)reader_find, METH_VARARGS, NULL},
    {"_bound", (PyCFunction)reader_bound, METH_VARARGS, NULL},
    {"_limit", (PyCFunction)reader_limit, METH_VARARGS, NULL},
    {"_leave", (PyCFunction)reader_leave, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reader_members[] = {
    {"sequence", T_ULONGLONG, offsetof(Reader, sequence), READONLY,
     "The sequence of the next message."},
    {"_position", T_ULONGLONG, offsetof(Reader, position), READONLY, NULL},
    {"_page_number", T_ULONGLONG, offsetof(Reader, page_number), READONLY, NULL},
    {"_closed", T_BOOL, offsetof(Reader, closed), READONLY, NULL},
    {"_region", T_OBJECT, offsetof(Reader, page), READONLY, NULL},
    {"_decoder", T_OBJECT, offsetof(Reader, decoder), 0, NULL},
    {"_busy", T_BOOL, offsetof(Reader, busy), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject *pq_reader_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Reader(meta, waits, durable_only)"},
        {Py_tp_new, reader_new},
        {Py_tp_dealloc, reader_dealloc},
        {Py_tp_traverse, reader_traverse},
        {Py_tp_clear, reader_clear},
        {Py_tp_methods, reader_methods},
        {Py_tp_members, reader_members},
        {Py_tp_iter, PyObject_SelfIter},
        {Py_tp_iternext, reader_next},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Reader", sizeof(Reader), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
