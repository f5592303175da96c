/* CRC-32C (Castagnoli), the checksum of every frame and header.
 *
 * Four ways to the same value; the best one that the CPU has is chosen when the core is loaded:
 *
 * table: eight tables, eight bytes a step.
 * instruction: the CPU's CRC instruction takes three cycles, and one can begin in each. So a
 *   buffer is cut into three interleaved streams of 1 KiB or 128 bytes each, whose results are
 *   combined by tables of what so many zero bytes do to a CRC.
 * streams: the same with a carry-less multiplication, which combines streams of any length.
 * folding: crc32c_folding.c, by vectors of carry-less multiplications.
 *
 * References: M. Adler's description of crc32c by three streams; V. Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ"; RFC 3720, appendix B.4 for values.
 */
#include "protocol/crc32c.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#ifndef HWCAP_PMULL
#define HWCAP_PMULL (1 << 4)
#endif
#endif

#define LONG_BYTES 1024u /* of each of the three streams of one round */
#define SHORT_BYTES 128u
#define MULTIPLIED_BYTES_MIN 144u /* below, one stream is as fast */
#define MULTIPLIED_WORDS_MAX 128u /* in each of three streams: 1 KiB */

/* What some zero bytes do to a CRC, by byte of the CRC. */
typedef uint32_t shift_table[4][256];

static uint32_t tables[8][256];
static shift_table long_one, long_two, short_one, short_two; /* one stream's bytes, or two's */
static uint32_t powers[2 * MULTIPLIED_WORDS_MAX + 1]; /* multiplies by x^(64n); of n words */
static pq_crc_path path, short_path; /* for all others, and below PQ_CRC_FOLDED_BYTES_MIN */

static inline uint64_t read_u64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

#if defined(__x86_64__) || defined(__aarch64__)
static inline uint32_t read_u32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}
#endif

static uint32_t update_table(uint32_t crc, const uint8_t *data, size_t bytes) {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word = read_u64(data) ^ crc;
        crc = tables[7][word & 255] ^ tables[6][(word >> 8) & 255] ^ tables[5][(word >> 16) & 255] ^
              tables[4][(word >> 24) & 255] ^ tables[3][(word >> 32) & 255] ^
              tables[2][(word >> 40) & 255] ^ tables[1][(word >> 48) & 255] ^ tables[0][word >> 56];
    }
    for (; bytes > 0; data++, bytes--) {
        crc = tables[0][(crc ^ *data) & 255] ^ (crc >> 8);
    }
    return crc;
}

static uint32_t copy_table(uint32_t crc, uint8_t *to, const uint8_t *data, size_t bytes) {
    memcpy(to, data, bytes);
    return update_table(crc, to, bytes);
}

static void lanes_table(uint32_t *states, uint32_t state, const uint8_t *const *pieces,
                        size_t bytes) {
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        states[lane] = update_table(state, pieces[lane], bytes);
    }
}

static uint32_t finish_table(uint32_t crc, int64_t timestamp, uint64_t sequence, uint32_t word) {
    uint8_t rest[20];
    memcpy(rest, &timestamp, 8);
    memcpy(rest + 8, &sequence, 8);
    memcpy(rest + 16, &word, 4);
    return ~update_table(crc, rest, sizeof rest);
}

static uint32_t frame_table(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                            int64_t timestamp, uint64_t sequence, uint32_t word) {
    return finish_table(update_table(queue_state, payload, bytes), timestamp, sequence, word);
}

static void frames_table(uint32_t *sums, uint32_t queue_state, const pq_frame *frames,
                         uint64_t sequence) {
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        const pq_frame *one = &frames[lane];
        sums[lane] = frame_table(queue_state, one->payload, one->payload_bytes, one->timestamp,
                                 sequence + lane, one->word);
    }
}

/* The remainder of x^n times one of a lower power, in the order of bits of a CRC: the lowest bit is
 * the highest power. */
static uint32_t raised(uint32_t remainder, uint64_t n) {
    for (; n > 0; n--) {
        remainder = (remainder >> 1) ^ ((remainder & 1) ? PQ_CRC_POLYNOMIAL : 0);
    }
    return remainder;
}

uint32_t pq_crc_power(uint64_t n) { return raised(1u << 31, n); }

static void make_shift(shift_table shift, size_t zero_bytes) {
    /* A CRC is linear: the effect on each of 32 bits gives the effect on every value. */
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (size_t i = 0; i < zero_bytes; i++) {
            crc = tables[0][crc & 255] ^ (crc >> 8);
        }
        of_bit[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++) {
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++) {
                if (value & (1u << bit)) {
                    crc ^= of_bit[8 * byte + bit];
                }
            }
            shift[byte][value] = crc;
        }
    }
}

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
#include <wmmintrin.h>
#include <nmmintrin.h>
#define HARDWARE __attribute__((target("sse4.2")))
#define MULTIPLYING __attribute__((target("sse4.2,pclmul")))
#define CRC_U64(crc, value) ((uint32_t)_mm_crc32_u64((crc), (value)))
#define CRC_U32(crc, value) _mm_crc32_u32((crc), (value))
#define CRC_U8(crc, value) _mm_crc32_u8((crc), (value))

MULTIPLYING static inline uint64_t multiplied(uint32_t a, uint32_t b) {
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}
#else
#include <arm_neon.h>
#define HARDWARE __attribute__((target("+crc")))
#define MULTIPLYING __attribute__((target("+crc+crypto")))
#define CRC_U64(crc, value) __builtin_aarch64_crc32cx((crc), (value))
#define CRC_U32(crc, value) __builtin_aarch64_crc32cw((crc), (value))
#define CRC_U8(crc, value) __builtin_aarch64_crc32cb((crc), (value))

MULTIPLYING static inline uint64_t multiplied(uint32_t a, uint32_t b) {
    return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64((poly64_t)a, (poly64_t)b)), 0);
}
#endif

static inline uint32_t shifted(shift_table shift, uint32_t crc) {
    return shift[0][crc & 255] ^ shift[1][(crc >> 8) & 255] ^ shift[2][(crc >> 16) & 255] ^
           shift[3][crc >> 24];
}

/* Eight bytes, which are also stored where `to` is given. They are loaded once: bytes that others
 * change meanwhile are stored as they were summed. */
#define INLINED static inline __attribute__((always_inline))

INLINED uint64_t pass_u64(uint8_t *to, const uint8_t *data, size_t at) {
    uint64_t value = read_u64(data + at);
    if (to != NULL) {
        __asm__("" : "+r"(value)); /* else the compiler may load it again */
        memcpy(to + at, &value, sizeof value);
    }
    return value;
}

/* One stream, from a place to the end. */
HARDWARE INLINED uint32_t chain(uint32_t crc, uint8_t *to, const uint8_t *data, size_t at,
                                size_t bytes) {
    for (; at + 8 <= bytes; at += 8) {
        crc = CRC_U64(crc, pass_u64(to, data, at));
    }
    if (at + 4 <= bytes) {
        uint32_t value = read_u32(data + at);
        if (to != NULL) {
            __asm__("" : "+r"(value));
            memcpy(to + at, &value, sizeof value);
        }
        crc = CRC_U32(crc, value);
        at += 4;
    }
    for (; at < bytes; at++) {
        uint8_t value = data[at];
        if (to != NULL) {
            __asm__("" : "+r"(value));
            to[at] = value;
        }
        crc = CRC_U8(crc, value);
    }
    return crc;
}

/* Three streams from a place on, of so many bytes each, a multiple of eight: the CRCs of the second
 * and the third begin with 0. */
HARDWARE INLINED void three(uint32_t crcs[3], uint8_t *to, const uint8_t *data, size_t at,
                            size_t bytes) {
    uint32_t a = crcs[0], b = 0, c = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        a = CRC_U64(a, pass_u64(to, data, at + i));
        b = CRC_U64(b, pass_u64(to, data, at + bytes + i));
        c = CRC_U64(c, pass_u64(to, data, at + 2 * bytes + i));
    }
    crcs[0] = a;
    crcs[1] = b;
    crcs[2] = c;
}

HARDWARE INLINED uint32_t instruction(uint32_t crc, uint8_t *to, const uint8_t *data,
                                      size_t bytes) {
    uint32_t crcs[3] = {crc};
    size_t at = 0;
    for (; bytes - at >= 3 * LONG_BYTES; at += 3 * LONG_BYTES) {
        three(crcs, to, data, at, LONG_BYTES);
        crcs[0] = shifted(long_two, crcs[0]) ^ shifted(long_one, crcs[1]) ^ crcs[2];
    }
    for (; bytes - at >= 3 * SHORT_BYTES; at += 3 * SHORT_BYTES) {
        three(crcs, to, data, at, SHORT_BYTES);
        crcs[0] = shifted(short_two, crcs[0]) ^ shifted(short_one, crcs[1]) ^ crcs[2];
    }
    return chain(crcs[0], to, data, at, bytes);
}

HARDWARE static uint32_t update_hardware(uint32_t crc, const uint8_t *data, size_t bytes) {
    return instruction(crc, NULL, data, bytes);
}

HARDWARE static uint32_t copy_hardware(uint32_t crc, uint8_t *to, const uint8_t *data,
                                       size_t bytes) {
    return instruction(crc, to, data, bytes);
}

MULTIPLYING INLINED uint32_t streams(uint32_t crc, uint8_t *to, const uint8_t *data,
                                     size_t bytes) {
    uint32_t crcs[3] = {crc};
    size_t at = 0;
    while (bytes - at >= MULTIPLIED_BYTES_MIN) {
        size_t words = (bytes - at) / 24;
        words = words < MULTIPLIED_WORDS_MAX ? words : MULTIPLIED_WORDS_MAX;
        three(crcs, to, data, at, 8 * words);
        uint64_t before = multiplied(crcs[0], powers[2 * words]) ^
                          multiplied(crcs[1], powers[words]);
        crcs[0] = CRC_U64(0, before) ^ crcs[2];
        at += 24 * words;
    }
    return chain(crcs[0], to, data, at, bytes);
}

MULTIPLYING static uint32_t update_streams(uint32_t crc, const uint8_t *data, size_t bytes) {
    return streams(crc, NULL, data, bytes);
}

MULTIPLYING static uint32_t copy_streams(uint32_t crc, uint8_t *to, const uint8_t *data,
                                         size_t bytes) {
    return streams(crc, to, data, bytes);
}

/* Four pieces of one size, from one state. */
HARDWARE INLINED void four(uint32_t crcs[4], uint32_t crc, const uint8_t *one, const uint8_t *two,
                           const uint8_t *three, const uint8_t *four, size_t bytes) {
    uint32_t a = crc, b = crc, c = crc, d = crc;
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        a = CRC_U64(a, read_u64(one + at));
        b = CRC_U64(b, read_u64(two + at));
        c = CRC_U64(c, read_u64(three + at));
        d = CRC_U64(d, read_u64(four + at));
    }
    crcs[0] = chain(a, NULL, one, at, bytes);
    crcs[1] = chain(b, NULL, two, at, bytes);
    crcs[2] = chain(c, NULL, three, at, bytes);
    crcs[3] = chain(d, NULL, four, at, bytes);
}

HARDWARE static void lanes_hardware(uint32_t *crcs, uint32_t crc, const uint8_t *const *pieces,
                                    size_t bytes) {
    four(crcs, crc, pieces[0], pieces[1], pieces[2], pieces[3], bytes);
}

HARDWARE static inline uint32_t finish_hardware(uint32_t crc, int64_t timestamp, uint64_t sequence,
                                                uint32_t word) {
    crc = CRC_U64(crc, (uint64_t)timestamp);
    crc = CRC_U64(crc, sequence);
    return ~CRC_U32(crc, word);
}

HARDWARE static void frames_hardware(uint32_t *sums, uint32_t queue_state, const pq_frame *frames,
                                     uint64_t sequence) {
    four(sums, queue_state, frames[0].payload, frames[1].payload, frames[2].payload,
         frames[3].payload, frames[0].payload_bytes);
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        sums[lane] = finish_hardware(sums[lane], frames[lane].timestamp, sequence + lane,
                                     frames[lane].word);
    }
}

/* All in one call: walking a page makes it for every frame. */
HARDWARE static uint32_t frame_hardware(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                                        int64_t timestamp, uint64_t sequence, uint32_t word) {
    uint32_t crc = instruction(queue_state, NULL, payload, bytes);
    return finish_hardware(crc, timestamp, sequence, word);
}

MULTIPLYING static uint32_t frame_streams(uint32_t queue_state, const uint8_t *payload,
                                          size_t bytes, int64_t timestamp, uint64_t sequence,
                                          uint32_t word) {
    uint32_t crc = streams(queue_state, NULL, payload, bytes);
    return finish_hardware(crc, timestamp, sequence, word);
}

static const pq_crc_path by_instruction = {
    "instruction", update_hardware, copy_hardware, frame_hardware, lanes_hardware, finish_hardware,
    frames_hardware,
};
static const pq_crc_path by_streams = {
    "streams", update_streams, copy_streams, frame_streams, lanes_hardware, finish_hardware,
    frames_hardware,
};

#if defined(__x86_64__)
static int has_instruction(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
static int has_multiplication(void) { return __builtin_cpu_supports("pclmul"); }
#else
static int has_instruction(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
static int has_multiplication(void) { return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0; }
#endif
#endif

static const pq_crc_path by_table = {
    "table", update_table, copy_table, frame_table, lanes_table, finish_table, frames_table,
};

static void make_tables(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1) ? PQ_CRC_POLYNOMIAL : 0);
        }
        tables[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t before = tables[slice - 1][value];
            tables[slice][value] = tables[0][before & 255] ^ (before >> 8);
        }
    }
    make_shift(long_one, LONG_BYTES);
    make_shift(long_two, 2 * LONG_BYTES);
    make_shift(short_one, SHORT_BYTES);
    make_shift(short_two, 2 * SHORT_BYTES);
    /* The product of two CRCs is 33 powers short: one of its place, 32 of the CRC itself. */
    powers[1] = pq_crc_power(64 - 33);
    for (size_t words = 2; words <= 2 * MULTIPLIED_WORDS_MAX; words++) {
        powers[words] = raised(powers[words - 1], 64);
    }
}

#define TRIED_BYTES 1400u
#define TRIED_FRAME_BYTES 99u /* steps of 8, 4, 2 and 1 bytes */

static inline const pq_crc_path *path_for(size_t bytes) {
    return bytes < PQ_CRC_FOLDED_BYTES_MIN ? &short_path : &path;
}

uint32_t pq_crc_update(uint32_t state, const void *data, size_t bytes) {
    return path_for(bytes)->update(state, data, bytes);
}

uint32_t pq_crc_copy(uint32_t state, void *to, const void *data, size_t bytes) {
    return path_for(bytes)->copy(state, to, data, bytes);
}

void pq_crc_lanes(uint32_t *states, uint32_t state, const uint8_t *const *pieces, size_t bytes) {
    if (bytes < PQ_CRC_FOLDED_BYTES_MIN) {
        short_path.lanes(states, state, pieces, bytes);
        return;
    }
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        states[lane] = path.update(state, pieces[lane], bytes);
    }
}

uint32_t pq_queue_state(const uint8_t *queue_id) {
    return pq_crc_update(PQ_CRC_START, queue_id, PQ_QUEUE_ID_BYTES);
}

/* Queue id and payload come first, so that their part can be computed before the lock is taken. */
uint32_t pq_frame_checksum(uint32_t payload_state, int64_t timestamp, uint64_t sequence,
                           uint32_t word) {
    return short_path.finish(payload_state, timestamp, sequence, word);
}

uint32_t pq_frame_sum(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                      int64_t timestamp, uint64_t sequence, uint32_t word) {
    return path_for(bytes)->frame_sum(queue_state, payload, bytes, timestamp, sequence, word);
}

void pq_frame_sums(uint32_t *sums, uint32_t queue_state, const pq_frame *frames,
                   uint64_t sequence) {
    short_path.frame_sums(sums, queue_state, frames, sequence);
}

/* Whether the chosen path gives what the tables give: a wrong one would make every frame
 * unreadable. */
static int agrees(void) {
    uint8_t data[TRIED_BYTES], copy[TRIED_BYTES];
    uint32_t state = PQ_CRC_START;
    for (size_t i = 0; i < TRIED_BYTES; i++) {
        state = tables[0][state & 255] ^ (state >> 8);
        data[i] = (uint8_t)state;
    }
    for (size_t bytes = 0; bytes <= TRIED_BYTES; bytes += 1 + bytes / 4) {
        const uint8_t *from = data + TRIED_BYTES - bytes;
        uint32_t wanted = update_table(state, from, bytes);
        memset(copy, 0, sizeof copy);
        if (pq_crc_update(state, from, bytes) != wanted ||
            pq_crc_copy(state, copy, from, bytes) != wanted || memcmp(copy, from, bytes) != 0) {
            return 0;
        }
    }
    pq_frame frames[PQ_CRC_LANES];
    uint32_t wanted[PQ_CRC_LANES], found[PQ_CRC_LANES];
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        frames[lane] = (pq_frame){.payload = data + lane * (TRIED_FRAME_BYTES + 1),
                                  .payload_bytes = TRIED_FRAME_BYTES,
                                  .timestamp = (int64_t)(state + lane), .word = state};
    }
    frames_table(wanted, state, frames, state);
    pq_frame_sums(found, state, frames, state);
    return memcmp(found, wanted, sizeof wanted) == 0;
}

void pq_crc_choose(int most) {
    const pq_crc_path *paths[PQ_CRC_BEST + 1] = {&by_table};
    if (tables[0][1] == 0) {
        make_tables();
    }
#if defined(__x86_64__) || defined(__aarch64__)
    if (has_instruction()) {
        paths[1] = &by_instruction;
        if (has_multiplication()) {
            paths[2] = &by_streams;
            pq_crc_folding(&by_streams, &paths[3], &paths[4]);
        }
    }
#endif
    for (;; most--) {
        if (paths[most] != NULL) {
            path = *paths[most];
            short_path = most > 2 ? *paths[2] : path;
            if (most == 0 || agrees()) {
                return;
            }
        }
    }
}

const char *pq_crc_name(void) { return path.name; }
