/* What the sources of the checksum share; all others include protocol.h alone. */
#ifndef PAGEQUEUE_CRC32C_H
#define PAGEQUEUE_CRC32C_H

#include "protocol/protocol.h"

#define PQ_CRC_POLYNOMIAL 0x82f63b78u
#define PQ_CRC_FOLDED_BYTES_MIN 512u /* below, three streams are as fast */

/* One way to compute it. Folding has all but the first four functions from streams, which do what
 * is shorter than PQ_CRC_FOLDED_BYTES_MIN. `copy` stores the bytes that it sums, each loaded once. */
typedef struct {
    const char *name;
    uint32_t (*update)(uint32_t crc, const uint8_t *data, size_t bytes);
    uint32_t (*copy)(uint32_t crc, uint8_t *to, const uint8_t *data, size_t bytes);
    uint32_t (*frame_sum)(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                          int64_t timestamp, uint64_t sequence, uint32_t word);
    void (*lanes)(uint32_t *crcs, uint32_t crc, const uint8_t *const *pieces, size_t bytes);
    uint32_t (*finish)(uint32_t crc, int64_t timestamp, uint64_t sequence, uint32_t word);
    void (*frame_sums)(uint32_t *sums, uint32_t queue_state, const pq_frame *frames,
                       uint64_t sequence);
} pq_crc_path;

uint32_t pq_crc_power(uint64_t n);
/* protocol/crc32c_folding.c: the paths that this CPU has, each NULL if it has not; `rest` sums what
 * remains after the last vector. */
void pq_crc_folding(const pq_crc_path *rest, const pq_crc_path **narrow, const pq_crc_path **wide);

#endif
