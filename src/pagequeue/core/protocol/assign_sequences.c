/* Frames of a staged page, rewritten for their final place in the queue. */
#include "protocol/protocol.h"
#include "protocol/index.h"

/* Rewrite the frames of a page that has no readers yet for another queue: sequences from
 * `first_sequence` on, each frame a batch of its own, and a new timestamp if one is given. Returns
 * 0 if every frame was valid, none the head of a large message, and is rewritten. */
int pq_assign_sequences(const pq_place *at, uint64_t count, uint32_t queue_state,
                        uint64_t first_sequence, int64_t timestamp, uint64_t *done) {
    uint64_t position = PQ_PAGE_HEADER_BYTES;
    for (uint64_t i = 0;; i++) {
        pq_frame frame;
        pq_read_result found = pq_check_at(at, position, at->first_sequence + i, &frame);
        *done = i;
        if (i == count && found == PQ_READ_NOTHING) {
            return 0;
        }
        if (found != (i == count ? PQ_READ_END : PQ_READ_FRAME) || pq_is_large(frame.word)) {
            return -1; /* a head is never staged here, and would become an end-of-page mark */
        }
        int64_t time = timestamp == PQ_TIMESTAMP_NOW ? frame.timestamp : timestamp;
        uint32_t word = frame.word & ~(uint32_t)PQ_MORE_OF_BATCH;
        uint32_t state = pq_crc_update(queue_state, frame.payload, frame.payload_bytes);
        uint32_t sum = pq_frame_checksum(state, time, first_sequence + i, word);
        uint8_t *place = at->page + position;
        memcpy(place + PQ_FRAME_CHECKSUM, &sum, 4);
        memcpy(place + PQ_FRAME_TIMESTAMP, &time, 8);
        pq_store_u32(place, word);
        if (found == PQ_READ_END) {
            return 0;
        }
        index_put(at, i, time, position);
        position = frame.next;
    }
}
