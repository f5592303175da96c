/* What the parts of the preload library share; see shim.c. */
#ifndef SHIM_H
#define SHIM_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define SHOWN __attribute__((visibility("default")))
#define PATH_BYTES 512
#define SHORT (-1)
#define GO_ON (-2)

/* The order is that of KINDS in shim.py. */
enum kind {
    OPEN, MMAP, MUNMAP, STAT, READ, WRITE, FALLOCATE, FTRUNCATE, FSYNC, FDATASYNC, MSYNC, RENAME,
    UNLINK, MKDIR, FLOCK, FCNTL, READDIR, MADVISE, FUTEX, CLOSE, CHMOD, STATFS,
    UNLOCK, KIND_COUNT
};

/* Counts a call on this path, if it is not NULL; returns GO_ON, SHORT or the error to end in. */
int shim_verdict(enum kind kind, const char *path);

/* Return the path if it is watched, else NULL; `shim_path_at` uses `room` to put it together. */
const char *shim_path_at(int folder, const char *path, char *room);
const char *shim_path_of_fd(int fd);
const char *shim_path_of_map(const void *at);

/* Note what a descriptor or a map belongs to from now on; NULL if it is not watched. */
void shim_mark_fd(int fd, const char *path);
void shim_mark_map(void *at, size_t bytes, const char *path);
void shim_drop_map(void *at);
void shim_renamed(const char *path, const char *other);

/* Tell the listener of a sync before it is made; error 0 means that it will be. */
void shim_tell(enum kind kind, const char *path, int error);

/* The function that this one wraps. */
#define REAL(type, name, ...)                                                                      \
    static type (*real_##name)(__VA_ARGS__);                                                       \
    if (real_##name == NULL) {                                                                     \
        *(void **)&real_##name = dlsym(RTLD_NEXT, #name);                                          \
    }

#define FAIL_IF_TOLD(kind, path, failure)                                                          \
    int told = shim_verdict(kind, path);                                                           \
    if (told > 0) {                                                                                \
        errno = told;                                                                              \
        return failure;                                                                            \
    }

#endif
