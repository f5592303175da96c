/* Frames inside one mapped page: reading, checking, appending, publishing, rolling.
 *
 * A frame is length (the commit word), checksum, timestamp, payload, zero padding. A length of 0
 * means an empty slot; it is stored last, with release order, so a reader that loads it non-zero
 * sees the whole frame (I2). All writes here are made under the writers' lock; they touch no
 * Python object and never block. Whatever the bytes are, no access is outside the page (I9).
 */
#include "protocol/frames.h"
#include "protocol/index.h"

#define HEADER PQ_FRAME_BYTES
#define END_MARK_BYTES PQ_FRAME_BYTES
_Static_assert(PQ_CRC_LANES == 4, "rows are put four at a time");

/* --- reading ---------------------------------------------------------------------------------- */

pq_read_result pq_frame_peek(const uint8_t *page, uint64_t page_bytes, uint64_t position,
                             pq_frame *frame) {
    if (position < PQ_PAGE_HEADER_BYTES || position % PQ_FRAME_ALIGN_BYTES != 0 ||
        page_bytes < HEADER || position > page_bytes - HEADER) {
        return PQ_READ_BAD_LENGTH;
    }
    uint32_t word = pq_load_u32(page + position);
    if (word == 0) {
        return PQ_READ_NOTHING;
    }
    uint64_t length = word & PQ_LENGTH_MASK;
    frame->word = word;
    memcpy(&frame->checksum, page + position + PQ_FRAME_CHECKSUM, 4);
    memcpy(&frame->timestamp, page + position + PQ_FRAME_TIMESTAMP, 8);
    frame->payload = page + position + HEADER;
    if (pq_is_end(word)) { /* its payload describes the fragment that follows it, if there is one */
        if (length < END_MARK_BYTES || pq_aligned(length) > page_bytes - position) {
            return PQ_READ_BAD_LENGTH;
        }
        frame->payload_bytes = (uint32_t)(length - END_MARK_BYTES);
        frame->next = position + pq_aligned(length);
        return PQ_READ_END;
    }
    if (length < HEADER || pq_aligned(length) > page_bytes - position ||
        page_bytes - position - pq_aligned(length) < END_MARK_BYTES) {
        return PQ_READ_BAD_LENGTH;
    }
    frame->payload_bytes = (uint32_t)(length - HEADER);
    frame->next = position + pq_aligned(length);
    return PQ_READ_FRAME;
}

pq_read_result pq_frame_check(const uint8_t *page, uint64_t page_bytes, uint32_t queue_state,
                              uint64_t position, uint64_t sequence, pq_frame *frame) {
    pq_read_result result = pq_frame_peek(page, page_bytes, position, frame);
    if (result != PQ_READ_FRAME && result != PQ_READ_END) {
        return result;
    }
    uint32_t sum = pq_frame_sum(queue_state, frame->payload, frame->payload_bytes,
                                frame->timestamp, sequence, frame->word);
    if (sum != frame->checksum && !PQ_PLANTED(no_checksum)) {
        return PQ_READ_BAD_CHECKSUM;
    }
    return result;
}

size_t pq_frames_check(const uint8_t *page, uint64_t page_bytes, uint32_t queue_state,
                       uint64_t position, uint64_t sequence, size_t most, pq_frame *frames) {
    size_t count = 0, good = 0;
    int is_even = 1; /* all of one size */
    uint64_t distance = 0;
    most = most < PQ_CRC_LANES ? most : PQ_CRC_LANES;
    /* While they are, a place does not wait for the length of the frame before it to be loaded. */
    while (count < most && is_even &&
           pq_frame_peek(page, page_bytes, position + count * distance, &frames[count]) ==
               PQ_READ_FRAME) {
        is_even = frames[count].payload_bytes == frames[0].payload_bytes;
        distance = frames[0].next - position;
        count++;
        if (frames[0].payload_bytes > PQ_CRC_LANES_BYTES_MAX) {
            break; /* the next one may not be asked for: bytes limit a batch too */
        }
    }
    uint32_t sums[PQ_CRC_LANES];
    if (count == PQ_CRC_LANES && is_even) {
        pq_frame_sums(sums, queue_state, frames, sequence);
    } else {
        for (size_t i = 0; i < count; i++) {
            sums[i] = pq_frame_sum(queue_state, frames[i].payload, frames[i].payload_bytes,
                                   frames[i].timestamp, sequence + i, frames[i].word);
        }
    }
    while (good < count && (sums[good] == frames[good].checksum || PQ_PLANTED(no_checksum))) {
        good++;
    }
    return good;
}

/* --- the tail --------------------------------------------------------------------------------- */

uint8_t *pq_tail_word(uint8_t *meta, uint64_t page_number) {
    return meta + (page_number & 1 ? PQ_WRITE_META_TAIL_ODD : PQ_WRITE_META_TAIL_EVEN);
}

uint8_t *pq_first_word(uint8_t *meta, uint64_t page_number) {
    return meta + (page_number & 1 ? PQ_WRITE_META_FIRST_ODD : PQ_WRITE_META_FIRST_EVEN);
}

/* Without the lock: a roll writes the other page's words first and the page number last, so the
 * words read belong to the number read unless two rolls came between. */
void pq_tail_load(const uint8_t *meta, pq_tail *tail) {
    uint64_t number, again, word;
    do {
        number = pq_load_u64(meta + PQ_WRITE_META_PAGE_NUMBER);
        word = pq_load_u64(pq_tail_word((uint8_t *)meta, number));
        tail->first_sequence = pq_load_u64(pq_first_word((uint8_t *)meta, number));
        tail->last_timestamp = (int64_t)pq_load_u64(meta + PQ_WRITE_META_LAST_TIMESTAMP);
        again = pq_load_u64(meta + PQ_WRITE_META_PAGE_NUMBER);
    } while (again != number);
    tail->page_number = number;
    tail->position = word >> 32;
    tail->count = word & UINT32_MAX;
}

static void tail_advance(const pq_place *at, uint64_t position, uint64_t count) {
    pq_store_u64(pq_tail_word(at->meta, at->page_number), position << 32 | count);
}

/* Only while the caller has the queue open exclusively. */
void pq_tail_store(uint8_t *meta, const pq_tail *tail) {
    pq_store_u64(pq_tail_word(meta, tail->page_number), tail->position << 32 | tail->count);
    pq_store_u64(pq_first_word(meta, tail->page_number), tail->first_sequence);
    pq_store_u64(meta + PQ_WRITE_META_LAST_TIMESTAMP, (uint64_t)tail->last_timestamp);
    pq_store_u64(meta + PQ_WRITE_META_PAGE_NUMBER, tail->page_number);
}

/* --- appending -------------------------------------------------------------------------------- */

/* Under the lock: bring the tail word up to what is published. Costs one load when, as nearly
 * always, no holder died. */
pq_append_result pq_resolve_tail(const pq_place *at, uint64_t *position, uint64_t *count) {
    uint64_t word = pq_load_u64(pq_tail_word(at->meta, at->page_number));
    *position = word >> 32;
    *count = word & UINT32_MAX;
    pq_frame frame;
    uint64_t place = *position, passed = *count;
    for (;;) {
        /* A holder that died between publishing and advancing left whole frames here (I3). The
         * tail is advanced by whole batches, as it would have been: it is read without the lock. */
        pq_read_result found = pq_check_at(at, place, at->first_sequence + passed, &frame);
        if (found == PQ_READ_NOTHING) {
            break;
        }
        if (found == PQ_READ_END) {
            return PQ_APPEND_FULL; /* A holder died in the middle of a roll: finish it. */
        }
        if (found != PQ_READ_FRAME) {
            return PQ_APPEND_DAMAGED;
        }
        index_put(at, passed, frame.timestamp, place);
        place = frame.next;
        passed += 1;
        if (!pq_has_more(frame.word)) {
            if (frame.timestamp > (int64_t)pq_load_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP)) {
                pq_store_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP, (uint64_t)frame.timestamp);
            }
            tail_advance(at, place, passed);
            *position = place;
            *count = passed;
        }
    }
    if (pq_load_u64(at->meta + PQ_WRITE_META_BATCH_OPEN) > at->first_sequence + *count) {
        /* That batch was begun and not published: its holder died. Its later frames are in the
         * page with their lengths; after a power cut they could join frames that the next producer
         * appends before them. So this page is left for good: no reader passes its end-of-page
         * marker (I8). */
        return PQ_APPEND_FULL;
    }
    return PQ_APPEND_DONE;
}

/* Put a row together from its columns' values. */
static void row_put(uint8_t *to, const pq_batch *rows, size_t i) {
    if (rows->has_gaps) {
        memset(to, 0, rows->row_bytes);
    }
    for (size_t c = 0; c < rows->column_count; c++) {
        const pq_column *column = &rows->columns[c];
        const uint8_t *value = column->data + (int64_t)i * column->stride;
        switch (column->bytes) { /* those that a compiler copies without a call */
        case 4: memcpy(to + column->at, value, 4); break;
        case 8: memcpy(to + column->at, value, 8); break;
        default: memcpy(to + column->at, value, column->bytes); break;
        }
    }
}

/* The payloads of the next few rows, and the states of their checksums. */
static void rows_put(const pq_place *at, uint8_t *frame, const pq_batch *rows, size_t i,
                     uint32_t *states) {
    size_t distance = (size_t)pq_aligned(HEADER + rows->row_bytes), left = rows->count - i;
    size_t count = left < PQ_CRC_LANES ? left : PQ_CRC_LANES;
    for (size_t row = 0; row < count; row++) {
        row_put(frame + row * distance + HEADER, rows, i + row);
    }
    if (count == PQ_CRC_LANES) {
        const uint8_t *payload = frame + HEADER;
        const uint8_t *const pieces[PQ_CRC_LANES] = {payload, payload + distance,
                                                     payload + 2 * distance, payload + 3 * distance};
        pq_crc_lanes(states, at->queue_state, pieces, rows->row_bytes);
        return;
    }
    for (size_t row = 0; row < count; row++) {
        states[row] = pq_crc_update(at->queue_state, frame + row * distance + HEADER,
                                    rows->row_bytes);
    }
}

static uint32_t item_put(const pq_place *at, uint8_t *frame, const pq_payload *item) {
    if (!item->summed) {
        return pq_crc_copy(at->queue_state, frame + HEADER, item->data, item->bytes);
    }
    memcpy(frame + HEADER, item->data, item->bytes);
    return item->state;
}

/* All of a frame but its payload and its length; `state` is the payload's. */
static uint32_t frame_put(uint8_t *frame, uint64_t bytes, uint32_t state, uint64_t sequence,
                          int64_t timestamp, uint32_t flags) {
    uint32_t word = (uint32_t)(HEADER + bytes) | flags;
    uint32_t sum = pq_frame_checksum(state, timestamp, sequence, word);
    memcpy(frame + PQ_FRAME_CHECKSUM, &sum, 4);
    memcpy(frame + PQ_FRAME_TIMESTAMP, &timestamp, 8);
    memset(frame + HEADER + bytes, 0, (size_t)(pq_aligned(bytes) - bytes));
    return word;
}

int pq_is_active(const pq_place *at) {
    return pq_load_u64(at->meta + PQ_WRITE_META_PAGE_NUMBER) == at->page_number;
}

/* Under the lock. All of the batch or none of it: the first length makes it visible at once. With
 * times for each message, `exact` is the first of them. */
pq_append_result pq_append(const pq_place *at, const pq_batch *batch, int64_t now, int64_t exact,
                           pq_appended *out) {
    size_t item_count = batch->count;
    uint64_t position, count;
    if (pq_load_u32(at->meta + PQ_WRITE_META_FAILED_ERRNO) != 0) {
        return PQ_APPEND_FAILED;
    }
    if (!pq_is_active(at)) {
        return PQ_APPEND_MOVED;
    }
    pq_append_result allowed = pq_resolve_tail(at, &position, &count);
    if (allowed != PQ_APPEND_DONE) {
        return allowed;
    }
    if (at->only_at != 0 && at->only_at != at->first_sequence + count + 1) {
        out->sequence = at->first_sequence + count; /* I21 */
        return PQ_APPEND_OVERTAKEN;
    }
    if (at->sequence_limit != 0 && at->first_sequence + count + item_count > at->sequence_limit) {
        return PQ_APPEND_OVER_LIMIT;
    }
    int64_t last = (int64_t)pq_load_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP);
    if (exact != PQ_TIMESTAMP_NOW && exact < last) {
        return PQ_APPEND_OLD;
    }
    int64_t timestamp = exact != PQ_TIMESTAMP_NOW ? exact : now > last ? now : last;
    uint64_t end = position;
    for (size_t i = 0; i < item_count; i++) {
        end += pq_aligned(HEADER + pq_batch_bytes(batch, i));
    }
    if (end + END_MARK_BYTES > at->page_bytes || count + item_count > at->index_capacity) {
        return PQ_APPEND_FULL;
    }
    if (at->reserved_bytes != 0 && (end + END_MARK_BYTES > at->reserved_bytes ||
                                    count + item_count >= at->reserved_records)) {
        return PQ_APPEND_UNRESERVED;
    }
    uint64_t sequence = at->first_sequence + count;
    if (sequence > PQ_SEQUENCE_MAX - item_count) {
        return PQ_APPEND_EXHAUSTED;
    }
    PQ_KILL_POINT(1);
    /* P1. Zero the commit word after the last frame, and the index record after its record.
     *     Dies here: no message is visible; the next producer starts at the same position (I4). */
    if (!PQ_PLANTED(no_zero_next)) {
        pq_store_u32(at->page + end, 0);
    }
    index_end(at, count + item_count);
    if (item_count > 1) {
        pq_store_u64(at->meta + PQ_WRITE_META_BATCH_OPEN, sequence + 1);
    }
    PQ_KILL_POINT(2);
    uint32_t first_length = 0;
    if (PQ_PLANTED(length_first)) {
        pq_store_u32(at->page + position, (uint32_t)(HEADER + pq_batch_bytes(batch, 0)));
    }
    uint64_t place = position;
    uint32_t states[PQ_CRC_LANES];
    for (size_t i = 0; i < item_count; i++) {
        /* P2. Payload, header but the length, index record: timestamp before position.
         *     Dies here: the same; after a batch the page is left (I8). */
        uint32_t more = i + 1 < item_count ? (uint32_t)PQ_MORE_OF_BATCH : 0;
        uint8_t *frame = at->page + place;
        uint64_t bytes = pq_batch_bytes(batch, i);
        size_t lane = i % PQ_CRC_LANES;
        if (batch->items != NULL) {
            states[lane] = item_put(at, frame, &batch->items[i]);
        } else if (lane == 0) {
            rows_put(at, frame, batch, i, states);
        }
        timestamp = batch->times != NULL ? batch->times[i] : timestamp;
        uint32_t word = frame_put(frame, bytes, states[lane], sequence + i, timestamp, more);
        index_put(at, count + i, timestamp, place);
        if (i == 0 && !(PQ_PLANTED(batch_first_length_first))) {
            first_length = word;
        } else {
            pq_store_u32(frame, word);
        }
        place += pq_aligned(HEADER + bytes);
        PQ_KILL_POINT(3);
    }
    PQ_KILL_POINT(4);
    /* P3. Publish. Dies right after: the frames are whole and visible; the next producer advances
     *     the tail word (I3). After a power cut this can be on disk without P2: there the
     *     checksum decides, not the length. */
    if (!PQ_PLANTED(batch_first_length_first)) {
        pq_store_u32(at->page + position, first_length);
    }
    PQ_KILL_POINT(5);
    /* P4. Advance the last timestamp, then position and count in one store, so that these two
     *     cannot drift apart. Dies before or between: resolved by the next producer (I3). */
    pq_store_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP, (uint64_t)timestamp);
    PQ_KILL_POINT(6);
    tail_advance(at, end, count + item_count);
    PQ_KILL_POINT(7);
    out->sequence = sequence;
    out->position = end;
    out->timestamp = timestamp;
    return PQ_APPEND_DONE;
}

static uint32_t header_checksum(const uint8_t *header) {
    uint8_t cleared[PQ_PAGE_HEADER_BYTES];
    memcpy(cleared, header, sizeof cleared);
    memset(cleared + PQ_PAGE_HEADER_CHECKSUM, 0, 4);
    return ~pq_crc_update(PQ_CRC_START, cleared, sizeof cleared);
}

/* Whether a page has its final header: valid, of this page of this queue, with this sequence. */
int pq_header_matches(const uint8_t *page, const uint8_t *wanted, uint64_t sequence) {
    uint8_t found[PQ_PAGE_HEADER_BYTES];
    uint32_t checksum;
    memcpy(found, page, sizeof found);
    memcpy(&checksum, found + PQ_PAGE_HEADER_CHECKSUM, 4);
    return checksum == header_checksum(found) &&
           memcmp(found + PQ_PAGE_HEADER_FIRST_SEQUENCE, &sequence, 8) == 0 &&
           memcmp(found + PQ_PAGE_HEADER_PAGE_NUMBER, wanted + PQ_PAGE_HEADER_PAGE_NUMBER, 8) ==
               0 &&
           memcmp(found + PQ_PAGE_HEADER_QUEUE_ID, wanted + PQ_PAGE_HEADER_QUEUE_ID, 16) == 0;
}

void pq_put_end_mark(const pq_place *at, uint64_t position, uint64_t count, int64_t last) {
    uint8_t *mark = at->page + position;
    uint32_t word = PQ_END_OF_PAGE | END_MARK_BYTES;
    uint32_t sum = pq_frame_checksum(at->queue_state, last, at->first_sequence + count, word);
    memcpy(mark + PQ_FRAME_CHECKSUM, &sum, 4);
    memcpy(mark + PQ_FRAME_TIMESTAMP, &last, 8);
    pq_store_u32(mark, word);
    index_end(at, count);
}

/* Under the lock: continue in `next_page`, a prepared file of full size under its final name; its
 * other content does not matter. `header` is its whole header except what only the roll knows.
 * Every step can be repeated, so a roll whose holder died is finished by repeating all of it. */
pq_append_result pq_roll(const pq_place *at, uint8_t *next_page, const uint8_t *header) {
    uint64_t position, count, next_number;
    memcpy(&next_number, header + PQ_PAGE_HEADER_PAGE_NUMBER, 8);
    if (!pq_is_active(at) || next_number != at->page_number + 1 || next_page == at->page) {
        return PQ_APPEND_MOVED; /* or the caller was interrupted by a roll of its own thread */
    }
    if (pq_resolve_tail(at, &position, &count) == PQ_APPEND_DAMAGED) {
        return PQ_APPEND_DAMAGED;
    }
    int64_t last = (int64_t)pq_load_u64(at->meta + PQ_WRITE_META_LAST_TIMESTAMP);
    uint64_t sequence = at->first_sequence + count;
    PQ_KILL_POINT(11);
    /* R1. The next page's header, with its first sequence. Skipped if it is there: when R3 was
     *     done before, readers are in that page already.
     *     Dies here, or in the middle: no reader is in that page yet; the step is repeated. */
    if (!pq_header_matches(next_page, header, sequence)) {
        uint8_t complete[PQ_PAGE_HEADER_BYTES];
        memcpy(complete, header, sizeof complete);
        memcpy(complete + PQ_PAGE_HEADER_FIRST_SEQUENCE, &sequence, 8);
        memcpy(complete + PQ_PAGE_HEADER_FLOOR_TIMESTAMP, &last, 8);
        uint32_t checksum = header_checksum(complete);
        memcpy(complete + PQ_PAGE_HEADER_CHECKSUM, &checksum, 4);
        memcpy(next_page, complete, sizeof complete);
        pq_store_u32(next_page + PQ_PAGE_HEADER_BYTES, 0);
    }
    PQ_KILL_POINT(12);
    /* R2. Its tail words, in the half of the write meta that the active page does not use.
     *     Dies here: the same. */
    uint64_t number = at->page_number + 1;
    pq_store_u64(pq_first_word(at->meta, number), sequence);
    pq_store_u64(pq_tail_word(at->meta, number), (uint64_t)PQ_PAGE_HEADER_BYTES << 32);
    PQ_KILL_POINT(13);
    /* R3. The end-of-page marker, its length last: readers continue in the next page from here.
     *     Dies here: the next producer finds the marker at its tail and repeats all steps. */
    pq_frame there; /* one that is there stays: a fragment can follow it */
    if (pq_check_at(at, position, sequence, &there) != PQ_READ_END) {
        pq_put_end_mark(at, position, count, last);
    }
    PQ_KILL_POINT(14);
    /* R4. Producers continue in the next page from here. */
    pq_store_u64(at->meta + PQ_WRITE_META_BATCH_OPEN, 0);
    pq_store_u64(at->meta + PQ_WRITE_META_PAGE_NUMBER, number);
    PQ_KILL_POINT(15);
    return PQ_APPEND_DONE;
}
