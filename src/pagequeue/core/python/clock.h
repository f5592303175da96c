/* The clock that messages get their time from (python/clock.c). */
#ifndef PAGEQUEUE_CLOCK_H
#define PAGEQUEUE_CLOCK_H

#include "python/module.h"

typedef struct {
    PyObject_HEAD
    PyObject *source; /* returns ns since 1970; None = the system's clock */
    int64_t from;     /* the window: the first reading that needs no look, ... */
    uint64_t span;    /* ... and so many from there on */
} Clock;

/* What `_look` makes of a reading; -1 with an exception set = it raised. */
int64_t pq_clock_look(Clock *self, int64_t reading);

static inline int pq_clock_is_even(int64_t reading, int64_t from, uint64_t span) {
    return (uint64_t)reading - (uint64_t)from < span;
}

/* The time; -1 with an exception set = the source raised. */
static inline int64_t pq_clock_now(Clock *self) {
    int64_t reading =
        self->source == Py_None ? pq_clock_realtime() : pq_clock_call(self->source);
    if (pq_clock_is_even(reading, self->from, self->span)) {
        return reading;
    }
    if (reading < 0) { /* before 1970, or the source raised */
        return reading;
    }
    return pq_clock_look(self, reading);
}

#endif
