/* A writer's rolls: into a page that Python has just mapped, and into one that was made ready.
 *
 * A page is ready when it is made, mapped and given to the writer before the active one is full.
 * Then the sender that fills that one continues without a call of Python: nothing is decided, and
 * what follows a roll is done by another thread (EVENT_AHEAD). In all other cases, and
 * where anything is not as it was then, Python rolls.
 */
#include "python/writer.h"

#include <fcntl.h>
#include <sys/stat.h>

/* Returns a pq_append_result. */
PyObject *pq_writer_roll(Writer *self, PyObject *args) {
    Region *next_page;
    Py_buffer header;
    if (!PyArg_ParseTuple(args, "O!y*:_roll", pq_region_type, &next_page, &header)) {
        return NULL;
    }
    int result = -1;
    if (header.len != (Py_ssize_t)PQ_PAGE_HEADER_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a page header has another size");
    } else if (pq_region_check(next_page, PQ_PAGE_BYTES_MIN, 1, "next page") == 0 &&
               pq_writer_ready(self)) {
        attempt try = {.what = PQ_DO_ROLL, .next_page = next_page, .header = header.buf};
        result = pq_writer_run(self, &try, 1);
    }
    PyBuffer_Release(&header);
    return result < 0 ? NULL : PyLong_FromLong(result);
}

/* Python: (page, index, number, page_reserved, index_reserved, header, folder, watched). Returns
 * whether it is the next page now; not so if another thread rolled meanwhile. */
PyObject *pq_writer_ready_page(Writer *self, PyObject *args) {
    pq_ready_page ready = {.to.page = NULL};
    Py_buffer header;
    if (!PyArg_ParseTuple(args, "O!O!KKKy*O!O!:_ready", pq_region_type, &ready.to.page,
                          pq_region_type, &ready.to.index, &ready.to.number,
                          &ready.to.page_reserved, &ready.to.index_reserved, &header,
                          pq_descriptor_type, &ready.folder, &PyTuple_Type, &ready.watched)) {
        return NULL;
    }
    int is_valid = header.len == (Py_ssize_t)PQ_PAGE_HEADER_BYTES;
    if (is_valid) {
        memcpy(ready.header, header.buf, sizeof ready.header);
    } else {
        PyErr_SetString(PyExc_ValueError, "a page header has another size");
    }
    PyBuffer_Release(&header);
    if (!is_valid || pq_page_check(ready.to.page, 1, "next page") < 0 ||
        pq_region_check(ready.to.index, PQ_INDEX_RECORD_BYTES, 1, "index") < 0) {
        return NULL;
    }
    if (self->closed || self->page == NULL || ready.to.number != self->at.page_number + 1) {
        Py_RETURN_FALSE;
    }
    Py_INCREF((PyObject *)ready.to.page);
    Py_INCREF((PyObject *)ready.to.index);
    Py_INCREF(ready.folder);
    Py_INCREF(ready.watched);
    pq_writer_unready(self);
    self->ready = ready;
    Py_RETURN_TRUE;
}

void pq_writer_unready(Writer *self) {
    pq_ready_page old = self->ready;
    self->ready = (pq_ready_page){.to.page = NULL};
    Py_XDECREF((PyObject *)old.to.page);
    Py_XDECREF((PyObject *)old.to.index);
    Py_XDECREF(old.folder);
    Py_XDECREF(old.watched);
}

/* With the GIL: these are some microseconds, and a thread that gives it away may get it back after
 * milliseconds. A name whose file is another one, or that cannot be looked up: Python checks again,
 * stops all writers and raises. */
static int are_names_kept(int folder, PyObject *watched) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(watched); i++) {
        const char *name;
        unsigned long long device, inode;
        struct stat found;
        if (!PyArg_ParseTuple(PyTuple_GetItem(watched, i), "yKK", &name, &device, &inode)) {
            PyErr_Clear();
            return 0;
        }
        if (fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0 ||
            (unsigned long long)found.st_dev != device ||
            (unsigned long long)found.st_ino != inode) {
            return 0;
        }
    }
    return 1;
}

static int roll_within(Writer *self, pq_ready_page *ready, int folder) {
    pq_attachment *to = &ready->to;
    if (!are_names_kept(folder, ready->watched) || pq_region_probe(to->page)) {
        return 0;
    }
    attempt try = {.what = PQ_DO_ROLL, .next_page = to->page, .header = ready->header};
    int result = pq_writer_run(self, &try, 0);
    if (result != PQ_APPEND_DONE) {
        return result < 0 ? -1 : 0;
    }
    /* Else another thread attached while this one waited for the lock, or closed the writer. */
    if (!self->closed && self->at.page_number + 1 == to->number) {
        memcpy(&to->first_sequence, to->page->base + PQ_PAGE_HEADER_FIRST_SEQUENCE, 8);
        to->ahead_at = 0; /* the first message there has the rest of a roll done */
        pq_writer_attach(self, to);
    }
    return 1;
}

int pq_writer_roll_ready(Writer *self) {
    if (self->ready.to.page == NULL || self->ready.to.number != self->at.page_number + 1) {
        return 0;
    }
    pq_ready_page ready = self->ready; /* taken: no other thread rolls into it as well */
    self->ready = (pq_ready_page){.to.page = NULL};
    int rolled = 0;
    PyObject *number = PyObject_CallMethod(ready.folder, "__enter__", NULL);
    if (number == NULL) {
        PyErr_Clear(); /* it was closed: Python raises that */
    } else {
        rolled = roll_within(self, &ready, (int)PyLong_AsLong(number));
        Py_DECREF(number);
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *left = PyObject_CallMethod(ready.folder, "__exit__", NULL);
        rolled = left == NULL ? -1 : rolled;
        Py_XDECREF(left);
        if (type != NULL) {
            PyErr_Restore(type, value, trace);
        }
    }
    Py_DECREF((PyObject *)ready.to.page);
    Py_DECREF((PyObject *)ready.to.index);
    Py_DECREF(ready.folder);
    Py_DECREF(ready.watched);
    return rolled;
}
