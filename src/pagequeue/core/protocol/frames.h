/* What protocol/frames.c and protocol/bulk_commit.c share: the writers' place. All under the
 * writers' lock. */
#ifndef PAGEQUEUE_FRAMES_H
#define PAGEQUEUE_FRAMES_H

#include "protocol/protocol.h"

uint8_t *pq_tail_word(uint8_t *meta, uint64_t page_number);
uint8_t *pq_first_word(uint8_t *meta, uint64_t page_number);
int pq_is_active(const pq_place *at);
/* Whether a page has its final header: valid, of this page of this queue, with this sequence. */
int pq_header_matches(const uint8_t *page, const uint8_t *wanted, uint64_t sequence);
/* Bring the tail word up to what is published; return whether more can be appended. */
pq_append_result pq_resolve_tail(const pq_place *at, uint64_t *position, uint64_t *count);
/* Write the end-of-page marker after so many messages, its length last, and end the index there. */
void pq_put_end_mark(const pq_place *at, uint64_t position, uint64_t count, int64_t last);

#endif
