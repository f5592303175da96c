/* Calls that take a path. */
#include "shim.h"

#include <sys/stat.h>
#include <unistd.h>

static int mode_of(int flags, va_list more) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, int) : 0;
}

#define DEFINE_OPEN(name)                                                                          \
    SHOWN int name(const char *path, int flags, ...) {                                             \
        REAL(int, name, const char *, int, ...)                                                    \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        int mode = mode_of(flags, more);                                                           \
        va_end(more);                                                                              \
        const char *watched = shim_path_at(AT_FDCWD, path, NULL);                       \
        FAIL_IF_TOLD(OPEN, watched, -1)                                                            \
        int fd = real_##name(path, flags, mode);                                                   \
        shim_mark_fd(fd, watched);                                                                      \
        return fd;                                                                                 \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                                                        \
    SHOWN int name(int folder, const char *path, int flags, ...) {                                 \
        REAL(int, name, int, const char *, int, ...)                                               \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        int mode = mode_of(flags, more);                                                           \
        va_end(more);                                                                              \
        char room[PATH_BYTES];                                                                     \
        const char *watched = shim_path_at(folder, path, room);                         \
        FAIL_IF_TOLD(OPEN, watched, -1)                                                            \
        int fd = real_##name(folder, path, flags, mode);                                           \
        shim_mark_fd(fd, watched);                                                                      \
        return fd;                                                                                 \
    }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

#define DEFINE_BY_PATH(kind, name, types, folder, ...)                                             \
    SHOWN int name types {                                                                         \
        REAL(int, name, __VA_ARGS__)                                                               \
        char room[PATH_BYTES];                                                                     \
        FAIL_IF_TOLD(kind, shim_path_at(folder, path, room), -1)                                        \
        return real_##name ARGUMENTS;                                                              \
    }

#define ARGUMENTS (path, status)
DEFINE_BY_PATH(STAT, stat, (const char *path, struct stat *status), AT_FDCWD, const char *,
               struct stat *)
DEFINE_BY_PATH(STAT, stat64, (const char *path, struct stat64 *status), AT_FDCWD, const char *,
               struct stat64 *)
DEFINE_BY_PATH(STAT, lstat, (const char *path, struct stat *status), AT_FDCWD, const char *,
               struct stat *)
DEFINE_BY_PATH(STAT, lstat64, (const char *path, struct stat64 *status), AT_FDCWD, const char *,
               struct stat64 *)
#undef ARGUMENTS
#define ARGUMENTS (folder, path, status, flags)
DEFINE_BY_PATH(STAT, fstatat, (int folder, const char *path, struct stat *status, int flags),
               folder, int, const char *, struct stat *, int)
DEFINE_BY_PATH(STAT, fstatat64, (int folder, const char *path, struct stat64 *status, int flags),
               folder, int, const char *, struct stat64 *, int)
#undef ARGUMENTS
#define ARGUMENTS (path)
DEFINE_BY_PATH(UNLINK, unlink, (const char *path), AT_FDCWD, const char *)
DEFINE_BY_PATH(UNLINK, rmdir, (const char *path), AT_FDCWD, const char *)
#undef ARGUMENTS
#define ARGUMENTS (folder, path, flags)
DEFINE_BY_PATH(UNLINK, unlinkat, (int folder, const char *path, int flags), folder, int,
               const char *, int)
#undef ARGUMENTS
#define ARGUMENTS (path, mode)
DEFINE_BY_PATH(MKDIR, mkdir, (const char *path, mode_t mode), AT_FDCWD, const char *, mode_t)
DEFINE_BY_PATH(CHMOD, chmod, (const char *path, mode_t mode), AT_FDCWD, const char *, mode_t)
#undef ARGUMENTS
#define ARGUMENTS (folder, path, mode)
DEFINE_BY_PATH(MKDIR, mkdirat, (int folder, const char *path, mode_t mode), folder, int,
               const char *, mode_t)
#undef ARGUMENTS

SHOWN int renameat(int folder, const char *path, int target, const char *other) {
    REAL(int, renameat, int, const char *, int, const char *)
    char room[PATH_BYTES], other_room[PATH_BYTES];
    const char *from = shim_path_at(folder, path, room);
    const char *to = shim_path_at(target, other, other_room);
    FAIL_IF_TOLD(RENAME, from, -1)
    int result = real_renameat(folder, path, target, other);
    if (result == 0 && from != NULL && to != NULL) {
        shim_renamed(from, to);
    }
    return result;
}

SHOWN int rename(const char *path, const char *other) {
    return renameat(AT_FDCWD, path, AT_FDCWD, other);
}
