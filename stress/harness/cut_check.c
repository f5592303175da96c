/* Recovering one state in memory, and comparing what would be delivered with what was sent.
 *
 * The core's own `pq_scan` judges the frames. The code around it (which page to begin with, how to
 * follow end-of-page markers, what is refused) follows power_loss_recovery.py step by step, without
 * writing. The full engine, which opens such states with the library, checks that it still does.
 */
#include "cut.h"

typedef struct {
    const uint8_t *bytes; /* NULL: not there */
    uint64_t size;
} view;

typedef struct {
    int good, is_continued, is_staged;
    uint64_t first_sequence;
    int64_t floor_timestamp;
} header;

typedef struct {
    const cut_trace *trace;
    cut_found *out;
    view all, write, read;
    uint64_t page_bytes, head_page, head_sequence, durable;
    uint64_t smallest, largest; /* numbers of pages that are there; 0 = none */
    uint64_t durable_page; /* 0: no mark was ever set */
} recovery;

static cut_result wrong(recovery *run, cut_result result, uint64_t page, uint64_t position,
                        uint64_t sequence) {
    run->out->page = page;
    run->out->position = position;
    run->out->sequence = sequence;
    return result;
}

/* --- the files -------------------------------------------------------------------------------- */

static view view_of(const cut_trace *trace, cut_name_kind kind, uint64_t number) {
    view found = {NULL, 0};
    for (uint32_t i = 0; i < trace->name_count; i++) {
        if (trace->names[i].kind == kind && trace->names[i].number == number) {
            const cut_file *file = cut_at_name(trace, i, &found.size);
            found.bytes = file == NULL ? NULL : file->image;
            break;
        }
    }
    return found;
}

static header header_of(const recovery *run, uint64_t number) {
    view page = view_of(run->trace, CUT_IS_PAGE, number);
    header found = {.first_sequence = PQ_UNSET_SEQUENCE};
    if (page.bytes == NULL || page.size != run->page_bytes) {
        return found;
    }
    uint8_t cleared[PQ_PAGE_HEADER_BYTES];
    uint32_t checksum;
    memcpy(cleared, page.bytes, sizeof cleared);
    memcpy(&checksum, cleared + PQ_PAGE_HEADER_CHECKSUM, 4);
    memset(cleared + PQ_PAGE_HEADER_CHECKSUM, 0, 4);
    found.good = memcmp(cleared, "pgqpage\x1a", 8) == 0 &&
                 checksum == ~pq_crc_update(PQ_CRC_START, cleared, sizeof cleared) &&
                 memcmp(cleared + PQ_PAGE_HEADER_QUEUE_ID, run->all.bytes + PQ_ALL_META_QUEUE_ID,
                        16) == 0 &&
                 memcmp(cleared + PQ_PAGE_HEADER_PAGE_NUMBER, &number, 8) == 0;
    uint16_t flags;
    memcpy(&flags, cleared + PQ_PAGE_HEADER_FLAGS, 2);
    found.is_continued = found.good && (flags & PQ_COMMIT_CONTINUES) != 0;
    found.is_staged = !found.good;
    for (int i = 0; i < 16; i++) { /* with the inverted id of the queue */
        found.is_staged &= (cleared[PQ_PAGE_HEADER_QUEUE_ID + i] ^
                            run->all.bytes[PQ_ALL_META_QUEUE_ID + i]) == 0xff;
    }
    memcpy(&found.first_sequence, cleared + PQ_PAGE_HEADER_FIRST_SEQUENCE, 8);
    memcpy(&found.floor_timestamp, cleared + PQ_PAGE_HEADER_FLOOR_TIMESTAMP, 8);
    return found;
}

static uint64_t word_of(view from, uint64_t at) {
    uint64_t word;
    memcpy(&word, from.bytes + at, 8);
    return word;
}

static int is_meta(view meta, uint64_t bytes, const char *magic) {
    return meta.size >= bytes && memcmp(meta.bytes, magic, 8) == 0;
}

/* The content of the meta files, as `Recovery.run` takes it. */
static cut_result metas(recovery *run) {
    const cut_trace *trace = run->trace;
    int indexes = 0;
    for (uint32_t i = 0; i < trace->name_count; i++) {
        uint64_t size, number = trace->names[i].number;
        indexes |= trace->names[i].kind == CUT_IS_INDEX && cut_at_name(trace, i, &size) != NULL;
        if (trace->names[i].kind == CUT_IS_PAGE && cut_at_name(trace, i, &size) != NULL) {
            run->smallest = run->smallest == 0 || number < run->smallest ? number : run->smallest;
            run->largest = number > run->largest ? number : run->largest;
        }
    }
    run->all = view_of(trace, CUT_IS_ALL, 0);
    run->write = view_of(trace, CUT_IS_WRITE, 0);
    run->read = view_of(trace, CUT_IS_READ, 0);
    if (run->all.bytes == NULL) {
        return run->largest > 0 || indexes ? CUT_REFUSED : CUT_FINE; /* its pages belong to a queue */
    }
    if (!is_meta(run->all, PQ_ALL_META_BYTES, "pgqall\0\x1a") ||
        (run->write.bytes != NULL &&
         !is_meta(run->write, PQ_WRITE_META_FILE_BYTES, "pgqwrit\x1a")) ||
        (run->read.bytes != NULL && !is_meta(run->read, PQ_READ_META_BYTES, "pgqread\x1a"))) {
        return CUT_REFUSED;
    }
    run->page_bytes = word_of(run->all, PQ_ALL_META_PAGE_BYTES);
    run->head_page = run->smallest > 0 ? run->smallest : 1;
    if (run->read.bytes != NULL) {
        run->head_page = word_of(run->read, PQ_READ_META_HEAD_PAGE);
        run->head_sequence = word_of(
            run->read, run->head_page & 1 ? PQ_READ_META_HEAD_ODD
                                                                     : PQ_READ_META_HEAD_EVEN);
    } else if (run->smallest > 0) {
        header first = header_of(run, run->smallest);
        if (!first.good) {
            return CUT_REFUSED;
        }
        run->head_sequence = first.first_sequence == PQ_UNSET_SEQUENCE ? 0 : first.first_sequence;
    }
    run->durable = run->head_sequence;
    if (run->write.bytes != NULL) {
        uint64_t mark = word_of(run->write, PQ_WRITE_META_DURABLE_SEQUENCE);
        run->durable = mark > run->durable ? mark : run->durable;
        run->durable_page = word_of(run->write, PQ_WRITE_META_DURABLE_PAGE);
    }
    return CUT_FINE;
}

/* --- the tail --------------------------------------------------------------------------------- */

/* The last page that begins before the durable mark, or the head; none after the mark's own. */
static uint64_t start(const recovery *run, header *best) {
    uint64_t last = run->largest, low = run->head_page, begin = low;
    if (run->durable_page > 0 && run->durable_page < last) {
        last = run->durable_page;
    }
    uint64_t high = last > low ? last : low;
    while (low < high) {
        uint64_t middle = (low + high + 1) / 2;
        header found = header_of(run, middle);
        if (found.good && found.first_sequence < run->durable) {
            begin = low = middle;
            *best = found;
        } else {
            high = middle - 1;
        }
    }
    return begin;
}

static void scan(const recovery *run, uint64_t number, const header *of, uint64_t first,
                 uint64_t end, pq_scanned *found) {
    view page = view_of(run->trace, CUT_IS_PAGE, number);
    pq_place at = {.page = (uint8_t *)page.bytes, .page_bytes = page.size, .page_number = number,
                   .queue_state = pq_queue_state(run->all.bytes + PQ_ALL_META_QUEUE_ID),
                   .first_sequence = first};
    pq_scan(&at, PQ_PAGE_HEADER_BYTES, first, end, of->floor_timestamp, PQ_INDEX_NONE, found);
}

/* --- commits ---------------------------------------------------------------------------------- */

static cut_result large(recovery *run, uint64_t number, uint64_t position, uint64_t sequence,
                        uint64_t last);

/* Whether a page begins with the head of a large message of which something is missing. */
static int is_large_torn(recovery *run, uint64_t number, uint64_t first) {
    view page = view_of(run->trace, CUT_IS_PAGE, number);
    uint32_t word, fragments;
    memcpy(&word, page.bytes + PQ_PAGE_HEADER_BYTES, 4);
    if (!pq_is_large(word)) {
        return 0;
    }
    pq_frame head;
    if (pq_frame_check(page.bytes, page.size,
                       pq_queue_state(run->all.bytes + PQ_ALL_META_QUEUE_ID), PQ_PAGE_HEADER_BYTES,
                       first, &head) != PQ_READ_FRAME ||
        head.payload_bytes != PQ_LARGE_HEAD_BYTES) {
        return 1;
    }
    memcpy(&fragments, head.payload + PQ_LARGE_HEAD_FRAGMENTS, 4);
    for (uint32_t ordinal = 1; ordinal < fragments; ordinal++) {
        header found = header_of(run, number + ordinal);
        if (!found.good || found.first_sequence != first + 1) {
            return 1;
        }
    }
    uint64_t last = number + fragments - 1;
    return large(run, number, PQ_PAGE_HEADER_BYTES, first, last) != CUT_FINE;
}

/* Whether something is missing of the commit that goes on in a page. */
static int is_torn(recovery *run, uint64_t number, header of) {
    for (;;) {
        uint64_t first = of.first_sequence == PQ_UNSET_SEQUENCE ? 0 : of.first_sequence;
        if (is_large_torn(run, number, first)) {
            return 1;
        }
        if (!of.is_continued) {
            return 0;
        }
        pq_scanned found;
        scan(run, number, &of, first, PQ_SEQUENCE_MAX, &found);
        of = header_of(run, ++number);
        if (found.stopped != PQ_READ_END || !of.good ||
            of.first_sequence != found.whole_sequence) {
            return 1;
        }
        if (!of.is_continued) {
            scan(run, number, &of, of.first_sequence, PQ_SEQUENCE_MAX, &found);
            if (found.stopped != PQ_READ_END && found.whole_sequence == of.first_sequence) {
                return 1;
            }
        }
    }
}

/* Follows an end-of-page marker. 1: there is a page to scan; 0: an empty one is made; -1: damage. */
static int follow(const recovery *run, uint64_t number, const pq_scanned *before, header *of) {
    view page = view_of(run->trace, CUT_IS_PAGE, number);
    *of = header_of(run, number);
    if (of->good && of->first_sequence == before->sequence) {
        return 1;
    }
    if (!of->good && before->sequence < run->durable) {
        return -1;
    }
    int is_torn = !of->good, is_staged = of->is_staged;
    of->is_continued = 0;
    of->first_sequence = before->sequence;
    of->floor_timestamp = before->timestamp;
    if (page.bytes == NULL || page.size != run->page_bytes || is_staged) {
        return 0;
    }
    return !(is_torn && number > run->durable_page); /* its frames could be some of a commit */
}

/* Checks from the durable mark on; leaves the tail in `found`. */
static cut_result tail(recovery *run, uint64_t *number, pq_scanned *found) {
    header of = header_of(run, run->head_page);
    if (!of.good) {
        return wrong(run, CUT_REFUSED, run->head_page, 0, run->head_sequence);
    }
    *number = start(run, &of);
    for (;;) {
        uint64_t first = of.first_sequence == PQ_UNSET_SEQUENCE ? 0 : of.first_sequence;
        if (first >= run->durable && is_torn(run, *number, of)) {
            memset(found, 0, sizeof *found); /* it is dropped, with all of its pages */
            found->whole_sequence = found->sequence = first;
            found->position = found->whole_position = PQ_PAGE_HEADER_BYTES;
            break;
        }
        if (first < run->durable) {
            scan(run, *number, &of, first, run->durable, found);
            if (found->whole_sequence < run->durable && found->stopped != PQ_READ_END) {
                return wrong(run, CUT_DAMAGED, *number, found->whole_position,
                             found->whole_sequence);
            }
        }
        scan(run, *number, &of, first, PQ_SEQUENCE_MAX, found);
        if (found->stopped != PQ_READ_END) {
            break;
        }
        *number += 1;
        int there = follow(run, *number, found, &of);
        if (there < 0) {
            return wrong(run, CUT_DAMAGED, *number, 0, found->sequence);
        }
        if (!there) { /* an empty page takes its place */
            found->whole_sequence = found->sequence;
            found->whole_position = PQ_PAGE_HEADER_BYTES;
            break;
        }
    }
    if (found->whole_sequence < run->durable) {
        return wrong(run, CUT_DAMAGED, *number, found->whole_position, found->whole_sequence);
    }
    for (uint64_t other = *number + 1; run->durable_page == 0 && other <= run->largest; other++) {
        header later = header_of(run, other);
        if (view_of(run->trace, CUT_IS_PAGE, other).bytes != NULL &&
            (!later.good || (later.first_sequence != PQ_UNSET_SEQUENCE &&
                             later.first_sequence >= found->sequence))) {
            return wrong(run, CUT_DAMAGED, other, 0, later.first_sequence);
        }
    }
    return CUT_FINE;
}

/* --- what a reader gets ----------------------------------------------------------------------- */

/* Whether the blocks of a fragment have the checksums that its mark states. */
static int is_fragment(uint32_t state, view page, const pq_frame *mark, uint32_t size) {
    uint64_t blocks = (size + PQ_FRAGMENT_BLOCK_BYTES - 1) / PQ_FRAGMENT_BLOCK_BYTES;
    if (size > page.size - mark->next || PQ_FRAGMENT_BYTES + 4 * blocks > mark->payload_bytes) {
        return 0;
    }
    for (uint64_t block = 0; block < blocks; block++) {
        uint64_t begin = block * PQ_FRAGMENT_BLOCK_BYTES;
        uint64_t left = size - begin;
        uint64_t bytes = left < PQ_FRAGMENT_BLOCK_BYTES ? left : PQ_FRAGMENT_BLOCK_BYTES;
        uint32_t sum;
        memcpy(&sum, mark->payload + PQ_FRAGMENT_BYTES + 4 * block, 4);
        if (sum != ~pq_crc_update(state, page.bytes + mark->next + begin, bytes)) {
            return 0;
        }
    }
    return 1;
}

/* The payload of a large message is there: all of its fragments, in pages up to the tail's. The
 * marks have what was sent, because each of them has the sequence after the message. */
static cut_result large(recovery *run, uint64_t number, uint64_t position, uint64_t sequence,
                        uint64_t last) {
    uint32_t state = pq_queue_state(run->all.bytes + PQ_ALL_META_QUEUE_ID), fragments = 1;
    uint64_t total = 0, end = 0;
    for (uint32_t ordinal = 0; ordinal < fragments; ordinal++, number++) {
        view page = view_of(run->trace, CUT_IS_PAGE, number);
        uint64_t at = PQ_PAGE_HEADER_BYTES, offset;
        uint32_t size, stated;
        pq_frame frame;
        if (number > last || page.bytes == NULL || page.size != run->page_bytes) {
            return wrong(run, CUT_DAMAGED, number, 0, sequence);
        }
        if (ordinal == 0) {
            const uint8_t *head = page.bytes + position + PQ_FRAME_BYTES;
            memcpy(&total, head + PQ_LARGE_HEAD_PAYLOAD_BYTES, 8);
            memcpy(&fragments, head + PQ_LARGE_HEAD_FRAGMENTS, 4);
            at = position + PQ_FRAME_BYTES + PQ_LARGE_HEAD_BYTES;
        }
        if (pq_frame_check(page.bytes, page.size, state, at, sequence + 1, &frame) != PQ_READ_END ||
            frame.payload_bytes < PQ_FRAGMENT_BYTES) {
            return wrong(run, CUT_DAMAGED, number, at, sequence);
        }
        memcpy(&offset, frame.payload + PQ_FRAGMENT_OFFSET, 8);
        memcpy(&size, frame.payload + PQ_FRAGMENT_SIZE, 4);
        memcpy(&stated, frame.payload + PQ_FRAGMENT_ORDINAL, 4);
        if (stated != ordinal || offset != end || !is_fragment(state, page, &frame, size)) {
            return wrong(run, CUT_DAMAGED, number, frame.next, sequence);
        }
        end += size;
    }
    return end == total ? CUT_FINE : wrong(run, CUT_DAMAGED, number - 1, 0, sequence);
}

/* Every frame from the head to the tail is the one that was sent there, byte for byte, without its
 * padding: the checksum leaves it out, and where a cut took a line before the padding was zeroed,
 * an earlier producer's bytes remain. */
static cut_result delivered(recovery *run, uint64_t begin, uint64_t last, uint64_t end) {
    const cut_trace *trace = run->trace;
    uint64_t sequence = run->head_sequence;
    for (uint64_t number = run->head_page; number <= last && sequence < end; number++) {
        view page = view_of(trace, CUT_IS_PAGE, number);
        if (number <= begin) {
            header of = header_of(run, number);
            if (!of.good || of.first_sequence != sequence) {
                return wrong(run, CUT_DAMAGED, number, 0, sequence);
            }
        }
        for (uint64_t position = PQ_PAGE_HEADER_BYTES; sequence < end; sequence++) {
            uint32_t word;
            memcpy(&word, page.bytes + position, 4);
            if (pq_is_end(word)) {
                break;
            }
            if (sequence >= trace->frame_count) {
                return wrong(run, CUT_INVENTED, number, position, sequence);
            }
            memcpy(&word, trace->frames[sequence], 4);
            uint64_t bytes = word & PQ_LENGTH_MASK, padded = pq_aligned(bytes);
            if (padded > page.size - position - PQ_FRAME_BYTES ||
                memcmp(page.bytes + position, trace->frames[sequence], bytes) != 0) {
                return wrong(run, CUT_OTHER_FRAME, number, position, sequence);
            }
            if (pq_is_large(word)) {
                cut_result result = large(run, number, position, sequence, last);
                if (result != CUT_FINE) {
                    return result;
                }
            }
            position += padded;
        }
    }
    return sequence < end ? wrong(run, CUT_DAMAGED, last, 0, sequence) : CUT_FINE;
}

static cut_result recovered(recovery *run) {
    const cut_trace *trace = run->trace;
    pq_scanned found = {0};
    uint64_t number = 0;
    cut_result result = metas(run);
    if (result != CUT_FINE || run->all.bytes == NULL) {
        return result;
    }
    if (run->largest == 0) { /* the first page is made */
        return run->durable > 0 ? wrong(run, CUT_DAMAGED, run->head_page, 0, 0) : CUT_FINE;
    }
    result = tail(run, &number, &found);
    if (result != CUT_FINE) {
        return result;
    }
    run->out->tail = found.whole_sequence;
    header best;
    result = delivered(run, start(run, &best), number, found.whole_sequence);
    if (result != CUT_FINE || found.whole_sequence == 0) {
        return result;
    }
    if (trace->continues[found.whole_sequence - 1]) {
        return wrong(run, CUT_PART_OF_BATCH, number, found.whole_position, found.whole_sequence);
    }
    return CUT_FINE;
}

cut_result cut_check(const cut_trace *trace, cut_found *out) {
    memset(out, 0, sizeof *out);
    recovery run = {.trace = trace, .out = out};
    out->moment = trace->moment;
    out->promised = trace->promised[trace->moment];
    uint64_t least = out->promised > trace->least ? out->promised : trace->least;
    cut_result result = recovered(&run);
    if (result == CUT_FINE && out->tail < least) {
        out->sequence = out->tail;
        result = CUT_LOST;
    }
    out->result = (uint32_t)result;
    return result;
}

/* Checks states of consecutive seeds; ends at the first that is wrong. Marks each in `seen`, bits
 * chosen by hash, from which the number of distinct states is estimated. Returns how many. */
uint64_t cut_run(cut_trace *trace, uint64_t seed, int mode, uint64_t states, uint8_t *seen,
                 uint64_t seen_bits, cut_found *bad) {
    for (uint64_t i = 0; i < states; i++) {
        cut_choose(trace, seed + i, mode);
        uint64_t bit = (trace->hash ^ trace->hash >> 29) % seen_bits;
        seen[bit / 8] |= (uint8_t)(1u << bit % 8);
        if (cut_check(trace, bad) != CUT_FINE) {
            bad->seed = seed + i;
            return i + 1;
        }
    }
    return states;
}
