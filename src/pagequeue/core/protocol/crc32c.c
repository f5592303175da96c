/* CRC-32C (Castagnoli), the checksum of every frame and header.
 *
 * With the CPU's instruction a long buffer is cut into three interleaved streams, because the
 * instruction has a latency of three cycles and a throughput of one; their results are combined by
 * the table of "what so many zero bytes do to a CRC". Without it: eight tables, eight bytes a
 * step. Reference: M. Adler's description of crc32c by three streams; RFC 3720, appendix B.4 for
 * values.
 */
#include "protocol/protocol.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define POLYNOMIAL 0x82f63b78u
#define STREAM_BYTES 1024u /* of each of the three streams of one round */

static uint32_t tables[8][256];
static uint32_t shift_one[4][256]; /* what STREAM_BYTES zero bytes do, by byte of the CRC */
static uint32_t shift_two[4][256]; /* what twice as many do */
static uint32_t (*update)(uint32_t, const uint8_t *, size_t);
static void (*lanes)(uint32_t *, uint32_t, const uint8_t *, size_t, size_t);
static uint32_t (*finish)(uint32_t, int64_t, uint64_t, uint32_t);
static uint32_t (*frame_sum)(uint32_t, const uint8_t *, size_t, int64_t, uint64_t, uint32_t);
static const char *chosen = "none";

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

static void lanes_table(uint32_t *states, uint32_t state, const uint8_t *data, size_t distance,
                        size_t bytes) {
    for (size_t lane = 0; lane < PQ_CRC_LANES; lane++) {
        states[lane] = update_table(state, data + lane * distance, bytes);
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

static void make_shift(uint32_t shift[4][256], size_t zero_bytes) {
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
#include <nmmintrin.h>
#define HARDWARE __attribute__((target("sse4.2")))
#define CRC_U64(crc, value) ((uint32_t)_mm_crc32_u64((crc), (value)))
#define CRC_U32(crc, value) _mm_crc32_u32((crc), (value))
#define CRC_U8(crc, value) _mm_crc32_u8((crc), (value))
#else
#define HARDWARE __attribute__((target("+crc")))
#define CRC_U64(crc, value) __builtin_aarch64_crc32cx((crc), (value))
#define CRC_U32(crc, value) __builtin_aarch64_crc32cw((crc), (value))
#define CRC_U8(crc, value) __builtin_aarch64_crc32cb((crc), (value))
#endif

static inline uint32_t shifted(uint32_t shift[4][256], uint32_t crc) {
    return shift[0][crc & 255] ^ shift[1][(crc >> 8) & 255] ^ shift[2][(crc >> 16) & 255] ^
           shift[3][crc >> 24];
}

HARDWARE static uint32_t update_hardware(uint32_t crc, const uint8_t *data, size_t bytes) {
    while (bytes >= 3 * STREAM_BYTES) {
        const uint8_t *second = data + STREAM_BYTES, *third = second + STREAM_BYTES;
        uint32_t crc_two = 0, crc_three = 0;
        for (size_t i = 0; i < STREAM_BYTES; i += 8) {
            crc = CRC_U64(crc, read_u64(data + i));
            crc_two = CRC_U64(crc_two, read_u64(second + i));
            crc_three = CRC_U64(crc_three, read_u64(third + i));
        }
        crc = shifted(shift_two, crc) ^ shifted(shift_one, crc_two) ^ crc_three;
        data += 3 * STREAM_BYTES;
        bytes -= 3 * STREAM_BYTES;
    }
    for (; bytes >= 8; data += 8, bytes -= 8) {
        crc = CRC_U64(crc, read_u64(data));
    }
    if (bytes >= 4) {
        crc = CRC_U32(crc, read_u32(data));
        data += 4;
        bytes -= 4;
    }
    for (; bytes > 0; data++, bytes--) {
        crc = CRC_U8(crc, *data);
    }
    return crc;
}

HARDWARE static void lanes_hardware(uint32_t *states, uint32_t state, const uint8_t *data,
                                    size_t distance, size_t bytes) {
    const uint8_t *two = data + distance, *three = two + distance, *four = three + distance;
    uint32_t a = state, b = state, c = state, d = state;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        a = CRC_U64(a, read_u64(data + i));
        b = CRC_U64(b, read_u64(two + i));
        c = CRC_U64(c, read_u64(three + i));
        d = CRC_U64(d, read_u64(four + i));
    }
    states[0] = update_hardware(a, data + i, bytes - i);
    states[1] = update_hardware(b, two + i, bytes - i);
    states[2] = update_hardware(c, three + i, bytes - i);
    states[3] = update_hardware(d, four + i, bytes - i);
}

HARDWARE static inline uint32_t finish_hardware(uint32_t crc, int64_t timestamp, uint64_t sequence,
                                                uint32_t word) {
    crc = CRC_U64(crc, (uint64_t)timestamp);
    crc = CRC_U64(crc, sequence);
    return ~CRC_U32(crc, word);
}

/* All in one call: walking a page makes it for every frame. */
HARDWARE static uint32_t frame_hardware(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                                        int64_t timestamp, uint64_t sequence, uint32_t word) {
    uint32_t crc = update_hardware(queue_state, payload, bytes);
    return finish_hardware(crc, timestamp, sequence, word);
}

static int has_hardware(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
#else
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}
#endif

void pq_crc_choose(int allow_hardware) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1) ? POLYNOMIAL : 0);
        }
        tables[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t before = tables[slice - 1][value];
            tables[slice][value] = tables[0][before & 255] ^ (before >> 8);
        }
    }
    make_shift(shift_one, STREAM_BYTES);
    make_shift(shift_two, 2 * STREAM_BYTES);
    update = update_table;
    lanes = lanes_table;
    finish = finish_table;
    frame_sum = frame_table;
    chosen = "table";
#if defined(__x86_64__) || defined(__aarch64__)
    if (allow_hardware && has_hardware()) {
        update = update_hardware;
        lanes = lanes_hardware;
        finish = finish_hardware;
        frame_sum = frame_hardware;
        chosen = "hardware";
    }
#else
    (void)allow_hardware;
#endif
}

const char *pq_crc_name(void) { return chosen; }

uint32_t pq_crc_update(uint32_t state, const void *data, size_t bytes) {
    return update(state, data, bytes);
}

void pq_crc_lanes(uint32_t *states, uint32_t state, const uint8_t *data, size_t distance,
                  size_t bytes) {
    lanes(states, state, data, distance, bytes);
}

uint32_t pq_queue_state(const uint8_t *queue_id) {
    return update(PQ_CRC_START, queue_id, PQ_QUEUE_ID_BYTES);
}

/* Queue id and payload come first, so that their part can be computed before the lock is taken. */
uint32_t pq_frame_checksum(uint32_t payload_state, int64_t timestamp, uint64_t sequence,
                           uint32_t word) {
    return finish(payload_state, timestamp, sequence, word);
}

uint32_t pq_frame_sum(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                      int64_t timestamp, uint64_t sequence, uint32_t word) {
    return frame_sum(queue_state, payload, bytes, timestamp, sequence, word);
}
