/* Judge: the judge of protocol/judge.c, which Python shows the pages of a queue. */
#include "python/module.h"

#include "protocol/judge.h"

typedef struct {
    PyObject_HEAD
    pq_judge judge;
} Judge;

static PyObject *judge_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    const char *queue_id;
    Py_ssize_t id_bytes;
    unsigned long long words[9];
    int walk;
    if (!PyArg_ParseTuple(args, "y#K(KK)(KK)K(KKK)i:Judge", &queue_id, &id_bytes, &words[0],
                          &words[1], &words[2], &words[3], &words[4], &words[5], &words[6],
                          &words[7], &words[8], &walk)) {
        return NULL;
    }
    if (id_bytes != PQ_QUEUE_ID_BYTES || words[0] < PQ_PAGE_BYTES_MIN) {
        PyErr_SetString(PyExc_ValueError, "an id of 16 bytes, and pages of 4096 at least");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Judge *self = (Judge *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    pq_promise promise = {
        .page_bytes = words[0], .head_page = words[1], .head_sequence = words[2],
        .mark_page = words[3], .mark_sequence = words[4], .last_page = words[5],
        .pending_first = words[6], .pending_last = words[7], .pending_sequence = words[8]};
    memcpy(promise.queue_id, queue_id, PQ_QUEUE_ID_BYTES);
    pq_judge_begin(&self->judge, &promise, (pq_walk)walk);
    return (PyObject *)self;
}

static void judge_dealloc(Judge *self) { pq_type_free((PyObject *)self); }

/* (number, whether its frames are read, whether a following one counts); None: the walk is over */
static PyObject *judge_wants(Judge *self, PyObject *Py_UNUSED(nothing)) {
    int frames, following;
    uint64_t number = pq_judge_wants(&self->judge, &frames, &following);
    if (number == 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KNN)", (unsigned long long)number, PyBool_FromLong(frames),
                         PyBool_FromLong(following));
}

static PyObject *verdict_of(const pq_page_verdict *found) {
    const pq_scanned *scanned = &found->scanned;
    return Py_BuildValue(
        "(KKLiNN(KKLKKLKi))", (unsigned long long)found->number, (unsigned long long)found->first,
        (long long)found->floor, (int)found->kind, PyBool_FromLong(found->is_header_lost),
        PyBool_FromLong(found->is_fresh), (unsigned long long)scanned->position,
        (unsigned long long)scanned->sequence, (long long)scanned->timestamp,
        (unsigned long long)scanned->whole_position, (unsigned long long)scanned->whole_sequence,
        (long long)scanned->whole_timestamp, (unsigned long long)scanned->index_wrong,
        (int)scanned->stopped);
}

/* (number, first, floor, kind, is_header_lost, is_fresh, scan); None: its frames were not walked */
static PyObject *judge_show(Judge *self, PyObject *args) {
    unsigned long long number, size;
    int state, is_walked;
    PyObject *page;
    if (!PyArg_ParseTuple(args, "KiKO:show", &number, &state, &size, &page)) {
        return NULL;
    }
    int has_bytes = state <= PQ_FILE_COMPRESSED && size == self->judge.promise.page_bytes;
    if (page != Py_None && !PyObject_TypeCheck(page, pq_region_type)) {
        PyErr_SetString(PyExc_TypeError, "a page is a region");
        return NULL;
    }
    Region *region = page == Py_None ? NULL : (Region *)page;
    if (state < 0 || (has_bytes && (region == NULL || region->bytes != size))) {
        PyErr_SetString(PyExc_ValueError, "a page of this size is a region of this size");
        return NULL;
    }
    pq_page_file file = {.number = number, .state = (pq_file_state)state, .size = size,
                         .bytes = has_bytes ? region->base : NULL};
    pq_page_verdict found;
    pq_judge after = self->judge; /* another thread sees it before or after this page */
    Py_BEGIN_ALLOW_THREADS
    is_walked = pq_judge_show(&after, &file, &found);
    Py_END_ALLOW_THREADS
    if (has_bytes) {
        (void)pq_region_probe(region);
        if (!pq_region_intact(region)) {
            return NULL;
        }
    }
    self->judge = after;
    if (!is_walked) {
        Py_RETURN_NONE;
    }
    return verdict_of(&found);
}

/* (number, position, count, first, timestamp); None: nothing can be read */
static PyObject *judge_tail(Judge *self, PyObject *Py_UNUSED(nothing)) {
    const pq_tail *tail = &self->judge.tail;
    if (!self->judge.has_tail) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KKKKL)", (unsigned long long)tail->page_number,
                         (unsigned long long)tail->position, (unsigned long long)tail->count,
                         (unsigned long long)tail->first_sequence, (long long)tail->last_timestamp);
}

/* (kind, page, position, sequence, below, stopped); None: the queue is not refused */
static PyObject *judge_refusal(Judge *self, PyObject *Py_UNUSED(nothing)) {
    const pq_refusal *refusal = &self->judge.refusal;
    if (refusal->kind == PQ_FINE) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(iKKKKi)", (int)refusal->kind, (unsigned long long)refusal->page,
                         (unsigned long long)refusal->position,
                         (unsigned long long)refusal->sequence, (unsigned long long)refusal->below,
                         (int)refusal->stopped);
}

/* (first page, last page, sequence after all messages of the ring, latest time) */
static PyObject *judge_run(Judge *self, PyObject *Py_UNUSED(nothing)) {
    const pq_run *kept = &self->judge.kept;
    return Py_BuildValue("(KKKL)", (unsigned long long)kept->first_page,
                         (unsigned long long)kept->last_page, (unsigned long long)self->judge.most,
                         (long long)self->judge.latest);
}

static PyMethodDef judge_methods[] = {
    {"wants", (PyCFunction)judge_wants, METH_NOARGS, NULL},
    {"show", (PyCFunction)judge_show, METH_VARARGS, NULL},
    {"tail", (PyCFunction)judge_tail, METH_NOARGS, NULL},
    {"refusal", (PyCFunction)judge_refusal, METH_NOARGS, NULL},
    {"run", (PyCFunction)judge_run, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject *pq_judge_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Judge(queue_id, page_bytes, head, mark, last_page, pending, walk)."},
        {Py_tp_new, judge_new},
        {Py_tp_dealloc, judge_dealloc},
        {Py_tp_methods, judge_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Judge", sizeof(Judge), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
