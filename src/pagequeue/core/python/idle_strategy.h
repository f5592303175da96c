/* python/idle_strategy.c: the idle strategy of readers and groups. */
#ifndef PAGEQUEUE_IDLE_STRATEGY_H
#define PAGEQUEUE_IDLE_STRATEGY_H

#include "python/module.h"

#define PQ_SPIN_NS_MAX 100000

typedef struct {
    int (*arrived)(const void *of); /* polls, with or without the GIL */
    const void *of;
    uint8_t *meta;    /* the write meta, with the doorbell */
    int64_t *spin_ns; /* how long spinning lately paid off */
    int pauses;       /* after each poll while spinning, 1 to 4 */
} pq_idle;

/* A few polls with the GIL; 1 = arrived. */
int pq_idle_poll(const pq_idle *idle);
/* Spin without the GIL; 1 = arrived. */
int pq_idle_spin(const pq_idle *idle, int64_t deadline);
/* Without the GIL: announce a sleeper, poll once more, and sleep on the doorbell for up to `ns`. */
void pq_idle_sleep(const pq_idle *idle, int64_t ns);
/* In place of all that where threads are greenlets: 1 = poll again, 0 = the deadline is over, -1 =
 * raised. Other threads run meanwhile. */
int pq_green_pause(int64_t deadline);
/* A callable that sleeps so many seconds; NULL = threads are the system's. */
extern PyObject *pq_green_sleep;
/* By the monotonic clock; INT64_MAX for a timeout below 0, which is none. */
int64_t pq_deadline(int64_t timeout);

#endif
