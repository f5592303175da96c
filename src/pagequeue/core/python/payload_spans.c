/* Payloads of a page: one copied and checked, or many that were checked in place, copied or
 * described.
 *
 * The many were checked when their frames were read. A map whose file was truncated since reads as
 * zeros (os/sigbus.c), so each of these functions checks the map after its work, and checks the
 * frames once more only if it is lost: those before a cut are still right.
 */
#include "python/module.h"

#include <sys/mman.h>
#include <unistd.h>

#define INLINE_BYTES 12 /* a view holds a payload of up to so many bytes itself */
#define VIEW_BYTES 16
#define HUGE_BYTES (4 << 20) /* from here on new memory costs more than the copy into it */

/* Without the advice, the first store to each 4 KiB of a large object is a page fault. */
PyObject *pq_new_bytes(Py_ssize_t count) {
    PyObject *made = PyBytes_FromStringAndSize(NULL, count);
#ifdef MADV_HUGEPAGE
    if (made != NULL && count >= HUGE_BYTES) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t begin = ((uintptr_t)PyBytes_AsString(made) + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t)PyBytes_AsString(made) + (uintptr_t)count) & ~(page - 1);
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* as good without */
    }
#endif
    return made;
}

PyObject *pq_payload_copy(const Region *page, const pq_frame *frame, uint64_t sequence,
                          int *good) {
    PyObject *payload = pq_new_bytes((Py_ssize_t)frame->payload_bytes);
    if (payload == NULL) {
        return NULL;
    }
    char *copy = PyBytes_AsString(payload);
    uint32_t sum = pq_frame_checksum(
        pq_crc_copy(page->queue_state, copy, frame->payload, frame->payload_bytes),
        frame->timestamp, sequence, frame->word);
    *good = sum == frame->checksum || PQ_PLANTED(no_checksum);
    return payload;
}

/* --- many ------------------------------------------------------------------------------------- */

typedef struct {
    Region *page;
    Py_buffer buffer; /* of the spans */
    unsigned long long first_sequence;
    const pq_span *spans;
    Py_ssize_t count;
} payloads;

/* 1 = all of them are in the page (I9), 0 = raised, and the caller has no buffer to release. */
static int begin(payloads *all) {
    all->spans = all->buffer.buf;
    all->count = all->buffer.len / (Py_ssize_t)sizeof(pq_span);
    int good = all->buffer.len % (Py_ssize_t)sizeof(pq_span) == 0 &&
               (uintptr_t)all->buffer.buf % sizeof(uint32_t) == 0;
    uint64_t bytes = all->page->bytes;
    for (Py_ssize_t i = 0; good && i < all->count; i++) {
        const pq_span *span = &all->spans[i];
        good = span->position >= PQ_PAGE_HEADER_BYTES + PQ_FRAME_BYTES &&
               span->position <= bytes && span->bytes <= bytes - span->position;
    }
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "the spans are not those of payloads of this page");
        PyBuffer_Release(&all->buffer);
    }
    return good;
}

/* 1 = what was read of them was there, 0 = raised */
static int check_intact(const payloads *all) {
    if (!pq_region_probe(all->page)) {
        return 1;
    }
    for (Py_ssize_t i = 0; i < all->count; i++) {
        pq_frame frame;
        if (pq_frame_check(all->page->base, all->page->bytes, all->page->queue_state,
                           all->spans[i].position - PQ_FRAME_BYTES,
                           all->first_sequence + (uint64_t)i, &frame) != PQ_READ_FRAME ||
            frame.payload_bytes != all->spans[i].bytes) {
            return pq_region_intact(all->page);
        }
    }
    return 1;
}

/* The result, unless they were truncated away meanwhile. */
static PyObject *end(payloads *all, PyObject *result) {
    if (result != NULL && !check_intact(all)) {
        Py_CLEAR(result);
    }
    PyBuffer_Release(&all->buffer);
    return result;
}

/* payloads(page, spans, first_sequence): a list of bytes */
PyObject *pq_core_payloads(PyObject *Py_UNUSED(module), PyObject *args) {
    payloads all;
    if (!PyArg_ParseTuple(args, "O!y*K:payloads", pq_region_type, &all.page, &all.buffer,
                          &all.first_sequence) ||
        !begin(&all)) {
        return NULL;
    }
    PyObject *list = PyList_New(all.count);
    for (Py_ssize_t i = 0; list != NULL && i < all.count; i++) {
        PyObject *payload =
            PyBytes_FromStringAndSize((const char *)all.page->base + all.spans[i].position,
                                      (Py_ssize_t)all.spans[i].bytes);
        if (payload == NULL || PyList_SetItem(list, i, payload) < 0) {
            Py_CLEAR(list);
        }
    }
    return end(&all, list);
}

/* Its size, and then: the payload, padded with zeros; or its first bytes, the number of its
 * buffer, and its place there. */
static inline void put_view(char *view, const uint8_t *page, pq_span span, int buffer) {
    memcpy(view, &span.bytes, 4);
    if (span.bytes <= INLINE_BYTES) {
        memset(view + 4, 0, INLINE_BYTES);
        memcpy(view + 4, page + span.position, span.bytes);
    } else {
        memcpy(view + 4, page + span.position, 4);
        memcpy(view + 8, &buffer, 4);
        memcpy(view + 12, &span.position, 4);
    }
}

/* views(page, spans, first_sequence, buffer): 16 bytes for each, of buffer number `buffer` */
PyObject *pq_core_views(PyObject *Py_UNUSED(module), PyObject *args) {
    payloads all;
    int buffer;
    if (!PyArg_ParseTuple(args, "O!y*Ki:views", pq_region_type, &all.page, &all.buffer,
                          &all.first_sequence, &buffer) ||
        !begin(&all)) {
        return NULL;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, all.count * VIEW_BYTES);
    char *at = result == NULL ? NULL : PyBytes_AsString(result);
    for (Py_ssize_t i = 0; at != NULL && i < all.count; i++, at += VIEW_BYTES) {
        put_view(at, all.page->base, all.spans[i], buffer);
    }
    return end(&all, result);
}

/* pack(page, spans, first_sequence, target, at): the place in `target` after the last one */
PyObject *pq_core_pack(PyObject *Py_UNUSED(module), PyObject *args) {
    payloads all;
    Py_buffer target;
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "O!y*Kw*K:pack", pq_region_type, &all.page, &all.buffer,
                          &all.first_sequence, &target, &at)) {
        return NULL;
    }
    if (!begin(&all)) {
        PyBuffer_Release(&target);
        return NULL;
    }
    uint64_t room = at <= (uint64_t)target.len ? (uint64_t)target.len - at : 0, bytes = 0;
    for (Py_ssize_t i = 0; i < all.count; i++) {
        bytes += all.spans[i].bytes;
    }
    PyObject *result = NULL;
    if (bytes > room) {
        PyErr_SetString(PyExc_ValueError, "the payloads do not fit into the target");
    } else {
        uint8_t *to = (uint8_t *)target.buf + at;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < all.count; i++) {
            memcpy(to, all.page->base + all.spans[i].position, all.spans[i].bytes);
            to += all.spans[i].bytes;
        }
        Py_END_ALLOW_THREADS
        result = PyLong_FromUnsignedLongLong(at + bytes);
    }
    PyBuffer_Release(&target);
    return end(&all, result);
}

/* check_intact(page, spans, first_sequence) */
PyObject *pq_core_check_intact(PyObject *Py_UNUSED(module), PyObject *args) {
    payloads all;
    if (!PyArg_ParseTuple(args, "O!y*K:check_intact", pq_region_type, &all.page, &all.buffer,
                          &all.first_sequence) ||
        !begin(&all)) {
        return NULL;
    }
    Py_INCREF(Py_None);
    return end(&all, Py_None);
}
