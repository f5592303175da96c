/* os/sigbus.c: truncation of, or a read error in, a mapped file is an error and not a signal. */
#ifndef PAGEQUEUE_GUARD_H
#define PAGEQUEUE_GUARD_H

#include "protocol/protocol.h"

#define PQ_WHOLE UINT64_MAX

/* What the handler knows of one map. It is never freed, so that a handler can read it whatever
 * other threads do; an unmapped file's guard is reused for the next one. */
typedef struct {
    uintptr_t start;    /* of the map; below 2 = no map */
    uintptr_t end;
    uint64_t lost_at;   /* position of an OS page that is lost; PQ_WHOLE = none */
    uint64_t mutex_at;  /* position of the writers' lock in a write meta, 0 = none */
    int protection;
    int mutex_put_by;   /* the process that put another mutex there, 0 = none */
} pq_guard;

/* Any thread, with or without the GIL. NULL = no memory, or the system refused the handler. */
pq_guard *pq_guard_take(void);
void pq_guard_put(pq_guard *guard);
/* The map exists. From here on its faults are ours; it must be put back before it is unmapped. */
void pq_guard_begin(pq_guard *guard, void *base, uint64_t bytes, int protection);
/* The map contains a mutex. */
void pq_guard_mutex(pq_guard *guard, uint64_t position);
/* Lost, according to its bytes. */
void pq_guard_lose(pq_guard *guard);

/* Where the map was found to be lost, PQ_WHOLE when it was not. Checked after the bytes were read:
 * a reader that saw zeros that are not in the file sees this too. */
static inline uint64_t pq_guard_lost(const pq_guard *guard) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&guard->lost_at, __ATOMIC_RELAXED);
}

#endif
