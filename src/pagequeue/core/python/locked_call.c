/* One call under a robust lock, without the GIL: for the writers' lock and a group's.
 *
 * A handle first tries with the GIL held (`pq_lock_soon`), because a short call costs less than
 * taking the GIL back. No thread waits for the GIL while it holds the lock, because that would stop
 * every other process for as long.
 */
#include "python/locked_call.h"

#include <errno.h>

#define YIELDS 40 /* tries before naps */
#define BACKOFF_NS_MAX 1000000
#define SIGNAL_CHECK_NS 50000000

/* Without the GIL, but for signals. */
static lock_outcome lock_wait(pq_lock *lock, const int *closed, int64_t timeout,
                              PyThreadState **state) {
    int64_t start = pq_clock_monotonic(), checked = start, backoff = 10000;
    for (long round = 0;; round++) {
        int error = pq_lock_try(lock);
        if (error != EBUSY) {
            errno = error;
            return error == 0 ? LOCK_TAKEN : LOCK_ERROR;
        }
        pq_lock_revive(lock);
        if (__atomic_load_n(closed, __ATOMIC_RELAXED)) {
            return LOCK_CLOSED;
        }
        int64_t now = pq_clock_monotonic();
        if (now - start >= timeout) {
            return LOCK_TIMEOUT;
        }
        if (now - checked >= SIGNAL_CHECK_NS) {
            checked = now;
            PyEval_RestoreThread(*state);
            int raised = PyErr_CheckSignals();
            *state = PyEval_SaveThread();
            if (raised != 0) {
                return LOCK_SIGNAL;
            }
        }
        if (round < YIELDS) {
            pq_yield();
        } else {
            pq_sleep_ns(backoff);
            backoff = backoff * 2 < BACKOFF_NS_MAX ? backoff * 2 : BACKOFF_NS_MAX;
        }
    }
}

lock_outcome pq_locked_call_run(pq_locked_call *call) {
    for (size_t i = 0; i < sizeof call->used / sizeof *call->used; i++) {
        Py_XINCREF((PyObject *)call->used[i]);
    }
    PyThreadState *state = PyEval_SaveThread();
    lock_outcome outcome = lock_wait(call->lock, call->closed, call->timeout, &state);
    if (outcome == LOCK_TAKEN) {
        call->run(call->what);
    } else if (outcome == LOCK_ERROR) {
        call->error = errno;
    }
    PyEval_RestoreThread(state);
    for (size_t i = 0; i < sizeof call->used / sizeof *call->used; i++) {
        Py_XDECREF((PyObject *)call->used[i]);
    }
    return outcome;
}

void pq_locked_call_raise(const pq_locked_call *call, lock_outcome outcome, PyObject *handle) {
    switch (outcome) {
    case LOCK_TAKEN:
    case LOCK_SIGNAL: break;
    case LOCK_ERROR: pq_event_raise(handle, EVENT_NO_LOCK, call->error); break;
    case LOCK_TIMEOUT: pq_event_raise(handle, EVENT_STALLED, call->timeout); break;
    case LOCK_CLOSED: pq_event_raise(handle, EVENT_CLOSED, 0); break;
    }
}
