/* Reading the log of a recorded run into one history for each OS page, size and name. */
#include "cut.h"

#include <stdio.h>
#include <stdlib.h>

static const uint8_t zeros[CUT_OS_PAGE_BYTES];

/* NULL, or the same array with room for one more; a failed allocation ends the program, which has
 * no other duty. */
static void *grown(void *items, uint32_t count, uint32_t *room, size_t item_bytes) {
    if (count < *room) {
        return items;
    }
    *room = *room == 0 ? 8 : *room * 2;
    items = realloc(items, *room * item_bytes);
    if (items == NULL) {
        abort();
    }
    return items;
}

static void history_add(cut_history *history, uint64_t event, uint64_t value,
                        const uint8_t *data) {
    history->items = grown(history->items, history->count, &history->room, sizeof(cut_version));
    history->items[history->count++] = (cut_version){event, value, data};
}

static void syncs_add(cut_syncs *syncs, cut_sync sync) {
    syncs->items = grown(syncs->items, syncs->count, &syncs->room, sizeof(cut_sync));
    syncs->items[syncs->count++] = sync;
}

static void classify(cut_named *named) {
    unsigned long long number;
    int end = 0;
    if (sscanf(named->name, "queue-%10llu.page%n", &number, &end) == 1 && end != 0 &&
        named->name[end] == 0) {
        named->kind = CUT_IS_PAGE;
        named->number = number;
    } else if (sscanf(named->name, "queue-%10llu.idx%n", &number, &end) == 1 && end != 0 &&
               named->name[end] == 0) {
        named->kind = CUT_IS_INDEX;
        named->number = number;
    } else if (strcmp(named->name, "queue-allMeta") == 0) {
        named->kind = CUT_IS_ALL;
    } else if (strcmp(named->name, "queue-writeMeta") == 0) {
        named->kind = CUT_IS_WRITE;
    } else if (strcmp(named->name, "queue-readMeta") == 0) {
        named->kind = CUT_IS_READ;
    }
}

static int add_name(cut_trace *trace, uint64_t event, uint64_t file, const char *name) {
    uint32_t i = 0;
    while (i < trace->name_count && strcmp(trace->names[i].name, name) != 0) {
        i++;
    }
    if (i == CUT_NAMES_MAX || strlen(name) >= CUT_NAME_BYTES_MAX) {
        return 0;
    }
    cut_named *named = &trace->names[i];
    if (i == trace->name_count) {
        trace->name_count += 1;
        strcpy(named->name, name);
        classify(named);
        history_add(&named->file, 0, CUT_NOWHERE, NULL);
    }
    history_add(&named->file, event, file, NULL);
    return 1;
}

static cut_file *file_at(cut_trace *trace, uint64_t number) {
    if (number >= CUT_FILES_MAX) {
        return NULL;
    }
    while (trace->file_count <= number) {
        cut_file *file = &trace->files[trace->file_count++];
        history_add(&file->size, 0, 0, NULL);
        for (uint32_t page = 0; page < CUT_FILE_OS_PAGES_MAX; page++) {
            history_add(&file->pages[page], 0, 0, zeros);
        }
    }
    return &trace->files[number];
}

/* The durable sequence of a write meta is a guarantee too: a durable-only consumer can have acted
 * on it. */
static uint64_t promised_by(const cut_event *event, const uint8_t *data, uint64_t before) {
    uint64_t now = before;
    if (event->kind == CUT_FLUSHED) {
        now = event->a;
    } else if (event->kind == CUT_PAGE && event->b == 0 && memcmp(data, "pgqwrit\x1a", 8) == 0) {
        memcpy(&now, data + PQ_WRITE_META_DURABLE_SEQUENCE, 8);
    }
    return now > before ? now : before;
}

static void add_stop(cut_trace *trace, uint64_t number) {
    trace->stops = grown(trace->stops, trace->stop_count, &trace->stop_room, sizeof number);
    trace->stops[trace->stop_count++] = number;
}

static int add_event(cut_trace *trace, uint64_t number, const cut_event *event,
                     const uint8_t *data) {
    cut_file *file;
    switch ((cut_kind)event->kind) {
    case CUT_PAGE:
        file = file_at(trace, event->a);
        if (file == NULL || event->b >= CUT_FILE_OS_PAGES_MAX ||
            event->bytes != CUT_OS_PAGE_BYTES) {
            return 0;
        }
        file->page_count = event->b >= file->page_count ? (uint32_t)event->b + 1 : file->page_count;
        history_add(&file->pages[event->b], number, 0, data);
        return 1;
    case CUT_SIZE:
        file = file_at(trace, event->a);
        if (file == NULL || event->b > CUT_FILE_OS_PAGES_MAX * CUT_OS_PAGE_BYTES) {
            return 0;
        }
        history_add(&file->size, number, event->b, NULL);
        return 1;
    case CUT_NAME:
        return (event->a == CUT_NOWHERE || file_at(trace, event->a) != NULL) && event->bytes > 0 &&
               data[event->bytes - 1] == 0 &&
               add_name(trace, number, event->a, (const char *)data);
    case CUT_SYNC:
        add_stop(trace, number);
        file = file_at(trace, event->a);
        if (file != NULL) {
            cut_sync sync = {number, event->b, file->failed, (uint32_t)(event->c >> 32),
                             (uint32_t)event->c};
            syncs_add(&file->syncs, sync);
        }
        return file != NULL;
    case CUT_FAILED:
        file = file_at(trace, event->a);
        if (file != NULL) {
            file->failed = number;
        }
        return file != NULL;
    case CUT_DIRSYNC:
        add_stop(trace, number);
        syncs_add(&trace->directory, (cut_sync){number, event->b, 0, 0, 0});
        return 1;
    case CUT_BASE:
        trace->base = number + 1;
        trace->stop_count = 0;
        return 1;
    case CUT_MADE:
        trace->made = number;
        return 1;
    case CUT_PARENTSYNC:
        add_stop(trace, number);
        if (trace->parent_synced == 0 && event->b > trace->made) {
            trace->parent_synced = number;
        }
        return 1;
    case CUT_POINT:
    case CUT_FLUSHED:
    case CUT_NOTE:
        return 1;
    }
    return 0;
}

static int read_log(cut_trace *trace, const uint8_t *log, uint64_t log_bytes, uint64_t promised) {
    uint64_t room = 1;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t number = 0;
        for (uint64_t at = 0; at < log_bytes; number++) {
            cut_event event;
            if (log_bytes - at < sizeof event) {
                return 0;
            }
            memcpy(&event, log + at, sizeof event);
            at += sizeof event;
            if (log_bytes - at < event.bytes) {
                return 0;
            }
            if (pass == 1) {
                trace->promised[number] = promised;
                promised = promised_by(&event, log + at, promised);
                if (!add_event(trace, number, &event, log + at)) {
                    return 0;
                }
            }
            at += event.bytes;
        }
        room = number + 1;
        if (pass == 0) {
            trace->promised = calloc(room, sizeof *trace->promised);
        } else {
            trace->promised[number] = promised;
        }
        trace->events = number;
    }
    return trace->base > 0;
}

static int read_sent(cut_trace *trace, const uint8_t *sent, uint64_t sent_bytes) {
    uint64_t at = 0, count = 0;
    trace->frames = calloc(sent_bytes / PQ_FRAME_BYTES + 1, sizeof *trace->frames);
    while (at < sent_bytes) {
        uint32_t word;
        if (sent_bytes - at < PQ_FRAME_BYTES) {
            return 0;
        }
        memcpy(&word, sent + at, 4);
        uint64_t bytes = pq_aligned(word & PQ_LENGTH_MASK);
        if (bytes < PQ_FRAME_BYTES || bytes > sent_bytes - at) {
            return 0;
        }
        trace->frames[count++] = sent + at;
        at += bytes;
    }
    trace->frame_count = count;
    return 1;
}

/* The caller keeps log, frames and flags as long as the trace. NULL: they are invalid. */
cut_trace *cut_load(const uint8_t *log, uint64_t log_bytes, const uint8_t *sent,
                    uint64_t sent_bytes, const uint8_t *continues, uint64_t promised,
                    uint64_t least) {
    pq_crc_choose(PQ_CRC_BEST);
    cut_trace *trace = calloc(1, sizeof *trace);
    if (trace == NULL) {
        return NULL;
    }
    trace->least = least;
    trace->continues = continues;
    trace->made = CUT_NOWHERE;
    if (!read_log(trace, log, log_bytes, promised) || !read_sent(trace, sent, sent_bytes)) {
        cut_free(trace);
        return NULL;
    }
    for (uint32_t i = 0; i < trace->file_count; i++) {
        trace->files[i].image = calloc(CUT_FILE_OS_PAGES_MAX, CUT_OS_PAGE_BYTES);
        if (trace->files[i].image == NULL) {
            abort();
        }
    }
    return trace;
}

void cut_free(cut_trace *trace) {
    for (uint32_t i = 0; i < trace->file_count; i++) {
        cut_file *file = &trace->files[i];
        for (uint32_t page = 0; page < CUT_FILE_OS_PAGES_MAX; page++) {
            free(file->pages[page].items);
        }
        free(file->size.items);
        free(file->syncs.items);
        free(file->image);
    }
    for (uint32_t i = 0; i < trace->name_count; i++) {
        free(trace->names[i].file.items);
    }
    free(trace->directory.items);
    free(trace->stops);
    free(trace->frames);
    free(trace->promised);
    free(trace);
}
