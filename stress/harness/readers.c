/* The core's readers on bytes as they come: small, fast, and with the checksum gate off.
 *
 * Built with PAGEQUEUE_PLANT="no_checksum", so that a changed byte does not end a scan at once. An
 * input is 32 bytes of choices, then the page, then the index. The page is read in place, right at
 * the end of the input's own allocation when there is no index, so that AddressSanitizer sees the
 * first byte read past it; every result is compared with the bounds in protocol/protocol.h (I9). */
#include <stdio.h>
#include <stdlib.h>

#include "protocol/judge.h"

#define CHOICES 32
#define CAPACITY_MAX 64
#define MUST(what)                                                                       \
    do {                                                                                 \
        if (!(what)) {                                                                   \
            fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #what);        \
            abort();                                                                     \
        }                                                                                \
    } while (0)

typedef struct {
    uint64_t first_sequence;
    int64_t since;
    uint16_t place; /* of 8 bytes */
    uint16_t count;
    uint8_t capacity;
    uint8_t flags; /* 1: no index, 2: a range of sequences without end */
    uint16_t range;
    int64_t ceiling;
} choices;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void can_stand(const pq_place *at, uint64_t position) {
    MUST(position >= PQ_PAGE_HEADER_BYTES && position % PQ_FRAME_ALIGN_BYTES == 0);
    MUST(position <= at->page_bytes - PQ_FRAME_BYTES);
}

static void look_everywhere(const pq_place *at, const choices *chosen) {
    pq_frame frame;
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t position = (uint64_t)chosen->place * 8 + (i == 2 ? (uint64_t)chosen->since : i);
        pq_read_result looked = pq_frame_peek(at->page, at->page_bytes, position, &frame);
        MUST(looked <= PQ_READ_BAD_LENGTH);
        if (looked == PQ_READ_FRAME) {
            can_stand(at, position);
            can_stand(at, frame.next);
            MUST(frame.payload == at->page + position + PQ_FRAME_BYTES);
            MUST(position + PQ_FRAME_BYTES + frame.payload_bytes <= frame.next);
        } else if (looked == PQ_READ_END) {
            MUST(frame.next <= at->page_bytes);
            MUST(position + PQ_FRAME_BYTES + frame.payload_bytes <= frame.next);
        }
        pq_read_result checked = pq_check_at(at, position, at->first_sequence, &frame);
        MUST(checked == looked || checked == PQ_READ_BAD_CHECKSUM);
    }
}

static void walk(pq_place *at, const choices *chosen) {
    pq_scanned first, second;
    pq_place bare = *at;
    bare.index = NULL;
    uint64_t end = chosen->flags & 2 ? PQ_SEQUENCE_MAX : at->first_sequence + chosen->count;
    pq_scan(&bare, PQ_PAGE_HEADER_BYTES, at->first_sequence, end, chosen->since, PQ_INDEX_NONE,
            &first);
    MUST(first.sequence - at->first_sequence <= at->page_bytes / PQ_FRAME_BYTES);
    MUST(first.whole_sequence <= first.sequence && first.whole_position <= first.position);
    MUST(first.position <= at->page_bytes && first.timestamp >= chosen->since);
    pq_scan(at, PQ_PAGE_HEADER_BYTES, at->first_sequence, end, chosen->since, PQ_INDEX_CHECK,
            &second);
    MUST(second.position == first.position && second.sequence == first.sequence);
    pq_scan(at, (uint64_t)chosen->place * 8, at->first_sequence, end, chosen->since,
            PQ_INDEX_NONE, &second);
    if (at->index == NULL) {
        return;
    }
    pq_scan(at, PQ_PAGE_HEADER_BYTES, at->first_sequence, end, chosen->since, PQ_INDEX_WRITE,
            &second);
    MUST(second.position == first.position && second.stopped == first.stopped);
    pq_scan(at, PQ_PAGE_HEADER_BYTES, at->first_sequence, end, chosen->since, PQ_INDEX_CHECK,
            &second);
    uint64_t kept = first.sequence - at->first_sequence;
    MUST(second.index_wrong == (kept > at->index_capacity ? kept - at->index_capacity : 0));
}

static void search(const pq_place *at, const choices *chosen) {
    uint64_t ordinal, position;
    if (pq_locate(at, chosen->count, chosen->range, &position)) {
        MUST(chosen->range <= chosen->count);
        can_stand(at, position);
    }
    if (pq_find(at, chosen->count, chosen->since, &ordinal, &position)) {
        MUST(ordinal <= chosen->count);
        can_stand(at, position);
    }
}

static void resync(const pq_place *at, const choices *chosen) {
    uint64_t position = 0, sequence = 0, from = at->first_sequence + (chosen->count & 255);
    uint64_t end = chosen->flags & 2 ? PQ_SEQUENCE_MAX : from + chosen->range;
    uint64_t begin = PQ_PAGE_HEADER_BYTES + (uint64_t)chosen->place * 8;
    if (from > end || end > PQ_SEQUENCE_MAX) {
        return; /* the caller's duty */
    }
    if (pq_resync(at, begin, from, end, (uint64_t)chosen->since % 64, chosen->since, chosen->ceiling,
                  &position, &sequence)) {
        can_stand(at, position);
        MUST(position > begin && sequence >= from && sequence <= end);
        pq_frame frame;
        pq_read_result found = pq_check_at(at, position, sequence, &frame);
        MUST(found == PQ_READ_FRAME || found == PQ_READ_END);
    }
}

static void tails(const pq_place *at, const uint8_t *data, size_t bytes) {
    static uint8_t meta[PQ_WRITE_META_FILE_BYTES] __attribute__((aligned(64)));
    pq_tail tail, again;
    memcpy(meta + PQ_WRITE_META_PAGE_NUMBER, data, bytes < 192 ? bytes : 192);
    pq_tail_load(meta, &tail);
    MUST(tail.position <= UINT32_MAX && tail.count <= UINT32_MAX);
    pq_tail_store(meta, &tail);
    pq_tail_load(meta, &again);
    MUST(memcmp(&tail, &again, sizeof tail) == 0);
    pq_frame frame;
    pq_check_at(at, tail.position, tail.first_sequence + tail.count, &frame);
}

/* Give a page the header of a page of its queue, with these numbers. */
static void put_header(uint8_t *page, uint64_t number, uint64_t first, uint16_t flags) {
    uint16_t version = PQ_FORMAT_VERSION;
    memcpy(page, "pgqpage\x1a", 8);
    memcpy(page + PQ_PAGE_HEADER_VERSION, &version, 2);
    memcpy(page + PQ_PAGE_HEADER_FLAGS, &flags, 2);
    memcpy(page + PQ_PAGE_HEADER_PAGE_NUMBER, &number, 8);
    memcpy(page + PQ_PAGE_HEADER_FIRST_SEQUENCE, &first, 8);
    memset(page + PQ_PAGE_HEADER_FLOOR_TIMESTAMP, 0, 8);
    memset(page + PQ_PAGE_HEADER_CHECKSUM, 0, 4);
    uint32_t checksum = ~pq_crc_update(PQ_CRC_START, page, PQ_PAGE_HEADER_BYTES);
    memcpy(page + PQ_PAGE_HEADER_CHECKSUM, &checksum, 4);
}

/* The judge is shown the page under every number that it wants, or none. */
static void judged(const pq_place *at, const choices *chosen, pq_walk kind) {
    uint64_t bytes = at->page_bytes < PQ_PAGE_BYTES_MIN ? PQ_PAGE_BYTES_MIN : at->page_bytes;
    uint8_t *page = calloc(1, bytes);
    if (page == NULL) {
        return;
    }
    memcpy(page, at->page, at->page_bytes);
    pq_promise promise = {.page_bytes = bytes, .head_page = 1, .last_page = 6,
                          .head_sequence = at->first_sequence, .mark_page = chosen->count % 4,
                          .mark_sequence = at->first_sequence + chosen->range % 8,
                          .pending_first = chosen->place % 3, .pending_last = 4};
    memcpy(promise.queue_id, at->page + PQ_PAGE_HEADER_QUEUE_ID, PQ_QUEUE_ID_BYTES);
    pq_judge judge;
    int frames, following, shows = 0;
    uint64_t number;
    for (pq_judge_begin(&judge, &promise, kind);
         (number = pq_judge_wants(&judge, &frames, &following)) > 0; shows++) {
        pq_page_file file = {.number = number, .bytes = page, .size = bytes};
        pq_page_verdict verdict;
        MUST(shows < 32);
        put_header(page, number, frames && number > 1 ? judge.first : at->first_sequence,
                   (chosen->since >> (number % 8)) & 1);
        if (number > promise.last_page || (chosen->ceiling >> (number % 8) & 1)) {
            file.state = PQ_FILE_MISSING;
        }
        pq_judge_show(&judge, &file, &verdict);
    }
    MUST(kind == PQ_WALK_RUNS || judge.has_tail || judge.refusal.kind != PQ_FINE);
    MUST(!judge.has_tail || (judge.tail.position >= PQ_PAGE_HEADER_BYTES &&
                             judge.tail.position <= bytes && judge.tail.count < bytes));
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static uint8_t *index;
    choices chosen;
    if (index == NULL) {
        pq_crc_choose(PQ_CRC_BEST);
        index = malloc(CAPACITY_MAX * PQ_INDEX_RECORD_BYTES);
    }
    if (bytes < CHOICES + PQ_PAGE_HEADER_BYTES + PQ_FRAME_BYTES || index == NULL) {
        return 0;
    }
    memcpy(&chosen, data, sizeof chosen);
    size_t capacity = chosen.flags & 1 ? 0 : chosen.capacity % (CAPACITY_MAX + 1);
    size_t room = bytes - CHOICES - PQ_PAGE_HEADER_BYTES - PQ_FRAME_BYTES;
    capacity = capacity * PQ_INDEX_RECORD_BYTES > room ? room / PQ_INDEX_RECORD_BYTES : capacity;
    size_t index_bytes = capacity * PQ_INDEX_RECORD_BYTES;
    size_t page_bytes = bytes - CHOICES - index_bytes;
    memcpy(index + (CAPACITY_MAX * PQ_INDEX_RECORD_BYTES - index_bytes),
           data + bytes - index_bytes, index_bytes);
    pq_place at = {
        .page = (uint8_t *)data + CHOICES, /* no reader writes to a page */
        .page_bytes = page_bytes & ~(size_t)7,
        .page_number = 1,
        .queue_state = pq_queue_state(data + CHOICES + PQ_PAGE_HEADER_QUEUE_ID),
        .first_sequence = chosen.first_sequence & PQ_SEQUENCE_MAX,
        /* Its end is the end of the allocation, whatever its size. */
        .index = capacity > 0 ? index + (CAPACITY_MAX * PQ_INDEX_RECORD_BYTES - index_bytes) : NULL,
        .index_capacity = capacity,
    };
    look_everywhere(&at, &chosen);
    search(&at, &chosen);
    resync(&at, &chosen);
    walk(&at, &chosen);
    search(&at, &chosen);
    resync(&at, &chosen);
    judged(&at, &chosen, PQ_WALK_TAIL);
    judged(&at, &chosen, PQ_WALK_RUNS);
    tails(&at, data, bytes);
    return 0;
}
