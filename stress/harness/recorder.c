/* Recorder: a shared library that is preloaded and records every change of a directory.
 *
 * At each call of `pq_trace_point` (kill points of the core, lines of Python), and around every
 * system call that syncs, names, cuts or makes a file, it reads all files of the directory and
 * notes each OS page, size and name that changed. It reads the files and not the maps, so that it
 * sees a change of any process. A sync covers what was seen before it began. The log and the last
 * snapshot lie in memory that forked children share; a lock, taken for one snapshot, orders them. A
 * version counts as seen when it is in the log, because a thread can be killed during a snapshot.
 */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

shared_state *shared;
static uint64_t shared_bytes;
static char directory_path[4096];
static int directory_fd = -1; /* of this process */
static pid_t opened_by;
static int file_fds[CUT_FILES_MAX]; /* 0 = not open here */

/* --- the log ---------------------------------------------------------------------------------- */

void recorder_lock(void) {
    if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&shared->lock);
    }
}

void recorder_unlock(void) { pthread_mutex_unlock(&shared->lock); }

static void make_lock(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared->lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

uint64_t recorder_emit(cut_kind kind, uint64_t a, uint64_t b, uint64_t c, const void *data,
                       uint32_t bytes) {
    uint32_t padded = (bytes + 7) & ~7u;
    if (shared->used + sizeof(cut_event) + padded > shared->limit) {
        shared->full = 1;
        return 0;
    }
    cut_event event = {(uint32_t)kind, padded, a, b, c};
    memcpy(shared->log + shared->used, &event, sizeof event);
    uint64_t at = shared->used + sizeof event;
    memset(shared->log + at, 0, padded);
    memcpy(shared->log + at, data, bytes);
    shared->events += 1;
    shared->used = at + padded;
    return at;
}

/* --- snapshots -------------------------------------------------------------------------------- */

static int open_at(int folder, const char *name, int flags) {
    return (int)syscall(SYS_openat, folder, name, flags | O_CLOEXEC | O_NOFOLLOW, 0);
}

uint64_t recorder_file(uint64_t inode) {
    for (uint64_t i = 0; i < shared->file_count; i++) {
        if (shared->files[i].inode == inode) {
            return i;
        }
    }
    return CUT_NOWHERE;
}

static void look_at_pages(uint64_t file, int fd) {
    static uint8_t bytes[CUT_FILE_OS_PAGES_MAX * CUT_OS_PAGE_BYTES];
    static const uint8_t zeros[CUT_OS_PAGE_BYTES];
    known_file *known = &shared->files[file];
    ssize_t got = pread(fd, bytes, sizeof bytes, 0);
    if (got < 0) {
        return;
    }
    uint64_t pages = ((uint64_t)got + CUT_OS_PAGE_BYTES - 1) / CUT_OS_PAGE_BYTES;
    memset(bytes + got, 0, pages * CUT_OS_PAGE_BYTES - (uint64_t)got);
    for (uint64_t page = 0; page < pages; page++) {
        const uint8_t *now = bytes + page * CUT_OS_PAGE_BYTES;
        const uint8_t *before = known->last[page] ? shared->log + known->last[page] : zeros;
        if (memcmp(now, before, CUT_OS_PAGE_BYTES) != 0) {
            known->last[page] = recorder_emit(CUT_PAGE, file, page, 0, now, CUT_OS_PAGE_BYTES);
        }
    }
}

static void look_at_file(uint64_t file, int folder, const char *name) {
    struct stat found;
    int fd = file_fds[file];
    if (fd == 0) {
        fd = open_at(folder, name, O_RDONLY);
        if (fd < 0) {
            return;
        }
        file_fds[file] = fd; /* kept, so that no other file gets its inode number */
    }
    if (fstat(fd, &found) != 0 || (uint64_t)found.st_ino != shared->files[file].inode) {
        return;
    }
    if ((uint64_t)found.st_size != shared->files[file].size) {
        recorder_emit(CUT_SIZE, file, (uint64_t)found.st_size, 0, "", 0);
        shared->files[file].size = (uint64_t)found.st_size;
    }
    look_at_pages(file, fd);
}

static void bind_name(const char *name, uint64_t file) {
    known_name *known = NULL;
    for (uint64_t i = 0; i < shared->name_count && known == NULL; i++) {
        known = strcmp(shared->names[i].name, name) == 0 ? &shared->names[i] : NULL;
    }
    if (known == NULL) {
        if (shared->name_count == NAMES_MAX) {
            shared->full = 1;
            return;
        }
        known = &shared->names[shared->name_count];
        strcpy(known->name, name);
        known->file = CUT_NOWHERE;
        shared->name_count++;
    }
    known->seen = 1;
    if (known->file != file) {
        recorder_emit(CUT_NAME, file, 0, 0, name, (uint32_t)strlen(name) + 1);
        known->file = file;
    }
}

static void look_at_entry(int folder, const char *name, uint64_t inode) {
    uint64_t file = recorder_file(inode);
    if (file == CUT_NOWHERE) {
        if (shared->file_count == CUT_FILES_MAX || strlen(name) >= CUT_NAME_BYTES_MAX) {
            shared->full = 1;
            return;
        }
        file = shared->file_count;
        shared->files[file].inode = inode;
        shared->file_count++;
    }
    look_at_file(file, folder, name);
    if (folder == directory_fd) {
        bind_name(name, file);
    }
}

struct kernel_entry {
    uint64_t d_ino;
    int64_t d_off;
    unsigned short d_reclen;
    unsigned char d_type;
    char d_name[];
};

static int have_directory(void) {
    struct stat found;
    if (opened_by != getpid()) { /* a forked child reads it by a new descriptor */
        opened_by = getpid();
        directory_fd = -1;
    }
    if (directory_fd < 0) {
        directory_fd = open_at(AT_FDCWD, directory_path, O_RDONLY | O_DIRECTORY);
        if (directory_fd >= 0 && shared->directory == 0 && fstat(directory_fd, &found) == 0) {
            recorder_emit(CUT_MADE, 0, 0, 0, "", 0);
            shared->device = (uint64_t)found.st_dev;
            shared->directory = (uint64_t)found.st_ino;
        }
    }
    return directory_fd >= 0;
}

#define IS_DIRECTORY 4
#define DEPTH_MAX 2

static int begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

/* Whether a file below the queue's directory is a page or an index: of the queue's other
 * directories, or staged. The test of these names is in `test_cut_simulator.py`. */
static int is_page(const char *name) {
    static const char *const names[] = {"queue-0", "fragment-0", "empty-0", "filled-0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (begins(name, names[i])) {
            return 1;
        }
    }
    return 0;
}

/* Files in the directories below have no name here until they get one: their pages and indexes are
 * recorded, so that a sync before that counts. */
static void look_in(int folder, int depth) {
    char entries[8192] __attribute__((aligned(8)));
    long got;
    lseek(folder, 0, SEEK_SET);
    while ((got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0) {
        for (long at = 0; at < got;) {
            struct kernel_entry *entry = (struct kernel_entry *)(entries + at);
            const char *name = entry->d_name;
            at += entry->d_reclen;
            if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
                continue;
            }
            if (entry->d_type == IS_DIRECTORY) {
                int below = depth == DEPTH_MAX ? -1 : open_at(folder, name, O_RDONLY | O_DIRECTORY);
                if (below >= 0) {
                    look_in(below, depth + 1);
                    close(below);
                }
            } else if (depth == 0 || is_page(name)) {
                look_at_entry(folder, name, entry->d_ino);
            }
        }
    }
}

/* Under the lock. */
static void look(void) {
    if (!have_directory()) {
        return;
    }
    for (uint64_t i = 0; i < shared->name_count; i++) {
        shared->names[i].seen = 0;
    }
    look_in(directory_fd, 0);
    for (uint64_t i = 0; i < shared->name_count; i++) {
        if (!shared->names[i].seen && shared->names[i].file != CUT_NOWHERE) {
            bind_name(shared->names[i].name, CUT_NOWHERE);
        }
    }
}

int recorder_runs(void) { return shared != NULL && shared->active; }

/* Takes a snapshot, and returns how many events there are by now. */
uint64_t recorder_look(void) {
    if (!recorder_runs()) {
        return 0;
    }
    int error = errno;
    recorder_lock();
    look();
    uint64_t events = shared->events;
    recorder_unlock();
    errno = error;
    return events;
}

static void note(cut_kind kind, uint64_t a, uint64_t b, uint64_t c) {
    if (recorder_runs()) {
        int error = errno;
        recorder_lock();
        look();
        recorder_emit(kind, a, b, c, "", 0);
        recorder_unlock();
        errno = error;
    }
}

/* --- what the suite calls --------------------------------------------------------------------- */

static int callback_point;
static long callback_pass;
static void (*callback)(void);

EXPORT int pq_trace_start(const char *path, uint64_t bytes) {
    if (shared == NULL || shared_bytes != bytes) {
        if (shared != NULL) {
            munmap(shared, shared_bytes);
        }
        shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (shared == MAP_FAILED) {
            shared = NULL;
            return errno;
        }
        shared_bytes = bytes;
        make_lock();
    }
    recorder_lock(); /* never recreated: a thread of a closed queue can hold it */
    memset(&shared->active, 0, sizeof *shared - offsetof(shared_state, active));
    shared->limit = bytes - sizeof *shared;
    snprintf(directory_path, sizeof directory_path, "%s", path);
    char parent[sizeof directory_path + 4];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = 0;
    struct stat found;
    if (stat(parent, &found) == 0) {
        shared->parent = (uint64_t)found.st_ino;
        shared->device = (uint64_t)found.st_dev;
    }
    callback_point = 0;
    look();
    recorder_emit(CUT_BASE, 0, 0, 0, "", 0);
    shared->active = 1;
    recorder_unlock();
    return 0;
}

EXPORT const uint8_t *pq_trace_log(uint64_t *bytes, uint64_t *events, int *full) {
    *bytes = shared->used;
    *events = shared->events;
    *full = shared->full;
    return shared->log;
}

EXPORT void pq_trace_end(void) {
    recorder_look();
    shared->active = 0;
    for (size_t i = 0; i < CUT_FILES_MAX; i++) {
        if (file_fds[i] != 0) {
            close(file_fds[i]);
            file_fds[i] = 0;
        }
    }
    if (directory_fd >= 0) {
        close(directory_fd);
        directory_fd = -1;
    }
}

EXPORT void pq_trace_flushed(uint64_t sequence) { note(CUT_FLUSHED, sequence, 0, 0); }

EXPORT void pq_trace_note(uint64_t a, uint64_t b, uint64_t c) { note(CUT_NOTE, a, b, c); }

EXPORT void pq_trace_line(void) { recorder_look(); }

/* `what` is called once, at the pass-th time that the core reaches this point. */
EXPORT void pq_trace_call(int point, long pass, void (*what)(void)) {
    callback_point = point;
    callback_pass = pass;
    callback = what;
}

/* Where the core may die: no other thread of its process is killed during a snapshot. */
EXPORT void pq_trace_hold(int hold) {
    static __thread int held; /* the recording can end meanwhile */
    if (hold && recorder_runs()) {
        recorder_lock();
        held = 1;
    } else if (!hold && held) {
        held = 0;
        recorder_unlock();
    }
}

EXPORT void pq_trace_point(int number) {
    note(CUT_POINT, (uint64_t)number, 0, 0);
    if (number == callback_point && --callback_pass <= 0) {
        callback_point = 0;
        callback();
    }
}
