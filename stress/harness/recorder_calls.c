/* System calls that order, name, cut or make files, as the recorder sees them; no others are seen.
 *
 * A sync that succeeded covers what was seen before it began. A snapshot is taken before and after
 * each other call, so that its effect is recorded alone, between two events.
 */
#include "recorder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAPS_MAX 512

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) { \
        *(void **)&real = dlsym(RTLD_NEXT, #name); \
    }

static void synced(int fd, uint64_t before) {
    struct stat found;
    if (!recorder_runs() || fstat(fd, &found) != 0 || (uint64_t)found.st_dev != shared->device) {
        return;
    }
    int error = errno;
    recorder_lock();
    if ((uint64_t)found.st_ino == shared->directory) {
        recorder_emit(CUT_DIRSYNC, 0, before, 0, "", 0);
    } else if ((uint64_t)found.st_ino == shared->parent) {
        recorder_emit(CUT_PARENTSYNC, 0, before, 0, "", 0);
    } else {
        uint64_t file = recorder_file((uint64_t)found.st_ino);
        if (file != CUT_NOWHERE) {
            recorder_emit(CUT_SYNC, file, before, CUT_FILE_OS_PAGES_MAX, "", 0);
        }
    }
    recorder_unlock();
    errno = error;
}

static int failures_from, failures; /* the n-th sync of this process from now on, and how many */

/* From the `from`-th sync on, from 1, so many fail, of those that this process asks for. */
EXPORT void pq_trace_fail(int from, int count) {
    failures_from = from;
    failures = count;
}

/* Whether the sync of this file is one that fails. The system then keeps the unwritten data in
 * memory, marks it as written, and reports success the next time. */
static int fails(uint64_t inode) {
    if (failures == 0 || --failures_from > 0) {
        return 0;
    }
    failures -= 1;
    recorder_lock();
    uint64_t file = recorder_file(inode);
    if (file != CUT_NOWHERE) {
        recorder_emit(CUT_FAILED, file, 0, 0, "", 0);
    }
    recorder_unlock();
    errno = EIO;
    return 1;
}

static int fails_by_fd(int fd) {
    struct stat found;
    return recorder_runs() && fstat(fd, &found) == 0 && fails((uint64_t)found.st_ino);
}

static int calls_left; /* 0: all of them */

/* This process dies after its n-th recorded call from now on, counted from 1; 0: it does not. */
EXPORT void pq_trace_die(int at) { calls_left = at; }

static void passed(void) {
    if (recorder_runs() && __atomic_load_n(&calls_left, __ATOMIC_RELAXED) > 0 &&
        __atomic_sub_fetch(&calls_left, 1, __ATOMIC_RELAXED) == 0) {
        recorder_lock(); /* no thread is killed during a snapshot */
        kill(getpid(), SIGKILL);
        for (;;) {
            pause();
        }
    }
}

#define SYNC_CALL(name) \
    EXPORT int name(int fd) { \
        REAL(name) \
        uint64_t before = recorder_look(); \
        if (fails_by_fd(fd)) { \
            return -1; \
        } \
        int result = real(fd); \
        if (result == 0) { \
            synced(fd, before); \
        } \
        passed(); \
        return result; \
    }
SYNC_CALL(fsync)
SYNC_CALL(fdatasync)

/* msync takes addresses: remember which file is mapped where. Only writable maps are recorded: the
 * system ignores msync on every other one. */
static struct {
    uintptr_t start, end;
    uint64_t inode;
    uint64_t offset;
} maps[MAPS_MAX];
static int maps_lock;

static void lock_maps(void) {
    while (__atomic_exchange_n(&maps_lock, 1, __ATOMIC_ACQUIRE)) {
        sched_yield();
    }
}

static void unlock_maps(void) { __atomic_store_n(&maps_lock, 0, __ATOMIC_RELEASE); }

static void mapped(void *base, size_t bytes, int flags, int fd, off_t offset) {
    struct stat found;
    if (!recorder_runs() || base == MAP_FAILED || !(flags & MAP_SHARED) || fd < 0 ||
        (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY || fstat(fd, &found) != 0) {
        return;
    }
    lock_maps();
    for (size_t i = 0; i < MAPS_MAX; i++) {
        if (maps[i].end == 0) {
            maps[i].start = (uintptr_t)base;
            maps[i].end = (uintptr_t)base + bytes;
            maps[i].inode = (uint64_t)found.st_ino;
            maps[i].offset = (uint64_t)offset;
            break;
        }
    }
    unlock_maps();
}

EXPORT void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    void *base = (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
    mapped(base, bytes, flags, fd, offset);
    return base;
}

EXPORT void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return mmap(at, bytes, protection, flags, fd, offset);
}

EXPORT int munmap(void *at, size_t bytes) {
    lock_maps();
    for (size_t i = 0; i < MAPS_MAX; i++) {
        if (maps[i].end != 0 && maps[i].start >= (uintptr_t)at &&
            maps[i].end <= (uintptr_t)at + ((bytes + 4095) & ~(size_t)4095)) {
            maps[i].end = 0;
        }
    }
    unlock_maps();
    return (int)syscall(SYS_munmap, at, bytes);
}

/* Records a sync of all maps in a range; if it is to fail, records that, and returns 1. */
static int synced_map(uintptr_t start, uintptr_t end, uint64_t before, int only_failing) {
    int failed = 0;
    lock_maps();
    for (size_t i = 0; i < MAPS_MAX && !failed; i++) {
        if (maps[i].end == 0 || start >= maps[i].end || end <= maps[i].start) {
            continue;
        }
        if (only_failing) {
            failed = fails(maps[i].inode);
            continue;
        }
        uintptr_t low = start > maps[i].start ? start : maps[i].start;
        uintptr_t high = end < maps[i].end ? end : maps[i].end;
        uint64_t first = (low - maps[i].start + maps[i].offset) / CUT_OS_PAGE_BYTES;
        uint64_t behind = (high - maps[i].start + maps[i].offset + CUT_OS_PAGE_BYTES - 1) /
                          CUT_OS_PAGE_BYTES;
        recorder_lock();
        uint64_t file = recorder_file(maps[i].inode);
        if (file != CUT_NOWHERE) {
            recorder_emit(CUT_SYNC, file, before, first << 32 | behind, "", 0);
        }
        recorder_unlock();
    }
    unlock_maps();
    return failed;
}

EXPORT int msync(void *at, size_t bytes, int flags) {
    uint64_t before = recorder_look();
    uintptr_t start = (uintptr_t)at;
    if (recorder_runs() && synced_map(start, start + bytes, before, 1)) {
        return -1;
    }
    int result = (int)syscall(SYS_msync, at, bytes, flags);
    if (result == 0 && (flags & MS_SYNC) && recorder_runs()) {
        synced_map(start, start + bytes, before, 0);
    }
    return result;
}

#define LOOKED_CALL(type, name, parameters, arguments) \
    EXPORT type name parameters { \
        REAL(name) \
        recorder_look(); \
        type result = real arguments; \
        recorder_look(); \
        passed(); \
        return result; \
    }
LOOKED_CALL(int, rename, (const char *from, const char *to), (from, to))
LOOKED_CALL(int, renameat, (int from_fd, const char *from, int to_fd, const char *to),
            (from_fd, from, to_fd, to))
LOOKED_CALL(int, link, (const char *from, const char *to), (from, to))
LOOKED_CALL(int, linkat, (int from_fd, const char *from, int to_fd, const char *to, int flags),
            (from_fd, from, to_fd, to, flags))
LOOKED_CALL(int, unlink, (const char *path), (path))
LOOKED_CALL(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
LOOKED_CALL(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
LOOKED_CALL(int, ftruncate64, (int fd, off_t bytes), (fd, bytes))
LOOKED_CALL(int, truncate, (const char *path, off_t bytes), (path, bytes))
LOOKED_CALL(int, posix_fallocate, (int fd, off_t at, off_t bytes), (fd, at, bytes))
LOOKED_CALL(int, posix_fallocate64, (int fd, off_t at, off_t bytes), (fd, at, bytes))
LOOKED_CALL(int, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes))
LOOKED_CALL(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at),
            (fd, data, bytes, at))
LOOKED_CALL(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off_t at),
            (fd, data, bytes, at))
LOOKED_CALL(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at),
            (fd, parts, count, at))
LOOKED_CALL(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off_t at),
            (fd, parts, count, at))

#define OPEN_CALL(name) \
    EXPORT int name(int folder, const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        int mode = va_arg(more, int); \
        va_end(more); \
        int makes = (flags & (O_CREAT | O_TRUNC)) != 0; \
        if (makes) { \
            recorder_look(); \
        } \
        int fd = (int)syscall(SYS_openat, folder, path, flags, mode); \
        if (makes) { \
            recorder_look(); \
            passed(); \
        } \
        return fd; \
    }
OPEN_CALL(openat)
OPEN_CALL(openat64)
