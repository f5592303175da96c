/* A recorded run, and the states that a power cut can leave of it.
 *
 * cut_trace.c reads the log, cut_state.c builds one state, cut_check.c recovers it by the core's
 * own judge and compares what would be delivered with what was sent. A state follows from trace,
 * mode and a 64-bit seed; 64 seeds that differ in their last 6 bits share only the time of the cut.
 */
#ifndef PAGEQUEUE_CUT_H
#define PAGEQUEUE_CUT_H

#include "protocol/protocol.h"
#include "cut_events.h"

#define CUT_SEEDS_PER_MOMENT_BITS 6
#define CUT_SECTOR_BYTES 512u
#define CUT_LINE_BYTES 64u

typedef enum { CUT_BY_PAGE = 0, CUT_BY_SECTOR, CUT_BY_LINE } cut_mode;

/* A version, valid from an event on. The first one was there from the beginning. */
typedef struct {
    uint64_t event;
    uint64_t value;      /* size, or file that a name leads to */
    const uint8_t *data; /* of an OS page */
} cut_version;

typedef struct {
    cut_version *items;
    uint32_t count, room;
    uint32_t low, high; /* what this cut can leave, both included */
    uint32_t chosen;
} cut_history;

typedef struct {
    uint64_t at, up_to; /* when it was over, and which events it covers */
    uint64_t failed;    /* one before it failed here: it covers only what changed since; 0 = none */
    uint32_t first, behind; /* OS pages */
} cut_sync;

typedef struct {
    cut_sync *items;
    uint32_t count, room;
} cut_syncs;

typedef struct {
    cut_history pages[CUT_FILE_OS_PAGES_MAX], size;
    cut_syncs syncs;
    uint64_t failed; /* while the log is read: the last sync that failed */
    uint32_t page_count;
    uint8_t *image;
} cut_file;

typedef enum { CUT_OTHER = 0, CUT_IS_PAGE, CUT_IS_INDEX, CUT_IS_ALL, CUT_IS_WRITE,
               CUT_IS_READ } cut_name_kind;

typedef struct {
    char name[CUT_NAME_BYTES_MAX];
    cut_name_kind kind;
    uint64_t number; /* of a page or index */
    cut_history file;
} cut_named;

typedef struct {
    uint64_t events, base;          /* `base`: the first event of the run */
    uint64_t *promised;             /* before each event */
    uint64_t made, parent_synced;   /* when the directory came to be, and was there for good */
    cut_file files[CUT_FILES_MAX];
    cut_named names[CUT_NAMES_MAX];
    uint32_t file_count, name_count;
    cut_syncs directory;
    uint64_t *stops; /* the syncs of the run: before each of them most is in doubt */
    uint32_t stop_count, stop_room;
    const uint8_t **frames; /* what was sent, by sequence, as encoded in a page */
    const uint8_t *continues; /* for each of them: whether its batch or bulk commit does */
    uint64_t frame_count;
    uint64_t least; /* every recovery finds so many messages, guaranteed or not */
    /* the state */
    uint64_t moment, random, seed_of_moment, variety;
    int prepared, mode, style, gone;
    uint64_t hash; /* of all choices and of the guarantees */
} cut_trace;

typedef enum {
    CUT_FINE = 0,
    CUT_REFUSED,  /* an invalid meta file or first page */
    CUT_DAMAGED,  /* damage below the durable mark */
    CUT_LOST,     /* it ends before what was guaranteed */
    CUT_INVENTED, /* it continues past what was sent */
    CUT_OTHER_FRAME, /* a frame that was not sent there */
    CUT_PART_OF_BATCH, /* it ends inside a batch */
} cut_result;

typedef struct {
    uint64_t seed, moment, promised;
    uint64_t tail;                   /* the next sequence */
    uint64_t page, position, sequence; /* where an error is */
    uint32_t result;
} cut_found;

/* cut_trace.c */
cut_trace *cut_load(const uint8_t *log, uint64_t log_bytes, const uint8_t *sent,
                    uint64_t sent_bytes, const uint8_t *continues, uint64_t promised,
                    uint64_t least);
void cut_free(cut_trace *trace);

/* cut_state.c */
void cut_choose(cut_trace *trace, uint64_t seed, int mode);
void cut_choose_last(cut_trace *trace);
const cut_file *cut_at_name(const cut_trace *trace, uint32_t name, uint64_t *size);
uint32_t cut_name_count(const cut_trace *trace);
const char *cut_name(const cut_trace *trace, uint32_t name);
const uint8_t *cut_bytes(const cut_trace *trace, uint32_t name, uint64_t *size);
int cut_gone(const cut_trace *trace);
uint64_t cut_events(const cut_trace *trace);

/* cut_check.c */
cut_result cut_check(const cut_trace *trace, cut_found *out);
uint64_t cut_run(cut_trace *trace, uint64_t seed, int mode, uint64_t states, uint8_t *seen,
                 uint64_t seen_bits, cut_found *bad);

#endif
