package pagequeue;

/**
 * Timestamps of one page by its index: of each batch the first and the last frame prove it. Those of
 * a compressed page, which has no index, are read from its frames.
 */
final class Times implements RowSource {
    private final PageFile page;
    private final Window window;
    private long at;
    private final long end;

    Times(Place place, long number, long first, long begin, long end) {
        at = begin;
        this.end = end;
        page = new PageFile(place, number, begin);
        window = new Window(page, new Frames(place.id, place.pageBytes));
        if (page.first != first) {
            page.close();
            throw Gone.or(place, number, begin, page.beginsWith(first));
        }
    }

    public boolean next(Rows rows) {
        int count = (int) Math.min(Rows.MOST, end - at);
        if (count <= 0) {
            return false;
        }
        rows.first = at;
        rows.count = count;
        rows.room(count, false);
        if (page.isCompressed() || !byIndex(rows.times, count)) {
            byFrames(rows.times, count);
        }
        at += count;
        return true;
    }

    private boolean byIndex(long[] times, int count) {
        long ordinal = at - page.first;
        Index index = Index.read(page.place, page.number, ordinal, count);
        if (index == null) {
            return false;
        }
        long least = Frames.PAGE_HEADER + ordinal * Frames.HEADER;
        long last = Long.MIN_VALUE;
        for (int i = 0; i < count; i++) {
            long position = index.position(i);
            if (position < least || index.timestamp(i) < last || position % 8 != 0
                || position > page.place.pageBytes - Frames.HEADER) {
                return false;
            }
            times[i] = index.timestamp(i);
            last = times[i];
            least = position + Frames.HEADER;
        }
        return isProved(index, 0) && isProved(index, count - 1);
    }

    private boolean isProved(Index index, int i) {
        return window.check(index.position(i), at + i, true) == Frames.FRAME
            && window.frames.timestamp == index.timestamp(i);
    }

    /** As rebuilding the index does: from the first frame of the page, or of the block, on. */
    private void byFrames(long[] times, int count) {
        long[] start = page.start(at);
        long position = start[0];
        long last = start[2];
        for (long sequence = start[1]; sequence < at + count; sequence++) {
            int found = window.check(position, sequence, true);
            String reason = found == Frames.FRAME ? null : Frames.reason(found);
            if (reason == null && window.frames.timestamp < last) {
                reason = "it is older than the frame before it";
            }
            if (reason != null) {
                throw Gone.or(page.place, page.number, sequence,
                    Problem.frame(page.path, sequence, position, reason));
            }
            last = window.frames.timestamp;
            if (sequence >= at) {
                times[(int) (sequence - at)] = last;
            }
            position = window.frames.next;
        }
    }

    public void close() {
        page.close();
    }
}
