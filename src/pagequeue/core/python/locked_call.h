/* python/locked_call.c: one call under a robust lock, by a writer or a group's handle. */
#ifndef PAGEQUEUE_LOCKED_CALL_H
#define PAGEQUEUE_LOCKED_CALL_H

#include "python/module.h"

typedef enum { LOCK_TAKEN, LOCK_TIMEOUT, LOCK_ERROR, LOCK_SIGNAL, LOCK_CLOSED } lock_outcome;

typedef struct {
    pq_lock *lock;
    const int *closed;         /* of the handle: ends the wait */
    int64_t timeout;           /* ns */
    Region *used[3];           /* kept mapped meanwhile; NULL = none */
    void (*run)(void *);       /* under the lock, without the GIL; releases the lock */
    void *what;
    int error;                 /* result: the system's error number */
} pq_locked_call;

/* With the GIL: try a lock that is mostly free; 1 = taken. `pauses` follow the first try; each
 * further try is followed by `growth` times as many. */
static inline int pq_lock_soon(pq_lock *lock, int tries, int pauses, int growth) {
    for (int i = 0; i < tries; i++, pauses *= growth) {
        if (pq_lock_try(lock) == 0) {
            return 1;
        }
        for (int k = 0; k < pauses; k++) {
            pq_pause();
        }
    }
    return 0;
}

/* Wait for the lock without the GIL, and run the call if it is LOCK_TAKEN. */
lock_outcome pq_locked_call_run(pq_locked_call *call);
/* Raise the handle's event for a lock that was not taken; LOCK_SIGNAL has raised already. */
void pq_locked_call_raise(const pq_locked_call *call, lock_outcome outcome, PyObject *handle);

#endif
