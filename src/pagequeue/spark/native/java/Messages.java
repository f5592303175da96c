package pagequeue;

/** Messages of one page with their payloads, every frame checked. */
final class Messages implements RowSource {
    private static final int MOST = 1 << 16;

    private final Place place;
    private final PageFile page;
    private final Window window;
    private final boolean turns;
    private final long end;
    private long at;
    private long position;
    private boolean isTurned;

    /**
     * Open a page.
     *
     * @param first sequence of the page.
     * @param begin sequence of the first message that is wanted.
     * @param end sequence after the last one.
     * @param turns whether the next page is read after it, so that its end is checked.
     */
    Messages(Place place, long number, long first, long begin, long end, boolean turns) {
        this.place = place;
        this.end = end;
        this.turns = turns;
        at = begin;
        page = new PageFile(place, number, begin);
        boolean done = false;
        try {
            if (page.first != first) {
                throw Gone.or(place, number, begin, page.beginsWith(first));
            }
            window = new Window(page, new Frames(place.id, place.pageBytes));
            position = begin == first ? Frames.PAGE_HEADER : locate(begin);
            done = true;
        } finally {
            if (!done) {
                page.close();
            }
        }
    }

    /** The position of a message: by the index if the frame there confirms it, else by frames. */
    private long locate(long sequence) {
        Index index = page.isCompressed() ? null
            : Index.read(place, page.number, sequence - page.first, 1);
        if (index != null && index.position(0) > 0
            && window.check(index.position(0), sequence, true) == Frames.FRAME
            && window.frames.timestamp == index.timestamp(0)) {
            return index.position(0);
        }
        long[] start = page.start(sequence);
        long found = start[0];
        long last = start[2];
        for (long before = start[1]; before <= sequence; before++) {
            int result = window.check(found, before, true);
            String reason = result == Frames.FRAME ? null : Frames.reason(result);
            if (reason == null && window.frames.timestamp < last) {
                reason = "it is older than the frame before it";
            }
            if (reason != null) {
                throw Gone.or(place, page.number, before,
                    Problem.frame(page.path, before, found, reason));
            }
            last = window.frames.timestamp;
            if (before < sequence) {
                found = window.frames.next;
            }
        }
        return found;
    }

    public boolean next(Rows rows) {
        rows.first = at;
        rows.count = 0;
        rows.room((int) Math.min(MOST, end - at), true);
        while (at < end && rows.count < MOST) {
            int found = window.check(position, at, rows.count == 0);
            if (found != Frames.FRAME) {
                if (rows.count > 0) {
                    break; // those before it are given first
                }
                throw stopped(found);
            }
            boolean isLarge = Frames.isLarge(window.frames.word);
            if (isLarge && rows.count > 0) {
                break;
            }
            rows.times[rows.count] = window.frames.timestamp;
            if (isLarge) {
                large(rows);
                return true;
            }
            rows.begins[rows.count] = window.at(position) + Frames.HEADER;
            rows.sizes[rows.count] = window.frames.payloadBytes;
            rows.count++;
            at++;
            position = window.frames.next;
        }
        rows.bytes = window.bytes;
        if (rows.count == 0) {
            turn();
        }
        return rows.count > 0;
    }

    private void large(Rows rows) {
        long mark = window.frames.next;
        rows.bytes = new LargeMessage(place, page, window, position, at).load();
        rows.begins[0] = 0;
        rows.sizes[0] = rows.bytes.length;
        rows.count = 1;
        at++;
        position = mark;
    }

    /** The error for what is there in the place of the next message. */
    private Problem stopped(int found) {
        if (found == Frames.END) {
            PageFile after = new PageFile(place, page.number + 1, at);
            after.close();
            if (after.first != at) {
                return Gone.or(place, page.number + 1, at, after.beginsWith(at));
            }
        }
        return Gone.or(place, page.number, at,
            Problem.frame(page.path, at, position, Frames.reason(found)));
    }

    /** Before the next page is read: this one must end here. */
    private void turn() {
        if (turns && !isTurned) {
            int found = window.check(position, at, true);
            if (found != Frames.END) {
                throw Gone.or(place, page.number, at,
                    Problem.frame(page.path, at, position, Frames.reason(found)));
            }
        }
        isTurned = true;
    }

    public void close() {
        page.close();
    }
}
