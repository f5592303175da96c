/* Hostile bytes against the core. Every map lies between two pages without any access, so that a
 * touch beyond it is a fault at once; every result is compared with the bounds that
 * protocol/protocol.h states. */
#include "hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "protocol/protocol.h"

#define GUARD 65536u /* a multiple of any system's page size */
#define PAGE_MAX 65536u
#define ITEMS_MAX 40

#define MUST(what)                                                                       \
    do {                                                                                 \
        if (!(what)) {                                                                   \
            fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #what);        \
            abort();                                                                     \
        }                                                                                \
    } while (0)

static uint64_t draw(source *from) {
    if (from->bytes > 0) {
        uint64_t value = 0;
        size_t take = from->bytes < 8 ? from->bytes : 8;
        memcpy(&value, from->data, take);
        from->data += take;
        from->bytes -= take;
        return value;
    }
    from->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t mixed = from->state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static uint64_t below(source *from, uint64_t bound) { return draw(from) % bound; }

/* --- memory between guard pages --------------------------------------------------------------- */

typedef struct {
    uint8_t *base; /* of the whole reservation; its middle of PAGE_MAX bytes may be used */
} arena;

static arena page_arena, next_arena, index_arena, meta_arena;

static void reserve(arena *made) {
    uint8_t *base = mmap(NULL, PAGE_MAX + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(base != MAP_FAILED);
    MUST(mprotect(base + GUARD, PAGE_MAX, PROT_READ | PROT_WRITE) == 0);
    made->base = base;
}

/* So many bytes right after the first guard, or right before the second. */
static uint8_t *place(const arena *from, size_t bytes, int at_end) {
    return from->base + GUARD + (at_end ? PAGE_MAX - bytes : 0);
}

static uint8_t uneven[PAGE_MAX]; /* no row is like its neighbour */

void hostile_prepare(void) {
    pq_crc_choose(PQ_CRC_BEST);
    for (uint32_t i = 0; i < PAGE_MAX; i++) {
        uneven[i] = (uint8_t)((i * 2654435761u) >> 24);
    }
    reserve(&page_arena);
    reserve(&next_arena);
    reserve(&index_arena);
    reserve(&meta_arena);
}

/* --- hostile values --------------------------------------------------------------------------- */

static uint64_t odd_u64(source *from, uint64_t page_bytes) {
    const uint64_t values[] = {
        0, 1, 7, 8, 15, 16, 17, 56, 63, 64, 65, 72, 80, page_bytes - 17, page_bytes - 16,
        page_bytes - 15, page_bytes - 8, page_bytes - 1, page_bytes, page_bytes + 8, INT32_MAX,
        UINT32_MAX, (uint64_t)UINT32_MAX + 1, UINT32_MAX - 7, INT64_MAX, (uint64_t)INT64_MAX + 1,
        UINT64_MAX - 16, UINT64_MAX - 8, UINT64_MAX, PQ_SEQUENCE_MAX - 1,
    };
    switch (below(from, 4)) {
    case 0: return draw(from);
    case 1: return below(from, page_bytes + 64);
    case 2: return below(from, page_bytes / 8) * 8;
    default: return values[below(from, sizeof values / sizeof *values)];
    }
}

static uint32_t odd_word(source *from, uint64_t page_bytes, uint64_t position) {
    const uint64_t room = page_bytes - position;
    const uint64_t lengths[] = {0,         1,         15,       16,        17,        24,
                                room - 24, room - 17, room - 16, room - 15, room - 8,  room,
                                room + 1,  page_bytes, PQ_LENGTH_MASK, PQ_LENGTH_MASK - 7, 1u << 29};
    uint32_t word = (uint32_t)lengths[below(from, sizeof lengths / sizeof *lengths)];
    switch (below(from, 8)) {
    case 0: return (uint32_t)PQ_END_OF_PAGE | 16;
    case 1: return (uint32_t)PQ_END_OF_PAGE | word;
    case 2: return (uint32_t)PQ_MORE_OF_BATCH | (word & (uint32_t)PQ_LENGTH_MASK);
    case 3: return UINT32_MAX;
    case 4: return (uint32_t)PQ_LARGE_MESSAGE | (PQ_FRAME_BYTES + PQ_LARGE_HEAD_BYTES);
    case 5: /* the mark of a fragment, with the checksums of up to eight blocks */
        return (uint32_t)PQ_END_OF_PAGE |
               (PQ_FRAME_BYTES + PQ_FRAGMENT_BYTES + 4 * (uint32_t)below(from, 9));
    default: return word;
    }
}

static void fill(source *from, uint8_t *at, size_t bytes) {
    uint64_t kind = below(from, 4), value = draw(from);
    if (kind == 0) {
        memset(at, 0, bytes);
    } else if (kind == 1) {
        memset(at, (int)(value & 255), bytes);
    } else {
        source own = {NULL, 0, value};
        for (size_t i = 0; i + 8 <= bytes; i += 8) {
            uint64_t word = draw(&own);
            memcpy(at + i, &word, 8);
        }
    }
}

/* --- hostile files ---------------------------------------------------------------------------- */

/* Consecutive frames, valid but for every now and then one; some have right checksums, so that a
 * scan continues. */
static void lay_frames(source *from, const pq_place *at, uint64_t sequence) {
    uint64_t position = PQ_PAGE_HEADER_BYTES;
    int64_t timestamp = (int64_t)draw(from);
    for (int i = 0; i < 200 && position <= at->page_bytes - 16; i++) {
        uint64_t room = at->page_bytes - position;
        uint32_t word = (uint32_t)(16 + below(from, room > 300 ? 200 : room));
        int hostile = below(from, 16) == 0;
        if (hostile) {
            word = odd_word(from, at->page_bytes, position);
        } else if (below(from, 4) == 0) {
            word |= (uint32_t)PQ_MORE_OF_BATCH;
        }
        uint64_t length = word & PQ_LENGTH_MASK;
        uint8_t *frame = at->page + position;
        timestamp += below(from, 32) == 0 ? -(timestamp > INT64_MIN)
                                           : (int64_t)below(from, 3) * (timestamp < INT64_MAX - 9);
        memcpy(frame + PQ_FRAME_TIMESTAMP, &timestamp, 8);
        memcpy(frame, &word, 4);
        if (length >= 16 && length <= room && below(from, 24) != 0) {
            uint32_t state = pq_crc_update(at->queue_state, frame + 16, length - 16);
            uint32_t sum = pq_frame_checksum(state, timestamp, sequence + (uint64_t)i, word);
            memcpy(frame + PQ_FRAME_CHECKSUM, &sum, 4);
        }
        if (at->index != NULL && (uint64_t)i < at->index_capacity && below(from, 32) != 0) {
            uint32_t place_word = (uint32_t)position;
            memcpy(at->index + 12 * i, &timestamp, 8);
            memcpy(at->index + 12 * i + 8, &place_word, 4);
        }
        if (hostile || length > room) {
            return;
        }
        position += pq_aligned(length);
    }
}

static void scatter(source *from, const pq_place *at) {
    for (uint64_t i = below(from, 12); i > 0; i--) {
        uint64_t position = below(from, at->page_bytes / 8 - 1) * 8;
        uint32_t word = odd_word(from, at->page_bytes, position);
        memcpy(at->page + position, &word, 4);
    }
    for (uint64_t i = at->index == NULL ? 0 : below(from, 12); i > 0; i--) {
        uint8_t *record = at->index + 12 * below(from, at->index_capacity);
        uint64_t timestamp = odd_u64(from, at->page_bytes);
        uint32_t position = (uint32_t)odd_u64(from, at->page_bytes);
        memcpy(record, &timestamp, 8);
        memcpy(record + 8, &position, 4);
    }
}

static void word_put(uint8_t *meta, size_t at, uint64_t value) { memcpy(meta + at, &value, 8); }

static void lay_meta(source *from, const pq_place *at) {
    memset(at->meta, 0, PQ_WRITE_META_FILE_BYTES);
    if (below(from, 8) == 0) {
        fill(from, at->meta, PQ_WRITE_META_FILE_BYTES);
    }
    pq_tail tail = {
        .page_number = at->page_number,
        .position = PQ_PAGE_HEADER_BYTES,
        .count = 0,
        .first_sequence = at->first_sequence,
        .last_timestamp = (int64_t)odd_u64(from, at->page_bytes),
    };
    uint64_t kind = below(from, 3);
    if (kind > 0) {
        tail.position = kind == 1 ? below(from, at->page_bytes / 8) * 8
                                  : odd_u64(from, at->page_bytes) & UINT32_MAX;
        tail.count = odd_u64(from, at->page_bytes) & UINT32_MAX;
    }
    pq_tail_store(at->meta, &tail);
    if (below(from, 3) == 0) {
        word_put(at->meta, PQ_WRITE_META_BATCH_OPEN, odd_u64(from, at->page_bytes));
    }
    uint32_t failed = below(from, 16) == 0;
    memcpy(at->meta + PQ_WRITE_META_FAILED_ERRNO, &failed, 4);
    if (below(from, 8) == 0) {
        word_put(at->meta, PQ_WRITE_META_PAGE_NUMBER, odd_u64(from, at->page_bytes));
    }
}

static pq_place lay_all(source *from) {
    const uint64_t sizes[] = {4096, 4096, 8192, 65536};
    pq_place at = {.page_bytes = sizes[below(from, 4)], .queue_state = (uint32_t)draw(from)};
    at.index_capacity = below(from, 8) == 0 ? below(from, 40) : at.page_bytes / 32;
    at.page = place(&page_arena, at.page_bytes, (int)below(from, 2));
    at.meta = place(&meta_arena, PQ_WRITE_META_FILE_BYTES, (int)below(from, 2));
    if (at.index_capacity > 0 && below(from, 8) != 0) {
        at.index = place(&index_arena, at.index_capacity * 12, (int)below(from, 2));
        fill(from, at.index, at.index_capacity * 12);
    }
    at.page_number = below(from, 4) == 0 ? odd_u64(from, at.page_bytes) : 1 + below(from, 5);
    at.first_sequence = below(from, 3) == 0 ? odd_u64(from, at.page_bytes) : below(from, 1000);
    fill(from, at.page, at.page_bytes);
    if (below(from, 8) != 0) {
        lay_frames(from, &at, at.first_sequence);
    }
    if (below(from, 3) == 0) {
        scatter(from, &at);
    }
    lay_meta(from, &at);
    return at;
}

/* --- calls and their bounds ------------------------------------------------------------------- */

static void can_stand(const pq_place *at, uint64_t position) {
    MUST(position >= PQ_PAGE_HEADER_BYTES && position % 8 == 0);
    MUST(position <= at->page_bytes - PQ_FRAME_BYTES);
}

static void try_look(source *from, const pq_place *at) {
    for (int i = 0; i < 6; i++) {
        uint64_t position = odd_u64(from, at->page_bytes), sequence = odd_u64(from, at->page_bytes);
        pq_frame frame;
        pq_read_result looked = pq_frame_peek(at->page, at->page_bytes, position, &frame);
        MUST(looked <= PQ_READ_BAD_LENGTH);
        if (looked == PQ_READ_FRAME) {
            can_stand(at, position);
            can_stand(at, frame.next);
            MUST(frame.payload == at->page + position + PQ_FRAME_BYTES);
            MUST(frame.payload + frame.payload_bytes <= at->page + frame.next);
        } else if (looked == PQ_READ_END) {
            MUST(frame.next <= at->page_bytes);
            MUST(frame.payload + frame.payload_bytes <= at->page + frame.next);
        }
        pq_read_result checked = pq_check_at(at, position, sequence, &frame);
        MUST(checked == looked || checked == PQ_READ_BAD_CHECKSUM);
    }
}

static void try_scan(source *from, const pq_place *at) {
    uint64_t start = below(from, 2) ? PQ_PAGE_HEADER_BYTES : odd_u64(from, at->page_bytes);
    uint64_t sequence = below(from, 2) ? at->first_sequence : odd_u64(from, at->page_bytes);
    uint64_t end = below(from, 2) ? PQ_SEQUENCE_MAX : sequence + below(from, 50);
    int64_t floor = below(from, 2) ? INT64_MIN : (int64_t)odd_u64(from, at->page_bytes);
    pq_index_use use = (pq_index_use)below(from, 3);
    pq_scanned out;
    pq_scan(at, start, sequence, end, floor, use, &out);
    MUST(out.sequence - sequence <= at->page_bytes / PQ_FRAME_BYTES);
    MUST(out.whole_sequence - sequence <= out.sequence - sequence);
    /* Without a floor, times may go back. */
    MUST(floor == INT64_MIN ||
         (out.timestamp >= floor && out.whole_timestamp <= out.timestamp));
    if (out.sequence != sequence) {
        can_stand(at, out.position);
        MUST(out.position > start && out.whole_position <= out.position);
    } else {
        MUST(out.position == start && out.whole_position == start);
    }
    if (at->index != NULL && use == PQ_INDEX_WRITE && sequence == at->first_sequence) {
        pq_place same = *at;
        pq_scan(&same, start, sequence, out.sequence, floor, PQ_INDEX_CHECK, &out);
        uint64_t kept = out.sequence - sequence;
        MUST(out.index_wrong <= (kept > at->index_capacity ? kept - at->index_capacity : 0));
    }
}

static void try_find(source *from, const pq_place *at) {
    uint64_t count = below(from, 2) ? below(from, 60) : odd_u64(from, at->page_bytes);
    uint64_t ordinal, position;
    int64_t since = 0;
    if (at->index != NULL && at->index_capacity > 0 && below(from, 2)) {
        memcpy(&since, at->index + 12 * below(from, at->index_capacity), 8);
    } else {
        since = (int64_t)odd_u64(from, at->page_bytes);
    }
    if (pq_find(at, count, since, &ordinal, &position)) {
        MUST(ordinal <= count);
        can_stand(at, position);
    }
    uint64_t wanted = odd_u64(from, at->page_bytes);
    if (pq_locate(at, count, wanted, &position)) {
        MUST(wanted <= count);
        can_stand(at, position);
    }
}

/* What the writer guarantees: every payload fits, all fit into a page, and there are records
 * enough. */
static size_t draw_items(source *from, const pq_place *at, pq_payload *items) {
    static const uint8_t bytes[PAGE_MAX] = {1, 2, 3};
    uint64_t room = at->page_bytes - PQ_PAGE_HEADER_BYTES - PQ_FRAME_BYTES, total = 0;
    size_t wanted = 1 + (below(from, 2) ? 0 : below(from, ITEMS_MAX)), count = 0;
    for (; count < wanted && count < at->index_capacity; count++) {
        uint64_t size = below(from, 4) ? below(from, 200) : below(from, room - PQ_FRAME_BYTES + 1);
        if (total + pq_aligned(PQ_FRAME_BYTES + size) > room) {
            break;
        }
        total += pq_aligned(PQ_FRAME_BYTES + size);
        items[count].data = bytes;
        items[count].bytes = size;
        items[count].state = pq_crc_update(at->queue_state, bytes, size);
        items[count].summed = (int)(size & 1);
    }
    return count;
}

/* Rows out of two columns, one of which goes backwards, with a gap between the two. They often fill
 * the page up to its end. */
static size_t draw_rows(source *from, const pq_place *at, pq_column *columns, pq_batch *rows) {
    const uint8_t *bytes = uneven;
    uint64_t room = at->page_bytes - PQ_PAGE_HEADER_BYTES - PQ_FRAME_BYTES;
    uint64_t most = at->index_capacity < ITEMS_MAX ? at->index_capacity : ITEMS_MAX;
    uint64_t wanted = most == 0 ? 1 : 1 + below(from, most);
    uint64_t each = room / wanted & ~(uint64_t)(PQ_FRAME_ALIGN_BYTES - 1);
    if (most == 0 || each < PQ_FRAME_BYTES + 3) {
        return 0;
    }
    uint64_t size = each - PQ_FRAME_BYTES;
    size = below(from, 2) ? size : 3 + below(from, size - 2);
    uint32_t left = 1 + (uint32_t)below(from, size - 1);
    uint32_t right = 1 + (uint32_t)below(from, size - left);
    *rows = (pq_batch){.row_bytes = (uint32_t)size, .columns = columns, .column_count = 2};
    rows->has_gaps = left + right != size;
    columns[0] = (pq_column){.data = bytes, .stride = left, .bytes = left};
    columns[1] = (pq_column){.data = bytes + (wanted - 1) * right, .stride = -(int64_t)right,
                             .bytes = right, .at = (uint32_t)size - right};
    return wanted;
}

/* The frame agrees with the batch. */
static void is_as_told(const pq_batch *batch, size_t i, const pq_frame *frame) {
    MUST(frame->payload_bytes == pq_batch_bytes(batch, i));
    if (batch->items != NULL) {
        MUST(memcmp(frame->payload, batch->items[i].data, batch->items[i].bytes) == 0);
        return;
    }
    uint32_t filled = 0;
    for (size_t c = 0; c < batch->column_count; c++) {
        const pq_column *column = &batch->columns[c];
        MUST(memcmp(frame->payload + column->at, column->data + (int64_t)i * column->stride,
                    column->bytes) == 0);
        for (; filled < column->at; filled++) {
            MUST(frame->payload[filled] == 0);
        }
        filled = column->at + column->bytes;
    }
}

static void try_append(source *from, const pq_place *at) {
    pq_payload items[ITEMS_MAX + 1];
    pq_column columns[2];
    int64_t times[ITEMS_MAX + 1];
    pq_batch batch = {.items = below(from, 3) ? items : NULL};
    batch.count = batch.items != NULL ? draw_items(from, at, items)
                                      : draw_rows(from, at, columns, &batch);
    if (batch.count == 0) {
        return;
    }
    int64_t now = (int64_t)(odd_u64(from, at->page_bytes) >> 1);
    int64_t exact = below(from, 3) ? PQ_TIMESTAMP_NOW : (int64_t)(draw(from) >> 1);
    if (exact != PQ_TIMESTAMP_NOW && below(from, 2)) {
        exact >>= 1;
        for (size_t i = 0; i < batch.count; i++) {
            times[i] = i == 0 ? exact : times[i - 1] + (int64_t)below(from, 1000);
        }
        batch.times = times;
    }
    pq_appended out;
    pq_append_result result = pq_append(at, &batch, now, exact, &out);
    MUST(result <= PQ_APPEND_EXHAUSTED);
    if (result != PQ_APPEND_DONE) {
        return;
    }
    can_stand(at, out.position);
    MUST(out.sequence <= PQ_SEQUENCE_MAX - batch.count);
    pq_tail tail;
    pq_tail_load(at->meta, &tail);
    MUST(tail.position == out.position && tail.last_timestamp == out.timestamp);
    MUST(tail.first_sequence == at->first_sequence || tail.page_number == at->page_number);
    uint64_t total = 0;
    for (size_t i = 0; i < batch.count; i++) {
        total += pq_aligned(PQ_FRAME_BYTES + pq_batch_bytes(&batch, i));
    }
    uint64_t position = out.position - total;
    for (size_t i = 0; i < batch.count; i++) {
        pq_frame frame;
        MUST(pq_check_at(at, position, out.sequence + i, &frame) == PQ_READ_FRAME);
        MUST(frame.timestamp == (batch.times != NULL ? times[i] : out.timestamp));
        is_as_told(&batch, i, &frame);
        position = frame.next;
    }
    MUST(position == out.position && pq_load_u32(at->page + position) == 0);
}

static void try_roll(source *from, const pq_place *at) {
    uint8_t *next = place(&next_arena, at->page_bytes, (int)below(from, 2));
    fill(from, next, at->page_bytes);
    pq_append_result result = pq_roll(at, next, next);
    MUST(result <= PQ_APPEND_EXHAUSTED);
    if (result == PQ_APPEND_DONE) {
        pq_tail tail;
        pq_tail_load(at->meta, &tail);
        MUST(tail.page_number == at->page_number + 1 && tail.count == 0);
        MUST(tail.position == PQ_PAGE_HEADER_BYTES);
        MUST(pq_load_u64(next + PQ_PAGE_HEADER_FIRST_SEQUENCE) == tail.first_sequence);
    }
}

/* --- bulk commits ----------------------------------------------------------------------------- */

/* A page's header as a publisher writes it, for this page number and sequence. */
static void put_header(uint8_t *header, uint64_t number, uint64_t sequence) {
    memset(header, 0, PQ_PAGE_HEADER_BYTES);
    memcpy(header + PQ_PAGE_HEADER_PAGE_NUMBER, &number, 8);
    memcpy(header + PQ_PAGE_HEADER_FIRST_SEQUENCE, &sequence, 8);
    uint32_t sum = ~pq_crc_update(PQ_CRC_START, header, PQ_PAGE_HEADER_BYTES);
    memcpy(header + PQ_PAGE_HEADER_CHECKSUM, &sum, 4);
}

/* A frozen page takes no message, and its tail stays where the publisher was told it is. */
static void is_frozen(const pq_place *at, const pq_tail *tail) {
    can_stand(at, tail->position);
    MUST(tail->page_number == at->page_number && tail->first_sequence == at->first_sequence);
    if (at->first_sequence <= PQ_SEQUENCE_MAX) { /* else the sum wraps, and no frame fits anyway */
        pq_payload item = {.data = uneven, .bytes = 1};
        item.state = pq_crc_update(at->queue_state, uneven, 1);
        pq_batch batch = {.items = &item, .count = 1};
        pq_appended out;
        MUST(pq_append(at, &batch, 1, PQ_TIMESTAMP_NOW, &out) == PQ_APPEND_FULL);
    }
}

/* All pages are visible: by the end-of-page marker at the frozen tail, and by the tail after it. */
static void has_leapt(const pq_place *at, const pq_tail *frozen, const pq_tail *beyond) {
    pq_frame mark;
    uint64_t sequence = frozen->first_sequence + frozen->count;
    MUST(pq_check_at(at, frozen->position, sequence, &mark) == PQ_READ_END);
    MUST(mark.timestamp == frozen->last_timestamp);
    pq_tail tail;
    pq_tail_load(at->meta, &tail);
    MUST(tail.page_number == beyond->page_number && tail.position == (beyond->position & UINT32_MAX));
    MUST(tail.count == beyond->count && tail.first_sequence == beyond->first_sequence);
    MUST(tail.last_timestamp >= frozen->last_timestamp);
}

static void try_leap(source *from, const pq_place *at) {
    uint8_t *next = place(&next_arena, at->page_bytes, (int)below(from, 2));
    fill(from, next, at->page_bytes);
    pq_tail frozen = {.page_number = 0}, beyond = {
        .page_number = at->page_number + 1 + 2 * below(from, 3),
        .position = odd_u64(from, at->page_bytes) & UINT32_MAX,
        .count = odd_u64(from, at->page_bytes) & UINT32_MAX,
        .first_sequence = odd_u64(from, at->page_bytes),
        .last_timestamp = (int64_t)odd_u64(from, at->page_bytes),
    };
    if (below(from, 16) == 0) {
        beyond.page_number = odd_u64(from, at->page_bytes);
    }
    pq_append_result begun = PQ_APPEND_MOVED;
    if (below(from, 8) != 0) {
        begun = pq_freeze(at, &frozen);
        MUST(begun <= PQ_APPEND_DAMAGED);
    }
    if (begun == PQ_APPEND_DONE) {
        is_frozen(at, &frozen);
    }
    int right = begun == PQ_APPEND_DONE && below(from, 4) != 0;
    if (right) {
        put_header(next, at->page_number + 1, frozen.first_sequence + frozen.count);
    }
    pq_append_result result = pq_commit_pages(at, next, next, &beyond);
    MUST(result <= PQ_APPEND_DAMAGED);
    int apart = (beyond.page_number - at->page_number) % 2 != 0; /* their tail fields */
    MUST(apart || result == PQ_APPEND_MOVED);
    if (!right || !apart) {
        return;
    }
    MUST(result == PQ_APPEND_DONE);
    has_leapt(at, &frozen, &beyond);
    if (below(from, 2)) { /* the publisher died before its last store: the next one repeats it */
        word_put(at->meta, PQ_WRITE_META_PAGE_NUMBER, at->page_number);
        MUST(pq_commit_pages(at, next, next, &beyond) == PQ_APPEND_DONE);
        has_leapt(at, &frozen, &beyond);
    }
}

/* Frames get another queue's id, other sequences and perhaps one timestamp: up to the requested
 * last frame, or as many as were valid. */
static void try_restamp(source *from, const pq_place *at) {
    uint64_t first = below(from, 2) ? at->first_sequence : odd_u64(from, at->page_bytes);
    uint32_t state = below(from, 2) ? at->queue_state : (uint32_t)draw(from);
    int64_t time = below(from, 2) ? PQ_TIMESTAMP_NOW : (int64_t)(draw(from) >> 1);
    uint64_t count = below(from, 60);
    if (below(from, 2)) { /* so many as there are */
        pq_scanned found;
        pq_scan(at, PQ_PAGE_HEADER_BYTES, at->first_sequence, PQ_SEQUENCE_MAX, INT64_MIN,
                PQ_INDEX_NONE, &found);
        count = found.sequence - at->first_sequence;
    } else if (below(from, 4) == 0) {
        count = odd_u64(from, at->page_bytes);
    }
    uint64_t done = UINT64_MAX;
    int one_batch = below(from, 2);
    int result = pq_assign_sequences(at, count, state, first, time, one_batch, &done);
    MUST(done <= count && done <= at->page_bytes / PQ_FRAME_BYTES);
    MUST(result == -1 || (result == 0 && done == count));
    pq_place stamped = *at;
    stamped.queue_state = state;
    uint64_t position = PQ_PAGE_HEADER_BYTES;
    for (uint64_t i = 0; i < done; i++) {
        pq_frame frame;
        MUST(pq_check_at(&stamped, position, first + i, &frame) == PQ_READ_FRAME);
        MUST(((frame.word & PQ_MORE_OF_BATCH) != 0) == (one_batch && i + 1 < count));
        MUST(time == PQ_TIMESTAMP_NOW || frame.timestamp == time);
        if (at->index != NULL && i < at->index_capacity) {
            uint32_t record;
            memcpy(&record, at->index + 12 * i + 8, 4);
            MUST(record == position);
        }
        position = frame.next;
    }
}

void hostile_case(source *from) {
    pq_place at = lay_all(from);
    pq_tail tail;
    pq_tail_load(at.meta, &tail);
    MUST(tail.position <= UINT32_MAX && tail.count <= UINT32_MAX);
    for (uint64_t i = 1 + below(from, 6); i > 0; i--) {
        switch (below(from, 8)) {
        case 0: try_look(from, &at); break;
        case 1: try_scan(from, &at); break;
        case 2: try_find(from, &at); break;
        case 3:
        case 4: try_append(from, &at); break;
        case 5: try_leap(from, &at); break;
        case 6: try_restamp(from, &at); break;
        default: try_roll(from, &at); break;
        }
    }
}

/* --- calls that take no hostile bytes --------------------------------------------------------- */

static uint32_t slow_crc(uint32_t crc, const uint8_t *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0);
        }
    }
    return crc;
}

/* Three OS pages; touching the second one changes the first, as another thread can at any time. */
static uint8_t *changing;
static size_t changing_bytes;

static void change(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    size_t at = (size_t)((uint8_t *)info->si_addr - changing), step = changing_bytes / 3;
    if (at >= changing_bytes) {
        abort();
    }
    (void)mprotect(changing + at / step * step, step, PROT_READ | PROT_WRITE);
    if (at / step == 1) {
        for (size_t i = 0; i < step; i++) {
            changing[i] ^= 0x55;
        }
    }
}

/* A payload that its owner changes while it is copied: the checksum is that of the copy. */
static void changing_copies(source *from) {
    size_t step = (size_t)sysconf(_SC_PAGESIZE);
    struct sigaction mine = {.sa_sigaction = change, .sa_flags = SA_SIGINFO}, old;
    changing_bytes = 3 * step;
    changing = mmap(NULL, changing_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0);
    uint8_t *copy = malloc(changing_bytes);
    MUST(changing != MAP_FAILED && copy != NULL);
    fill(from, changing, changing_bytes);
    MUST(sigaction(SIGSEGV, &mine, &old) == 0);
    for (int most = 0; most <= PQ_CRC_BEST; most++) {
        uint32_t start = (uint32_t)draw(from);
        size_t bytes = changing_bytes - (size_t)below(from, 300);
        pq_crc_choose(most);
        MUST(mprotect(changing + step, 2 * step, PROT_NONE) == 0);
        uint32_t sum = pq_crc_copy(start, copy, changing, bytes);
        MUST(sum == pq_crc_update(start, copy, bytes));
    }
    MUST(sigaction(SIGSEGV, &old, NULL) == 0);
    MUST(munmap(changing, changing_bytes) == 0);
    free(copy);
}

/* All ways to compute it and the definition agree, at any length, place and start. */
void hostile_checksums(source *from) {
    static uint8_t copy[20000];
    for (int i = 0; i < 300; i++) {
        size_t bytes = below(from, i % 10 == 0 ? 20000 : 300), end = (size_t)below(from, 2);
        uint8_t *data = place(&page_arena, bytes, (int)end) + (end ? 0 : below(from, 8));
        fill(from, data, bytes);
        uint32_t start = (uint32_t)draw(from), expected = slow_crc(start, data, bytes);
        for (int most = 0; most <= PQ_CRC_BEST; most++) {
            pq_crc_choose(most);
            MUST(pq_crc_update(start, data, bytes) == expected);
            MUST(pq_crc_copy(start, copy, data, bytes) == expected);
            MUST(memcmp(copy, data, bytes) == 0);
        }
    }
    changing_copies(from);
    pq_crc_choose(PQ_CRC_BEST);
}

/* Taken once, refused while held, free again after release. */
void hostile_lock(void) {
    uint8_t *meta = place(&meta_arena, PQ_WRITE_META_FILE_BYTES, 0);
    char name[] = "/tmp/pagequeue-hostile-XXXXXX";
    int fd = mkstemp(name), other = open(name, O_RDWR);
    MUST(fd >= 0 && other >= 0 && unlink(name) == 0);
    pq_lock lock = {.mutex = meta + PQ_WRITE_META_MUTEX, .fd = fd};
    pq_lock second = {.mutex = lock.mutex, .fd = other};
    MUST(pq_lock_reset(lock.mutex) == 0);
    for (int i = 0; i < 3; i++) {
        MUST(pq_lock_try(&lock) == 0);
        MUST(pq_lock_try(&second) == EBUSY);
        pq_lock_release(&lock);
        MUST(pq_lock_try(&second) == 0);
        pq_lock_release(&second);
    }
    close(fd);
    close(other);
}
