/* Whose turn it is to flush: one process leads, followers sleep, and a group may wait to gather.
 *
 * The turn counts flushes that ended. A process that wants to flush begins the turn, takes the
 * flush lock, syncs, raises the durable sequence, releases the lock, ends the turn and wakes all.
 * The turn is only a hint who should *try*: the lock decides, and only the durable sequence tells
 * what is durable. So any value of these words is harmless. A leader that dies leaves a turn
 * begun; a follower that has slept long enough tries the lock all the same, and gets it, because
 * the kernel released it.
 *
 * No follower sleeps through the end of a turn: it loads the turn first and then the durable
 * sequence, and the kernel lets it sleep only if the turn is unchanged. The leader raises the
 * durable sequence first and ends the turn then.
 *
 * Gathering: the processes woken by one sync are mostly about to send again. The leader publishes
 * the tail that it expects then, and until when it is worth waiting. The process whose message
 * reaches that tail leads at once; earlier ones sleep.
 */
#include "protocol/protocol.h"

#define GATHER_NS_MAX 1000000 /* whatever the file has */

/* Be the first to begin this turn. The turn plus one is stored, so zeros mean "no turn". */
static int claim(uint8_t *meta, uint32_t field, uint32_t turn) {
    uint32_t *word = (uint32_t *)(meta + field), was = __atomic_load_n(word, __ATOMIC_RELAXED);
    return was != turn + 1 && __atomic_compare_exchange_n(word, &was, turn + 1, 0,
                                                          __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* How long to sleep for others before the next sync, 0 = not at all. The first process that
 * sleeps, and does not only poll, watches the time; if it dies, the others notice later. */
static int64_t gathering_ns(uint8_t *meta, uint32_t turn, int sleeps) {
    uint64_t end = pq_load_u64(meta + PQ_WRITE_META_GATHER_TO);
    if (end == 0 || pq_tail_sequence(meta) >= end) {
        return 0;
    }
    int64_t until = (int64_t)pq_load_u64(meta + PQ_WRITE_META_GATHER_UNTIL);
    int64_t now = pq_clock_monotonic();
    if (until <= now || until - GATHER_NS_MAX > now) {
        return 0;
    }
    int watches = sleeps && claim(meta, PQ_WRITE_META_GATHER_BEGUN, turn);
    return until - now + (watches ? 0 : GATHER_NS_MAX);
}

pq_turn_result pq_turn_wait(uint8_t *meta, uint64_t sequence, int64_t ns, int take) {
    uint32_t failed = pq_load_u32(meta + PQ_WRITE_META_FAILED_ERRNO);
    int64_t deadline = 0;
    for (;;) {
        uint32_t turn = pq_load_u32(meta + PQ_WRITE_META_FLUSH_TURN);
        if (pq_load_u32(meta + PQ_WRITE_META_FAILED_ERRNO) != failed) {
            return PQ_TURN_LATCH;
        }
        if (failed == 0 && pq_load_u64(meta + PQ_WRITE_META_DURABLE_SEQUENCE) >= sequence) {
            return PQ_TURN_DURABLE;
        }
        int64_t rest = ns;
        if (pq_load_u32(meta + PQ_WRITE_META_FLUSH_BEGUN) != turn + 1) {
            rest = failed == 0 ? gathering_ns(meta, turn, ns > 0) : 0;
            if (rest == 0) {
                if (!take) {
                    return PQ_TURN_YOURS;
                }
                if (claim(meta, PQ_WRITE_META_FLUSH_BEGUN, turn)) {
                    PQ_KILL_POINT(16); /* a turn that stays begun */
                    return PQ_TURN_YOURS;
                }
                continue;
            }
        }
        int64_t now = ns == 0 ? 0 : pq_clock_monotonic();
        deadline = deadline == 0 ? now + ns : deadline;
        if (now >= deadline ||
            pq_sleep_turn(meta, turn, rest < deadline - now ? rest : deadline - now) < 0) {
            return PQ_TURN_LATE;
        }
    }
}

int pq_turn_end(uint8_t *meta, uint64_t count, int64_t ns) {
    uint32_t *turn = (uint32_t *)(meta + PQ_WRITE_META_FLUSH_TURN);
    PQ_KILL_POINT(17); /* the same, and the mark is raised */
    /* First, so that a process that finds the turn ended finds these. */
    uint64_t end = 0, until = 0;
    if (ns > 0) {
        end = pq_tail_sequence(meta) + count;
        until = (uint64_t)(pq_clock_monotonic() + (ns < GATHER_NS_MAX ? ns : GATHER_NS_MAX));
    }
    pq_store_u64(meta + PQ_WRITE_META_GATHER_UNTIL, until);
    pq_store_u64(meta + PQ_WRITE_META_GATHER_TO, end);
    /* Whichever turn it is by now: one that was begun late must not stay begun. */
    __atomic_add_fetch(turn, 1, __ATOMIC_SEQ_CST);
    return pq_wake_turn(meta);
}
