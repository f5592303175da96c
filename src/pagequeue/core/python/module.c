/* The module: its types, the functions on whole pages, and the constants. */
#include "python/idle_strategy.h"
#include "python/group_handle.h"
#include "python/module.h"

#include "protocol/group_claims.h"
#include "protocol/judge.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <fcntl.h>
#if defined(__linux__)
#include <linux/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#endif

#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x00004000u
#endif

PyTypeObject *pq_region_type, *pq_message_type, *pq_writer_type, *pq_reader_type;
PyTypeObject *pq_claims_type, *pq_claim_type, *pq_descriptor_type, *pq_clock_type;
PyTypeObject *pq_judge_type;
PyObject *pq_never_block;
unsigned pq_fork_count, pq_forks_begun;

static void forking(void) { pq_forks_begun += 1; }
static void forked(void) { pq_fork_count += 1; }

/* --- what the objects share ------------------------------------------------------------------- */

static const struct {
    const char *method;
    int has_value;
} events[] = {
#define EVENT(name, method, has_value) {method, has_value},
    PQ_EVENTS(EVENT)
#undef EVENT
};

static int answered(PyObject *answer) {
    int more = answer == NULL ? -1 : answer == Py_None ? 1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return more;
}

int pq_event_raise(PyObject *self, pq_event event, int64_t value) {
    const char *format = events[event].has_value ? "L" : NULL;
    return answered(PyObject_CallMethod(self, events[event].method, format, (long long)value));
}

int pq_event_defer(PyObject *self, pq_event event, int64_t value) {
    return answered(
        PyObject_CallMethod(self, "_defer", "sL", events[event].method, (long long)value));
}

int64_t pq_clock_call(PyObject *clock) {
    PyObject *value = PyObject_CallNoArgs(clock);
    long long now = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return now;
}

/* What a function of `pagequeue.util.arguments` returns; NULL = raised. */
static PyObject *call_check(const char *check, PyObject *args) {
    PyObject *module = PyImport_ImportModule("pagequeue.util.arguments");
    PyObject *function = module == NULL ? NULL : PyObject_GetAttrString(module, check);
    PyObject *taken = function == NULL || args == NULL ? NULL : PyObject_CallObject(function, args);
    Py_XDECREF(function);
    Py_XDECREF(module);
    return taken;
}

int pq_check_argument(const char *check, const char *name, PyObject *value) {
    PyObject *args = Py_BuildValue("(sO)", name, value);
    PyObject *taken = call_check(check, args);
    Py_XDECREF(args);
    Py_XDECREF(taken);
    return taken == NULL ? -1 : 0;
}

void pq_refuse_argument(const char *check, const char *format, ...) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_OverflowError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
        return; /* the argument's own */
    }
    PyErr_Clear();
    va_list values;
    va_start(values, format);
    PyObject *args = Py_VaBuildValue(format, values);
    va_end(values);
    PyObject *taken = call_check(check, args);
    if (taken != NULL) { /* its class answers differently each time */
        PyErr_Format(PyExc_TypeError, "an argument is not the same twice: %R", args);
    }
    Py_XDECREF(taken);
    Py_XDECREF(args);
}

void pq_refuse_type(const char *format, ...) {
    PyObject *errors = PyImport_ImportModule("pagequeue.errors");
    PyObject *kind = errors == NULL ? NULL : PyObject_GetAttrString(errors, "InvalidType");
    if (kind != NULL) {
        va_list values;
        va_start(values, format);
        PyErr_FormatV(kind, format, values);
        va_end(values);
    }
    Py_XDECREF(kind);
    Py_XDECREF(errors);
}

int64_t pq_timeout_ns(PyObject *seconds) {
    if (seconds == Py_None) {
        return -1;
    }
    double value = PyBool_Check(seconds) ? -1 : PyFloat_AsDouble(seconds);
    if (!(value >= 0)) {
        pq_refuse_argument("seconds", "(sO)", "timeout", seconds);
        return -2;
    }
    return value >= 9e9 ? -1 : (int64_t)(value * 1e9);
}

Py_ssize_t pq_count_of(const char *name, PyObject *count, Py_ssize_t most) {
    Py_ssize_t value =
        PyBool_Check(count) ? -1 : PyNumber_AsSsize_t(count, PyExc_OverflowError);
    if (value < 1 || value > most) {
        pq_refuse_argument("whole", "(sOin)", name, count, 1, most);
        return -1;
    }
    return value;
}

void pq_clear_to_none(PyObject **field) {
    PyObject *old = *field;
    Py_INCREF(Py_None);
    *field = Py_None;
    Py_XDECREF(old);
}

void pq_type_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

/* --- functions -------------------------------------------------------------------------------- */

static PyObject *core_crc32c(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    unsigned int before = 0;
    if (!PyArg_ParseTuple(args, "y*|I:crc32c", &data, &before)) {
        return NULL;
    }
    uint32_t sum = ~pq_crc_update(~before, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(sum);
}

static PyObject *core_frame_checksum(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *queue_id;
    Py_ssize_t id_bytes;
    Py_buffer payload;
    long long timestamp;
    unsigned long long sequence;
    unsigned int word;
    if (!PyArg_ParseTuple(args, "y#y*LKI:frame_checksum", &queue_id, &id_bytes, &payload,
                          &timestamp, &sequence, &word)) {
        return NULL;
    }
    uint32_t state = 0;
    if (id_bytes == PQ_QUEUE_ID_BYTES) {
        state = pq_crc_update(pq_queue_state((const uint8_t *)queue_id), payload.buf,
                              (size_t)payload.len);
    }
    PyBuffer_Release(&payload);
    if (id_bytes != PQ_QUEUE_ID_BYTES) {
        PyErr_Format(PyExc_ValueError, "a queue's id has %d bytes, not %zd", PQ_QUEUE_ID_BYTES,
                     id_bytes);
        return NULL;
    }
    return PyLong_FromUnsignedLong(pq_frame_checksum(state, timestamp, sequence, word));
}

static PyObject *core_crc_copy(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*:crc32c_copy", &data)) {
        return NULL;
    }
    PyObject *result = NULL, *copy = PyBytes_FromStringAndSize(NULL, data.len);
    if (copy != NULL) {
        uint32_t state =
            pq_crc_copy(PQ_CRC_START, PyBytes_AsString(copy), data.buf, (size_t)data.len);
        result = Py_BuildValue("(NI)", copy, (unsigned int)~state);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *core_crc_choose(PyObject *Py_UNUSED(module), PyObject *most) {
    long number = PyLong_AsLong(most);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (number < 0 || number > PQ_CRC_BEST) {
        PyErr_Format(PyExc_ValueError, "0 to %d, not %ld", PQ_CRC_BEST, number);
        return NULL;
    }
    pq_crc_choose((int)number);
    return PyUnicode_FromString(pq_crc_name());
}

static int meta_of(PyObject *args, const char *format, Region **meta) {
    return PyArg_ParseTuple(args, format, pq_region_type, meta) &&
           pq_region_check(*meta, PQ_WRITE_META_BYTES, 0, "write meta") == 0;
}

static PyObject *core_tail(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    if (!meta_of(args, "O!:tail", &meta)) {
        return NULL;
    }
    pq_tail tail;
    pq_tail_load(meta->base, &tail);
    if (!pq_region_intact(meta)) {
        return NULL;
    }
    return Py_BuildValue("(KKKKL)", (unsigned long long)tail.page_number,
                         (unsigned long long)tail.position, (unsigned long long)tail.count,
                         (unsigned long long)tail.first_sequence, (long long)tail.last_timestamp);
}

static PyObject *core_set_tail(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    unsigned long long number, position, count, first;
    long long last;
    if (!PyArg_ParseTuple(args, "O!(KKKKL):set_tail", pq_region_type, &meta, &number, &position,
                          &count, &first, &last) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    pq_tail tail = {number, position, count, first, last};
    pq_tail_store(meta->base, &tail);
    if (!pq_region_intact(meta)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *core_reset_lock(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    if (!meta_of(args, "O!:reset_lock", &meta) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    int error = pq_lock_reset(meta->base + PQ_WRITE_META_MUTEX);
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (!pq_region_intact(meta)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Reset a group's lock and end every lease: no process that made a claim can be alive. The next
 * handle finds that, and the messages wait by its rule. */
static PyObject *core_reset_group(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *file;
    unsigned int capacity;
    if (!PyArg_ParseTuple(args, "O!I:reset_group", pq_region_type, &file, &capacity) ||
        pq_group_file_check(file, capacity) < 0) {
        return NULL;
    }
    int error = pq_lock_reset(file->base + PQ_GROUP_META_MUTEX);
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pq_table table = {0};
    pq_table_init(&table, file->base, file->bytes, capacity);
    uint64_t place;
    pq_store_u64(file->base + PQ_GROUP_META_CHANGING, 1);
    switch (pq_table_begin(&table)) {
    case PQ_CLAIM_DONE: break;
    case PQ_CLAIM_BEYOND:
        return PyErr_Format(PyExc_ValueError, "the group's table has parts that are not mapped");
    default: return PyErr_NoMemory();
    }
    pq_table_end_leases(&table, pq_clock_monotonic());
    pq_table_end(&table);
    if (!pq_region_intact(file)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(pq_table_next(&table, &place));
}

/* How long a message waits after so many failed deliveries, in ns. */
static PyObject *core_retry_delay(PyObject *Py_UNUSED(module), PyObject *args) {
    pq_retry retry = {0};
    double first, most;
    unsigned long long sequence;
    unsigned int deliveries;
    if (!PyArg_ParseTuple(args, "ddKI:retry_delay", &first, &most, &sequence, &deliveries)) {
        return NULL;
    }
    retry.first = (int64_t)(first * 1e9);
    retry.most = (int64_t)(most * 1e9);
    return PyLong_FromLongLong(pq_retry_delay(&retry, sequence, deliveries));
}

static PyObject *core_wake(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    if (!meta_of(args, "O!:wake", &meta) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    pq_wake(meta->base);
    Py_RETURN_NONE;
}

/* Return the doorbell's value, and with `announced` set the flag that somebody may be asleep. The
 * caller polls once more, then sleeps with that value: a message published after this call moves
 * it (I7). */
static PyObject *core_doorbell(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    int announced;
    if (!PyArg_ParseTuple(args, "O!p:doorbell", pq_region_type, &meta, &announced) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, announced, "write meta") < 0) {
        return NULL;
    }
    uint32_t doorbell = pq_doorbell(meta->base);
    if (announced) {
        pq_register(meta->base);
    }
    return pq_region_intact(meta) ? PyLong_FromUnsignedLong(doorbell) : NULL;
}

/* Sleep while a bell of the write meta has a value, but no longer than `ns`. */
static PyObject *sleep_on(PyObject *args, const char *format,
                          void (*sleep)(const uint8_t *, uint32_t, int64_t)) {
    Region *meta;
    unsigned int bell;
    long long ns;
    if (!PyArg_ParseTuple(args, format, pq_region_type, &meta, &bell, &ns) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 0, "write meta") < 0) {
        return NULL;
    }
    if (ns > 0 && pq_green_sleep != NULL) {
        if (pq_green_pause(pq_deadline(ns)) < 0) {
            return NULL;
        }
    } else if (ns > 0) {
        Py_BEGIN_ALLOW_THREADS
        sleep(meta->base, bell, ns);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* Wait by this callable, in seconds, because threads are greenlets; None = as the system does. */
static PyObject *core_sleep_by(PyObject *Py_UNUSED(module), PyObject *callable) {
    if (callable != Py_None && !PyCallable_Check(callable)) {
        PyErr_SetString(PyExc_TypeError, "a callable, or None");
        return NULL;
    }
    PyObject *before = pq_green_sleep;
    pq_green_sleep = callable == Py_None ? NULL : callable;
    Py_XINCREF(pq_green_sleep);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *core_await_doorbell(PyObject *Py_UNUSED(module), PyObject *args) {
    return sleep_on(args, "O!IL:await_doorbell", pq_sleep);
}

/* Announce that a sender waits until all below a sequence is done; return the bell to sleep with. */
static PyObject *core_room_bell(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    unsigned long long sequence;
    if (!PyArg_ParseTuple(args, "O!K:room_bell", pq_region_type, &meta, &sequence) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    uint32_t bell = pq_room_prepare(meta->base, sequence);
    return pq_region_intact(meta) ? PyLong_FromUnsignedLong(bell) : NULL;
}

static PyObject *core_await_room(PyObject *Py_UNUSED(module), PyObject *args) {
    return sleep_on(args, "O!IL:await_room", pq_room_sleep);
}

/* Wake the senders for which all below a sequence had to be done; it was stored before. */
static PyObject *core_made_room(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    unsigned long long sequence;
    if (!PyArg_ParseTuple(args, "O!K:made_room", pq_region_type, &meta, &sequence) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    pq_room_wake(meta->base, sequence);
    Py_RETURN_NONE;
}

/* Whether to try the flush lock now; not if the sequence is durable or the latch changed. */
static PyObject *core_await_turn(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    unsigned long long sequence;
    long long ns;
    if (!PyArg_ParseTuple(args, "O!KL:await_turn", pq_region_type, &meta, &sequence, &ns) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    pq_turn_result result = pq_turn_wait(meta->base, sequence, 0, 1);
    if (result == PQ_TURN_LATE && ns > 0) {
        Py_BEGIN_ALLOW_THREADS
        result = pq_turn_wait(meta->base, sequence, ns, 1);
        Py_END_ALLOW_THREADS
    }
    return PyBool_FromLong(result == PQ_TURN_YOURS || result == PQ_TURN_LATE);
}

static PyObject *core_end_turn(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    unsigned long long count;
    long long ns;
    if (!PyArg_ParseTuple(args, "O!KL:end_turn", pq_region_type, &meta, &count, &ns) ||
        pq_region_check(meta, PQ_WRITE_META_BYTES, 1, "write meta") < 0) {
        return NULL;
    }
    int woken;
    Py_BEGIN_ALLOW_THREADS /* those who are woken want the GIL */
    woken = pq_turn_end(meta->base, count, ns);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(woken);
}

static PyObject *core_wake_turn(PyObject *Py_UNUSED(module), PyObject *args) {
    Region *meta;
    if (!meta_of(args, "O!:wake_turn", &meta)) {
        return NULL;
    }
    pq_wake_turn(meta->base);
    Py_RETURN_NONE;
}

static PyObject *core_monotonic(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLongLong(pq_clock_monotonic());
}

static PyObject *core_boottime(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLongLong(pq_clock_boot());
}

static PyObject *core_realtime(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLongLong(pq_clock_realtime());
}

static PyObject *core_set_clock_offsets(PyObject *Py_UNUSED(module), PyObject *args) {
    long long monotonic, boot;
    if (!PyArg_ParseTuple(args, "LL:set_clock_offsets", &monotonic, &boot)) {
        return NULL;
    }
    pq_clock_set_offsets(monotonic, boot);
    Py_RETURN_NONE;
}

/* A process id does not tell a child from its parent: in a PID namespace of its own the child can
 * have the same one. */
static PyObject *core_fork_count(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyLong_FromUnsignedLong(pq_fork_count);
}

static PyObject *core_mount_id(PyObject *Py_UNUSED(module), PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i:mount_id", &fd)) {
        return NULL;
    }
    unsigned long long id = 0;
#if defined(__linux__) && defined(SYS_statx)
    struct statx found;
    memset(&found, 0, sizeof found);
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_MNT_ID_UNIQUE, &found) == 0 &&
        (found.stx_mask & STATX_MNT_ID_UNIQUE)) {
        id = ((const unsigned long long *)&found)[18]; /* stx_mnt_id, at byte 144 */
    }
#endif
    return PyLong_FromUnsignedLongLong(id);
}

/* (device, inode) of the file that has a name in a directory, links not followed; None: none has. */
static PyObject *core_identity(PyObject *Py_UNUSED(module), PyObject *args) {
    int fd, error;
    PyObject *name;
    struct stat found;
    if (!PyArg_ParseTuple(args, "iO&:identity", &fd, PyUnicode_FSConverter, &name)) {
        return NULL;
    }
    /* With the GIL: it is a microsecond, and a thread beside a busy one would wait 5 ms for the GIL
     * after each of these calls. */
    error = fstatat(fd, PyBytes_AsString(name), &found, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
    Py_DECREF(name);
    if (error == ENOENT) {
        Py_RETURN_NONE;
    }
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("(KK)", (unsigned long long)found.st_dev,
                         (unsigned long long)found.st_ino);
}

static PyObject *core_file_system_type(PyObject *Py_UNUSED(module), PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i:file_system_type", &fd)) {
        return NULL;
    }
    unsigned long type = 0;
#if defined(__linux__)
    struct statfs found;
    int result;
    Py_BEGIN_ALLOW_THREADS /* a server that is gone can keep this waiting */
    result = fstatfs(fd, &found);
    Py_END_ALLOW_THREADS
    if (result == 0) {
        type = (unsigned long)found.f_type & 0xFFFFFFFFul;
    }
#endif
    return PyLong_FromUnsignedLong(type);
}

#ifdef PAGEQUEUE_KILL_POINTS
static PyObject *core_set_kill_point(PyObject *Py_UNUSED(module), PyObject *args) {
    int number;
    long pass;
    if (!PyArg_ParseTuple(args, "il:set_kill_point", &number, &pass)) {
        return NULL;
    }
    pq_kill_set(number, pass);
    Py_RETURN_NONE;
}
#endif

static PyMethodDef functions[] = {
    {"crc32c", core_crc32c, METH_VARARGS, "Return the CRC-32C of bytes, continuing from another."},
    {"frame_checksum", core_frame_checksum, METH_VARARGS, "Return what a frame's checksum is."},
    {"crc32c_copy", core_crc_copy, METH_VARARGS,
     "Return a copy of bytes and its CRC-32C, made in one pass."},
    {"choose_crc", core_crc_choose, METH_O,
     "Use the best form of CRC-32C up to this number, 0 to CRC_BEST; return its name."},
    {"tail", core_tail, METH_VARARGS, "Return the writers' place."},
    {"set_tail", core_set_tail, METH_VARARGS, "Set the writers' place; only when exclusive."},
    {"reset_lock", core_reset_lock, METH_VARARGS, "Reset the writers' lock; only when exclusive."},
    {"reset_group", core_reset_group, METH_VARARGS,
     "Reset a group's lock, end its leases; only when exclusive. Return its next sequence."},
    {"retry_delay", core_retry_delay, METH_VARARGS,
     "Return how long a message waits after so many failed deliveries, in ns."},
    {"wake", core_wake, METH_VARARGS, "Wake everyone who sleeps on the doorbell."},
    {"room_bell", core_room_bell, METH_VARARGS, "Announce a sender that waits for room."},
    {"await_room", core_await_room, METH_VARARGS, "Sleep until there may be room."},
    {"made_room", core_made_room, METH_VARARGS, "Wake the senders that waited for a sequence."},
    {"await_turn", core_await_turn, METH_VARARGS, "Sleep until a sequence is durable, or flush."},
    {"end_turn", core_end_turn, METH_VARARGS, "End a turn to flush; return how many were asleep."},
    {"wake_turn", core_wake_turn, METH_VARARGS, "Wake everyone who waits for a flush."},
    {"monotonic", core_monotonic, METH_NOARGS, "Return the clock of leases, in ns."},
    {"boottime", core_boottime, METH_NOARGS, "Return the time since the host was started, in ns."},
    {"realtime", core_realtime, METH_NOARGS, "Return the system's clock, ns since 1970."},
    {"set_clock_offsets", core_set_clock_offsets, METH_VARARGS,
     "Set how far this time namespace's clocks are ahead of the host's, in ns."},
    {"fork_count", core_fork_count, METH_NOARGS, "Return how many forks led to this process."},
    {"doorbell", core_doorbell, METH_VARARGS, "Return the doorbell; announce a sleeper."},
    {"sleep_by", core_sleep_by, METH_O, "Wait by a callable where threads are greenlets."},
    {"await_doorbell", core_await_doorbell, METH_VARARGS, "Sleep until the doorbell moves."},
    {"mount_id", core_mount_id, METH_VARARGS, "Return a mount's unique id, 0 when not known."},
    {"identity", core_identity, METH_VARARGS,
     "Return device and inode of the file that has a name in a directory; None: none has."},
    {"file_system_type", core_file_system_type, METH_VARARGS,
     "Return the magic number of a file system, 0 when not known."},
    {"new_bytes", pq_core_new_bytes, METH_VARARGS, "Return bytes to be filled by copy_checked."},
    {"copy_checked", pq_core_copy_checked, METH_VARARGS,
     "Copy a block of a fragment; return whether its checksum is right."},
    {"scan", pq_core_scan, METH_VARARGS, "Walk the frames of a page that validate."},
    {"find", pq_core_find, METH_VARARGS, "Find the first frame of a page that is not older."},
    {"locate", pq_core_locate, METH_VARARGS, "Find a frame of a page by its ordinal."},
    {"find_many", pq_core_find_many, METH_VARARGS,
     "Find how many frames of a page are not later than each of some timestamps."},
    {"times", pq_core_times, METH_VARARGS, "Return the timestamps that a page's index has."},
    {"payloads", pq_core_payloads, METH_VARARGS, "Return copies of payloads of a page."},
    {"views", pq_core_views, METH_VARARGS, "Return Arrow's views of payloads of a page."},
    {"pack", pq_core_pack, METH_VARARGS, "Copy payloads of a page one after the other."},
    {"payload", pq_core_payload, METH_O, "Return the bytes that sending an object would send."},
    {"measured", pq_core_measured, METH_VARARGS,
     "Return a list's payloads as a tuple, the changeable ones copied up to a size, and their sizes "
     "as int64."},
    {"check_intact", pq_core_check_intact, METH_VARARGS,
     "Raise if payloads of a page were truncated away."},
    {"assign_sequences", pq_core_assign_sequences, METH_VARARGS,
     "Give the frames of a page other sequences."},
    {"reserve", pq_core_reserve, METH_VARARGS, "Reserve blocks of a file for a range."},
    {"release", pq_core_release, METH_VARARGS, "Give the blocks of a range of a file back."},
    {"resync", pq_core_resync, METH_VARARGS, "Find the next frame after damage."},
    {"peek", pq_core_peek, METH_VARARGS, "Return what is at a position."},
#ifdef PAGEQUEUE_KILL_POINTS
    {"set_kill_point", core_set_kill_point, METH_VARARGS, "Die at a step, the n-th time."},
#endif
    {NULL, NULL, 0, NULL},
};

static const struct {
    const char *name;
    long value;
} constants[] = {
#define OURS(name) {#name, PQ_##name}
    OURS(READ_FRAME), OURS(READ_NOTHING), OURS(READ_END), OURS(READ_BAD_LENGTH),
    OURS(READ_BAD_CHECKSUM), OURS(READ_BAD_TIME), OURS(APPEND_DONE), OURS(APPEND_MOVED),
    OURS(APPEND_FULL), OURS(APPEND_FAILED), OURS(APPEND_DAMAGED), OURS(APPEND_LOST),
    OURS(INDEX_NONE), OURS(INDEX_WRITE), OURS(INDEX_CHECK), OURS(CRC_BEST),
    OURS(FILE_PLAIN), OURS(FILE_COMPRESSED), OURS(FILE_MISSING), OURS(FILE_BROKEN),
    OURS(PAGE_SEALED), OURS(PAGE_OPEN), OURS(PAGE_TO_MAKE), OURS(PAGE_DROPPED),
    OURS(MISSING), OURS(BAD_HEADER), OURS(NOT_BEGUN), OURS(BAD_HEAD), OURS(BAD_FIRST),
    OURS(BAD_FRAME), OURS(WALK_TAIL), OURS(WALK_RUNS),
#undef OURS
};

static const struct {
    const char *name;
    PyTypeObject **type;
    PyTypeObject *(*make)(void);
} types[] = {
    {"Clock", &pq_clock_type, pq_clock_make},
    {"Descriptor", &pq_descriptor_type, pq_descriptor_make},
    {"Judge", &pq_judge_type, pq_judge_make},
    {"Region", &pq_region_type, pq_region_make},
    {"Message", &pq_message_type, pq_message_make},
    {"Writer", &pq_writer_type, pq_writer_make},
    {"Reader", &pq_reader_type, pq_reader_make},
    {"Claims", &pq_claims_type, pq_claims_make},
    {"Claim", &pq_claim_type, pq_claim_make},
};

static int add_all(PyObject *module) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        PyTypeObject *type = *types[i].type = types[i].make();
        if (type == NULL || PyModule_AddObjectRef(module, types[i].name, (PyObject *)type) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    pq_never_block = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (pq_never_block == NULL || PyModule_AddObjectRef(module, "NEVER_BLOCK", pq_never_block) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "LOCK_ABI", (long)pq_lock_abi()) < 0
               ? -1
               : PyModule_AddIntConstant(module, "LOCK_NEEDS_FD", pq_lock_needs_fd());
}

/* A module without Py_mod_gil: a free-threaded CPython switches the GIL on when it imports this one,
 * and warns. What lies in mapped files needs no GIL, because other processes change it at the same
 * time: there is the protocol of atomics and robust locks. These are of this process, and the GIL is
 * their only lock:
 *   - `busy` of a Reader is tested and set, so that one thread reads at a time;
 *   - `inside` of a Writer and of a Claims is counted, so that the last one to leave closes the lock
 *     (`pq_group_leave` calls Python once);
 *   - `kept_count` and its messages, and the same of claims: freed objects kept for the next ones;
 *   - a handle's references to its regions, which another thread's call replaces (the next page), and
 *     a Writer's page that is ready, which one thread takes to roll into it;
 *   - table and count of a Descriptor's operations, which realloc moves.
 * The first two need a compare-and-swap, the lists one for each thread, the last two a critical
 * section of the object. */
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "pagequeue._core",
    .m_doc = "The compiled core: maps, frames, the writers' lock, the sleeping wait.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__core(void) {
    pq_crc_choose(PQ_CRC_BEST);
    if (pq_message_prepare() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    if (add_all(module) < 0) {
        Py_DECREF((PyObject *)module);
        return NULL;
    }
    pthread_atfork(forking, NULL, forked);
    return module;
}
