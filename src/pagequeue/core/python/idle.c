/* How a Reader waits for a message: a few polls with the GIL, polls without it for as long as
 * lately paid off (5 to 100 us), then sleep in slices on the doorbell, or naps where it may not
 * write that it sleeps. */
#include "python/reader.h"

#define HELD_LOOKS 32
#define PAUSES_A_LOOK 4
#define SPIN_NS_MIN 5000
#define YIELD_FROM_NS 10000
#define SLICE_NS 100000000 /* longest sleep: covers a publisher that died before it woke anyone */
#define NAP_NS_MAX 10000000

static int arrived(const Reader *self, const Region *page) {
    return pq_load_u32(page->base + self->position) != 0 &&
           self->sequence < pq_reader_limit(self);
}

/* Without the GIL. 1 = a message arrived while spinning. */
static int spin(Reader *self, const Region *page, int64_t deadline) {
    int64_t start = pq_clock_monotonic(), now = start;
    while (now - start < self->spin_ns && now < deadline) {
        for (int i = 0; i < PAUSES_A_LOOK; i++) {
            if (arrived(self, page)) {
                int64_t longer = self->spin_ns * 2;
                self->spin_ns = longer < PQ_SPIN_NS_MAX ? longer : PQ_SPIN_NS_MAX;
                return 1;
            }
            pq_pause();
        }
        now = pq_clock_monotonic();
        if (now - start > YIELD_FROM_NS) {
            pq_yield();
        }
    }
    self->spin_ns = self->spin_ns / 2 > SPIN_NS_MIN ? self->spin_ns / 2 : SPIN_NS_MIN;
    return 0;
}

/* Without the GIL: one slice. */
static void sleep_slice(Reader *self, const Region *page, int64_t remaining, int64_t *nap) {
    int64_t slice = remaining < SLICE_NS ? remaining : SLICE_NS;
    if (self->registers && !self->stuck) {
        self->empty_looks = PQ_HOLE_LOOKS; /* the next poll checks for a hole */
        uint32_t doorbell = pq_doorbell(self->meta->base);
        pq_register(self->meta->base);
        if (!arrived(self, page)) {
            pq_sleep(self->meta->base, doorbell, slice);
        }
        return;
    }
    self->empty_looks = PQ_HOLE_LOOKS;
    pq_nap(slice < *nap ? slice : *nap);
    *nap = *nap * 2 < NAP_NS_MAX ? *nap * 2 : NAP_NS_MAX;
}

int pq_reader_pause(Reader *self, int64_t deadline, int64_t *nap) {
    if (!self->stuck) {
        for (int i = 0; i < HELD_LOOKS; i++) {
            if (arrived(self, self->page)) {
                return 1;
            }
            pq_pause();
        }
    }
    Region *page = self->page;
    Py_INCREF((PyObject *)page);
    int64_t now;
    PyThreadState *state = PyEval_SaveThread();
    if (self->stuck || *nap > PQ_NAP_NS_MIN || !spin(self, page, deadline)) {
        now = pq_clock_monotonic();
        if (now < deadline) {
            sleep_slice(self, page, deadline - now, nap);
        }
    }
    now = pq_clock_monotonic();
    PyEval_RestoreThread(state);
    Py_DECREF((PyObject *)page);
    if (PyErr_CheckSignals() < 0) {
        return -1;
    }
    return now < deadline;
}

int64_t pq_reader_deadline(int64_t timeout) {
    if (timeout < 0) {
        return INT64_MAX;
    }
    int64_t now = pq_clock_monotonic();
    return timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
}
