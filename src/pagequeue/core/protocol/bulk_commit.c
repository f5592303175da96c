/* Bulk commit: the end-of-page marker before the first of many pages publishes them all (I19).
 *
 * All of it runs under the writers' lock, touches no Python object and never blocks.
 */
#include "protocol/frames.h"

/* Under the lock: freeze the page, as after the batch of a holder that died (I8). No message is
 * appended to it from here on; a producer must roll. */
pq_append_result pq_freeze(const pq_place *at, pq_tail *tail) {
    if (pq_load_u32(at->meta + PQ_WRITE_META_FAILED_ERRNO) != 0) {
        return PQ_APPEND_FAILED;
    }
    if (!pq_is_active(at)) {
        return PQ_APPEND_MOVED;
    }
    if (pq_resolve_tail(at, &tail->position, &tail->count) == PQ_APPEND_DAMAGED) {
        return PQ_APPEND_DAMAGED;
    }
    pq_frame frame;
    if (pq_frame_peek(at->page, at->page_bytes, tail->position, &frame) == PQ_READ_END) {
        return PQ_APPEND_FULL; /* a holder died during a roll: finish that first */
    }
    tail->page_number = at->page_number;
    tail->first_sequence = at->first_sequence;
    tail->last_timestamp = (int64_t)pq_load_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP);
    pq_store_u64(at->meta + PQ_WRITE_META_BATCH_OPEN, at->first_sequence + tail->count + 1);
    PQ_KILL_POINT(31);
    return PQ_APPEND_DONE;
}

/* Under the lock, in a frozen page: publish all pages from the next one up to `beyond`, which
 * exist complete under their final names, by one store. Every step can be repeated. */
pq_append_result pq_commit_pages(const pq_place *at, const uint8_t *next_page,
                                 const uint8_t *header, const pq_tail *beyond) {
    uint64_t position, count;
    if (!pq_is_active(at) || (beyond->page_number - at->page_number) % 2 == 0) {
        return PQ_APPEND_MOVED;
    }
    if (pq_resolve_tail(at, &position, &count) == PQ_APPEND_DAMAGED ||
        position > at->page_bytes - PQ_FRAME_BYTES) {
        return PQ_APPEND_DAMAGED;
    }
    int64_t last = (int64_t)pq_load_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP);
    uint64_t sequence = at->first_sequence + count;
    if (!pq_header_matches(next_page, header, sequence)) {
        return PQ_APPEND_DAMAGED; /* messages were published first: its sequences are wrong */
    }
    pq_frame frame; /* no marker after a partial batch: it is never read */
    int is_marked = pq_check_at(at, position, sequence, &frame) == PQ_READ_END;
    if (!is_marked && pq_load_u32(at->meta + PQ_WRITE_META_FAILED_ERRNO) != 0) {
        return PQ_APPEND_FAILED; /* a sync failed meanwhile: publish no more */
    }
    PQ_KILL_POINT(32);
    /* M6. The tail words of the last page, in the half that the active page does not use: their
     *     numbers are an odd and an even one. Dies here: no message is visible. */
    pq_store_u64(pq_first_word(at->meta, beyond->page_number), beyond->first_sequence);
    pq_store_u64(pq_tail_word(at->meta, beyond->page_number), beyond->position << 32 | beyond->count);
    PQ_KILL_POINT(33);
    /* M7. The end-of-page marker, its length last: all messages are visible from here. Skipped if
     *     it exists: readers check it. Dies here: the next process that rolls does M6 and M8. */
    if (!is_marked) {
        pq_put_end_mark(at, position, count, last);
    }
    PQ_KILL_POINT(34);
    /* M8. Producers continue in the last page from here, and replays see the new tail. */
    if (beyond->last_timestamp > last) {
        pq_store_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP, (uint64_t)beyond->last_timestamp);
    }
    pq_store_u64(at->meta + PQ_WRITE_META_BATCH_OPEN, 0);
    pq_store_u64(at->meta + PQ_WRITE_META_PAGE_NUMBER, beyond->page_number);
    PQ_KILL_POINT(35);
    return PQ_APPEND_DONE;
}
