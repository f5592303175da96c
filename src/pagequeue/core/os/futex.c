/* Clocks, spinning, sleeping and waking: with os/writers_lock.c the only system-dependent file.
 *
 * A waiter loads the doorbell's value, sets the flag that somebody may be asleep, polls once more,
 * and sleeps only while the doorbell still has that value. A publisher publishes, and only if the
 * flag is set moves the doorbell and wakes all. Both put a full fence between their store and
 * their load, so at least one of them sees the other's store (I7). A publisher that dies between
 * publishing and waking wakes no waiter: that is why no sleep is longer than a slice.
 *
 * Linux sleeps on a futex in the shared map. macOS has no public futex on shared files, so there a
 * sleep is a short nap and waking does not do anything.
 */
#include "protocol/protocol.h"

#include <errno.h>
#include <sched.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define SLEEP_WITHOUT_FUTEX_NS 500000

static int64_t clock_ns(clockid_t which) {
    struct timespec now;
    clock_gettime(which, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t pq_clock_realtime(void) { return clock_ns(CLOCK_REALTIME); }

static int64_t monotonic_offset, boot_offset;

/* How far these clocks of this time namespace are ahead of the host's. */
void pq_clock_set_offsets(int64_t monotonic_ns, int64_t boot_ns) {
    __atomic_store_n(&monotonic_offset, monotonic_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&boot_offset, boot_ns, __ATOMIC_RELAXED);
}

/* The time since the host was started, also while it slept. */
int64_t pq_clock_boot(void) {
#if defined(CLOCK_BOOTTIME)
    return clock_ns(CLOCK_BOOTTIME) - __atomic_load_n(&boot_offset, __ATOMIC_RELAXED);
#else
    return clock_ns(CLOCK_MONOTONIC); /* of macOS, which counts that too */
#endif
}

/* The host's, so that times in files mean the same in every time namespace. */
int64_t pq_clock_monotonic(void) {
    return clock_ns(CLOCK_MONOTONIC) - __atomic_load_n(&monotonic_offset, __ATOMIC_RELAXED);
}

int64_t pq_clock_coarse(void) {
#if defined(CLOCK_MONOTONIC_COARSE)
    return clock_ns(CLOCK_MONOTONIC_COARSE);
#else
    return clock_ns(CLOCK_MONOTONIC);
#endif
}

void pq_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

void pq_yield(void) { sched_yield(); }

void pq_sleep_ns(int64_t ns) {
    struct timespec span = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&span, NULL);
}

uint32_t pq_doorbell(const uint8_t *meta) { return pq_load_u32(meta + PQ_WRITE_META_DOORBELL); }

void pq_register(uint8_t *meta) {
    __atomic_store_n((uint32_t *)(meta + PQ_WRITE_META_WAITERS), 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Sleep while a word has a value, but no longer than `ns`. -1 = a signal came. */
static int sleep_at(const uint8_t *word, uint32_t value, int64_t ns) {
#if defined(__linux__)
    struct timespec span = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    long result = syscall(SYS_futex, word, FUTEX_WAIT, value, &span, NULL, 0);
    return result < 0 && errno == EINTR ? -1 : 0;
#else
    (void)word;
    (void)value;
    pq_sleep_ns(ns < SLEEP_WITHOUT_FUTEX_NS ? ns : SLEEP_WITHOUT_FUTEX_NS);
    return 0;
#endif
}

/* Returns how many were asleep. */
static int wake_at(const uint8_t *word) {
#if defined(__linux__)
    return (int)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
    return 0;
#endif
}

void pq_sleep(const uint8_t *meta, uint32_t doorbell, int64_t ns) {
    sleep_at(meta + PQ_WRITE_META_DOORBELL, doorbell, ns);
}

void pq_wake(uint8_t *meta) {
    uint32_t *waiters = (uint32_t *)(meta + PQ_WRITE_META_WAITERS);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(waiters, __ATOMIC_RELAXED) == 0) {
        return;
    }
    __atomic_exchange_n(waiters, 0, __ATOMIC_SEQ_CST);
    __atomic_add_fetch((uint32_t *)(meta + PQ_WRITE_META_DOORBELL), 1, __ATOMIC_SEQ_CST);
    wake_at(meta + PQ_WRITE_META_DOORBELL);
}

/* A sender that waits for room announces the sequence below which all must be done, plans once more
 * and sleeps while the bell has the value that this returns. Of several the lowest counts: the
 * others wake early, and announce again. */
uint32_t pq_room_prepare(uint8_t *meta, uint64_t sequence) {
    uint64_t *wanted = (uint64_t *)(meta + PQ_WRITE_META_ROOM_WANTED);
    uint32_t bell = pq_load_u32(meta + PQ_WRITE_META_ROOM_BELL);
    uint64_t found = __atomic_load_n(wanted, __ATOMIC_RELAXED);
    while ((found == 0 || found > sequence + 1) &&
           !__atomic_compare_exchange_n(wanted, &found, sequence + 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return bell;
}

void pq_room_sleep(const uint8_t *meta, uint32_t bell, int64_t ns) {
    sleep_at(meta + PQ_WRITE_META_ROOM_BELL, bell, ns);
}

/* After a store that makes all below `sequence` done for one consumer or group. */
void pq_room_wake(uint8_t *meta, uint64_t sequence) {
    uint64_t *wanted = (uint64_t *)(meta + PQ_WRITE_META_ROOM_WANTED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint64_t found = __atomic_load_n(wanted, __ATOMIC_RELAXED);
    if (found == 0 || sequence + 1 < found) {
        return;
    }
    __atomic_exchange_n(wanted, 0, __ATOMIC_SEQ_CST);
    __atomic_add_fetch((uint32_t *)(meta + PQ_WRITE_META_ROOM_BELL), 1, __ATOMIC_SEQ_CST);
    wake_at(meta + PQ_WRITE_META_ROOM_BELL);
}

/* A process that waits for a flush sleeps on the turn, which only flushers move: the doorbell
 * would wake them all for every message. -1 = a signal came. */
int pq_sleep_turn(const uint8_t *meta, uint32_t turn, int64_t ns) {
    return sleep_at(meta + PQ_WRITE_META_FLUSH_TURN, turn, ns);
}

/* Returns how many were asleep. */
int pq_wake_turn(const uint8_t *meta) { return wake_at(meta + PQ_WRITE_META_FLUSH_TURN); }
