/* How a group's handle claims: attempts, and waiting in between.
 *
 * When no message is due: a few polls with the GIL, then spinning without it for as long as lately
 * paid off, then sleep on the doorbell, which new and returned messages ring. No sleep is longer
 * than a slice, nor than until a lease ends or a delay is over.
 */
#include "python/group_handle.h"
#include "python/idle_strategy.h"

#define SLICE_NS 50000000 /* longest sleep: owners of claims are checked as often */
#define BACKOFF_NS 1000000
#define BUSY_CHECK_NS 1000000000

typedef struct {
    const pq_table *table;
    pq_claimant *by;
} awaited;

static int arrived(const void *of) {
    const awaited *what = of;
    return pq_table_has_work(what->table, what->by);
}

/* One slice, no longer than until a record may be due. */
static int64_t slice_of(const Claims *self, const pq_claimant *by, int64_t remaining) {
    int64_t slice = remaining < SLICE_NS ? remaining : SLICE_NS;
    if (self->clock != Py_None) {
        return slice < BACKOFF_NS ? slice : BACKOFF_NS; /* the rate of that clock is unknown */
    }
    int64_t wake_at = pq_table_wake_at(&self->table);
    if (wake_at <= by->now) { /* INT64_MIN = poll now: no difference is taken of it */
        return 1;
    }
    return wake_at - by->now < slice ? wake_at - by->now : slice;
}

/* 1 = poll again, 0 = the deadline passed, -1 = raised. */
static int pause_until(Claims *self, pq_claimant *by, int64_t deadline, int is_full) {
    awaited what = {&self->table, by};
    pq_idle idle = {.arrived = arrived, .of = &what, .meta = self->meta->base,
                    .spin_ns = &self->spin_ns, .pauses = 4};
    if (!is_full && pq_idle_poll(&idle)) {
        return 1;
    }
    if (pq_green_sleep != NULL) {
        by->now = self->clock == Py_None ? pq_clock_monotonic() : by->now;
        int more = pq_green_pause(deadline);
        return more < 0 || !pq_group_ready(self) ? -1 : more;
    }
    Region *meta = self->meta, *file = self->file, *page = self->page;
    Py_INCREF((PyObject *)meta);
    Py_INCREF((PyObject *)file);
    Py_XINCREF((PyObject *)page);
    PyThreadState *state = PyEval_SaveThread();
    if (is_full || !pq_idle_spin(&idle, deadline)) {
        int64_t now = pq_clock_monotonic();
        if (now < deadline) {
            if (self->clock == Py_None) {
                by->now = now;
            }
            int64_t slice = slice_of(self, by, deadline - now);
            if (is_full) { /* an acknowledgement wakes no waiter */
                pq_sleep_ns(slice < BACKOFF_NS ? slice : BACKOFF_NS);
            } else {
                pq_idle_sleep(&idle, slice);
            }
        }
    }
    int64_t now = pq_clock_monotonic();
    PyEval_RestoreThread(state);
    Py_XDECREF((PyObject *)page);
    Py_DECREF((PyObject *)file);
    Py_DECREF((PyObject *)meta);
    if (PyErr_CheckSignals() < 0 || !pq_group_ready(self)) {
        return -1;
    }
    return now < deadline;
}

/* 1 = a dead owner's claims can be claimed now, 0 = not, or it was checked lately, -1 = raised.
 * The names are checked by the way, because there may never be a message: the queue can be gone. */
static int check_owners(Claims *self, int64_t interval) {
    int64_t now = pq_clock_monotonic();
    if (!pq_group_check_place(self, now)) {
        return -1;
    }
    if (now - self->looked_at < interval ||
        pq_load_u32(self->table.base + PQ_GROUP_META_OUTSTANDING) == 0) {
        return 0;
    }
    self->looked_at = now;
    return pq_event_raise((PyObject *)self, EVENT_IDLE, 0);
}

int pq_group_claim(Claims *self, int64_t timeout, pq_claim *got, uint32_t limit,
                   Region **taken_from) {
    int64_t deadline = 0;
    if (!pq_group_ready(self) || check_owners(self, BUSY_CHECK_NS) < 0) {
        return -1;
    }
    for (;;) {
        pq_group_attempt try = {.what = PQ_DO_CLAIM, .got = got, .limit = limit};
        try.by.now = pq_group_now(self);
        if (try.by.now < 0 && PyErr_Occurred()) {
            return -1;
        }
        try.by.lease_end =
            try.by.now > INT64_MAX - self->lease ? INT64_MAX - 1 : try.by.now + self->lease;
        try.by.owner = self->owner;
        try.by.retry = self->retry;
        try.by.acknowledges = taken_from != NULL;
        int is_run = pq_group_run(self, &try);
        if (is_run && try.result == PQ_CLAIM_DONE) {
            if (taken_from != NULL) {
                *taken_from = try.page;
            }
            return (int)try.count;
        }
        Py_XDECREF((PyObject *)try.page);
        int more = 1;
        if (!is_run) {
            return -1;
        } else if (try.result == PQ_CLAIM_MOVED) {
            more = pq_event_raise((PyObject *)self, EVENT_MOVED, 0);
        } else if (try.result == PQ_CLAIM_DAMAGED) {
            more = pq_event_raise((PyObject *)self, EVENT_DAMAGED, 0);
        } else if (try.result == PQ_CLAIM_FULL) {
            more = pq_group_grow(self);
        } else if (try.result == PQ_CLAIM_MEMORY) {
            PyErr_NoMemory();
            return -1;
        } else {
            more = 0;
        }
        if (more == 0) { /* no message, or no room for a claim */
            more = check_owners(self, SLICE_NS);
        }
        if (more < 0) {
            return -1;
        }
        if (more > 0) {
            if (!pq_group_ready(self)) {
                return -1;
            }
            continue;
        }
        if (!pq_group_ready(self)) {
            return -1;
        }
        if (deadline == 0) {
            deadline = pq_deadline(timeout);
        }
        more = timeout == 0 ? 0 : pause_until(self, &try.by, deadline, try.result == PQ_CLAIM_FULL);
        if (more <= 0) {
            return more;
        }
    }
}

