package pagequeue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** The payload of one message that is in fragments, each block of it checked. */
final class LargeMessage {
    private static final int RECORD = 16;
    private static final int SUM = 4;
    private static final int BLOCK = 1 << 18;
    private static final long BYTES_MAX = 1L << 40;
    private static final long ARRAY_BYTES_MAX = Integer.MAX_VALUE - 8L;
    private static final long PAGES_MAX = 9_999_999_999L;
    private static final String DO_NOT_ADD_UP = "its fragments do not add up";

    private final Place place;
    private final PageFile page;
    private final long sequence;
    private final long size;
    private final long fragments;
    private final long mark;
    private final Frames blocks;

    /** @param window in which the head is the frame that was checked last, at `position`. */
    LargeMessage(Place place, PageFile page, Window window, long position, long sequence) {
        this.place = place;
        this.page = page;
        this.sequence = sequence;
        this.blocks = new Frames(place.id, place.pageBytes);
        mark = window.frames.next;
        ByteBuffer head = ByteBuffer.wrap(window.payload(position)).order(ByteOrder.LITTLE_ENDIAN);
        boolean isHead = position == Frames.PAGE_HEADER && head.capacity() == RECORD;
        size = isHead ? head.getLong(0) : -1;
        fragments = isHead ? Integer.toUnsignedLong(head.getInt(8)) : 0;
        if (size < 0 || size > BYTES_MAX || fragments < 1 || fragments > PAGES_MAX
            || head.getInt(12) != BLOCK) {
            throw Gone.or(place, page.number, sequence, Problem.large(page.path, sequence,
                position, "the head of a large message is invalid"));
        }
        if (size > ARRAY_BYTES_MAX) {
            throw Problem.of("MessageTooLarge", null, size + " bytes of payloads exceed the "
                + Integer.MAX_VALUE + " bytes of a copy", "take smaller batches, or views")
                .with("size_bytes", size).with("limit_bytes", Integer.MAX_VALUE);
        }
    }

    byte[] load() {
        walk(null);
        byte[] whole = new byte[(int) size];
        walk(whole);
        return whole;
    }

    /** Look at all fragments, and copy them if there is where to. */
    private void walk(byte[] whole) {
        long end = 0;
        for (long ordinal = 0; ordinal < fragments; ordinal++) {
            PageFile in = ordinal == 0 ? page
                : new PageFile(place, page.number + ordinal, sequence);
            try {
                end = fragment(in, ordinal, end, whole);
            } finally {
                if (ordinal > 0) {
                    in.close();
                }
            }
        }
    }

    private long fragment(PageFile in, long ordinal, long end, byte[] whole) {
        long position = ordinal == 0 ? mark : Frames.PAGE_HEADER;
        if (ordinal > 0 && in.first != sequence + 1) {
            throw damage(in, 0, "a page between its fragments is another one's");
        }
        Window window = new Window(in, new Frames(place.id, place.pageBytes));
        if (window.check(position, sequence + 1, true) != Frames.END) {
            throw damage(in, position, "no valid end-of-page mark");
        }
        if (window.frames.payloadBytes < RECORD) {
            throw damage(in, position, "no fragment after the end-of-page mark");
        }
        long from = window.frames.next;
        ByteBuffer record = ByteBuffer.wrap(window.payload(position))
            .order(ByteOrder.LITTLE_ENDIAN);
        long offset = record.getLong(0);
        long bytes = Integer.toUnsignedLong(record.getInt(8));
        long stated = Integer.toUnsignedLong(record.getInt(12));
        long count = (bytes + BLOCK - 1) / BLOCK;
        if (bytes > place.pageBytes - from || RECORD + SUM * count > record.capacity()) {
            throw damage(in, position, "the size of the fragment is invalid");
        }
        long after = offset + bytes;
        boolean isLast = ordinal == fragments - 1;
        if (stated != ordinal || (after == size) != isLast || offset < 0 || after > size) {
            throw damage(in, position, "a fragment is missing, doubled or another's");
        }
        if (offset != end || (bytes == 0 && size > 0)) {
            throw damage(in, position, DO_NOT_ADD_UP);
        }
        for (int i = 0; whole != null && i < count; i++) {
            int part = (int) Math.min(BLOCK, bytes - (long) i * BLOCK);
            int to = (int) (offset + (long) i * BLOCK);
            block(in, from + (long) i * BLOCK, part, record.getInt(RECORD + SUM * i), whole, to);
        }
        return after;
    }

    private void block(PageFile in, long position, int size, int stated, byte[] whole, int to) {
        int got = 0;
        while (got < size) {
            int more = in.read(whole, to + got, position + got, size - got);
            if (more <= 0) {
                throw in.lost(sequence);
            }
            got += more;
        }
        if (blocks.blockSum(whole, to, size) != stated) {
            throw damage(in, position, "the checksum of a block is wrong");
        }
    }

    private Problem damage(PageFile in, long position, String reason) {
        return Gone.or(place, page.number, sequence,
            Problem.large(in.path, sequence, position, reason));
    }
}
