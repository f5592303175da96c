/* Frames of a staged page, rewritten for their final place in the queue. */
#include "protocol/protocol.h"
#include "protocol/index.h"

static void put(const pq_place *at, uint64_t position, const pq_frame *frame, uint32_t sum) {
    uint8_t *place = at->page + position;
    memcpy(place + PQ_FRAME_CHECKSUM, &sum, 4);
    memcpy(place + PQ_FRAME_TIMESTAMP, &frame->timestamp, 8);
    pq_store_u32(place, frame->word);
}

/* The checksums of a few frames that follow one another. */
static void sum_up(uint32_t *sums, uint32_t queue_state, const pq_frame *frames, size_t count,
                   uint64_t sequence) {
    int is_even = count == PQ_CRC_LANES && frames[0].payload_bytes <= PQ_CRC_LANES_BYTES_MAX;
    for (size_t i = 1; i < count; i++) {
        is_even &= frames[i].payload_bytes == frames[0].payload_bytes;
    }
    if (is_even) {
        pq_frame_sums(sums, queue_state, frames, sequence);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        sums[i] = pq_frame_sum(queue_state, frames[i].payload, frames[i].payload_bytes,
                               frames[i].timestamp, sequence + i, frames[i].word);
    }
}

/* Rewrite the frames of a page that has no readers yet for another queue: sequences from
 * `first_sequence` on, each frame a batch of its own or all of them one, and a new timestamp if one
 * is given. Returns 0 if every frame was valid, none the head of a large message, and is rewritten.
 */
int pq_assign_sequences(const pq_place *at, uint64_t count, uint32_t queue_state,
                        uint64_t first_sequence, int64_t timestamp, int one_batch,
                        uint64_t *done) {
    uint64_t position = PQ_PAGE_HEADER_BYTES, i = 0;
    while (i < count) {
        pq_frame frames[PQ_CRC_LANES];
        uint32_t sums[PQ_CRC_LANES];
        size_t most = count - i < PQ_CRC_LANES ? (size_t)(count - i) : PQ_CRC_LANES, good = 0;
        size_t found = pq_frames_check(at->page, at->page_bytes, at->queue_state, position,
                                       at->first_sequence + i, most, frames);
        /* A head is never staged here, and would become an end-of-page mark. */
        for (; good < found && !pq_is_large(frames[good].word); good++) {
            pq_frame *frame = &frames[good];
            frame->timestamp = timestamp == PQ_TIMESTAMP_NOW ? frame->timestamp : timestamp;
            frame->word &= ~(uint32_t)PQ_MORE_OF_BATCH;
            if (one_batch && i + good + 1 < count) {
                frame->word |= (uint32_t)PQ_MORE_OF_BATCH;
            }
        }
        sum_up(sums, queue_state, frames, good, first_sequence + i);
        for (size_t lane = 0; lane < good; lane++) {
            put(at, position, &frames[lane], sums[lane]);
            index_put(at, i + lane, frames[lane].timestamp, position);
            position = frames[lane].next;
        }
        i += good;
        *done = i;
        if (good == 0 || good < found) {
            return -1;
        }
    }
    *done = i;
    pq_frame end;
    pq_read_result found = pq_check_at(at, position, at->first_sequence + i, &end);
    if (found == PQ_READ_NOTHING) {
        return 0;
    }
    if (found != PQ_READ_END) {
        return -1;
    }
    end.timestamp = timestamp == PQ_TIMESTAMP_NOW ? end.timestamp : timestamp;
    put(at, position, &end,
        pq_frame_sum(queue_state, end.payload, end.payload_bytes, end.timestamp,
                     first_sequence + i, end.word));
    return 0;
}
