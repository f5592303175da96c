/* What a recorded run consists of: events in the order in which they were seen.
 *
 * recorder.c writes them, cut_trace.c reads them. Before the event CUT_BASE everything is on stable
 * storage. An event's number is its place in the log, from 0; "up to" numbers exclude themselves.
 */
#ifndef PAGEQUEUE_CUT_EVENTS_H
#define PAGEQUEUE_CUT_EVENTS_H

#include <stdint.h>

#define CUT_OS_PAGE_BYTES 4096u
#define CUT_FILES_MAX 384u
#define CUT_FILE_OS_PAGES_MAX 64u /* of one file */
#define CUT_NAMES_MAX 4096u /* each replacement of a file has a temporary one */
#define CUT_NAME_BYTES_MAX 104u
#define CUT_NOWHERE UINT64_MAX

typedef enum {
    CUT_PAGE = 1, /* a: file, b: OS page in it; its 4096 bytes follow */
    CUT_SIZE,     /* a: file, b: its size now */
    CUT_NAME,     /* a: file, or CUT_NOWHERE; the name that leads to it follows */
    CUT_SYNC,     /* a: file, b: up to which event, c: first OS page << 32 | end OS page */
    CUT_DIRSYNC,  /* b: up to which event */
    CUT_BASE,     /* the run begins */
    CUT_MADE,     /* the directory is there */
    CUT_PARENTSYNC, /* b: up to which event */
    CUT_POINT,    /* a: a kill point of the core */
    CUT_FLUSHED,  /* a: every message below it is guaranteed to survive */
    CUT_NOTE,     /* a, b, c: what the run records of itself */
    CUT_FAILED,   /* a: file whose sync failed: what it had is never written, unless it changes */
} cut_kind;

typedef struct {
    uint32_t kind;
    uint32_t bytes; /* that follow, a multiple of 8 */
    uint64_t a, b, c;
} cut_event;

#endif
