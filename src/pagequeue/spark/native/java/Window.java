package pagequeue;

import java.util.Arrays;

/** A part of one page in memory, moved along it; its frames are checked there. */
final class Window {
    private static final int READ_BYTES = 1 << 20;
    private static final int READ_BYTES_MIN = 1 << 16;

    final PageFile page;
    final Frames frames;
    byte[] bytes = new byte[0];
    private long start;
    private int limit;
    private int step = READ_BYTES_MIN;

    Window(PageFile page, Frames frames) {
        this.page = page;
        this.frames = frames;
        frames.use(bytes);
    }

    /** Where a position of the page is in `bytes`. */
    int at(long position) {
        return (int) (position - start);
    }

    /**
     * Check the frame at a position of the page.
     *
     * @param mayMove whether `bytes` may be overwritten; else CUT if the frame is not all there.
     */
    int check(long position, long sequence, boolean mayMove) {
        boolean isThere = position >= start && position <= start + limit;
        if (!isThere) {
            if (!mayMove) {
                return Frames.CUT;
            }
            start = position;
            limit = 0;
        }
        int found = frames.check(at(position), limit, position, sequence);
        while (found == Frames.CUT && mayMove) {
            if (!more(position)) {
                throw page.lost(sequence);
            }
            found = frames.check(at(position), limit, position, sequence);
        }
        return found;
    }

    /** Read on; false: the file ends. */
    private boolean more(long position) {
        int at = at(position);
        int kept = limit - at;
        int needed = limit == 0 || kept < 4 ? Frames.HEADER : frames.needed(at, limit);
        int room = Math.max(needed, step);
        step = READ_BYTES; // the first one is small: it may be all that is wanted
        byte[] to = bytes;
        if (bytes.length < room) {
            to = new byte[room];
        }
        System.arraycopy(bytes, at, to, 0, kept);
        bytes = to;
        frames.use(bytes);
        start = position;
        limit = kept;
        int got = page.read(bytes, limit, start + limit, bytes.length - limit);
        limit += got;
        return got > 0;
    }

    /** A copy of the payload of the frame that was checked last. */
    byte[] payload(long position) {
        int from = at(position) + Frames.HEADER;
        return Arrays.copyOfRange(bytes, from, from + frames.payloadBytes);
    }
}
