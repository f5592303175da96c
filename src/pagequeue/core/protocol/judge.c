/* The judge of what is valid (FORMAT.md, "Opening").
 *
 * From the last page on that begins below the durable mark, frames are walked and end-of-page
 * markers followed. Below the mark nothing may be missing. After it a power cut can have taken
 * anything, so the queue ends
 *
 * - where a frame is not whole, or the batch that it belongs to;
 * - before a bulk commit or a large message of which a page, a marker or a block is missing (I19,
 *   I23). It can have any number of pages: they are walked as they come, and taken back;
 * - before a page that is missing, has another size, or has a header that tells nothing, unless it
 *   is the mark's own: that one keeps its frames, of which no commit can be a part.
 *
 * Without a mark, an end-of-page marker proves that a page followed, and a page with messages that
 * all before it existed: then what does not fit together is an error.
 *
 * A ring is trimmed without a sync, and uses pages again ("Rings"). What is kept of it is the run of
 * whole pages that has the mark; or the last one after it.
 */
#include "protocol/judge.h"

#define BEGIN ((uint64_t)PQ_PAGE_HEADER_BYTES)

enum { HEAD, SEARCH, WALK, AFTER, RUNS, DONE };

typedef enum {
    RIGHT,   /* of this page; its first sequence can be unset */
    MISSING, /* there is no file */
    SIZE,    /* the file has another size */
    TORN,    /* it tells nothing, or of another page that was only prepared */
    STAGED,  /* as it was before its commit */
    FOREIGN, /* of another page with messages; or no power cut can have done it */
    NEWER,   /* of a format that this version does not know */
} header_state;

typedef struct {
    header_state state;
    uint64_t first;
    int64_t floor;
    int continues;
} header;

static header header_of(const pq_judge *judge, const pq_page_file *file) {
    header found = {.state = RIGHT, .first = PQ_UNSET_SEQUENCE};
    if (file->state == PQ_FILE_MISSING || file->state == PQ_FILE_BROKEN) {
        found.state = file->state == PQ_FILE_MISSING ? MISSING : FOREIGN;
        return found;
    }
    if (file->size != judge->promise.page_bytes) {
        found.state = SIZE;
        return found;
    }
    uint8_t bytes[PQ_PAGE_HEADER_BYTES];
    uint16_t version, flags;
    uint32_t checksum;
    uint64_t number;
    memcpy(bytes, file->bytes, sizeof bytes);
    memcpy(&version, bytes + PQ_PAGE_HEADER_VERSION, 2);
    memcpy(&flags, bytes + PQ_PAGE_HEADER_FLAGS, 2);
    memcpy(&checksum, bytes + PQ_PAGE_HEADER_CHECKSUM, 4);
    memcpy(&number, bytes + PQ_PAGE_HEADER_PAGE_NUMBER, 8);
    memcpy(&found.first, bytes + PQ_PAGE_HEADER_FIRST_SEQUENCE, 8);
    memcpy(&found.floor, bytes + PQ_PAGE_HEADER_FLOOR_TIMESTAMP, 8);
    memset(bytes + PQ_PAGE_HEADER_CHECKSUM, 0, 4);
    int is_unset = found.first == PQ_UNSET_SEQUENCE, is_staged = 1, is_ours = 1;
    for (int i = 0; i < PQ_QUEUE_ID_BYTES; i++) {
        uint8_t id = bytes[PQ_PAGE_HEADER_QUEUE_ID + i], ours = judge->promise.queue_id[i];
        is_ours &= id == ours;
        is_staged &= (id ^ ours) == 0xff;
    }
    if (memcmp(bytes, "pgqpage\x1a", 8) != 0) {
        found.state = TORN;
    } else if (version != PQ_FORMAT_VERSION) {
        found.state = version > PQ_FORMAT_VERSION ? NEWER : FOREIGN;
    } else if (checksum != ~pq_crc_update(PQ_CRC_START, bytes, sizeof bytes)) {
        found.state = TORN;
    } else if (flags & ~PQ_COMMIT_CONTINUES) {
        found.state = NEWER;
    } else if (found.first > PQ_SEQUENCE_MAX && !is_unset) {
        found.state = FOREIGN;
    } else if (is_staged) {
        found.state = STAGED;
    } else if (!is_ours || number != file->number) {
        found.state = is_unset ? TORN : FOREIGN;
    }
    found.continues = flags != 0;
    return found;
}

/* --- what is shown ---------------------------------------------------------------------------- */

void pq_judge_begin(pq_judge *judge, const pq_promise *promise, pq_walk walk) {
    memset(judge, 0, sizeof *judge);
    judge->promise = *promise;
    judge->queue_state = pq_queue_state(promise->queue_id);
    judge->promised = promise->mark_sequence > promise->head_sequence ? promise->mark_sequence
                                                                      : promise->head_sequence;
    judge->sure = promise->mark_page > 0 ? judge->promised : UINT64_MAX;
    judge->phase = walk == PQ_WALK_RUNS ? RUNS : HEAD;
    judge->number = walk == PQ_WALK_RUNS ? 1 : promise->head_page;
}

uint64_t pq_judge_wants(const pq_judge *judge, int *frames, int *following) {
    *frames = judge->phase == WALK || judge->phase == RUNS;
    *following = judge->phase == AFTER || judge->phase == RUNS;
    return judge->phase == DONE ? 0 : judge->number;
}

static int refuse(pq_judge *judge, pq_refusal_kind kind, uint64_t page, uint64_t position,
                  uint64_t sequence, pq_read_result stopped) {
    judge->phase = DONE;
    judge->refusal = (pq_refusal){.kind = kind, .page = page, .position = position,
                                  .sequence = sequence, .stopped = stopped};
    judge->refusal.below = judge->after > 0 ? judge->after : judge->promised;
    return 0;
}

/* Refuse below the mark: then there is no prefix that could be read. */
static int refuse_all(pq_judge *judge, pq_refusal_kind kind, uint64_t page, uint64_t position,
                      uint64_t sequence, pq_read_result stopped) {
    judge->has_tail = 0;
    return refuse(judge, kind, page, position, sequence, stopped);
}

static void end_at(pq_judge *judge, uint64_t number, uint64_t position, uint64_t first,
                   uint64_t sequence, int64_t timestamp) {
    judge->tail = (pq_tail){.page_number = number, .position = position,
                            .count = sequence - first, .first_sequence = first,
                            .last_timestamp = timestamp};
    judge->has_tail = 1;
}

/* The tail is found; without a mark, no message from a sequence on may be in a page after it. */
static void look_after(pq_judge *judge, uint64_t position, uint64_t sequence,
                       pq_read_result stopped) {
    const pq_promise *promise = &judge->promise;
    judge->phase = promise->mark_page > 0 ? DONE : AFTER;
    judge->number = judge->tail.page_number + 1;
    judge->low = sequence;
    judge->refusal.position = position;
    judge->refusal.stopped = stopped;
    int waits = promise->pending_first == judge->number && stopped == PQ_READ_NOTHING &&
                promise->pending_sequence == sequence;
    judge->waiting = waits ? promise->pending_last : 0;
}

static int show_head(pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict) {
    const pq_promise *promise = &judge->promise;
    header of = header_of(judge, file);
    uint64_t last = promise->last_page;
    if (last == 0 && promise->head_page == 1 && promise->mark_page == 0 &&
        judge->promised == promise->head_sequence) { /* a new queue, before its first page */
        verdict->kind = PQ_PAGE_TO_MAKE;
        verdict->number = 1;
        verdict->first = promise->head_sequence;
        end_at(judge, 1, BEGIN, verdict->first, verdict->first, 0);
        judge->begin = 1;
        judge->phase = DONE;
        return 1;
    }
    if (of.state != RIGHT || of.first != promise->head_sequence) {
        pq_refusal_kind kind = of.state == MISSING               ? PQ_MISSING
                               : of.state != RIGHT               ? PQ_BAD_HEADER
                               : of.first == PQ_UNSET_SEQUENCE   ? PQ_NOT_BEGUN
                                                                 : PQ_BAD_HEAD;
        return refuse(judge, kind, file->number, 0, of.first, PQ_READ_NOTHING);
    }
    if (promise->mark_page > 0 && promise->mark_page < last) {
        last = promise->mark_page;
    }
    judge->begin = judge->low = judge->number;
    judge->high = last > judge->low ? last : judge->low;
    judge->first = of.first;
    judge->phase = SEARCH;
    return 0;
}

/* Not a page after the mark's own: there a producer that died while it rolled can have left a
 * header, with a sequence that others then sent in the page before. */
static int show_middle(pq_judge *judge, const pq_page_file *file) {
    header of = header_of(judge, file);
    if (of.state == NEWER) {
        return refuse(judge, PQ_BAD_HEADER, file->number, 0, 0, PQ_READ_NOTHING);
    }
    if (of.state == RIGHT && of.first < judge->promised) { /* an unset one is not */
        judge->begin = judge->low = file->number;
        judge->first = of.first;
    } else {
        judge->high = file->number - 1;
    }
    return 0;
}

static int show_after(pq_judge *judge, const pq_page_file *file) {
    header of = header_of(judge, file);
    judge->number = file->number + 1;
    if (of.state == MISSING) {
        judge->phase = DONE;
    } else if (file->number <= judge->waiting) {
        return 0; /* of a commit that was not published */
    } else if (of.state != RIGHT) {
        return refuse(judge, PQ_BAD_HEADER, file->number, 0, 0, PQ_READ_NOTHING);
    } else if (of.first != PQ_UNSET_SEQUENCE && of.first >= judge->low) {
        judge->after = of.first;
        return refuse(judge, PQ_BAD_FRAME, judge->tail.page_number, judge->refusal.position,
                      judge->low, judge->refusal.stopped);
    }
    return 0;
}

/* --- commits ---------------------------------------------------------------------------------- */

/* How many bytes of a fragment fit after an end-of-page marker at a position. */
static uint64_t fragment_room(uint64_t page_bytes, uint64_t position) {
    uint64_t left = page_bytes - position;
    uint64_t blocks = (left + PQ_FRAGMENT_BLOCK_BYTES - 1) / PQ_FRAGMENT_BLOCK_BYTES;
    return left - pq_aligned(PQ_FRAME_BYTES + PQ_FRAGMENT_BYTES + 4 * blocks);
}

#define MARK_OF_HEAD (BEGIN + PQ_FRAME_BYTES + PQ_LARGE_HEAD_BYTES)

/* Whether the fragment that comes next is after the end-of-page marker at a position: all of its
 * blocks are as they were sent. */
static int take_fragment(pq_judge *judge, const pq_page_file *file, uint64_t position,
                         uint64_t sequence) {
    pq_frame mark;
    uint64_t offset, ordinal = judge->fragment, size = judge->promise.page_bytes;
    uint32_t stated_size, stated_ordinal;
    if (pq_frame_check(file->bytes, size, judge->queue_state, position, sequence, &mark) !=
            PQ_READ_END ||
        mark.payload_bytes < PQ_FRAGMENT_BYTES) {
        return 0;
    }
    memcpy(&offset, mark.payload + PQ_FRAGMENT_OFFSET, 8);
    memcpy(&stated_size, mark.payload + PQ_FRAGMENT_SIZE, 4);
    memcpy(&stated_ordinal, mark.payload + PQ_FRAGMENT_ORDINAL, 4);
    uint64_t room = fragment_room(size, MARK_OF_HEAD), others = fragment_room(size, BEGIN), at = 0;
    if (ordinal > 0) {
        at = room + (ordinal - 1) * others;
        room = others;
    }
    uint64_t left = judge->payload_bytes - at, bytes = left < room ? left : room;
    uint64_t blocks = (bytes + PQ_FRAGMENT_BLOCK_BYTES - 1) / PQ_FRAGMENT_BLOCK_BYTES;
    if (stated_ordinal != ordinal || offset != at || stated_size != bytes ||
        bytes > size - mark.next || PQ_FRAGMENT_BYTES + 4 * blocks > mark.payload_bytes) {
        return 0;
    }
    for (uint64_t block = 0; block < blocks; block++) {
        uint64_t begin = block * PQ_FRAGMENT_BLOCK_BYTES, rest = bytes - begin;
        uint32_t sum;
        memcpy(&sum, mark.payload + PQ_FRAGMENT_BYTES + 4 * block, 4);
        if (sum != ~pq_crc_update(judge->queue_state, file->bytes + mark.next + begin,
                                  rest < PQ_FRAGMENT_BLOCK_BYTES ? rest : PQ_FRAGMENT_BLOCK_BYTES)) {
            return 0;
        }
    }
    judge->fragment += 1;
    return 1;
}

/* Whether a page begins with the head of a large message, and has its first fragment. */
static int take_head(pq_judge *judge, const pq_page_file *file, uint64_t sequence) {
    pq_frame frame;
    uint32_t fragments, block_bytes;
    if (pq_frame_check(file->bytes, file->size, judge->queue_state, BEGIN, sequence, &frame) !=
            PQ_READ_FRAME ||
        frame.payload_bytes != PQ_LARGE_HEAD_BYTES) {
        return 0;
    }
    memcpy(&judge->payload_bytes, frame.payload + PQ_LARGE_HEAD_PAYLOAD_BYTES, 8);
    memcpy(&fragments, frame.payload + PQ_LARGE_HEAD_FRAGMENTS, 4);
    memcpy(&block_bytes, frame.payload + PQ_LARGE_HEAD_BLOCK_BYTES, 4);
    if (judge->payload_bytes > PQ_LARGE_BYTES_MAX || block_bytes != PQ_FRAGMENT_BLOCK_BYTES) {
        return 0;
    }
    uint64_t room = fragment_room(file->size, MARK_OF_HEAD), others = fragment_room(file->size, BEGIN);
    uint64_t left = judge->payload_bytes > room ? judge->payload_bytes - room : 0;
    judge->fragments = 1 + (left + others - 1) / others;
    judge->fragment = 0;
    return fragments == judge->fragments &&
           take_fragment(judge, file, MARK_OF_HEAD, sequence + 1);
}

/* Whether a page has what the commit that goes on must have in it. */
static int is_whole(pq_judge *judge, const pq_page_file *file, const pq_page_verdict *verdict,
                    int continues) {
    const pq_scanned *scanned = &verdict->scanned;
    uint32_t word = pq_load_u32(file->bytes + BEGIN);
    if (judge->fragment < judge->fragments) {
        if (!take_fragment(judge, file, BEGIN, verdict->first)) {
            return 0;
        }
    } else if (pq_is_large(word) && !take_head(judge, file, verdict->first)) {
        return 0;
    }
    int is_end = scanned->stopped == PQ_READ_END;
    if (judge->continues && !continues && !is_end && scanned->whole_sequence == verdict->first) {
        return 0; /* the first batch of its last page is the last one of a commit */
    }
    judge->continues = continues;
    judge->is_committing = continues || judge->fragment < judge->fragments;
    return !judge->is_committing || (is_end && scanned->whole_sequence == scanned->sequence);
}

/* The commit that goes on is not whole: the queue ends before it. */
static int drop_commit(pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict) {
    const pq_page_verdict *commit = &judge->commit;
    end_at(judge, commit->number, BEGIN, commit->first, commit->first, commit->floor);
    if (file->state == PQ_FILE_MISSING && judge->promise.mark_page == 0) {
        return refuse_all(judge, PQ_MISSING, file->number, 0, commit->first, PQ_READ_NOTHING);
    }
    if (commit->number < judge->promise.mark_page) {
        return refuse_all(judge, PQ_BAD_FRAME, commit->number, BEGIN, commit->first,
                          PQ_READ_NOTHING);
    }
    *verdict = *commit;
    verdict->kind = PQ_PAGE_DROPPED;
    look_after(judge, BEGIN, commit->first, PQ_READ_NOTHING);
    return 1;
}

/* --- the walk --------------------------------------------------------------------------------- */

static void scan(const pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict) {
    pq_place at = {.page = (uint8_t *)file->bytes, .page_bytes = file->size,
                   .page_number = file->number, .queue_state = judge->queue_state,
                   .first_sequence = verdict->first};
    pq_scan(&at, BEGIN, verdict->first, PQ_SEQUENCE_MAX, verdict->floor, PQ_INDEX_NONE,
            &verdict->scanned);
}

/* What the header of a page after an end-of-page marker tells, if that is not what was expected.
 * 1: its frames are walked; 0: the queue ends, or is refused. */
static int is_kept(pq_judge *judge, const pq_page_file *file, const header *of,
                   pq_page_verdict *verdict) {
    uint64_t number = file->number, first = judge->first, mark_page = judge->promise.mark_page;
    int is_sure = first < judge->sure;
    if (of->state == RIGHT) {
        pq_frame frame;
        pq_read_result found = pq_frame_check(file->bytes, file->size, judge->queue_state, BEGIN,
                                              first, &frame);
        /* Without a mark, an empty page that was only prepared can follow. */
        int is_unused = mark_page == 0 && found == PQ_READ_NOTHING &&
                        of->first == PQ_UNSET_SEQUENCE;
        int is_proved = found == PQ_READ_FRAME || found == PQ_READ_END || is_unused;
        verdict->is_header_lost = 1;
        if ((is_sure && !is_proved) || file->state == PQ_FILE_COMPRESSED) {
            return refuse(judge, PQ_BAD_FIRST, number, 0, first, PQ_READ_NOTHING);
        }
        return 1;
    }
    if (of->state == MISSING && (is_sure || number <= mark_page)) {
        return refuse_all(judge, PQ_MISSING, number, 0, first, PQ_READ_NOTHING);
    }
    if (of->state == FOREIGN || of->state == NEWER || (of->state == SIZE && number <= mark_page) ||
        (of->state == STAGED && number < mark_page)) {
        return refuse_all(judge, PQ_BAD_HEADER, number, 0, first, PQ_READ_NOTHING);
    }
    if (is_sure && of->state != MISSING) {
        return refuse(judge, PQ_BAD_HEADER, number, 0, first, PQ_READ_NOTHING);
    }
    verdict->is_header_lost = of->state == TORN && number <= mark_page;
    return verdict->is_header_lost;
}

static int show_page(pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict) {
    header of = header_of(judge, file);
    uint64_t number = file->number, mark_page = judge->promise.mark_page;
    pq_scanned *scanned = &verdict->scanned;
    verdict->number = number;
    verdict->first = judge->first;
    verdict->floor = judge->floor;
    if (of.state == RIGHT && of.first == judge->first) {
        verdict->floor = of.floor;
    } else if (judge->is_committing && of.state != NEWER) {
        return drop_commit(judge, file, verdict);
    } else if (number == judge->begin) { /* it was another one a moment ago */
        return refuse_all(judge, PQ_BAD_HEADER, number, 0, judge->first, PQ_READ_NOTHING);
    } else if (!is_kept(judge, file, &of, verdict)) {
        if (judge->phase == DONE) {
            return 0;
        }
        verdict->kind = PQ_PAGE_TO_MAKE;
        end_at(judge, number, BEGIN, judge->first, judge->first, judge->floor);
        judge->phase = DONE;
        return 1;
    }
    int continues = of.continues && !verdict->is_header_lost;
    scan(judge, file, verdict);
    if (verdict->first >= judge->promised) { /* below the mark only frames are read */
        if (!judge->is_committing) {
            judge->commit = *verdict;
            judge->commit.is_fresh = continues || file->state == PQ_FILE_COMPRESSED;
            judge->fragments = judge->fragment = 0;
            judge->continues = 0;
        }
        if (!is_whole(judge, file, verdict, continues)) {
            return drop_commit(judge, file, verdict);
        }
    }
    if (scanned->stopped == PQ_READ_END) {
        verdict->kind = PQ_PAGE_SEALED;
        end_at(judge, number, scanned->position, verdict->first, scanned->sequence,
               scanned->timestamp);
        judge->number = number + 1;
        judge->first = scanned->sequence;
        judge->floor = scanned->timestamp;
        judge->has_tail = judge->first >= judge->promised;
        return 1;
    }
    verdict->kind = PQ_PAGE_OPEN;
    if (scanned->whole_sequence < judge->promised || number < mark_page ||
        file->state == PQ_FILE_COMPRESSED) {
        return refuse_all(judge, PQ_BAD_FRAME, number, scanned->position, scanned->sequence,
                          scanned->stopped);
    }
    end_at(judge, number, scanned->whole_position, verdict->first, scanned->whole_sequence,
           scanned->whole_timestamp);
    look_after(judge, scanned->position, scanned->sequence, scanned->stopped);
    return 1;
}

/* --- rings ------------------------------------------------------------------------------------ */

static void end_run(pq_judge *judge) {
    const pq_run *run = &judge->run;
    uint64_t mark = judge->promise.mark_sequence;
    if (run->first_page > 0 && run->first <= mark && mark <= run->end) {
        judge->kept = *run;
    } else if (run->first_page > 0 && run->first > mark) {
        judge->later = *run;
    }
    memset(&judge->run, 0, sizeof judge->run);
}

static int show_run(pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict) {
    header of = header_of(judge, file);
    pq_run *run = &judge->run;
    judge->number = file->number + 1;
    if (of.state == NEWER) {
        return refuse_all(judge, PQ_BAD_HEADER, file->number, 0, 0, PQ_READ_NOTHING);
    }
    if (of.state == MISSING) {
        end_run(judge);
        judge->kept = judge->kept.first_page > 0 ? judge->kept : judge->later;
        judge->phase = DONE;
        return 0;
    }
    if (of.state != RIGHT || of.first == PQ_UNSET_SEQUENCE) {
        return 0; /* another page's header, or a torn one */
    }
    verdict->number = file->number;
    verdict->first = of.first;
    verdict->floor = of.floor;
    scan(judge, file, verdict);
    const pq_scanned *scanned = &verdict->scanned;
    if (!judge->is_sealed || run->last_page + 1 != file->number || run->end != of.first) {
        end_run(judge);
        run->first_page = file->number;
        run->first = of.first;
    }
    run->last_page = file->number;
    run->end = scanned->whole_sequence;
    judge->is_sealed = scanned->stopped == PQ_READ_END && run->end == scanned->sequence;
    verdict->kind = judge->is_sealed ? PQ_PAGE_SEALED : PQ_PAGE_OPEN;
    judge->most = run->end > judge->most ? run->end : judge->most;
    judge->latest = scanned->whole_timestamp > judge->latest ? scanned->whole_timestamp
                                                              : judge->latest;
    return 1;
}

int pq_judge_show(pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict) {
    int shown = 0;
    memset(verdict, 0, sizeof *verdict);
    verdict->kind = PQ_PAGE_AFTER;
    switch (judge->phase) {
    case HEAD: shown = show_head(judge, file, verdict); break;
    case SEARCH: shown = show_middle(judge, file); break;
    case WALK: return show_page(judge, file, verdict);
    case AFTER: return show_after(judge, file);
    case RUNS: return show_run(judge, file, verdict);
    default: return 0;
    }
    if (judge->phase == SEARCH) {
        judge->number = judge->low + (judge->high - judge->low + 1) / 2;
        if (judge->low == judge->high) {
            judge->number = judge->begin;
            judge->phase = WALK;
        }
    }
    return shown;
}
