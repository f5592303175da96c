/* Calls that take a descriptor, an open directory or an address in a map. */
#include "shim.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

/* --- descriptors ------------------------------------------------------------------------------ */

#define DEFINE_BY_FD(kind, type, name, types, ...)                                                 \
    SHOWN type name types {                                                                        \
        REAL(type, name, __VA_ARGS__)                                                              \
        FAIL_IF_TOLD(kind, shim_path_of_fd(fd), -1)                                                     \
        return real_##name ARGUMENTS;                                                              \
    }

#define ARGUMENTS (fd, status)
DEFINE_BY_FD(STAT, int, fstat, (int fd, struct stat *status), int, struct stat *)
DEFINE_BY_FD(STAT, int, fstat64, (int fd, struct stat64 *status), int, struct stat64 *)
DEFINE_BY_FD(STATFS, int, fstatfs, (int fd, struct statfs *status), int, struct statfs *)
DEFINE_BY_FD(STATFS, int, fstatfs64, (int fd, struct statfs64 *status), int, struct statfs64 *)
#undef ARGUMENTS
#define ARGUMENTS (fd, mode)
DEFINE_BY_FD(CHMOD, int, fchmod, (int fd, mode_t mode), int, mode_t)
DEFINE_BY_FD(mode & LOCK_UN ? UNLOCK : FLOCK, int, flock, (int fd, int mode), int, int)
#undef ARGUMENTS
#define ARGUMENTS (fd, bytes)
DEFINE_BY_FD(FTRUNCATE, int, ftruncate, (int fd, off_t bytes), int, off_t)
DEFINE_BY_FD(FTRUNCATE, int, ftruncate64, (int fd, off64_t bytes), int, off64_t)
#undef ARGUMENTS
#define ARGUMENTS (fd, mode, at, bytes)
DEFINE_BY_FD(FALLOCATE, int, fallocate, (int fd, int mode, off_t at, off_t bytes), int, int, off_t,
             off_t)
DEFINE_BY_FD(FALLOCATE, int, fallocate64, (int fd, int mode, off64_t at, off64_t bytes), int, int,
             off64_t, off64_t)
#undef ARGUMENTS

#define DEFINE_RESERVE(name, offset)                                                               \
    SHOWN int name(int fd, offset at, offset bytes) {                                              \
        REAL(int, name, int, offset, offset)                                                       \
        int told = shim_verdict(FALLOCATE, shim_path_of_fd(fd));                                             \
        return told > 0 ? told : real_##name(fd, at, bytes);                                       \
    }
DEFINE_RESERVE(posix_fallocate, off_t)
DEFINE_RESERVE(posix_fallocate64, off64_t)

/* A short transfer moves half of the bytes, one at least. */
#define DEFINE_TRANSFER(kind, name, data, types, ...)                                              \
    SHOWN ssize_t name types {                                                                     \
        REAL(ssize_t, name, __VA_ARGS__)                                                           \
        FAIL_IF_TOLD(kind, shim_path_of_fd(fd), -1)                                                     \
        bytes = told == SHORT ? (bytes + 1) / 2 : bytes;                                           \
        return real_##name ARGUMENTS;                                                              \
    }
#define ARGUMENTS (fd, data, bytes)
DEFINE_TRANSFER(READ, read, data, (int fd, void *data, size_t bytes), int, void *, size_t)
DEFINE_TRANSFER(WRITE, write, data, (int fd, const void *data, size_t bytes), int, const void *,
                size_t)
#undef ARGUMENTS
#define ARGUMENTS (fd, data, bytes, at)
DEFINE_TRANSFER(READ, pread, data, (int fd, void *data, size_t bytes, off_t at), int, void *,
                size_t, off_t)
DEFINE_TRANSFER(READ, pread64, data, (int fd, void *data, size_t bytes, off64_t at), int, void *,
                size_t, off64_t)
DEFINE_TRANSFER(WRITE, pwrite, data, (int fd, const void *data, size_t bytes, off_t at), int,
                const void *, size_t, off_t)
DEFINE_TRANSFER(WRITE, pwrite64, data, (int fd, const void *data, size_t bytes, off64_t at), int,
                const void *, size_t, off64_t)
#undef ARGUMENTS

/* A short one moves half of the first part. */
#define DEFINE_GATHERED(name, offset)                                                              \
    SHOWN ssize_t name(int fd, const struct iovec *parts, int count, offset at) {                  \
        REAL(ssize_t, name, int, const struct iovec *, int, offset)                                \
        FAIL_IF_TOLD(WRITE, shim_path_of_fd(fd), -1)                                               \
        struct iovec half = {0};                                                                   \
        if (told == SHORT && count > 0) {                                                          \
            half = (struct iovec){parts->iov_base, (parts->iov_len + 1) / 2};                      \
            return real_##name(fd, &half, 1, at);                                                  \
        }                                                                                          \
        return real_##name(fd, parts, count, at);                                                  \
    }
DEFINE_GATHERED(pwritev, off_t)
DEFINE_GATHERED(pwritev64, off64_t)

#define DEFINE_SYNC(kind, name)                                                                    \
    SHOWN int name(int fd) {                                                                       \
        REAL(int, name, int)                                                                       \
        const char *path = shim_path_of_fd(fd);                                                         \
        int told = shim_verdict(kind, path);                                                            \
        shim_tell(kind, path, told > 0 ? told : 0);                                                \
        if (told > 0) {                                                                            \
            errno = told;                                                                          \
            return -1;                                                                             \
        }                                                                                          \
        return real_##name(fd);                                                                    \
    }
DEFINE_SYNC(FSYNC, fsync)
DEFINE_SYNC(FDATASYNC, fdatasync)

#define DEFINE_FCNTL(name)                                                                         \
    SHOWN int name(int fd, int command, ...) {                                                     \
        REAL(int, name, int, int, ...)                                                             \
        va_list more;                                                                              \
        va_start(more, command);                                                                   \
        void *value = va_arg(more, void *);                                                        \
        va_end(more);                                                                              \
        const char *path = shim_path_of_fd(fd);                                                         \
        FAIL_IF_TOLD(FCNTL, path, -1)                                                              \
        int result = real_##name(fd, command, value);                                              \
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {                                    \
            shim_mark_fd(result, path);                                                                 \
        }                                                                                          \
        return result;                                                                             \
    }
DEFINE_FCNTL(fcntl)
DEFINE_FCNTL(fcntl64)

SHOWN int dup(int fd) {
    REAL(int, dup, int)
    const char *path = shim_path_of_fd(fd);
    FAIL_IF_TOLD(FCNTL, path, -1)
    int result = real_dup(fd);
    shim_mark_fd(result, path);
    return result;
}

SHOWN int close(int fd) {
    REAL(int, close, int)
    const char *path = shim_path_of_fd(fd);
    int told = shim_verdict(CLOSE, path);
    if (path != NULL) {
        shim_mark_fd(fd, NULL);
    }
    int result = real_close(fd);
    if (told > 0) {
        errno = told;
        return -1;
    }
    return result;
}

/* --- directories ------------------------------------------------------------------------------ */

SHOWN int closedir(DIR *folder) {
    REAL(int, closedir, DIR *)
    int fd = dirfd(folder);
    int told = shim_verdict(CLOSE, shim_path_of_fd(fd));
    shim_mark_fd(fd, NULL);
    int result = real_closedir(folder);
    if (told > 0) {
        errno = told;
        return -1;
    }
    return result;
}

#define DEFINE_READDIR(type, name)                                                                 \
    SHOWN struct type *name(DIR *folder) {                                                         \
        REAL(struct type *, name, DIR *)                                                           \
        FAIL_IF_TOLD(READDIR, shim_path_of_fd(dirfd(folder)), NULL)                                     \
        return real_##name(folder);                                                                \
    }
DEFINE_READDIR(dirent, readdir)
DEFINE_READDIR(dirent64, readdir64)

SHOWN DIR *fdopendir(int fd) {
    REAL(DIR *, fdopendir, int)
    FAIL_IF_TOLD(READDIR, shim_path_of_fd(fd), NULL)
    return real_fdopendir(fd);
}

SHOWN DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *)
    const char *watched = shim_path_at(AT_FDCWD, path, NULL);
    FAIL_IF_TOLD(READDIR, watched, NULL)
    DIR *folder = real_opendir(path);
    if (folder != NULL) {
        shim_mark_fd(dirfd(folder), watched);
    }
    return folder;
}

/* --- maps ------------------------------------------------------------------------------------- */

#define DEFINE_MMAP(name, offset)                                                                  \
    SHOWN void *name(void *at, size_t bytes, int prot, int flags, int fd, offset from) {           \
        REAL(void *, name, void *, size_t, int, int, int, offset)                                  \
        const char *path = flags & MAP_ANONYMOUS ? NULL : shim_path_of_fd(fd);                          \
        FAIL_IF_TOLD(MMAP, path, MAP_FAILED)                                                       \
        void *result = real_##name(at, bytes, prot, flags, fd, from);                              \
        if (path != NULL && result != MAP_FAILED) {                                                \
            shim_mark_map(result, bytes, path);                                                         \
        }                                                                                          \
        return result;                                                                             \
    }
DEFINE_MMAP(mmap, off_t)
DEFINE_MMAP(mmap64, off64_t)

SHOWN int munmap(void *at, size_t bytes) {
    REAL(int, munmap, void *, size_t)
    FAIL_IF_TOLD(MUNMAP, shim_path_of_map(at), -1)
    shim_drop_map(at);
    return real_munmap(at, bytes);
}

SHOWN int madvise(void *at, size_t bytes, int advice) {
    REAL(int, madvise, void *, size_t, int)
    FAIL_IF_TOLD(MADVISE, shim_path_of_map(at), -1)
    return real_madvise(at, bytes, advice);
}

SHOWN int msync(void *at, size_t bytes, int flags) {
    REAL(int, msync, void *, size_t, int)
    const char *path = shim_path_of_map(at);
    int told = shim_verdict(MSYNC, path);
    shim_tell(MSYNC, path, told > 0 ? told : 0);
    if (told > 0) {
        errno = told;
        return -1;
    }
    return real_msync(at, bytes, flags);
}

SHOWN long syscall(long number, ...) {
    REAL(long, syscall, long, ...)
    va_list more;
    va_start(more, number);
    long a = va_arg(more, long), b = va_arg(more, long), c = va_arg(more, long);
    long d = va_arg(more, long), e = va_arg(more, long), f = va_arg(more, long);
    va_end(more);
    if (number == SYS_futex) {
        FAIL_IF_TOLD(FUTEX, shim_path_of_map((const void *)a), -1)
    } else if (number == SYS_statx) {
        char room[PATH_BYTES];
        FAIL_IF_TOLD(STAT, shim_path_at((int)a, (const char *)b, room), -1)
    }
    return real_syscall(number, a, b, c, d, e, f);
}
