/* Claimed messages are delivered outside of the lock: copied out of the page, and checked.
 *
 * A claim that is not deliverable, because its bytes are damaged or memory is short, is returned, as
 * one that failed: others come before it. A message that retention removed meanwhile is skipped, and its claim acknowledged.
 */
#include "python/group_handle.h"

#define RETRY_NS 60000000000 /* when the dead letters are tried again, which could not be written */

/* Asks Python: a new reference to the page and the position in it; NULL = raised, or gone. */
static Region *asked(Claims *self, const char *method, const pq_claim *got, int reason,
                     uint64_t *position, int *is_gone) {
    PyObject *answer = PyObject_CallMethod(
        (PyObject *)self, method, "KKKi", (unsigned long long)got->sequence,
        (unsigned long long)(got->place >> PQ_PLACE_SHIFT), (unsigned long long)*position, reason);
    Region *page = NULL;
    unsigned long long at = 0;
    *is_gone = answer == Py_None;
    if (answer != NULL && !*is_gone &&
        PyArg_ParseTuple(answer, "O!K", pq_region_type, &page, &at)) {
        Py_INCREF((PyObject *)page);
        *position = at;
    }
    Py_XDECREF(answer);
    return page;
}

/* A new reference to its message; to None if it is gone; NULL = raised. */
PyObject *pq_group_read(Claims *self, const pq_claim *got, Region *page) {
    uint64_t position =
        (got->place & ((1ull << PQ_PLACE_SHIFT) - 1)) * PQ_FRAME_ALIGN_BYTES;
    int is_gone = 0;
    if (page == NULL && got->place >> PQ_PLACE_SHIFT == self->page_number) {
        page = self->page;
    }
    if (page != NULL) {
        Py_INCREF((PyObject *)page);
    } else {
        page = asked(self, "_find", got, 0, &position, &is_gone);
    }
    PyObject *message = NULL;
    for (int tries = 0; page != NULL; tries++) {
        pq_frame frame;
        int good = 0;
        pq_read_result found = pq_frame_peek(page->base, page->bytes, position, &frame);
        if (found == PQ_READ_FRAME) {
            PyObject *payload = pq_payload_copy(page, &frame, got->sequence, &good);
            if (payload == NULL) {
                break;
            }
            if (good && pq_is_large(frame.word)) {
                Py_DECREF(payload);
                message = PyObject_CallMethod(
                    (PyObject *)self, "_large", "KKLK",
                    (unsigned long long)(got->place >> PQ_PLACE_SHIFT),
                    (unsigned long long)position, (long long)frame.timestamp,
                    (unsigned long long)got->sequence);
                break;
            }
            if (good) {
                message = pq_message_new(payload, frame.timestamp, got->sequence, self->decoder);
                break;
            }
            Py_DECREF(payload);
            found = PQ_READ_BAD_CHECKSUM;
        }
        Py_DECREF((PyObject *)page);
        page = asked(self, tries == 0 ? "_reopen_page" : "_unreadable", got, (int)found, &position,
                     &is_gone);
    }
    Py_XDECREF((PyObject *)page);
    if (message == NULL && is_gone && !PyErr_Occurred()) {
        message = Py_None;
        Py_INCREF(message);
    }
    return message;
}

/* Keeps an exception. What was taken needs a record again. */
static void give_back(Claims *self, pq_claim *got, pq_group_do what, int64_t delay) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    pq_group_attempt try = {.what = got->id == 0 ? PQ_DO_RESTORE : what, .got = got};
    try.by.now = pq_group_now(self);
    try.until = try.by.now + delay;
    int is_run = !PyErr_Occurred() && pq_group_run(self, &try);
    if (is_run && try.result == PQ_CLAIM_FULL && pq_group_grow(self) > 0) {
        is_run = pq_group_run(self, &try);
    }
    if (!is_run) {
        PyErr_Clear(); /* its lease ends some time */
    }
    PyErr_Restore(type, value, trace);
}

void pq_group_undo(Claims *self, pq_claim *got, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (got[i].id == 0) {
            got[i].deliveries = 0;
        }
        give_back(self, &got[i], got[i].is_spent ? PQ_DO_NACK : PQ_DO_UNDO, 0);
    }
}

/* Its delivery failed, because it is not readable. */
static void give_back_damaged(Claims *self, pq_claim *got) {
    got->cause = PQ_CAUSE_DAMAGE;
    give_back(self, got, PQ_DO_NACK,
              pq_retry_delay(&self->retry, got->sequence, got->deliveries));
}

/* Delivered as often as allowed: Python moves it to the dead letters, and acknowledges it. 1 = done,
 * 0 = it has no room for it, -1 = raised. */
static int dead_letter(Claims *self, pq_claim *got) {
    PyObject *answer = PyObject_CallMethod(
        (PyObject *)self, "_move_to_dead_letters", "IKKKKII", got->slot,
        (unsigned long long)got->id, (unsigned long long)got->sequence,
        (unsigned long long)(got->place >> PQ_PLACE_SHIFT),
        (unsigned long long)((got->place & ((1ull << PQ_PLACE_SHIFT) - 1)) * PQ_FRAME_ALIGN_BYTES),
        got->deliveries, got->cause);
    int is_done = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return is_done;
}

/* Whether the exception is about this one message. A queue that is closed meanwhile, or a
 * limit of the system, is no fault of the message: the next worker to claim it can have it at
 * once. */
int pq_group_is_of_message(Claims *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    int found = 0;
    if (PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        PyObject *answer = PyObject_CallMethod((PyObject *)self, "_is_damage", "O", value);
        found = answer != NULL && PyObject_IsTrue(answer) == 1;
        Py_XDECREF(answer);
        PyErr_Clear();
    }
    PyErr_Restore(type, value, trace);
    return found;
}

/* Reading it raised: NULL, and it is given back. */
static PyObject *failed(Claims *self, pq_claim *got) {
    if (pq_group_is_of_message(self)) {
        give_back_damaged(self, got);
    } else {
        pq_group_undo(self, got, 1);
    }
    return NULL;
}

PyObject *pq_group_deliver(Claims *self, const pq_claim *claimed, int acknowledges,
                           Region *taken_from, int *is_none) {
    pq_claim got = *claimed;
    if (got.is_spent) {
        int done = dead_letter(self, &got);
        *is_none = done >= 0;
        if (done <= 0) {
            give_back(self, &got, PQ_DO_NACK, done < 0 ? 0 : RETRY_NS);
        }
        return NULL;
    }
    PyObject *message = pq_group_read(self, &got, got.id == 0 ? taken_from : NULL);
    if (message == NULL) {
        return failed(self, &got);
    }
    if (message == Py_None) {
        Py_DECREF(message);
        *is_none = pq_group_settle(self, &got, PQ_GROUP_META_MISSED) >= 0; /* it was removed */
        return NULL;
    }
    if (got.id == 0) {
        return message;
    }
    if (acknowledges) {
        if (Py_TYPE(message) != pq_message_type) { /* a large one: nothing keeps its pages then */
            PyObject *kept = PyObject_CallMethod(message, "keep", NULL);
            if (kept == NULL) {
                Py_DECREF(message);
                return failed(self, &got);
            }
            Py_DECREF(kept);
        }
        int done = pq_group_settle(self, &got, 0);
        if (done <= 0) {
            Py_CLEAR(message);
            *is_none = done == 0; /* its lease has ended: another worker has it */
        }
        return message;
    }
    PyObject *claim = pq_claim_new(self, message, &got);
    if (claim == NULL) {
        pq_group_undo(self, &got, 1);
    }
    return claim;
}
