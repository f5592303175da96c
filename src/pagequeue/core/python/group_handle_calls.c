/* What the Python layer of a group calls: places, owners, snapshots, and reading one message. */
#include "python/group_handle.h"

#define OWNERS_MAX 1024

PyObject *pq_claims_enter(Claims *self, PyObject *args) {
    Region *page;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "O!K:_enter", pq_region_type, &page, &number) ||
        pq_page_check(page, 0, "page") < 0) {
        return NULL;
    }
    Region *old = self->page;
    Py_INCREF((PyObject *)page);
    self->page = page;
    self->page_number = number;
    Py_XDECREF((PyObject *)old);
    Py_RETURN_NONE;
}

PyObject *pq_claims_leave(Claims *self, PyObject *Py_UNUSED(unused)) {
    self->closed = 1;
    Py_CLEAR(self->page); /* a thread that is waiting holds its own reference */
    if (pq_group_leave(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *pq_claims_place(Claims *self, PyObject *args) {
    unsigned long long sequence, number, position;
    int skips;
    if (!PyArg_ParseTuple(args, "KKKp:_place", &sequence, &number, &position, &skips)) {
        return NULL;
    }
    pq_group_attempt try = {.what = skips ? PQ_DO_SKIP : PQ_DO_PLACE, .sequence = sequence,
                            .place = number << PQ_PLACE_SHIFT | position / PQ_FRAME_ALIGN_BYTES};
    return pq_group_run(self, &try) ? PyBool_FromLong(try.count > 0) : NULL;
}

PyObject *pq_claims_release(Claims *self, PyObject *args) {
    unsigned long long owner;
    if (!PyArg_ParseTuple(args, "K:_release", &owner)) {
        return NULL;
    }
    pq_group_attempt try = {.what = PQ_DO_RELEASE, .by.owner = owner, .by.retry = self->retry};
    try.by.now = pq_group_now(self);
    if ((try.by.now < 0 && PyErr_Occurred()) || !pq_group_run(self, &try)) {
        return NULL;
    }
    if (try.count > 0) {
        pq_wake(self->meta->base);
    }
    return PyLong_FromUnsignedLong(try.count);
}

PyObject *pq_claims_owners(Claims *self, PyObject *Py_UNUSED(unused)) {
    uint64_t owners[OWNERS_MAX];
    pq_group_attempt try = {.what = PQ_DO_OWNERS, .owners = owners, .limit = OWNERS_MAX};
    if (!pq_group_run(self, &try)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < try.count; i++) {
        PyObject *owner = PyLong_FromUnsignedLongLong(owners[i]);
        if (owner == NULL || PyList_Append(list, owner) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(owner);
    }
    return list;
}

PyObject *pq_claims_next(Claims *self, PyObject *Py_UNUSED(unused)) {
    uint64_t place = 0, sequence = pq_table_next(&self->table, &place);
    uint64_t position = (place & ((1ull << PQ_PLACE_SHIFT) - 1)) * PQ_FRAME_ALIGN_BYTES;
    return Py_BuildValue("(KKK)", (unsigned long long)sequence,
                         (unsigned long long)(place >> PQ_PLACE_SHIFT),
                         (unsigned long long)position);
}

/* Seconds until a claim may end or a delay be over, None when none is known. */
PyObject *pq_claims_wake_in(Claims *self, PyObject *Py_UNUSED(unused)) {
    int64_t wake_at = pq_table_wake_at(&self->table);
    if (wake_at == INT64_MAX) {
        Py_RETURN_NONE;
    }
    int64_t now = pq_group_now(self);
    if (now < 0 && PyErr_Occurred()) {
        return NULL;
    }
    return PyFloat_FromDouble(wake_at > now ? ((double)wake_at - (double)now) / 1e9 : 0.0);
}

PyObject *pq_claims_snapshot(Claims *self, PyObject *Py_UNUSED(unused)) {
    /* The caller keeps others from doubling the table meanwhile. */
    uint32_t room = self->table.first << (self->table.parts - 1);
    uint32_t grown = pq_load_u32(self->table.base + PQ_GROUP_META_GROWN);
    room = grown < self->table.parts ? self->table.first << grown : room;
    uint8_t *records = PyMem_Malloc((size_t)room * PQ_SNAPSHOT_RECORD_BYTES + 1);
    if (records == NULL) {
        return PyErr_NoMemory();
    }
    pq_group_attempt try = {.what = PQ_DO_SNAPSHOT, .records = records, .limit = room};
    try.by.now = pq_group_now(self);
    try.wall = pq_clock_realtime();
    PyObject *result = NULL;
    if (!PyErr_Occurred() && pq_group_run(self, &try)) {
        result = Py_BuildValue("(Ky#)", (unsigned long long)try.sequence, (char *)records,
                               (Py_ssize_t)((uint64_t)try.count * PQ_SNAPSHOT_RECORD_BYTES));
    }
    PyMem_Free(records);
    return result;
}

/* Acknowledge a claim without a Claim object, one that was spent, and count it: as a dead letter,
 * or as missed. */
PyObject *pq_claims_settle(Claims *self, PyObject *args) {
    unsigned long long id;
    unsigned int slot;
    int is_dead;
    if (!PyArg_ParseTuple(args, "IKp:_settle", &slot, &id, &is_dead)) {
        return NULL;
    }
    pq_claim got = {.slot = slot, .id = id};
    int done = pq_group_settle(
        self, &got, is_dead ? PQ_GROUP_META_DEAD_LETTERS : PQ_GROUP_META_MISSED);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

PyObject *pq_claims_read(Claims *self, PyObject *args) {
    unsigned long long sequence, number, position;
    if (!PyArg_ParseTuple(args, "KKK:_read", &sequence, &number, &position)) {
        return NULL;
    }
    pq_claim got = {.sequence = sequence,
                    .place = number << PQ_PLACE_SHIFT | position / PQ_FRAME_ALIGN_BYTES};
    return pq_group_read(self, &got, NULL);
}
