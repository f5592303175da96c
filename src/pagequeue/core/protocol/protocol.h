/* What the core can do without Python: checksums, frames, the writers' lock, the sleeping wait.
 *
 * Everything here takes plain memory and bounds, so that it can be fuzzed and run under sanitizers
 * alone. No function opens, creates or removes a file, and none decides what to do next: it
 * returns a code, and the Python layers above decide.
 */
#ifndef PAGEQUEUE_CORE_H
#define PAGEQUEUE_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "protocol/layout.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the files are little-endian, and so must the machine be"
#endif

/* Kill points and planted bugs exist only in builds made for the torture suite. */
#ifdef PAGEQUEUE_KILL_POINTS
void pq_kill_point(int number);
void pq_kill_set(int number, long pass);
#define PQ_KILL_POINT(number) pq_kill_point(number)
#else
#define PQ_KILL_POINT(number) ((void)0)
#endif
#ifdef PAGEQUEUE_PLANT
#define PQ_PLANTED(bug) (strcmp(PAGEQUEUE_PLANT, #bug) == 0)
#else
#define PQ_PLANTED(bug) 0
#endif

static inline uint32_t pq_load_u32(const void *at) {
    return __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
}
static inline uint64_t pq_load_u64(const void *at) {
    return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}
static inline void pq_store_u32(void *at, uint32_t value) {
    __atomic_store_n((uint32_t *)at, value, __ATOMIC_RELEASE);
}
static inline void pq_store_u64(void *at, uint64_t value) {
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELEASE);
}
static inline uint64_t pq_aligned(uint64_t bytes) {
    return (bytes + PQ_FRAME_ALIGN_BYTES - 1) & ~(uint64_t)(PQ_FRAME_ALIGN_BYTES - 1);
}

/* --- protocol/crc32c.c: CRC-32C, by the fastest of several ways that the CPU has --------------- */

#define PQ_CRC_START 0xffffffffu
#define PQ_CRC_BEST 4
/* The best way up to this number: 0 is the tables, which every CPU can do. */
void pq_crc_choose(int most);
const char *pq_crc_name(void);
uint32_t pq_crc_update(uint32_t state, const void *data, size_t bytes);
/* Copies, and sums what it stores: each byte is loaded once, so that what others change meanwhile
 * cannot get another checksum than its own. */
uint32_t pq_crc_copy(uint32_t state, void *to, const void *data, size_t bytes);
#define PQ_CRC_COPY_BYTES_MIN 256 /* of a sender; smaller ones are summed before its lock is taken */
/* From one state, the checksums of several pieces of one size: within a piece each step waits for
 * the last, so several small pieces are interleaved. */
#define PQ_CRC_LANES 4
#define PQ_CRC_LANES_BYTES_MAX 511 /* larger pieces are summed one after the other as fast */
void pq_crc_lanes(uint32_t *states, uint32_t state, const uint8_t *const *pieces, size_t bytes);
/* The state after the id of a queue, from which the checksums of all of its frames start: a frame
 * of another queue never validates. */
#define PQ_QUEUE_ID_BYTES 16
uint32_t pq_queue_state(const uint8_t *queue_id);
uint32_t pq_frame_checksum(uint32_t payload_state, int64_t timestamp, uint64_t sequence,
                           uint32_t word);
/* The same from the payload on. */
uint32_t pq_frame_sum(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                      int64_t timestamp, uint64_t sequence, uint32_t word);

/* --- protocol/frames.c: reading and appending frames inside one mapped page ------------------- */

typedef enum {
    PQ_READ_FRAME = 0,    /* a frame */
    PQ_READ_NOTHING,      /* the commit word is 0 */
    PQ_READ_END,          /* the end-of-page mark */
    PQ_READ_BAD_LENGTH,   /* invalid length */
    PQ_READ_BAD_CHECKSUM, /* the bytes are not what was sent */
    PQ_READ_BAD_TIME,     /* older than the frame before it */
} pq_read_result;

typedef struct {
    uint32_t word;          /* the commit word, flags included */
    uint32_t checksum;      /* as stored in the frame */
    int64_t timestamp;      /* ns */
    const uint8_t *payload; /* in the map */
    uint32_t payload_bytes;
    uint64_t next; /* position of the frame after it */
} pq_frame;

/* What the two flags of a commit word mean. */
static inline int pq_is_end(uint32_t word) {
    return (word & PQ_LARGE_MESSAGE) == PQ_END_OF_PAGE;
}
static inline int pq_has_more(uint32_t word) {
    return (word & PQ_LARGE_MESSAGE) == PQ_MORE_OF_BATCH;
}
/* The head of a message whose payload is in fragments, after the end marks of this page and of
 * those that follow. */
static inline int pq_is_large(uint32_t word) {
    return (word & PQ_LARGE_MESSAGE) == PQ_LARGE_MESSAGE;
}

pq_read_result pq_frame_peek(const uint8_t *page, uint64_t page_bytes, uint64_t position,
                             pq_frame *frame);
pq_read_result pq_frame_check(const uint8_t *page, uint64_t page_bytes, uint32_t queue_state,
                              uint64_t position, uint64_t sequence, pq_frame *frame);
/* The next frames, as far as they validate: at most `most`, and PQ_CRC_LANES. Returns how many. The
 * checksums of small frames of one size are computed interleaved. */
size_t pq_frames_check(const uint8_t *page, uint64_t page_bytes, uint32_t queue_state,
                       uint64_t position, uint64_t sequence, size_t most, pq_frame *frames);
/* The checksums of PQ_CRC_LANES consecutive frames of one size (protocol/crc32c.c). */
void pq_frame_sums(uint32_t *sums, uint32_t queue_state, const pq_frame *frames,
                   uint64_t sequence);

typedef struct {
    uint8_t *meta; /* the write meta */
    uint8_t *page;
    uint64_t page_bytes;
    uint64_t page_number;
    uint64_t first_sequence;
    uint8_t *index;
    uint64_t index_capacity;
    /* Of both files, how much surely has blocks: writing to more could find the disk full, which is
     * a signal in a map. 0 = all of them have. */
    uint64_t reserved_bytes, reserved_records;
    uint32_t queue_state; /* from which its frames' checksums start */
    uint64_t sequence_limit; /* appending this sequence or a higher one is refused; 0 = none is */
    uint64_t only_at; /* sequence + 1 that the first message must get; 0 = any */
} pq_place;

static inline pq_read_result pq_check_at(const pq_place *at, uint64_t position, uint64_t sequence,
                                         pq_frame *frame) {
    return pq_frame_check(at->page, at->page_bytes, at->queue_state, position, sequence, frame);
}

typedef struct {
    const void *data;
    size_t bytes;
    int fixed;      /* the bytes are immutable */
    int summed;     /* `state` was computed beforehand; else it is computed while they are copied */
    uint32_t state; /* checksum of queue id and payload */
} pq_payload;

typedef struct {
    const uint8_t *data; /* of the first row */
    int64_t stride;      /* from one row to the next, in bytes; also 0, or below */
    uint32_t bytes;      /* of a value */
    uint32_t at;         /* its place in the payload */
} pq_column;

/* What is appended at once: payloads one by one, or rows that are put together from columns. The
 * values can change meanwhile; sizes and times are private copies and cannot. */
typedef struct {
    size_t count;
    const pq_payload *items; /* NULL = rows */
    const pq_column *columns;
    size_t column_count;
    uint32_t row_bytes;
    int has_gaps;         /* bytes of a row that no column fills: they are zeroed */
    const int64_t *times; /* one for each, never going back; NULL = one for all */
} pq_batch;

static inline uint64_t pq_batch_bytes(const pq_batch *batch, size_t i) {
    return batch->items != NULL ? batch->items[i].bytes : batch->row_bytes;
}

typedef enum {
    PQ_APPEND_DONE = 0,
    PQ_APPEND_MOVED,     /* another page is active now */
    PQ_APPEND_FULL,      /* no room, or the page must be left: roll */
    PQ_APPEND_FAILED,    /* the failure latch is set */
    PQ_APPEND_OLD,       /* the timestamp asked for is earlier than the last one */
    PQ_APPEND_DAMAGED,   /* the bytes at the tail are neither a frame nor empty */
    PQ_APPEND_EXHAUSTED, /* no sequence number is left */
    PQ_APPEND_LOST,      /* a map was truncated: the frames may be lost */
    PQ_APPEND_OVER_LIMIT, /* the bound group has as many waiting as its limit allows */
    PQ_APPEND_OVERTAKEN, /* another sequence is next than `only_at` asks for */
    PQ_APPEND_UNRESERVED, /* it fits, but blocks must be reserved first */
} pq_append_result;

typedef struct {
    uint64_t sequence; /* of the first message; OVERTAKEN: the next one of the queue */
    uint64_t position; /* after the last one */
    int64_t timestamp; /* of the last one */
} pq_appended;

#define PQ_TIMESTAMP_NOW INT64_MIN

pq_append_result pq_append(const pq_place *at, const pq_batch *batch, int64_t now, int64_t exact,
                           pq_appended *out);
pq_append_result pq_roll(const pq_place *at, uint8_t *next_page, const uint8_t *header);

typedef struct {
    uint64_t page_number;
    uint64_t position;
    uint64_t count;
    uint64_t first_sequence;
    int64_t last_timestamp;
} pq_tail;

pq_append_result pq_freeze(const pq_place *at, pq_tail *tail);
pq_append_result pq_commit_pages(const pq_place *at, const uint8_t *next_page,
                                 const uint8_t *header, const pq_tail *beyond);
int pq_assign_sequences(const pq_place *at, uint64_t count, uint32_t queue_state,
                        uint64_t first_sequence, int64_t timestamp, int one_batch,
                        uint64_t *done);

void pq_tail_load(const uint8_t *meta, pq_tail *tail);
void pq_tail_store(uint8_t *meta, const pq_tail *tail);

static inline uint64_t pq_tail_sequence(const uint8_t *meta) {
    pq_tail tail;
    pq_tail_load(meta, &tail);
    return tail.first_sequence + tail.count;
}

/* --- protocol/scan.c: walking a page, and finding a frame by time or number ------------------- */

typedef struct {
    uint64_t position; /* where the scan stopped */
    uint64_t sequence; /* the sequence of a frame there */
    int64_t timestamp; /* of the last frame */
    uint64_t whole_position; /* the same, after the last complete batch */
    uint64_t whole_sequence;
    int64_t whole_timestamp;
    uint64_t index_wrong; /* records that were not what the frames say */
    pq_read_result stopped;
} pq_scanned;

typedef enum { PQ_INDEX_NONE = 0, PQ_INDEX_WRITE, PQ_INDEX_CHECK } pq_index_use;

void pq_scan(const pq_place *at, uint64_t position, uint64_t sequence, uint64_t end_sequence,
             int64_t floor_timestamp, pq_index_use use, pq_scanned *out);
int pq_find(const pq_place *at, uint64_t count, int64_t since, uint64_t *ordinal,
            uint64_t *position);
int pq_locate(const pq_place *at, uint64_t count, uint64_t ordinal, uint64_t *position);
int pq_find_many(const pq_place *at, uint64_t count, const int64_t *timestamps,
                 size_t timestamp_count, int64_t *ordinals);
int pq_times(const pq_place *at, uint64_t ordinal, uint64_t end, int64_t *times);
int pq_resync(const pq_place *at, uint64_t position, uint64_t sequence, uint64_t end_sequence,
              uint64_t mark_sequence, int64_t floor_timestamp, int64_t ceiling_timestamp,
              uint64_t *found_position, uint64_t *found_sequence);

/* --- os/writers_lock.c: the writers' lock, released by the kernel when its holder dies -------- */

typedef struct {
    uint8_t *mutex; /* in the write meta, or a group's file */
    int fd;         /* of that file, opened for this handle alone */
    int foreign;    /* the mutex belongs to the threads of another PID namespace */
    int held;       /* a thread of this handle has the descriptor's lock */
} pq_lock;

uint32_t pq_lock_abi(void);
int pq_lock_needs_fd(void);
int pq_lock_reset(uint8_t *mutex);
int pq_lock_try(pq_lock *lock);
void pq_lock_release(pq_lock *lock);
void pq_lock_revive(pq_lock *lock);
void pq_lock_forget(pq_lock *lock);

/* --- os/futex.c: clocks, spinning, sleeping and waking ---------------------------------------- */

int64_t pq_clock_realtime(void);
int64_t pq_clock_monotonic(void);
int64_t pq_clock_coarse(void); /* monotonic, some ms late, for a fifth of the price */
int64_t pq_clock_boot(void);
void pq_clock_set_offsets(int64_t monotonic_ns, int64_t boot_ns);
void pq_pause(void);
void pq_yield(void);
void pq_sleep_ns(int64_t ns);
uint32_t pq_doorbell(const uint8_t *meta);
void pq_register(uint8_t *meta);
void pq_sleep(const uint8_t *meta, uint32_t doorbell, int64_t ns);
void pq_wake(uint8_t *meta);
uint32_t pq_room_prepare(uint8_t *meta, uint64_t sequence);
void pq_room_sleep(const uint8_t *meta, uint32_t bell, int64_t ns);
void pq_room_wake(uint8_t *meta, uint64_t sequence);
int pq_sleep_turn(const uint8_t *meta, uint32_t turn, int64_t ns);
int pq_wake_turn(const uint8_t *meta);

/* --- protocol/flush_turn.c: whose turn it is to flush ----------------------------------------- */

typedef enum {
    PQ_TURN_DURABLE = 0, /* the sequence is durable, and no sync failed */
    PQ_TURN_LATCH,       /* the failure latch changed */
    PQ_TURN_YOURS,       /* no process flushes: try the flush lock */
    PQ_TURN_LATE,        /* the time is up, or a signal came: try the lock all the same */
} pq_turn_result;

/* Sleep until one of these; `ns` 0 never sleeps, and is LATE then. With `take` a turn that is yours
 * is so for all to see. */
pq_turn_result pq_turn_wait(uint8_t *meta, uint64_t sequence, int64_t ns, int take);
/* End a turn and wake all; returns how many slept. The next one may wait `ns` for the tail to gain
 * `count` messages. */
int pq_turn_end(uint8_t *meta, uint64_t count, int64_t ns);

#endif
