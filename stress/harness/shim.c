/* A preload library that fails chosen system calls of one process, and no others.
 *
 * Only calls on files below one directory are counted and failed: by path, by a descriptor that was
 * opened there, or by an address in a map of such a descriptor. All other calls are passed on
 * untouched, so that the interpreter is left alone. `shim.py` is its other half.
 *
 * A call that is told to fail is not made; but `close` releases the descriptor all the same, as
 * Linux does. This file holds what is watched and what is told; the calls are in shim_*.c.
 */
#include "shim.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#define FDS 256
#define MAPS 256
#define NOTED_MAX 4096

/* Returns a signal to raise again when it has returned, or 0. */
typedef int (*listener)(int kind, const char *path, int error);

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside; /* a listener runs: its calls are not counted */
static char root[PATH_BYTES];
static int counting;
static char fd_path[FDS][PATH_BYTES];
static struct {
    uintptr_t at;
    size_t bytes;
    char path[PATH_BYTES];
} maps[MAPS];
static long counts[KIND_COUNT];
static __thread uint32_t place; /* in the program, as this thread was told last; 0 = not told */
static int noting;
static struct {
    uint32_t place, name;
} noted[KIND_COUNT][NOTED_MAX];
static struct {
    int kind;
    long nth, times;
    int error, signal;
} armed = {.kind = -1};
static long fired;
static char fired_path[PATH_BYTES];
static listener on_sync;

/* --- what shim.py calls ----------------------------------------------------------------------- */

SHOWN void shim_watch(const char *path) {
    pthread_mutex_lock(&guard);
    strncpy(root, path, PATH_BYTES - 1);
    memset(fd_path, 0, sizeof fd_path);
    memset(maps, 0, sizeof maps);
    counting = 0;
    armed.kind = -1;
    pthread_mutex_unlock(&guard);
}

/* From here on calls are counted, and the Nth to the (N + times - 1)th of a kind are failed. */
SHOWN void shim_begin(int kind, long nth, long times, int error, int signal_number) {
    pthread_mutex_lock(&guard);
    memset(counts, 0, sizeof counts);
    fired = 0;
    fired_path[0] = 0;
    armed.kind = kind;
    armed.nth = nth;
    armed.times = times;
    armed.error = error;
    armed.signal = signal_number;
    counting = 1;
    pthread_mutex_unlock(&guard);
}

SHOWN void shim_end(void) { counting = 0; }

/* From now on the place of each counted call is noted, or no longer. */
SHOWN void shim_note_places(int on) { noting = on; }
SHOWN void shim_at(uint32_t here) { place = here; }

/* Where the Nth call of a kind was made, and on which sort of file; 0 = that was not noted. */
SHOWN uint64_t shim_place(int kind, long nth) {
    if (nth < 1 || nth > NOTED_MAX) {
        return 0;
    }
    return (uint64_t)noted[kind][nth - 1].name << 32 | noted[kind][nth - 1].place;
}

SHOWN long shim_count(int kind) { return counts[kind]; }
SHOWN long shim_fired(void) { return fired; }
SHOWN const char *shim_fired_path(void) { return fired_path; }
SHOWN int shim_kind_count(void) { return KIND_COUNT; }
SHOWN void shim_on_sync(listener told) { on_sync = told; }

/* --- what is watched -------------------------------------------------------------------------- */

static int below(const char *path) {
    size_t bytes = strlen(root);
    return bytes > 0 && strncmp(path, root, bytes) == 0 && (path[bytes] == '/' || path[bytes] == 0);
}

const char *shim_path_of_fd(int fd) {
    return !inside && fd >= 0 && fd < FDS && fd_path[fd][0] ? fd_path[fd] : NULL;
}

const char *shim_path_at(int folder, const char *path, char *room) {
    if (inside || root[0] == 0 || path == NULL) {
        return NULL;
    }
    if (path[0] == '/') {
        return below(path) ? path : NULL;
    }
    const char *parent = shim_path_of_fd(folder);
    if (parent == NULL) {
        return NULL;
    }
    size_t bytes = strlen(parent), more = strlen(path);
    if (more == 0 || bytes + more + 2 > PATH_BYTES) {
        return parent;
    }
    memcpy(room, parent, bytes);
    room[bytes] = '/';
    memcpy(room + bytes + 1, path, more + 1);
    return room;
}

void shim_mark_fd(int fd, const char *path) {
    if (fd < 0 || fd >= FDS) {
        return;
    }
    fd_path[fd][0] = 0;
    if (path != NULL) {
        strncpy(fd_path[fd], path, PATH_BYTES - 1);
    }
}

void shim_mark_map(void *at, size_t bytes, const char *path) {
    pthread_mutex_lock(&guard);
    for (int i = 0; i < MAPS; i++) {
        if (maps[i].at == 0) {
            maps[i].at = (uintptr_t)at;
            maps[i].bytes = bytes;
            strncpy(maps[i].path, path, PATH_BYTES - 1);
            break;
        }
    }
    pthread_mutex_unlock(&guard);
}

static int map_with(const void *at) {
    for (int i = 0; root[0] && i < MAPS; i++) {
        uintptr_t begin = maps[i].at;
        if (begin && (uintptr_t)at >= begin && (uintptr_t)at - begin < maps[i].bytes) {
            return i;
        }
    }
    return -1;
}

const char *shim_path_of_map(const void *at) {
    int found = inside ? -1 : map_with(at);
    return found < 0 ? NULL : maps[found].path;
}

void shim_drop_map(void *at) {
    pthread_mutex_lock(&guard);
    int found = map_with(at);
    if (found >= 0) {
        maps[found].at = 0;
    }
    pthread_mutex_unlock(&guard);
}

static void rename_in(char *known, const char *path, const char *other) {
    if (strcmp(known, path) == 0) {
        strncpy(known, other, PATH_BYTES - 1);
    }
}

void shim_renamed(const char *path, const char *other) {
    pthread_mutex_lock(&guard);
    for (int i = 0; i < FDS; i++) {
        rename_in(fd_path[i], path, other);
    }
    for (int i = 0; i < MAPS; i++) {
        rename_in(maps[i].path, path, other);
    }
    pthread_mutex_unlock(&guard);
}

/* A file's name as a number; the numbers in it count for nothing: pages differ in them. */
static uint32_t sort_of(const char *path) {
    uint32_t mixed = 0x811c9dc5u;
    const char *name = strrchr(path, '/');
    for (name = name == NULL ? path : name; *name; name++) {
        int is_digit = (*name >= '0' && *name <= '9') || (*name >= 'a' && *name <= 'f');
        mixed = is_digit ? mixed : (mixed ^ (uint8_t)*name) * 0x01000193u;
    }
    return mixed;
}

int shim_verdict(enum kind kind, const char *path) {
    if (path == NULL || inside || !counting) {
        return GO_ON;
    }
    int error = GO_ON, number = 0;
    pthread_mutex_lock(&guard);
    long count = ++counts[kind];
    if (noting && count <= NOTED_MAX) {
        noted[kind][count - 1].place = place;
        noted[kind][count - 1].name = sort_of(path);
    }
    if ((int)kind == armed.kind && count >= armed.nth && count - armed.nth < armed.times) {
        fired++;
        strncpy(fired_path, path, PATH_BYTES - 1);
        error = armed.error;
        number = armed.signal;
    }
    pthread_mutex_unlock(&guard);
    if (number) {
        raise(number);
    }
    return error;
}

void shim_tell(enum kind kind, const char *path, int error) {
    listener told = path == NULL || inside ? NULL : on_sync;
    if (told != NULL) {
        int before = errno;
        inside = 1;
        int number = told((int)kind, path, error);
        inside = 0;
        if (number) {
            raise(number);
        }
        errno = before;
    }
}
