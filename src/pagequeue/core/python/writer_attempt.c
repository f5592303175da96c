/* One attempt of a writer, under the writers' lock: append, roll, freeze or bulk commit.
 *
 * The GIL is released when the lock is not free at once, and for large payloads.
 */
#include "protocol/group_claims.h"
#include "python/locked_call.h"
#include "python/writer.h"

#define HELD_TRIES 100 /* for the lock, before the GIL is released */
#define FLUSH_WAIT_NS 10000000 /* the flusher may be dead: Python tries the flush lock */

/* Whether the mapping was truncated, so that writes are lost. The page's last byte is touched,
 * because the rest of an OS page in whose middle a file was cut can still be written without any
 * error, and never reaches the disk. The index is only a hint: a lost one is rebuilt on demand. */
static int is_lost(const attempt *try) {
    return pq_region_probe(try->page) || pq_region_lost(try->meta) ||
           (try->next_page != NULL && pq_region_probe(try->next_page));
}

/* Under the writers' lock, so that no two producers fill the same last place (I17). The group only
 * advances meanwhile: its progress is seen late at worst. */
static uint64_t sequence_limit(const attempt *try) {
    pq_table table = {.base = try->group_file->base};
    uint64_t place;
    return pq_table_next(&table, &place) + try->group_limit;
}

static pq_append_result append(attempt *try) {
    if (try->group_file != NULL) {
        try->at.sequence_limit = sequence_limit(try);
    }
    try->at.only_at = try->terms->only_at;
    int64_t now = try->now;
    if (now == PQ_TIMESTAMP_NOW) {
        now = pq_clock_realtime();
        now = pq_clock_is_even(now, try->from, try->span) ? now : try->late;
    }
    return pq_append(&try->at, try->batch, now, try->terms->exact, &try->out);
}

static pq_append_result apply(attempt *try) {
    switch (try->what) {
    case PQ_DO_APPEND: return append(try);
    case PQ_DO_ROLL: return pq_roll(&try->at, try->next_page->base, try->header);
    case PQ_DO_FREEZE: return pq_freeze(&try->at, try->end);
    case PQ_DO_BULK_COMMIT:
        return pq_commit_pages(&try->at, try->next_page->base, try->header, try->beyond);
    }
    return PQ_APPEND_LOST;
}

static inline pq_append_result with_lock(attempt *try) {
    pq_append_result result = PQ_APPEND_LOST;
    if (!is_lost(try)) {
        result = apply(try);
        if (result == PQ_APPEND_MOVED || result == PQ_APPEND_DAMAGED) {
            pq_meta_probe(try->meta);
        }
    }
    pq_lock_release(try->lock);
    PQ_KILL_POINT(8);
    if (result == PQ_APPEND_DONE) {
        /* P5. Wake. Dies before: waiters poll again after a slice (I7). */
        pq_wake(try->at.meta);
    }
    if (is_lost(try)) {
        result = PQ_APPEND_LOST;
        pq_lock_forget(try->lock);
    }
    return result;
}

static void run(void *what) {
    attempt *try = what;
    try->result = with_lock(try);
}

int pq_writer_run(Writer *self, attempt *try, int free_gil) {
    try->at = self->at;
    try->meta = self->meta;
    try->page = self->page;
    try->lock = &self->lock;
    try->group_file = self->group_file;
    try->group_limit = self->group_limit;
    if (!free_gil && pq_lock_soon(&self->lock, HELD_TRIES, 1, 1)) {
        return with_lock(try);
    }
    pq_locked_call call = {.lock = &self->lock, .closed = &self->closed,
                           .timeout = self->lock_timeout,
                           .used = {self->meta, self->page, self->index},
                           .run = run, .what = try};
    self->inside += 1;
    lock_outcome outcome = pq_locked_call_run(&call);
    self->inside -= 1;
    if (outcome == LOCK_ERROR && self->meta != NULL) { /* the lock reads as zeros if it was cut off */
        pq_meta_probe(self->meta);
        if (pq_region_lost(self->meta)) {
            return PQ_APPEND_LOST;
        }
    }
    pq_locked_call_raise(&call, outcome, (PyObject *)self);
    return outcome == LOCK_TAKEN ? (int)try->result : -1;
}

int pq_writer_is_durable(Writer *self, uint64_t sequence) {
    Region *meta = self->meta, *page = self->page;
    if (meta == NULL || page == NULL) { /* closed meanwhile: Python raises */
        return 0;
    }
    pq_turn_result result = pq_turn_wait(meta->base, sequence, 0, 0);
    if (result != PQ_TURN_LATE && result != PQ_TURN_DURABLE) {
        return 0;
    }
    Py_INCREF((PyObject *)meta);
    Py_INCREF((PyObject *)page);
    if (result == PQ_TURN_LATE) {
        Py_BEGIN_ALLOW_THREADS
        result = pq_turn_wait(meta->base, sequence, FLUSH_WAIT_NS, 0);
        Py_END_ALLOW_THREADS
    }
    /* Never a success for frames in a file that was truncated. */
    int durable = result == PQ_TURN_DURABLE && !pq_region_probe(meta) && !pq_region_probe(page);
    Py_DECREF((PyObject *)meta);
    Py_DECREF((PyObject *)page);
    return durable;
}

/* Called once; from here on it sends only while a group has fewer than `limit` messages waiting. */
PyObject *pq_writer_bind(Writer *self, PyObject *args) {
    Region *group_file;
    unsigned long long limit;
    if (!PyArg_ParseTuple(args, "O!K:_bind", pq_region_type, &group_file, &limit) ||
        pq_region_check(group_file, PQ_GROUP_TABLE_AT, 1, "file of the group") < 0) {
        return NULL;
    }
    if (self->group_file != NULL || limit == 0) {
        PyErr_SetString(PyExc_ValueError, "bound once, by 1 or more");
        return NULL;
    }
    Py_INCREF((PyObject *)group_file); /* until the writer goes: a thread may be inside */
    self->group_limit = limit;
    self->group_file = group_file;
    Py_RETURN_NONE;
}
