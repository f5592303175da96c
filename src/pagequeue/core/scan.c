/* Reading a page as a whole: walking its frames, and finding one by time or by number.
 *
 * The index is only a hint here. What it leads to is proved by the frames themselves, whose
 * checksums contain their sequence, so that a wrong index can cost time and never correctness (I6).
 */
#include "core.h"
#include "index.h"

static void scan_index(const pq_place *at, pq_index_use use, uint64_t ordinal, uint64_t position,
                       int64_t timestamp, uint64_t *wrong) {
    int64_t found_timestamp = 0;
    uint64_t found_position = 0;
    if (use == PQ_INDEX_WRITE) {
        index_put(at, ordinal, timestamp, position);
    } else if (use == PQ_INDEX_CHECK) {
        if (!index_get(at, ordinal, &found_timestamp, &found_position) ||
            found_timestamp != timestamp || found_position != position) {
            *wrong += 1;
        }
    }
}

/* Walk frames that validate, from `position` with `sequence` on, until one does not, or until
 * `end_sequence`. */
void pq_scan(const pq_place *at, uint64_t position, uint64_t sequence, uint64_t end_sequence,
             int64_t floor_timestamp, pq_index_use use, pq_scanned *out) {
    memset(out, 0, sizeof *out);
    out->timestamp = out->whole_timestamp = floor_timestamp;
    out->whole_position = position;
    out->whole_sequence = sequence;
    out->stopped = PQ_READ_NOTHING;
    while (sequence < end_sequence) {
        pq_frame frame;
        out->stopped = pq_frame_check(at->page, at->page_bytes, position, sequence, &frame);
        if (out->stopped == PQ_READ_FRAME && frame.timestamp < out->timestamp) {
            out->stopped = PQ_READ_BAD_TIME;
        }
        if (out->stopped != PQ_READ_FRAME) {
            break;
        }
        scan_index(at, use, sequence - at->first_sequence, position, frame.timestamp,
                   &out->index_wrong);
        position = frame.next;
        sequence += 1;
        out->timestamp = frame.timestamp;
        if (!(frame.word & PQ_MORE_OF_BATCH)) {
            out->whole_position = position;
            out->whole_sequence = sequence;
            out->whole_timestamp = frame.timestamp;
        }
    }
    if (use == PQ_INDEX_WRITE && sequence < end_sequence) { /* else somebody may append right now */
        index_end(at, sequence - at->first_sequence);
    }
    out->position = position;
    out->sequence = sequence;
}

/* The position of a frame by its ordinal in the page, proved: the sequence stands in the frame's
 * checksum, so a wrong index cannot lead to another frame. 0 = the index is wrong. */
int pq_locate(const pq_place *at, uint64_t count, uint64_t ordinal, uint64_t *position) {
    pq_frame frame;
    int64_t timestamp;
    if (ordinal > count) {
        return 0;
    }
    if (ordinal == 0) {
        *position = PQ_PAGE_HEADER_BYTES;
        return 1;
    }
    uint64_t known = ordinal < count ? ordinal : ordinal - 1;
    if (!index_get(at, known, &timestamp, position)) {
        return 0;
    }
    if (pq_frame_check(at->page, at->page_bytes, *position, at->first_sequence + known, &frame) !=
            PQ_READ_FRAME ||
        frame.timestamp != timestamp) {
        return 0;
    }
    if (ordinal == count) {
        *position = frame.next;
    }
    return 1;
}

/* The first frame of the page that is not older than `since`, proved by itself and by the frame
 * before it. `count` when all are older. 0 = the index is wrong. */
int pq_find(const pq_place *at, uint64_t count, int64_t since, uint64_t *ordinal,
            uint64_t *position) {
    int64_t timestamp;
    uint64_t low = 0, high = count, place;
    pq_frame frame;
    if (count > at->index_capacity) {
        return 0;
    }
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (!index_get(at, middle, &timestamp, &place)) {
            return 0;
        }
        if (timestamp < since) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *ordinal = low;
    if (!pq_locate(at, count, low, position)) {
        return 0;
    }
    if (low < count) {
        if (pq_frame_check(at->page, at->page_bytes, *position, at->first_sequence + low,
                           &frame) != PQ_READ_FRAME ||
            frame.timestamp < since) {
            return 0;
        }
    }
    if (low > 0) {
        if (!pq_locate(at, count, low - 1, &place) ||
            pq_frame_check(at->page, at->page_bytes, place, at->first_sequence + low - 1,
                           &frame) != PQ_READ_FRAME ||
            frame.timestamp >= since || frame.next != *position) {
            return 0;
        }
    }
    return 1;
}
