/* One state that a power cut can leave: everything independently as it was at any time since the
 * last sync that covers it.
 *
 * OS pages (or their sectors, or their cache lines), sizes and names are chosen one by one. A
 * file's size is covered by any sync of the file, its name only by a sync of the directory.
 */
#include "cut.h"

#include <stdlib.h>

enum { STYLE_ANY = 0, STYLE_ENDS, STYLE_NEW, STYLE_OLD, STYLES };

static uint64_t mixed(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t drawn(cut_trace *trace) {
    trace->random += 0x9e3779b97f4a7c15u;
    return mixed(trace->random);
}

/* --- the time of the cut ---------------------------------------------------------------------- */

/* The last version before an event. */
static uint32_t version_before(const cut_history *history, uint64_t event) {
    uint32_t low = 0, high = history->count; /* the first one is always before */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (history->items[middle].event < event) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

#define WHOLE UINT32_MAX /* not an OS page: a size or a name, which any sync covers */

/* The oldest version that can be left: the last one covered by a sync that was over before the cut.
 * After a sync of the file failed, a later one covers only what was changed since. */
static uint32_t covered(const cut_trace *trace, const cut_history *history,
                        const cut_syncs *syncs, uint32_t page) {
    uint32_t low = version_before(history, trace->base);
    for (uint32_t i = 0; i < syncs->count && syncs->items[i].at < trace->moment; i++) {
        const cut_sync *sync = &syncs->items[i];
        if (page != WHOLE && (page < sync->first || page >= sync->behind)) {
            continue;
        }
        uint32_t version = version_before(history, sync->up_to);
        if (version > low && history->items[version].event >= sync->failed) {
            low = version;
        }
    }
    return low;
}

static void bound(cut_trace *trace, cut_history *history, const cut_syncs *syncs, uint32_t page) {
    history->low = covered(trace, history, syncs, page);
    history->high = version_before(history, trace->moment);
    history->chosen = UINT32_MAX;
    trace->variety += history->high - history->low;
}

/* Between two syncs a later cut can leave all that an earlier one can, and more is guaranteed at it.
 * So half of the cuts are right before a sync or at the end, each of these as often as any other:
 * what is in doubt for a few events only, a name for instance, is met as often as all else. */
static uint64_t moment_of(const cut_trace *trace, uint64_t seed) {
    uint64_t draw = mixed(seed ^ 0x6d6f6d656e74u), which = mixed(draw);
    if (which & 1) {
        uint64_t stop = (which >> 1) % (trace->stop_count + 1u);
        return stop == trace->stop_count ? trace->events : trace->stops[stop];
    }
    return trace->base + draw % (trace->events - trace->base + 1);
}

static void prepare(cut_trace *trace, uint64_t moment) {
    trace->moment = moment;
    trace->variety = 0;
    for (uint32_t i = 0; i < trace->file_count; i++) {
        cut_file *file = &trace->files[i];
        for (uint32_t page = 0; page < file->page_count; page++) {
            bound(trace, &file->pages[page], &file->syncs, page);
        }
        bound(trace, &file->size, &file->syncs, WHOLE);
    }
    for (uint32_t i = 0; i < trace->name_count; i++) {
        bound(trace, &trace->names[i].file, &trace->directory, WHOLE);
    }
}

/* --- the choices ------------------------------------------------------------------------------ */

static uint32_t any(cut_trace *trace, uint32_t low, uint32_t high) {
    uint32_t count = high - low + 1;
    uint64_t draw = drawn(trace);
    switch (trace->style) {
    case STYLE_ENDS:
        return draw & 1 ? low : high;
    case STYLE_NEW:
        return draw & 7 ? high : low + (uint32_t)((draw >> 8) % count);
    case STYLE_OLD:
        return draw & 7 ? low : low + (uint32_t)((draw >> 8) % count);
    default:
        return low + (uint32_t)(draw % count);
    }
}

static void choose(cut_trace *trace, cut_history *history) {
    history->chosen = history->low == history->high ? history->low
                                                    : any(trace, history->low, history->high);
    trace->hash = (trace->hash ^ history->chosen) * 0x100000001b3u;
}

static void choose_page(cut_trace *trace, cut_history *page, uint8_t *to) {
    if (page->low == page->high || trace->mode == CUT_BY_PAGE) {
        uint32_t before = page->chosen;
        choose(trace, page);
        if (page->chosen != before) {
            memcpy(to, page->items[page->chosen].data, CUT_OS_PAGE_BYTES);
        }
        return;
    }
    uint32_t step = trace->mode == CUT_BY_SECTOR ? CUT_SECTOR_BYTES : CUT_LINE_BYTES;
    for (uint32_t at = 0; at < CUT_OS_PAGE_BYTES; at += step) {
        choose(trace, page);
        memcpy(to + at, page->items[page->chosen].data + at, step);
    }
    page->chosen = UINT32_MAX;
}

static void choose_all(cut_trace *trace) {
    trace->hash = mixed(trace->promised[trace->moment]);
    for (uint32_t i = 0; i < trace->file_count; i++) {
        cut_file *file = &trace->files[i];
        for (uint32_t page = 0; page < file->page_count; page++) {
            choose_page(trace, &file->pages[page], file->image + page * CUT_OS_PAGE_BYTES);
        }
        choose(trace, &file->size);
    }
    for (uint32_t i = 0; i < trace->name_count; i++) {
        choose(trace, &trace->names[i].file);
    }
    int made = trace->made == CUT_NOWHERE || trace->made >= trace->base; /* by this run */
    int kept = trace->parent_synced != 0 && trace->parent_synced < trace->moment;
    trace->gone = made && !kept && drawn(trace) % 8 == 0;
}

void cut_choose(cut_trace *trace, uint64_t seed, int mode) {
    uint64_t of_moment = seed >> CUT_SEEDS_PER_MOMENT_BITS;
    if (!trace->prepared || trace->seed_of_moment != of_moment || trace->mode != mode) {
        prepare(trace, moment_of(trace, of_moment));
        trace->prepared = 1;
        trace->seed_of_moment = of_moment;
        trace->mode = mode;
    }
    trace->random = mixed(seed);
    trace->style = (int)(drawn(trace) % STYLES);
    choose_all(trace);
}

/* The state at the end, as seen without a power cut. */
void cut_choose_last(cut_trace *trace) {
    trace->mode = CUT_BY_PAGE;
    prepare(trace, trace->events);
    trace->prepared = 0;
    for (uint32_t i = 0; i < trace->file_count; i++) {
        cut_file *file = &trace->files[i];
        for (uint32_t page = 0; page < file->page_count; page++) {
            file->pages[page].low = file->pages[page].high;
        }
        file->size.low = file->size.high;
    }
    for (uint32_t i = 0; i < trace->name_count; i++) {
        trace->names[i].file.low = trace->names[i].file.high;
    }
    choose_all(trace);
    trace->gone = 0;
}

/* --- accessors -------------------------------------------------------------------------------- */

/* The file of a name in this state, and its size; NULL if it does not exist. */
const cut_file *cut_at_name(const cut_trace *trace, uint32_t name, uint64_t *size) {
    if (trace->gone || name >= trace->name_count) {
        return NULL;
    }
    const cut_history *leads = &trace->names[name].file;
    uint64_t number = leads->items[leads->chosen].value;
    if (number == CUT_NOWHERE) {
        return NULL;
    }
    const cut_file *file = &trace->files[number];
    *size = file->size.items[file->size.chosen].value;
    return file;
}

uint32_t cut_name_count(const cut_trace *trace) { return trace->name_count; }

const char *cut_name(const cut_trace *trace, uint32_t name) { return trace->names[name].name; }

/* The bytes of the file of that name in this state; NULL if it does not exist. */
const uint8_t *cut_bytes(const cut_trace *trace, uint32_t name, uint64_t *size) {
    const cut_file *file = cut_at_name(trace, name, size);
    return file == NULL ? NULL : file->image;
}

/* Whether the directory itself does not exist. */
int cut_gone(const cut_trace *trace) { return trace->gone; }

uint64_t cut_events(const cut_trace *trace) { return trace->events; }
