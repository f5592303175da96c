/* Reading a page as a whole: walking its frames, finding one by time or by number, and finding the
 * next valid one after damage.
 *
 * The index is only a hint here. The frames that it leads to are proved by their checksums, which
 * contain their sequence, so that a wrong index can cost time and never correctness (I6).
 */
#include "protocol/protocol.h"
#include "protocol/index.h"

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
 * `end_sequence`. None may be older than the one before it; a floor of INT64_MIN allows that too. */
void pq_scan(const pq_place *at, uint64_t position, uint64_t sequence, uint64_t end_sequence,
             int64_t floor_timestamp, pq_index_use use, pq_scanned *out) {
    memset(out, 0, sizeof *out);
    out->timestamp = out->whole_timestamp = floor_timestamp;
    out->whole_position = position;
    out->whole_sequence = sequence;
    out->stopped = PQ_READ_NOTHING;
    while (sequence < end_sequence) {
        pq_frame frame;
        out->stopped = pq_check_at(at, position, sequence, &frame);
        if (out->stopped == PQ_READ_FRAME && floor_timestamp != INT64_MIN &&
            frame.timestamp < out->timestamp) {
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
        if (!pq_has_more(frame.word)) {
            out->whole_position = position;
            out->whole_sequence = sequence;
            out->whole_timestamp = frame.timestamp;
        }
    }
    if (use == PQ_INDEX_WRITE && sequence < end_sequence) { /* a producer may append now */
        index_end(at, sequence - at->first_sequence);
    }
    out->position = position;
    out->sequence = sequence;
}

/* A frame by its ordinal in the page, proved: its checksum contains the sequence, so a wrong index
 * cannot lead to another frame. 0 = the index is wrong. */
static int prove(const pq_place *at, uint64_t ordinal, pq_frame *frame, uint64_t *position) {
    int64_t timestamp;
    return index_get(at, ordinal, &timestamp, position) &&
           pq_check_at(at, *position, at->first_sequence + ordinal, frame) == PQ_READ_FRAME &&
           frame->timestamp == timestamp;
}

/* The position of a frame by its ordinal in the page, proved. 0 = the index is wrong. */
int pq_locate(const pq_place *at, uint64_t count, uint64_t ordinal, uint64_t *position) {
    pq_frame frame;
    if (ordinal > count) {
        return 0;
    }
    if (ordinal == 0) {
        *position = PQ_PAGE_HEADER_BYTES;
        return 1;
    }
    if (!prove(at, ordinal < count ? ordinal : ordinal - 1, &frame, position)) {
        return 0;
    }
    if (ordinal == count) {
        *position = frame.next;
    }
    return 1;
}

#define NEAR_RECORDS 32 /* so far from a guess the time is looked for next */
#define GUESSES 3

/* Narrow the records among which the first is that is not older than `since`. Where messages came
 * at a steady pace, a guess is near, and saves most cache misses of a binary search. The index has
 * them all. */
static void narrow(const pq_place *at, int64_t since, uint64_t *low, uint64_t *high) {
    if (*high - *low <= NEAR_RECORDS) {
        return;
    }
    int64_t first = index_time(at, *low), last = index_time(at, *high - 1);
    for (int i = 0; i < GUESSES && since > first && since <= last; i++) {
        uint64_t span = *high - *low;
        if (span <= 2 * NEAR_RECORDS) {
            break;
        }
        /* Subtracted first: of times that are near, a double of each may be the same. */
        double share = (double)((uint64_t)since - (uint64_t)first) /
                       (double)((uint64_t)last - (uint64_t)first);
        uint64_t guess = *low + (uint64_t)(share * (double)(span - 1)); /* share is at most 1 */
        for (int side = 0; side < 2; side++) { /* the guess, then a place on its other side */
            int64_t timestamp = index_time(at, guess);
            if (timestamp < since) {
                *low = guess + 1;
                first = timestamp;
                guess = *high - guess > NEAR_RECORDS ? guess + NEAR_RECORDS : *high;
            } else {
                *high = guess;
                last = timestamp;
                guess = guess - *low > NEAR_RECORDS ? guess - NEAR_RECORDS : *high;
            }
            if (guess >= *high) {
                break;
            }
        }
    }
}

/* The first frame of the page that is not older than `since`, proved by its own checksum and by
 * the frame before it. `count` when all are older. 0 = the index is wrong. */
int pq_find(const pq_place *at, uint64_t count, int64_t since, uint64_t *ordinal,
            uint64_t *position) {
    uint64_t low = 0, high = count, place;
    pq_frame frame;
    if (!index_has(at, count)) {
        return 0;
    }
    narrow(at, since, &low, &high);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (index_time(at, middle) < since) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *ordinal = low;
    *position = PQ_PAGE_HEADER_BYTES;
    if (low < count && (!prove(at, low, &frame, position) || frame.timestamp < since)) {
        return 0;
    }
    if (low == 0) {
        return *position == PQ_PAGE_HEADER_BYTES;
    }
    if (!prove(at, low - 1, &frame, &place) || frame.timestamp >= since ||
        (low < count && frame.next != *position)) {
        return 0;
    }
    *position = frame.next; /* also where all are older */
    return 1;
}

/* --- many at once ----------------------------------------------------------------------------- */

/* Whether a frame is where the index has it, with the index's timestamp. */
static int is_proved(const pq_place *at, uint64_t ordinal, int64_t *timestamp) {
    uint64_t position;
    pq_frame frame;
    if (!prove(at, ordinal, &frame, &position)) {
        return 0;
    }
    *timestamp = frame.timestamp;
    return 1;
}

/* For each of some timestamps in ascending order: how many of the page's frames are not later.
 * Proved by the frames on both sides, once for all timestamps between the same two, so that no
 * frame is checked for more than two of them. 0 = the index is wrong. */
int pq_find_many(const pq_place *at, uint64_t count, const int64_t *timestamps,
                 size_t timestamp_count, int64_t *ordinals) {
    if (!index_has(at, count)) {
        return 0;
    }
    uint64_t known = 0; /* frames that are not later than the timestamp before this one */
    int64_t later = INT64_MIN; /* time of the frame after them; any earlier timestamp has as many */
    int has_all = 0;
    for (size_t i = 0; i < timestamp_count; i++) {
        if (!has_all && (i == 0 || timestamps[i] >= later)) {
            uint64_t low = known, high = count;
            int64_t timestamp;
            while (low < high) {
                uint64_t middle = low + (high - low) / 2;
                if (index_time(at, middle) <= timestamps[i]) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            if ((low > 0 && (!is_proved(at, low - 1, &timestamp) || timestamp > timestamps[i])) ||
                (low < count && (!is_proved(at, low, &later) || later <= timestamps[i]))) {
                return 0;
            }
            known = low;
            has_all = low == count;
        }
        ordinals[i] = (int64_t)known;
    }
    return 1;
}

/* The timestamps of the frames from `ordinal` up to `end`, as the index has them. Its records must
 * be such as consecutive frames have, and its first and last one are proved; no other frame is
 * touched. 0 = the index is wrong. */
int pq_times(const pq_place *at, uint64_t ordinal, uint64_t end, int64_t *times) {
    if (!index_has(at, end) || ordinal > end) {
        return 0;
    }
    uint64_t least = PQ_PAGE_HEADER_BYTES + ordinal * PQ_FRAME_BYTES, position;
    int64_t last = INT64_MIN;
    for (uint64_t i = ordinal; i < end; i++) {
        int64_t timestamp;
        if (!index_get(at, i, &timestamp, &position) || position < least || timestamp < last ||
            position % PQ_FRAME_ALIGN_BYTES != 0 || position > at->page_bytes - PQ_FRAME_BYTES) {
            return 0;
        }
        times[i - ordinal] = last = timestamp;
        least = position + PQ_FRAME_BYTES;
    }
    return ordinal == end || (is_proved(at, ordinal, &last) && is_proved(at, end - 1, &last));
}

/* --- after damage ----------------------------------------------------------------------------- */

#define SURE_SEQUENCES 65536 /* so few can be meant: then a checksum alone is proof enough */
#define RESYNC_WORK_PAGES 64 /* of checksummed bytes; forged lengths must not make it endless */

/* What a byte did to a CRC-32C, undone: by the top byte of the state after it. */
static void make_undo(uint8_t undo[256], uint32_t table[256]) {
    for (uint32_t value = 0; value < 256; value++) {
        uint8_t byte = (uint8_t)value;
        /* The table itself: the state of one byte from a state of 0. */
        table[value] = pq_crc_update(0, &byte, 1);
        undo[table[value] >> 24] = byte;
    }
}

static uint32_t undone(const uint8_t undo[256], const uint32_t table[256], uint32_t state,
                       const uint8_t *bytes, size_t count) {
    for (size_t i = count; i-- > 0;) {
        uint8_t from = undo[state >> 24];
        state = (state ^ table[from]) << 8 | (uint32_t)(from ^ bytes[i]);
    }
    return state;
}

typedef struct {
    const pq_place *at;
    uint64_t first, end;    /* sequences possible at a place, `end` not included */
    int64_t floor, ceiling; /* times that can */
    uint64_t content_end;   /* after it there are only zeros */
    uint64_t mark;          /* messages below this sequence were on stable storage; 0 = unknown */
    uint64_t work;          /* bytes that may still be checksummed */
    uint8_t undo[256];
    uint32_t table[256];
} resync;

/* The one sequence in range that gives a frame's checksum: a CRC can be run backwards from its end
 * to the place of the four low bytes, and forwards from its beginning. */
static int sequence_of(const resync *self, const pq_frame *frame, uint64_t *sequence) {
    uint32_t begin = pq_crc_update(self->at->queue_state, frame->payload, frame->payload_bytes);
    begin = pq_crc_update(begin, &frame->timestamp, 8);
    uint64_t high = self->first >> 32, last_high = (self->end - 1) >> 32;
    for (int turn = 0; turn < 2 && high + (uint64_t)turn <= last_high; turn++) {
        uint8_t rest[12] = {0};
        uint32_t upper = (uint32_t)(high + (uint64_t)turn);
        memcpy(rest + 4, &upper, 4);
        memcpy(rest + 8, &frame->word, 4);
        uint32_t low = begin ^ undone(self->undo, self->table, ~frame->checksum, rest, 12);
        *sequence = (uint64_t)upper << 32 | low;
        if (*sequence >= self->first && *sequence < self->end) {
            return 1;
        }
    }
    return 0;
}

/* A frame, or an end-of-page marker, that is possible at a place, and the sequence in its
 * checksum. */
static int candidate(resync *self, uint64_t place, pq_frame *frame, uint64_t *sequence) {
    pq_read_result found = pq_frame_peek(self->at->page, self->at->page_bytes, place, frame);
    if ((found != PQ_READ_FRAME && found != PQ_READ_END) || frame->timestamp < self->floor ||
        frame->timestamp > self->ceiling || frame->payload_bytes > self->work) {
        return 0;
    }
    self->work -= frame->payload_bytes;
    return sequence_of(self, frame, sequence);
}

/* Where everything in the page ends that is not zeros. */
static uint64_t content_end(const pq_place *at) {
    uint64_t end = at->page_bytes & ~(uint64_t)(PQ_FRAME_ALIGN_BYTES - 1), word;
    for (; end > PQ_PAGE_HEADER_BYTES; end -= PQ_FRAME_ALIGN_BYTES) {
        memcpy(&word, at->page + end - PQ_FRAME_ALIGN_BYTES, 8);
        if (word != 0) {
            break;
        }
    }
    return end;
}

/* The first record from an ordinal on that a frame proves: it validates in that place, with that
 * sequence and the record's timestamp. */
static int first_proved(resync *self, uint64_t position, uint64_t ordinal, uint64_t *found_position,
                        uint64_t *found_sequence) {
    const pq_place *at = self->at;
    for (; ordinal < at->index_capacity && at->first_sequence + ordinal < self->end; ordinal++) {
        int64_t timestamp;
        pq_frame frame;
        uint64_t place;
        if (!index_get(at, ordinal, &timestamp, &place) || place <= position ||
            pq_frame_peek(at->page, at->page_bytes, place, &frame) != PQ_READ_FRAME ||
            frame.timestamp != timestamp || timestamp < self->floor ||
            timestamp > self->ceiling || frame.payload_bytes > self->work) {
            continue;
        }
        self->work -= frame.payload_bytes;
        if (pq_check_at(at, place, at->first_sequence + ordinal, &frame) == PQ_READ_FRAME) {
            *found_position = place;
            *found_sequence = at->first_sequence + ordinal;
            return 1;
        }
    }
    return 0;
}

typedef enum { NOWHERE, TO_MARK, TO_END } leads;

/* Where the frames from a place on lead: to a proved one; with `proved_at` 0, to the page's end: an
 * end-of-page marker, or the known end sequence, or any past the durable mark, with only zeros
 * after it. Bytes in a payload do not: real frames follow them. `passed` is the place at which they
 * stop. */
static leads leads_on(resync *self, uint64_t place, uint64_t sequence, uint64_t proved_at,
                      uint64_t proved_sequence, uint64_t end_sequence, uint64_t *passed) {
    const pq_place *at = self->at;
    pq_scanned walk;
    pq_scan(at, place, sequence, proved_at != 0 ? proved_sequence : PQ_SEQUENCE_MAX, INT64_MIN,
            PQ_INDEX_NONE, &walk);
    uint64_t bytes = walk.position - place;
    self->work -= bytes < self->work ? bytes : self->work;
    *passed = walk.position;
    if (proved_at != 0) {
        return walk.position == proved_at && walk.sequence == proved_sequence ? TO_END : NOWHERE;
    }
    int is_past_mark = sequence < self->mark && walk.sequence >= self->mark, is_end;
    if (walk.stopped == PQ_READ_END) {
        pq_frame end; /* after one with a payload comes a fragment */
        is_end = pq_frame_peek(at->page, at->page_bytes, walk.position, &end) == PQ_READ_END &&
                 (end.payload_bytes > 0 || end.next >= self->content_end);
    } else {
        is_end = walk.stopped == PQ_READ_NOTHING && walk.position >= self->content_end &&
                 (walk.sequence == end_sequence || is_past_mark);
    }
    return is_end ? TO_END : is_past_mark ? TO_MARK : NOWHERE;
}

/* The bytes at `position` are not the frame with `sequence`: find the next frame, or end-of-page
 * marker, whose place is proved. A checksum alone does not prove it: a payload can hold frames of
 * this very queue. Proved is
 *
 * 1. what the index has, where a frame has that place, sequence and time;
 * 2. a frame from which others lead to such a one, without a gap;
 * 3. where no record is right, a frame from which others lead to the end of the page;
 * 4. or to the durable mark, up to which this page reached on the disk, if only one place does.
 *
 * The index is never jumped over: 3 only counts without 1, and 2 only between the damage and 1.
 * The sequence found is after `sequence` and before `end_sequence`; the marker's can be that.
 *
 * With a position before the first frame, the page's first sequence is not known: found is its
 * first frame, with the sequence that its checksum has, if the frame after it has the next one. 0
 * = none.
 */
int pq_resync(const pq_place *at, uint64_t position, uint64_t sequence, uint64_t end_sequence,
              uint64_t mark_sequence, int64_t floor_timestamp, int64_t ceiling_timestamp,
              uint64_t *found_position, uint64_t *found_sequence) {
    resync self = {.at = at, .first = sequence, .end = end_sequence + 1, .mark = mark_sequence,
                   .floor = floor_timestamp, .ceiling = ceiling_timestamp,
                   .content_end = content_end(at),
                   .work = at->page_bytes * RESYNC_WORK_PAGES};
    make_undo(self.undo, self.table);
    pq_frame frame;
    uint64_t found = 0;
    if (position < PQ_PAGE_HEADER_BYTES) {
        if (!candidate(&self, PQ_PAGE_HEADER_BYTES, &frame, &found)) {
            return 0;
        }
        pq_read_result next = pq_check_at(at, frame.next, found + 1, &frame);
        *found_position = PQ_PAGE_HEADER_BYTES;
        *found_sequence = found;
        return next == PQ_READ_FRAME || next == PQ_READ_END ||
               self.end - self.first <= SURE_SEQUENCES;
    }
    uint64_t proved_at = 0, proved_sequence = 0;
    if (first_proved(&self, position, sequence - at->first_sequence, &proved_at,
                     &proved_sequence) &&
        proved_sequence <= sequence + 1) {
        *found_position = proved_at;
        *found_sequence = proved_sequence;
        return 1;
    }
    uint64_t last = proved_at != 0 ? proved_at : self.content_end, passed = 0;
    uint64_t mark_places = 0, mark_place = 0, mark_found = 0;
    self.first = sequence + 1;
    for (uint64_t place = (position | (PQ_FRAME_ALIGN_BYTES - 1)) + 1;
         place < last && place + PQ_FRAME_BYTES <= at->page_bytes && self.work > 0;
         place += PQ_FRAME_ALIGN_BYTES) {
        uint64_t room = sequence + (place - position) / PQ_FRAME_BYTES + 1;
        uint64_t limit = proved_at != 0 ? proved_sequence : end_sequence + 1;
        self.end = room < limit ? room : limit;
        if (place < passed || self.end <= self.first ||
            !candidate(&self, place, &frame, &found) ||
            (found == end_sequence && !pq_is_end(frame.word))) {
            continue;
        }
        leads led = leads_on(&self, place, found, proved_at, proved_sequence, end_sequence, &passed);
        if (led == TO_END) {
            *found_position = place;
            *found_sequence = found;
            return 1;
        }
        if (led == TO_MARK) { /* a payload can lead there too: two such places prove nothing */
            mark_places += 1;
            mark_place = place;
            mark_found = found;
        }
    }
    if (mark_places == 1 && self.work > 0) {
        proved_at = mark_place;
        proved_sequence = mark_found;
    }
    *found_position = proved_at;
    *found_sequence = proved_sequence;
    return proved_at != 0;
}
