/* How readers and groups wait for a message: a few polls with the GIL, then spinning without it for
 * as long as lately paid off (5 to 100 us), then sleep on the doorbell in slices, whose length the
 * handle decides.
 */
#include "python/idle_strategy.h"

#define HELD_POLLS 32
#define PAUSES_A_ROUND 4 /* between two readings of the clock */
#define SPIN_NS_MIN 5000
#define YIELD_FROM_NS 10000
#define GREEN_NS 1000000

int pq_idle_poll(const pq_idle *idle) {
    for (int i = 0; i < HELD_POLLS; i++) {
        if (idle->arrived(idle->of)) {
            return 1;
        }
        pq_pause();
    }
    return 0;
}

int pq_idle_spin(const pq_idle *idle, int64_t deadline) {
    int64_t start = pq_clock_monotonic(), now = start, *spin_ns = idle->spin_ns;
    while (now - start < *spin_ns && now < deadline) {
        for (int i = 0; i < PAUSES_A_ROUND; i += idle->pauses) {
            if (idle->arrived(idle->of)) {
                *spin_ns = *spin_ns * 2 < PQ_SPIN_NS_MAX ? *spin_ns * 2 : PQ_SPIN_NS_MAX;
                return 1;
            }
            for (int k = 0; k < idle->pauses; k++) {
                pq_pause();
            }
        }
        now = pq_clock_monotonic();
        if (now - start > YIELD_FROM_NS) {
            pq_yield();
        }
    }
    *spin_ns = *spin_ns / 2 > SPIN_NS_MIN ? *spin_ns / 2 : SPIN_NS_MIN;
    return 0;
}

void pq_idle_sleep(const pq_idle *idle, int64_t ns) {
    uint32_t doorbell = pq_doorbell(idle->meta);
    pq_register(idle->meta);
    if (!idle->arrived(idle->of)) {
        pq_sleep(idle->meta, doorbell, ns);
    }
}

PyObject *pq_green_sleep;

int pq_green_pause(int64_t deadline) {
    int64_t left = deadline - pq_clock_monotonic();
    if (left > 0) {
        PyObject *sleep = pq_green_sleep;
        Py_INCREF(sleep);
        PyObject *slept = PyObject_CallFunction(sleep, "d", (left < GREEN_NS ? left : GREEN_NS) / 1e9);
        Py_DECREF(sleep);
        if (slept == NULL) {
            return -1;
        }
        Py_DECREF(slept);
    }
    return PyErr_CheckSignals() < 0 ? -1 : left > 0;
}

int64_t pq_deadline(int64_t timeout) {
    if (timeout < 0) {
        return INT64_MAX;
    }
    int64_t now = pq_clock_monotonic();
    return timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
}
