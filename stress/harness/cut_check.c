/* Recovering one state in memory, and comparing what would be delivered with what was sent.
 *
 * The core's own judge (protocol/judge.c) decides where the queue ends, as it does for recovery and
 * readers. Here it is shown the images of the pages, and what it keeps is compared with what was
 * sent: nothing that was guaranteed is missing, and nothing that is delivered was never sent.
 */
#include "cut.h"
#include "protocol/judge.h"

typedef struct {
    const uint8_t *bytes; /* NULL: not there */
    uint64_t size;
} view;

typedef struct {
    const cut_trace *trace;
    cut_found *out;
    view all, write, read;
    uint64_t smallest; /* number of the first page that is there; 0 = none */
    pq_promise promise;
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

static uint64_t word_of(view from, uint64_t at) {
    uint64_t word;
    memcpy(&word, from.bytes + at, 8);
    return word;
}

static int is_meta(view meta, uint64_t bytes, const char *magic) {
    return meta.size >= bytes && memcmp(meta.bytes, magic, 8) == 0;
}

/* The content of the meta files, as recovery takes it. */
static cut_result metas(recovery *run) {
    const cut_trace *trace = run->trace;
    pq_promise *promise = &run->promise;
    int indexes = 0;
    for (uint32_t i = 0; i < trace->name_count; i++) {
        uint64_t size, number = trace->names[i].number, *last = &promise->last_page;
        indexes |= trace->names[i].kind == CUT_IS_INDEX && cut_at_name(trace, i, &size) != NULL;
        if (trace->names[i].kind == CUT_IS_PAGE && cut_at_name(trace, i, &size) != NULL) {
            run->smallest = run->smallest == 0 || number < run->smallest ? number : run->smallest;
            *last = number > *last ? number : *last;
        }
    }
    run->all = view_of(trace, CUT_IS_ALL, 0);
    run->write = view_of(trace, CUT_IS_WRITE, 0);
    run->read = view_of(trace, CUT_IS_READ, 0);
    if (run->all.bytes == NULL) { /* its pages belong to a queue */
        return promise->last_page > 0 || indexes ? CUT_REFUSED : CUT_FINE;
    }
    if (!is_meta(run->all, PQ_ALL_META_BYTES, "pgqall\0\x1a") ||
        (run->write.bytes != NULL &&
         !is_meta(run->write, PQ_WRITE_META_FILE_BYTES, "pgqwrit\x1a")) ||
        (run->read.bytes != NULL && !is_meta(run->read, PQ_READ_META_BYTES, "pgqread\x1a"))) {
        return CUT_REFUSED;
    }
    memcpy(promise->queue_id, run->all.bytes + PQ_ALL_META_QUEUE_ID, PQ_QUEUE_ID_BYTES);
    promise->page_bytes = word_of(run->all, PQ_ALL_META_PAGE_BYTES);
    promise->head_page = run->smallest > 0 ? run->smallest : 1;
    if (run->read.bytes != NULL) {
        promise->head_page = word_of(run->read, PQ_READ_META_HEAD_PAGE);
        promise->head_sequence =
            word_of(run->read, promise->head_page & 1 ? PQ_READ_META_HEAD_ODD
                                                      : PQ_READ_META_HEAD_EVEN);
    } else if (run->smallest > 0) {
        view first = view_of(trace, CUT_IS_PAGE, run->smallest);
        if (first.size < PQ_PAGE_HEADER_BYTES) {
            return CUT_REFUSED;
        }
        promise->head_sequence = word_of(first, PQ_PAGE_HEADER_FIRST_SEQUENCE);
    }
    if (run->write.bytes != NULL) {
        promise->mark_page = word_of(run->write, PQ_WRITE_META_DURABLE_PAGE);
        promise->mark_sequence = word_of(run->write, PQ_WRITE_META_DURABLE_SEQUENCE);
    }
    return CUT_FINE;
}

/* --- what a reader gets ----------------------------------------------------------------------- */

/* Every frame of a page up to `end` is the one that was sent there, byte for byte, without its
 * padding: the checksum leaves it out, and where a cut took a line before the padding was zeroed,
 * an earlier producer's bytes remain. */
static cut_result delivered(recovery *run, const pq_page_file *file, const pq_page_verdict *page,
                            uint64_t end) {
    const cut_trace *trace = run->trace;
    uint64_t position = PQ_PAGE_HEADER_BYTES, sequence = page->first;
    for (; sequence < end && sequence < page->scanned.sequence; sequence++) {
        if (sequence >= trace->frame_count) {
            return wrong(run, CUT_INVENTED, page->number, position, sequence);
        }
        uint32_t word;
        memcpy(&word, trace->frames[sequence], 4);
        uint64_t bytes = word & PQ_LENGTH_MASK, padded = pq_aligned(bytes);
        if (padded > file->size - position - PQ_FRAME_BYTES ||
            memcmp(file->bytes + position, trace->frames[sequence], bytes) != 0) {
            return wrong(run, CUT_OTHER_FRAME, page->number, position, sequence);
        }
        position += padded;
    }
    return CUT_FINE;
}

/* Show the judge all that it wants to see; compare the messages before `end`. */
static cut_result judged(recovery *run, pq_judge *judge, uint64_t end) {
    int frames, following;
    uint64_t number;
    while ((number = pq_judge_wants(judge, &frames, &following)) > 0) {
        view page = view_of(run->trace, CUT_IS_PAGE, number);
        while (following && page.bytes == NULL && number < run->promise.last_page) {
            page = view_of(run->trace, CUT_IS_PAGE, ++number);
        }
        pq_page_file file = {.number = number, .bytes = page.bytes, .size = page.size,
                             .state = page.bytes == NULL ? PQ_FILE_MISSING : PQ_FILE_PLAIN};
        pq_page_verdict verdict;
        if (pq_judge_show(judge, &file, &verdict) && verdict.kind <= PQ_PAGE_OPEN) {
            cut_result result = delivered(run, &file, &verdict, end);
            if (result != CUT_FINE) {
                return result;
            }
        }
    }
    const pq_refusal *refusal = &judge->refusal;
    if (refusal->kind == PQ_FINE) {
        return CUT_FINE;
    }
    int is_head = refusal->page == run->promise.head_page && refusal->kind != PQ_BAD_FRAME;
    return wrong(run, is_head && refusal->kind != PQ_MISSING ? CUT_REFUSED : CUT_DAMAGED,
                 refusal->page, refusal->position, refusal->sequence);
}

static cut_result recovered(recovery *run) {
    const cut_trace *trace = run->trace;
    cut_result result = metas(run);
    if (result != CUT_FINE || run->all.bytes == NULL) {
        return result;
    }
    pq_judge judge;
    pq_judge_begin(&judge, &run->promise, PQ_WALK_TAIL);
    result = judged(run, &judge, 0);
    if (result != CUT_FINE) {
        return result;
    }
    const pq_tail tail = judge.tail;
    uint64_t end = run->out->tail = tail.first_sequence + tail.count;
    /* Again from the head on, as if nothing were durable: so all large messages are checked. */
    pq_promise all = run->promise;
    all.mark_sequence = all.head_sequence;
    pq_judge_begin(&judge, &all, PQ_WALK_TAIL);
    result = judged(run, &judge, end);
    if (result != CUT_FINE) {
        return result;
    }
    if (judge.tail.first_sequence + judge.tail.count != end) {
        return wrong(run, CUT_DAMAGED, judge.tail.page_number, judge.tail.position,
                     judge.tail.first_sequence + judge.tail.count);
    }
    if (end > 0 && trace->continues[end - 1]) {
        return wrong(run, CUT_PART_OF_BATCH, tail.page_number, tail.position, end);
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
