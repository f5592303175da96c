/* The writers' lock: one for each queue, in its write meta.
 *
 * The kernel releases it when its holder dies, at any instruction; it is never broken by time or
 * by process id. There are two kinds; the field `lock_abi` records which one a queue uses, because
 * the layout of a mutex belongs to the C library:
 *
 * - a robust process-shared mutex, taken only by trylock (a *blocking* lock on one loses wake-ups
 *   when a woken waiter dies: measured, every kill campaign hung);
 * - flock on the write meta, where robust mutexes are missing: macOS, and Linux emulators that do
 *   not implement robust lists. It is slower and does not report a dead holder; nor need it,
 *   because the append reads the tail and resolves what a dead holder left.
 *
 * A robust mutex holds a thread id, and two PID namespaces have the same ids: a thread that dies
 * while it tries the mutex makes the kernel release it for its namesake. So only the threads of
 * one namespace use the mutex. A process of another one is `foreign`: it locks a byte of the file
 * through its own open file, and then stores a mark that is not a valid thread id into the mutex's
 * word. Mutex users find the mutex taken; a mark without a lock on the byte is a dead holder's.
 */
#include "protocol/protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

_Static_assert(sizeof(pthread_mutex_t) <= 64, "the mutex must fit its place in the write meta");
_Static_assert(PQ_WRITE_META_MUTEX % 64 == 0, "the mutex has a cache line of its own");

enum { KIND_FLOCK = 1, KIND_ROBUST = 2 };

static int kind(void) {
    static int known;
    if (known == 0) {
#if defined(__linux__)
        void *head = NULL;
        size_t bytes = 0;
        known = syscall(SYS_get_robust_list, 0, &head, &bytes) == 0 ? KIND_ROBUST : KIND_FLOCK;
#else
        known = KIND_FLOCK;
#endif
    }
    return known;
}

uint32_t pq_lock_abi(void) {
    if (kind() == KIND_FLOCK) {
        return KIND_FLOCK;
    }
    uint32_t library = 0;
#if defined(__GLIBC__)
    library = 1;
#endif
    return KIND_ROBUST | library << 8 | (uint32_t)sizeof(pthread_mutex_t) << 16;
}

int pq_lock_needs_fd(void) { return kind() == KIND_FLOCK; }

#if defined(__linux__)
static int make(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    int error = pthread_mutexattr_init(&attributes);
    if (error == 0) {
        error = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        if (error == 0) {
            error = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        }
        if (error == 0) {
            error = pthread_mutex_init(mutex, &attributes);
        }
        pthread_mutexattr_destroy(&attributes);
    }
    return error;
}

/* Whether it has the kind that it was made with. Another one was written over it, and glibc trusts
 * it: for some it runs instructions that most processors do not have (lock elision), or aborts. */
static int is_robust(const uint8_t *mutex) {
#if defined(__GLIBC__)
    static int made; /* 0 = not known */
    if (made == 0) {
        pthread_mutex_t example = {0};
        if (make(&example) != 0) {
            return 0;
        }
        made = example.__data.__kind;
        pthread_mutex_destroy(&example);
    }
    return ((const pthread_mutex_t *)mutex)->__data.__kind == made;
#else
    return (void)mutex, 1;
#endif
}
#endif

/* Only while the caller alone has the queue open. */
int pq_lock_reset(uint8_t *mutex) {
    memset(mutex, 0, 64);
#if defined(__linux__)
    return kind() == KIND_FLOCK ? 0 : make((pthread_mutex_t *)mutex);
#else
    return 0;
#endif
}

/* --- across PID namespaces -------------------------------------------------------------------- */

#if defined(F_OFD_SETLK)
#define LOCKED_BYTE ((off_t)1 << 39) /* far after the file's end, below the bytes of owners */
#define WORD_TRIES 50
#define MARK 0x3ffffffeu /* above every thread id; 0x3fffffff means something to musl */
#define ID_MASK 0x3fffffffu
#if defined(__GLIBC__)
#define WORD_AT 0
#else
#define WORD_AT 4
#endif

static uint32_t *word_of(const pq_lock *lock) { return (uint32_t *)(lock->mutex + WORD_AT); }

/* The lock belongs to the open file: it ends with the last copy of the descriptor. */
static int lock_byte(int fd, short type) {
    struct flock at = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCKED_BYTE, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &at) == 0) {
        return 0;
    }
    return errno == EAGAIN || errno == EACCES || errno == EINTR ? EBUSY : errno;
}

/* Dies before the mark: no change. Dies with it: the byte is released, and the next process that
 * locks the byte takes the mark over, or removes it; the next append resolves what was begun (I3).
 */
static int foreign_try(pq_lock *lock) {
    if (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
        return EBUSY; /* another thread of this handle, which shares the open file */
    }
    int error = lock_byte(lock->fd, F_WRLCK);
    if (error == 0) {
        PQ_KILL_POINT(41);
        for (int i = 0; i < WORD_TRIES; i++) {
            uint32_t was = __atomic_load_n(word_of(lock), __ATOMIC_RELAXED), id = was & ID_MASK;
            if ((id == 0 || id == MARK) &&
                __atomic_compare_exchange_n(word_of(lock), &was, MARK, 0, __ATOMIC_ACQUIRE,
                                            __ATOMIC_RELAXED)) {
                PQ_KILL_POINT(42);
                return 0;
            }
            pq_pause();
        }
        error = EBUSY; /* a thread has the mutex */
        lock_byte(lock->fd, F_UNLCK);
    }
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
    return error;
}

static void foreign_release(pq_lock *lock) {
    __atomic_store_n(word_of(lock), 0, __ATOMIC_RELEASE);
    PQ_KILL_POINT(43);
    lock_byte(lock->fd, F_UNLCK);
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}

/* A mark is valid only while its holder has the byte: a process that can lock it removes a dead
 * one's. */
void pq_lock_revive(pq_lock *lock) {
    if (kind() != KIND_ROBUST || lock->foreign || lock->fd < 0 ||
        __atomic_load_n(word_of(lock), __ATOMIC_RELAXED) != MARK ||
        __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
        return;
    }
    if (lock_byte(lock->fd, F_WRLCK) == 0) {
        uint32_t was = MARK;
        __atomic_compare_exchange_n(word_of(lock), &was, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        lock_byte(lock->fd, F_UNLCK);
    }
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
#else
static int foreign_try(pq_lock *lock) { return (void)lock, ENOSYS; }
static void foreign_release(pq_lock *lock) { (void)lock; }
void pq_lock_revive(pq_lock *lock) { (void)lock; }
#endif

/* --- taking and releasing --------------------------------------------------------------------- */

/* 0 = taken, EBUSY = somebody has it, else what went wrong. */
int pq_lock_try(pq_lock *lock) {
    if (kind() == KIND_FLOCK) {
        if (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
            return EBUSY;
        }
        if (flock(lock->fd, LOCK_EX | LOCK_NB) == 0) {
            return 0;
        }
        int error = errno;
        __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
        return error == EWOULDBLOCK || error == EINTR ? EBUSY : error;
    }
    if (lock->foreign) {
        return foreign_try(lock);
    }
#if defined(__linux__)
    if (!is_robust(lock->mutex)) {
        return EINVAL;
    }
    int error = pthread_mutex_trylock((pthread_mutex_t *)lock->mutex);
    if (error == EOWNERDEAD) {
        /* Dies here: the next thread is told the same. The next append resolves what the dead
         * holder left (I3), so there is no state to repair before returning. */
        error = pthread_mutex_consistent((pthread_mutex_t *)lock->mutex);
    }
    return error;
#else
    return ENOSYS;
#endif
}

void pq_lock_release(pq_lock *lock) {
    if (kind() == KIND_FLOCK) {
        flock(lock->fd, LOCK_UN);
        __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
        return;
    }
    if (lock->foreign) {
        foreign_release(lock);
        return;
    }
    pthread_mutex_unlock((pthread_mutex_t *)lock->mutex);
}

/* The write meta was truncated while the lock was held, so that unlocking may have found another
 * mutex there. The thread's list must not lead into that map, which goes some day; no other robust
 * mutex is held by a thread that sends. */
void pq_lock_forget(pq_lock *lock) {
#if defined(__linux__)
    struct robust_list_head *head = NULL;
    size_t bytes = 0;
    if (kind() != KIND_ROBUST || syscall(SYS_get_robust_list, 0, &head, &bytes) != 0 ||
        head == NULL) {
        return;
    }
    uintptr_t entry = (uintptr_t)head->list.next & ~(uintptr_t)1, start = (uintptr_t)lock->mutex;
    if (entry >= start && entry < start + sizeof(pthread_mutex_t)) {
        head->list.next = &head->list;
    }
#else
    (void)lock;
#endif
}

#ifdef PAGEQUEUE_KILL_POINTS
#include <signal.h>

static int kill_number;
static long kill_pass;

void pq_kill_set(int number, long pass) {
    kill_number = number;
    kill_pass = pass;
}

void pq_kill_point(int number) {
    if (number == kill_number && --kill_pass <= 0) {
        kill(getpid(), SIGKILL);
    }
}
#endif
