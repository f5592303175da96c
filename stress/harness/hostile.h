/* One hostile case: pages, indexes and write metas of any bytes, fed to the core. */
#ifndef PAGEQUEUE_HOSTILE_H
#define PAGEQUEUE_HOSTILE_H

#include <stddef.h>
#include <stdint.h>

/* Where the choices of a case come from: the bytes given first, then a generator. */
typedef struct {
    const uint8_t *data;
    size_t bytes;
    uint64_t state;
} source;

void hostile_prepare(void);
void hostile_case(source *from);
void hostile_checksums(source *from);
void hostile_lock(void);

#endif
