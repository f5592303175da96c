/* Where a queue ends whose shared words cannot be trusted: after a power cut, in a copy, without a
 * write meta. One judge for recovery, readers, verify, repair and the power-cut simulator; it reads
 * no file, allocates nothing, and is shown one page after the other (protocol/judge.c).
 */
#ifndef PAGEQUEUE_JUDGE_H
#define PAGEQUEUE_JUDGE_H

#include "protocol/protocol.h"

/* What the small files state. */
typedef struct {
    uint8_t queue_id[PQ_QUEUE_ID_BYTES];
    uint64_t page_bytes;
    uint64_t head_page, head_sequence;
    uint64_t mark_page, mark_sequence; /* the durable mark; page 0: it is lost */
    uint64_t last_page;                /* the largest number that a page's name has; 0: no page */
    /* The record of a bulk commit: its pages, and the sequence of their end-of-page marker. First
     * page 0: there is no record. */
    uint64_t pending_first, pending_last, pending_sequence;
} pq_promise;

typedef enum {
    PQ_FILE_PLAIN = 0,
    PQ_FILE_COMPRESSED, /* whole, and shown inflated: it was on stable storage before its name */
    PQ_FILE_MISSING,
    PQ_FILE_BROKEN, /* compressed and damaged: no power cut does that */
} pq_file_state;

typedef struct {
    uint64_t number;
    pq_file_state state;
    const uint8_t *bytes;
    uint64_t size; /* of the file; where it is not the page size, `bytes` are not read */
} pq_page_file;

typedef enum {
    PQ_PAGE_SEALED = 0, /* it ends in an end-of-page marker */
    PQ_PAGE_OPEN,       /* the queue ends in it */
    PQ_PAGE_TO_MAKE,    /* the queue ends before it: a marker leads to it, and nothing is in it */
    PQ_PAGE_DROPPED,    /* the queue ends before its messages, some of a commit that is not whole */
    PQ_PAGE_AFTER,      /* the queue ended before it */
} pq_page_kind;

typedef struct {
    uint64_t number, first;
    int64_t floor;
    pq_page_kind kind;
    int is_header_lost; /* its header is to be written again, with `first` and `floor` */
    int is_fresh;       /* DROPPED: the page must be a new file */
    pq_scanned scanned; /* its frames */
} pq_page_verdict;

typedef enum {
    PQ_FINE = 0,
    PQ_MISSING,      /* a page that was guaranteed is missing */
    PQ_BAD_HEADER,   /* of a page: it is damaged, or not this page's */
    PQ_NOT_BEGUN,    /* the head's page is only prepared */
    PQ_BAD_HEAD,     /* the head's page does not begin with the head */
    PQ_BAD_FIRST,    /* a page does not begin with `sequence`, with which the one before it ends */
    PQ_BAD_FRAME,    /* the frames of a page end at `position`, before `below` */
} pq_refusal_kind;

typedef struct {
    pq_refusal_kind kind;
    uint64_t page, position, sequence;
    uint64_t below; /* all messages below it are guaranteed */
    pq_read_result stopped;
} pq_refusal;

typedef enum {
    PQ_WALK_TAIL = 0, /* from the page of the mark on */
    PQ_WALK_RUNS,     /* every page of a ring: which of its runs of whole pages is kept */
} pq_walk;

typedef struct {
    uint64_t first_page, last_page, first, end;
} pq_run;

typedef struct {
    pq_promise promise;
    uint32_t queue_state;
    uint64_t promised; /* messages below it were on stable storage */
    uint64_t sure;     /* and below this one, what is missing is an error */
    int phase;
    uint64_t number;  /* the page to show */
    uint64_t low, high;
    uint64_t begin;
    uint64_t first;   /* what the next page must begin with, */
    int64_t floor;    /* and the last timestamp before it */
    int is_committing, continues;
    pq_page_verdict commit; /* the page where the commit began that goes on */
    uint64_t payload_bytes, fragments, fragment; /* of the large message that goes on */
    uint64_t after, waiting; /* the pages after the end: no message from there on; one that waits */
    pq_tail tail;
    int has_tail;
    pq_refusal refusal;
    pq_run run, kept, later;
    int is_sealed;
    uint64_t most; /* the sequence after the last message of any page of a ring */
    int64_t latest;
} pq_judge;

void pq_judge_begin(pq_judge *judge, const pq_promise *promise, pq_walk walk);
/* The page to show next, 0: none; with `frames` 0 only its header is read. Where `following`, the
 * next page that exists counts, or a missing one if there is none. */
uint64_t pq_judge_wants(const pq_judge *judge, int *frames, int *following);
/* 1: it was walked, and the verdict is set. */
int pq_judge_show(pq_judge *judge, const pq_page_file *file, pq_page_verdict *verdict);

#endif
