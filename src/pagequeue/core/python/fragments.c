/* Payloads that are larger than a page: copied out of the fragments in several pages, and checked.
 *
 * What is checked is the copy, so that what is handed out is what was sent, whatever happens to the
 * file meanwhile. Python decides which fragments belong together.
 */
#include "python/module.h"

#define COPY_STEP_BYTES (32u << 10) /* stays in the first cache between copy and checksum */

/* new_bytes(count): bytes that copy_checked fills before any other code has them */
PyObject *pq_core_new_bytes(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "n:new_bytes", &count)) {
        return NULL;
    }
    return pq_new_bytes(count);
}

/* copy_checked(page, position, bytes, checksum, target, at): whether the copy is what was sent.
 * The checksum is over the queue's id and the bytes. */
PyObject *pq_core_copy_checked(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *page;
    PyObject *target;
    unsigned long long position, bytes, at;
    unsigned int checksum;
    if (!PyArg_ParseTuple(args, "O!KKIOK:copy_checked", pq_region_type, &page, &position, &bytes,
                          &checksum, &target, &at) ||
        pq_page_check(page, 0, "page") < 0) {
        return NULL;
    }
    Py_buffer view = {0};
    uint8_t *to;
    uint64_t room;
    if (PyBytes_CheckExact(target)) {
        to = (uint8_t *)PyBytes_AsString(target);
        room = (uint64_t)PyBytes_Size(target);
    } else if (PyObject_GetBuffer(target, &view, PyBUF_WRITABLE) == 0) {
        to = view.buf;
        room = (uint64_t)view.len;
    } else {
        return NULL;
    }
    uint32_t state = page->queue_state;
    int fits = position <= page->bytes && bytes <= page->bytes - position && at <= room &&
               bytes <= room - at;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        for (uint64_t done = 0; done < bytes; done += COPY_STEP_BYTES) {
            size_t step = bytes - done < COPY_STEP_BYTES ? (size_t)(bytes - done) : COPY_STEP_BYTES;
            memcpy(to + at + done, page->base + position + done, step);
            state = pq_crc_update(state, to + at + done, step);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view); /* of no object: nothing happens */
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the bytes are not in the page, or not in the target");
        return NULL;
    }
    int good = ~state == checksum || PQ_PLANTED(fragment_unchecked);
    if (!good && !pq_region_intact(page)) {
        return NULL;
    }
    return PyBool_FromLong(good);
}
