package pagequeue;

/** What the frame reader finds in the bytes of one page; tests compare it with the core. */
public final class Verdicts {
    private Verdicts() {
    }

    /**
     * Walk the frames of a page from its first on.
     *
     * @param page all of it.
     * @param id of the queue.
     * @param first sequence of the page.
     * @return position, sequence and time after the last valid frame, and why it ends there.
     */
    public static String walk(byte[] page, byte[] id, long first) {
        Frames frames = new Frames(id, page.length);
        frames.use(page);
        long position = Frames.PAGE_HEADER;
        long sequence = first;
        long timestamp = Long.MIN_VALUE;
        int found = frames.check((int) position, page.length, position, sequence);
        while (found == Frames.FRAME) {
            position = frames.next;
            sequence++;
            timestamp = frames.timestamp;
            found = frames.check((int) position, page.length, position, sequence);
        }
        return position + " " + sequence + " " + timestamp + " " + Frames.reason(found);
    }
}
