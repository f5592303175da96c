/* The process's SIGBUS handler: a fault in one of our maps becomes zeros and a mark.
 *
 * Touching a mapped OS page that the file no longer has, or that the disk cannot read, is SIGBUS.
 * The handler finds the map by the fault's address, marks it, and maps private zeros in the place
 * of that OS page; then the instruction is repeated. Code that reads such zeros as an empty slot,
 * or as a wrong checksum, checks the mark before it believes them; so the normal path costs no
 * check. The mark is set before the zeros can be seen.
 *
 * The handler only loads and stores atomically, and calls mmap, mremap, sigaction and
 * get_robust_list. It is installed with the first map. A foreign fault goes to the previous
 * handler, or kills as it would have. Python's faulthandler, when it is enabled after us, prints,
 * installs us again and raises the signal once more, without an address: we return, the
 * instruction faults again, and that fault has an address of ours. When no fault follows, another
 * process sent the signal: a timer sends it once more, and then it kills.
 */
#include "os/sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define CHUNK_GUARDS 64
#define FREE ((uintptr_t)0)
#define TAKEN ((uintptr_t)1)
#define MUTEX_BYTES 64
#define DOUBT_NS 300000000
#if defined(__linux__) && UINTPTR_MAX > UINT32_MAX
#define HAS_DOUBT
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#endif

typedef struct chunk {
    struct chunk *next;
    pq_guard guards[CHUNK_GUARDS];
} chunk;

static chunk first_chunk;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int install_error;
static struct sigaction previous;
static size_t os_page_bytes;
static uint8_t blank_mutex[MUTEX_BYTES]; /* free, and of the kind that the queue uses */

/* --- the handler ------------------------------------------------------------------------------ */

static pq_guard *find(uintptr_t address) {
    for (chunk *at = &first_chunk; at != NULL; at = __atomic_load_n(&at->next, __ATOMIC_ACQUIRE)) {
        for (int i = 0; i < CHUNK_GUARDS; i++) {
            pq_guard *guard = &at->guards[i];
            uintptr_t start = __atomic_load_n(&guard->start, __ATOMIC_ACQUIRE);
            if (start <= TAKEN || address < start ||
                address >= __atomic_load_n(&guard->end, __ATOMIC_ACQUIRE)) {
                continue;
            }
            /* Not one that changed hands meanwhile; the one that is in use here cannot. */
            if (__atomic_load_n(&guard->start, __ATOMIC_ACQUIRE) == start) {
                return guard;
            }
        }
    }
    return NULL;
}

/* A free mutex of the right kind. If this thread holds the lost one, its entry in the thread's list
 * leads back to the list's head, so that an unlock that had begun can take it out. */
static void put_mutex(uint8_t *mutex, uintptr_t final) {
    memcpy(mutex, blank_mutex, MUTEX_BYTES);
#if defined(__linux__) && UINTPTR_MAX > UINT32_MAX
    struct robust_list_head *head = NULL;
    size_t bytes = 0;
    if (syscall(SYS_get_robust_list, 0, &head, &bytes) == 0 && head != NULL) {
        uintptr_t entry = (uintptr_t)head->list.next & ~(uintptr_t)1, back = (uintptr_t)head;
        if (entry >= final + sizeof back && entry + sizeof back <= final + MUTEX_BYTES) {
            memcpy(mutex + (entry - final), &back, sizeof back);               /* next */
            memcpy(mutex + (entry - final) - sizeof back, &back, sizeof back); /* previous */
        }
    }
#else
    (void)final;
#endif
}

#if defined(__linux__)
/* Once for each process, because threads may have taken the new mutex already; made elsewhere and
 * moved there, so that no thread sees it half made. Threads that come meanwhile fault again. */
static int put_mutex_page(pq_guard *guard, uintptr_t at, uintptr_t mutex) {
    int me = (int)getpid(), last = __atomic_load_n(&guard->mutex_put_by, __ATOMIC_RELAXED);
    if (last == me || !__atomic_compare_exchange_n(&guard->mutex_put_by, &last, me, 0,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        return 1;
    }
    uint8_t *made =
        mmap(NULL, os_page_bytes, guard->protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        return 0;
    }
    put_mutex(made + (mutex - at), mutex);
    return mremap(made, os_page_bytes, os_page_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at) !=
           MAP_FAILED;
}
#endif

static int put_zeros(pq_guard *guard, uintptr_t at) {
#if defined(__linux__)
    uint64_t mutex_at = __atomic_load_n(&guard->mutex_at, __ATOMIC_ACQUIRE);
    if (mutex_at != 0 && guard->start + mutex_at - at < os_page_bytes) {
        return put_mutex_page(guard, at, guard->start + mutex_at);
    }
#endif
    return mmap((void *)at, os_page_bytes, guard->protection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static int is_fault(int code) {
#ifdef BUS_MCEERR_AR
    if (code == BUS_MCEERR_AR) { /* the memory itself is broken */
        return 1;
    }
#endif
    return code == BUS_ADRERR || code == BUS_OBJERR;
}

static int handle_fault(uintptr_t address) {
    pq_guard *guard = find(address);
    if (guard == NULL) {
        return 0;
    }
    uintptr_t at = address - address % os_page_bytes;
    __atomic_store_n(&guard->lost_at, (uint64_t)(at - guard->start), __ATOMIC_SEQ_CST);
    return put_zeros(guard, at);
}

static void pass_on(int number, siginfo_t *info, void *context) {
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler == SIG_DFL) {
        sigaction(number, &previous, NULL); /* the instruction faults again, and that kills */
        if (!is_fault(info->si_code) && info->si_code != BUS_ADRALN) {
            kill(getpid(), number); /* it was sent: no fault repeats it */
        }
    } else if (previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else if (is_fault(info->si_code) || info->si_code == BUS_ADRALN) {
        struct sigaction deadly = {.sa_handler = SIG_DFL}; /* SIG_IGN does not apply to a fault */
        sigaction(number, &deadly, NULL);
    }
}

static int raised_again(const siginfo_t *info) {
#ifdef SI_TKILL
    return info->si_code == SI_TKILL && info->si_pid == getpid() &&
           !(previous.sa_flags & SA_SIGINFO) && previous.sa_handler == SIG_DFL;
#else
    (void)info;
    return 0;
#endif
}

#ifdef HAS_DOUBT
static int doubting; /* the thread that waits for its fault to repeat, 0 = none */
static int doubt_timer;

static void doubt(int number) {
    int none = 0, me = (int)syscall(SYS_gettid);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = number};
    struct itimerspec once_only = {.it_value = {.tv_nsec = DOUBT_NS}};
    event.sigev_notify_thread_id = me;
    if (__atomic_compare_exchange_n(&doubting, &none, -1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        int made = syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &doubt_timer) == 0;
        __atomic_store_n(&doubting, made ? me : 0, __ATOMIC_RELEASE);
        if (made) {
            syscall(SYS_timer_settime, doubt_timer, 0, &once_only, NULL);
        }
    }
}

static void end_doubt(void) {
    if (__atomic_load_n(&doubting, __ATOMIC_ACQUIRE) != 0 &&
        __atomic_load_n(&doubting, __ATOMIC_ACQUIRE) == (int)syscall(SYS_gettid)) {
        syscall(SYS_timer_delete, doubt_timer);
        __atomic_store_n(&doubting, 0, __ATOMIC_RELEASE);
    }
}
#else
static void doubt(int number) { (void)number; }
static void end_doubt(void) {}
#endif

static void handle(int number, siginfo_t *info, void *context) {
    int error = errno;
    if (is_fault(info->si_code) && handle_fault((uintptr_t)info->si_addr)) {
        end_doubt();
    } else if (raised_again(info)) {
        doubt(number);
    } else {
        pass_on(number, info, context);
    }
    errno = error;
}

static void install(void) {
    os_page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    pq_lock_reset(blank_mutex);
    struct sigaction ours = {.sa_sigaction = handle,
                             .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    install_error = sigaction(SIGBUS, NULL, &previous) != 0 || sigaction(SIGBUS, &ours, NULL) != 0;
}

/* --- the maps --------------------------------------------------------------------------------- */

static pq_guard *take_from(chunk *at) {
    for (int i = 0; i < CHUNK_GUARDS; i++) {
        uintptr_t expected = FREE;
        if (__atomic_compare_exchange_n(&at->guards[i].start, &expected, TAKEN, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            return &at->guards[i];
        }
    }
    return NULL;
}

pq_guard *pq_guard_take(void) {
    pthread_once(&once, install);
    if (install_error) {
        return NULL;
    }
    for (chunk *at = &first_chunk;;) {
        pq_guard *guard = take_from(at);
        if (guard != NULL) {
            guard->lost_at = PQ_WHOLE;
            guard->mutex_at = 0;
            guard->mutex_put_by = 0;
            return guard;
        }
        chunk *next = __atomic_load_n(&at->next, __ATOMIC_ACQUIRE);
        if (next == NULL) {
            chunk *made = calloc(1, sizeof *made);
            if (made == NULL) {
                return NULL;
            }
            if (__atomic_compare_exchange_n(&at->next, &next, made, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE)) {
                next = made;
            } else {
                free(made); /* another thread was first */
            }
        }
        at = next;
    }
}

void pq_guard_begin(pq_guard *guard, void *base, uint64_t bytes, int protection) {
    guard->protection = protection;
    __atomic_store_n(&guard->end, (uintptr_t)base + (uintptr_t)bytes, __ATOMIC_RELEASE);
    __atomic_store_n(&guard->start, (uintptr_t)base, __ATOMIC_RELEASE);
}

void pq_guard_mutex(pq_guard *guard, uint64_t position) {
    __atomic_store_n(&guard->mutex_at, position, __ATOMIC_RELEASE);
}

void pq_guard_put(pq_guard *guard) { __atomic_store_n(&guard->start, FREE, __ATOMIC_RELEASE); }

void pq_guard_lose(pq_guard *guard) { __atomic_store_n(&guard->lost_at, 0, __ATOMIC_SEQ_CST); }
