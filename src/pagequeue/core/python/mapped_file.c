/* Region: one mapped file, or the beginning of one.
 *
 * It is unmapped when the last reference goes, without the GIL, because unmapping a page takes
 * milliseconds. The buffer it exports is read-only and holds a reference, so that a view keeps the
 * bytes mapped.
 *
 * Truncating a file under its map raises no signal (os/sigbus.c): all reads and writes here check
 * afterwards whether the bytes were there, and raise the error that `on_lost` makes.
 */
#include "python/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif
#include <unistd.h>

#define PQ_NO_FILE (-1) /* instead of a descriptor: memory of this process alone */
#define FILL_BYTES (256u << 10)

/* Without a map yet; the guard of a lent map is its owner's. */
static Region *region_start(PyTypeObject *type, uint64_t bytes, int writable, pq_guard *guard) {
    Region *self = PyObject_GC_New(Region, type);
    if (self == NULL) {
        return NULL;
    }
    self->base = NULL;
    self->bytes = self->whole = bytes;
    self->ahead = 0;
    self->queue_state = 0;
    self->has_queue = 0;
    self->is_used = 0;
    self->writable = (char)writable;
    self->fd = -1;
    self->worn = 0;
    self->lent = self->owner = NULL;
    self->fork_count = self->forks_begun = 0;
    Py_INCREF(Py_None);
    self->on_lost = Py_None;
    Py_INCREF(Py_None);
    self->filler = Py_None;
    self->guard = guard != NULL ? guard : pq_guard_take();
    if (self->guard == NULL) {
        PyErr_NoMemory();
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    PyObject_GC_Track(self);
    return self;
}

static void region_begin(Region *self, void *base) {
    self->base = base;
    pq_guard_begin(self->guard, base, self->bytes,
                   self->writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd", "length", "writable", "kept", "whole", NULL};
    int fd, writable, kept = 0;
    unsigned long long bytes, whole = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iKp|pK:Region", names, &fd, &bytes, &writable,
                                     &kept, &whole)) {
        return NULL;
    }
    if (whole > bytes) {
        PyErr_Format(PyExc_ValueError, "a region of %llu bytes has not %llu", bytes, whole);
        return NULL;
    }
    if (bytes == 0 || bytes > PQ_PAGE_BYTES_MAX) {
        PyErr_Format(PyExc_ValueError, "a region has 1 to %llu bytes, not %llu",
                     (unsigned long long)PQ_PAGE_BYTES_MAX, bytes);
        return NULL;
    }
    Region *self = region_start(type, bytes, writable, NULL);
    if (self == NULL) {
        return NULL;
    }
    self->whole = whole != 0 ? whole : bytes;
    void *base;
    int flags = fd == PQ_NO_FILE ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    Py_BEGIN_ALLOW_THREADS
    base = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, flags, fd, 0);
    Py_END_ALLOW_THREADS
    if (base == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    region_begin(self, base);
    if (kept && (self->fd = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* What a file is made of: `data`, then zeros; the first `filled` bytes are written and not only
 * reserved, so that their memory is there: by large writes it is had at half the cost of page
 * faults. */
typedef struct {
    Py_buffer data;
    uint64_t bytes, filled;
    uint64_t reserved; /* so much has blocks; the rest is reserved when it is needed */
    long user, group; /* of the file; -1 = as it is made */
    int mode, synced;
    int held;  /* shared lock on the file for as long as the map lives */
    int again; /* a retired file under the temporary name is used */
    int kept;  /* the open file stays open with the map, so that it can be renewed */
} content;

static int write_at(int fd, const void *data, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t step = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));
        if (step >= 0) {
            done += (size_t)step;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

#if defined(__linux__)
/* Not `posix_fallocate`: where the system cannot, that writes, beside others who do. Without
 * KEEP_SIZE a page that was replaced meanwhile by a shorter file would grow. */
static int reserve_range(int fd, uint64_t at, uint64_t bytes) {
    while (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes) != 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}
#else
static int reserve_range(int fd, uint64_t at, uint64_t bytes) {
    (void)fd, (void)at, (void)bytes;
    return EOPNOTSUPP;
}
#endif

/* Its beginning, and its last OS page, which tells whether it was truncated. */
static int reserve_part(int fd, const content *wanted) {
    uint64_t last = (uint64_t)sysconf(_SC_PAGESIZE);
    while (ftruncate(fd, (off_t)wanted->bytes) != 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    int error = reserve_range(fd, 0, wanted->reserved);
    return error != 0 ? error : reserve_range(fd, wanted->bytes - last, last);
}

/* Blocks for all that is wanted: no room is an error here, never a signal later. */
static int reserve(int fd, const content *wanted) {
    uint64_t from = 0;
    if (wanted->reserved < wanted->bytes) {
        int result = reserve_part(fd, wanted);
        if (result != EOPNOTSUPP && result != ENOSYS) {
            return result;
        }
    }
#if defined(__linux__)
    struct statfs system;
    if (fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC) {
        from = wanted->filled; /* there reserving costs as much as writing */
    }
#endif
    int error = 0;
    while (from < wanted->bytes) {
        error = posix_fallocate(fd, (off_t)from, (off_t)(wanted->bytes - from));
        if (error != EINTR) {
            break;
        }
    }
    return error;
}

static int fill(int fd, const content *wanted) {
    static const uint8_t zeros[FILL_BYTES];
    int error = 0;
    for (uint64_t at = 0; error == 0 && at < wanted->filled; at += FILL_BYTES) {
        uint64_t step = wanted->filled - at < FILL_BYTES ? wanted->filled - at : FILL_BYTES;
        error = write_at(fd, zeros, (size_t)step, at);
    }
    if (error == 0 && wanted->held && wanted->filled < wanted->bytes) {
        /* Writers look at a page's last byte, and a fault reads as much as the disk reads ahead. */
        error = write_at(fd, zeros, 1, wanted->bytes - 1);
    }
    return error != 0 ? error : write_at(fd, wanted->data.buf, (size_t)wanted->data.len, 0);
}

/* A descriptor of the same file that is not the number of a standard stream: where these are
 * closed, a later print would write into the file. -1 = failed, with errno. */
static int above_standard(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return above;
}

/* The lock belongs to the open file, which the map keeps after `close`: it goes with the last map,
 * or with the process, and a child of a fork has it too. */
static int hold(int fd) {
    if (flock(fd, LOCK_SH | LOCK_NB) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) {
        return 0; /* without locks no process can lock it exclusively, and no file is reused */
    }
    return errno;
}

#if defined(__linux__)
static int punch(int fd, uint64_t at, uint64_t bytes) {
    int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return fallocate(fd, how, (off_t)at, (off_t)bytes) == 0 ? 0 : errno;
}
#else
static int punch(int fd, uint64_t at, uint64_t bytes) {
    (void)fd, (void)at, (void)bytes;
    return EOPNOTSUPP;
}
#endif

typedef struct {
    int folder;
    const char *name;
    unsigned long long device, inode, at, bytes;
} file_range;

/* Of the file that has a name, if that is the expected one, and still is when its lock is shared: a
 * page's file cannot be used again from then on (I13). */
static int over_file(const file_range *range, int (*apply)(int, uint64_t, uint64_t)) {
    struct stat named, own;
    int fd = above_standard(
        openat(range->folder, range->name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd < 0) {
        return errno;
    }
    int error = hold(fd);
    if (error == 0 && (fstatat(range->folder, range->name, &named, AT_SYMLINK_NOFOLLOW) != 0 ||
                       fstat(fd, &own) != 0)) {
        error = errno;
    }
    if (error == 0 && (named.st_dev != range->device || named.st_ino != range->inode ||
                       own.st_dev != range->device || own.st_ino != range->inode)) {
        error = ENOENT;
    }
    error = error != 0 ? error : apply(fd, range->at, range->bytes);
    close(fd);
    return error;
}

/* All in one call: see `region_make`. */
static PyObject *core_over_file(PyObject *args, int (*apply)(int, uint64_t, uint64_t)) {
    int error;
    file_range range;
    if (!PyArg_ParseTuple(args, "isKKKK", &range.folder, &range.name, &range.device, &range.inode,
                          &range.at, &range.bytes)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    error = over_file(&range, apply);
    Py_END_ALLOW_THREADS
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

PyObject *pq_core_reserve(PyObject *Py_UNUSED(module), PyObject *args) {
    return core_over_file(args, reserve_range);
}

/* The file keeps its size, and reads as zeros there. */
PyObject *pq_core_release(PyObject *Py_UNUSED(module), PyObject *args) {
    return core_over_file(args, punch);
}

#if defined(__linux__) && defined(MADV_POPULATE_WRITE)
/* Whether nearly all of it is in memory: a file that is first read from the disk costs more than a
 * new one. */
static int is_warm(void *base, uint64_t bytes) {
    size_t step = (size_t)sysconf(_SC_PAGESIZE), count = (size_t)bytes / step, there = 0;
    unsigned char *found = malloc(count + 1);
    if (found != NULL && mincore(base, (size_t)bytes, found) == 0) {
        for (size_t i = 0; i < count; i++) {
            there += found[i] & 1u;
        }
    }
    free(found);
    return there >= count - count / 8;
}

static int belongs_to(const content *wanted, const struct stat *status) {
    uid_t user = wanted->user < 0 ? geteuid() : (uid_t)wanted->user;
    return status->st_uid == user &&
           (wanted->group < 0 || status->st_gid == (gid_t)wanted->group);
}

/* A retired file, zeroed and with its new header, under its new name: U2 to U5 of FORMAT.md (I13).
 * Returns an errno; then the file still has its temporary name, and is useless. */
static int use_again(int folder, const char *temporary, const char *name, const content *wanted,
                     void **base) {
    struct stat status;
    int fd = above_standard(
        openat(folder, temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd < 0) {
        return errno;
    }
    int error = fstat(fd, &status) == 0 ? 0 : errno;
    if (error == 0 &&
        (!S_ISREG(status.st_mode) || status.st_nlink != 1 || !belongs_to(wanted, &status) ||
         (status.st_mode & 07777) != (mode_t)wanted->mode ||
         (uint64_t)status.st_size != wanted->bytes ||
         (uint64_t)status.st_blocks * 512 < wanted->bytes)) {
        error = ENOTSUP;
    }
    /* Exclusively: no process has it open or mapped. None will, because its name is gone. */
    if (error == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        error = errno;
    }
    if (error == 0) {
        *base = mmap(NULL, (size_t)wanted->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = *base == MAP_FAILED ? errno : 0;
    }
    if (error == 0) {
        if (!is_warm(*base, wanted->bytes)) {
            error = ENOTSUP;
        } else if (madvise(*base, (size_t)wanted->bytes, MADV_POPULATE_WRITE) != 0) {
            error = errno;
        }
        if (error == 0) {
            memset(*base, 0, (size_t)wanted->bytes);
            memcpy(*base, wanted->data.buf, (size_t)wanted->data.len);
            /* The old header must not come back under the new name. */
            error = msync(*base, (size_t)sysconf(_SC_PAGESIZE), MS_SYNC) == 0 ? 0 : errno;
        }
        if (error == 0) {
            error = hold(fd);
        }
        if (error == 0 && renameat(folder, temporary, folder, name) != 0) {
            error = errno;
        }
        if (error != 0) {
            munmap(*base, (size_t)wanted->bytes);
        }
    }
    close(fd);
    return error;
}
#else
static int use_again(int folder, const char *temporary, const char *name, const content *wanted,
                     void **base) {
    (void)folder, (void)temporary, (void)name, (void)wanted, (void)base;
    return ENOTSUP;
}
#endif

/* Temporary name, blocks, content, map, rename. Returns an errno; then no file remains. */
static int make_file(int folder, const char *temporary, const char *name, const content *wanted,
                     void **base, int *kept) {
    int fd = above_standard(openat(
        folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, wanted->mode));
    if (fd < 0) {
        return errno;
    }
    int error = 0;
    if (wanted->user >= 0 || wanted->group >= 0) {
        error = fchown(fd, (uid_t)wanted->user, (gid_t)wanted->group) == 0 ? 0 : errno;
    }
    if (error == 0) {
        error = fchmod(fd, (mode_t)wanted->mode) == 0 ? 0 : errno; /* whatever the umask */
    }
    if (error == 0) {
        error = reserve(fd, wanted);
    }
    if (error == 0) {
        error = fill(fd, wanted);
    }
    if (error == 0 && wanted->synced && fsync(fd) != 0) {
        error = errno;
    }
    if (error == 0 && wanted->held) {
        error = hold(fd);
    }
    if (error == 0) {
        *base = mmap(NULL, (size_t)wanted->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = *base == MAP_FAILED ? errno : 0;
        if (error == 0 && renameat(folder, temporary, folder, name) != 0) {
            error = errno;
            munmap(*base, (size_t)wanted->bytes);
        }
    }
    if (error == 0 && wanted->kept) {
        *kept = fd;
    } else {
        close(fd);
    }
    if (error != 0) {
        unlinkat(folder, temporary, 0);
    }
    return error;
}

typedef struct {
    int folder;
    const char *page, *temporary, *next_page, *index, *next_index; /* names */
    Py_buffer header;    /* of the next page */
    uint64_t index_used; /* bytes of the index that have records */
} renewal;

/* A retired page of a ring becomes the next one and stays mapped: X1 to X5 of FORMAT.md (I13). The
 * lock is raised on the open file that this map has it on, so it is had only if no other open file
 * of the page is left in any process: no reader has it mapped, and no view of it is held. Its index
 * is mapped only by those that have the page mapped. Returns an errno; then the page has its
 * temporary name, or its old one. */
static int renew(Region *self, Region *index, const renewal *how) {
    int folder = how->folder;
    struct stat mine, named;
    if (fstat(self->fd, &mine) != 0 ||
        fstatat(folder, how->page, &named, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno;
    }
    if (mine.st_ino != named.st_ino || mine.st_dev != named.st_dev || mine.st_nlink != 1 ||
        (uint64_t)mine.st_size != self->bytes) {
        return ENOTSUP;
    }
    if (renameat(folder, how->page, folder, how->temporary) != 0) { /* X1 */
        return errno;
    }
    /* X2. Not converted atomically: when it fails the shared lock is gone too. */
    if (flock(self->fd, LOCK_EX | LOCK_NB) != 0) {
        return errno;
    }
    uint64_t used = how->index_used < index->bytes ? how->index_used : index->bytes;
    memset(index->base, 0, (size_t)used); /* X3 */
    if (renameat(folder, how->index, folder, how->next_index) != 0) {
        return errno;
    }
    uint8_t *base = self->base; /* X4 */
    memset(base, 0, PQ_PAGE_HEADER_BYTES + PQ_FRAME_BYTES);
    memcpy(base, how->header.buf, (size_t)how->header.len);
    if (flock(self->fd, LOCK_SH | LOCK_NB) != 0 ||
        renameat(folder, how->temporary, folder, how->next_page) != 0) { /* X5 */
        return errno;
    }
    return 0;
}

static PyObject *region_renew(Region *self, PyObject *args) {
    int error;
    Region *index;
    unsigned long long used;
    renewal how;
    if (!PyArg_ParseTuple(args, "iO!sssssy*K:renew", &how.folder, pq_region_type, &index,
                          &how.page, &how.temporary, &how.next_page, &how.index,
                          &how.next_index, &how.header, &used)) {
        return NULL;
    }
    how.index_used = used;
    if (self->fd < 0 || !self->writable || !index->writable || self->bytes < PQ_PAGE_BYTES_MIN ||
        how.header.len != PQ_PAGE_HEADER_BYTES) {
        PyBuffer_Release(&how.header);
        PyErr_SetString(PyExc_ValueError, "only a page that was made to be renewed can be");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    error = renew(self, index, &how);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&how.header);
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The file of a page of a ring is used again and again, and a reader keeps it mapped, without its
 * lock, while it reads others. To read a page it borrows the map: the lock is shared first, and then
 * the file must have the page's name, as when it is opened (I13). What was lent is a Region of its
 * own, to which all views refer; the lock goes when it goes. */

/* Whether the file has this name, and is as it was when it was mapped. */
static int has_name(const Region *self, int folder, const char *name) {
    struct stat mine, named;
    return fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstat(self->fd, &mine) == 0 && mine.st_ino == named.st_ino &&
           mine.st_dev == named.st_dev && mine.st_nlink == 1 &&
           (uint64_t)mine.st_size == self->bytes;
}

static void give_back(Region *owner) {
    owner->lent = NULL;
    if (owner->fork_count != pq_fork_count) {
        return; /* the lock is the parent's too */
    }
    if (owner->forks_begun != pq_forks_begun) {
        owner->worn = 1;
        return;
    }
    flock(owner->fd, LOCK_UN);
}

static PyObject *region_lend(Region *self, PyObject *args) {
    int folder;
    const char *name;
    if (!PyArg_ParseTuple(args, "is:lend", &folder, &name)) {
        return NULL;
    }
    if (self->fd < 0 || self->writable) {
        PyErr_SetString(PyExc_ValueError, "only a page that was mapped to be lent can be");
        return NULL;
    }
    if (self->worn || pq_region_lost(self)) {
        Py_RETURN_NONE;
    }
    /* First, because making an object can run finalizers and other threads, which may lend it. */
    Region *lent = region_start(Py_TYPE((PyObject *)self), self->bytes, 0, self->guard);
    if (lent == NULL) {
        return NULL;
    }
    if (self->lent != NULL || self->worn) {
        lent->guard = NULL;
        Py_DECREF((PyObject *)lent);
        if (self->worn || !has_name(self, folder, name)) {
            Py_RETURN_NONE;
        }
        Py_INCREF((PyObject *)self->lent); /* the lock is had: another reader here uses it */
        return (PyObject *)self->lent;
    }
    lent->base = self->base;
    lent->queue_state = self->queue_state;
    lent->has_queue = self->has_queue;
    Py_INCREF((PyObject *)self);
    lent->owner = self;
    self->lent = lent;
    self->fork_count = pq_fork_count;
    self->forks_begun = pq_forks_begun;
    int error = hold(self->fd);
    if (error != 0 || !has_name(self, folder, name)) {
        Py_DECREF((PyObject *)lent); /* gives it back */
        Py_RETURN_NONE;
    }
    return (PyObject *)lent;
}

/* All of it in one call, because a thread that shares the interpreter with a busy producer waits
 * 5 ms for the GIL after each system call: page by page that was slower than filling a page. */
static PyObject *region_make(PyTypeObject *type, PyObject *args) {
    int folder, error;
    const char *temporary, *name;
    unsigned long long bytes, filled, reserved;
    content wanted;
    void *base = NULL;
    int kept = -1;
    if (!PyArg_ParseTuple(args, "issy*KKKlliiiii:make", &folder, &temporary, &name, &wanted.data,
                          &bytes, &reserved, &filled, &wanted.user, &wanted.group, &wanted.mode,
                          &wanted.synced, &wanted.held, &wanted.again, &wanted.kept)) {
        return NULL;
    }
    wanted.bytes = bytes;
    wanted.filled = filled;
    wanted.reserved = reserved;
    Region *self = NULL;
    if (bytes == 0 || bytes > PQ_PAGE_BYTES_MAX || (uint64_t)wanted.data.len > bytes ||
        filled > reserved || reserved > bytes || (uint64_t)wanted.data.len > reserved) {
        PyErr_SetString(PyExc_ValueError, "the content must fit into the file");
    } else {
        self = region_start(type, bytes, 1, NULL);
    }
    if (self != NULL) {
        Py_BEGIN_ALLOW_THREADS
        error = wanted.again ? use_again(folder, temporary, name, &wanted, &base)
                             : make_file(folder, temporary, name, &wanted, &base, &kept);
        Py_END_ALLOW_THREADS
        if (error != 0) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            Py_DECREF((PyObject *)self);
            self = NULL;
        } else {
            region_begin(self, base);
            self->fd = kept;
        }
    }
    PyBuffer_Release(&wanted.data);
    return (PyObject *)self;
}

static int region_traverse(Region *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->owner);
    Py_VISIT(self->on_lost);
    Py_VISIT(self->filler);
    return 0;
}

static int region_clear(Region *self) {
    pq_clear_to_none(&self->on_lost);
    pq_clear_to_none(&self->filler);
    return 0;
}

static void region_dealloc(Region *self) {
    PyObject_GC_UnTrack(self);
    if (self->owner != NULL) {
        give_back(self->owner);
        Py_DECREF((PyObject *)self->owner);
        self->guard = NULL;
        self->base = NULL;
    }
    if (self->guard != NULL) {
        pq_guard_put(self->guard);
    }
    if (self->base != NULL) {
        void *base = self->base;
        size_t bytes = (size_t)self->bytes;
        Py_BEGIN_ALLOW_THREADS
        munmap(base, bytes);
        Py_END_ALLOW_THREADS
    }
    if (self->fd >= 0) {
        close(self->fd);
    }
    Py_XDECREF(self->on_lost);
    Py_XDECREF(self->filler);
    pq_type_free((PyObject *)self);
}

static int region_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Region *region = (Region *)self;
    return PyBuffer_FillInfo(view, self, region->base, (Py_ssize_t)region->bytes, 1, flags);
}

static Py_ssize_t region_length(PyObject *self) { return (Py_ssize_t)((Region *)self)->bytes; }

int pq_region_check(Region *region, uint64_t bytes, int writable, const char *what) {
    if (region->bytes < bytes || (writable && !region->writable)) {
        PyErr_Format(PyExc_ValueError, "the %s must be %s%llu bytes or more, not %llu", what,
                     writable ? "writable and have " : "", (unsigned long long)bytes,
                     (unsigned long long)region->bytes);
        return -1;
    }
    return 0;
}

int pq_page_check(Region *page, int writable, const char *what) {
    if (!page->has_queue) {
        PyErr_Format(PyExc_ValueError, "the %s is of no queue: set its queue_id", what);
        return -1;
    }
    return pq_region_check(page, PQ_PAGE_BYTES_MIN, writable, what);
}

int pq_region_intact(Region *region) {
    uint64_t lost_at = pq_guard_lost(region->guard);
    if (lost_at == PQ_WHOLE) {
        return 1;
    }
    if (region->on_lost == NULL || region->on_lost == Py_None) {
        errno = EIO;
        PyErr_SetFromErrno(PyExc_OSError);
        return 0;
    }
    PyObject *error =
        PyObject_CallFunction(region->on_lost, "K", (unsigned long long)lost_at);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return 0;
}

static PyMethodDef region_methods[] = {
    {"make", (PyCFunction)region_make, METH_VARARGS | METH_CLASS,
     "Make a file of reserved blocks under a temporary name, rename it, and map it."},
    {"renew", (PyCFunction)region_renew, METH_VARARGS,
     "Make a retired page of a ring the next one, if no other process or thread has it open."},
    {"lend", (PyCFunction)region_lend, METH_VARARGS,
     "Return the map for reading a page of a ring; None: its file has not this name."},
    {"read", (PyCFunction)pq_region_read, METH_VARARGS, "Return a copy of some bytes."},
    {"write", (PyCFunction)pq_region_write, METH_VARARGS, "Copy bytes in; not for shared words."},
    {"load", (PyCFunction)pq_region_load, METH_VARARGS, "Load 8 bytes with acquire order."},
    {"store", (PyCFunction)pq_region_store, METH_VARARGS, "Store 8 bytes with release order."},
    {"load_half", (PyCFunction)pq_region_load_half, METH_VARARGS, "Load 4 bytes, acquire order."},
    {"store_half", (PyCFunction)pq_region_store_half, METH_VARARGS,
     "Store 4 bytes, release order."},
    {"swap_half", (PyCFunction)pq_region_swap_half, METH_VARARGS,
     "Store 4 bytes if a word is an expected one; whether it was."},
    {"zero", (PyCFunction)pq_region_zero, METH_VARARGS,
     "Zero to the end, or to a place; return the bytes changed."},
    {"populate", (PyCFunction)pq_region_populate, METH_VARARGS,
     "Take the page faults of a range now."},
    {"forget", (PyCFunction)pq_region_forget, METH_VARARGS,
     "Give the memory of a range back; it stays readable."},
    {"ahead", (PyCFunction)pq_region_ahead, METH_VARARGS,
     "Take the page faults of a range now, but those that were taken so before."},
    {"sync", (PyCFunction)pq_region_sync, METH_VARARGS, "Put a range on stable storage."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef region_members[] = {
    {"writable", T_BOOL, offsetof(Region, writable), READONLY, "Whether bytes can be written."},
    {"is_used", T_BOOL, offsetof(Region, is_used), 0,
     "Whether a seek found a message in it; what keeps the map clears this."},
    {"on_lost", T_OBJECT, offsetof(Region, on_lost), 0,
     "Called with a position when the file was truncated; returns the error to raise."},
    {"filler", T_OBJECT, offsetof(Region, filler), 0,
     "What fills it as it is read; None: all that will be here is."},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *region_is_renewable(Region *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(self->fd >= 0);
}

static PyObject *region_is_removed(Region *self, void *Py_UNUSED(unused)) {
    struct stat status;
    return PyBool_FromLong(self->fd < 0 || fstat(self->fd, &status) != 0 || status.st_nlink == 0);
}

static PyObject *region_broken(Region *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(pq_region_probe(self));
}

static PyObject *region_lost_at(Region *self, void *Py_UNUSED(unused)) {
    uint64_t lost_at = pq_guard_lost(self->guard);
    return PyLong_FromUnsignedLongLong(lost_at == PQ_WHOLE ? self->bytes : lost_at);
}

/* Once for each map, so that no frame costs anything. */
static int region_set_queue_id(Region *self, PyObject *value, void *Py_UNUSED(unused)) {
    char *queue_id;
    Py_ssize_t bytes;
    if (value == NULL || PyBytes_AsStringAndSize(value, &queue_id, &bytes) < 0) {
        if (value == NULL) {
            PyErr_SetString(PyExc_AttributeError, "a page stays one of its queue");
        }
        return -1;
    }
    if (bytes != PQ_QUEUE_ID_BYTES) {
        PyErr_Format(PyExc_ValueError, "a queue's id has %d bytes, not %zd", PQ_QUEUE_ID_BYTES,
                     bytes);
        return -1;
    }
    self->queue_state = pq_queue_state((const uint8_t *)queue_id);
    self->has_queue = 1;
    return 0;
}

static PyGetSetDef region_getset[] = {
    {"queue_id", NULL, (setter)region_set_queue_id,
     "Of a page: the id of its queue, from which its frames' checksums start.", NULL},
    {"is_renewable", (getter)region_is_renewable, NULL, "Whether it was made to be renewed.", NULL},
    {"is_removed", (getter)region_is_removed, NULL, "Whether its file has no name any more.", NULL},
    {"broken", (getter)region_broken, NULL, "Whether the file was truncated; checks its end.",
     NULL},
    {"lost_at", (getter)region_lost_at, NULL, "Where it was found to be truncated, or its size.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject *pq_region_make(void) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A mapped file: Region(fd, length, writable, kept)."},
        {Py_tp_new, region_new},
        {Py_tp_dealloc, region_dealloc},
        {Py_tp_traverse, region_traverse},
        {Py_tp_clear, region_clear},
        {Py_tp_methods, region_methods},
        {Py_tp_members, region_members},
        {Py_tp_getset, region_getset},
        {Py_bf_getbuffer, region_getbuffer},
        {Py_sq_length, region_length},
        {0, NULL},
    };
    static PyType_Spec spec = {"pagequeue._core.Region", sizeof(Region), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
