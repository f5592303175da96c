/* The Python objects of the core, and what they share. */
#ifndef PAGEQUEUE_OBJECTS_H
#define PAGEQUEUE_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "os/sigbus.h"

/* Cases that a handle leaves to a Python method of its own, and whether that gets a value. It
 * raises, or resolves the case ("try again"), or returns False ("no message to read"). */
#define PQ_EVENTS(EVENT) \
    EVENT(CLOSED, "_on_closed", 0)                    /* the handle was closed */ \
    EVENT(FORKED, "_on_forked", 0)                    /* it belongs to the parent process */ \
    EVENT(BUSY, "_on_busy", 0)                        /* another thread is in this reader */ \
    EVENT(TIMEOUT, "_on_timeout", 1)                  /* none came in time; ns waited */ \
    EVENT(MOVED, "_on_moved", 0)                      /* another page is active */ \
    EVENT(FULL, "_on_full", 1)                        /* leave the page; ns that it may take */ \
    EVENT(FAILED, "_on_failed", 0)                    /* the failure latch is set */ \
    EVENT(OLD_TIMESTAMP, "_on_old_timestamp", 1)      /* the timestamp asked for */ \
    EVENT(DAMAGED, "_on_damaged", 1)                  /* pq_read_result; 0 of a writer */ \
    EVENT(EXHAUSTED, "_on_exhausted", 0)              /* all sequences are used */ \
    EVENT(TOO_LARGE, "_on_too_large", 1)              /* bytes of the payload */ \
    EVENT(BATCH_TOO_LARGE, "_on_batch_too_large", 1)  /* bytes of the batch's frames */ \
    EVENT(WRONG_SIZE, "_on_wrong_size", 1)            /* bytes of what is no record */ \
    EVENT(STALLED, "_on_stalled", 1)                  /* the lock was not free; ns waited */ \
    EVENT(NO_LOCK, "_on_no_lock", 1)                  /* the lock is corrupt; the error */ \
    EVENT(AHEAD, "_on_ahead", 1)                      /* position: make the next page ready */ \
    EVENT(SYNC, "_on_sync", 1)                        /* a sync is due, up to this sequence */ \
    EVENT(UNRESERVED, "_on_unreserved", 1)            /* blocks are; bytes of the frames */ \
    EVENT(STARVED, "_on_starved", 1)                  /* others took each page; ns that it took */ \
    EVENT(OVERTAKEN, "_on_overtaken", 1)              /* this sequence is next, not `at` */ \
    EVENT(OVER_LIMIT, "_on_over_limit", 0)            /* the group has too many waiting */ \
    EVENT(PAGE_END, "_on_page_end", 0)                /* read on in the next page */ \
    EVENT(LIMIT, "_on_limit", 0)                      /* it came to the limit that was set */ \
    EVENT(UNFILLED, "_on_unfilled", 1)                /* not inflated here yet; position */ \
    EVENT(LOST, "_on_lost", 0)                        /* a mapped file was truncated */ \
    EVENT(PLACE, "_on_place", 0)                      /* check that names lead to what is open */ \
    EVENT(IDLE, "_on_idle", 0)                        /* check whether owners died */ \
    EVENT(LEASE_LOST, "_on_lease_lost", 1)            /* the claim's sequence */ \
    EVENT(SETTLED, "_on_settled", 1)                  /* the same: it was done before */ \
    EVENT(TABLE_FULL, "_on_table_full", 1)            /* no record is free; how many there are */ \
    EVENT(BEYOND, "_on_beyond", 0)                    /* the table is larger than the map */

typedef enum {
#define PQ_EVENT_MEMBER(name, method, has_value) EVENT_##name,
    PQ_EVENTS(PQ_EVENT_MEMBER)
#undef PQ_EVENT_MEMBER
} pq_event;

typedef struct Region {
    PyObject_HEAD
    uint8_t *base;
    uint64_t bytes;
    uint64_t whole; /* of these the file has so many at least: it can be mapped beyond its end */
    uint64_t ahead; /* page faults were taken up to there */
    pq_guard *guard;
    PyObject *on_lost; /* called with a position, returns the error to raise; or None */
    PyObject *filler;  /* what fills it as it is read; None: all that will be here is */
    uint32_t queue_state; /* of a page's queue: its frames' checksums start from it */
    char has_queue, writable;
    char is_used; /* a seek found a message in it; its keeper clears this */
    char worn; /* a child of a fork can have what was lent, and with it the lock: not lent again */
    int fd; /* of a page of a ring: its open file, which has the shared lock; -1 = none */
    struct Region *lent; /* what reads the map now, which holds a reference to this; not one here */
    struct Region *owner; /* of the map, which was lent by it; NULL: its own */
    unsigned fork_count, forks_begun; /* when it was lent */
} Region;

extern PyTypeObject *pq_region_type, *pq_message_type, *pq_writer_type, *pq_reader_type;
extern PyTypeObject *pq_claims_type, *pq_claim_type, *pq_descriptor_type, *pq_clock_type;
extern PyTypeObject *pq_judge_type;
extern unsigned pq_fork_count; /* moves in the child of a fork: older handles are the parent's */
extern unsigned pq_forks_begun; /* moves in the parent, before */

PyTypeObject *pq_descriptor_make(void);
PyTypeObject *pq_clock_make(void);
PyTypeObject *pq_judge_make(void);
PyTypeObject *pq_region_make(void);
PyTypeObject *pq_message_make(void);
PyTypeObject *pq_writer_make(void);
PyTypeObject *pq_reader_make(void);
PyTypeObject *pq_claims_make(void);
PyTypeObject *pq_claim_make(void);
int pq_message_prepare(void);
/* Steals the payload. The decoder makes `value` of it; NULL = that is the payload. */
PyObject *pq_message_new(PyObject *payload, int64_t timestamp, uint64_t sequence,
                         PyObject *decoder);

/* 1 = try again, 0 = no message to read, -1 = raised */
int pq_event_raise(PyObject *self, pq_event event, int64_t value);
/* Note an event of a call that must not block, by `_defer(method, value)`. */
int pq_event_defer(PyObject *self, pq_event event, int64_t value);
extern PyObject *pq_never_block; /* in place of a timeout */
/* ns by a clock that is a callable; -1 with an exception set = it raised. */
int64_t pq_clock_call(PyObject *clock);
int pq_region_check(Region *region, uint64_t bytes, int writable, const char *what);
/* The same for a page, whose queue must be known. */
int pq_page_check(Region *page, int writable, const char *what);
/* 1 = continue, 0 = raised, because the file of the map that was just used was truncated */
int pq_region_intact(Region *region);
/* Raise what the function `check` of pagequeue.util.arguments raises for these arguments, in place
 * of a TypeError, OverflowError or ValueError that is set. */
void pq_refuse_argument(const char *check, const char *format, ...);
/* Ask the function `check` of pagequeue.util.arguments about an argument; -1 = raised. */
int pq_check_argument(const char *check, const char *name, PyObject *value);
void pq_refuse_type(const char *format, ...); /* raise InvalidType */
int64_t pq_timeout_ns(PyObject *seconds);     /* -1 = for ever, -2 = raised */
/* A number of messages, 1 to `most`; -1 = raised */
Py_ssize_t pq_count_of(const char *name, PyObject *count, Py_ssize_t most);
void pq_type_free(PyObject *self);
/* For tp_clear: what is called later, by a finalizer in the same cycle, must not be NULL. */
void pq_clear_to_none(PyObject **field);

#define PQ_PLACE_NS 500000000 /* a handle in use checks its names as often */

/* Whether it is time for EVENT_PLACE, by any clock: also after it was set back. */
static inline int pq_place_due(int64_t *checked_at, int64_t now) {
    if (now >= *checked_at && now - *checked_at < PQ_PLACE_NS) {
        return 0;
    }
    *checked_at = now;
    return 1;
}

/* Whether a handle can be used now; 0 = raised. */
static inline int pq_handle_ready(PyObject *handle, unsigned fork_count, int closed) {
    if (fork_count != pq_fork_count) {
        pq_event_raise(handle, EVENT_FORKED, 0);
        return 0;
    }
    if (closed) {
        pq_event_raise(handle, EVENT_CLOSED, 0);
        return 0;
    }
    return 1;
}

/* A write meta that was truncated inside its only OS page reads as zeros without any fault. */
static inline void pq_meta_probe(Region *meta) {
    pq_tail tail;
    pq_tail_load(meta->base, &tail);
    if (tail.page_number == 0 || tail.position < PQ_PAGE_HEADER_BYTES) {
        pq_guard_lose(meta->guard);
    }
}

static inline int pq_region_lost(const Region *region) {
    return pq_guard_lost(region->guard) != PQ_WHOLE;
}

/* The same, with a check of its last byte, which every whole file has. */
static inline int pq_region_probe(const Region *region) {
    (void)*(const volatile uint8_t *)(region->base + region->whole - 1);
    return pq_region_lost(region);
}

/* A copy of the payload, checked against the checksum: what is checked is what is handed out. */
PyObject *pq_payload_copy(const Region *page, const pq_frame *frame, uint64_t sequence,
                          int *good);

/* A payload's place in its page. */
typedef struct {
    uint32_t position, bytes;
} pq_span;

/* python/payload_spans.c */
PyObject *pq_new_bytes(Py_ssize_t count);
PyObject *pq_core_payloads(PyObject *module, PyObject *args);
PyObject *pq_core_views(PyObject *module, PyObject *args);
PyObject *pq_core_pack(PyObject *module, PyObject *args);
PyObject *pq_core_check_intact(PyObject *module, PyObject *args);

/* python/writer_payloads.c */
PyObject *pq_core_payload(PyObject *module, PyObject *object);
PyObject *pq_core_measured(PyObject *module, PyObject *args);

/* python/fragments.c */
PyObject *pq_core_new_bytes(PyObject *module, PyObject *args);
PyObject *pq_core_copy_checked(PyObject *module, PyObject *args);

/* python/page_calls.c */
PyObject *pq_core_scan(PyObject *module, PyObject *args);
PyObject *pq_core_find(PyObject *module, PyObject *args);
PyObject *pq_core_locate(PyObject *module, PyObject *args);
PyObject *pq_core_find_many(PyObject *module, PyObject *args);
PyObject *pq_core_assign_sequences(PyObject *module, PyObject *args);
PyObject *pq_core_times(PyObject *module, PyObject *args);
PyObject *pq_core_resync(PyObject *module, PyObject *args);
PyObject *pq_core_peek(PyObject *module, PyObject *args);
/* python/mapped_file.c */
PyObject *pq_core_reserve(PyObject *module, PyObject *args);
PyObject *pq_core_release(PyObject *module, PyObject *args);

#endif
