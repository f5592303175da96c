/* What recorder.c (snapshots, and the log) and recorder_calls.c (system calls) share. */
#ifndef PAGEQUEUE_RECORDER_H
#define PAGEQUEUE_RECORDER_H

#include <pthread.h>

#include "cut_events.h"

#define EXPORT __attribute__((visibility("default")))
#define NAMES_MAX 512

typedef struct {
    uint64_t inode, size;
    uint64_t last[CUT_FILE_OS_PAGES_MAX]; /* offset of its bytes in the log, 0 = zeros */
} known_file;

typedef struct {
    char name[CUT_NAME_BYTES_MAX];
    uint64_t file;
    int seen;
} known_name;

typedef struct {
    pthread_mutex_t lock; /* robust: a process can die in it */
    int active, full;
    uint64_t used, events, limit, device, directory, parent;
    uint64_t file_count, name_count;
    known_file files[CUT_FILES_MAX];
    known_name names[NAMES_MAX];
    uint8_t log[] __attribute__((aligned(64)));
} shared_state;

extern shared_state *shared;

int recorder_runs(void);
void recorder_lock(void);
void recorder_unlock(void);
uint64_t recorder_emit(cut_kind kind, uint64_t a, uint64_t b, uint64_t c, const void *data,
                       uint32_t bytes);      /* under the lock */
uint64_t recorder_file(uint64_t inode);      /* under the lock */
uint64_t recorder_look(void);                /* returns how many events there are by now */

#endif
